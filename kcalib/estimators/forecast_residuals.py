r"""Compute residuals of predicted distributions as vectors, by factoring the matrix of their inner products.

With class labels the CKCE is :math:`\operatorname{tr}(B E E^\top)`, where rows of E are residuals and B depends on the
kernel on predictions. With distributions :math:`G_{ij} = \langle \delta_{y_i} - P_i, \delta_{y_j} - P_j\rangle`
replaces :math:`E E^\top`. `residuals_of` computes F with :math:`F F^\top = G`, from features that are vectors, or by a
pivoted Cholesky decomposition until the remainder is negligible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._packing import Packed
from kcalib._packing.target_factors import TargetFactor
from kcalib._pairs.problem import Factor, Side, Term
from kcalib.solvers.kernel_operator import KernelOperator
from kcalib.solvers.pivoted_cholesky import partial_cholesky

FIRST_RANK = 128
LEFT = 1e-12  # largest share of the trace of G in the remainder


@dataclass(frozen=True, eq=False)
class Residuals:
    """The factor F and the trace of its remainder."""

    rows: Array  # F, float64, shape (n, rank)
    lost: float  # the trace of G - F F^T, which is positive semi-definite
    is_binary: ClassVar[bool] = False  # as in `ClassResiduals`

    @property
    def columns(self) -> int:
        return self.rows.shape[1]

    def take(self, rows: slice) -> Array:
        return self.rows[rows]

    @property
    def rounding(self) -> float:
        """Upper bound of the trace of G - F F^T, including rounding."""
        return self.lost + 4 * 2.0**-52 * linalg.squared_norm(self.rows)


def residuals_of(packed: Packed, *, threads: int | None, seed: int = 0) -> Residuals:
    """Return the residuals of a packed problem of distributions."""
    problem = packed.problem
    target = packed.target
    assert isinstance(target, TargetFactor)
    if target.draws is not None:
        raise ValueError(
            f"the expectations of the target kernel {target.kernel} come from draws ({target.route}), which make "
            "residuals larger than they are; use a kernel with a closed form for the family, or "
            "kcalib.distributions.Samples of the draws, if they are the prediction"
        )
    if problem.target is None:
        return Residuals(arrays.to_compute_device(problem.left.features, np.float64), 0.0)
    constant = (Term(1.0, (Factor("gaussian", "euclidean"),)),)  # at distance 0
    nowhere = 0 * problem.left.features[:, :1]
    constant_problem = replace(
        problem, left=Side(nowhere, problem.left.features), kernel=constant, predicted=None, table=None
    )
    gram = KernelOperator(replace(packed, problem=constant_problem), threads=threads, backend=None)
    n, rank = gram.n, min(gram.n, FIRST_RANK)
    xp = arrays.namespace(gram.reference)
    trace = float(xp.sum(gram.diagonal()))
    if trace <= 0:
        return Residuals(xp.zeros((n, 1)), 0.0)
    while True:
        check_memory(
            24 * n * rank,
            None,
            f"{rank} columns of residuals of {n} samples",
            "take fewer samples, or a target kernel of larger bandwidth, whose factor has fewer columns",
            gram.reference,
        )
        cholesky = partial_cholesky(gram, rank, tol=LEFT, seed=seed)
        if rank == n or cholesky.trace_residual <= LEFT * trace or cholesky.rank < rank:
            return Residuals(cholesky.factor, max(0.0, cholesky.trace_residual))
        rank = min(n, 2 * rank)


def kernel_alone(packed: Packed) -> Packed:
    """Return the problem with H_ij = k(P_i, P_j): all features are 1."""
    points = packed.problem.left.points
    ones = arrays.namespace(points).ones_like(points[:, :1])
    return replace(packed, problem=replace(packed.problem, left=Side(points, ones), target=None))
