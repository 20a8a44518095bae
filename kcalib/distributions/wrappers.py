"""Distributions derived from another one by censoring, truncation, or zero inflation.

They combine a density with probabilities of single numbers; log densities are with respect to both, see `log_density`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import to_device_of
from kcalib._input.checks import reject
from kcalib.distributions._checks import read_only, real_array
from kcalib.distributions._distribution import Distribution, Family, QuantileLaw, Univariate
from kcalib.distributions.adapters import as_distribution
from kcalib.distributions.external import ExternalDistribution
from kcalib.distributions.quantiles import Quantiles
from kcalib.distributions.samples import Samples

__all__ = ["Censored", "Truncated", "ZeroInflated"]

SMALLEST, LARGEST = 2.0**-64, 1 - 2.0**-53  # levels of quantiles
LEAST_MASS = 1e-9  # between bounds above the median, where the distribution function has few digits
# Levels between which means are integrated, and the Gauss-Legendre nodes there.
KNOTS = (0.0, 1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-8, 1.0)
N_NODES = 10
MOST_COUNTS = 20_000


def level_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Return levels between 0 and 1 and weights that integrate functions of quantiles, shape (1, m)."""
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    widths = np.diff(KNOTS)[:, None]
    levels = np.array(KNOTS)[:-1, None] + widths * (nodes + 1) / 2
    return levels.reshape(1, -1), (widths * weights / 2).reshape(1, -1)


