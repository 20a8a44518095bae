r"""Shifted Kronecker systems (A (x) B + s I) x = b, from decompositions of A and B: O(n^3), not O(n^6).

For X, C with the entries of x, b in rows this is :math:`A X B^\top + s X = C`. Symmetric matrices are diagonalised,
:math:`A = U \operatorname{diag}(l) U^\top`, :math:`B = V \operatorname{diag}(m) V^\top`, so that
:math:`(U^\top X V)_{ij} = (U^\top C V)_{ij} / (l_i m_j + s)`; general ones take complex Schur forms, whose triangular
system is solved column by column. Called by users; `kcalib.regression.KKR` takes `eigendecomposition`, `quotients` and
`signed_factors`.

Arrays on an NVIDIA GPU are decomposed there, and solutions stay there; Schur forms are on the host alone.
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

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class KroneckerSolution(Summarized):
    """Solution of (A (x) B + s I) x = b, for one shift s or a path of them."""

    values: Array  #: x, float64, of the shape of b; for a path of shifts with one more axis before
    shift: float | np.ndarray  #: s as given, float64
    relative_residual: float | np.ndarray  #: norm of the residual over that of b, the largest of all b; for each shift
    method: str  #: "eigendecompositions" or "schur"
    truncated: tuple[int, int]  #: eigenvalues of A and of B below rounding, taken as 0

    def __repr__(self) -> str:
        return (
            f"KroneckerSolution(shape={tuple(self.values.shape)}, method={self.method!r}, "
            f"relative_residual={np.max(self.relative_residual):.3g}, truncated={self.truncated})"
        )


class Eigensystem(NamedTuple):
    """Eigenvalues and eigenvectors of a symmetric matrix, ascending."""

    values: Array  # shape (n,)
    vectors: Array  # in columns, shape (n, n)

    @property
    def rounding(self) -> float:
        """n eps l_max: eigenvalues of this size may be nothing but rounding."""
        return len(self.values) * EPSILON * largest(arrays.namespace(self.values).abs(self.values))


class _Form(NamedTuple):
    """A matrix as U T U^H: eigenvalues, U, and T unless it is diagonal."""

    values: Array
    vectors: Array
    triangle: Array | None = None
    n_truncated: int = 0

    def beside(self, other: Array) -> _Form:
        """The same of a symmetric matrix, on the GPU if `other` is there."""
        return self._replace(values=arrays.beside(self.values, other), vectors=arrays.beside(self.vectors, other))


class Kronecker:
    """A (x) B in decomposed form; made by `kronecker`."""

    def __init__(self, left: Array, right: Array | None) -> None:
        self._left, self._right = left, left if right is None else right
        is_symmetric = _is_symmetric(left) and _is_symmetric(self._right)
        self.method = "eigendecompositions" if is_symmetric else "schur"  #: which decompositions
        if not is_symmetric:
            arrays.check_not_cuda(left, "the Schur form of a matrix that is not symmetric")
        decompose = _diagonal_form if is_symmetric else _triangular_form
        one = decompose(left)
        self._forms = one, one if right is None else decompose(right)

    @property
    def shape(self) -> tuple[int, int]:
        """That of A (x) B."""
        n = len(self._left) * len(self._right)
        return n, n

    @property
    def truncated(self) -> tuple[int, int]:
        """Eigenvalues of A and of B below rounding, taken as 0."""
        left, right = self._forms
        return left.n_truncated, right.n_truncated

    @on_their_gpu
    def solve(self, right_sides: Any, shift: Any) -> KroneckerSolution:
        r"""Solve (A (x) B + s I) x = b, for one shift or several.

        Time for each shift and right side: O(n_a n_b (n_a + n_b)); memory that of the solutions, a few times.

        Parameters
        ----------
        right_sides : array_like, shape (n_a n_b,), (n_a n_b, c) or (n_a, n_b)
            b; one vector, c vectors in columns, or one vector as the matrix C, ``C.reshape(-1)`` (row after row), of
            the equation :math:`A X B^\top + s X = C`. If it, or A and B, are on an NVIDIA GPU, the others
            are copied there.
        shift : float or array_like, shape (k,)
            s, any finite number for which the system is regular; several are a path.

        Returns
        -------
        KroneckerSolution
            With `values` of the shape of `right_sides`, for a path of shape (k, ...); on the GPU if A, B or
            `right_sides` are.

        Raises
        ------
        TypeError
            If an argument is not made of real numbers.
        NotImplementedError
            If A or B is not symmetric, and `right_sides` on a GPU.
        ValueError
            If `right_sides` has another shape or is not finite; if a shift is not finite; if the system is singular,
            to rounding, for one of the shifts.
        """
        n_a, n_b = len(self._left), len(self._right)
        original, given = right_sides, _checked(right_sides, "right_sides")
        if given.shape not in ((n_a * n_b,), (n_a, n_b)) and (given.ndim != 2 or len(given) != n_a * n_b):
            raise ValueError(
                f"`right_sides` has shape {given.shape}, expected ({n_a * n_b},), ({n_a * n_b}, c) or ({n_a}, {n_b}), "
                f"as A has {n_a} rows and B {n_b}"
            )
        if arrays.is_host(given):
            given = arrays.beside(given, self._left)
        return self._beside(given)._path(original, given, shift)

    def _beside(self, array: Array) -> Kronecker:
        """The same, on the GPU if the array is there."""
        if arrays.is_host(array) or not arrays.is_host(self._left):
            return self
        if self.method == "schur":
            arrays.check_not_cuda(array, "a system with a matrix that is not symmetric")
        moved = copy.copy(self)
        moved._left, moved._right = (arrays.beside(matrix, array) for matrix in (self._left, self._right))
        moved._forms = self._forms[0].beside(array), self._forms[1].beside(array)
        return moved

    def _path(self, original: Any, given: Array, shift: Any) -> KroneckerSolution:
        """The solution for right sides that are where the matrices are."""
        n_a, n_b, xp = len(self._left), len(self._right), arrays.namespace(given)
        is_one = given.shape in ((n_a * n_b,), (n_a, n_b))
        b = given.reshape(1, n_a, n_b) if is_one else given.T.reshape(given.shape[1], n_a, n_b)
        shifts = _checked_shifts(shift)
        for s in shifts:
            self._check_regular(float(s))
        rotated = self._rotated(b)
        path = xp.empty((len(shifts), *given.shape), dtype=xp.float64)
        residuals = np.empty(len(shifts))
        for k, s in enumerate(shifts):
            x = self._solved(rotated, float(s))
            residuals[k] = _relative(b - self._product(x) - s * x, b)
            path[k] = (x if is_one else x.reshape(given.shape[::-1]).T).reshape(given.shape)
        is_path = not isinstance(shift, Real)
        values = path if is_path else path[0]
        if not arrays.is_host(values):
            values = arrays.restored(values, original)
        if is_path:
            return KroneckerSolution(values, shifts, residuals, self.method, self.truncated)
        return KroneckerSolution(values, float(shifts[0]), float(residuals[0]), self.method, self.truncated)

    def _product(self, x: Array) -> Array:
        return self._left @ x @ self._right.T

    def _rotated(self, b: Array) -> Array:
        """U^H C conj(V) of each matrix of the stack."""
        left, right = self._forms
        return left.vectors.conj().T @ b @ right.vectors.conj()

    def _solved(self, rotated: Array, shift: float) -> Array:
        left, right = self._forms
        if left.triangle is None or right.triangle is None:
            return left.vectors @ quotients(rotated, left.values, right.values, shift) @ right.vectors.T
        y = _solved_triangles(rotated, left.triangle, right.triangle, shift)
        return np.ascontiguousarray((left.vectors @ y @ right.vectors.T).real)

    def _check_regular(self, shift: float) -> None:
        left, right = (form.values for form in self._forms)
        xp = arrays.namespace(left)
        products = left[:, None] * right[None, :]
        sums = xp.abs(products + shift)
        # The error of an eigenvalue is some n eps times the norm, and matters where product and shift cancel.
        a, b = (float(xp.linalg.norm(matrix)) for matrix in (self._left, self._right))
        rounding = max(len(left), len(right)) * EPSILON
        error = rounding * (a * xp.abs(right)[None, :] + b * xp.abs(left)[:, None])
        cancels = sums < 0.5 * (xp.abs(products) + abs(shift))
        singular = (sums == 0) | (cancels & (sums <= error))
        if bool(xp.any(singular)):
            i, j = _first(singular)
            raise ValueError(
                f"A (x) B + shift I is singular: A and B have eigenvalues whose product {_shown(left[i].item())} times "
                f"{_shown(right[j].item())} is minus the shift {shift:.6g}, to rounding; take a shift that is minus no "
                "product of their eigenvalues, such as a positive one for positive semi-definite A and B"
            )

    def __repr__(self) -> str:
        return f"<Kronecker of A {self._left.shape} and B {self._right.shape}, by {self.method}>"


@on_their_gpu
def kronecker(left: Any, right: Any = None) -> Kronecker:
    r"""Decompose A and B once, to solve (A (x) B + s I) x = b for any b and s.

    .. math:: (A \otimes B + s I)\, \operatorname{vec}(X) = \operatorname{vec}(C) \iff A X B^\top + s X = C

    with vec stacking rows, as ``C.reshape(-1)`` does. Symmetric A and B are diagonalised; eigenvalues below
    :math:`n \epsilon |l|_{\max}` are rounding and taken as 0, as the result says. Otherwise complex Schur forms [1]_.
    Time O(n_a^3 + n_b^3), memory O(n_a^2 + n_b^2); the Kronecker product is never formed.

    Parameters
    ----------
    left : array_like, shape (n_a, n_a)
        A, real.
    right : array_like, shape (n_b, n_b), optional
        B, real; A by default, which is decomposed once then. If one of A and B is on an NVIDIA GPU, the other is copied
        there.

    Returns
    -------
    Kronecker
        With ``solve(right_sides, shift)``, `method`, `truncated` and `shape`.

    Raises
    ------
    TypeError
        If a matrix is not made of real numbers.
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
    a = _checked_square(left, "left")
    if right is None:
        return Kronecker(a, None)
    b = _checked_square(right, "right")
    if arrays.is_host(a):
        return Kronecker(arrays.beside(a, b), b)
    return Kronecker(a, arrays.beside(b, a))


