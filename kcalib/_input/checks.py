"""Checks of numeric arrays: finite points, weights, and the dtype of the arithmetic.

`reject` reports the first entry that breaks a rule. `_input.labels`, `_input.forecasts` and the families of
`kcalib.distributions` use these checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import show_number

DTYPES = ("float64", "float32")
LARGEST_POINT = 1e15  # largest entry: squares of distances do not overflow


def is_column(array: Array) -> bool:
    """Return whether there is one number per row, shape (n,) or (n, 1)."""
    return array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)


class ShownFloat(float):
    """A float whose text differs from the limit next to it."""

    def __str__(self) -> str:
        return show_number(self)


def reject(array: Array, bad: Array, message: Callable[[str, Any], str]) -> None:
    """Raise for the first entry where `bad` holds."""
    xp = arrays.namespace(array)
    if not bool(xp.any(bad)):
        return
    flat = int(xp.argmax(xp.astype(xp.reshape(bad, (-1,)), xp.int8)))
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(array.shape)))
    value = array[index].item() if arrays.is_host(array) or arrays.is_cuda(array) else float(array[index])
    raise ValueError(message(arrays.subscript(index), ShownFloat(value) if type(value) is float else value))


def check_points(points: Array, name: str) -> Array:
    """Check finite numbers of shape (n, m), and return them as float64 if the library has it."""
    if arrays.kind_of(points) not in "biuf":
        raise TypeError(f"`{name}` has dtype {points.dtype}, expected numbers")
    if points.ndim != 2 or points.shape[1] == 0:
        raise ValueError(f"`{name}` has shape {tuple(points.shape)}, expected (n, m) with at least one column")
    xp = arrays.namespace(points)
    points = arrays.cast(xp, points, "float64", or_else="float32")
    reject(
        points,
        ~xp.isfinite(points),
        lambda at, x: f"`{name}{at}` is {x}, expected a finite number; drop or repair such rows first",
    )
    reject(
        points,
        xp.abs(points) > LARGEST_POINT,
        lambda at, x: f"`{name}{at}` is {x}, expected at most 1e+15 in size; rescale the points",
    )
    return points


def finite_weights(sample_weight: Any, n: int, reference: Array) -> Array:
    """Check finite weights >= 0 of a part of the samples; all may be 0."""
    weights = arrays.as_array(sample_weight, "sample_weight")
    if arrays.kind_of(weights) not in "biuf":
        raise TypeError(f"`sample_weight` has dtype {weights.dtype}, expected numbers")
    if tuple(weights.shape) != (n,):
        raise ValueError(
            f"`sample_weight` has shape {tuple(weights.shape)}, expected ({n},): one weight for each sample"
        )
    weights = arrays.asarray_like(weights, reference)
    xp = arrays.namespace(weights)
    weights = arrays.cast(xp, weights, "float64")
    reject(
        weights,
        ~(xp.isfinite(weights) & (weights >= 0)),
        lambda at, x: f"`sample_weight{at}` is {x}, expected a finite weight >= 0; drop such rows first",
    )
    return weights


def weights_of(sample_weight: Any, n: int, reference: Array) -> Array:
    """Check the weights of all samples."""
    weights = finite_weights(sample_weight, n, reference)
    highest = float(arrays.namespace(weights).max(weights))
    if not highest:
        raise ValueError("`sample_weight` is 0 for all samples, expected a positive weight; repair it, or leave it out")
    if not 1e-15 < highest < 1e15:  # products of two must neither vanish nor overflow in float32
        raise ValueError(
            f"the largest `sample_weight` is {show_number(highest)}, expected 1e-15 to 1e15; rescale the weights"
        )
    return weights


def dtype_name(dtype: Any) -> str:
    if dtype is None:
        return "float64"
    try:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    except TypeError:
        name = str(dtype).rpartition(".")[2]  # torch.float32
    if name not in DTYPES:
        raise ValueError(f"`dtype` is {dtype!r}, expected 'float64' or 'float32'")
    return name
