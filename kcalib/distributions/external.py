"""Distribution objects of other libraries without a family in kcalib, by their `cdf` and quantile functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.checks import reject
from kcalib.distributions._checks import check_numbers, check_probabilities, check_size, check_support, check_targets
from kcalib.distributions._distribution import Distribution, clip_to_open, take_rows

INVERSES = ("ppf", "icdf", "quantile")  # SciPy and skpro; SciPy, PyTorch and NumPyro; TensorFlow Probability
PROBES = np.array([1e-6, *np.arange(1, 40) / 40, 1 - 1e-6, 1 - 1e-9])  # levels whose quantiles reveal atoms
_HOST = np.empty(0)


def has_functions(law: Any) -> bool:
    """Return whether an object has a distribution function and its inverse, which are not mere data columns."""
    return (
        callable(getattr(law, "cdf", None))
        and any(callable(getattr(law, name, None)) for name in INVERSES)
        and not hasattr(law, "freeze")  # a family of scipy.stats without parameters
    )


class ExternalDistribution(Distribution):
    """Distributions of numbers by vectorised `cdf` and `ppf`, or `icdf`: one object, or one for each row."""

    _n_uniforms = 1

    def __init__(self, laws: Sequence[Any]) -> None:
        laws = _stack_frozen(laws)
        shape: tuple[int, ...] = ()
        for i, law in enumerate(laws):
            shape = _batch_shape(law)
            if shape and (len(laws) > 1 or len(shape) > 2 or shape[1:] not in ((), (1,))):
                name, expected = (f"predictions[{i}]", "()") if len(laws) > 1 else ("predictions", "(n,)")
                raise ValueError(
                    f"`{name}` has the batch shape {shape}, expected {expected}: a distribution for each sample; take "
                    "one entry at a time"
                )
        self._laws, self._shape = laws, shape
        self._rows = np.arange(len(laws) if len(laws) > 1 else int(np.prod(shape)))
        # PyTorch refuses numbers outside of these, where the distribution function is 0 or 1.
        limits = [_broadcast_limits(law, shape) for law in laws]
        self._limits = np.nextafter(np.concatenate(limits, axis=1), [[np.inf], [-np.inf]])
        quantiles = self.quantile(PROBES)
        is_count = bool(np.all((quantiles == np.floor(quantiles)) & (quantiles >= 0)))
        names = ("logpmf", "log_pmf", "log_prob") if is_count else ("logpdf", "log_pdf", "log_prob")
        density = next((n for n in names if all(hasattr(law, n) for law in laws)), None)
        is_smooth = is_count or bool(np.all(self.cdf(quantiles) - self.cdf_left(quantiles) < 1e-6))
        self._density = density if is_smooth else None
        self.support = "count" if is_count else "real"  # type: ignore[misc]

    @property
    def n(self) -> int:
        return len(self._rows)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return ()

    def take(self, rows: Any) -> ExternalDistribution:
        chosen, law = take_rows(self._rows, rows), self._laws[0]
        if len(self._laws) > 1 or not self._shape or not _is_frozen(law):
            return self._with(_rows=chosen)
        law = _freeze(law, [column[chosen] for column in _arguments(law, self._shape)])
        rows, limits = np.arange(len(chosen)), self._limits[:, chosen]
        return self._with(_laws=(law,), _shape=chosen.shape, _rows=rows, _limits=limits)

    def sample(self, size: int, *, seed: int = 0) -> Array:
        uniforms = np.random.default_rng(seed).uniform(size=(self.n, check_size(size), 1))
        return self._draw_from(clip_to_open(uniforms))

    def _draw_from(self, uniforms: Array) -> Array:
        return self._inverse_cdf(arrays.to_host(uniforms)[:, :, 0])

    def expected_value(self) -> Array:
        return self._moment(("mean",), lambda value: value, super().expected_value)

    def standard_deviation(self) -> Array:
        names = ("std", "standard_deviation", "stddev")
        deviation = self._moment(names, lambda value: value, lambda: None)
        if deviation is None:
            deviation = self._moment(("var", "variance"), np.sqrt, super().standard_deviation)
        return deviation

    def cdf(self, y: Any) -> Array:
        """Return P(Z <= y) for numbers y, shape (n,) or (n, k)."""
        y = check_numbers(y, _HOST, self.n, ())
        at = np.floor(y) if self.support == "count" else y  # newer objects of SciPy interpolate between counts
        values = self._evaluate_inside(("cdf",), at, 0.0, 1.0)
        reject(
            values,
            ~((values >= 0) & (values <= 1)),
            lambda at, x: f"`cdf` of the predictions{at} is {x} at {y[_index(at)]:.6g}, expected a probability",
        )
        return values

    def quantile(self, probability: Any) -> Array:
        """Return the smallest numbers whose `cdf` is at least the probabilities, shape (n, m)."""
        p = check_probabilities(probability, _HOST, ())
        return self._inverse_cdf(np.broadcast_to(p, (self.n, p.shape[1])))

    @property
    def log_density(self) -> Callable[[Any], Array]:
        """Return the function for log densities, or log probabilities of counts, if the object has one."""
        if self._density is None:
            raise AttributeError("these distributions have no density")
        return self._log_density

    def _log_density(self, y: Any) -> Array:
        y = check_targets(y, _HOST, self.n, ())
        check_support(y, self.support)
        return self._evaluate_inside((str(self._density),), y, -np.inf, -np.inf)

    def _inverse_cdf(self, p: np.ndarray) -> np.ndarray:
        values = self._evaluate(INVERSES, p)
        if not np.all(np.isfinite(values)):  # in float32, as in JAX, levels near 1 are 1
            values = np.where(np.isfinite(values), values, self._evaluate(INVERSES, np.clip(p, 2**-23, 1 - 2**-23)))
        reject(
            values,
            ~np.isfinite(values),
            lambda at, x: f"the quantile of the predictions{at} is {x} at {p[_index(at)]:.6g}, expected a number",
        )
        return values

    def _moment(self, names: Sequence[str], function: Callable[[Any], Any], default: Callable[[], Any]) -> Any:
        values = []
        for law in self._laws:
            for name in names:
                with suppress(AttributeError, NotImplementedError):  # PyTorch has properties that raise
                    value = getattr(law, name)
                    values.append(np.broadcast_to(_as_numbers(value() if callable(value) else value), self._shape))
                    break
            else:
                return default()
        return function(np.concatenate([value.reshape(-1) for value in values]))[self._rows][:, None]

    def _evaluate_inside(self, names: Sequence[str], y: np.ndarray, below: float, above: float) -> np.ndarray:
        """Return values at numbers of shape (n,) or (n, k), `below` and `above` where the laws have no numbers."""
        x = y.reshape(self.n, -1)
        low, high = self._limits[:, self._rows, None]
        values = self._evaluate(names, np.clip(x, low, high))
        return np.where(x < low, below, np.where(x > high, above, values)).reshape(y.shape)

    def _evaluate(self, names: Sequence[str], x: np.ndarray) -> np.ndarray:
        """Return values of the first function that the laws have, at numbers of shape (n, k)."""
        result = np.empty(x.shape)
        if not self._shape:  # a law for each row
            order = np.argsort(self._rows, kind="stable")
            for rows in np.split(order, np.flatnonzero(np.diff(self._rows[order])) + 1):
                result[rows] = _call(self._laws[self._rows[rows[0]]], names, x[rows])
            return result
        law, size = self._laws[0], int(np.prod(self._shape))
        # The law takes a number for each of its own rows at a time: those that are not asked for have another one's.
        order = np.argsort(self._rows, kind="stable")
        _, starts, counts = np.unique(self._rows[order], return_index=True, return_counts=True)
        repeats = np.empty(self.n, dtype=np.int64)
        repeats[order] = np.arange(self.n) - np.repeat(starts, counts)
        for repeat in range(int(counts.max())):
            rows = np.flatnonzero(repeats == repeat)
            place = np.full(size, order[0])
            place[self._rows[rows]] = rows
            for j in range(x.shape[1]):
                result[rows, j] = _call(law, names, x[place, j].reshape(self._shape)).reshape(-1)[self._rows[rows]]
        return result


def _call(law: Any, names: Sequence[str], x: np.ndarray) -> np.ndarray:
    name = next(name for name in names if hasattr(law, name))
    tensors = (value for value in vars(law).values() if arrays.library(value) == "torch" and hasattr(value, "dtype"))
    reference = next(tensors, None)
    return np.asarray(_as_numbers(getattr(law, name)(x if reference is None else arrays.like(x, reference))))


def _as_numbers(values: Any) -> np.ndarray:
    return np.asarray(arrays.to_host(arrays.as_array(values, "y_pred")), dtype=np.float64)


def _batch_shape(law: Any) -> tuple[int, ...]:
    try:
        return _call(law, INVERSES, np.asarray(0.5)).shape
    except NotImplementedError:
        name = f"{type(law).__module__}.{type(law).__qualname__}"
        remedy = "pass draws by kcalib.distributions.Samples"
        raise TypeError(f"`predictions` is {name}, whose quantile function is not implemented; {remedy}") from None


def _broadcast_limits(law: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return bounds of the support, as PyTorch and NumPyro report, or -inf and inf; shape (2, n)."""
    support = getattr(law, "support", None)
    bounds = (getattr(support, name, np.inf * sign) for name, sign in (("lower_bound", -1), ("upper_bound", 1)))
    return np.stack([np.broadcast_to(_as_numbers(bound), shape).reshape(-1) for bound in bounds])


