r"""Base class of calibration-error estimation functions: parameters, checks, evaluation, risk.

A function h(p, p') estimates :math:`\langle e(p), e(p') \rangle`, with e(p) the expected residual of a sample with the
prediction p, so h(p, p) estimates the squared calibration error at p. All functions of this package have the form

.. math:: h(p, p') = \phi(p)^\top S \phi(p')

with r features phi and a symmetric matrix S, so that everything takes time linear in the number of samples. A subclass
only defines `_fit`, `_features` and, unless S is the identity, `_core`.

Samples on an NVIDIA GPU, and functions fitted to them, stay there. If either the function or the predictions are on a
GPU, the other is copied to it for evaluation.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.linalg import matmul, row_products
from kcalib._input.labels import Classification, prepare
from kcalib._packing import points_and_residuals
from kcalib.lenses import Canonical, Lens


@dataclass(frozen=True)
class Problem:
    """Predictions after a lens, with residuals if there are labels; float64, on the host or an NVIDIA GPU.

    A lens with one probability, such as `kcalib.lenses.TopLabel`, makes a problem in one dimension: points are
    confidences c, residuals y - c.
    """

    simplex: Array  # induced probabilities, shape: (n, m); of a scalar lens (1 - c, c)
    residuals: Array  # onehot(y) - p, shape: (n, m); of a scalar lens y - c, shape: (n, 1)
    labels: Array  # int64, 0..m-1, shape: (n,)
    is_scalar: bool

    @property
    def n(self) -> int:
        return len(self.simplex)

    @property
    def points(self) -> Array:
        """Return the inputs of kernels and bins, shape (n, m), or confidences, shape (n, 1)."""
        return self.simplex[:, 1:] if self.is_scalar else self.simplex

    @classmethod
    def of(cls, data: Classification, lens: Lens) -> Problem:
        points, residuals = points_and_residuals(data)
        simplex, residuals = (arrays.to_compute_device(a, np.float64) for a in (points, residuals))
        labels = arrays.to_compute_device(data.labels, np.int64)
        if lens.is_scalar:
            # Take 1 - c from the other probability: a subtraction would lose digits.
            right = arrays.namespace(simplex).where(labels == 1, simplex[:, 0], -simplex[:, 1])
            residuals = right[:, None]
        return cls(simplex, residuals, labels, lens.is_scalar)

    def take(self, rows: np.ndarray) -> Problem:
        rows = arrays.asarray_like(rows, self.simplex)
        return Problem(self.simplex[rows], self.residuals[rows], self.labels[rows], self.is_scalar)

    def to_device_of(self, reference: Array) -> Problem:
        """Return the problem on the device of `reference`, if that is a GPU."""
        if arrays.is_host(reference):
            return self
        simplex, residuals, labels = (
            arrays.asarray_like(a, reference) for a in (self.simplex, self.residuals, self.labels)
        )
        return Problem(simplex, residuals, labels, self.is_scalar)


class Trial(NamedTuple):
    """A fitted function and its risk on other samples."""

    function: Any  # CalibrationFunction
    risk: float


class Parametrised:
    """Parameters as in scikit-learn: the arguments of the constructor, stored unchanged."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor by name, as scikit-learn does.

        Parameters
        ----------
        deep : bool
            For compatibility with scikit-learn; no parameter has parameters.

        Returns
        -------
        dict
            Names and values.
        """
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name, and discard the fit.

        Parameters
        ----------
        **params
            Names and values, checked by `fit`; ValueError for names that the constructor does not have.

        Returns
        -------
        object
            The object itself.
        """
        names = self.get_params()
        for name in params:
            if name not in names:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(names)}")
        for name, value in params.items():
            setattr(self, name, value)
        for attribute in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, attribute)
        return self

    def clone(self) -> Any:
        """Return an unfitted object with the same parameters.

        Returns
        -------
        object
            A new object; the values are not copied.
        """
        return type(self)(**self.get_params())

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if v is not defaults[k].default]
        return f"{type(self).__name__}({', '.join(changed)})"