class Wrapper(QuantileLaw):
    """Base class of distributions derived from another one of numbers, with further numbers for each prediction."""

    distribution: Distribution

    def _wrap(self, distribution: Any, **numbers: Any) -> None:
        distribution = as_distribution(distribution)
        has_methods = hasattr(distribution, "cdf") and hasattr(distribution, "quantile")
        if isinstance(distribution, (Samples, Quantiles)) or distribution.event_shape != () or not has_methods:
            raise TypeError(
                f"`distribution` is {type(distribution).__name__}, expected predictions of numbers with methods cdf "
                "and quantile, such as Normal; for samples and quantiles change the numbers themselves"
            )
        reference = distribution._first if isinstance(distribution, Family) else distribution.sample(1)
        for name, array in numbers.items():
            if array is None:
                continue
            xp = arrays.namespace(array)
            if tuple(array.shape) not in ((), (distribution.n,)):
                raise ValueError(
                    f"`{name}` has shape {tuple(array.shape)}, expected a number or ({distribution.n},): one for each "
                    "prediction"
                )
            numbers[name] = read_only(arrays.asarray_like(xp.zeros(distribution.n) + array, reference))
        self._set_fields(distribution=distribution, **numbers)

    @property
    def support(self) -> str:  # type: ignore[override]
        return "count" if self.distribution.support == "count" else "real"

    def _names(self) -> list[str]:
        return [name for name in super()._names() if name != "distribution"]

    def take(self, rows: Any) -> Self:
        return super().take(rows)._with(distribution=self.distribution.take(rows))

    def parameters(self) -> Array | None:
        """Return the parameters of the distribution and the further numbers side by side."""
        inner = self.distribution.parameters()
        if inner is None:
            return None
        xp, columns = arrays.namespace(inner), (getattr(self, name) for name in self._names())
        return xp.concat([inner, *(arrays.asarray_like(column, inner)[:, None] for column in columns)], axis=1)

    def expected_value(self) -> Array:
        return self._moments()[0]

    def standard_deviation(self) -> Array:
        return self._moments()[1]

    def _column(self, name: str, y: Array, otherwise: float) -> Any:
        """Return numbers of shape (n,) or (n, 1), to broadcast with y of shape (n,) or (n, k)."""
        array = getattr(self, name)
        if array is None:
            return otherwise
        array = arrays.to_compute_device(array)
        return array[:, None] if y.ndim == 2 else array

    def _inner_cdf(self, y: Array, *, left: bool = False) -> Array:
        """Return P(X <= y), or P(X < y), of the wrapped distribution X."""
        inner: Any = self.distribution
        if isinstance(inner, Univariate):
            return inner._cdf_left(y) if left else inner._cdf(y)
        function = inner.cdf_left if left else inner.cdf
        columns, xp = y.reshape(self.n, -1), arrays.namespace(y)
        values = [function(arrays.like(columns[:, k], self._first)) for k in range(columns.shape[1])]
        return xp.stack([arrays.to_compute_device(column, np.float64) for column in values], axis=1).reshape(y.shape)

    def _inner_quantile(self, p: Array) -> Array:
        """Return quantiles of the wrapped distribution, shape (n, m), at levels of shape (1, m) or (n, m)."""
        inner: Any = self.distribution
        xp = arrays.namespace(p)
        p = xp.clip(p, SMALLEST, LARGEST)
        if isinstance(inner, Univariate):
            return inner._inverse_cdf(p)
        if isinstance(inner, ExternalDistribution):
            return inner._inverse_cdf(np.broadcast_to(p, (self.n, p.shape[1])))
        if len(p) == 1:
            return arrays.to_compute_device(inner.quantile(arrays.to_host(p[0])), np.float64)
        rows = [inner.take(slice(i, i + 1)).quantile(arrays.to_host(p[i])) for i in range(self.n)]
        return xp.concat([arrays.to_compute_device(row, np.float64) for row in rows])

    def _inner_log_density(self, y: Array, is_inside: Array) -> Array:
        """Return log densities of the wrapped distribution, minus infinity outside."""
        inner: Any = self.distribution
        xp = arrays.namespace(y)
        result, (rows,) = xp.full(y.shape, -np.inf), xp.nonzero(is_inside)
        if len(rows):
            logs = inner.take(rows).log_density(arrays.like(y[rows], self._first))
            result[rows] = arrays.to_compute_device(logs, np.float64)
        return result

    def _nodes(self) -> tuple[Array, Array] | None:
        """Return numbers and probabilities, shape (n, m), that represent the distribution, or None for too many counts.

        Counts, or quantiles at quadrature nodes and the numbers with positive probability.
        """
        first = arrays.to_compute_device(self._first)
        xp = arrays.namespace(first)
        if self.support == "count":
            last = float(xp.max(self._inverse_cdf(xp.full((1, 1), LARGEST))))
            if last > MOST_COUNTS:
                return None
            places = xp.broadcast_to(xp.arange(last + 1)[None, :], (self.n, int(last) + 1))
            return places, xp.diff(self._cdf(places), axis=1, prepend=0.0)
        levels, masses = (to_device_of(values, first) for values in level_nodes())
        return self._quantile_nodes(levels, xp.broadcast_to(masses, (self.n, masses.shape[1])))

    def _quantile_nodes(self, levels: Array, masses: Array) -> tuple[Array, Array]:
        """Return quantiles at levels, with these masses as probabilities."""
        raise NotImplementedError