def eigendecomposition(matrix: Array, *, overwrite: bool = False) -> Eigensystem:
    """Eigenvalues and eigenvectors of a symmetric matrix, by divide and conquer (LAPACK's or cuSOLVER's syevd).

    It takes 3 n^2 numbers in all on the host, if `overwrite`.
    """
    return Eigensystem(*linalg.eigh(matrix, overwrite=overwrite))


def largest(values: Array) -> float:
    """The largest of numbers >= 0; 0 if there are none."""
    return float(arrays.namespace(values).max(values)) if values.size else 0.0


def quotients(values: Array, left: Array, right: Array, shift: float) -> Array:
    """values_ij / (l_i m_j + s), for a matrix or a stack of them."""
    divisors = left[:, None] * right[None, :]
    divisors += shift
    return values / divisors


class SignedFactors(NamedTuple):
    """B and signs with B diag(signs) B^T = 1 / (l_i l_j + s)."""

    columns: Array  # B, shape (r, K)
    signs: Array  # 1.0 and -1.0 in turn, shape (K,)


def signed_factors(values: Array, shift: float) -> SignedFactors:
    r"""The matrix 1 / (l_i l_j + s) by a few columns, for ascending l > 0 and s > 0; rank some 100 at most.

    For any :math:`\lambda > 0`

    .. math:: \frac{1}{xy + s} = \frac{\lambda^2 + s}{(\lambda x + s)(\lambda y + s)} - \frac{t(x)\, t(y)}{xy + s},
              \qquad t(x) = \frac{\sqrt{s}\, (x - \lambda)}{\lambda x + s}

    so that with one :math:`\lambda` after the other

    .. math:: \frac{1}{xy + s} = \sum_k (-1)^k (\lambda_k^2 + s)\, a_k(x)\, a_k(y)
              + (-1)^K \frac{T_K(x) T_K(y)}{xy + s}, \qquad
              a_k(x) = \frac{T_k(x)}{\lambda_k x + s}, \qquad T_k(x) = \prod_{q < k} t_q(x) .

    Each :math:`\lambda` is the l at which the last term, times :math:`l_i l_j`, is largest in the diagonal, which keeps
    the terms small. The end is where :math:`l_i l_j` times the last term is below epsilon times the largest
    :math:`l_i l_j / (l_i l_j + s)`, for all i, j.
    """
    xp = arrays.namespace(values)
    root, most = math.sqrt(shift), float(values[-1]) ** 2 / (float(values[-1]) ** 2 + shift)
    # xy / (xy + s) is at most 1 and xy / s, the first of which is less for y from s / x on.
    crossing = xp.searchsorted(values, shift / values)
    own = values / xp.sqrt(values * values + shift)
    rest = xp.ones_like(values)  # T_k
    zero = xp.zeros_like(values[:1])
    columns = list[Array]()
    while len(columns) < len(values):
        size = xp.abs(rest)
        above = xp.concatenate((_running_maximum(size[::-1])[::-1], zero))
        below = xp.concatenate((zero, _running_maximum(size * values)))
        if float(xp.max(size * xp.maximum(above[crossing], below[crossing] * (values / shift)))) <= EPSILON * most:
            break
        node = float(values[xp.argmax(size * own)])
        divisor = node * values + shift
        columns.append(rest * (math.hypot(node, root) / divisor))
        rest = rest * (root * (values - node) / divisor)
    return SignedFactors(xp.stack(columns, axis=1), arrays.like((-1.0) ** np.arange(len(columns)), values))


