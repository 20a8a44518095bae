r"""Calibration errors if a temperature would calibrate the predictions.

`TemperatureCalibration` has one parameter, fitted by the risk of `_function`. `kcalib.recalibration` also uses the
functions of this module for predictions at another temperature, and the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_positive
from kcalib._backend.warnings import TemperatureBoundWarning, warn
from kcalib.lenses import Lens
from kcalib.regression._function import CalibrationFunction, Problem, risk_of

__all__ = ["TemperatureCalibration"]

LOWEST, HIGHEST = 0.01, 100.0
ROUNDING = 1e-13  # relative rounding error of risks
AT_BOUND = 1e-4  # distance of log(T) to a bound below which a minimum is at the bound


class TemperatureCalibration(CalibrationFunction):
    r"""Estimation function for models whose true probabilities are their predictions at another temperature.

    .. math:: h(p, p') = \langle p - q(p), p' - q(p') \rangle, \quad q(p) = \mathrm{softmax}(\log(p) / T) .

    This is section 5.1 of [1]_, where the temperature is written :math:`T = 0.3 / \theta`. T > 1: the predictions are
    over-confident; T = 1: calibrated, h = 0.

    Parameters
    ----------
    temperature : float, optional
        T, positive. By default the one between 0.01 and 100 with the lowest risk in the fit.
    lens : Lens, optional
        Notion of calibration, one of `kcalib.lenses`; by default canonical. Otherwise the temperature is of the problem
        that the lens induces, for instance of confidence c against 1 - c.

    Attributes
    ----------
    temperature_ : float
        T.

    Warns
    -----
    kcalib.recalibration.TemperatureBoundWarning
        By `fit`, and by a cross-validation that chooses this function, if the risk decreases up to 0.01 or 100, which
        is then taken. At 100 the true probabilities seem to be uniform over the classes with a positive prediction.

    Notes
    -----
    Zeros stay zeros, and one-hot predictions one-hot: they do not identify T. If no temperature has a lower risk than
    1, it is 1. Fitting evaluates the risk at about 60 temperatures, each in O(n m^2) time. `fit` raises ValueError or
    TypeError if `temperature` is not a positive finite number, and ValueError if it is to be fitted to one sample.

    References
    ----------
    .. [1] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.regression import TemperatureCalibration
    >>> rng = np.random.default_rng(0)
    >>> true = rng.dirichlet(np.ones(3), size=2000)
    >>> y = (rng.uniform(size=(2000, 1)) > true.cumsum(axis=1)).sum(axis=1)
    >>> p = true**2 / np.sum(true**2, axis=1, keepdims=True)      # as sure as at temperature 1/2
    >>> function = TemperatureCalibration().fit(y, p)
    >>> round(function.temperature_)
    2
    """

    def __init__(self, temperature: float | None = None, *, lens: Lens | None = None) -> None:
        self.temperature = temperature
        self.lens = lens

    def _fit(self, problem: Problem) -> None:
        value = self.temperature
        self._search = _search(problem) if value is None else Search(check_positive("temperature", value))
        self.temperature_ = self._search.temperature

    def _warn_of_fit(self) -> None:
        search = self._search
        if search.is_at_bound:
            warn(
                f"the risk decreases up to the bound T = {search.temperature:g}, the fitted temperature "
                f"({search.before:.6g} at T = 1, {search.after:.6g} at the bound): a temperature does not fit these "
                "errors, or samples are few; pass temperature=, or another function, such as "
                "kcalib.regression.BinnedCalibration",
                TemperatureBoundWarning,
            )

    def _features(self, problem: Problem) -> Array:
        return _gaps(problem, self.temperature_)


class Search(NamedTuple):
    """A temperature, with the risks at 1 and at it."""

    temperature: float
    is_at_bound: bool = False
    before: float = math.nan
    after: float = math.nan


def _search(problem: Problem) -> Search:
    """Return the temperature with the lowest risk, 1 if none is lower."""

    def risk(log_temperature: float) -> float:
        return risk_of(problem.residuals, _gaps(problem, np.exp(log_temperature)), None)

    place, after, _ = lowest(risk, LOWEST, HIGHEST, points=41)
    bound = bound_at(place, (LOWEST, HIGHEST))
    return Search(math.exp(place)) if bound is None else Search(bound, True, risk(0.0), after)


def lowest(risk: Callable[[float], float], low: float, high: float, points: int) -> tuple[float, float, int]:
    """Return the minimizer of a function of log(T), its minimum, and the number of evaluations.

    Brent's method around the best point of a grid. T = 1 is on the grid if it is between the bounds, and wins ties.
    """
    grid = np.linspace(np.log(low), np.log(high), points)
    start = int(np.argmin(np.abs(grid)))
    if grid[0] < 0 < grid[-1]:
        grid[start] = 0.0
    risks = np.array([risk(t) for t in grid])
    best = start if risks[start] <= risks.min() else int(np.argmin(risks))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    refined = scipy.optimize.minimize_scalar(risk, bounds=around, method="bounded", options={"xatol": 1e-6})
    place, value = (refined.x, refined.fun) if refined.fun < risks[best] else (grid[best], risks[best])
    for end in (0, -1):  # the function is constant where all probabilities are 0 or 1
        if place != 0 and risks[end] - value <= ROUNDING * max(abs(value), abs(risks[start])):
            place, value = grid[end], risks[end]
    return float(place), float(value), len(grid) + int(refined.nfev)


def bound_at(place: float, bounds: tuple[float, float]) -> float | None:
    """Return the bound that the logarithm of a temperature is at, or None."""
    return next((bound for bound in bounds if abs(place - np.log(bound)) <= AT_BOUND), None)


def _gaps(problem: Problem, temperature: float) -> Array:
    """Return p - softmax(log(p) / T), shape (n, m); with a scalar lens of the second column, shape (n, 1)."""
    p = problem.simplex
    q = at_temperature(logits_of(p), temperature)
    if not problem.is_scalar:
        return p - q
    # The difference of the smaller probabilities is more accurate.
    return arrays.namespace(p).where(p[:, 1] > p[:, 0], q[:, 0] - p[:, 0], p[:, 1] - q[:, 1])[:, None]


def logits_of(p: Array) -> Array:
    """Return logarithms of probabilities, shape (n, m), with the largest of each row 0."""
    xp = arrays.namespace(p)
    with np.errstate(divide="ignore"):
        return xp.log(p / xp.max(p, axis=1, keepdims=True))


def at_temperature(logits: Array, temperature: float) -> Array:
    """Return softmax(logits / T) of the rows, whose largest logits are 0."""
    xp = arrays.namespace(logits)
    q = xp.exp(logits / temperature)
    return q / xp.sum(q, axis=1, keepdims=True)
