"""Vector and matrix scaling of logits, and Dirichlet calibration: matrix scaling of log-probabilities."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import scipy

from kcalib._backend.warnings import warn
from kcalib.recalibration._recalibrator import FLOOR, ClassRecalibrator, ClassSamples, SeparationWarning, check_penalty
from kcalib.solvers import ConvergenceWarning
from kcalib.solvers.logistic import Minimum, Regression, invert, minimise

__all__ = ["DirichletCalibration", "MatrixScaling", "VectorScaling"]

MAX_ERRORS = 100  # classes up to which vector scaling has standard errors, in time O(n m^2)


class SoftmaxScaling(ClassRecalibrator):
    """Base class of softmax regressions on scores; subclasses make the regression and read its parameters."""

    _takes_logarithms = True
    regularization: float
    weights_: np.ndarray
    intercept_: np.ndarray
    from_logits_: bool

    @abstractmethod
    def _make_regression(self, scores: np.ndarray, samples: ClassSamples) -> Regression:
        """Return the regression, with parameters of shape (m, r), the intercepts last."""

    def _check_parameters(self) -> None:
        check_penalty("regularization", self.regularization)

    def _scores(self, samples: ClassSamples) -> np.ndarray:
        return samples.scores

    def _fit(self, samples: ClassSamples) -> None:
        regression = self._make_regression(self._scores(samples), samples)
        minimum = minimise(regression, self._start())
        self._warn_of_fit(samples, minimum, regression.compute_logits(minimum.parameters))
        self.weights_, self.intercept_ = minimum.parameters[:, :-1], minimum.parameters[:, -1].copy()
        self.criterion_before_ = float(regression.mean_losses(regression.identity))
        self.criterion_after_ = float(regression.mean_losses(minimum.parameters))
        self.n_iterations_, self.converged_ = minimum.n_iterations, minimum.converged
        self.from_logits_ = samples.logits is not None
        self._finish(regression, minimum)

    def _finish(self, regression: Regression, minimum: Minimum) -> None:
        """Set further attributes."""

    def _parameters(self) -> np.ndarray:
        return np.column_stack([self.weights_, self.intercept_])

    def _transform(self, samples: ClassSamples) -> np.ndarray:
        check_same_scores(self, samples)
        scores = self._scores(samples)
        products = scores * self.weights_ if self.weights_.ndim == 1 else scores @ self.weights_.T
        return np.asarray(scipy.special.softmax(products + self.intercept_, axis=1))

    def _warn_of_fit(self, samples: ClassSamples, minimum: Minimum, logits: np.ndarray) -> None:
        """Warn if the optimum was not reached, or if the classes are separated."""
        if not minimum.converged:
            warn(
                f"{type(self).__name__} has not converged after {minimum.n_iterations} steps; pass a larger "
                "regularization, or fewer classes",
                ConvergenceWarning,
            )
        label_logits = logits[samples.labels, np.arange(samples.n)].copy()
        logits[samples.labels, np.arange(samples.n)] = -np.inf
        if np.all(label_logits > logits.max(axis=0)):
            warn(
                f"{type(self).__name__} predicts the labels of all {samples.n} samples of the fit, and the "
                "likelihood has no maximum: only the regularization determines the fit; pass more samples",
                SeparationWarning,
            )


class VectorScaling(SoftmaxScaling):
    r"""Vector scaling: a weight and an intercept for the logit of each class.

    .. math:: q = \mathrm{softmax}(w \circ z + b)

    with w and b of maximum likelihood [1]_; z are logits as given, or log(p). Temperature scaling is w = 1 / T for all
    classes and b = 0.

    Parameters
    ----------
    regularization : float
        Non-negative factor of the sum of squares of w - 1 and b, which is added to the mean log loss. The default only
        matters for parameters that the samples do not identify: a class without samples keeps a positive probability.
    floor : float
        As in `PlattScaling`.

    Attributes
    ----------
    weights_, intercept_ : ndarray, shape (m,)
        w and b.
    weights_standard_error_, intercept_standard_error_ : ndarray or None
        Sandwich (Huber-White) standard errors; infinite where not identified, as always without regularization (only
        differences of intercepts matter). None for more than 100 classes.
    criterion_before_, criterion_after_ : float
        Mean negative log-likelihood in nats, before and after, on the samples of the fit. The latter is optimistic.
    from_logits_ : bool
        Whether logits were fitted.
    n_iterations_, converged_, n_samples_, floor_, family_
        As in `PlattScaling`.

    Warns
    -----
    SeparationWarning
        By `fit`, if the fitted map predicts the label of every sample.
    ProbabilityFloorWarning
        By `fit`, if `y_pred` has probabilities of 0.
    ConvergenceWarning
        By `fit`, if it stops before the optimum.

    See Also
    --------
    MatrixScaling : A matrix in place of w.

    Notes
    -----
    Adding a constant to all logits of a prediction changes q: `transform` needs logits if logits were fitted, and
    probabilities otherwise. The objective is convex. A trust-region conjugate gradient method finds the optimum: time
    O(n m) for a product with the Hessian, memory O(n m). Arrays on NVIDIA GPUs are refused (NotImplementedError).

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

    def __init__(self, *, regularization: float = 1e-6, floor: float = FLOOR) -> None:
        self.regularization = regularization
        self.floor = floor

    def _make_regression(self, scores: np.ndarray, samples: ClassSamples) -> Regression:
        features = scores.T, np.broadcast_to(1.0, scores.T.shape)
        identity = np.tile([1.0, 0.0], (samples.m, 1))
        return Regression(features, samples.labels, samples.weight, identity, float(self.regularization))

    def _finish(self, regression: Regression, minimum: Minimum) -> None:
        self.weights_ = self.weights_[:, 0].copy()
        self.weights_standard_error_: np.ndarray | None = None
        self.intercept_standard_error_: np.ndarray | None = None
        if len(self.weights_) <= MAX_ERRORS:
            self.weights_standard_error_, self.intercept_standard_error_ = _standard_errors(regression, minimum)


