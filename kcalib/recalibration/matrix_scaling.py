"""Vector and matrix scaling of logits, and Dirichlet calibration, which is matrix scaling of log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kcalib.recalibration._multinomial import Diagonal, Full, multinomial, softmax, warn_of_fit
from kcalib.recalibration._recalibrator import FLOOR, ClassRecalibrator, ClassSamples

__all__ = ["DirichletCalibration", "MatrixScaling", "VectorScaling"]


class VectorScaling(ClassRecalibrator):
    r"""Vector scaling: a weight and an intercept for the logit of each class.

    .. math:: q = \mathrm{softmax}(w \circ z + b)

    with the w and b of the highest likelihood [1]_; z are logits as they are given, or log(p). Temperature scaling has
    w = 1 / T for all classes and b = 0.

    Parameters
    ----------
    regularization : float
        At least 0: this times the sum of squares of w - 1 and b is added to the mean log loss. The default hardly
        shows but where the samples say nothing: a class that none of them has keeps a probability.
    floor : float
        As in `PlattScaling`.

    Attributes
    ----------
    weights_, intercept_ : ndarray, shape (m,)
        w and b.
    weights_standard_error_, intercept_standard_error_ : ndarray or None
        Of these, by the sandwich of Huber and White; infinite where the samples do not tell, as for all without
        regularization (only differences of intercepts matter). None for more than 500 classes.
    criterion_before_, criterion_after_ : float
        Mean negative log-likelihood in nats, before and after, on the samples of the fit. That after is optimistic.
    from_logits_ : bool
        Whether logits were fitted.
    n_iterations_, converged_, n_samples_, floor_, family_
        As in `PlattScaling`.

    Warns
    -----
    SeparationWarning
        By `fit`, if the fitted map finds the label of every sample.
    ProbabilityFloorWarning
        By `fit`, if `y_pred` has probabilities of 0.
    ConvergenceWarning
        By `fit`, if Newton's method ends before the optimum.

    See Also
    --------
    MatrixScaling : With a matrix for w.

    Notes
    -----
    A constant that is added to all logits of a prediction does change q, so `transform` takes logits if logits were
    fitted, and probabilities if these were. The function is convex. Newton's method takes time O(n m^2) a step; from
    1000 parameters on its steps are by conjugate gradients, each product with the Hessian in O(n m). Memory O(n m).
    Arrays on NVIDIA GPUs are refused (NotImplementedError).

    References
    ----------
    .. [1] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.recalibration import VectorScaling
    >>> rng = np.random.default_rng(0)
    >>> true = rng.dirichlet(np.ones(3), size=4000)
    >>> y = (rng.uniform(size=(4000, 1)) > true.cumsum(axis=1)).sum(axis=1)
    >>> p = true**2 / np.sum(true**2, axis=1, keepdims=True)
    >>> scaling = VectorScaling().fit(y, p)
    >>> bool(np.all(abs(scaling.weights_ - 0.5) < 4 * scaling.weights_standard_error_))
    True
    """

    _takes_logarithms = True

    def __init__(self, *, regularization: float = 1e-6, floor: float = FLOOR) -> None:
        self.regularization = regularization
        self.floor = floor

    def _check_parameters(self) -> None:
        check_regularization("regularization", self.regularization)

    def _fit(self, samples: ClassSamples) -> None:
        penalty = np.full((2, samples.m), float(self.regularization))
        model = Diagonal(samples.scores, samples.labels, samples.weight, penalty)
        fit = multinomial(model)
        warn_of_fit(self, samples, fit, model.logits(fit.parameters))
        self.weights_, self.intercept_ = fit.parameters
        errors = fit.standard_errors
        self.weights_standard_error_ = None if errors is None else errors[0]
        self.intercept_standard_error_ = None if errors is None else errors[1]
        self.criterion_before_, self.criterion_after_ = fit.before, fit.after
        self.n_iterations_, self.converged_ = fit.n_iterations, fit.converged
        self.from_logits_ = samples.logits is not None

    def _transform(self, samples: ClassSamples) -> np.ndarray:
        check_same_scores(self, samples)
        return softmax(samples.scores * self.weights_ + self.intercept_)


class MatrixScaling(ClassRecalibrator):
    r"""Matrix scaling: a matrix and intercepts for the logits, regularised off the diagonal.

    .. math:: q = \mathrm{softmax}(W z + b)

    with the W and b [1]_ of the lowest

    .. math:: \frac{1}{n} \sum_i -\log q_i(y_i) + \frac{\lambda}{m (m - 1)} \sum_{j \ne k} W_{jk}^2
       + \frac{\mu}{m} \sum_j b_j^2 ,

    which is the off-diagonal and intercept regularisation (ODIR) of [2]_. z are logits as they are given, or log(p).

    Parameters
    ----------
    regularization : float
        :math:`\lambda`, at least 0. What is best depends on the number of samples and classes, from 0.01 to 100.
    intercept_regularization : float, optional
        :math:`\mu`, at least 0; by default `regularization`.
    floor : float
        As in `PlattScaling`.

    Attributes
    ----------
    weights_ : ndarray, shape (m, m)
        W.
    intercept_ : ndarray, shape (m,)
        b.
    weights_standard_error_, intercept_standard_error_ : ndarray or None
        Of these, by the sandwich of Huber and White, which says nothing about the bias of the regularisation; infinite
        where the samples do not tell. None for more than 31 classes.
    criterion_before_, criterion_after_, from_logits_, n_iterations_, converged_, n_samples_, floor_, family_
        As in `VectorScaling`.

    Warns
    -----
    SeparationWarning, ProbabilityFloorWarning, ConvergenceWarning
        As `VectorScaling`.

    See Also
    --------
    DirichletCalibration : The same of log(p), whether logits are given or not.
    VectorScaling : Without what is off the diagonal.

    Notes
    -----
    As for `VectorScaling`, `transform` takes logits if logits were fitted, and probabilities if these were. The
    function is convex. Newton's method takes time O(n m^4) a step and memory O(n m + m^4); from 32 classes on its
    steps are by preconditioned conjugate gradients, each product with the Hessian in O(n m^2), memory O(n m + m^2).
    m (m + 1) parameters want some thousand samples for ten classes.
    Arrays on NVIDIA GPUs are refused (NotImplementedError).

    References
    ----------
    .. [1] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural networks. ICML 2017.
    .. [2] M. Kull, M. Perello-Nieto, M. Kängsepp, T. Silva Filho, H. Song, P. Flach. Beyond temperature scaling:
       obtaining well-calibrated multiclass probabilities with Dirichlet calibration. NeurIPS 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.recalibration import MatrixScaling
    >>> rng = np.random.default_rng(0)
    >>> logits = 2 * rng.normal(size=(4000, 3))
    >>> true = np.exp(0.5 * logits)
    >>> true /= true.sum(axis=1, keepdims=True)
    >>> y = (rng.uniform(size=(4000, 1)) > true.cumsum(axis=1)).sum(axis=1)
    >>> MatrixScaling().fit(y, logits, from_logits=True).weights_.round(1) + 0.0
    array([[0.5, 0. , 0. ],
           [0. , 0.5, 0. ],
           [0. , 0. , 0.5]])
    """

    _takes_logarithms = True

    def __init__(
        self,
        *,
        regularization: float = 1.0,
        intercept_regularization: float | None = None,
        floor: float = FLOOR,
    ) -> None:
        self.regularization = regularization
        self.intercept_regularization = intercept_regularization
        self.floor = floor

    def _check_parameters(self) -> None:
        check_regularization("regularization", self.regularization)
        if self.intercept_regularization is not None:
            check_regularization("intercept_regularization", self.intercept_regularization)

    def _scores(self, samples: ClassSamples) -> np.ndarray:
        return samples.scores

    def _fit(self, samples: ClassSamples) -> None:
        m, first = samples.m, float(self.regularization)
        second = first if self.intercept_regularization is None else float(self.intercept_regularization)
        penalty = np.full((m, m + 1), first / (m * (m - 1)))
        penalty[:, :m][np.eye(m, dtype=bool)] = 0
        penalty[:, m] = second / m
        model = Full(self._scores(samples), samples.labels, samples.weight, penalty)
        fit = multinomial(model)
        warn_of_fit(self, samples, fit, model.logits(fit.parameters))
        self.weights_, self.intercept_ = fit.parameters[:, :m], fit.parameters[:, m]
        errors = fit.standard_errors
        self.weights_standard_error_ = None if errors is None else errors[:, :m]
        self.intercept_standard_error_ = None if errors is None else errors[:, m]
        self.criterion_before_, self.criterion_after_ = fit.before, fit.after
        self.n_iterations_, self.converged_ = fit.n_iterations, fit.converged
        self.from_logits_ = samples.logits is not None

    def _transform(self, samples: ClassSamples) -> np.ndarray:
        check_same_scores(self, samples)
        return softmax(self._scores(samples) @ self.weights_.T + self.intercept_)


class DirichletCalibration(MatrixScaling):
    r"""Dirichlet calibration: the map that repairs predictions whose laws in the classes are Dirichlet distributions.

    .. math:: q = \mathrm{softmax}(W \log p + b)

    with W and b as in `MatrixScaling`, which it is of log-probabilities [1]_. Logits are turned into these, so that
    `transform` takes either. For two classes and without regularisation it is beta calibration without its bounds.

    Parameters
    ----------
    regularization : float
        :math:`\lambda`, as in `MatrixScaling`.
    intercept_regularization : float, optional
        :math:`\mu`, as in `MatrixScaling`.
    floor : float
        As in `PlattScaling`.

    Attributes
    ----------
    weights_, intercept_, weights_standard_error_, intercept_standard_error_
        As in `MatrixScaling`.
    criterion_before_, criterion_after_, from_logits_, n_iterations_, converged_, n_samples_, floor_, family_
        As in `VectorScaling`.

    Warns
    -----
    SeparationWarning, ProbabilityFloorWarning, ConvergenceWarning
        As `VectorScaling`.

    See Also
    --------
    MatrixScaling : Of logits; its notes say what it costs.

    References
    ----------
    .. [1] M. Kull, M. Perello-Nieto, M. Kängsepp, T. Silva Filho, H. Song, P. Flach. Beyond temperature scaling:
       obtaining well-calibrated multiclass probabilities with Dirichlet calibration. NeurIPS 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.recalibration import DirichletCalibration
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, size=3000)
    >>> alpha = np.array([[6.0, 2.0, 2.0], [1.0, 4.0, 1.0], [2.0, 2.0, 9.0]])
    >>> gammas = rng.gamma(alpha[y])
    >>> p = gammas / gammas.sum(axis=1, keepdims=True)
    >>> dirichlet = DirichletCalibration(regularization=1e-4).fit(y, p)
    >>> difference = dirichlet.weights_[0] - dirichlet.weights_[1]     # of rows of alpha
    >>> bool(np.all(abs(difference - [5, -2, 1]) < 0.5))
    True
    """

    def _scores(self, samples: ClassSamples) -> np.ndarray:
        return samples.log_probabilities


def check_same_scores(recalibrator: Any, samples: ClassSamples) -> None:
    """Refuse probabilities after a fit to logits, and logits after a fit to probabilities, if it matters."""
    if isinstance(recalibrator, DirichletCalibration) or recalibrator.from_logits_ == (samples.logits is not None):
        return
    nouns = ("probabilities", "logits") if recalibrator.from_logits_ else ("logits", "probabilities")
    raise ValueError(
        f"`y_pred` holds {nouns[0]}, but this {type(recalibrator).__name__} was fitted to {nouns[1]}; pass these "
        f"(from_logits={recalibrator.from_logits_})"
    )


def check_regularization(name: str, value: Any) -> float:
    """Return a penalty, checked."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"`{name}` is {value!r}, expected a number, such as 1.0")
    if not 0 <= value < math.inf:
        raise ValueError(f"`{name}` is {value}, expected a finite number of at least 0")
    return float(value)
