"""Checks of the parameters of distributions; each family calls them when it is made."""

from __future__ import annotations

from typing import Any

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._inputs import cast, kind_of, reject

# Squares, products of two and sums of these must stay in the range of numbers, in float32 too where that is asked for.
LARGEST = 1e15


def real_array(value: Any, name: str) -> Array:
    """`value` as float64 numbers, finite and at most `LARGEST` in size."""
    array = _arrays.as_array(value, name)
    if kind_of(array) not in "biuf":
        raise TypeError(f"`{name}` has dtype {array.dtype}, expected real numbers")
    xp = _arrays.namespace(array)
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
    return _arrays.compact(array, array.dtype) if _arrays.is_host(array) else array


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


def check_same_shape(first: Array, name: str, second: Array, other: str) -> None:
    if tuple(first.shape) != tuple(second.shape):
        raise ValueError(
            f"`{name}` has shape {tuple(first.shape)} and `{other}` {tuple(second.shape)}, expected the same shape"
        )


def check_rows(array: Array, name: str) -> None:
    """Shape (n,), for numbers, or (n, d), for vectors."""
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise ValueError(
            f"`{name}` has shape {tuple(array.shape)}, expected (n,), or (n, d) for predictions of vectors"
        )
