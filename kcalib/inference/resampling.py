"""Tests by random weights: the Arcones-Gine bootstrap, and multipliers.

Each draw of the statistic is a quadratic form of H, or of the kernel matrix K for multipliers given the predictions, as
in `exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.random import Weights, batches, make_weights
from kcalib._packing import Packed
from kcalib._packing.variance import FiniteLaw, finite_law
from kcalib._pairs.backends.base import diagonal
from kcalib._pairs.reductions import MomentSums, QuadraticForms
from kcalib.inference import events
from kcalib.inference.quadratic import (
    MAX_RESAMPLES,
    N_RESAMPLES,
    REFERENCES,
    AllPairs,
    NullLaw,
    from_draws,
    quadratic_forms,
)
from kcalib.inference.replicates import by_forms, draws_at_once
from kcalib.inference.task import Task

BATCH_BYTES = 2**26
DRAWN_SETS = 8  # sets of targets whose residuals are multiplied


@dataclass(frozen=True)
class Bootstrap(AllPairs):
    r"""Test the SKCE by the bootstrap of degenerate U-statistics, as published.

    With counts c of draws with replacement and :math:`\tilde H`, the doubly centred matrix H, a draw is :math:`c^T
    \tilde H c - c^T \mathrm{diag} \tilde H` [1]_, [2]_ (theorem G.2). Centring mistakes the spread of large diagonal
    entries for variance of the statistic: with few samples of many classes this test rejects far too rarely.

    Parameters
    ----------
    n_resamples : int
        Number R of draws, at least 1.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events uncertain, see `kcalib.AntiConservativeWarning`.

    Notes
    -----
    The null distribution uses the observed residuals, not the predictions: where errors are rare there are none to
    resample, and calibrated models are rejected far too often. Time O(n^2 (m + R)), memory O(n m). The p-value is (1 +
    number of draws at least as large) / (1 + R).

    References
    ----------
    .. [1] M. A. Arcones, E. Gine. On the bootstrap of U and V statistics. Ann. Statist. 20, 1992.
    .. [2] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class
       classification: A unifying framework. NeurIPS 2019.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Bootstrap(n_resamples=199), seed=0)
    >>> result.null_law
    '199 Arcones-Gine bootstrap resamples'
    """

    n_resamples: int = N_RESAMPLES

    name: ClassVar[str] = "bootstrap"
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)

    @property
    def fewest_events(self) -> int:
        return events.ALL_PAIRS_OF_RESIDUALS

    def law(self, task: Task, seed: int) -> NullLaw:
        n, count = task.n, int(self.n_resamples)
        counts = Weights("multinomial", n, count, seed)
        (forms,) = task.sweep(QuadraticForms(counts, dtype="float32"))
        forms = arrays.to_host(arrays.to_compute_device(forms))
        linear = _count_products(_make_centring_vector(task.moments), counts, task.options.threads)
        mean = float(_row_means(task.moments).mean())
        return from_draws(task, forms - linear + n**2 * mean, f"{count} Arcones-Gine bootstrap resamples")


def _row_means(moments: MomentSums) -> Array:
    diagonal_entries = arrays.to_compute_device(moments.diagonal)
    return (arrays.to_compute_device(moments.row_sums) + diagonal_entries) / len(diagonal_entries)


def _make_centring_vector(moments: MomentSums) -> Array:
    """Return v with c^T H~ c - c^T diag H~ = c^T H c - c^T v + n^2 mean, for counts c with sum n."""
    diagonal_entries, row_means = arrays.to_compute_device(moments.diagonal), _row_means(moments)
    mean = float(row_means.mean())
    return 2 * len(diagonal_entries) * row_means + (diagonal_entries - 2 * row_means + mean)


@dataclass(frozen=True)
class Multiplier(AllPairs):
    r"""Test the SKCE by random multipliers.

    With a root L_i of the covariance :math:`V_i = \mathrm{diag}(p_i) - p_i p_i^\top` of the residual of sample i under
    calibration, :math:`L_i = \mathrm{diag}(\sqrt{p_i}) - p_i \sqrt{p_i}^\top`, and independent multipliers :math:`g_i
    \in \mathbb{R}^m` of mean 0 and variance 1, a draw is the statistic of residuals :math:`L_i g_i`. They have the
    covariances of the residuals of a calibrated model, and do not depend on the labels.

    Parameters
    ----------
    n_resamples : int
        Number R of draws, at least 1.
    multipliers : {"rademacher", "gaussian"}
        1 or -1, or standard normal.
    reference : {"conditional", "residuals"}
        "conditional" is the definition above, given the predictions; for distributions other than counts the residuals
        of drawn targets are multiplied. "residuals" multiplies the observed residuals, as published: a draw is
        :math:`\sum_{i \neq j} w_i w_j H_{ij}`. Where errors are rare these residuals are too small, and calibrated
        models are rejected far too often.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events uncertain, see `kcalib.AntiConservativeWarning`.

    Notes
    -----
    Assumes that so many events determine the statistic that only their covariances matter. Time O(R n^2 m)
    ("residuals": O(n^2 (m + R))), memory O(n m). The p-value is (1 + number of draws at least as large) / (1 + R). The
    null distribution is that of remark B.2 of [1]_, with weights in place of the eigenvalues.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=200)
    >>> y = rng.uniform(size=200) < p
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Multiplier(multipliers="gaussian"), seed=0)
    >>> result.null_law
    '999 draws with Gaussian multipliers, given the predictions'
    """

    n_resamples: int = N_RESAMPLES
    multipliers: str = "rademacher"
    reference: str = "conditional"

    name: ClassVar[str] = "multiplier"
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)
        check_choice("multipliers", self.multipliers, ("rademacher", "gaussian"))
        check_choice("reference", self.reference, REFERENCES)

    @property
    def fewest_events(self) -> int:
        return events.ALL_PAIRS if self.reference == "conditional" else events.ALL_PAIRS_OF_RESIDUALS

    def law(self, task: Task, seed: int) -> NullLaw:
        count = int(self.n_resamples)
        description = f"{count} draws with {self.multipliers.capitalize()} multipliers"
        if self.reference == "residuals":
            totals = _multiply_residuals(task, task.packed, Weights(self.multipliers, task.n, count, seed))
            return from_draws(task, totals, f"{description} of the residuals, as published")
        finite = finite_law(task.data, task.packed)
        if finite is None:
            return from_draws(task, self._of_drawn_targets(task, seed), f"{description}, given the predictions")
        rank = finite.rank
        weights = Weights(self.multipliers, finite.probabilities.shape[0] * finite.probabilities.shape[1], count, seed)
        features = _multiply_roots(
            finite, weights, draws_at_once(task.n, max(rank, finite.probabilities.shape[1])), task
        )
        return from_draws(task, by_forms(task, features, rank), f"{description}, given the predictions")

    def _of_drawn_targets(self, task: Task, seed: int) -> np.ndarray:
        """Return draws that multiply the residuals of several sets of drawn targets."""
        count, sets = int(self.n_resamples), min(DRAWN_SETS, int(self.n_resamples))
        parts = []
        for r in range(sets):
            packed_draw = task.packed.with_targets(task.data.draw(seed, r))
            own_seed = int(np.random.SeedSequence((seed, r)).generate_state(1, np.uint64)[0])
            size = count // sets + (r < count % sets)
            parts.append(_multiply_residuals(task, packed_draw, Weights(self.multipliers, task.n, size, own_seed)))
        return np.concatenate(parts)


def _multiply_residuals(task: Task, packed: Packed, weights: Weights) -> np.ndarray:
    """Return sum_{i != j} w_i w_j H_ij for each replicate of the weights."""
    backend = task.backend_of(packed.problem)
    forms = arrays.to_host(quadratic_forms(backend, weights))
    diagonal_entries = arrays.to_compute_device(diagonal(packed.problem, backend.threads or 1))
    if weights.kind == "rademacher":
        return forms - float(diagonal_entries.sum())
    return forms - _products(diagonal_entries, weights, task.options.threads, lambda w: w**2)


def _multiply_roots(finite: FiniteLaw, weights: Weights, at_once: int, task: Task) -> Iterator[Array]:
    """Yield R^T L_i g_i of some draws at a time, as features of shape (n, draws * rank)."""
    p = arrays.to_compute_device(finite.probabilities)
    finite = replace(finite, probabilities=p)
    xp, (top, _, rest) = arrays.namespace(p), finite.parts
    n, m = p.shape
    root, most = arrays.like(finite.narrow_root, p), xp.max(p, axis=1, keepdims=True)
    for begin in range(0, weights.n_replicates, at_once):
        end = min(weights.n_replicates, begin + at_once)
        g = make_weights(p, weights, begin, end, threads=task.options.threads).reshape(n, m, end - begin)
        scaled = xp.sqrt(p)[:, :, None] * g
        of_top, of_others = (xp.where(mask[:, :, None], scaled, 0.0).sum(axis=1) for mask in (top, ~top))
        # sqrt(p) g - p <sqrt(p), g> does not cancel for p near 1.
        at_top = of_top * rest - most * of_others
        residuals = xp.where(
            top[:, :, None], at_top[:, None, :], scaled - p[:, :, None] * (of_top + of_others)[:, None, :]
        )
        yield (residuals.transpose(0, 2, 1) @ root).reshape(n, -1)


def _count_products(vector: Array, weights: Weights, threads: int | None) -> np.ndarray:
    """Return `vector` times the counts of each replicate."""
    if arrays.is_host(vector):
        return weights.products(vector, threads)
    return _products(vector, weights, threads, lambda counts: counts)


def _products(vector: Array, weights: Weights, threads: int | None, of: Callable[[Array], Array]) -> np.ndarray:
    """Return `vector` times `of` the weights of each replicate."""
    weight_batches = batches(vector, weights, BATCH_BYTES, threads=threads)
    return np.concatenate([arrays.to_host(linalg.matmul(vector, of(values))) for _, _, values in weight_batches])
