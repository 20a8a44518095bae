r"""Solve shifted Kronecker systems (A (x) B + s I) x = b by decomposing A and B: O(n^3), not O(n^6).

With X, C the entries of x, b in rows this is :math:`A X B^\top + s X = C`. Symmetric matrices are diagonalised,
:math:`A = U \operatorname{diag}(l) U^\top`, :math:`B = V \operatorname{diag}(m) V^\top`, so that :math:`(U^\top X
V)_{ij} = (U^\top C V)_{ij} / (l_i m_j + s)`. Others have complex Schur forms, and the triangular system is solved
column by column.

Arrays on an NVIDIA GPU are decomposed there, and solutions stay there; Schur forms are on the host only.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib.report.summary import Summarized
from kcalib.solvers.kernel_operator import as_numpy_or_cupy, check_real

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class KroneckerSolution(Summarized):
    """Solution of (A (x) B + s I) x = b, for one shift s or a path of them."""

    values: Array  #: x, float64, of the shape of b; a path of shifts adds a first axis
    shift: float | np.ndarray  #: s, float64
    relative_residual: float | np.ndarray  #: largest norm of a residual relative to its b; for each shift
    method: str  #: "eigendecompositions" or "schur"
    truncated: tuple[int, int]  #: numbers of eigenvalues of A and of B that are below rounding and replaced by 0

    def __repr__(self) -> str:
        return (
            f"KroneckerSolution(shape={tuple(self.values.shape)}, method={self.method!r}, "
            f"relative_residual={np.max(self.relative_residual):.3g}, truncated={self.truncated})"
        )


class Eigensystem(NamedTuple):
    """Eigenvalues and eigenvectors of a symmetric matrix, in ascending order."""

    values: Array  # shape (n,)
    vectors: Array  # in columns, shape (n, n)

    @property
    def rounding(self) -> float:
        """Return n eps l_max: eigenvalues of this size may be rounding errors."""
        return len(self.values) * EPSILON * largest(arrays.namespace(self.values).abs(self.values))


class _Form(NamedTuple):
    """A matrix as U T U^H: eigenvalues, U, and T unless it is diagonal."""

    values: Array
    vectors: Array
    triangle: Array | None = None
    n_truncated: int = 0

    def to_device_of(self, reference: Array) -> _Form:
        """Return the form of a symmetric matrix on the device of `reference`."""
        return self._replace(
            values=arrays.asarray_like(self.values, reference), vectors=arrays.asarray_like(self.vectors, reference)
        )


class Kronecker:
    """A decomposition of A (x) B, made by `kronecker`."""

    def __init__(self, left: Array, right: Array | None) -> None:
        self._left, self._right = left, left if right is None else right
        is_symmetric = _is_symmetric(left) and _is_symmetric(self._right)
        self.method = "eigendecompositions" if is_symmetric else "schur"  #: the kind of decomposition
        if not is_symmetric:
            arrays.check_not_cuda(left, "the Schur form of a matrix that is not symmetric")
        decompose = _diagonal_form if is_symmetric else _triangular_form
        form = decompose(left)
        self._forms = form, form if right is None else decompose(right)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of A (x) B."""
        n = len(self._left) * len(self._right)
        return n, n

    @property
    def truncated(self) -> tuple[int, int]:
        """Return how many eigenvalues of A and of B are below rounding and replaced by 0."""
        left, right = self._forms
        return left.n_truncated, right.n_truncated

    @on_their_gpu
    def solve(self, right_sides: Any, shift: Any) -> KroneckerSolution:
        r"""Solve (A (x) B + s I) x = b, for one shift or several.

        Time for each shift and right side: O(n_a n_b (n_a + n_b)); memory a few times the solutions.

        Parameters
        ----------
        right_sides : array_like, shape (n_a n_b,), (n_a n_b, c) or (n_a, n_b)
            b: one vector, c vectors in columns, or one vector as the matrix C (``C.reshape(-1)``, row by row) of the
            equation :math:`A X B^\top + s X = C`. If one of A, B and b is on an NVIDIA GPU, the others are copied
            there.
        shift : float or array_like, shape (k,)
            s, a finite number for which the system is not singular; an array is a path of shifts.

        Returns
        -------
        KroneckerSolution
            `values` of the shape of `right_sides`, or (k, ...) for a path; on the GPU if A, B or `right_sides` are.

        Raises
        ------
        TypeError
            If an argument does not contain real numbers.
        NotImplementedError
            If A or B is not symmetric, and `right_sides` are on a GPU.
        ValueError
            If `right_sides` has a wrong shape or is not finite; if a shift is not finite; if the system is singular, up
            to rounding, for a shift.
        """
        n_a, n_b = len(self._left), len(self._right)
        original, array = right_sides, check_real(as_numpy_or_cupy(right_sides, "right_sides"), "right_sides")
        if array.shape not in ((n_a * n_b,), (n_a, n_b)) and (array.ndim != 2 or len(array) != n_a * n_b):
            raise ValueError(
                f"`right_sides` has shape {array.shape}, expected ({n_a * n_b},), ({n_a * n_b}, c) or ({n_a}, {n_b}), "
                f"as A has {n_a} rows and B {n_b}"
            )
        if arrays.is_host(array):
            array = arrays.asarray_like(array, self._left)
        return self._to_device_of(array)._solve_path(original, array, shift)

    def _to_device_of(self, array: Array) -> Kronecker:
        """Return the decomposition on the device of the array."""
        if arrays.is_host(array) or not arrays.is_host(self._left):
            return self
        if self.method == "schur":
            arrays.check_not_cuda(array, "a system with a matrix that is not symmetric")
        result = copy.copy(self)
        result._left, result._right = (arrays.asarray_like(matrix, array) for matrix in (self._left, self._right))
        result._forms = self._forms[0].to_device_of(array), self._forms[1].to_device_of(array)
        return result

    def _solve_path(self, original: Any, right_sides: Array, shift: Any) -> KroneckerSolution:
        """Return the solution for right sides on the device of the matrices."""
        shape, n_a, n_b, xp = right_sides.shape, len(self._left), len(self._right), arrays.namespace(right_sides)
        is_vector = shape in ((n_a * n_b,), (n_a, n_b))
        b = right_sides.reshape(1, n_a, n_b) if is_vector else right_sides.T.reshape(shape[1], n_a, n_b)
        shifts = _check_shifts(shift)
        for s in shifts:
            self._check_regular(float(s))
        rotated = self._rotate(b)
        path = xp.empty((len(shifts), *shape), dtype=xp.float64)
        residuals = np.empty(len(shifts))
        for k, s in enumerate(shifts):
            x = self._solve_rotated(rotated, float(s))
            residuals[k] = _relative_norm(b - self._left @ x @ self._right.T - s * x, b)
            path[k] = (x if is_vector else x.reshape(shape[::-1]).T).reshape(shape)
        is_path = not isinstance(shift, Real)
        values = path if is_path else path[0]
        if not arrays.is_host(values):
            values = arrays.to_original_library(values, original)
        if is_path:
            return KroneckerSolution(values, shifts, residuals, self.method, self.truncated)
        return KroneckerSolution(values, float(shifts[0]), float(residuals[0]), self.method, self.truncated)

    def _rotate(self, b: Array) -> Array:
        """Return U^H C conj(V) for each matrix C of the stack."""
        left, right = self._forms
        return left.vectors.conj().T @ b @ right.vectors.conj()

    def _solve_rotated(self, rotated: Array, shift: float) -> Array:
        left, right = self._forms
        if left.triangle is None or right.triangle is None:
            return left.vectors @ quotients(rotated, left.values, right.values, shift) @ right.vectors.T
        y = _solve_triangles(rotated, left.triangle, right.triangle, shift)
        return np.ascontiguousarray((left.vectors @ y @ right.vectors.T).real)

    def _check_regular(self, shift: float) -> None:
        left, right = (form.values for form in self._forms)
        xp = arrays.namespace(left)
        products = left[:, None] * right[None, :]
        sums = xp.abs(products + shift)
        # The error of an eigenvalue is a few n eps times the norm, and matters if product and shift cancel.
        a, b = (float(xp.linalg.norm(matrix)) for matrix in (self._left, self._right))
        rounding = max(len(left), len(right)) * EPSILON
        error = rounding * (a * xp.abs(right)[None, :] + b * xp.abs(left)[:, None])
        cancels = sums < 0.5 * (xp.abs(products) + abs(shift))
        singular = (sums == 0) | (cancels & (sums <= error))
        if bool(xp.any(singular)):
            i, j = (int(places[0]) for places in xp.nonzero(singular))
            of_a, of_b = _format_eigenvalue(left[i].item()), _format_eigenvalue(right[j].item())
            raise ValueError(
                f"A (x) B + shift I is singular: A and B have eigenvalues whose product {of_a} times {of_b} is minus "
                f"the shift {shift:.6g}, to rounding; take a shift that is minus no product of their eigenvalues, such "
                "as a positive one for positive semi-definite A and B"
            )

    def __repr__(self) -> str:
        return f"<Kronecker of A {self._left.shape} and B {self._right.shape}, by {self.method}>"


