"""Beta calibration: a slope for log(p), one for log(1 - p), and an intercept."""

from __future__ import annotations

import numpy as np

from kcalib.recalibration._logistic import LogisticEach
from kcalib.recalibration._recalibrator import ClassSamples

__all__ = ["BetaCalibration"]


class BetaCalibration(LogisticEach):
    r"""Beta calibration: the map that repairs predictions whose laws in the two classes are Beta distributions.

    .. math:: q = \sigma(a \log p - b \log(1 - p) + c), \quad a, b \ge 0,

    of the highest likelihood [1]_. With a = b it is Platt scaling of the log-odds; with a = b = 1 and c = 0 nothing
    changes. Of more than two classes each has a, b and c of its own, against all others, and the q of a prediction are
    divided by their sum.

    Parameters
    ----------
    smoothing : bool
        Take Platt's targets in place of 1 and 0, as in `PlattScaling`: the fit is unique where predictions separate the
        classes. False for the published form.
    floor : float
        As in `PlattScaling`.

    Attributes
    ----------
    a_, b_, c_ : ndarray, shape (m,)
        Of each class; of two classes of the second alone, shape (1,). a or b is 0 where the likelihood would be higher
        below.
    a_standard_error_, b_standard_error_, c_standard_error_ : ndarray
        Of these, by the sandwich of Huber and White; 0 where a or b is at its bound, infinite where the samples do not
        tell.
    n_iterations_, converged_, n_samples_, floor_, family_
        As in `PlattScaling`.

    Warns
    -----
    SeparationWarning, ProbabilityFloorWarning
        As `PlattScaling`.

    See Also
    --------
    PlattScaling : With one slope.

    Notes
    -----
    The likelihood is convex, and its optimum found by a trust-region method in time O(n m) a step and memory O(n m).
    Arrays on NVIDIA GPUs are refused (NotImplementedError).

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