class CalibrationFunction(Parametrised):
    """Base class of the estimation functions."""

    lens: Lens | None

    # Functions that `_try_settings` yields for settings of this parameter share their large arrays.
    _path: ClassVar[str | None] = None

    @on_their_gpu
    def fit(self, y_true: Any, y_pred: Any, *, classes: Any = None, from_logits: bool = False) -> Any:
        """Fit the function to labels and predictions.

        Parameters
        ----------
        y_true, y_pred, classes, from_logits
            As in `kcalib.skce`.

        Returns
        -------
        CalibrationFunction
            The fitted function itself.
        """
        self._fit_checked(self._problem(y_true, y_pred, classes, from_logits))
        self._warn_of_fit()
        return self

    @on_their_gpu
    def h(self, p: Any, q: Any = None, *, from_logits: bool = False) -> Array:
        """Evaluate the function for all pairs of predictions.

        Parameters
        ----------
        p, q : array_like, shape (n, m) and (n', m)
            Predictions, as `y_pred` in `kcalib.skce`; `q` defaults to `p`.
        from_logits : bool
            Whether both are logits.

        Returns
        -------
        ndarray of float64, shape (n, n')
            The values h(p_i, q_j); an array on the GPU if the predictions or the fit are there.
        """
        return restore(self._values(p, q, from_logits), p)

    @on_their_gpu
    def squared_error(self, y_pred: Any, *, from_logits: bool = False) -> float:
        """Return the estimated squared calibration error of predictions (Gruber and Bach, equation 21).

        Parameters
        ----------
        y_pred, from_logits
            As in `kcalib.skce`; not the samples of the fit, for which the estimate would be too large.

        Returns
        -------
        float
            The mean of h(p_i, p_i), in time linear in n.
        """
        self._check_fitted()
        return self._squared_error(self._points(y_pred, from_logits, "y_pred"))

    @on_their_gpu
    def risk(self, y_true: Any, y_pred: Any, *, classes: Any = None, from_logits: bool = False) -> float:
        """Return the mean squared error of the function, up to a constant (Gruber and Bach, equation 20).

        Parameters
        ----------
        y_true, y_pred, classes, from_logits
            As in `kcalib.skce`; not the samples of the fit, for which the risk would be too low.

        Returns
        -------
        float
            The mean of (<e_i, e_j> - h(p_i, p_j))^2 over pairs of different samples, in time linear in n; lower is
            better. The constant is the same for all functions.
        """
        self._check_fitted()
        return self._risk(self._problem(y_true, y_pred, classes, from_logits))

    # Hooks of subclasses.

    def _fit(self, problem: Problem) -> None:
        """Set the fitted attributes, whose names end with an underscore."""
        raise NotImplementedError

    def _features(self, problem: Problem) -> Array:
        """Return phi of each prediction, shape (n, r), on their device; do not use residuals or labels.

        The fit may be on the host while the predictions are on a GPU.
        """
        raise NotImplementedError

    def _core(self) -> Array | None:
        """Return S, shape (r, r), symmetric; None for the identity."""
        return None

    def _warn_of_fit(self) -> None:
        """Warn about the fit; not called for candidates that a cross-validation rejects."""

    # Also used by the cross-validation.

    def _values(self, p: Any, q: Any, from_logits: bool) -> Array:
        """Return `h` as a NumPy or CuPy array."""
        self._check_fitted()
        points = self._points(p, from_logits, "p")
        right_points = points if q is None else self._points(q, from_logits, "q").to_device_of(points.simplex)
        left = self._evaluate(points.to_device_of(right_points.simplex))
        right = left if q is None else self._evaluate(right_points)
        core = self._core_beside(left)
        return matmul(left if core is None else matmul(left, core), right.T)

    def _try_settings(self, settings: Sequence[dict[str, Any]], train: Problem, validation: Problem) -> Iterator[Trial]:
        """Yield functions with these parameters, fitted to `train`, with their risks on `validation`."""
        for setting in settings:
            function = self.clone().set_params(**setting)._fit_checked(train)
            yield Trial(function, function._risk(validation))

    def _fit_checked(self, problem: Problem) -> Any:
        self._fit(problem)
        self._set_sizes(problem)
        return self

    def _set_sizes(self, problem: Problem) -> None:
        """Set the sizes that mark a function as fitted."""
        self.n_classes_, self.n_samples_ = problem.simplex.shape[1], problem.n
        self._place_ = problem.simplex[:0].copy()  # empty array on the device of the fit

    def _evaluate(self, problem: Problem) -> Array:
        if problem.simplex.shape[1] != self.n_classes_:
            raise ValueError(
                f"the predictions have {problem.simplex.shape[1]} classes, {type(self).__name__} was fitted to "
                f"{self.n_classes_}; evaluate predictions of the same classes"
            )
        return self._features(problem.to_device_of(self._place_))

    def _core_beside(self, features: Array) -> Array | None:
        core = self._core()
        return None if core is None else arrays.asarray_like(core, features)

    def _squared_error(self, problem: Problem) -> float:
        features = self._evaluate(problem)
        values = diagonal(features, self._core_beside(features))
        return float(arrays.namespace(values).mean(values))

    def _risk(self, problem: Problem) -> float:
        features = self._evaluate(problem)
        return risk_of(arrays.asarray_like(problem.residuals, features), features, self._core_beside(features))

    def _problem(self, y_true: Any, y_pred: Any, classes: Any, from_logits: bool) -> Problem:
        lens = self._lens()
        return Problem.of(prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens), lens)

    def _points(self, y_pred: Any, from_logits: bool, name: str) -> Problem:
        pred = arrays.as_array(y_pred, name)
        xp = arrays.namespace(pred) if arrays.is_cuda(pred) else np
        return self._problem(xp.zeros(pred.shape[0], dtype=xp.int64), pred, None, from_logits)

    def _lens(self) -> Lens:
        return Canonical() if self.lens is None else self.lens

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_classes_"):
            raise ValueError(f"this {type(self).__name__} is not fitted; call fit(y_true, y_pred) first")