@on_their_gpu
def kronecker(left: Any, right: Any = None) -> Kronecker:
    r"""Decompose A and B once, to solve (A (x) B + s I) x = b for many b and s.

    .. math:: (A \otimes B + s I)\, \operatorname{vec}(X) = \operatorname{vec}(C) \iff A X B^\top + s X = C

    with vec stacking rows, as in ``C.reshape(-1)``. Symmetric A and B are diagonalised; eigenvalues below :math:`n
    \epsilon |l|_{\max}` are replaced by 0, and counted in the result. Otherwise complex Schur forms are used [1]_. Time
    O(n_a^3 + n_b^3), memory O(n_a^2 + n_b^2); the Kronecker product is not formed.

    Parameters
    ----------
    left : array_like, shape (n_a, n_a)
        A, real.
    right : array_like, shape (n_b, n_b), optional
        B, real; A by default, which is then decomposed only once. If one of A and B is on an NVIDIA GPU, the other is
        copied there.

    Returns
    -------
    Kronecker
        Has ``solve(right_sides, shift)``, `method`, `truncated` and `shape`.

    Raises
    ------
    TypeError
        If a matrix does not contain real numbers.
    ValueError
        If a matrix is not square, not finite, or empty.
    NotImplementedError
        If a matrix on a GPU is not symmetric.

    References
    ----------
    .. [1] C. D. Moravitz Martin, C. F. Van Loan (2007), Shifted Kronecker product systems.

    Examples
    --------
    A has the eigenvalues 3 and 1 for (1, 1) and (1, -1), so A (x) A has 9 for (1, 1, 1, 1), and 1 / (9 + 1) = 0.1:

    >>> from kcalib.solvers import kronecker
    >>> system = kronecker([[2.0, 1.0], [1.0, 2.0]])
    >>> system.solve([1.0, 1.0, 1.0, 1.0], shift=1.0).values.round(12)
    array([0.1, 0.1, 0.1, 0.1])
    >>> system.solve([1.0, 1.0, 1.0, 1.0], shift=[1.0, 11.0]).values.round(12)
    array([[0.1 , 0.1 , 0.1 , 0.1 ],
           [0.05, 0.05, 0.05, 0.05]])
    """
    a = _check_square(left, "left")
    if right is None:
        return Kronecker(a, None)
    b = _check_square(right, "right")
    if arrays.is_host(a):
        return Kronecker(arrays.asarray_like(a, b), b)
    return Kronecker(a, arrays.asarray_like(b, a))


