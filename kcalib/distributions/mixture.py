"""Mixtures of distributions of one family, and ensembles: mixtures with equal weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import to_device_of
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import normalized_weights, read_only
from kcalib.distributions._distribution import Density, Distribution, Univariate, row_blocks, take_rows
from kcalib.distributions.laplace import Laplace
from kcalib.distributions.multivariate_normal import MultivariateNormal
from kcalib.distributions.normal import Normal

__all__ = ["Ensemble", "Mixture"]


@dataclass(frozen=True, eq=False)
class Mixture(Density, Univariate):
    r"""Mixtures of K components of one family.

    Parameters
    ----------
    weights : array_like, shape (K,) or (n, K)
        Weights of the components, common to all predictions or not; at least 0, in rows that sum to 1 within 1e-6 (and
        are normalised).
    components : sequence of K distributions
        All `Normal`, all `MultivariateNormal`, all `Laplace`, or mixtures of these, each with n predictions of the same
        shape.

    Attributes
    ----------
    members : tuple of distributions
        The components.

    Raises
    ------
    TypeError, ValueError
        If a component is not one of these distributions, or the weights are not real numbers; if the components differ
        in family, number or shape, or if the weights do not match them.

    See Also
    --------
    Ensemble : A mixture with equal weights.

    Notes
    -----
    Quantiles are found by bisection, to 1e-12 relative, or 1e-15 of the smallest standard deviation of a component if
    that is larger.

    Examples
    --------
    >>> from kcalib.distributions import Mixture, Normal
    >>> predictions = Mixture([0.25, 0.75], [Normal([0.0, 1.0], 1.0), Normal([4.0, 5.0], 1.0)])
    >>> predictions.expected_value().tolist()
    [[3.0], [4.0]]
    >>> predictions.quantile(0.25).round(4).tolist()
    [[1.7686], [2.7686]]
    """

    weights: Array
    members: tuple[Any, ...]

    def __init__(self, weights: Any, components: Sequence[Distribution]) -> None:
        members = _check_members(components, "components")
        first = members[0].expected_value()
        weights = normalized_weights(weights, "weights", (members[0].n, len(members)), "component")
        self._set_fields(weights=read_only(arrays.asarray_like(weights, first)), members=members)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.members[0].event_shape

    @property
    def _n_uniforms(self) -> int:  # type: ignore[override]
        return 1 + max(member._n_uniforms for member in self.members)

    def take(self, rows: Any) -> Mixture:
        members = tuple(member.take(rows) for member in self.members)
        return self._with(weights=take_rows(self.weights, rows), members=members)

    def parameters(self) -> None:
        """Return None: mixtures have no such parameters."""

    def components(self) -> Components:
        components: list[Any] = [member.components() for member in self.members]
        xp = arrays.namespace(self.weights)
        return Components(
            components[0].family,
            xp.concat([self.weights[:, k : k + 1] * c.weights for k, c in enumerate(components)], axis=1),
            xp.concat([c.locations for c in components], axis=1),
            xp.concat([c.scales for c in components], axis=1),
        )

    def expected_value(self) -> Array:
        return self._moments()[0]

    def standard_deviation(self) -> Array:
        return self._moments()[1]

    def _moments(self) -> tuple[Array, Array]:
        xp = arrays.namespace(self.weights)
        means = xp.stack([member.expected_value() for member in self.members], axis=1)
        stds = xp.stack([member.standard_deviation() for member in self.members], axis=1)
        weights = self.weights[:, :, None]
        mean = xp.sum(weights * means, axis=1)
        return mean, xp.sqrt(xp.sum(weights * (stds**2 + (means - mean[:, None, :]) ** 2), axis=1))

    def _draw_from(self, uniforms: Array) -> Array:
        """Return draws; the first number chooses the component, the others draw from it."""
        xp, uniforms = arrays.namespace(self.weights), to_device_of(uniforms, self.weights)
        upper = arrays.namespace(uniforms).cumsum(arrays.to_compute_device(self.weights), axis=1)
        # By rounding, the last sum may be below 1; it may also belong to a component of weight 0.
        upper[upper >= upper[:, -1:]] = np.inf
        result: Any = None
        for k in reversed(range(len(self.members))):
            member = self.members[k]
            draws = member._draw_from(uniforms[:, :, 1 : 1 + member._n_uniforms])
            below = arrays.like(uniforms[:, :, 0] < upper[:, k : k + 1], self.weights)
            for _ in self.event_shape:
                below = below[..., None]
            result = draws if result is None else xp.where(below, draws, result)
        return result

    def _log_density(self, y: Array) -> Array:
        xp, weights = arrays.namespace(y), arrays.to_compute_device(self.weights)
        logs = xp.stack([member._log_density(y) for member in self.members], axis=1)
        highest = xp.max(xp.where(weights > 0, logs, -xp.inf), axis=1, keepdims=True)
        powers = xp.exp(xp.where(weights > 0, logs - highest, 0.0))
        return highest[:, 0] + xp.log(xp.sum(weights * powers, axis=1))

    def _tails(self, y: Array) -> tuple[Array, Array]:
        weights, xp = arrays.to_compute_device(self.weights), arrays.namespace(y)
        lower, upper = xp.zeros(y.shape), xp.zeros(y.shape)
        for k, member in enumerate(self.members):
            weight = weights[:, k : k + 1] if y.ndim == 2 else weights[:, k]
            tails = member._tails(y)
            lower += weight * tails[0]
            upper += weight * tails[1]
        return lower, upper

    def _quantile(self, p: Array) -> Array:
        return arrays.namespace(p).concat([self.take(rows)._inverse_cdf(p) for rows in row_blocks(self.n, p.shape[1])])

    def _inverse_cdf(self, p: Array) -> Array:
        xp = arrays.namespace(p)
        p = xp.broadcast_to(p, (self.n, p.shape[1]))
        # The quantile lies between those of the components with positive weight.
        bounds = xp.stack([member._inverse_cdf(p) for member in self.members])
        has_weight = arrays.to_compute_device(self.weights).T[:, :, None] > 0
        low = xp.min(xp.where(has_weight, bounds, np.inf), axis=0)
        high = xp.max(xp.where(has_weight, bounds, -np.inf), axis=0)
        scales = xp.stack([arrays.to_compute_device(member.standard_deviation()) for member in self.members])
        finest = 1e-15 * xp.min(xp.where(has_weight, scales, np.inf), axis=0)
        while True:
            tolerance = xp.maximum(1e-12 * xp.maximum(xp.abs(low), xp.abs(high)), finest)
            if not xp.any(high - low > tolerance):
                return low + (high - low) / 2
            middle = low + (high - low) / 2
            lower, upper = self._tails(middle)
            # The smaller tail has a small relative error; 1 - p is exact where p >= 1/2.
            reached = xp.where(p < 0.5, lower >= p, upper <= 1 - p)
            high = xp.where(reached, middle, high)
            low = xp.where(reached, low, middle)


class Ensemble(Mixture):
    r"""Mixtures with equal weights, such as the predictions of a deep ensemble.

    Parameters
    ----------
    members : sequence of K distributions
        As the components of `Mixture`.

    Raises
    ------
    TypeError, ValueError
        As `Mixture`.

    See Also
    --------
    Mixture : A mixture with weights.
    Samples : For members that predict a number, not a distribution.

    Examples
    --------
    >>> from kcalib.distributions import Ensemble, Normal
    >>> Ensemble([Normal([0.0, 1.0], 1.0), Normal([2.0, 5.0], 1.0)]).expected_value().tolist()
    [[1.0], [3.0]]
    """

    def __init__(self, members: Sequence[Distribution]) -> None:
        members = _check_members(members, "members")
        super().__init__(np.full(len(members), 1 / len(members)), members)


def _check_members(members: Any, name: str) -> tuple[Distribution, ...]:
    if isinstance(members, Distribution) or not isinstance(members, Sequence):
        raise TypeError(f"`{name}` is of type {type(members).__name__}, expected a list of distributions")
    if len(members) == 0:
        raise ValueError(f"`{name}` is empty, expected at least one distribution")
    for k, member in enumerate(members):
        if not isinstance(member, (Normal, MultivariateNormal, Laplace, Mixture)):
            remedy = "; for atoms put all samples into one Samples" if type(member).__name__ == "Samples" else ""
            raise TypeError(
                f"`{name}[{k}]` is of type {type(member).__name__}, expected Normal, MultivariateNormal, Laplace or "
                f"a Mixture of these{remedy}"
            )
    first = members[0]
    for k, member in enumerate(members):
        label, first_label = f"`{name}[{k}]`", f"`{name}[0]`"
        family, expected = _family_of(member).__name__, _family_of(first).__name__
        if family != expected:
            raise ValueError(f"{label} is {family} and {first_label} {expected}, expected components of one family")
        place, expected = _describe_place(member), _describe_place(first)
        if place != expected:
            raise ValueError(
                f"the arrays of {label} are {place} and those of {first_label} {expected}, expected all in one array "
                "library on one device; move them"
            )
        if (member.n, member.event_shape) != (first.n, first.event_shape):
            raise ValueError(
                f"{label} has {member.n} predictions of shape {member.event_shape} and {first_label} {first.n} of "
                f"shape {first.event_shape}, expected as many of the same shape"
            )
    return tuple(members)


def _family_of(member: Distribution) -> type:
    return _family_of(member.members[0]) if isinstance(member, Mixture) else type(member)


def _describe_place(member: Distribution) -> str:
    array = member.expected_value()
    return f"{arrays.library(array)} arrays on {arrays.describe_device(array)}"