def restore(values: Array, original: Any) -> Array:
    """Return values on a GPU in the library of their predictions, and NumPy arrays unchanged."""
    return values if arrays.is_host(values) else arrays.to_original_library(values, original)


def diagonal(features: Array, core: Array | None) -> Array:
    """Return h(p_i, p_i), shape (n,)."""
    return row_products(features, features if core is None else matmul(features, core))


def risk_of(residuals: Array, features: Array, core: Array | None) -> float:
    """Return the mean over i != j of (<e_i, e_j> - phi_i^T S phi_j)^2 in O(n (m + r)^2)."""
    n, xp = len(residuals), arrays.namespace(residuals)
    if n < 2:
        raise ValueError(f"the risk needs at least 2 samples, there are {n}")
    images = features if core is None else matmul(features, core)
    # The sum of squares of h = Phi S Phi^T, from Phi^T Phi S if that is smaller.
    square = matmul(images, features.T) if n <= features.shape[1] else matmul(features.T, images)
    total = float(
        xp.sum(matmul(residuals.T, residuals) ** 2)
        - 2 * xp.sum(matmul(residuals.T, features) * matmul(residuals.T, images))
        + xp.sum(square * square.T)
    )
    diagonal_terms = row_products(residuals, residuals) - row_products(features, images)
    return (total - float(diagonal_terms @ diagonal_terms)) / (n * (n - 1))


def null_risk_of(residuals: Array) -> float:
    """Return the risk of h = 0."""
    return risk_of(residuals, residuals[:, :0], None)
