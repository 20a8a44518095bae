"""Families of distributions that a state can add up, and their parameters as columns.

They need a characteristic function in closed form, and points whose distances are those of the distributions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib.distributions import (
    Censored,
    Distribution,
    Gamma,
    Laplace,
    LogNormal,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    Truncated,
    ZeroInflated,
)
from kcalib.distributions._checks import LARGEST
from kcalib.distributions.samples import fill_missing, share_weights
from kcalib.distributions.wrappers import Wrapper

PLAIN: tuple[type[Distribution], ...] = (
    Normal, MultivariateNormal, Laplace, StudentT, LogNormal, Gamma, Poisson, NegativeBinomial, Samples, Quantiles,
)  # fmt: skip
WRAPPED = (Normal, Laplace, Gamma, Poisson, NegativeBinomial)
# The arrays of a distribution, the numbers of a wrapper, and the placeholder of a missing number.
FIELDS = {kind: tuple(f.name for f in fields(kind) if f.name not in ("weights", "levels")) for kind in PLAIN}  # type: ignore[arg-type]
NUMBERS: dict[type[Wrapper], tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind) if f.name != "distribution")
    for kind in (Censored, Truncated, ZeroInflated)
}
MISSING = {"lower": -LARGEST, "upper": LARGEST}
EXAMPLE = {"lower": 0.5, "upper": 2.0, "probability": 0.5}
KINDS = {kind.__name__: kind for kind in FIELDS}
OTHERS = (
    "a ForecastState takes Normal, MultivariateNormal, Laplace, StudentT, LogNormal, Gamma, Poisson and "
    "NegativeBinomial, Quantiles, Samples of numbers with equal weights, and Censored, Truncated and ZeroInflated ones "
    "of numbers by Normal, Laplace, Gamma, Poisson or NegativeBinomial; for other families use kcalib.evaluate, "
    "kcalib.skce and kcalib.calibration_test with all samples in memory"
)


def is_family(name: str, sizes: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether a family of this name, such as Normal or "Censored of Normal", has this many arrays."""
    wrapper, _, inner = name.rpartition(" of ")
    if not wrapper:
        return name in KINDS and len(sizes) == len(FIELDS[KINDS[name]])
    numbers = {kind.__name__: names for kind, names in NUMBERS.items()}.get(wrapper)
    is_known = numbers is not None and KINDS.get(inner) in WRAPPED
    return is_known and sizes == ((),) * (len(FIELDS[KINDS[inner]]) + len(numbers or ()))