class Bounded(Wrapper):
    """Base class of distributions between bounds, one of which may be missing."""

    lower: Array | None
    upper: Array | None

    _open: ClassVar[tuple[bool, bool]]  # whether `_levels` means P(X < bound), for both bounds

    def _set_bounds(self, distribution: Any, lower: Any, upper: Any) -> None:
        if lower is None and upper is None:
            raise ValueError("`lower` and `upper` are None, expected at least one bound; pass lower=0.0 or upper=1.0")
        bounds = {"lower": lower, "upper": upper}
        self._wrap(distribution, **{k: None if bound is None else real_array(bound, k) for k, bound in bounds.items()})
        if self.lower is not None and self.upper is not None:
            reject(
                self.lower,
                self.lower >= self.upper,
                lambda at, x: f"`lower{at}` is {x:.6g}, expected less than `upper{at}`; swap the two, or leave one out",
            )

    def _bounds(self, y: Array) -> tuple[Any, Any]:
        return self._column("lower", y, -np.inf), self._column("upper", y, np.inf)

    def _levels(self) -> tuple[Array, Array]:
        """Return the probabilities of numbers up to the bounds, or below these, shape (n, 1)."""
        xp = arrays.namespace(arrays.to_compute_device(self._first))
        levels = [xp.zeros((self.n, 1)), xp.ones((self.n, 1))]
        for k, bound in enumerate((self.lower, self.upper)):
            if bound is not None:
                levels[k] = self._inner_cdf(arrays.to_compute_device(bound), left=self._open[k])[:, None]
        return levels[0], levels[1]

    def _moments(self) -> tuple[Array, Array]:
        nodes = self._nodes()
        if nodes is None:
            return super()._moments()
        places, masses = nodes
        xp = arrays.namespace(places)
        mean = xp.sum(masses * places, axis=1, keepdims=True)
        variance = xp.sum(masses * (places - mean) ** 2, axis=1, keepdims=True)
        return self._like(mean), self._like(xp.sqrt(variance))

    def _quantile_nodes(self, levels: Array, masses: Array) -> tuple[Array, Array]:
        return self._with_atoms(self._between(levels), masses)

    def _with_atoms(self, places: Array, masses: Array) -> tuple[Array, Array]:
        """Return numbers and probabilities: those between the bounds, and the bounds themselves."""
        return places, masses

    def _between(self, p: Array) -> Array:
        """Return quantiles of the distribution conditional on lying between the bounds."""
        low, high = self._levels()
        lower, upper = self._bounds(p)
        return arrays.namespace(p).clip(self._inner_quantile(low + (high - low) * p), lower, upper)


@dataclass(frozen=True, eq=False)
class Censored(Bounded):
    r"""Distributions of numbers that are recorded as a bound if they are beyond it, such as rain or wind power.

    Parameters
    ----------
    distribution : Distribution
        The distribution X without bounds, of any family with ``cdf`` and ``quantile`` except `Samples` and `Quantiles`.
    lower, upper : float or array_like, shape (n,), optional
        Bounds, or None; at least one is needed. Values beyond a bound are recorded as the bound.

    Raises
    ------
    TypeError, ValueError
        If the distribution is of another kind, or a bound is not a real number; if there is no bound; if a bound is not
        finite or has a wrong shape, or the lower is not below the upper.

    See Also
    --------
    Truncated : Excludes values beyond the bounds.
    ZeroInflated : Has a probability of 0 that does not come from X.

    Notes
    -----
    A bound has the probability of all values beyond it, whose logarithm is `log_density` there; between the bounds
    `log_density` is that of X. PIT values are randomised at bounds. The CRPS of censored normal distributions has a
    closed form; means and standard deviations are integrals of quantiles, to about 1e-7.

    Examples
    --------
    >>> from kcalib.distributions import Censored, Normal
    >>> rain = Censored(Normal([-1.0, 2.0], [1.0, 3.0]), lower=0.0)
    >>> rain.cdf_left([0.0, 0.0]).round(3).tolist(), rain.cdf([0.0, 0.0]).round(3).tolist()
    ([0.0, 0.0], [0.841, 0.252])
    """

    distribution: Distribution
    lower: Array | None
    upper: Array | None

    _open = (False, True)

    def __init__(self, distribution: Any, lower: Any = None, upper: Any = None) -> None:
        self._set_bounds(distribution, lower, upper)

    def _cdf(self, y: Array) -> Array:
        xp, (lower, upper) = arrays.namespace(y), self._bounds(y)
        return xp.where(y < lower, 0.0, xp.where(y >= upper, 1.0, self._inner_cdf(y)))

    def _cdf_left(self, y: Array) -> Array:
        xp, (lower, upper) = arrays.namespace(y), self._bounds(y)
        return xp.where(y <= lower, 0.0, xp.where(y > upper, 1.0, self._inner_cdf(y, left=True)))

    def _inverse_cdf(self, p: Array) -> Array:
        lower, upper = self._bounds(p)
        return arrays.namespace(p).clip(self._inner_quantile(p), lower, upper)

    def _log_density(self, y: Array) -> Array:
        xp, (lower, upper) = arrays.namespace(y), self._bounds(y)
        below, above = self._levels()
        with np.errstate(divide="ignore"):
            result = xp.where(y == lower, xp.log(below[:, 0]), self._inner_log_density(y, (y > lower) & (y < upper)))
            return xp.where(y == upper, xp.log1p(-above[:, 0]), result)

    def _with_atoms(self, places: Array, masses: Array) -> tuple[Array, Array]:
        low, high = self._levels()
        columns = [(places, masses * (high - low))]
        columns += [
            (self._column(name, places, 0.0), mass)
            for name, mass in (("lower", low), ("upper", 1 - high))
            if getattr(self, name) is not None
        ]
        xp = arrays.namespace(places)
        return xp.concat([place for place, _ in columns], axis=1), xp.concat([mass for _, mass in columns], axis=1)