def _running_maximum(values: Array) -> Array:
    """The largest of the first 1, 2, ... numbers."""
    if arrays.is_host(values):
        return np.maximum.accumulate(values)
    xp, step = arrays.namespace(values), 1
    while step < len(values):
        values = xp.concatenate((values[:step], xp.maximum(values[step:], values[:-step])))
        step *= 2
    return values


def _diagonal_form(matrix: Array) -> _Form:
    spectrum = eigendecomposition(matrix)
    xp = arrays.namespace(matrix)
    kept = xp.abs(spectrum.values) > spectrum.rounding
    return _Form(xp.where(kept, spectrum.values, 0.0), spectrum.vectors, n_truncated=int(xp.sum(~kept)))


def _triangular_form(matrix: np.ndarray) -> _Form:
    triangle, vectors = scipy.linalg.schur(matrix, output="complex", check_finite=False)
    return _Form(np.diagonal(triangle), vectors, triangle)


def _solved_triangles(d: np.ndarray, left: np.ndarray, right: np.ndarray, shift: float) -> np.ndarray:
    """Y of S Y T^T + s Y = D, a stack; S and T are upper triangular, so column j has columns of Y from the j-th on.

    (T_jj S + s I) y_j = d_j - S sum_{k > j} T_jk y_k.
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


def _relative(residuals: Array, b: Array) -> float:
    """Largest norm of a residual relative to its right side, those that are 0 aside."""
    xp = arrays.namespace(b)
    sizes, given = (xp.sqrt(xp.sum(a * a, axis=(1, 2))) for a in (residuals, b))
    return largest(sizes / xp.where(given > 0, given, 1.0))


def _first(mask: Array) -> tuple[int, ...]:
    """Where the mask, true somewhere, is so first."""
    places = arrays.namespace(mask).nonzero(mask)
    return tuple(int(at[0]) for at in places)


def _shown(value: complex) -> str:
    return f"{value.real:.6g}" if value.imag == 0 else f"({value:.6g})"


def _checked(values: Any, name: str) -> Array:
    """Real numbers as float64: a CuPy array, or on the host."""
    array = arrays.as_array(values, name)
    if not arrays.is_cuda(array):
        array = np.asarray(arrays.to_host(array))
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` has dtype {array.dtype}, expected real numbers")
    xp = arrays.namespace(array)
    array = xp.asarray(array, dtype=xp.float64)
    bad = ~xp.isfinite(array)
    if bool(xp.any(bad)):
        at = _first(bad) if array.ndim else ()
        raise ValueError(f"`{name}{arrays.subscript(at)}` is {float(array[at])}, expected a finite number")
    return array


def _checked_square(values: Any, name: str) -> Array:
    matrix = _checked(values, name)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"`{name}` has shape {tuple(matrix.shape)}, expected (n, n) with n >= 1")
    return matrix


def _checked_shifts(shift: Any) -> np.ndarray:
    if isinstance(shift, Real) and not isinstance(shift, (bool, np.bool_)):
        if not math.isfinite(shift):
            raise ValueError(f"`shift` is {shift}, expected a finite number")
        return np.array([float(shift)])
    if isinstance(shift, (bool, np.bool_, str)) or shift is None:
        raise TypeError(f"`shift` is {shift!r}, expected a number or several")
    shifts = arrays.to_host(_checked(shift, "shift"))
    if shifts.ndim != 1 or len(shifts) == 0:
        raise ValueError(f"`shift` has shape {shifts.shape}, expected a number, or (k,) with k >= 1")
    return shifts