@dataclass(frozen=True)
class Family:
    """A family of distributions with equal sizes."""

    name: str
    sizes: tuple[tuple[int, ...], ...]  # of each array of parameters, beyond the first axis
    levels: tuple[float, ...] = ()  # of quantiles

    @classmethod
    def of(cls, prediction: Any) -> Family:
        """Return the family of some predictions.

        Raises
        ------
        ValueError
            If a state cannot add them up.
        """
        kind = type(prediction)
        if kind in NUMBERS and type(prediction.distribution) in WRAPPED:
            inner = cls.of(prediction.distribution)
            return cls(f"{kind.__name__} of {inner.name}", inner.sizes + ((),) * len(NUMBERS[kind]))
        if kind not in FIELDS:
            raise ValueError(
                f"`y_pred` is {kind.__name__}, which has no closed forms that a state could add up; {OTHERS}"
            )
        if isinstance(prediction, Samples) and not (prediction.counts_alike and prediction.event_shape == ()):
            of = "vectors" if prediction.event_shape else "numbers with weights"
            raise ValueError(f"`y_pred` are Samples of {of}, whose distances are not those of points; {OTHERS}")
        levels = tuple(prediction.levels.tolist()) if isinstance(prediction, Quantiles) else ()
        return cls(kind.__name__, tuple(tuple(getattr(prediction, name).shape[1:]) for name in FIELDS[kind]), levels)

    @property
    def _wrapped(self) -> tuple[type[Wrapper], Family] | None:
        """Return the kind of wrapper and the wrapped family, or None."""
        wrapper, _, inner = self.name.rpartition(" of ")
        for kind, names in NUMBERS.items():
            if kind.__name__ == wrapper:
                return kind, Family(inner, self.sizes[: -len(names)])
        return None

    @property
    def n_columns(self) -> int:
        """The number of parameters of a distribution."""
        return sum(prod(size) for size in self.sizes)

    def columns(self, prediction: Any) -> np.ndarray:
        """Return the parameters of distributions of this family, float64, on the host, shape (n, n_columns)."""
        if self._wrapped is not None:
            kind, inner = self._wrapped
            numbers = [getattr(prediction, name) for name in NUMBERS[kind]]
            columns = [
                np.full(prediction.n, MISSING[name]) if number is None else arrays.to_host(number)
                for name, number in zip(NUMBERS[kind], numbers, strict=True)
            ]
            return np.column_stack([inner.columns(prediction.distribution), *columns])
        parts = [arrays.to_host(getattr(prediction, name)) for name in FIELDS[type(prediction)]]
        if isinstance(prediction, Samples) and prediction.weights is not None:
            parts = [np.where(arrays.to_host(prediction.weights) > 0, parts[0], np.nan)]  # missing members
        return np.concatenate([part.reshape(len(part), -1).astype(np.float64) for part in parts], axis=1)

    def distribution(self, columns: np.ndarray) -> Any:
        """Return the distributions with these parameters, without checks."""
        if self._wrapped is not None:
            wrapper, inner = self._wrapped
            wrapped: Any = wrapper.__new__(wrapper)
            object.__setattr__(wrapped, "distribution", inner.distribution(columns[:, : inner.n_columns]))
            return wrapped._with(**dict(zip(NUMBERS[wrapper], columns[:, inner.n_columns :].T.copy(), strict=True)))
        kind = KINDS[self.name]
        prediction = kind.__new__(kind)
        begin = 0
        for name, size in zip(FIELDS[kind], self.sizes, strict=True):
            end = begin + prod(size)
            part = np.ascontiguousarray(columns[:, begin:end]).reshape(len(columns), *size)
            object.__setattr__(prediction, name, part)
            begin = end
        if kind is Quantiles:
            object.__setattr__(prediction, "levels", np.array(self.levels))
        if kind is Samples:
            samples, present = fill_missing(part, np.isnan(part))
            object.__setattr__(prediction, "samples", samples)
            object.__setattr__(prediction, "weights", None if present is None else share_weights(present))
        return prediction

    def checked(self, columns: np.ndarray) -> Any:
        """Return the distributions with these parameters, for example from a file.

        Raises
        ------
        ValueError
            If the parameters are invalid.
        """
        prediction = self.distribution(columns)
        if self._wrapped is not None:
            kind, inner = self._wrapped
            numbers = {name: getattr(prediction, name) for name in NUMBERS[kind]}
            kind(inner.checked(columns[:, : inner.n_columns]), **numbers)  # type: ignore[call-arg]
            return prediction
        fields = {name: getattr(prediction, name) for name in FIELDS[type(prediction)]}
        if isinstance(prediction, MultivariateNormal):
            if not np.allclose(prediction.cov, prediction.scale_tril @ prediction.scale_tril.swapaxes(1, 2)):
                raise ValueError("the factors of covariances do not match")
            del fields["cov"]
        if isinstance(prediction, Quantiles):
            fields["levels"] = self.levels
        type(prediction)(**fields)
        return prediction

    @cached_property
    def row(self) -> Any:
        """Return a distribution of the family."""
        numbers = [] if self._wrapped is None else [EXAMPLE[name] for name in NUMBERS[self._wrapped[0]]]
        return self.distribution(np.array([[1.0] * (self.n_columns - len(numbers)) + numbers]))

    def __str__(self) -> str:
        if self.levels:
            return f"{self.name} at the levels {', '.join(f'{level:.6g}' for level in self.levels)}"
        shown = ", ".join(str(size) for size in self.sizes if size)
        return f"{self.name} with parameters of the shapes {shown}" if shown else self.name
