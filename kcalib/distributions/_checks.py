"""Check the parameters of distributions, and the targets and probabilities that their methods take."""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array, cast, kind_of
from kcalib._backend.special import asarray_on_device_of, to_device_of
from kcalib._input.checks import reject

# Squares, products of two and sums of these must not overflow, in float32 if requested.
LARGEST = 1e15


def real_array(value: Any, name: str) -> Array:
    """Return `value` as float64 numbers, finite and with absolute values up to `LARGEST`."""
    array = arrays.as_array(value, name)
    if kind_of(array) not in "biuf":
        raise TypeError(f"`{name}` has dtype {array.dtype}, expected real numbers; convert them to floats")
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
        lambda at, x: f"`{name}{at}` is {x}, expected at most {LARGEST:.0e} in size; rescale targets and predictions",
    )
    return arrays.as_compact(array, array.dtype) if arrays.is_host(array) else array


def positive_array(value: Any, name: str, expected: str) -> Array:
    """Return `value` as float64 numbers from 1 / `LARGEST` to `LARGEST`."""
    array = real_array(value, name)
    reject(
        array,
        array < 1 / LARGEST,
        lambda at, x: (
            f"`{name}{at}` is {x}, expected {expected}, at least {1 / LARGEST:.0e}; "
            "clip it to the smallest scale that means something, or drop such predictions"
        ),
    )
    return array


def broadcast_parameters(**parameters: Array) -> dict[str, Array]:
    """Return arrays of one shape, in the library of the largest; a single number is repeated."""
    if any(array.ndim == 1 for array in parameters.values()):
        parameters = {key: drop_column_axis(array) for key, array in parameters.items()}
    name, largest = max(parameters.items(), key=lambda item: item[1].ndim)
    shared = {}
    for key, array in parameters.items():
        array = arrays.asarray_like(array, largest)
        if array.ndim == 0 and largest.ndim:
            array = arrays.namespace(largest).zeros_like(largest) + array
        if tuple(array.shape) != tuple(largest.shape):
            raise ValueError(
                f"`{name}` has shape {tuple(largest.shape)} and `{key}` {tuple(array.shape)}, expected the same "
                "shape; a single number may stand for all"
            )
        shared[key] = read_only(array)
    return shared


def drop_column_axis(array: Array) -> Array:
    """Return an array of shape (n, 1) as (n,), and others unchanged."""
    return arrays.namespace(array).reshape(array, (-1,)) if array.ndim == 2 and array.shape[1] == 1 else array


def read_only(array: Array) -> Array:
    """Return a read-only view of a NumPy array; others unchanged."""
    if arrays.is_host(array):
        array = array.view()
        array.flags.writeable = False
    return array


def normalized_weights(weights: Any, name: str, shape: tuple[int, ...], noun: str) -> Array:
    """Return weights >= 0 of this shape whose rows sum to 1 within 1e-6, divided by their sums."""
    array = real_array(weights, name)
    xp = arrays.namespace(array)
    if array.ndim == 1 and tuple(array.shape) == shape[1:]:
        array = xp.broadcast_to(array[None, :], shape)
    if tuple(array.shape) != shape:
        raise ValueError(
            f"`{name}` has shape {tuple(array.shape)}, expected {shape} or {shape[1:]}: one weight for each {noun}"
        )
    reject(
        array,
        array < 0,
        lambda at, x: f"`{name}{at}` is {x}, expected a weight >= 0; clip it to 0 or drop such predictions",
    )
    sums = xp.sum(array, axis=1)
    reject(
        sums,
        xp.abs(sums - 1) > 1e-6,
        lambda at, x: f"`{name}{at}` sums to {x:.9g}, expected 1 within 1e-6; normalise the rows",
    )
    return array / sums[:, None]


def check_targets(y: Any, reference: Array, n: int, event_shape: tuple[int, ...], name: str = "y") -> Array:
    """Return targets of shape (n, *event_shape) on the device of the reference; numbers may be (n,) or (n, 1)."""
    array = real_array(y, name)
    shape = (n, *event_shape)
    if event_shape in ((), (1,)) and tuple(array.shape) in ((n,), (n, 1)):
        array = arrays.namespace(array).reshape(array, shape)
    if tuple(array.shape) != shape:
        raise ValueError(f"`{name}` has shape {tuple(array.shape)}, expected {shape}: one target for each prediction")
    return arrays.asarray_like(array, reference)


def check_numbers(y: Any, reference: Array, n: int, event_shape: tuple[int, ...]) -> Array:
    """Return numbers of shape (n,) or (n, k) on the compute device of the reference."""
    _check_predicts_numbers("cdf", event_shape)
    array = asarray_on_device_of(real_array(y, "y"), reference)
    if array.ndim not in (1, 2) or array.shape[0] != n:
        raise ValueError(f"`y` has shape {tuple(array.shape)}, expected ({n},), or ({n}, k) for k numbers each")
    return array


def check_probabilities(probability: Any, reference: Array, event_shape: tuple[int, ...]) -> Array:
    """Return probabilities above 0 and below 1, shape (1, m), on the compute device of the reference."""
    _check_predicts_numbers("quantile", event_shape)
    array = np.atleast_1d(arrays.to_host(real_array(probability, "probability")))
    if array.ndim != 1:
        raise ValueError(f"`probability` has shape {array.shape}, expected a number or (m,)")
    reject(
        array,
        ~((array > 0) & (array < 1)),
        lambda at, x: f"`probability{at}` is {x}, expected a number above 0 and below 1; leave it out or clip it",
    )
    return to_device_of(array[None, :], reference)


def _check_predicts_numbers(method: str, event_shape: tuple[int, ...]) -> None:
    if event_shape not in ((), (1,)):
        raise ValueError(
            f"`{method}` is for predictions of numbers, these are of vectors of {event_shape[0]} entries; "
            "make a distribution of each entry"
        )


def check_size(size: Any) -> int:
    """Return a number of draws, at least 1."""
    if isinstance(size, (bool, np.bool_)) or not isinstance(size, (int, np.integer)):
        raise TypeError(f"`size` is {size!r}, expected an integer: the number of draws from each prediction")
    if size < 1:
        raise ValueError(f"`size` is {size}, expected at least 1 draw from each prediction")
    return int(size)


def check_support(y: Array, support: str, name: str = "y") -> None:
    """Refuse targets outside of the support of the predictions (`Distribution.support`)."""
    xp = arrays.namespace(y)
    if support == "count":
        reject(
            y,
            (y < 0) | (xp.floor(y) != y),
            lambda at, x: f"`{name}{at}` is {x}, expected a count: 0, 1, 2, ...; these predictions are of counts",
        )
    elif support in ("unit", "simplex"):
        reject(
            y,
            (y < 0) | (y > 1),
            lambda at, x: f"`{name}{at}` is {x}, expected a number from 0 to 1; rescale targets and predictions",
        )
    if support == "simplex":
        sums = xp.sum(y, axis=1)
        reject(
            sums,
            xp.abs(sums - 1) > 1e-6,
            lambda at, x: f"`{name}{at}` sums to {x:.9g}, expected 1 within 1e-6; normalise the targets",
        )
