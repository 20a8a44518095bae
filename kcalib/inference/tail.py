r"""The far tail of the exact null distribution: draws from tilted predictions, and p-values valid at every level.

Given the predictions the statistic T of a calibrated model is about sum_j l_j xi_j^2, with l_j the largest eigenvalues
of the matrix of `conditional_spectrum`, and xi_j = sum_i h_j(i, y_i) of mean 0 and variance 1. Labels with
probabilities proportional to p_iy exp(<b, h(i, y)>) are independent, have a larger T for a large b, and the likelihood
ratio exp(<b, xi> - log Z(b)), Z(b) = prod_i sum_y p_iy exp(<b, h(i, y)>). The proposal Q is a mixture of about a
hundred of these, and of the predictions themselves; with w = dP / dQ, and R draws from Q,

    p = (w(y observed) + sum_r w(y_r) 1{T_r >= T observed}) / (R + 1)

has P(p <= a) <= a for every a and R, for every Q that does not depend on the labels (Harrison 2012, Conservative
hypothesis tests and confidence intervals using importance sampling). Here Q is a function of the predictions and a
seed. Its quality determines how far below 1 / (R + 1) the p-value can go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import scipy

from kcalib._backend import arrays, linalg
from kcalib._backend.threads import one_blas_thread
from kcalib._packing.variance import FiniteLaw, expected_lengths
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import DenseRectangle, Products, sweep_one
from kcalib.inference.conditional_spectrum import Scalars, Vectors
from kcalib.inference.quadratic import NullLaw
from kcalib.laws import ChiSquareMixture

KNOWN = 0.35  # relative error up to which tilted draws give the p-value
FEWEST_DRAWS = 99
LEVELS = (0.5, 0.1, 0.02)  # of the limit distribution, beyond which draws are counted
RISK = 1e-3  # of a false contradiction between the limit distribution and the count or variance of draws
EVENTS, EVENTS_WITH_TAIL = 2000, 100  # for the limit distribution without and with agreeing tilted draws
TAIL_LEVELS = (1e-3, 1e-4, 1e-5)
TAIL_FACTOR, TAIL_ERROR = 1.25, 0.25  # largest ratio of tilted draws to the limit, and their largest relative error

MOST_DIRECTIONS = 12
DIRECTION_BYTES = 2**27
MOST_ROWS, ROW_CLASSES, FEWEST_ROWS = (
    512,
    2**16,
    64,
)  # of the matrix whose eigenvectors are taken; fewer of many classes
STORED = 600  # rows up to which storing the matrix is cheaper than products
NEGLIGIBLE = 1e-9  # relative to the largest eigenvalue
# Information of a tilt, in nats: a tail of p has about -log p - 2. Shares of the mixture; the rest is not tilted.
TILTS = ((5.5, 0.35), (9.0, 0.3), (16.0, 0.15), (27.0, 0.1))
NEAR = 1.25  # factor of accuracy of the information of a tilt
STEPS = 6
MOST_TILTS, FEWEST_TILTS, TILT_WORK = 1000, 64, 2e7  # the last in rows times classes times tilts
CHUNK_BYTES = 2**24
T = TypeVar("T")
STREAM = 2**62  # replicates of the seed from here on are for the tail


@dataclass(frozen=True, eq=False)
class Tail:
    """A p-value from tilted draws, and its accuracy."""

    statistics: np.ndarray  # of the draws
    log_weights: np.ndarray
    as_large: np.ndarray  # whether the statistic of a draw is at least the observed one
    observed_log_weight: float  # the logarithm of the weight of the observed labels

    @property
    def log_pvalue(self) -> float:
        weights = np.append(self.log_weights[self.as_large], self.observed_log_weight)
        return min(0.0, float(scipy.special.logsumexp(weights)) - math.log(len(self.statistics) + 1))

    @property
    def own_share(self) -> float:
        """Share of the observed labels' weight in the p-value: near 1 the p-value is an upper limit."""
        return math.exp(min(0.0, self.observed_log_weight - math.log(len(self.statistics) + 1) - self.log_pvalue))

    @property
    def relative_error(self) -> float:
        """Relative error of the draws' part of the p-value, from their weights; infinite if no draw is as large."""
        return _relative_error(self.log_weights, self.as_large)

    def estimate(self, statistic: float) -> tuple[float, float]:
        """Return the probability of a statistic at least as large, and its relative error."""
        as_large = self.statistics >= statistic
        return float(np.mean(np.exp(self.log_weights) * as_large)), _relative_error(self.log_weights, as_large)

    @property
    def description(self) -> str:
        draws = f"{len(self.statistics)} tilted draws"
        if self.own_share >= 0.5:
            return f"an upper limit by {draws}"
        return f"{draws}, {int(self.as_large.sum())} as large, relative error {100 * self.relative_error:.2g} %"


