"""The calibration mean embedding (CME) test: are the mean differences at a few test locations 0?

Steps: mean differences at the test locations (`kcalib.estimators.ucme`); their covariance, of the samples or of the
predictions (`kcalib.inference.location_moments`); the quadratic form of both (`Whitening`); its rank among drawn
labels, or the logarithm of its tail (`kcalib.laws._law`) if the predictions leave enough events uncertain
(`_open_events`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kcalib import _native, _packing
from kcalib._backend import arrays, linalg
from kcalib._backend.options import OptionError, check_choice, check_integer
from kcalib._backend.random import draw_label_batches
from kcalib._backend.threads import run_options
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs.backends.base import Backend
from kcalib.estimators.skce import PairOptions, describe
from kcalib.estimators.ucme import DEFAULT_LOCATIONS, check_locations, locations_for, mean_differences, mean_square
from kcalib.inference import events
from kcalib.inference.events import warn_if_few
from kcalib.inference.location_moments import (
    BLOCK_ELEMENTS,
    DRAWS_AT_ONCE,
    Covariance,
    blocks,
    covariance_given_predictions,
    fourth_moment,
    of_kernel_alone,
    sample_covariance,
    values_of_classes,
)
from kcalib.inference.quadratic import MAX_RESAMPLES, N_RESAMPLES
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.laws._law import log_sf_chi2, log_sf_f
from kcalib.results import CalibrationTestResult

LABELS_AT_ONCE, SUMS_AT_ONCE = 2**24, 2**20  # drawn labels in memory, and sums of them
NULL_DRAWS = 2**40  # replicates from here on are null draws, earlier ones estimate covariances

REFERENCES = ("auto", "draws", "conditional", "F", "chi2")
GIVEN_PREDICTIONS = ("auto", "draws", "conditional")
# Uncertain events from which "auto" uses the chi-square distribution: below 5 % error down to p-values of 1e-3, from
# terms of order 1 / n and from discreteness for equal predictions. With many locations, one of them may have few
# events and inflate the statistic; each needs ALONE at least.
ENOUGH_EVENTS, ALONE = 10_000, 2.5
# Directions whose share of the largest eigenvalue is below this have no significant digits: eigenvalues have the error
# of the entries (float32: at least 1e-7) times the root of that share.
RANK_CUT = {"float64": 1e-10, "float32": 1e-7}
CONSTANT = {"float64": 1e-12, "float32": 1e-5}  # relative spread below which values are equal

TIE = 1e-6  # relative; draws without an error differ by rounding only


@dataclass(frozen=True, eq=False)
class CME(CalibrationMethod):
    r"""Test the mean differences from predicted kernel values at J test locations, in linear time.

    The tested quantity is the UCME (`kcalib.ucme`). Use it with many samples for each test location.

    Parameters
    ----------
    locations : int or pair of array_like
        Number J of random test locations: predictions of samples, each with a label drawn from it by the ``seed`` of
        `kcalib.calibration_test`. Or a pair of labels and predictions, as in `kcalib.ucme`.
    reference : {"auto", "draws", "conditional", "F", "chi2"}
        The covariance of the mean values, and the null distribution. With :math:`z_i` the J values of sample i and
        :math:`\bar z` their mean, the statistic is :math:`Q = n \bar z^\top S^{-1} \bar z`. For "auto", "draws" and
        "conditional", S is the mean covariance of z under calibration given the predictions, which has no sampling
        error and allows n <= J. For distributions it comes from at least 20,000 draws of targets in total. "draws"
        compares Q with labels (or targets) drawn from the predictions, and is exact for every n and every prediction;
        "conditional" uses the chi-square distribution. "auto" is "conditional" for labels if the predictions leave at
        least 10,000 events uncertain (see Notes), otherwise "draws"; ``result.pvalue_from`` is "law" or "draws". "F"
        takes the sample covariance (ddof 1) for S, and F(J, n - J) for (n - J) / (J (n - 1)) Q, which is exact for
        normal z. "chi2" compares this Q with the chi-square distribution with J degrees of freedom, as published: only
        for n much larger than J.
    n_resamples : int, optional
        Number R of draws, at least 1: the p-value is (1 + number of draws at least as large) / (1 + R). If it is given,
        "auto" draws. Default: 999.
    from_logits : bool
        Whether given `locations` are logits.

    Warns
    -----
    AntiConservativeWarning
        For "conditional", "F" and "chi2", if the predictions leave too few events uncertain.

    Notes
    -----
    [1]_, appendix C.3; [2]_ for "F". Time O(n J (m + J)), plus O(R n (m + J)) for draws; memory O(n (m + J)).

    "conditional", "F" and "chi2" need z to be nearly normal in all directions: with few samples, rare classes,
    confident predictions, or locations near each other they reject too often. The user guide says how "auto" counts
    uncertain events, in "Formulas of intervals and tests". "F" and "chi2" raise a ValueError if n <= J.

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
    >>> method = kcalib.methods.CME(locations=([1, 1], [0.2, 0.8]))
    >>> result = kcalib.calibration_test(y, p, method=method)
    >>> result.n_locations, result.pvalue > 0.05
    (2, True)
    """

    locations: int | tuple[Any, Any] = DEFAULT_LOCATIONS
    reference: str = "auto"
    n_resamples: int | None = None
    from_logits: bool = False

    name: ClassVar[str] = "cme"

    def __post_init__(self) -> None:
        check_choice("reference", self.reference, REFERENCES)
        if self.n_resamples is not None:
            check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)
            if self.reference not in ("auto", "draws"):
                rule = f"but reference={self.reference!r} draws nothing; leave it out"
                raise OptionError("n_resamples", f"is {self.n_resamples}, {rule}")
        check_locations(self.locations)
        check_from_logits(self.from_logits, self.locations)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        if self.reference not in ("auto", "draws"):
            needed = events.LOCATIONS if self.reference == "conditional" else events.LOCATIONS_OF_RESIDUALS
            warn_if_few(task, f"method='cme' with reference={self.reference!r}", needed)
        outcome = self.outcome(task.data, task.options, seed)
        law = {
            "draws": f"{outcome.n_resamples} draws from the predictions",
            "F": f"Hotelling's F law with {outcome.rank} and {task.n - outcome.rank} degrees of freedom",
            "chi2": f"asymptotic chi-square law with {outcome.rank} degrees of freedom",
            "conditional": f"chi-square law with {outcome.rank} degrees of freedom, covariance of the predictions",
        }[outcome.reference]
        if outcome.open_events is not None:
            law += f", which leave about {outcome.open_events:.2g} uncertain events"
        return task.result(
            method=self.name,
            statistic=outcome.statistic,
            log_pvalue=outcome.log_pvalue,
            pvalue=outcome.pvalue,
            pvalue_from={"draws": "draws", "conditional": "law"}.get(outcome.reference),
            estimate=outcome.estimate,
            null_law=law,
            estimator="UCME",
            n_locations=outcome.n_locations,
            n_resamples=outcome.n_resamples,
            seed=outcome.seed,
            **outcome.description,
        )

    def outcome(self, data: Data, options: PairOptions, seed: int) -> CMEOutcome:
        """Test checked data; `seed` determines random locations and draws from distributions."""
        has_locations = isinstance(self.locations, tuple)
        locations = locations_for(data, self.locations, None if has_locations else seed, self.from_logits)
        if self.reference not in GIVEN_PREDICTIONS:
            _check_sizes(data.n, locations.data.n, self.reference)
        packed = _packing.pack_locations(
            data, locations.data, options.kernel, options.target_kernel, threads=options.threads
        )
        backend = options.backend_for(packed.problem)
        given_predictions = self.reference in GIVEN_PREDICTIONS
        differences = mean_differences(backend)
        if given_predictions:
            covariance = covariance_given_predictions(data, locations.data, packed, backend, seed)
        else:
            covariance = sample_covariance(data.n, backend)
        whitening = Whitening.of(covariance, data.dtype)
        value = float(whitening.forms(differences[:, None], data.n)[0])
        if not given_predictions and math.isinf(value):
            raise ValueError(
                f"the values at test location {whitening.worst(differences)} are the same, and not 0, for all {data.n} "
                f"samples: their variance cannot be estimated for reference={self.reference!r}; use "
                "reference='conditional', more samples, or a location at a more frequent label"
            )
        reference, open_events, count = self.reference, None, None
        if reference == "auto":
            if self.n_resamples is None and math.isfinite(value):
                open_events = _open_events(data, locations.data, packed, backend, whitening)
            reference = "conditional" if open_events is not None else "draws"
        if reference == "draws":
            count = N_RESAMPLES if self.n_resamples is None else int(self.n_resamples)
            differences_of_draws = drawn_differences(data, locations.data, packed, backend, count, seed)
            as_large = int(np.sum(whitening.forms(differences_of_draws, data.n) >= value * (1 - TIE)))
            statistic, pvalue = value, (1 + as_large) / (1 + count)
            log_pvalue = math.log(pvalue)
        else:
            statistic, log_pvalue = _compute_pvalue(value, whitening.rank, data.n, reference)
            pvalue = math.exp(log_pvalue)
        is_random = covariance.is_drawn or reference == "draws"
        return CMEOutcome(
            statistic=statistic,
            pvalue=pvalue,
            log_pvalue=log_pvalue,
            estimate=mean_square(differences),
            reference=reference,
            rank=whitening.rank,
            open_events=open_events,
            n_resamples=count,
            **(locations.describe() | ({"seed": seed} if is_random else {})),
            description=describe(data, packed, backend),
        )


@dataclass(frozen=True)
class CMEOutcome:
    """The result of the test, before it becomes a CalibrationTestResult."""

    statistic: float  # compared with F or chi-square; inf where the variance is 0 and the mean is not
    pvalue: float
    log_pvalue: float  # for p-values that underflow to 0
    estimate: float  # `kcalib.ucme` at the same locations
    reference: str  # one of REFERENCES; for "auto" the chosen one
    rank: int  # degrees of freedom: J, or fewer where locations are linearly dependent
    open_events: float | None  # where "auto" chose the limit distribution, else None
    n_resamples: int | None  # draws
    n_locations: int
    test_predictions: tuple[tuple[float, ...], ...]
    test_labels: tuple[Any, ...]
    seed: int | None  # of random locations and draws; None where nothing was random
    description: dict[str, Any]  # `kcalib.estimators.skce.describe`


def check_from_logits(from_logits: bool, locations: Any) -> None:
    """Refuse `from_logits` without given locations."""
    if from_logits and not isinstance(locations, tuple):
        raise ValueError("`from_logits` is True, but no `locations` are given; it is for these, leave it out")


def _check_sizes(n: int, n_locations: int, reference: str) -> None:
    if n <= n_locations:
        remedy = f"use fewer (locations below {n}), or " if n > 1 else "use "
        raise ValueError(
            f"reference={reference!r} needs more samples than test locations, `y_true` has {n} for "
            f"{n_locations} locations; {remedy}reference='conditional'"
        )


@dataclass(frozen=True)
class Whitening:
    """d -> n d^T S^+ d."""

    scale: np.ndarray  # standard deviation at each location
    variable: np.ndarray  # whether there is any variance, shape (J,)
    limit: np.ndarray  # rounding error of 0 where there is no variance
    roots: np.ndarray  # of S^+ at the variable locations, in units of `scale`, shape (J', rank)

    @classmethod
    def of(cls, covariance: Covariance, dtype: str) -> Whitening:
        scale, limit = np.sqrt(np.diag(covariance.matrix)), CONSTANT[dtype] * covariance.size
        variable = scale > limit
        roots = np.empty((0, 0))
        if variable.any():
            unit = covariance.matrix[np.ix_(variable, variable)] / np.outer(scale[variable], scale[variable])
            values, vectors = linalg.eigh(unit)
            significant = values > RANK_CUT[dtype] * values[-1]
            roots = vectors[:, significant] / np.sqrt(values[significant])
        return cls(scale, variable, limit, roots)

    @property
    def rank(self) -> int:
        return self.roots.shape[1] if len(self.roots) else int(np.sum(self.variable))

    def forms(self, differences: np.ndarray, n: int) -> np.ndarray:
        """Return the forms of columns of `differences`, shape (J, count); infinite if one without variance is not 0."""
        excluded = np.any(np.abs(differences[~self.variable]) > self.limit[~self.variable, None], axis=0)
        units = differences[self.variable] / self.scale[self.variable, None]
        statistics = n * np.sum((self.roots.T @ units) ** 2, axis=0) if len(units) else np.zeros(differences.shape[1])
        return np.where(excluded, math.inf, statistics)

    @property
    def directions(self) -> np.ndarray:
        """Return S^{-1/2} of values at the locations, shape (J, rank)."""
        factors = np.zeros((len(self.scale), self.rank))
        if self.variable.any():
            factors[self.variable] = self.roots / self.scale[self.variable, None]
        return factors

    def worst(self, differences: np.ndarray) -> int:
        """Return the location with the largest difference among those without variance."""
        return int(np.argmax(np.where(self.variable, -1.0, np.abs(differences))))


def _open_events(data: Data, locations: Data, packed: Packed, backend: Backend, whitening: Whitening) -> float | None:
    """Return about how many uncertain events determine the statistic, or None if too few for the limit distribution."""
    r = whitening.rank
    if data.n < ENOUGH_EVENTS:
        return None
    if r == 0:
        return float(data.n)
    fourth = fourth_moment(data, locations, packed, backend, whitening.directions)
    if fourth is None or ALONE * (fourth - r * (r + 2)) > data.n:
        return None
    n_open = data.n * min(1.0, r * (r + 2) / fourth)
    return n_open if n_open >= ENOUGH_EVENTS else None


def _compute_pvalue(value: float, rank: int, n: int, reference: str) -> tuple[float, float]:
    """Return the statistic and the logarithm of its p-value."""
    if math.isinf(value) or rank == 0:
        return value, -value
    if reference == "F":
        statistic = (n - rank) / (rank * (n - 1)) * value
        return statistic, log_sf_f(statistic, rank, n - rank)
    return value, log_sf_chi2(value, rank)


@singledispatch
def drawn_differences(
    data: Data, locations: Data, packed: Packed, backend: Backend, count: int, seed: int
) -> np.ndarray:
    """Return mean differences at the locations for targets drawn from the predictions, shape (J, count)."""
    at_once = min(count, max(1, DRAWS_AT_ONCE // data.n))
    rows = arrays.like(np.tile(np.arange(data.n), at_once), data.reference)
    repeated, packed_samples = data.take(rows), packed.take(rows)
    parts = []
    for r in range(-(-count // at_once)):
        packed_draw = packed_samples.with_targets(repeated.draw(seed, NULL_DRAWS + r))
        backend_of_draw = backend.like(packed_draw.problem)
        parts_of = [block for _, block in blocks(backend_of_draw)]
        z = arrays.namespace(parts_of[0]).concatenate(parts_of, axis=1)
        parts.append(arrays.to_host(z.reshape(len(z), at_once, data.n).mean(axis=2)))
    return np.concatenate(parts, axis=1)[:, :count]


@drawn_differences.register
def _(
    data: Classification, locations: Classification, packed: Packed, backend: Backend, count: int, seed: int
) -> np.ndarray:
    """Draw changes relative to the most probable labels, which keeps precision where all others are improbable."""
    values, groups = values_of_classes(locations, packed)
    p = arrays.to_compute_device(data.probabilities)
    xp = arrays.namespace(p)
    kernels = [kernel for _, kernel in blocks(of_kernel_alone(packed, backend))]
    kernel = arrays.asarray_like(xp.concatenate(kernels, axis=1), p)
    values, of_class = arrays.like(values, p), arrays.like(groups, p)
    likely = xp.argmax(p, axis=1)
    top = of_class[likely]
    improbable = xp.where(xp.arange(data.m)[None, :] == likely[:, None], 0.0, p)
    # A_jt - sum_c p_c A_jc at the most probable label t.
    at_top = values[:, top]
    promised = at_top * xp.sum(improbable, axis=1)[None, :]
    promised -= linalg.matmul(values[:, of_class], improbable.T)
    constant = xp.sum(kernel * promised, axis=1)
    if arrays.is_host(p):
        threads = backend.threads
        at_once = max(1, min(LABELS_AT_ONCE // data.n, SUMS_AT_ONCE // len(values)))
        changes = _Changes.of(kernel, values[:, of_class], likely)
        batches = draw_label_batches(p, count, seed, at_once=at_once, threads=threads)
        return (
            np.concatenate([constant[:, None] + changes.sums(labels, threads) for labels in batches], axis=1) / data.n
        )
    result = []
    for labels in draw_label_batches(p, count, seed, at_once=max(1, BLOCK_ELEMENTS // data.n)):
        groups_of_labels = of_class[labels]
        changed = groups_of_labels != top[:, None]
        sums = constant[:, None] - (kernel * at_top) @ changed.astype(np.float64)
        for group in range(values.shape[1]):
            is_in_group = ((groups_of_labels == group) & changed).astype(np.float64)
            sums = sums + values[:, group][:, None] * (kernel @ is_in_group)
        result.append(arrays.to_host(sums) / data.n)
    return np.concatenate(result, axis=1)


class _Changes(NamedTuple):
    """What labels other than the most probable ones change at the locations; on the host."""

    kernel: np.ndarray  # (n, width), width a multiple of 8 that is at least J
    values: np.ndarray  # (m, width)
    likely: np.ndarray  # int32, (n,)
    n_locations: int

    @classmethod
    def of(cls, kernel: np.ndarray, values: np.ndarray, likely: np.ndarray) -> _Changes:
        """Make changes of the kernel's values (J, n) and those of the classes (J, m)."""
        n_locations = len(values)
        rows, columns = (np.zeros((part.shape[1], -(-n_locations // 8) * 8)) for part in (kernel, values))
        rows[:, :n_locations], columns[:, :n_locations] = kernel.T, values.T
        return cls(rows, columns, likely.astype(np.int32), n_locations)

    def sums(self, labels: np.ndarray, threads: int | None) -> np.ndarray:
        """Return sums for labels (n, draws), shape (J, draws)."""
        with run_options(threads) as options:
            return _native.changed_sums(self.kernel, self.values, self.likely, labels, options)[:, : self.n_locations].T
