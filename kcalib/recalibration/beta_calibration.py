"""Beta calibration: a slope for log(p), one for log(1 - p), and an intercept."""

from __future__ import annotations

import numpy as np

from kcalib.recalibration._logistic import LogisticEach
from kcalib.recalibration._recalibrator import ClassSamples

__all__ = ["BetaCalibration"]


class BetaCalibration(LogisticEach):
    r"""Beta calibration: the map that calibrates predictions with Beta distributions in both classes.

    .. math:: q = \sigma(a \log p - b \log(1 - p) + c), \quad a, b \ge 0,

    with a, b and c of maximum likelihood [1]_. With a = b it is Platt scaling of the log-odds; with a = b = 1 and c = 0
    it is the identity. With more than two classes, each class has its own a, b and c against all others, and each row
    of q is divided by its sum.

    Parameters
    ----------
    smoothing : bool
        Replace the labels 1 and 0 by Platt's targets, as in `PlattScaling`, which makes the fit unique if the
        predictions separate the classes. False is the published form.
    floor : float
        As in `PlattScaling`.

    Attributes
    ----------
    a_, b_, c_ : ndarray, shape (m,)
        Parameters of each class; for two classes of the second only, shape (1,). a or b is 0 if the unconstrained
        optimum is negative.
    a_standard_error_, b_standard_error_, c_standard_error_ : ndarray
        Sandwich (Huber-White) standard errors; 0 where a or b is at its bound, infinite where it is not identified.
    n_iterations_, converged_, n_samples_, floor_, family_
        As in `PlattScaling`.

    Warns
    -----
    SeparationWarning, ProbabilityFloorWarning
        As `PlattScaling`.

    See Also
    --------
    PlattScaling : One slope.

    Notes
    -----
    The negative log-likelihood is convex; a trust-region method finds its minimum in time O(n m) per step and memory
    O(n m). Arrays on NVIDIA GPUs are refused (NotImplementedError).

    References
    ----------
    .. [1] M. Kull, T. Silva Filho, P. Flach. Beta calibration: a well-founded and easily implemented improvement on
       logistic calibration for binary classifiers. AISTATS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.recalibration import BetaCalibration
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, size=5000)
    >>> p = np.where(y == 1, rng.beta(4, 2, size=5000), rng.beta(1, 3, size=5000))
    >>> beta = BetaCalibration().fit(y, p)
    >>> bool(abs(beta.a_[0] - 3) < 3 * beta.a_standard_error_[0])   # 4 - 1
    True
    >>> bool(abs(beta.b_[0] - 1) < 3 * beta.b_standard_error_[0])   # 3 - 2
    True
    """

    _coefficients = ("a", "b", "c")
    _bounded = 2
    a_: np.ndarray
    b_: np.ndarray
    c_: np.ndarray

    def _features(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, ...]:
        return samples.log_probabilities[:, columns], -samples.log_complements[:, columns]
