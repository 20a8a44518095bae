"""The calibration mean embedding (CME) test: are the differences at a few test locations 0?

The way of the data: test locations and their mean differences (`kcalib.estimators.ucme`) -> a covariance of these, of
the samples (`_sample_covariance`) or of the predictions (`_covariance_given_predictions`) -> the quadratic form
that both give (`Whitening`) -> its rank among those of drawn labels (`_drawn_differences`), or the logarithm of its
tail (`kcalib.inference.log_tails`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kcalib import _native, _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import OptionError, check_choice, check_integer, check_seed
from kcalib._backend.random import drawn_labels
from kcalib._backend.records import dataclass
from kcalib._backend.threads import sweeping
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs.dispatch import Operator, like
from kcalib._pairs.problem import PairProblem, Side
from kcalib.estimators.skce import PairOptions, describe
from kcalib.estimators.ucme import check_locations, locations_for, mean_differences, mean_square
from kcalib.inference import events
from kcalib.inference.events import warn_if_few
from kcalib.inference.log_tails import log_sf_chi2, log_sf_f
from kcalib.inference.quadratic import MAX_RESAMPLES, N_RESAMPLES
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult

REFERENCES = ("draws", "conditional", "F", "chi2")
GIVEN_PREDICTIONS = ("draws", "conditional")
BLOCK_ELEMENTS = 2**20  # of a dense block of samples
DRAWS, DRAWS_FOR_A_PAIR = 20_000, 200  # of targets for a covariance: at least so many, and for each pair of locations
DRAWS_AT_ONCE = 2**13
LABELS_AT_ONCE, SUMS_AT_ONCE = 2**24, 2**20  # that are drawn, and of them
# Directions whose share of the largest eigenvalue is below this have lost their digits: eigenvalues are off by the
# rounding of the entries (float32: 1e-7 and up) times the root of that share.
RANK_CUT = {"float64": 1e-10, "float32": 1e-7}
CONSTANT = {"float64": 1e-12, "float32": 1e-5}  # relative spread below which values are the same

TIE = 1e-6  # relative; draws without an error are the same but for rounding
NULL_DRAWS = 2**40  # replicates from here on are null draws, those before make covariances


@dataclass(frozen=True, eq=False)
class CME(CalibrationMethod):
    r"""Mean kernel values at J test locations, beside those that the predictions promise.

    In linear time, for many samples for each test location; it is the UCME (`kcalib.ucme`) that is tested.

    Parameters
    ----------
    n_locations : int, optional
        Number J of random test locations, by default 10: predictions of samples, each with a label drawn from it, by
        the ``seed`` of `kcalib.calibration_test`.
    test_predictions : array_like, shape (J, m), or Distribution, optional
        Given locations in place of random ones: their predictions.
    test_labels : array_like, shape (J,), optional
        The labels of given locations, or their targets.
    reference : {"draws", "conditional", "F", "chi2"}
        The covariance of the mean values, and the law. With :math:`z_i` the J values of sample i and :math:`\bar z`
        their mean, the statistic is :math:`Q = n \bar z^\top S^{-1} \bar z`. "draws" and "conditional" take for S the
        mean covariance of z under calibration given the predictions, which has no sampling error, and also serve for
        n <= J. For distributions it comes from at least 20,000 draws of targets, in all, with the seed. "draws" refers
        Q to that of labels (or targets) drawn from the predictions, and has its level for every n and every prediction;
        "conditional" to the chi-square law. "F" takes for S the covariance of the samples (ddof 1) and refers
        (n - J) / (J (n - 1)) Q to F(J, n - J), which is exact for normal z. "chi2" refers the same Q to the
        chi-square law with J degrees of freedom, as in the paper: only for n much larger than J.
    n_resamples : int
        Number R of draws, at least 1, for "draws": the p-value is (1 + number of draws at least as large) / (1 + R).
    from_logits : bool
        `test_predictions` holds logits.

    Warns
    -----
    AntiConservativeWarning
        By all but "draws", if the predictions leave too few events open for the law.

    Notes
    -----
    [1]_, appendix C.3; [2]_ for "F". Time O(n J (m + J)), of "draws" O(R n (m + J)) beside it; memory O(n (m + J)).

    "conditional", "F" and "chi2" need z near normal, in all directions: few samples, rare classes, confident
    predictions, and locations near each other make them reject too often, "F" and "chi2" for binary problems with 10
    locations several times as often as their level says even at n = 250.

    If S has rank r < J to rounding (duplicated locations, say), its pseudo-inverse takes the place of the inverse and r
    that of J. If all z are 0 (predictions that are one-hot and right, say), the statistic is 0 and the p-value 1. "F"
    and "chi2" raise a ValueError if n <= J, or if some direction has no variance among the samples but a mean other
    than 0.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.
    .. [2] H. Hotelling. The generalization of Student's ratio. Ann. Math. Statist. 2, 1931.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> method = kcalib.methods.CME(test_predictions=[0.2, 0.8], test_labels=[1, 1])
    >>> result = kcalib.calibration_test(y, p, method=method)
    >>> result.n_locations, result.pvalue > 0.05
    (2, True)
    """

    n_locations: int | None = None
    test_predictions: Any = None
    test_labels: Any = None
    reference: str = "draws"
    n_resamples: int = N_RESAMPLES
    from_logits: bool = False

    name: ClassVar[str] = "cme"

    def __post_init__(self) -> None:
        check_choice("reference", self.reference, REFERENCES)
        check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)
        if self.reference != "draws" and self.n_resamples != N_RESAMPLES:
            raise OptionError(
                "n_resamples", f"is {self.n_resamples}, but reference={self.reference!r} draws nothing; leave it out"
            )
        check_locations(self.n_locations, self.test_predictions, self.test_labels)
        check_from_logits(self.from_logits, self.test_predictions)

    def test(self, task: Task, seed: int | None) -> CalibrationTestResult:
        if self.reference != "draws":
            needed = events.LOCATIONS if self.reference == "conditional" else events.LOCATIONS_OF_RESIDUALS
            warn_if_few(task, f"method='cme' with reference={self.reference!r}", needed)
        found = self.outcome(task.data, task.options, check_seed(seed))
        law = {
            "draws": f"{found.n_resamples} draws from the predictions",
            "F": f"Hotelling's F law with {found.rank} and {task.n - found.rank} degrees of freedom",
            "chi2": f"asymptotic chi-square law with {found.rank} degrees of freedom",
            "conditional": f"chi-square law with {found.rank} degrees of freedom, covariance of the predictions",
        }[self.reference]
        return task.result(
            method=self.name,
            statistic=found.statistic,
            log_pvalue=found.log_pvalue,
            pvalue=found.pvalue,
            estimate=found.estimate,
            null_law=law,
            estimator="UCME",
            n_locations=found.n_locations,
            n_resamples=found.n_resamples,
            seed=found.seed,
            **found.description,
        )

    def outcome(self, data: Data, options: PairOptions, seed: int) -> CMEOutcome:
        """The test of checked data; locations, and draws from distributions, come from `seed`."""
        given = self.test_predictions is not None
        locations = locations_for(
            data,
            self.n_locations,
            self.test_predictions,
            self.test_labels,
            None if given else seed,
            self.from_logits,
        )
        if self.reference not in GIVEN_PREDICTIONS:
            _check_sizes(data.n, locations.data.n, self.reference)
        packed = _packing.pack_locations(
            data, locations.data, options.kernel, options.target_kernel, threads=options.threads
        )
        operator = options.operator_for(packed.problem)
        differences = mean_differences(operator)
        given_predictions = self.reference in GIVEN_PREDICTIONS
        if given_predictions:
            covariance = _covariance_given_predictions(data, locations.data, packed, operator, seed)
        else:
            covariance = _sample_covariance(data.n, operator)
        whitening = Whitening.of(covariance, data.dtype)
        value = float(whitening.forms(differences[:, None], data.n)[0])
        if not given_predictions and math.isinf(value):
            raise ValueError(
                f"the values at test location {whitening.worst(differences)} are the same, and not 0, for all {data.n} "
                f"samples: their variance cannot be estimated for reference={self.reference!r}; use "
                "reference='conditional', more samples, or a location at a more frequent label"
            )
        if self.reference == "draws":
            count = int(self.n_resamples)
            drawn = _drawn_differences(data, locations.data, packed, operator, count, seed)
            as_large = int(np.sum(whitening.forms(drawn, data.n) >= value * (1 - TIE)))
            statistic, pvalue = value, (1 + as_large) / (1 + count)
            log_pvalue = math.log(pvalue)
        else:
            statistic, log_pvalue = _referred(value, whitening.rank, data.n, self.reference)
            pvalue = math.exp(log_pvalue)
        is_random = covariance.is_drawn or self.reference == "draws"
        return CMEOutcome(
            statistic=statistic,
            pvalue=pvalue,
            log_pvalue=log_pvalue,
            estimate=mean_square(differences),
            reference=self.reference,
            rank=whitening.rank,
            n_resamples=int(self.n_resamples) if self.reference == "draws" else None,
            **(locations.described() | ({"seed": seed} if is_random else {})),
            description=describe(data, packed, operator),
        )


@dataclass(frozen=True)
class CMEOutcome:
    """What the test found."""

    statistic: float  # referred to F or chi-square; inf where the variance is 0 and the mean is not
    pvalue: float
    log_pvalue: float  # of use where pvalue underflows to 0
    estimate: float  # `kcalib.ucme` at the same locations
    reference: str  # one of REFERENCES
    rank: int  # degrees of freedom: J, or fewer where locations are linearly dependent
    n_resamples: int | None  # draws
    n_locations: int
    test_predictions: tuple[tuple[float, ...], ...]
    test_labels: tuple[Any, ...]
    seed: int | None  # of random locations and draws; None where nothing was random
    description: dict[str, Any]  # `kcalib.estimators.skce.describe`


def check_from_logits(from_logits: bool, test_predictions: Any) -> None:
    """Refuse a word on test predictions where none are given."""
    if from_logits and test_predictions is None:
        raise ValueError("`from_logits` is True, but no `test_predictions` are given; it is for these, leave it out")


def _check_sizes(n: int, n_locations: int, reference: str) -> None:
    if n <= n_locations:
        remedy = f"use fewer (n_locations below {n}), or " if n > 1 else "use "
        raise ValueError(
            f"reference={reference!r} needs more samples than test locations, `y_true` has {n} for "
            f"{n_locations} locations; {remedy}reference='conditional'"
        )


class Covariance(NamedTuple):
    """The covariance of the values of one sample at the locations."""

    matrix: np.ndarray  # shape: (J, J)
    size: np.ndarray  # largest absolute value at each location, shape: (J,)
    is_drawn: bool = False  # whether it comes from draws


def _sample_covariance(n: int, operator: Operator) -> Covariance:
    """Covariance (ddof 1) of the samples' values at the locations, and the size of the values."""
    blocks = [block for _, block in _blocks(operator)]
    xp = arrays.namespace(blocks[0])
    z = xp.concatenate(blocks, axis=1)
    deviations = z - xp.mean(z, axis=1, keepdims=True)
    return Covariance(arrays.to_host(deviations @ deviations.T / (n - 1)), _largest(z))