def _index(subscript: str) -> tuple[int, ...]:
    return tuple(int(part) for part in subscript[1:-1].split(","))


def _is_frozen(law: Any) -> bool:
    return hasattr(law, "dist") and hasattr(law.dist, "_parse_args")


def _arguments(law: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return shape parameters, loc and scale of a frozen distribution of scipy.stats, broadcast to this shape."""
    shapes, loc, scale = law.dist._parse_args(*law.args, **law.kwds)
    return [np.broadcast_to(value, shape).reshape(-1) for value in (*shapes, loc, scale)]


def _freeze(law: Any, arguments: Sequence[np.ndarray]) -> Any:
    """Return the frozen distribution of the same family with other arguments."""
    *shapes, loc, scale = arguments
    return law.dist(*shapes, loc=loc) if hasattr(law, "pmf") else law.dist(*shapes, loc=loc, scale=scale)


def _stack_frozen(laws: Sequence[Any]) -> tuple[Any, ...]:
    """Return the distributions; a single one if all are frozen in the same family of scipy.stats."""
    is_same = all(
        _is_frozen(law)
        and type(law.dist) is type(laws[0].dist)
        and all(np.ndim(value) == 0 for value in (*law.args, *law.kwds.values()))
        for law in laws
    )
    if len(laws) == 1 or not is_same:
        return tuple(laws)
    columns = zip(*(_arguments(law, ()) for law in laws), strict=True)
    return (_freeze(laws[0], [np.concatenate(column) for column in columns]),)
