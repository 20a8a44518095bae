"""Platt scaling: a slope and an intercept for the log-odds of each class."""

from __future__ import annotations

import numpy as np

from kcalib.recalibration._logistic import LogisticEach
from kcalib.recalibration._recalibrator import ClassSamples

__all__ = ["PlattScaling"]


class PlattScaling(LogisticEach):
    r"""Platt scaling: logistic regression of the label on the predicted log-odds.

    .. math:: q = \sigma(a s + b), \quad s = \log \frac{p}{1 - p} ,

    with the sigmoid :math:`\sigma` and a slope a and intercept b of maximum likelihood [1]_. With more than two
    classes, each class has its own a and b against all others, and each row of q is divided by its sum.

    Parameters
    ----------
    smoothing : bool
        Replace the labels 1 and 0 by Platt's targets: (k + 1) / (k + 2) for k samples of the class, and 1 / (l + 2) for
        l samples of the others. This makes the fit unique if the predictions separate the classes.
    floor : float
        1e-300 to 0.1. If `y_pred` has probabilities of 0 in the fit, whose log-odds are infinite, `fit` and `transform`
        raise all smaller probabilities to this number, with a warning.

    Attributes
    ----------
    slope_, intercept_ : ndarray, shape (m,)
        a and b of each class; for two classes of the second only, shape (1,).
    slope_standard_error_, intercept_standard_error_ : ndarray
        Sandwich (Huber-White) standard errors; infinite where not identified.
    n_iterations_ : int
        Steps of the fit, which is joint for all classes.
    converged_ : bool
        Whether all classes reached the optimum.
    floor_ : float or None
        The number that smaller probabilities are raised to, or None.
    n_samples_, family_
        As in `Recalibrator`.

    Warns
    -----
    SeparationWarning
        By `fit` without smoothing, if the predictions separate a class from the others: the likelihood has no maximum.
    ProbabilityFloorWarning
        By `fit`, if `y_pred` has probabilities of 0.

    See Also
    --------
    TemperatureScaling : One parameter for all classes, without an intercept.
    BetaCalibration : Two slopes.

    Notes
    -----
    With `from_logits` the log-odds are exact; a single column of logits is the log-odds. The negative log-likelihood is
    convex; a trust-region method finds its minimum in time O(n m) per step and memory O(n m). If all predictions are
    equal, the slope is set to 1. Arrays on NVIDIA GPUs are refused (NotImplementedError).

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
