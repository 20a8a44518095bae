r"""Factorise the kernel matrix of training samples for kernel ridge regression.

`Expansion.of` finds features of a prediction that reproduce the kernel between training samples, and between these and
other predictions, and are orthogonal over the training samples:

.. math:: k(p, p') \approx \psi(p)^\top \psi(p'), \qquad \sum_i \psi(p_i) \psi(p_i)^\top = \operatorname{diag}(l),

with l the eigenvalues of the kernel matrix. They come from a pivoted Cholesky factorisation, accurate to rounding, if
its rank is low, and otherwise from an eigendecomposition of the whole matrix. `kernel_products` evaluates them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.memory import available_memory, available_memory_on_gpu, check_max_memory, check_memory
from kcalib._packing import pack_points
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import Products, sweep_one
from kcalib.kernels import Kernel
from kcalib.regression._function import Problem
from kcalib.solvers.kernel_operator import KernelOperator
from kcalib.solvers.kronecker import Eigensystem, eigendecomposition
from kcalib.solvers.pivoted_cholesky import partial_cholesky

LOW_RANK = 0.7  # rank, relative to the number of samples, up to which factorising is faster than an eigendecomposition
NEGATIVE = 1e-8  # relative size of a negative eigenvalue that shows an indefinite kernel


@dataclass(frozen=True, eq=False)
class Expansion:
    """Features psi(p) = map^T k(landmarks, p), their eigenvalues, and their cross moments with the residuals."""

    n_samples: int
    kernel: Kernel  # with numeric bandwidths
    landmarks: Array  # points, shape (q, d)
    map: Array  # shape (q, r)
    eigenvalues: Array  # l > 0, ascending, shape (r,)
    cross: Array  # c, shape (r, m)
    rounding: float  # smaller eigenvalues are left out
    n_truncated: int  # number of these
    method: str  # "low_rank" or "dense"
    reason: str

    @property
    def rank(self) -> int:
        return len(self.eigenvalues)

    @classmethod
    def of(cls, problem: Problem, kernel: Kernel, max_memory: float | None) -> Expansion:
        """Return the expansion of training samples."""
        points = arrays.namespace(problem.points).ascontiguousarray(problem.points)
        backend = KernelOperator(pack_points(points, kernel, "float64", elsewhere=True), threads=None, backend=None)
        largest_rank = _largest_rank(points, max_memory)
        cholesky = partial_cholesky(backend, largest_rank, to_rounding=True)
        if cholesky.rank < largest_rank:
            reason = f"a factor of rank {cholesky.rank} is the kernel matrix of {problem.n} samples to rounding"
            return cls._of_factor(problem, backend, cholesky.factor, cholesky.pivots, reason)
        del cholesky
        reason = f"the kernel matrix of {problem.n} samples has no rank below {largest_rank}"
        check_memory(
            (24 if arrays.is_host(points) else 40) * problem.n**2,
            max_memory,
            f"{reason}, and its eigendecomposition and workspace",
            "fit fewer samples, or take a smoother kernel, such as Gaussian() with a larger bandwidth",
            array=points,
        )
        return cls._of_matrix(problem, backend, reason)

    @classmethod
    def _of_factor(
        cls, problem: Problem, backend: KernelOperator, factor: Array, pivots: Array, reason: str
    ) -> Expansion:
        """Return the expansion for K = F F^T and F^T F = W diag(l) W^T.

        psi(p) = W^T F(p) with F(p) = L^{-1} k(pivots, p), where L has the rows of F at the pivots.
        """
        spectrum = eigendecomposition(linalg.matmul(factor.T, factor), overwrite=True)
        eigenvalues, vectors = _drop_rounding(spectrum)
        pivots = arrays.asarray_like(pivots, factor)
        root = arrays.namespace(factor).tril(factor[pivots])
        return cls(
            n_samples=problem.n,
            kernel=backend.kernel,
            landmarks=problem.points[pivots],
            map=linalg.solve_triangular(root, vectors, transposed=True),
            eigenvalues=eigenvalues,
            cross=linalg.matmul(vectors.T, linalg.matmul(factor.T, problem.residuals)),
            rounding=spectrum.rounding,
            n_truncated=len(pivots) - len(eigenvalues),
            method="low_rank",
            reason=reason,
        )

    @classmethod
    def _of_matrix(cls, problem: Problem, backend: KernelOperator, reason: str) -> Expansion:
        """Return psi for K = Q diag(l) Q^T: psi(p) = diag(l)^{-1/2} Q^T k(samples, p)."""
        rows = slice(0, problem.n)
        # The transpose is the same matrix in LAPACK's order, which overwrites it with the eigenvectors.
        spectrum = eigendecomposition(backend.tile(rows, rows).T, overwrite=True)
        smallest, largest = float(spectrum.values[0]), float(spectrum.values[-1])
        if smallest < -NEGATIVE * largest:
            raise ValueError(
                "the kernel matrix is not positive semi-definite: its smallest eigenvalue is "
                f"{smallest:.3g}, and `kernel` is {backend.kernel}; take one that is positive definite, "
                "such as Gaussian() with metric='euclidean'"
            )
        eigenvalues, vectors = _drop_rounding(spectrum)
        roots = arrays.namespace(eigenvalues).sqrt(eigenvalues)
        return cls(
            n_samples=problem.n,
            kernel=backend.kernel,
            landmarks=problem.points,
            map=vectors / roots,
            eigenvalues=eigenvalues,
            cross=roots[:, None] * linalg.matmul(vectors.T, problem.residuals),
            rounding=spectrum.rounding,
            n_truncated=problem.n - len(eigenvalues),
            method="dense",
            reason=reason,
        )


def _drop_rounding(spectrum: Eigensystem) -> tuple[Array, Array]:
    """Return eigenvalues above rounding, and their eigenvectors."""
    first = int(arrays.namespace(spectrum.values).sum(spectrum.values <= spectrum.rounding))
    return spectrum.values[first:], spectrum.vectors[:, first:]


def _largest_rank(points: Array, max_memory: float | None) -> int:
    """Return the largest rank of a factor to try."""
    n = len(points)
    rank = int(LOW_RANK * n)
    if max_memory is not None:
        limit: int | None = check_max_memory(max_memory)
    else:
        limit = available_memory() if arrays.is_host(points) else available_memory_on_gpu(points.device)
    return rank if limit is None else min(rank, limit // (32 * n))


def kernel_products(points: Array, landmarks: Array, kernel: Kernel, vectors: Array) -> Array:
    """Return k(points, landmarks) @ vectors without storing the matrix, on the device of the points."""
    xp = arrays.namespace(points)
    if len(landmarks) == 0:
        return xp.zeros((len(points), vectors.shape[1]))
    landmarks, vectors = (arrays.asarray_like(a, points) for a in (landmarks, vectors))
    left, right = (Side(xp.ascontiguousarray(a), xp.ones((len(a), 1))) for a in (points, landmarks))
    return sweep_one(backend_for(PairProblem(left, right, kernel.terms())), Products(xp.ascontiguousarray(vectors)))
