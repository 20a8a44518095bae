"""Temperature scaling of each family of distributions that is closed under it."""

from __future__ import annotations

import functools
import math
from typing import Any

from kcalib.distributions import Beta, Dirichlet, Distribution, Laplace, MultivariateNormal, Normal, PowerExponential


@functools.singledispatch
def temper(prediction: Distribution, temperature: float) -> Distribution:
    """Return the distributions at a temperature, for families that are closed under temperature scaling."""
    raise TypeError(not_closed(prediction))


@temper.register
def _(prediction: Normal, temperature: float) -> Normal:
    return Normal(prediction.mean, math.sqrt(temperature) * prediction.std)


@temper.register
def _(prediction: MultivariateNormal, temperature: float) -> MultivariateNormal:
    return MultivariateNormal(prediction.mean, scale_tril=math.sqrt(temperature) * prediction.scale_tril)


@temper.register
def _(prediction: Laplace, temperature: float) -> Laplace:
    return Laplace(prediction.loc, temperature * prediction.scale)


@temper.register
def _(prediction: PowerExponential, temperature: float) -> PowerExponential:
    return PowerExponential(
        prediction.loc, temperature ** (0.5 / prediction.shape) * prediction.scale, prediction.shape
    )


@temper.register
def _(prediction: Beta, temperature: float) -> Beta:
    return Beta(prediction.a / temperature, prediction.b / temperature)


@temper.register
def _(prediction: Dirichlet, temperature: float) -> Dirichlet:
    return Dirichlet(prediction.alpha / temperature)


def not_closed(prediction: Any) -> str:
    return (
        f"`y_pred` is {type(prediction).__name__}, expected class probabilities, or distributions of one of the "
        f"families {', '.join(_families())}: others are not closed under temperature scaling"
    )


def _families() -> list[str]:
    return [family.__name__ for family in temper.registry if family is not object]