@dataclass(frozen=True, eq=False)
class Truncated(Bounded):
    r"""Distributions of numbers conditional on lying between bounds.

    Parameters
    ----------
    distribution : Distribution
        The distribution X without bounds, of any family with ``cdf`` and ``quantile`` except `Samples` and `Quantiles`.
    lower, upper : float or array_like, shape (n,), optional
        Bounds, which are possible targets, or None; at least one is needed.

    Raises
    ------
    TypeError, ValueError
        If the distribution is of another kind, or a bound is not a real number; if there is no bound; if a bound is not
        finite or has a wrong shape, or the lower is not below the upper; or if X has too little probability between
        them to divide by: 1e-9 above its median.

    See Also
    --------
    Censored : Records values beyond the bounds as the bounds.
    ZeroInflated : With a distribution of counts truncated to start at 1, a hurdle model.

    Examples
    --------
    >>> from kcalib.distributions import Normal, Truncated
    >>> wind = Truncated(Normal([0.0, 2.0], 1.0), lower=0.0)
    >>> wind.quantile(0.5).round(3).tolist()
    [[0.674], [2.029]]
    """

    distribution: Distribution
    lower: Array | None
    upper: Array | None

    _open = (True, False)

    def __init__(self, distribution: Any, lower: Any = None, upper: Any = None) -> None:
        self._set_bounds(distribution, lower, upper)
        low, high = self._levels()
        reject(
            high[:, 0] - low[:, 0],
            ((high - low < LEAST_MASS) & (low > 0.5))[:, 0] | (high <= low)[:, 0],
            lambda at, x: (
                f"`distribution{at}` has the probability {x:.3g} between its bounds, expected at least "
                f"{LEAST_MASS:g}; drop such predictions, or predict by Censored"
            ),
        )

    def _cdf(self, y: Array) -> Array:
        return self._share(y, left=False)

    def _cdf_left(self, y: Array) -> Array:
        return self._share(y, left=True)

    def _share(self, y: Array, *, left: bool) -> Array:
        xp, (low, high) = arrays.namespace(y), self._levels()
        if y.ndim == 1:
            low, high = low[:, 0], high[:, 0]
        return xp.clip((self._inner_cdf(y, left=left) - low) / (high - low), 0.0, 1.0)

    def _inverse_cdf(self, p: Array) -> Array:
        return self._between(p)

    def _log_density(self, y: Array) -> Array:
        (lower, upper), (low, high) = self._bounds(y), self._levels()
        logs = self._inner_log_density(y, (y >= lower) & (y <= upper))
        return logs - arrays.namespace(y).log(high - low)[:, 0]


