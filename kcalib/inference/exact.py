"""The exact test, by labels or targets drawn from the predictions.

Given the predictions, the labels of a calibrated model are independent draws from them, so the null distribution is
known for every n. Where features are vectors, the statistic of drawn labels is a sum of quadratic forms of the kernel
matrix K, one for each feature column, and one product with K serves many draws (`forms.by_forms`). Without a target
kernel on labels, comparing two labels replaces the inner product if the backend supports it (`label_forms`). Where
features are not vectors, each draw needs a sweep (`_totals_of_targets`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_integer
from kcalib._backend.random import BinaryDraws, draw_label_batches, draw_replicate_batches
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing.variance import finite_law
from kcalib._pairs.backends.compared_labels import label_forms
from kcalib._pairs.backends.sorted_line import ON_THE_LINE, off_line
from kcalib._pairs.label_cells import DrawnCells
from kcalib._pairs.reductions import LabelMatches, Moments, sweep_one
from kcalib.inference.conditional_spectrum import conditional
from kcalib.inference.quadratic import (
    MAX_RESAMPLES,
    N_RESAMPLES,
    AllPairs,
    NullLaw,
    from_draws,
    least_as_large,
)
from kcalib.inference.replicates import by_forms, draws_at_once
from kcalib.inference.spectrum import limit_law
from kcalib.inference.tail import Tail, beyond_draws, tilted_tail
from kcalib.inference.task import Task

# Residuals this small change no draw, and products with subnormal float32 numbers (below 1e-38) are 20 times slower.
NEGLIGIBLE = 1e-30
FEWEST_COMPARED = 3  # classes; a comparison takes as long as two products
LABELS_BYTES = TARGETS_BYTES = 2**27
MOST_TILTED = 8
TILTED_WORK, LINE_WORK = 4e10, 1.5e4  # multiply-adds up to which tilted draws are multiplied; per sample on a line
DRAW_COST, TARGET_COST = 500, 15  # multiply-adds for drawing features of a label; for an entry of H with targets


@dataclass(frozen=True)
class Exact(AllPairs):
    """Test the SKCE by labels, or targets, drawn from the predictions.

    Valid for every number of samples and classes: given the predictions of a calibrated model, the labels are
    independent draws from them, so the null distribution of n SKCE over all pairs is known. The p-value from R draws is
    (1 + number of draws at least as large) / (1 + R).

    If the statistic is above all draws, the p-value can be smaller than 1 / (1 + R). With thousands of events it comes
    from the limit distribution of "spectrum", if the draws do not contradict it. With fewer events, labels are drawn
    from predictions that are tilted towards large statistics, and weighted by likelihood ratios [2]_, which is valid at
    every level and for every number of samples. If these draws do not resolve the tail, the limit distribution is used
    if there are a hundred events and the draws do not contradict it; otherwise the result is an upper bound.
    ``result.pvalue_from`` says which of these gave the p-value, and ``result.null_law`` how precise it is.

    Parameters
    ----------
    n_resamples : int
        Number R of draws, at least 1.

    Notes
    -----
    Time O(R n^2) for labels in host memory, O(R n^2 m) otherwise and with a target kernel on labels, about three times
    as much if the statistic is above all draws; memory O(n m). For binary problems with exponential and Matern kernels
    n^2 becomes n log n, and memory grows by 64 bytes per sample and thread. For distributions with a target kernel each
    draw is a sweep over all pairs. The conditional null distribution replaces the asymptotic one of [1]_, theorem G.2.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class
       classification: A unifying framework. NeurIPS 2019.
    .. [2] M. T. Harrison. Conservative hypothesis tests and confidence intervals using importance sampling.
       Biometrika 99, 2012.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Exact(n_resamples=199), seed=0)
    >>> result.n_resamples, result.null_law
    (199, '199 draws of the labels from the predictions')
    """

    n_resamples: int = N_RESAMPLES

    name: ClassVar[str] = "exact"
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)

    def law(self, task: Task, seed: int) -> NullLaw:
        count = int(self.n_resamples)
        drawn, draws = _draws(task.data, task, count, seed)
        result = from_draws(task, draws, f"{count} draws of the {drawn} from the predictions")
        if result.pvalue != 1 / (1 + count):
            return result
        scale = 1 / (task.n - 1)
        statistic = scale * float(task.moments.total)

        def beyond(tail: Tail | None) -> NullLaw:
            return beyond_draws(
                result,
                statistic,
                scale * draws,
                events=lambda: task.effective_events,
                law=lambda: limit_law(conditional(task)[0], statistic),
                tail=None if tail is None else replace(tail, statistics=scale * tail.statistics),
            )

        by_law = beyond(None)
        return by_law if by_law is not result else beyond(_tail(task.data, task, count, seed))


@singledispatch
def _tail(data: Data, task: Task, count: int, seed: int) -> Tail | None:
    """Return tilted draws of the statistic, or None if there are none for such data."""
    return None


@_tail.register
def _(data: Classification, task: Task, count: int, seed: int) -> Tail | None:
    law = finite_law(data, task.packed)
    assert law is not None

    def totals(batches: Iterable[np.ndarray]) -> np.ndarray:
        p = arrays.to_compute_device(data.probabilities)
        return _totals_of_labels(task, data, (arrays.like(labels, p) for labels in batches))

    labels, threads = arrays.to_host(data.labels), task.backend.threads
    count *= _times(task, count)
    return tilted_tail(law, labels, least_as_large(task), totals, count=count, seed=seed, threads=threads)


def _times(task: Task, count: int) -> int:
    """Return how many tilted draws to make for each draw: more where they are fast."""
    cost = LINE_WORK * task.n if task.backend.on_a_line else task.n**2 * task.packed.problem.left.features.shape[1]
    return max(1, min(MOST_TILTED, int(TILTED_WORK / (cost * count))))


@singledispatch
def _draws(data: Data, task: Task, count: int, seed: int) -> tuple[str, np.ndarray]:
    """Return the word for what is drawn, and the statistics of the draws."""
    return "targets", _totals_of_targets(task, (data.draw(seed, r) for r in range(count)))


@_draws.register
def _(data: Classification, task: Task, count: int, seed: int) -> tuple[str, np.ndarray]:
    """Draw labels in batches."""
    p = _without_subnormal(arrays.to_compute_device(data.probabilities))
    on_a_line = _on_a_line(task, data)
    if on_a_line is not None:
        return "labels", on_a_line(BinaryDraws.of(p, count, seed, threads=task.backend.threads))
    if _compares_labels(task, data):
        at_once = max(1, LABELS_BYTES // (8 * task.n))
    else:
        at_once = draws_at_once(task.n, _root(task, data).shape[1])
    drawn = draw_label_batches(p, count, seed, at_once=at_once, threads=task.backend.threads)
    return "labels", _totals_of_labels(task, data, drawn)


@singledispatch
def draw_work(data: Data, task: Task) -> float:
    """Return the approximate multiply-adds that the statistic over all pairs takes for each draw."""
    return TARGET_COST * task.n**2 / 2 * task.packed.problem.multiply_adds * task.backend.entry_cost


@draw_work.register
def _(data: Classification, task: Task) -> float:
    if task.backend.on_a_line:
        return LINE_WORK * data.n
    rank = data.m if task.packed.target.root is None else task.packed.target.root.shape[1]
    return float(data.n) * (data.n + DRAW_COST) * rank


def replicate_totals(task: Task, count: int, seed: int, **drawn: DrawnCells) -> np.ndarray:
    """Return sum_{i != j} H_ij of the observed targets, then of the targets that random features draw."""
    totals = _replicate_totals(task.data, task, count, seed, **drawn)
    observed = float(task.moments.total)
    totals[np.abs(totals - observed) <= observed - least_as_large(task)] = observed
    return np.concatenate([[observed], totals])


@singledispatch
def _replicate_totals(data: Data, task: Task, count: int, seed: int) -> np.ndarray:
    raise NotImplementedError(type(data))


@_replicate_totals.register
def _(data: Forecasts, task: Task, count: int, seed: int) -> np.ndarray:
    def draws() -> Iterator[Data]:
        at_once = max(1, TARGETS_BYTES // (8 * data.n * data.n_dims))
        for begin in range(0, count, at_once):
            replicates = range(begin, min(begin + at_once, count))
            targets = data.row_draws(seed, replicates)(slice(0, data.n))
            yield from map(data.with_targets, targets)

    return _totals_of_targets(task, draws())


@_replicate_totals.register
def _(data: Classification, task: Task, count: int, seed: int, cells: DrawnCells) -> np.ndarray:
    return _totals_of_labels(task, data, draw_counted_labels(data, count, seed, cells, task.backend.threads))


def draw_counted_labels(
    data: Classification, count: int, seed: int, cells: DrawnCells, threads: int | None
) -> Iterator[Array]:
    """Yield batches of the labels of `data.draw(seed, b)`, after the cells have counted them."""
    at_once, first = max(1, LABELS_BYTES // (8 * data.n)), 0
    for labels in draw_replicate_batches(data.cumulative, count, seed, at_once=at_once, threads=threads):
        cells.add(first, data.probabilities, labels, data.sample_weight)
        first += labels.shape[1]
        yield labels


def _totals_of_labels(task: Task, data: Classification, batches: Iterable[Array]) -> np.ndarray:
    """Return statistics of labels in batches of shape (n, draws)."""
    on_a_line = _on_a_line(task, data)
    if on_a_line is not None:
        return np.concatenate([on_a_line(np.ascontiguousarray(labels, dtype=np.int32)) for labels in batches])
    p = arrays.to_compute_device(data.probabilities)
    if _compares_labels(task, data):
        p = _without_subnormal(p).astype(np.float64, copy=False)
        observed, draws = label_forms(task.kernel_backend, p, arrays.to_host(data.labels), batches)
        return draws + (float(task.moments.total) - observed)  # draws of the observed labels are ties
    root = arrays.like(_root(task, data), p)
    xp = arrays.namespace(p)
    n, rank, means = task.n, root.shape[1], _without_subnormal(p) @ root

    def features() -> Iterator[Array]:
        for labels in batches:
            # Rows of a table are the features of labels.
            drawn = xp.take(root, labels, axis=0)
            drawn -= means[:, None, :]
            yield drawn.reshape(n, -1)

    return by_forms(task, features(), rank)


def _compares_labels(task: Task, data: Classification) -> bool:
    """Return whether comparing labels is supported and pays off."""
    if data.m < FEWEST_COMPARED or task.packed.target.root is not None:
        return False
    return task.kernel_backend.obstacle(LabelMatches(np.empty((0, 0), np.int32))) is None


def _on_a_line(task: Task, data: Classification) -> Callable[[np.ndarray | BinaryDraws], np.ndarray] | None:
    """Return a function from labels of two classes to statistics in one dimension, or None if unsupported."""
    p, backend = data.probabilities, task.kernel_backend
    labels = np.empty((0, 0), np.int32)
    if data.m != 2 or backend.obstacle(LabelMatches(labels, np.empty((0, 2, 1)))) is not None:
        return None
    root = _root(task, data)
    if _has_residuals_on_a_line(task, data):
        length = float(np.linalg.norm(root[1] - root[0]))  # of the features of the residual (-1, 1)
        first, second = 0.5 * (p[:, 0] + (1 - p[:, 1])), 0.5 * (p[:, 1] + (1 - p[:, 0]))
        features = length * np.stack([-second, first], axis=1)[:, :, None]
    else:
        features = (np.eye(2) - p[:, None, :]) @ root
    return lambda labels: sweep_one(backend, LabelMatches(labels, features))


def _has_residuals_on_a_line(task: Task, data: Classification) -> bool:
    """Return whether all residuals are (-r, r) up to rounding of float64, or were before rounding to float32."""
    if data.m != 2 or not task.backend.on_a_line:
        return False
    return off_line(arrays.to_compute_device(data.probabilities)) <= ON_THE_LINE


def _without_subnormal(p: Array) -> Array:
    return arrays.namespace(p).where(p < NEGLIGIBLE, 0.0, p)


def _totals_of_targets(task: Task, draws: Iterator[Data]) -> np.ndarray:
    packed = (task.packed.with_targets(drawn) for drawn in draws)
    if task.packed.problem.target is not None:  # a sweep over the pairs for each
        backends = (task.backend_of(drawn.problem) for drawn in packed)
        return np.array([float(sweep_one(backend, Moments(rows=False, trace=False)).total) for backend in backends])
    # Features are vectors, as for classes.
    rank = task.packed.problem.left.features.shape[1]
    at_once = draws_at_once(task.n, rank)

    def features() -> Iterator[Array]:
        while batch := list(itertools.islice(packed, at_once)):
            result = [arrays.to_compute_device(drawn.problem.left.features) for drawn in batch]
            xp = arrays.namespace(result[0])
            yield xp.concatenate([xp.asarray(m, dtype=xp.float64) for m in result], axis=1)

    return by_forms(task, features(), rank)


def _root(task: Task, data: Classification) -> np.ndarray:
    """R, shape (m, rank), with <a_i, a_j> = <R^T e_i, R^T e_j> for the residuals e."""
    if task.packed.target.root is not None:
        return task.packed.target.root
    if _has_residuals_on_a_line(task, data):
        return np.sqrt([[0.5], [0.5]]) * [[-1], [1]]
    return np.eye(data.m)
