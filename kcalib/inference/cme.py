"""The calibration mean embedding (CME) test: are the differences at a few test locations 0?

The way of the data: test locations and their mean differences (`kcalib.estimators.ucme`) -> a covariance of these, of
the samples (`_sample_covariance`) or of the predictions (`_covariance_given_predictions`) -> the quadratic form
that both give (`_quadratic_form`) -> the logarithm of its tail (`log_sf_f`, `log_sf_chi2`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice, check_seed
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs.dispatch import Operator, operator_for
from kcalib._pairs.problem import PairProblem, Side
from kcalib.estimators.skce import PairOptions, describe
from kcalib.estimators.ucme import check_locations, locations_for, mean_differences, mean_square
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult

REFERENCES = ("F", "chi2", "conditional")
BLOCK_ELEMENTS = 2**20  # of a dense block of samples
DRAWS, DRAWS_FOR_A_PAIR = 20_000, 200  # of targets for a covariance: at least so many, and for each pair of locations
DRAWS_AT_ONCE = 2**13
# Directions whose share of the largest eigenvalue is below this have lost their digits: eigenvalues are off by the
# rounding of the entries (float32: 1e-7 and up) times the root of that share.
RANK_CUT = {"float64": 1e-10, "float32": 1e-7}
CONSTANT = {"float64": 1e-12, "float32": 1e-5}  # relative spread below which values are the same

SMALLEST_DIRECT = 1e-280  # tails below come from continued fractions
MAX_TERMS = 1_000_000


@dataclass(frozen=True, eq=False)
class CME(CalibrationMethod):
    r"""The chi-square law of mean kernel values at J test locations, beside those that the predictions promise.

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
    reference : {"conditional", "F", "chi2"}
        The covariance of the mean values, and the law. With :math:`z_i` the J values of sample i and :math:`\bar z`
        their mean, the statistic is :math:`Q = n \bar z^\top S^{-1} \bar z`. "conditional" takes for S the mean
        covariance of z under calibration given the predictions, which has no sampling error, and the chi-square law; it
        also serves for n <= J. For distributions it comes from at least 20,000 draws of targets, in all, with the seed,
        and its sampling error is that of as many samples. "F" takes for S the covariance of the samples (ddof 1) and
        refers (n - J) / (J (n - 1)) Q to F(J, n - J), which is exact for normal z. "chi2" refers the same Q to the
        chi-square law with J degrees of freedom, as in the paper: only for n much larger than J.
    from_logits : bool
        `test_predictions` holds logits.

    Notes
    -----
    [1]_, appendix C.3; [2]_ for "F". Time O(n J (m + J)), memory O(n (m + J)).

    "F" and "chi2" need z near normal, in all directions: few samples, rare classes, and locations near each other make
    them reject too often, for binary problems with 10 locations several times as often as their level says even at
    n = 250. "conditional" keeps its level there.

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
    reference: str = "conditional"
    from_logits: bool = False

    name: ClassVar[str] = "cme"

    def __post_init__(self) -> None:
        check_choice("reference", self.reference, REFERENCES)
        check_locations(self.n_locations, self.test_predictions, self.test_labels)
        check_from_logits(self.from_logits, self.test_predictions)

    def test(self, task: Task, seed: int | None) -> CalibrationTestResult:
        found = self.outcome(task.data, task.options, check_seed(seed))
        law = {
            "F": f"Hotelling's F law with {found.rank} and {task.n - found.rank} degrees of freedom",
            "chi2": f"asymptotic chi-square law with {found.rank} degrees of freedom",
            "conditional": f"chi-square law with {found.rank} degrees of freedom, covariance of the predictions",
        }[self.reference]
        return task.result(
            method=self.name,
            statistic=found.statistic,
            log_pvalue=found.log_pvalue,
            estimate=found.estimate,
            null_law=law,
            estimator="UCME",
            n_locations=found.n_locations,
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
        if self.reference != "conditional":
            _check_sizes(data.n, locations.data.n, self.reference)
        packed = _packing.pack_locations(
            data, locations.data, options.kernel, options.target_kernel, threads=options.threads
        )
        operator = operator_for(packed.problem, operator=options.operator, threads=options.threads)
        differences = mean_differences(operator)
        if self.reference == "conditional":
            covariance = _covariance_given_predictions(data, locations.data, packed, operator, seed)
        else:
            covariance = _sample_covariance(data.n, operator)
        form = _quadratic_form(differences, covariance, data.n, data.dtype)
        if self.reference != "conditional" and math.isinf(form.value):
            raise ValueError(
                f"the values at test location {form.worst} are the same, and not 0, for all {data.n} samples: their "
                f"variance cannot be estimated for reference={self.reference!r}; use reference='conditional', more "
                "samples, or a location at a more frequent label"
            )
        statistic, log_pvalue = _referred(form, data.n, self.reference)
        return CMEOutcome(
            statistic=statistic,
            pvalue=math.exp(log_pvalue),
            log_pvalue=log_pvalue,
            estimate=mean_square(differences),
            reference=self.reference,
            rank=form.rank,
            **(locations.described() | ({"seed": seed} if covariance.is_drawn else {})),
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
        again = operator_for(drawn.problem, operator=operator.name, threads=operator.threads)
        for _, z in _blocks(again):
            matrix += arrays.to_host(z @ z.T)
            size = np.maximum(size, _largest(z))
    return Covariance(matrix / (count * data.n), size, is_drawn=True)


@_covariance_given_predictions.register
def _(data: Classification, locations: Classification, packed: Packed, operator: Operator, seed: int) -> Covariance:
    """In closed form, from the probabilities of all labels.

    Given p_i the value at location j is k(p_j, p_i) (A_jy - sum_c p_ic A_jc) with probability p_iy, A = M[y_T].
    """
    table = (arrays.to_host(locations.labels)[:, None] == np.arange(data.m)).astype(np.float64)
    if packed.target.root is not None:
        table = table @ packed.target.root @ packed.target.root.T
    # Classes that no location tells apart count as one: at most J + 1 of them for the Kronecker delta.
    table, groups = np.unique(table, axis=1, return_inverse=True)
    members = (groups.reshape(-1, 1) == np.arange(table.shape[1])).astype(np.float64)
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
    return operator_for(problem, operator=operator.name, threads=operator.threads)


def _ones(points: Array) -> Array:
    xp = arrays.namespace(points)
    return xp.ones((points.shape[0], 1), dtype=points.dtype, device=arrays.device(points))


class Form(NamedTuple):
    """n d^T S^+ d, the rank of S, and the location with the largest difference that S gives no variance."""

    value: float
    rank: int
    worst: int


def _quadratic_form(differences: np.ndarray, covariance: Covariance, n: int, dtype: str) -> Form:
    """Infinite where a difference that is not 0 has no variance."""
    scale = np.sqrt(np.diag(covariance.matrix))
    constant = scale <= CONSTANT[dtype] * covariance.size
    worst = int(np.argmax(np.where(constant, np.abs(differences), -1.0)))
    if np.any(np.abs(differences[constant]) > CONSTANT[dtype] * covariance.size[constant]):
        return Form(math.inf, int(np.sum(~constant)), worst)
    if constant.all():
        return Form(0.0, 0, worst)
    d, scale = differences[~constant] / scale[~constant], scale[~constant]
    values, vectors = np.linalg.eigh(covariance.matrix[np.ix_(~constant, ~constant)] / np.outer(scale, scale))
    kept = values > RANK_CUT[dtype] * values[-1]
    projections = vectors.T @ d
    return Form(float(n * np.sum(projections[kept] ** 2 / values[kept])), int(np.sum(kept)), worst)


def _referred(form: Form, n: int, reference: str) -> tuple[float, float]:
    """The statistic and the logarithm of its p-value."""
    r = form.rank
    if math.isinf(form.value) or r == 0:
        return form.value, -form.value
    if reference == "F":
        statistic = (n - r) / (r * (n - 1)) * form.value
        return statistic, log_sf_f(statistic, r, n - r)
    return form.value, log_sf_chi2(form.value, r)


def log_sf_f(x: float, d1: float, d2: float) -> float:
    """log P(F(d1, d2) > x), x >= 0, also where the probability underflows.

    The tail is the regularised incomplete beta function I_w(d2/2, d1/2), w = d2 / (d2 + d1 x).
    """
    a, b, odds = d2 / 2, d1 / 2, d1 * x / d2
    direct = float(scipy.special.fdtrc(d1, d2, x))
    if direct > SMALLEST_DIRECT:
        return math.log(direct)
    w = 1 / (1 + odds)
    prefactor = -a * math.log1p(odds) + b * math.log(odds * w) - math.log(a) - float(scipy.special.betaln(a, b))
    return prefactor + math.log(_continued_fraction(lambda k: (1.0, _beta_coefficient(k, a, b, w))))


def _beta_coefficient(k: int, a: float, b: float, w: float) -> float:
    """Numerator k of the continued fraction of I_w(a, b) (DLMF 8.17.22)."""
    if k == 0:
        return 1.0
    h = k // 2
    if k % 2 == 0:
        return h * (b - h) * w / ((a + 2 * h - 1) * (a + 2 * h))
    return -(a + h) * (a + b + h) * w / ((a + 2 * h) * (a + 2 * h + 1))


def log_sf_chi2(x: float, d: float) -> float:
    """log P(chi2_d > x), x >= 0, also where the probability underflows."""
    direct = float(scipy.special.chdtrc(d, x))
    if direct > SMALLEST_DIRECT:
        return math.log(direct)
    a, y = d / 2, x / 2
    fraction = _continued_fraction(lambda k: (y + 1 - a + 2 * k, k * (a - k) if k else 1.0))  # DLMF 8.9.2, even part
    return a * math.log(y) - y - math.lgamma(a) + math.log(fraction)


def _continued_fraction(term: Callable[[int], tuple[float, float]]) -> float:
    """a_0 / (b_0 + a_1 / (b_1 + ...)) for term(k) = (b_k, a_k) by Lentz's method."""
    b, a = term(0)
    value, c, d = a / b, math.inf, 1 / b
    for k in range(1, MAX_TERMS):
        b, a = term(k)
        d = 1 / (b + a * d)
        c = b + a / c
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