def tilted_tail(
    law: FiniteLaw,
    labels: np.ndarray,
    least: float,
    totals: Callable[[Iterable[np.ndarray]], np.ndarray],
    *,
    count: int,
    seed: int,
    threads: int | None,
) -> Tail | None:
    """Return the p-value of a statistic of `labels` from `count` tilted draws, or None if nothing is random.

    `totals` returns statistics of batches of labels of shape (n, draws); those of at least `least` count as large.
    """
    directions = Directions.of(law, threads)
    if directions is None:
        return None
    proposal = Proposal.of(directions, seed, count, threads)
    log_weights: list[np.ndarray] = []

    def batches() -> Iterable[np.ndarray]:
        for batch, xi in proposal.draws(count, seed, threads):
            log_weights.append(proposal.log_weights(xi))
            yield batch

    statistics = totals(batches())
    observed_log_weight = float(proposal.log_weights(directions.sums(labels[:, None]))[0])
    return Tail(statistics, np.concatenate(log_weights), statistics >= least, observed_log_weight)


def _relative_error(log_weights: np.ndarray, as_large: np.ndarray) -> float:
    """Return the relative error of the mean weight of draws that are as large."""
    if not as_large.any():
        return math.inf
    weights = np.zeros(len(log_weights))
    weights[as_large] = np.exp(log_weights[as_large] - log_weights[as_large].max())
    return float(np.std(weights) / np.mean(weights) / math.sqrt(len(weights)))