@singledispatch
def _covariance_given_predictions(
    data: Data, locations: Data, packed: Packed, operator: Operator, seed: int
) -> Covariance:
    """Mean covariance of the values if targets are drawn from the predictions, and the size of the values.

    From draws; their mean is 0.
    """
    n_locations = operator.problem.left.points.shape[0]
    count = -(-max(DRAWS, DRAWS_FOR_A_PAIR * n_locations**2) // data.n)
    matrix, size = np.zeros((n_locations, n_locations)), np.zeros(n_locations)
    at_once = min(count, max(1, DRAWS_AT_ONCE // data.n))  # of each sample
    rows = arrays.like(np.tile(np.arange(data.n), at_once), data.reference)
    repeated, there = data.take(rows), packed.taken(rows)
    count = -(-count // at_once) * at_once
    for r in range(count // at_once):
        drawn = there.with_targets(repeated.draw(seed, r))
        again = like(operator, drawn.problem)
        for _, z in _blocks(again):
            matrix += arrays.to_host(z @ z.T)
            size = np.maximum(size, _largest(z))
    return Covariance(matrix / (count * data.n), size, is_drawn=True)


@_covariance_given_predictions.register
def _(data: Classification, locations: Classification, packed: Packed, operator: Operator, seed: int) -> Covariance:
    """In closed form, from the probabilities of all labels.

    Given p_i the value at location j is k(p_j, p_i) (A_jy - sum_c p_ic A_jc) with probability p_iy, A = M[y_T].
    """
    table, groups = _values_of_classes(locations, packed)
    members = (groups[:, None] == np.arange(table.shape[1])).astype(np.float64)
    table = np.append(table, np.zeros((len(table), 1)), axis=1)
    largest = np.max(np.abs(table), axis=1)
    covariance, size = np.zeros((len(table), len(table))), np.zeros(len(table))
    probabilities = arrays.where_computed(data.probabilities)
    xp = arrays.namespace(probabilities)
    values, members = (arrays.like(a, probabilities) for a in (table, members))
    for rows, kernel in _blocks(_of_kernel_alone(packed, operator), table.shape[1]):
        p = probabilities[rows, :].astype(np.float64) @ members
        # What rounding, of float32 above all, left of a row's sum is a class of its own, as unlikely as it is.
        p = xp.concatenate([p, xp.maximum(0.0, 1.0 - xp.sum(p, axis=1, keepdims=True))], axis=1)
        deviations = kernel[:, :, None] * (values[:, None, :] - (values @ p.T)[:, :, None])
        weighted = (deviations * xp.sqrt(p)).reshape(len(table), -1)
        covariance += arrays.to_host(weighted @ weighted.T)
        size = np.maximum(size, _largest(kernel) * largest)
    return Covariance(covariance / data.n, size)


def _largest(z: Array) -> np.ndarray:
    """Absolute value of each row, shape (J,)."""
    xp = arrays.namespace(z)
    return arrays.to_host(xp.max(xp.abs(z), axis=1))


def _blocks(operator: Operator, width: int = 1) -> Iterator[tuple[slice, Array]]:
    """Columns of H, a block of samples at a time; small enough for `width` numbers in place of each entry."""
    n_locations, n = (side.points.shape[0] for side in (operator.problem.left, operator.problem.columns))
    step = max(1, BLOCK_ELEMENTS // (n_locations * width))
    for begin in range(0, n, step):
        rows = slice(begin, min(n, begin + step))
        yield rows, arrays.where_computed(operator.tile(slice(0, n_locations), rows)).astype(np.float64)


def _of_kernel_alone(packed: Packed, operator: Operator) -> Operator:
    """k(p_j, p_i): the same problem with marks of 1."""
    left, right = (Side(s.points, _ones(s.points)) for s in (packed.problem.left, packed.problem.columns))
    problem = PairProblem(left, right, packed.problem.kernel)  # of class probabilities
    return like(operator, problem)


def _ones(points: Array) -> Array:
    xp = arrays.namespace(points)
    return xp.ones((points.shape[0], 1), dtype=points.dtype, device=arrays.device(points))


@dataclass(frozen=True)
class Whitening:
    """d -> n d^T S^+ d."""

    scale: np.ndarray  # standard deviation at each location
    variable: np.ndarray  # whether there is any, shape (J,)
    limit: np.ndarray  # size of what is 0 but for rounding where there is none
    roots: np.ndarray  # of S^+ at the variable locations, in units of `scale`, shape (J', rank)

    @classmethod
    def of(cls, covariance: Covariance, dtype: str) -> Whitening:
        scale, limit = np.sqrt(np.diag(covariance.matrix)), CONSTANT[dtype] * covariance.size
        variable = scale > limit
        roots = np.empty((0, 0))
        if variable.any():
            unit = covariance.matrix[np.ix_(variable, variable)] / np.outer(scale[variable], scale[variable])
            values, vectors = np.linalg.eigh(unit)
            kept = values > RANK_CUT[dtype] * values[-1]
            roots = vectors[:, kept] / np.sqrt(values[kept])
        return cls(scale, variable, limit, roots)

    @property
    def rank(self) -> int:
        return self.roots.shape[1] if len(self.roots) else int(np.sum(self.variable))

    def forms(self, differences: np.ndarray, n: int) -> np.ndarray:
        """Of columns of `differences`, shape (J, count); infinite where one that is not 0 has no variance."""
        excluded = np.any(np.abs(differences[~self.variable]) > self.limit[~self.variable, None], axis=0)
        units = differences[self.variable] / self.scale[self.variable, None]
        found = n * np.sum((self.roots.T @ units) ** 2, axis=0) if len(units) else np.zeros(differences.shape[1])
        return np.where(excluded, math.inf, found)

    def worst(self, differences: np.ndarray) -> int:
        """The location with the largest of the differences, shape (J,), that S gives no variance."""
        return int(np.argmax(np.where(self.variable, -1.0, np.abs(differences))))


@singledispatch
def _drawn_differences(
    data: Data, locations: Data, packed: Packed, operator: Operator, count: int, seed: int
) -> np.ndarray:
    """Mean differences at the locations of targets drawn from the predictions, shape (J, count)."""
    at_once = min(count, max(1, DRAWS_AT_ONCE // data.n))
    rows = arrays.like(np.tile(np.arange(data.n), at_once), data.reference)
    repeated, there = data.take(rows), packed.taken(rows)
    parts = []
    for r in range(-(-count // at_once)):
        drawn = there.with_targets(repeated.draw(seed, NULL_DRAWS + r))
        again = like(operator, drawn.problem)
        blocks = [block for _, block in _blocks(again)]
        z = arrays.namespace(blocks[0]).concatenate(blocks, axis=1)
        parts.append(arrays.to_host(z.reshape(len(z), at_once, data.n).mean(axis=2)))
    return np.concatenate(parts, axis=1)[:, :count]


@_drawn_differences.register
def _(
    data: Classification, locations: Classification, packed: Packed, operator: Operator, count: int, seed: int
) -> np.ndarray:
    """Beside those of the most probable labels, so that nothing is lost where all others are improbable."""
    values, groups = _values_of_classes(locations, packed)
    p = arrays.where_computed(data.probabilities)
    xp = arrays.namespace(p)
    blocks = [kernel for _, kernel in _blocks(_of_kernel_alone(packed, operator))]
    kernel = arrays.beside(xp.concatenate(blocks, axis=1), p)
    values, of_class = arrays.like(values, p), arrays.like(groups, p)
    likely = xp.argmax(p, axis=1)
    top = of_class[likely]
    improbable = xp.where(xp.arange(data.m)[None, :] == likely[:, None], 0.0, p)
    # A_jt - sum_c p_c A_jc at the most probable label t.
    members = (of_class[:, None] == xp.arange(values.shape[1])[None, :]).astype(np.float64)
    at_top = values[:, top]
    promised = at_top * xp.sum(improbable, axis=1)[None, :] - values @ (improbable @ members).T
    constant = xp.sum(kernel * promised, axis=1)
    if arrays.is_host(p):
        threads = operator.threads
        at_once = max(1, min(LABELS_AT_ONCE // data.n, SUMS_AT_ONCE // len(values)))
        changes = _Changes.of(kernel, values[:, of_class], likely)
        batches = drawn_labels(p, count, seed, at_once=at_once, threads=threads)
        return (
            np.concatenate([constant[:, None] + changes.sums(labels, threads) for labels in batches], axis=1) / data.n
        )
    found = []
    for labels in drawn_labels(p, count, seed, at_once=max(1, BLOCK_ELEMENTS // data.n)):
        drawn = of_class[labels]
        changed = drawn != top[:, None]
        sums = constant[:, None] - (kernel * at_top) @ changed.astype(np.float64)
        for group in range(values.shape[1]):
            chosen = ((drawn == group) & changed).astype(np.float64)
            sums = sums + values[:, group][:, None] * (kernel @ chosen)
        found.append(arrays.to_host(sums) / data.n)
    return np.concatenate(found, axis=1)


class _Changes(NamedTuple):
    """What labels other than the most probable ones change at the locations; on the host."""

    kernel: np.ndarray  # (n, width), width a multiple of 8 that is at least J
    values: np.ndarray  # (m, width)
    likely: np.ndarray  # int32, (n,)
    n_locations: int

    @classmethod
    def of(cls, kernel: np.ndarray, values: np.ndarray, likely: np.ndarray) -> _Changes:
        """Of the kernel's values (J, n) and those of the classes (J, m)."""
        n_locations = len(values)
        rows, columns = (np.zeros((part.shape[1], -(-n_locations // 8) * 8)) for part in (kernel, values))
        rows[:, :n_locations], columns[:, :n_locations] = kernel.T, values.T
        return cls(rows, columns, likely.astype(np.int32), n_locations)

    def sums(self, labels: np.ndarray, threads: int | None) -> np.ndarray:
        """Of labels (n, draws): shape (J, draws)."""
        with sweeping(threads) as sweep:
            return _native.changed_sums(self.kernel, self.values, self.likely, labels, sweep)[:, : self.n_locations].T


def _values_of_classes(locations: Classification, packed: Packed) -> tuple[np.ndarray, np.ndarray]:
    """A = M[y_T], a column for each group of classes that no location tells apart, and the group of each class.

    At most J + 1 groups for the Kronecker delta.
    """
    table = (arrays.to_host(locations.labels)[:, None] == np.arange(locations.m)).astype(np.float64)
    if packed.target.root is not None:
        table = table @ packed.target.root @ packed.target.root.T
    values, groups = np.unique(table, axis=1, return_inverse=True)
    return values, groups.reshape(-1)


def _referred(value: float, rank: int, n: int, reference: str) -> tuple[float, float]:
    """The statistic and the logarithm of its p-value."""
    if math.isinf(value) or rank == 0:
        return value, -value
    if reference == "F":
        statistic = (n - rank) / (rank * (n - 1)) * value
        return statistic, log_sf_f(statistic, rank, n - rank)
    return value, log_sf_chi2(value, rank)
