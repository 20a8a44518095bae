"""Checked targets and predicted distributions.

Public functions call `prepare`: it returns a `Forecasts` for a `Distribution`, and a `Classification`
(`_input.labels.prepare`) for class probabilities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import kcalib.distributions as distributions
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.random import replicate_numbers
from kcalib._input import frames, labels
from kcalib._input.checks import dtype_name, weights_of
from kcalib._input.columns import Columns, FileError
from kcalib._input.data import Data
from kcalib._input.labels import NAMES, Names
from kcalib._input.parameters import choose_forecasts
from kcalib.distributions import Categorical, Distribution, as_distribution
from kcalib.distributions._checks import check_support, real_array
from kcalib.distributions._distribution import Family, take_rows
from kcalib.distributions.adapters import is_external
from kcalib.lenses import CANONICAL, Lens

ROWS = 2**10  # rows of a block whose targets are drawn together
SMALLEST_UNIFORM = 2.0**-64  # quantiles at 0 are infinite


def row_uniforms(seed: int, replicates: range, numbers: np.ndarray, per_row: int, stream: int = 0) -> np.ndarray:
    """Return the uniform numbers for targets of rows of one block, shape (replicates, n, per_row).

    Block b of `ROWS` rows has the stream (seed, stream + b), with `ROWS` times `per_row` numbers for each replicate, so
    that parts of the data have the same numbers as the whole. `numbers` are the row numbers, ascending, shape (n,).
    """
    block, size = int(numbers[0]) // ROWS, ROWS * per_row
    random = replicate_numbers(seed, stream + block, numbers, replicates.start * size)
    uniform = random.uniform(len(replicates) * size).reshape(len(replicates), ROWS, per_row)
    places = numbers - block * ROWS
    return np.maximum(uniform[:, places[0] : places[-1] + 1][:, places - places[0]], SMALLEST_UNIFORM)


def draw_targets(prediction: Distribution, uniform: np.ndarray) -> Array:
    """Return targets, shape (replicates, n, d), from uniforms of shape (replicates, n, numbers per row)."""
    draws = prediction._draw_from(np.ascontiguousarray(np.moveaxis(uniform, 0, 1)))
    xp = arrays.namespace(draws)
    return xp.reshape(xp.moveaxis(draws, 1, 0), (uniform.shape[0], prediction.n, prediction.n_dims))


@dataclass(frozen=True)
class Forecasts(Data):
    """Checked targets and predicted distributions."""

    y: Array  # float64, shape: (n, d)
    prediction: Distribution
    sample_weight: Array | None  # float64, shape: (n,)
    dtype: str = "float64"  # the pairwise arithmetic is in it
    lens: Lens = CANONICAL

    noun = "predicted distributions"
    has_classes = False

    @property
    def n(self) -> int:
        return int(self.y.shape[0])

    @property
    def n_dims(self) -> int:
        """The number of entries d of a target."""
        return int(self.y.shape[1])

    @property
    def target_size(self) -> str:
        return f"targets of {self.n_dims} entries"

    @property
    def reference(self) -> Array:
        return self.y

    def take(self, rows: Any) -> Forecasts:
        weights = None if self.sample_weight is None else take_rows(self.sample_weight, rows)
        return dataclasses.replace(
            self, y=take_rows(self.y, rows), prediction=self.prediction.take(rows), sample_weight=weights
        )

    def with_targets(self, targets: Array) -> Forecasts:
        """Return the same predictions with other targets, shape (n, d)."""
        return dataclasses.replace(self, y=targets)

    def draw(self, seed: int, replicate: int) -> Forecasts:
        key = np.random.SeedSequence((seed, replicate)).generate_state(1, np.uint64)[0]
        return self._draw_targets(int(key >> np.uint64(1)))

    def row_draws(self, seed: int, replicates: range) -> Callable[[slice], Array]:
        """Return a function that returns targets of some rows, shape (replicates, rows, d), by `row_uniforms`.

        Distributions that are not drawn from uniform numbers use those of `draw`.
        """
        per_row = self.prediction._n_uniforms
        if per_row is None:
            draws = self.xp.stack([self.draw(seed, replicate).y for replicate in replicates])
            return lambda rows: draws[:, rows, :]

        def draw(rows: slice) -> Array:
            begin, end, _ = rows.indices(self.n)
            ends = [*range(begin // ROWS * ROWS + ROWS, end, ROWS), end]
            parts = []
            for first, last in zip([begin, *ends[:-1]], ends, strict=True):
                numbers = np.arange(first, last)
                prediction = self.prediction.take(arrays.like(numbers, self.y))
                parts.append(draw_targets(prediction, row_uniforms(seed, replicates, numbers, per_row)))
            return parts[0] if len(parts) == 1 else self.xp.concat(parts, axis=1)

        return draw

    def draw_by(self, generator: np.random.Generator) -> Forecasts:
        return self._draw_targets(int(generator.integers(2**63)))

    def _draw_targets(self, seed: int) -> Forecasts:
        draws = self.prediction.sample(1, seed=seed)
        return self.with_targets(self.xp.reshape(draws, (self.n, self.n_dims)))

    def redraw(self, seed: int, replicate: int) -> tuple[Array, Forecasts]:
        rows = replicate_numbers(seed, replicate, self.reference).integers(self.n, self.n)
        rows = arrays.asarray_like(rows, self.reference)
        return rows, self.take(rows).draw(seed, replicate)

    def as_given(self) -> tuple[Any, Any]:
        return self.y if self.prediction.event_shape else self.y[:, 0], self.prediction

    def listed(self) -> tuple[tuple[Any, ...], tuple[tuple[float, ...], ...]]:
        parameters, y = self.prediction.parameters(), arrays.to_host(self.y)
        numbers = np.empty((self.n, 0)) if parameters is None else arrays.to_host(parameters)
        values = y[:, 0].tolist() if y.shape[1] == 1 else map(tuple, y.tolist())
        return tuple(values), tuple(map(tuple, numbers.tolist()))

    def mismatch(self, other: Forecasts, name: str) -> str | None:
        if (self.n, self.n_dims) != (other.n, other.n_dims):
            return (
                f"{self.size}, but {name} has {other.n} and {other.n_dims}; models are compared on the same samples in "
                "the same order"
            )
        targets, other_targets = arrays.to_host(self.y), arrays.to_host(other.y)
        differing = np.argwhere(targets != other_targets)
        if not differing.size:
            return None
        i, entry = (int(k) for k in differing[0])
        return (
            f"the target of sample {i} (counted from 0) is {targets[i, entry]:.6g}, but in {name} "
            f"{other_targets[i, entry]:.6g} ({len(np.unique(differing[:, 0]))} targets differ); models are compared on "
            "the same samples in the same order"
        )

    def describe(self) -> dict[str, Any]:
        prediction = type(self.prediction).__name__
        return {"n_classes": None, "positive_class": None, "prediction": prediction, "lens": str(self.lens)}


def as_forecast(y_true: Any, y_pred: Any) -> Any:
    """Return a `Distribution` for objects of other libraries, and for frames or mappings of parameters."""
    if is_external(y_pred):
        return as_distribution(y_pred)
    y_pred = arrays.compute_lazy(y_pred)
    columns = y_pred if isinstance(y_pred, Mapping) else ()
    columns = getattr(y_pred, "column_names", getattr(y_pred, "columns", columns))  # Arrow, or pandas and polars
    if callable(columns) or isinstance(y_pred, Distribution):
        return y_pred
    choice = None
    with suppress(FileError):  # missing parameters, or also class probabilities
        choice = choose_forecasts(Columns("column", tuple(name for name in columns if isinstance(name, str))), {})
    if choice is None:
        return y_pred
    frames.check_rows(y_true, y_pred, None, NAMES[:2])
    parts = {key: [arrays.as_array(y_pred[name], name) for name in names] for key, names in choice.names.items()}
    parameters = {key: part[0] if len(part) == 1 else np.stack(part, axis=1) for key, part in parts.items()}
    kind: Any = getattr(distributions, choice.family)
    return kind(**parameters)


def prepare(
    y_true: Any,
    y_pred: Any,
    *,
    classes: Any = None,
    from_logits: bool = False,
    sample_weight: Any = None,
    dtype: Any = None,
    threads: Any = None,
    lens: Any = None,
    names: Names = NAMES,
    sparse_lens: Lens | None = None,
) -> Data:
    """Check and normalise what all public functions take.

    `y_pred` is a `Distribution`, or what `as_forecast` makes one of. All else is for
    `_input.labels.prepare`, whose parameters the others are, and so are class probabilities in a `Categorical`.
    """
    if type(y_pred) is not np.ndarray:
        y_pred = as_forecast(y_true, y_pred)
        if isinstance(y_pred, Categorical):
            classes = y_pred.classes if classes is None else classes
            y_pred = y_pred.probabilities
    if type(y_pred) is np.ndarray or not isinstance(y_pred, Distribution):
        return labels.prepare(
            y_true,
            y_pred,
            classes=classes,
            from_logits=from_logits,
            sample_weight=sample_weight,
            dtype=dtype,
            threads=threads,
            lens=lens,
            names=names,
            sparse_lens=sparse_lens,
        )
    for name, has_value in (("classes", classes is not None), ("from_logits", from_logits), ("lens", lens is not None)):
        if has_value:
            raise ValueError(
                f"`{name}` is for class probabilities, but `{names.y_pred}` is {type(y_pred).__name__}; leave it out"
            )
    return prepare_forecasts(y_true, y_pred, sample_weight=sample_weight, dtype=dtype, names=names)


def prepare_forecasts(
    y_true: Any, y_pred: Distribution, *, sample_weight: Any = None, dtype: Any = None, names: Names = NAMES
) -> Forecasts:
    """Check targets and distributions of numbers or vectors."""
    y = _targets(y_true, y_pred, names.y_true)
    weights = None if sample_weight is None else weights_of(sample_weight, y_pred.n, y)
    return Forecasts(y, y_pred, weights, dtype_name(dtype))


def _targets(y_true: Any, prediction: Distribution, name: str) -> Array:
    """Check targets and return them with shape (n, d) on the device of the predictions."""
    y, shape = real_array(y_true, name), (prediction.n, *prediction.event_shape)
    if prediction.event_shape in ((), (1,)) and tuple(y.shape) in ((prediction.n,), (prediction.n, 1)):
        shape = tuple(y.shape)
    if tuple(y.shape) != shape:
        raise ValueError(
            f"`{name}` has shape {tuple(y.shape)}, expected {shape}: one target for each of the {prediction.n} "
            f"predictions of {type(prediction).__name__}"
        )
    y = arrays.asarray_like(y, _array_of(prediction))
    check_support(y, prediction.support, name)
    return arrays.namespace(y).reshape(y, (prediction.n, prediction.n_dims))


def _array_of(prediction: Distribution) -> Array:
    """Return an array in the library and on the device of the predictions."""
    if isinstance(prediction, Family):
        return prediction._first
    parameters = prediction.parameters()
    if parameters is not None:
        return parameters
    components = prediction.components()
    return prediction.sample(1) if components is None else components.locations
