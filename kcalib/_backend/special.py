"""Special functions on the device of the numbers: of SciPy on the host, of CuPy on a GPU.

CuPy uses Cephes; some functions of SciPy are newer, so that results differ by more than rounding where the old ones
lose digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array


def special(array: Array) -> Any:
    """Return the module with special functions for an array."""
    if not arrays.is_cuda(array):
        return scipy.special
    import cupyx.scipy.special

    return cupyx.scipy.special


def asarray_on_device_of(array: Array, reference: Array) -> Array:
    """Return `array` where `to_compute_device` moves the reference."""
    return arrays.asarray_like(array, reference if arrays.is_cuda(reference) else np.empty(0))


def to_device_of(values: Array, reference: Array) -> Array:
    """Return host `values` where `to_compute_device` moves the reference."""
    if arrays.is_cuda(reference) and arrays.is_host(values):
        return arrays.like(values, reference)
    return values


def betaincc(a: Array, b: Array, x: Array, complement: Array) -> Array:
    """Return 1 - I_x(a, b) to relative accuracy; `complement` is 1 - x."""
    functions = special(x)
    if hasattr(functions, "betaincc"):
        return functions.betaincc(a, b, x)
    xp, lower = arrays.namespace(x), functions.betainc(a, b, x)
    return xp.where(lower < 0.5, 1 - lower, functions.betainc(b, a, complement))


def betainccinv(a: Array, b: Array, p: Array) -> Array:
    """Return the x with 1 - I_x(a, b) = p."""
    functions = special(p)
    if hasattr(functions, "betainccinv"):
        return functions.betainccinv(a, b, p)
    return functions.betaincinv(a, b, 1 - p)
