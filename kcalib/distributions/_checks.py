"""Checks of the parameters of distributions; each family calls them when it is made."""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array, cast, kind_of
from kcalib._backend.special import beside_computed, brought
from kcalib._input.checks import reject

# Squares, products of two and sums of these must stay in the range of numbers, in float32 too where that is asked for.
LARGEST = 1e15


def real_array(value: Any, name: str) -> Array:
    """`value` as float64 numbers, finite and at most `LARGEST` in size."""
    array = arrays.as_array(value, name)
    if kind_of(array) not in "biuf":
        raise TypeError(f"`{name}` has dtype {array.dtype}, expected real numbers")
    xp = arrays.namespace(array)
    array = cast(xp, array, "float64", or_else="float32")
    if array.ndim and array.shape[0] == 0:
        raise ValueError(f"`{name}` is empty, expected at least one prediction")
    reject(
        array,
        ~xp.isfinite(array),
        lambda at, x: f"`{name}{at}` is {x}, expected a finite number; drop or repair such predictions first",
    )
    reject(
        array,
        xp.abs(array) > LARGEST,
        lambda at, x: (
            f"`{name}{at}` is {x:.3g}, expected at most {LARGEST:.0e} in size; rescale targets and predictions"
        ),
    )
    return arrays.compact(array, array.dtype) if arrays.is_host(array) else array


def positive_array(value: Any, name: str, what: str) -> Array:
    """`value` as float64 numbers from 1 / `LARGEST` to `LARGEST`."""
    array = real_array(value, name)
    reject(
        array,
        array < 1 / LARGEST,
        lambda at, x: (
            f"`{name}{at}` is {x:.6g}, expected {what}, at least {1 / LARGEST:.0e}; "
            "clip it to the smallest scale that means something, or drop such predictions"
        ),
    )
    return array


def parameters_of(**given: Array) -> tuple[Array, ...]:
    """Arrays of the same shape, in the first one's library; a number stands for as many as the others have.

    What was brought to NumPy comes back as views that cannot be written to.
    """
    largest = max(given.values(), key=lambda array: array.ndim)
    name = next(name for name, array in given.items() if array is largest)
    found = []
    for other, array in given.items():
        array = arrays.asarray_like(array, largest)
        if array.ndim == 0 and largest.ndim:
            array = arrays.namespace(largest).zeros_like(largest) + array
        if tuple(array.shape) != tuple(largest.shape):
            raise ValueError(
                f"`{name}` has shape {tuple(largest.shape)} and `{other}` {tuple(array.shape)}, expected the same "
                "shape; a single number may stand for all"
            )
        found.append(read_only(array))
    return tuple(found)


def read_only(array: Array) -> Array:
    if arrays.is_host(array):
        array = array.view()
        array.flags.writeable = False
    return array


def check_rows(array: Array, name: str) -> None:
    """Shape (n,), for numbers, or (n, d), for vectors."""
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise ValueError(
            f"`{name}` has shape {tuple(array.shape)}, expected (n,), or (n, d) for predictions of vectors"
        )


def check_numbers(array: Array, name: str) -> None:
    """Shape (n,)."""
    if array.ndim != 1:
        remedy = f"; reshape it by {name}.reshape(-1)" if array.ndim == 2 and array.shape[1] == 1 else ""
        raise ValueError(
            f"`{name}` has shape {tuple(array.shape)}, expected (n,): these are predictions of numbers{remedy}"
        )


def weight_rows(weights: Any, name: str, shape: tuple[int, ...], what: str) -> Array:
    """Weights >= 0 of this shape whose rows sum to 1; what rounding has left is divided out."""
    array = real_array(weights, name)
    if array.ndim == 1 and tuple(array.shape) == shape[1:]:
        array = arrays.namespace(array).zeros((shape[0], 1), dtype=array.dtype, **_device(array)) + array[None, :]
    if tuple(array.shape) != shape:
        raise ValueError(
            f"`{name}` has shape {tuple(array.shape)}, expected {shape} or {shape[1:]}: one weight for each {what}"
        )
    xp = arrays.namespace(array)
    reject(
        array,
        array < 0,
        lambda at, x: f"`{name}{at}` is {x:.6g}, expected a weight >= 0; clip it to 0 or drop such predictions",
    )
    sums = xp.sum(array, axis=1)
    reject(
        sums,
        xp.abs(sums - 1) > 1e-6,
        lambda at, x: f"`{name}{at}` sums to {x:.9g}, expected 1 within 1e-6; normalise the rows",
    )
    return array / sums[:, None]