def _standard_errors(regression: Regression, minimum: Minimum) -> np.ndarray:
    """Return sandwich (Huber-White) standard errors of weights and intercepts, infinite if not identified."""
    n, m = regression.n, len(minimum.parameters)
    scores = regression.features[0]
    q = np.concatenate(regression.probabilities(minimum.parameters), axis=1)
    terms = np.concatenate([q * scores, q])
    hessian = -(terms * regression.weight) @ terms.T / n + 2 * regression.penalty * np.eye(2 * m)
    for i in range(2):
        for j in range(2):
            block = hessian[i * m : (i + 1) * m, j * m : (j + 1) * m]
            block[np.diag_indices(m)] += (q * scores ** (2 - i - j)) @ regression.weight / n
    inverse, is_singular = invert(hessian)
    if is_singular or n <= 2 * m or not minimum.converged:
        return np.full((2, m), np.inf)
    residuals = regression.residuals(q)
    terms = inverse @ np.concatenate([residuals * scores, residuals])
    return np.sqrt(np.einsum("ij,ij->i", terms, terms) / (n * (n - 1))).reshape(2, m)


class MatrixScaling(SoftmaxScaling):
    r"""Matrix scaling: a matrix and intercepts for the logits, regularised off the diagonal.

    .. math:: q = \mathrm{softmax}(W z + b)

    with the W and b [1]_ that minimize

    .. math:: \frac{1}{n} \sum_i -\log q_i(y_i) + \frac{\lambda}{m (m - 1)} \sum_{j \ne k} W_{jk}^2
       + \frac{\mu}{m} \sum_j b_j^2 ,

    which is the off-diagonal and intercept regularisation (ODIR) of [2]_. z are logits as given, or log(p).

    Parameters
    ----------
    regularization : float
        :math:`\lambda`, at least 0. The best value depends on the number of samples and classes, from 0.01 to 100.
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
    criterion_before_, criterion_after_, from_logits_, n_iterations_, converged_, n_samples_, floor_, family_
        As in `VectorScaling`.

    Warns
    -----
    SeparationWarning, ProbabilityFloorWarning, ConvergenceWarning
        As `VectorScaling`.

    See Also
    --------
    DirichletCalibration : The same for log(p), also if logits are given.
    VectorScaling : A diagonal matrix.

    Notes
    -----
    As for `VectorScaling`, `transform` needs logits if logits were fitted, and probabilities otherwise. The objective
    is convex. A trust-region conjugate gradient method finds the optimum: time O(n m^2) for a product with the Hessian,
    and O(n m^3) for a preconditioner, a cheaper one for more than 200 classes; memory O(n m + m^3). The m (m + 1)
    parameters need some thousand samples for ten classes. Arrays on NVIDIA GPUs are refused (NotImplementedError).

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
        super()._check_parameters()
        if self.intercept_regularization is not None:
            check_penalty("intercept_regularization", self.intercept_regularization)

    def _make_regression(self, scores: np.ndarray, samples: ClassSamples) -> Regression:
        m, first = samples.m, float(self.regularization)
        second = first if self.intercept_regularization is None else float(self.intercept_regularization)
        penalty = np.full((m, m + 1), first / (m * (m - 1)))
        np.fill_diagonal(penalty, 0.0)
        penalty[:, m] = second / m
        features = np.vstack([scores.T, np.ones(samples.n)])
        return Regression(features, samples.labels, samples.weight, np.eye(m, m + 1), penalty)


class DirichletCalibration(MatrixScaling):
    r"""Dirichlet calibration: the map that calibrates predictions with Dirichlet distributions in all classes.

    .. math:: q = \mathrm{softmax}(W \log p + b)

    with W and b as in `MatrixScaling` of log-probabilities [1]_. Logits are converted, so `transform` takes both. For
    two classes without regularisation it is beta calibration without bounds.

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
    weights_, intercept_
        As in `MatrixScaling`.
    criterion_before_, criterion_after_, from_logits_, n_iterations_, converged_, n_samples_, floor_, family_
        As in `VectorScaling`.

    Warns
    -----
    SeparationWarning, ProbabilityFloorWarning, ConvergenceWarning
        As `VectorScaling`.

    See Also
    --------
    MatrixScaling : For logits; its notes give the costs.

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
    """Refuse probabilities after a fit to logits and vice versa, if they differ for the map."""
    if isinstance(recalibrator, DirichletCalibration) or recalibrator.from_logits_ == (samples.logits is not None):
        return
    nouns = ("probabilities", "logits") if recalibrator.from_logits_ else ("logits", "probabilities")
    raise ValueError(
        f"`y_pred` holds {nouns[0]}, but this {type(recalibrator).__name__} was fitted to {nouns[1]}; pass these "
        f"(from_logits={recalibrator.from_logits_})"
    )
