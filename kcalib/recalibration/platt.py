"""Platt scaling: a slope and an intercept for the log-odds of each class."""

from __future__ import annotations

import numpy as np

from kcalib.recalibration._logistic import LogisticEach
from kcalib.recalibration._recalibrator import ClassSamples

__all__ = ["PlattScaling"]


class PlattScaling(LogisticEach):
    r"""Platt scaling: logistic regression of the label on the log-odds that were predicted for it.

    .. math:: q = \sigma(a s + b), \quad s = \log \frac{p}{1 - p} ,

    with the sigmoid :math:`\sigma`, a slope a and an intercept b of the highest likelihood [1]_. Of more than two
    classes each has a and b of its own, against all others, and the q of a prediction are divided by their sum.

    Parameters
    ----------
    smoothing : bool
        Take Platt's targets in place of 1 and 0: (k + 1) / (k + 2) for k samples of the class, and 1 / (l + 2) for l
        samples of the others. They make the fit unique where the predictions separate the classes.
    floor : float
        1e-300 to 0.1. If `y_pred` of the fit has probabilities of 0, whose log-odds are infinite, `fit` and
        `transform` raise all smaller ones to this number, with a warning.

    Attributes
    ----------
    slope_, intercept_ : ndarray, shape (m,)
        a and b of each class; of two classes of the second alone, shape (1,).
    slope_standard_error_, intercept_standard_error_ : ndarray
        Of these, by the sandwich of Huber and White; infinite where the samples do not tell.
    n_iterations_ : int
        Steps of the fit, which is of all classes at once.
    converged_ : bool
        Whether all are at the optimum.
    n_samples_ : int
        Samples of the fit.
    floor_ : float or None
        What smaller probabilities are raised to; None: they stay as they are.
    family_ : str
        What was fitted; `transform` takes the same.

    Warns
    -----
    SeparationWarning
        By `fit`, without smoothing, if the predictions separate a class from the others: the likelihood has no maximum.
    ProbabilityFloorWarning
        By `fit`, if `y_pred` has probabilities of 0.

    See Also
    --------
    TemperatureScaling : One number for all classes, without an intercept.
    BetaCalibration : Two slopes.

    Notes
    -----
    With `from_logits` the log-odds are exact; of a column of logits they are these. The likelihood is convex, and its
    optimum found by a trust-region method in time O(n m) a step and memory O(n m). Where all predictions are equal
    there is no slope, and 1 is taken. Arrays on NVIDIA GPUs are refused (NotImplementedError).

    References
    ----------
    .. [1] J. Platt. Probabilistic outputs for support vector machines and comparisons to regularized likelihood
       methods. Advances in Large Margin Classifiers, 1999.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.recalibration import PlattScaling
    >>> rng = np.random.default_rng(0)
    >>> true = rng.uniform(size=4000)
    >>> y = (rng.uniform(size=4000) < true).astype(int)
    >>> odds = (true / (1 - true)) ** 2                        # twice the log-odds: too sure of itself
    >>> scaling = PlattScaling().fit(y, odds / (1 + odds))
    >>> bool(abs(scaling.slope_[0] - 0.5) < 3 * scaling.slope_standard_error_[0])
    True
    """

    _coefficients = ("slope", "intercept")
    _bounded = 0
    slope_: np.ndarray
    intercept_: np.ndarray

    def _features(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, ...]:
        return (samples.log_probabilities[:, columns] - samples.log_complements[:, columns],)