@dataclass(frozen=True)
class Directions:
    """h_j(i, y), whose sums over samples have mean 0 and variance 1 under calibration, and their eigenvalues."""

    probabilities: np.ndarray  # shape (n, m)
    values: np.ndarray  # shape (n m, directions)
    eigenvalues: np.ndarray  # of the quadratic form T, largest first

    @classmethod
    def of(cls, law: FiniteLaw, threads: int | None) -> Directions | None:
        """Return directions from eigenvectors for the most informative samples, extended to all samples."""
        law = _on_host(law)
        p, points = law.probabilities, law.problem.left.points
        n, m = p.shape
        rows, shares = _sample(expected_lengths(law)[0], max(FEWEST_ROWS, min(MOST_ROWS, ROW_CLASSES // m)))
        if len(rows) < 2:
            return None
        law_of_rows = FiniteLaw(p[rows], law.root, replace(law.problem, left=Side(points[rows], p[rows, :1])))
        roots = Scalars(law_of_rows) if law.rank == 1 else Vectors(law_of_rows)
        problem = PairProblem(_with_ones(points), _with_ones(points[rows]), law.problem.kernel)
        backend = backend_for(problem, threads=threads)
        kernel = sweep_one(backend_for(replace(problem, left=problem.columns), threads=threads), DenseRectangle())
        kernel_diagonal = np.diag(kernel)[:, None].copy()
        np.fill_diagonal(kernel, 0.0)
        scales = 1 / np.sqrt(shares)[:, None]
        row_scales = np.repeat(scales, roots.size, axis=0)

        def product(vectors: np.ndarray) -> np.ndarray:
            return row_scales * roots.apply_transposed_root(
                linalg.matmul(kernel, roots.apply_root(row_scales * vectors))
            )

        most = max(2, min(MOST_DIRECTIONS, DIRECTION_BYTES // (8 * n * m)))
        values, vectors = _largest(product, len(rows) * roots.size, most)
        if len(values) == 0:
            return None
        features = roots.apply_root(row_scales * vectors)
        sums = sweep_one(backend, Products(features))
        sums[rows] -= kernel_diagonal * features
        entries = sums.reshape(n, -1, len(values))
        root = law.narrow_root
        if law.root is not None or m == 2:
            entries = np.einsum("nrj,mr->nmj", entries, root)
        elif isinstance(roots, Vectors):
            entries = roots.widen(entries)
        top = p.argmax(axis=1)  # relative to this entry nothing cancels
        entries = entries - entries[np.arange(n), top][:, None, :]
        entries -= np.einsum("nm,nmj->nj", p, entries)[:, None, :]
        entries[p == 0] = 0.0  # never drawn
        lengths = np.sqrt(np.einsum("nm,nmj->j", p, entries**2))
        has_length = lengths > 0
        entries = entries[:, :, has_length] / lengths[has_length]
        return cls(p, entries.reshape(n * m, -1), values[has_length]) if has_length.any() else None

    @cached_property
    def _starts(self) -> np.ndarray:
        n, m = self.probabilities.shape
        return np.arange(n)[:, None] * m

    def sums(self, labels: np.ndarray) -> np.ndarray:
        """Return xi of labels of shape (n, draws), shape (draws, directions)."""
        return np.stack([self.values[rows].sum(axis=0) for rows in (self._starts + labels).T])


@dataclass(frozen=True)
class Proposal:
    """The mixture of tilts b with equal probabilities."""

    directions: Directions
    tilts: np.ndarray  # b, shape (tilts, directions)
    log_norms: np.ndarray  # log Z(b)

    @classmethod
    def of(cls, directions: Directions, seed: int, count: int, threads: int | None) -> Proposal:
        """Return tilts in directions of sums with a large quadratic form, with the information `TILTS`."""
        values = directions.eigenvalues
        most = int(TILT_WORK / directions.probabilities.size)
        size = max(FEWEST_TILTS, min(MOST_TILTS, count, most))
        generator = _generator(seed, 0)
        parts = [np.zeros((size - sum(round(share * size) for _, share in TILTS), len(values)))]
        for information, share in TILTS:
            change = 2 * _theta(values, information) * values
            scale = np.sqrt(change / (1 - change))
            parts.append(scale * generator.standard_normal((round(share * size), len(values))))
        tilts = np.concatenate(parts)
        target_information = np.sum(tilts**2, axis=1) / 2  # for normal variables
        scales, log_norms = _scales(directions, tilts, target_information, threads)
        return cls(directions, tilts * scales[:, None], log_norms)

    def log_weights(self, xi: np.ndarray) -> np.ndarray:
        """Return log dP / dQ of labels with these sums."""
        ratios = scipy.special.logsumexp(xi @ self.tilts.T - self.log_norms, axis=1)
        return math.log(len(self.tilts)) - ratios

    def draws(self, count: int, seed: int, threads: int | None) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        """Yield batches of labels of shape (n, draws), each from a random tilt, and their xi."""
        size = len(self.tilts)
        times = np.bincount(_generator(seed, 1).integers(size, size=count), minlength=size)
        n, m = self.directions.probabilities.shape

        def draw_labels(chunk: slice) -> tuple[np.ndarray, np.ndarray] | None:
            tilt_numbers = [k for k in range(size)[chunk] if times[k]]
            if not tilt_numbers:
                return None
            _, tilted, _ = _tilted(self.directions, self.tilts[tilt_numbers])
            cumulative = np.cumsum(tilted, axis=2)
            cumulative /= cumulative[:, :, -1:]
            batches = []
            for k, steps in zip(tilt_numbers, cumulative, strict=True):
                uniform = _generator(seed, 2 + k).random((times[k], n, 1))
                batches.append((steps[None, :, :-1] <= uniform).sum(axis=2))
            labels = np.ascontiguousarray(np.concatenate(batches).T)
            return labels, self.directions.sums(labels)

        yield from filter(None, _chunks(draw_labels, size, n * m * 4, threads))


def _on_host(law: FiniteLaw) -> FiniteLaw:
    p = arrays.to_host(law.probabilities).astype(np.float64, copy=False)
    points = arrays.to_host(law.problem.left.points).astype(np.float64, copy=False)
    return FiniteLaw(p, law.root, replace(law.problem, left=Side(points, p[:, :1])))


def _with_ones(points: np.ndarray) -> Side:
    return Side(points, np.ones_like(points[:, :1]))


def _sample(lengths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` random rows, in proportion to `lengths`, and their inclusion probabilities."""
    open_rows = np.flatnonzero(lengths > 0)
    if len(open_rows) <= most:
        return open_rows, np.ones(len(open_rows))
    shares = np.zeros(len(lengths))
    certain = np.zeros(len(lengths), dtype=bool)
    while True:  # rows with an inclusion probability above 1 are taken for certain
        left = np.where(certain, 0.0, lengths)
        shares = np.where(certain, 1.0, (most - certain.sum()) * left / max(left.sum(), np.finfo(float).tiny))
        beyond = (shares >= 1) & ~certain
        if not beyond.any():
            break
        certain |= beyond
    steps = np.floor(np.cumsum(shares) + 0.5)
    rows = np.flatnonzero(np.diff(steps, prepend=0.0) > 0)
    return rows, shares[rows]


def _largest(product: Callable[[np.ndarray], np.ndarray], size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return up to `most` of the largest positive eigenvalues, in descending order, and their eigenvectors."""
    if size <= STORED:
        matrix = product(np.eye(size))
        matrix, first = (matrix + matrix.T) / 2, max(0, size - most)
        with one_blas_thread():
            try:
                values, vectors = scipy.linalg.eigh(matrix, subset_by_index=(first, size - 1))
            except np.linalg.LinAlgError:  # LAPACK may fail if many eigenvalues are equal
                values, vectors = linalg.eigh(matrix)
                values, vectors = values[first:], vectors[:, first:]
    else:
        operator = scipy.sparse.linalg.LinearOperator(
            (size, size), matvec=lambda v: product(v.reshape(-1, 1))[:, 0], dtype=np.float64
        )
        start = np.random.default_rng(0).standard_normal(size)
        try:
            values, vectors = scipy.sparse.linalg.eigsh(operator, k=most, which="LA", v0=start, tol=1e-3)
        except scipy.sparse.linalg.ArpackNoConvergence as error:
            values, vectors = error.eigenvalues, error.eigenvectors
    order = np.argsort(-values)
    order = order[values[order] > NEGLIGIBLE * np.max(values, initial=0.0)]
    return values[order], vectors[:, order]


def _theta(values: np.ndarray, information: float) -> float:
    """Return theta for which sum_j l_j xi_j^2 of normal xi, tilted by exp(theta ...), has this information."""
    low, high = 0.0, 1 / (2 * values[0])
    for _ in range(60):
        middle = (low + high) / 2
        change = 2 * middle * values
        far = np.sum(change / (1 - change) + np.log1p(-change)) / 2 > information
        low, high = (low, middle) if far else (middle, high)
    return low


def _scales(
    directions: Directions, tilts: np.ndarray, target_information: np.ndarray, threads: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return factors that give the tilts their target information, up to `NEAR`, and log Z.

    They are 1 for normal sums. If events are rare a tilt adds more of them than for normal sums.
    """
    scales, log_norms = np.ones(len(tilts)), np.zeros(len(tilts))
    low, high = np.zeros(len(tilts)), np.full(len(tilts), np.inf)
    seeking = np.flatnonzero(target_information > 0)
    for _ in range(STEPS):
        log_norms[seeking], information = _information(directions, tilts[seeking] * scales[seeking, None], threads)
        aim = target_information[seeking]
        off = (information > NEAR * aim) | (information < aim / NEAR)
        seeking, information, aim = seeking[off], information[off], aim[off]
        if len(seeking) == 0:
            return scales, log_norms
        current = scales[seeking]
        high[seeking] = np.where(information > aim, current, high[seeking])
        low[seeking] = np.where(information > aim, low[seeking], current)
        with np.errstate(over="ignore"):
            step = current * np.clip(np.sqrt(aim / np.maximum(information, np.finfo(float).tiny)), 0.25, 4)
        inside = (step > low[seeking]) & (step < high[seeking])
        halved = np.where(np.isinf(high[seeking]), 2 * current, (low[seeking] + high[seeking]) / 2)
        scales[seeking] = np.where(inside, step, halved)
    log_norms[seeking], _ = _information(directions, tilts[seeking] * scales[seeking, None], threads)
    return scales, log_norms


def _information(directions: Directions, tilts: np.ndarray, threads: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return log Z of the tilts, and their information: the divergence from the null distribution in nats."""

    def tilt_chunk(chunk: slice) -> tuple[np.ndarray, np.ndarray]:
        logs, tilted, log_norms = _tilted(directions, tilts[chunk])
        return log_norms, np.einsum("knm,knm->k", tilted, logs) - log_norms

    parts = list(_chunks(tilt_chunk, len(tilts), directions.probabilities.size, threads))
    log_norms, information = (np.concatenate(part) for part in zip(*parts, strict=True))
    return log_norms, information


def _tilted(directions: Directions, tilts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """<b, h>, shape (tilts, n, m), the tilted predictions, and log Z, shape (tilts,)."""
    p = directions.probabilities
    logs = linalg.matmul(tilts, directions.values.T).reshape(-1, *p.shape)
    most = logs.max(axis=2, keepdims=True)
    tilted = p * np.exp(logs - most)
    sums = tilted.sum(axis=2, keepdims=True)
    tilted /= sums
    return logs, tilted, (np.log(sums) + most).sum(axis=(1, 2))


def _chunks(work: Callable[[slice], T], size: int, numbers: int, threads: int | None) -> Iterable[T]:
    """Yield `work` for consecutive chunks of range(size), in order; threads share the chunks."""
    step = max(1, CHUNK_BYTES // (8 * numbers))
    pieces = [slice(begin, min(size, begin + step)) for begin in range(0, size, step)]
    if not threads or threads == 1 or len(pieces) == 1:
        yield from map(work, pieces)
        return
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(pieces), threads):  # limits the results in memory
            yield from pool.map(work, pieces[begin : begin + threads])


def _generator(seed: int, replicate: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed, STREAM + replicate], dtype=np.uint64)))


def beyond_draws(
    null_law: NullLaw,
    statistic: float,
    draws: np.ndarray,
    *,
    events: Callable[[], float],
    law: Callable[[], ChiSquareMixture | None],
    tail: Tail | None = None,
) -> NullLaw:
    """Return `null_law` unless the statistic is above all draws; otherwise extend it by what is known of the tail.

    In this order: tilted draws, exact at every level, if they determine the p-value well; the limit distribution, if no
    draws contradict it (for rare events it is wrong by orders of magnitude); tilted draws as an upper limit; 1 / (R +
    1). The test keeps its level, because both p-values are below the smallest p-value of draws. `statistic`, draws,
    those of the tail and the limit distribution minus its mean have the same units; `events` is about their number.
    """
    assert null_law.n_resamples is not None
    if null_law.pvalue != 1 / (1 + null_law.n_resamples):
        return null_law
    if tail is not None and tail.own_share < 0.5 and tail.relative_error <= KNOWN:
        return _with(null_law, tail.log_pvalue, "tilted draws", tail.description)
    limit = law() if len(draws) >= FEWEST_DRAWS and events() >= (EVENTS if tail is None else EVENTS_WITH_TAIL) else None
    if limit is not None and agree(draws, limit):
        log_pvalue = float(limit.logsf(statistic + limit.mean))
        if tail is None or (log_pvalue < tail.log_pvalue and tail_agrees(tail, limit, needs_all=events() < EVENTS)):
            return _with(
                null_law, log_pvalue, "law", "beyond them the limit law of many samples, which they do not contradict"
            )
    if tail is None:
        return null_law
    return _with(null_law, tail.log_pvalue, "tilted draws", tail.description)


def _with(null_law: NullLaw, log_pvalue: float, source: str, explanation: str) -> NullLaw:
    if log_pvalue >= null_law.log_pvalue:
        return null_law
    description = f"{null_law.description}; {explanation}"
    return replace(null_law, log_pvalue=log_pvalue, pvalue=None, pvalue_from=source, description=description)


def agree(draws: np.ndarray, law: ChiSquareMixture) -> bool:
    """Return whether variance and upper quantiles of the draws are compatible with the limit distribution."""
    count = len(draws)
    spread = math.sqrt((law.kurtosis + 2) / count) * -float(scipy.special.ndtri(RISK / 2))
    if abs(float(np.mean(draws**2)) / law.var - 1) > spread:
        return False
    for level in LEVELS:
        low, high = scipy.special.bdtrik([RISK / 2, 1 - RISK / 2], count, level)
        beyond = int(np.sum(draws > law.isf(level) - law.mean))
        if not math.floor(low) <= beyond <= math.ceil(high):
            return False
    return True


def tail_agrees(tail: Tail, law: ChiSquareMixture, *, needs_all: bool) -> bool:
    """Return whether tilted draws agree with the tail of the limit at known, or (`needs_all`) at all levels."""
    for level in TAIL_LEVELS:
        estimate, error = tail.estimate(float(law.isf(level) - law.mean))
        if error > TAIL_ERROR:
            if needs_all:
                return False
        elif abs(math.log(estimate / level)) > math.log(TAIL_FACTOR) + 2 * error:
            return False
    return True
