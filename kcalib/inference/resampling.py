"""Tests by random weights of the samples: the Arcones-Gine bootstrap, and multipliers.

Each draw of the statistic is a quadratic form of the matrix H of all pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.random import Weights, batches
from kcalib.inference.quadratic import MAX_RESAMPLES, N_RESAMPLES, AllPairs, NullLaw, from_draws, quadratic_forms
from kcalib.inference.task import Task

BATCH_BYTES = 2**26


@dataclass(frozen=True)
class Bootstrap(AllPairs):
    r"""The law of the statistic by the bootstrap of degenerate U-statistics.

    With counts c of draws with replacement and H~, the matrix H minus its row and column means plus its mean, a draw
    is :math:`c^T \tilde H c - c^T \mathrm{diag} \tilde H` [1]_, [2]_ (theorem G.2). Centring takes the spread of
    large diagonal entries for variance of the statistic: with few samples of many classes this test rejects far too
    rarely.

    Parameters
    ----------
    n_resamples : int
        Number R of draws, at least 1.

    Notes
    -----
    Time O(n^2 (m + R)), memory O(n m). The p-value is (1 + number of draws at least as large) / (1 + R).

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

    def law(self, task: Task, seed: int) -> NullLaw:
        n, moments, count = task.n, task.moments, int(self.n_resamples)
        own = arrays.where_computed(moments.diagonal)
        row_means = (arrays.where_computed(moments.row_sums) + own) / n
        mean = float(row_means.mean())
        # c^T H~ c = c^T H c - 2 n c^T row_means + n^2 mean, because c sums to n.
        subtracted = 2 * n * row_means + (own - 2 * row_means + mean)
        weights = Weights("multinomial", n, count, seed)
        forms = arrays.to_host(quadratic_forms(task.operator, weights))
        linear = _products(subtracted, weights, task.options.threads, lambda counts: counts)
        return from_draws(task, forms - linear + n**2 * mean, f"{count} Arcones-Gine bootstrap resamples")


@dataclass(frozen=True)
class Multiplier(AllPairs):
    r"""The law of the statistic by random multipliers of the residuals.

    A draw is :math:`\sum_{i \neq j} w_i w_j H_{ij}` with independent multipliers w of mean 0 and variance 1. The
    law that "spectrum" computes is that of the draws with Gaussian ones.

    Parameters
    ----------
    n_resamples : int
        Number R of draws, at least 1.
    multipliers : {"rademacher", "gaussian"}
        1 or -1, or standard normal.

    Notes
    -----
    Time O(n^2 (m + R)), memory O(n m). The p-value is (1 + number of draws at least as large) / (1 + R). The law is
    that of W21, remark B.2 [1]_, with weights in place of the eigenvalues.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Multiplier(multipliers="gaussian"), seed=0)
    >>> result.null_law
    '999 draws with Gaussian multipliers'
    """

    n_resamples: int = N_RESAMPLES
    multipliers: str = "rademacher"

    name: ClassVar[str] = "multiplier"
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)
        check_choice("multipliers", self.multipliers, ("rademacher", "gaussian"))

    def law(self, task: Task, seed: int) -> NullLaw:
        count = int(self.n_resamples)
        weights = Weights(self.multipliers, task.n, count, seed)
        forms = arrays.to_host(quadratic_forms(task.operator, weights))
        if self.multipliers == "rademacher":
            own = np.full(count, float(task.moments.trace))
        else:
            squares = arrays.where_computed(task.moments.diagonal)
            own = _products(squares, weights, task.options.threads, lambda w: w**2)
        return from_draws(task, forms - own, f"{count} draws with {self.multipliers.capitalize()} multipliers")


def _products(vector: Array, weights: Weights, threads: int | None, of: Callable[[Array], Array]) -> np.ndarray:
    """`vector` times `of` the weights, one for each replicate."""
    drawn = batches(vector, weights, BATCH_BYTES, threads=threads)
    return np.concatenate([arrays.to_host(vector @ of(values)) for _, _, values in drawn])