def eigendecomposition(matrix: Array, *, overwrite: bool = False) -> Eigensystem:
    """Decompose a symmetric matrix by divide and conquer (syevd); takes 3 n^2 numbers on the host with `overwrite`."""
    return Eigensystem(*linalg.eigh(matrix, overwrite=overwrite))


def largest(values: Array) -> float:
    """Return the largest of non-negative numbers, or 0 if there are none."""
    return float(arrays.namespace(values).max(values)) if values.size else 0.0


def quotients(values: Array, left: Array, right: Array, shift: float) -> Array:
    """Return values_ij / (l_i m_j + s), for a matrix or a stack of matrices."""
    divisors = left[:, None] * right[None, :]
    divisors += shift
    return values / divisors


def _diagonal_form(matrix: Array) -> _Form:
    spectrum = eigendecomposition(matrix)
    xp = arrays.namespace(matrix)
    is_large = xp.abs(spectrum.values) > spectrum.rounding
    return _Form(xp.where(is_large, spectrum.values, 0.0), spectrum.vectors, n_truncated=int(xp.sum(~is_large)))


def _triangular_form(matrix: np.ndarray) -> _Form:
    triangle, vectors = scipy.linalg.schur(matrix, output="complex", check_finite=False)
    return _Form(np.diagonal(triangle), vectors, triangle)


