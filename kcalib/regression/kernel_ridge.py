r"""Calibration errors by kernel ridge regression: of the residuals (U-KKR), or of their inner products (KKR).

Both use an `Expansion` (`_expansion`): features :math:`\psi` that reproduce the kernel and are orthogonal over the
training samples, with squared norms l, the eigenvalues of the kernel matrix. With :math:`c = \sum_i \psi(p_i) e_i^\top`
the regression is a quotient: c / (l + s), or :math:`(c c^\top)_{ij} / (l_i l_j + s)`, a shifted Kronecker system
(`kcalib.solvers.kronecker`). A path of regularizations therefore takes one decomposition and one evaluation of
features.

Samples on an NVIDIA GPU are factorised there, and all arrays with a row for each sample stay there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from kcalib._backend import linalg
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.warnings import warn
from kcalib.kernels import Gaussian, Kernel
from kcalib.lenses import Lens
from kcalib.regression._expansion import Expansion, kernel_products
from kcalib.regression._function import CalibrationFunction, Problem, Trial, risk_of
from kcalib.solvers.kronecker import largest, quotients

__all__ = ["KKR", "UKKR", "RegularizationWarning"]

SMALLEST, LARGEST = 1e-100, 1e100  # regularization: squares and quotients stay in the range of float64
CONVENTIONS = ("printed", "code")


class RegularizationWarning(UserWarning):
    """The regularization is below the rounding error of the eigenvalues that it is added to."""


class KernelRidge(CalibrationFunction):
    """Base class of `KKR` and `UKKR`: parameters, and one decomposition for a path of regularizations."""

    _path: ClassVar[str | None] = "regularization"
    _shares_features: ClassVar[bool]  # whether features do not depend on the regularization
    _default: ClassVar[float]  # the default regularization is this times a power of n
    _power_of_shift: ClassVar[int]  # the shift is regularization times n to this power
    _power_of_code: ClassVar[float]  # the shift in the published code is 10^a times n to this power
    _exponents: ClassVar[tuple[tuple[float, ...], tuple[float, ...]]]  # a, for scalar and other lenses

    def __init__(
        self,
        regularization: float | None = None,
        *,
        kernel: Kernel | None = None,
        lens: Lens | None = None,
        max_memory: float | None = None,
    ) -> None:
        self.regularization = regularization
        self.kernel = kernel
        self.lens = lens
        self.max_memory = max_memory

    def regularization_grid(self, n_samples: int, *, convention: str = "printed") -> list[float]:
        r"""Return values of `regularization` to try for a number of training samples, largest first.

        Parameters
        ----------
        n_samples : int
            Number n of training samples; in a cross-validation those without one fold.
        convention : {"printed", "code"}
            Formula for the exponents a of appendix B, which depend on `lens`: the printed one, or that of the code for
            the tables of the paper (see the Notes of the class).

        Returns
        -------
        list of float
            18 values, or 9 with a lens with one probability.

        Raises
        ------
        TypeError, ValueError
            If `n_samples` is not a positive integer, or `convention` is unknown.
        """
        n = check_integer("n_samples", n_samples, 1)
        check_choice("convention", convention, CONVENTIONS)
        power = 0.5 if convention == "printed" else self._power_of_code - self._power_of_shift
        return [10.0**a * n**power for a in self._exponents[0 if self._lens().is_scalar else 1]]

    def _fit(self, problem: Problem) -> None:
        shift = self._shift(problem.n)
        self._take(self._expansion(problem), shift)
        if self.truncation_matters_:
            warn(
                f"`regularization` {shift / problem.n**self._power_of_shift:.3g} is below rounding: eigenvalues of the "
                f"kernel matrix below {self.rounding_:.3g} are left out ({self.n_truncated_} of those computed), which "
                "changes the estimate more than `regularization` does; take a larger one",
                RegularizationWarning,
            )

    def _try_settings(self, settings: Sequence[dict[str, Any]], train: Problem, validation: Problem) -> Iterator[Trial]:
        """Share a decomposition, and features where they are equal, on a path of regularizations."""
        other_params: dict[str, Any] | None = None
        for setting in settings:
            function = self.clone().set_params(**setting)
            shift = function._shift(train.n)
            is_new = function._other_params() != other_params
            if is_new:
                other_params, expansion = function._other_params(), function._expansion(train)
            function._take(expansion, shift)
            function._set_sizes(train)
            if is_new or not self._shares_features:
                features = function._features(validation)
            yield Trial(function, risk_of(validation.residuals, features, function._core()))

    def _other_params(self) -> dict[str, Any]:
        return {name: value for name, value in self.get_params().items() if name != "regularization"}

    def _shift(self, n: int) -> float:
        """Return s for n training samples."""
        value = self.regularization
        if value is None:
            return self._default * n**self._power_of_code
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise TypeError(f"`regularization` is {value!r}, expected a positive number or None")
        if not SMALLEST <= value <= LARGEST:
            raise ValueError(
                f"`regularization` is {value}, expected a number between {SMALLEST:g} and {LARGEST:g}; "
                "regularization_grid() has some"
            )
        return float(value) * n**self._power_of_shift

    def _expansion(self, problem: Problem) -> Expansion:
        kernel = Gaussian(bandwidth=1.0) if self.kernel is None else self.kernel
        return Expansion.of(problem, kernel, self.max_memory)

    def _take(self, expansion: Expansion, shift: float) -> None:
        """Set the fitted attributes from an expansion and a shift."""
        self.kernel_ = expansion.kernel
        self.method_, self.method_reason_ = expansion.method, expansion.reason
        self.rank_, self.n_truncated_ = expansion.rank, expansion.n_truncated
        self.rounding_ = expansion.rounding
        self.shift_ = shift
        is_truncated = expansion.rank < expansion.n_samples
        self.truncation_matters_ = is_truncated and shift < self._rounding_of_shift(expansion)
        self._keep(expansion)

    def _rounding_of_shift(self, expansion: Expansion) -> float:
        """Return the rounding error, at the eigenvalues that are left out, of what the shift is added to."""
        raise NotImplementedError

    def _keep(self, expansion: Expansion) -> None:
        """Keep the arrays that evaluation needs."""
        raise NotImplementedError


class UKKR(KernelRidge):
    r"""Estimation function by kernel ridge regression of the residuals (U-KKR of Gruber and Bach).

    Equation 32 of [1]_:

    .. math:: h(p, p') = \langle G(p), G(p') \rangle, \qquad G(p) = E^\top (K + \lambda n I)^{-1} k(p)

    with the kernel matrix K of n training samples and their residuals :math:`e_i = \mathrm{onehot}(y_i) - p_i` in the
    rows of E. Since :math:`h(p, p) = |G(p)|^2`, `squared_error` is never negative.

    Parameters
    ----------
    regularization : float, optional
        The number :math:`\lambda` of the formula, 1e-100 to 1e100. Default: :math:`10^{-3}\, n^{-1/4}`.
        `regularization_grid` has the values of Gruber and Bach.
    kernel : Kernel, optional
        Positive definite kernel, see `kcalib.kernels`, on predictions, or on confidences with a scalar lens. Default:
        ``Gaussian(bandwidth=1.0)``, that is :math:`\exp(-\gamma |p - p'|^2)` with the :math:`\gamma = 1/2` of [1]_; the
        published code has :math:`\gamma = 1`, ``Gaussian(bandwidth=0.5**0.5)``. A bandwidth of None is the median
        distance of the training samples.
    lens : Lens, optional
        Notion of calibration, one of `kcalib.lenses`; canonical by default.
    max_memory : float, optional
        Bytes that fitting may take. Default: available memory of the machine, or of the GPU with the samples.

    Attributes
    ----------
    method_ : {"low_rank", "dense"}
        Whether the kernel matrix has low rank up to rounding, or was decomposed as a whole.
    method_reason_ : str
        The reason for this method.
    rank_ : int
        Number of eigenvalues that are kept.
    n_truncated_ : int
        Number of computed eigenvalues below `rounding_`, which are left out.
    rounding_ : float
        The order of the decomposed matrix (rank of the factor, or n) times epsilon times the largest eigenvalue.
    shift_ : float
        :math:`\lambda n`, added to eigenvalues.
    truncation_matters_ : bool
        Whether eigenvalues are left out and `shift_` is below `rounding_`: the truncation then changes the estimate
        more than `regularization` does.
    kernel_ : Kernel
        The kernel with numeric bandwidths.
    n_samples_, n_classes_ : int
        Of the training samples.

    See Also
    --------
    KKR : Regression of the inner products of residuals.
    SquaredCalibrationErrorCV : Choose `regularization` by risk.

    Notes
    -----
    Conventions: [1]_ prints :math:`\lambda = n^{1/2} 10^a`, a shift of :math:`10^a n^{3/2}`; the code for its tables
    adds :math:`10^a n^{3/4}` to the eigenvalues, :math:`\lambda = 10^a n^{-1/4}`.

    For n samples, m classes and rank r fitting takes O(n r (r + m)) time and 8 (n r + 4 r^2) bytes, or O(n^3) and 24
    n^2 (40 on a GPU) if dense; in a cross-validation each fold takes one decomposition for a path of regularizations.
    Evaluation takes O(n' q m) time with q = r pivots, or q = n if dense.

    `fit` raises TypeError or ValueError as `kcalib.skce`, ValueError if `regularization` is out of range or the kernel
    is not positive definite, and MemoryError beyond `max_memory`; it warns `RegularizationWarning` if
    `truncation_matters_`. The other methods raise ValueError before `fit`, and for predictions with another number of
    classes.

    References
    ----------
    .. [1] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. 2025.

    Examples
    --------
    One sample, K = 1, residual (0.2, -0.2): G = residual / (1 + 1), and h = 0.08 / 4.

    >>> from kcalib.regression import UKKR
    >>> function = UKKR(regularization=1.0).fit([0], [[0.8, 0.2]])
    >>> round(function.squared_error([[0.8, 0.2]]), 12)
    0.02
    """

    _shares_features, _default = False, 1e-3
    _power_of_shift, _power_of_code = 1, 0.75
    _exponents = tuple(float(-i) for i in range(1, 10)), tuple(4.5 - 0.5 * i for i in range(1, 19))

    def _rounding_of_shift(self, expansion: Expansion) -> float:
        return expansion.rounding

    def _keep(self, expansion: Expansion) -> None:
        self._landmarks_ = expansion.landmarks
        self._coefficients_ = linalg.matmul(
            expansion.map, expansion.cross / (expansion.eigenvalues + self.shift_)[:, None]
        )

    def _features(self, problem: Problem) -> Array:
        """Return G, shape (n', m)."""
        return kernel_products(problem.points, self._landmarks_, self.kernel_, self._coefficients_)


class KKR(KernelRidge):
    r"""Estimation function by kernel ridge regression of inner products of residuals (KKR of Gruber and Bach).

    Equation 29 of [1]_:

    .. math:: h(p, p') = k(p)^\top Q S Q^\top k(p'), \qquad
              S_{ij} = \frac{(Q^\top E E^\top Q)_{ij}}{l_i l_j + \lambda n^2}, \qquad
              K = Q \operatorname{diag}(l) Q^\top

    with the kernel matrix K of n training samples and their residuals :math:`e_i = \mathrm{onehot}(y_i) - p_i` in the
    rows of E: the solution X of :math:`K X K + \lambda n^2 X = E E^\top`, as :math:`h(p, p') = k(p)^\top X k(p')`.
    Unlike `UKKR` it can be negative, even h(p, p); `squared_error` keeps the sign.

    Parameters
    ----------
    regularization : float, optional
        The number :math:`\lambda` of the formula, 1e-100 to 1e100. Default: :math:`10^{-4}\, n^{-1/2}`.
        `regularization_grid` has the values of Gruber and Bach.
    kernel, lens, max_memory
        As in `UKKR`.

    Attributes
    ----------
    method_, method_reason_, rank_, n_truncated_, rounding_, kernel_, n_samples_, n_classes_
        As in `UKKR`.
    shift_ : float
        :math:`\lambda n^2`, added to products of two eigenvalues.
    truncation_matters_ : bool
        Whether eigenvalues are left out and `shift_` is below `rounding_` times the largest eigenvalue: the truncation
        then changes the estimate more than `regularization` does.

    See Also
    --------
    UKKR : Regression of the residuals.
    SquaredCalibrationErrorCV : Choose `regularization` by risk.
    kcalib.solvers.kronecker : The shifted Kronecker systems.

    Notes
    -----
    Factorisation, time and memory of fitting, errors and warnings are as for `UKKR`. Evaluation takes O(n' q r + n'
    r^2) time with q = r pivots, or q = n if dense.

    Conventions: [1]_ prints :math:`\lambda = n^{1/2} 10^a`, a shift of :math:`10^a n^{5/2}`; the code for its tables
    adds :math:`10^a n^{3/2}` to the products, :math:`\lambda = 10^a n^{-1/2}`.

    References
    ----------
    .. [1] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. 2025.

    Examples
    --------
    One sample, K = 1, squared residual 0.08: h = 0.08 / (1 + 1).

    >>> from kcalib.regression import KKR
    >>> function = KKR(regularization=1.0).fit([0], [[0.8, 0.2]])
    >>> round(function.squared_error([[0.8, 0.2]]), 12)
    0.04
    """

    _shares_features, _default = True, 1e-4
    _power_of_shift, _power_of_code = 2, 1.5
    _exponents = tuple(float(1 - 2 * i) for i in range(1, 10)), tuple(float(9 - i) for i in range(1, 19))

    def _rounding_of_shift(self, expansion: Expansion) -> float:
        return expansion.rounding * largest(expansion.eigenvalues)

    def _keep(self, expansion: Expansion) -> None:
        self._expansion_ = expansion  # shared by all functions on a path

    def _features(self, problem: Problem) -> Array:
        """Return psi, shape (n', r)."""
        expansion = self._expansion_
        check_memory(
            16 * problem.n * expansion.rank,
            self.max_memory,
            f"{expansion.rank} features of {problem.n} predictions, and others made from these,",
            "evaluate fewer predictions at a time",
            array=problem.points,
        )
        return kernel_products(problem.points, expansion.landmarks, expansion.kernel, expansion.map)

    def _core(self) -> Array:
        expansion = self._expansion_
        products = linalg.matmul(expansion.cross, expansion.cross.T)
        return quotients(products, expansion.eigenvalues, expansion.eigenvalues, self.shift_)