@dataclass(frozen=True, eq=False)
class ZeroInflated(Wrapper):
    r"""Distributions of numbers that are 0 with an additional probability, and otherwise follow another distribution.

    Parameters
    ----------
    distribution : Distribution
        The other distribution X, of any family with ``cdf`` and ``quantile`` except `Samples` and `Quantiles`; it may
        include 0, as `Poisson` does.
    probability : float or array_like, shape (n,)
        Additional probability of 0, from 0 to 1.

    Raises
    ------
    TypeError, ValueError
        If the distribution is of another kind, or the probability is not a real number; if the probability is out of
        range, or has a wrong shape.

    See Also
    --------
    Censored : 0 stands for all values below it.
    Truncated : ``ZeroInflated(Truncated(Poisson(rate), lower=1.0), p)`` is a hurdle model; p is P(Z = 0).

    Notes
    -----
    At 0 `log_density` is the logarithm of the probability of 0; elsewhere the logarithm of (1 - probability) times the
    density of X. PIT values are randomised at 0. The CRPS, as a function of that of X [1]_, is p \|y\| + (1 - p)
    CRPS(X, y) - p (1 - p) CRPS(X, 0).

    References
    ----------
    .. [1] T. Gneiting, A. E. Raftery. Strictly proper scoring rules, prediction, and estimation. Journal of the
       American Statistical Association, 2007.

    Examples
    --------
    >>> from kcalib.distributions import Poisson, ZeroInflated
    >>> counts = ZeroInflated(Poisson([2.0, 5.0]), probability=0.3)
    >>> counts.cdf([0.0, 0.0]).round(3).tolist(), counts.expected_value().tolist()
    ([0.395, 0.305], [[1.4], [3.5]])
    """

    distribution: Distribution
    probability: Array

    def __init__(self, distribution: Any, probability: Any) -> None:
        array = real_array(probability, "probability")
        reject(
            array,
            (array < 0) | (array > 1),
            lambda at, x: f"`probability{at}` is {x:.6g}, expected a number from 0 to 1; clip it",
        )
        self._wrap(distribution, probability=array)

    def _moments(self) -> tuple[Array, Array]:
        mean, deviation = (
            arrays.to_compute_device(values, np.float64)
            for values in (self.distribution.expected_value(), self.distribution.standard_deviation())
        )
        p = self._column("probability", mean, 0.0)
        variance = (1 - p) * (deviation**2 + p * mean**2)
        return self._like((1 - p) * mean), self._like(arrays.namespace(mean).sqrt(variance))

    def _quantile_nodes(self, levels: Array, masses: Array) -> tuple[Array, Array]:
        inner, xp = self.distribution, arrays.namespace(levels)
        if isinstance(inner, Wrapper):
            places, masses = inner._quantile_nodes(levels, masses)
        else:
            places = self._inner_quantile(levels)
        p = self._column("probability", places, 0.0)
        return xp.concat([places, 0.0 * p], axis=1), xp.concat([masses * (1 - p), p], axis=1)

    def _cdf(self, y: Array) -> Array:
        p = self._column("probability", y, 0.0)
        return p * (y >= 0) + (1 - p) * self._inner_cdf(y)

    def _cdf_left(self, y: Array) -> Array:
        p = self._column("probability", y, 0.0)
        return p * (y > 0) + (1 - p) * self._inner_cdf(y, left=True)

    def _inverse_cdf(self, p: Array) -> Array:
        extra = self._column("probability", p, 0.0)
        xp, zeros = arrays.namespace(p), 0.0 * extra
        rest = xp.clip(1 - extra, SMALLEST, 1.0)
        is_below = p <= rest * self._inner_cdf(zeros, left=True)
        is_above = p > extra + rest * self._inner_cdf(zeros)
        level = xp.where(is_below, p / rest, (p - extra) / rest)
        return xp.where(is_below | is_above, self._inner_quantile(level), 0.0)

    def _log_density(self, y: Array) -> Array:
        p, xp, zeros = self._column("probability", y, 0.0), arrays.namespace(y), arrays.namespace(y).zeros(self.n)
        at_zero = p + (1 - p) * (self._inner_cdf(zeros) - self._inner_cdf(zeros, left=True))
        has_atom = (y == 0) & (at_zero > 0)
        with np.errstate(divide="ignore"):
            logs = self._inner_log_density(y, ~has_atom) + xp.log1p(-p)
        return xp.where(has_atom, xp.log(xp.where(has_atom, at_zero, 1.0)), logs)