def _solve_triangles(d: np.ndarray, left: np.ndarray, right: np.ndarray, shift: float) -> np.ndarray:
    """Solve S Y T^T + s Y = D for a stack of matrices D, with upper triangular S and T.

    From the last column backward, (T_jj S + s I) y_j = d_j - S sum_{k > j} T_jk y_k.
    """
    y = np.empty(d.shape, dtype=complex)
    identity = np.eye(len(left))
    for j in reversed(range(len(right))):
        rest = y[:, :, j + 1 :] @ right[j, j + 1 :]
        sides = d[:, :, j] - rest @ left.T
        system = right[j, j] * left + shift * identity
        y[:, :, j] = scipy.linalg.solve_triangular(system, sides.T, check_finite=False).T
    return y


def _is_symmetric(matrix: Array) -> bool:
    xp = arrays.namespace(matrix)
    return float(xp.max(xp.abs(matrix - matrix.T))) <= EPSILON * float(xp.max(xp.abs(matrix)))


def _relative_norm(residuals: Array, b: Array) -> float:
    """Return the largest norm of a residual relative to its right side; absolute if that is 0."""
    xp = arrays.namespace(b)
    norms, scales = (xp.sqrt(xp.sum(a * a, axis=(1, 2))) for a in (residuals, b))
    return largest(norms / xp.where(scales > 0, scales, 1.0))


def _format_eigenvalue(value: complex) -> str:
    return f"{value.real:.6g}" if value.imag == 0 else f"({value:.6g})"


def _check_square(values: Any, name: str) -> Array:
    matrix = check_real(as_numpy_or_cupy(values, name), name)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"`{name}` has shape {tuple(matrix.shape)}, expected (n, n) with n >= 1")
    return matrix


def _check_shifts(shift: Any) -> np.ndarray:
    if isinstance(shift, Real) and not isinstance(shift, (bool, np.bool_)):
        if not math.isfinite(shift):
            raise ValueError(f"`shift` is {shift}, expected a finite number")
        return np.array([float(shift)])
    if isinstance(shift, (bool, np.bool_, str)) or shift is None:
        raise TypeError(f"`shift` is {shift!r}, expected a number or several")
    shifts = arrays.to_host(check_real(as_numpy_or_cupy(shift, "shift"), "shift"))
    if shifts.ndim != 1 or len(shifts) == 0:
        raise ValueError(f"`shift` has shape {shifts.shape}, expected a number, or (k,) with k >= 1")
    return shifts