def _device(array: Array) -> dict[str, Any]:
    return {} if arrays.is_host(array) else {"device": arrays.device(array)}


def events(y: Any, reference: Array, n: int, event_shape: tuple[int, ...], name: str = "y") -> Array:
    """Targets of shape (n, *event_shape), beside the distributions' arrays; for numbers (n,) and (n, 1) are one."""
    array = real_array(y, name)
    shape = (n, *event_shape)
    if event_shape in ((), (1,)) and tuple(array.shape) in ((n,), (n, 1)):
        array = arrays.namespace(array).reshape(array, shape)
    if tuple(array.shape) != shape:
        raise ValueError(f"`{name}` has shape {tuple(array.shape)}, expected {shape}: one target for each prediction")
    return arrays.asarray_like(array, reference)


def numbers(y: Any, reference: Array, n: int, event_shape: tuple[int, ...], method: str) -> Array:
    """Numbers of shape (n,) or (n, k), where the distributions' array is computed with."""
    if event_shape not in ((), (1,)):
        raise ValueError(
            f"`{method}` is for predictions of numbers, these are of vectors of {event_shape[0]} entries; "
            "make a distribution of each entry"
        )
    array = beside_computed(real_array(y, "y"), reference)
    if array.ndim not in (1, 2) or array.shape[0] != n:
        raise ValueError(f"`y` has shape {tuple(array.shape)}, expected ({n},), or ({n}, k) for k numbers each")
    return array


def probability_row(probability: Any, reference: Array, event_shape: tuple[int, ...]) -> Array:
    """Probabilities above 0 and below 1, shape (1, m), where the distributions' array is computed with."""
    if event_shape not in ((), (1,)):
        raise ValueError(
            f"`quantile` is for predictions of numbers, these are of vectors of {event_shape[0]} entries; "
            "make a distribution of each entry"
        )
    array = np.atleast_1d(arrays.to_host(real_array(probability, "probability")))
    if array.ndim != 1:
        raise ValueError(f"`probability` has shape {array.shape}, expected a number or (m,)")
    reject(
        array,
        ~((array > 0) & (array < 1)),
        lambda at, x: f"`probability{at}` is {x:.6g}, expected a number above 0 and below 1; leave it out or clip it",
    )
    return brought(array[None, :], reference)


def column_for(array: Array, y: Array) -> Array:
    """A parameter of shape (n,) or (n, 1) as it meets numbers y of shape (n,) or (n, k)."""
    column = arrays.where_computed(array).reshape(-1)
    return column[:, None] if y.ndim == 2 else column


def check_size(size: Any) -> int:
    if isinstance(size, (bool, np.bool_)) or not isinstance(size, (int, np.integer)):
        raise TypeError(f"`size` is {size!r}, expected an integer: the number of draws from each prediction")
    if size < 1:
        raise ValueError(f"`size` is {size}, expected at least 1 draw from each prediction")
    return int(size)


def check_support(y: Array, support: str, name: str = "y") -> None:
    """Refuse targets where no prediction of this `Distribution.support` can have any."""
    xp = arrays.namespace(y)
    if support == "count":
        reject(
            y,
            (y < 0) | (xp.floor(y) != y),
            lambda at, x: f"`{name}{at}` is {x:.6g}, expected a count: 0, 1, 2, ...; these predictions are of counts",
        )
    elif support in ("unit", "simplex"):
        reject(
            y,
            (y < 0) | (y > 1),
            lambda at, x: f"`{name}{at}` is {x:.6g}, expected a number from 0 to 1; rescale targets and predictions",
        )
    if support == "simplex":
        sums = xp.sum(y, axis=1)
        reject(
            sums,
            xp.abs(sums - 1) > 1e-6,
            lambda at, x: f"`{name}{at}` sums to {x:.9g}, expected 1 within 1e-6; normalise the targets",
        )
