"""The temperature of maximum likelihood, in closed form or by Newton's method, and warnings at the bounds."""

from __future__ import annotations

import math
from typing import NamedTuple

import scipy

from kcalib._backend.warnings import TemperatureBoundWarning, warn
from kcalib.recalibration._likelihood import Likelihood
from kcalib.results import ConfidenceInterval

BOUNDS = (0.01, 100.0)
MAX_ITERATIONS = 200
TOLERANCE = 1e-12  # of log(T)
FARTHEST = 60.0  # log(T) beyond which a confidence limit is infinite
ROUNDING = 2.0**-52


class TemperatureFit(NamedTuple):
    """A fitted temperature."""

    temperature: float
    standard_error: float | None
    interval: ConfidenceInterval | None
    before: float  # the criterion at T = 1
    after: float
    n_iterations: int
    converged: bool


def highest(likelihood: Likelihood, bounds: tuple[float, float] | None, level: float) -> TemperatureFit:
    """Return the optimum with its standard error, and the likelihood ratio interval of this confidence level."""
    if likelihood.shape is not None:
        temperature, n_iterations, converged = _in_closed_form(likelihood, bounds)
    else:
        temperature, n_iterations, converged = _by_newton(likelihood, bounds or BOUNDS)
    beta = 1 / temperature
    after, _, curvature = likelihood.at(beta)
    error = interval = None
    if converged and int((likelihood.weight != 0).sum()) > 1 and curvature > 0:
        spread = likelihood.spread(beta)
        relative = math.sqrt(spread) / curvature / beta  # error of log(beta), hence of log(T)
        error = relative * temperature
        limit = after + normal_quantile(level) ** 2 * spread / curvature / 2
        ratios = [_crossing(likelihood, beta, limit, way * relative) for way in (1, -1)]
        interval = ConfidenceInterval(*(temperature / ratio if ratio else math.inf for ratio in ratios))
    return TemperatureFit(temperature, error, interval, likelihood.at(1.0)[0], after, n_iterations, converged)


def normal_quantile(level: float) -> float:
    """Return the number of standard deviations around the mean that have this probability."""
    return float(scipy.special.ndtri(0.5 + level / 2))


def _in_closed_form(likelihood: Likelihood, bounds: tuple[float, float] | None) -> tuple[float, int, bool]:
    assert likelihood.shape is not None
    weight = likelihood.weight
    temperature = float(-(weight @ likelihood.observed) / (weight @ likelihood.shape))
    if bounds is not None:
        nearest = min(max(temperature, bounds[0]), bounds[1])
        if nearest != temperature:
            warn_of_bound(nearest, likelihood.at(1.0)[0], likelihood.at(1 / nearest)[0])
        return nearest, 0, nearest == temperature
    if temperature == 0:
        raise ValueError(
            "`y_true` equals the centres of all predicted distributions, and the likelihood is unbounded as T -> 0; "
            "check the targets, or pass bounds="
        )
    return temperature, 0, True


def _by_newton(likelihood: Likelihood, bounds: tuple[float, float]) -> tuple[float, int, bool]:
    """Return T, the number of steps, and whether T is inside the bounds.

    The derivative increases with beta. Newton steps are for log(beta); bisection replaces them if they leave the
    bracket or do not shrink.
    """
    low, high = 1 / bounds[1], 1 / bounds[0]
    beta = min(max(1.0, low), high)
    _, at_low, curvature = likelihood.at(low)
    if abs(at_low) <= ROUNDING and curvature <= ROUNDING**2:
        warn_of_nothing(1 / beta)
        return 1 / beta, 0, False
    if at_low >= 0 or likelihood.at(high)[1] <= 0:
        bound = bounds[1] if at_low >= 0 else bounds[0]
        warn_of_bound(bound, likelihood.at(1.0)[0], likelihood.at(1 / bound)[0])
        return bound, 0, False
    last = math.log(high / low)
    for n_iterations in range(1, MAX_ITERATIONS):
        _, slope, curvature = likelihood.at(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = -slope / (beta * curvature) if curvature > 0 else math.inf
        if abs(step) > abs(last) / 2 or not math.log(low / beta) <= step <= math.log(high / beta):
            step = (math.log(low / beta) + math.log(high / beta)) / 2
        beta, last = beta * math.exp(step), step
        if abs(step) <= TOLERANCE:
            return 1 / beta, n_iterations, True
    raise AssertionError("bisection shrinks the bracket")


def _crossing(likelihood: Likelihood, beta: float, limit: float, step: float) -> float:
    """Return where the negative log-likelihood, minus its minimum, is `limit`, on one side; 0 or inf if nowhere."""

    def excess(x: float) -> tuple[float, float]:
        value, slope, _ = likelihood.at(x)
        return value - limit, slope

    while step != 0 and excess(beta * math.exp(step))[0] < 0:
        step *= 2
        if abs(step) > FARTHEST:
            return math.inf if step > 0 else 0.0
    if step == 0:
        return 1.0
    # Starting outside, Newton's method for a convex function converges monotonically.
    root = scipy.optimize.root_scalar(excess, x0=beta * math.exp(step), fprime=True, method="newton", rtol=TOLERANCE)
    return float(root.root) / beta


def warn_of_bound(bound: float, before: float, after: float) -> None:
    warn(
        f"the criterion improves up to the bound T = {bound:g}, the fitted temperature ({before:.6g} at T = 1, "
        f"{after:.6g} at the bound); pass wider bounds=, or more samples (T -> 0: all labels are the most probable "
        "classes; a high T: predictions are no better than uniform ones)",
        TemperatureBoundWarning,
    )


def warn_of_nothing(temperature: float) -> None:
    warn(
        f"the criterion is the same at all temperatures, and the fitted temperature is {temperature:g}: every "
        "prediction is uniform over its classes of positive probability; fit to logits, or to probabilities "
        "before rounding",
        TemperatureBoundWarning,
    )
