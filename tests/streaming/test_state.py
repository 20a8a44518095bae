"""A state against the functions that see all samples at once, and against itself in any order."""

from __future__ import annotations

import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

import kcalib
from kcalib import lenses
from kcalib._input.labels import prepare
from kcalib._packing.features import feature_problem
from kcalib.estimators.feature_moments import feature_moments
from kcalib.kernels import Cosine, Exponential, Gaussian, Linear
from kcalib.streaming import CalibrationState
from kcalib.streaming._row_sums.score_sums import CELLS

KERNEL = Exponential(0.3)


def problem(n: int, m: int, kind: str = "soft", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(m), size=n)
    if kind == "saturated":
        e = 10.0 ** rng.uniform(-8, -4, size=n)
        p = np.full((n, m), 0.0) + e[:, None]
        p[np.arange(n), rng.integers(m, size=n)] = 1 - (m - 1) * e
    elif kind == "rounded":
        p = np.round(p * 4) / 4
        p[:, 0] += 1 - p.sum(axis=1)
        p = np.abs(p) / np.abs(p).sum(axis=1, keepdims=True)
    elif kind == "tied":
        p = p[rng.integers(5, size=n)]
    y = np.sum(rng.random(n)[:, None] > p.cumsum(axis=1), axis=1).clip(0, m - 1)
    return y, p


def same(one: CalibrationState, other: CalibrationState) -> None:
    mine, theirs = one._arrays(), other._arrays()
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        assert array.dtype == theirs[name].dtype and np.array_equal(array, theirs[name]), name


def same_totals(one: CalibrationState, other: CalibrationState) -> None:
    mine, theirs = one._totals(), other._totals()
    for name in ("sums", "own", "cells", "drawn", "sample_rows"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    assert (mine.scores, mine.null_own, mine.n) == (theirs.scores, theirs.null_own, theirs.n)


def cuts(n: int, pieces: int, rng: np.random.Generator) -> list[slice]:
    inner = np.sort(rng.choice(np.arange(1, n), size=pieces - 1, replace=False))
    ends = [0, *inner.tolist(), n]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("n_resamples", [0, 3])
@pytest.mark.parametrize("n, m, kind", [(700, 3, "soft"), (500, 2, "saturated"), (40, 4, "tied")])
def test_batches_in_any_order_give_the_same_bits(n, m, kind, n_resamples):
    rng = np.random.default_rng(3)
    y, p = problem(n, m, kind)
    options = {"kernel": KERNEL, "n_resamples": n_resamples, "n_columns": 32}
    whole = CalibrationState(m, **options, threads=1).update(y, p)
    ordered = CalibrationState(m, **options, threads=2)
    for rows in cuts(n, 9, rng):
        ordered.update(y[rows], p[rows])
    same(whole, ordered)
    shuffled = CalibrationState(m, **options)
    pieces = cuts(n, 12, rng)
    for k in rng.permutation(12):
        shuffled.update(y[pieces[k]], p[pieces[k]], first_row=pieces[k].start)
    same(whole, shuffled)
    same_totals(whole, shuffled)


@pytest.mark.parametrize("n_resamples", [0, 2])
def test_batches_of_one_and_merges_in_any_order_give_the_same_bits(n_resamples):
    rng = np.random.default_rng(4)
    n, m = 300, 3
    y, p = problem(n, m)
    w = rng.exponential(size=n)
    options = {"kernel": KERNEL, "n_resamples": n_resamples, "n_columns": 16}
    whole = CalibrationState(m, **options).update(y, p, w)
    ones = CalibrationState(m, **options)
    for i in range(n):
        ones.update(y[i : i + 1], p[i : i + 1], w[i : i + 1])
    same(whole, ones)
    for _ in range(3):
        parts = []
        for rows in cuts(n, 11, rng):
            parts.append(CalibrationState(m, **options).update(y[rows], p[rows], w[rows], first_row=rows.start))
        while len(parts) > 1:
            one = parts.pop(int(rng.integers(len(parts))))
            parts[int(rng.integers(len(parts)))].merge(one)
        same(whole, parts[0])
        same_totals(whole, parts[0])


def test_complete_blocks_of_draws_are_added_as_open_ones_are():
    n, m = 2 * 4096 + 300, 3
    y, p = problem(n, m)
    options = {"kernel": KERNEL, "n_resamples": 2, "n_columns": 16}
    whole = CalibrationState(m, **options).update(y, p)
    parts = [
        CalibrationState(m, **options).update(y[a:b], p[a:b], first_row=a)
        for a, b in ((3000, 6000), (0, 3000), (6000, n))
    ]
    joined = parts[2] + parts[0] + parts[1]
    same(whole, joined)
    assert parts[0].rows == ((3000, 6000),)  # what is added to another state stays
    expected = feature_problem(prepare(y, p), KERNEL, None, 16).drawn_totals(2, 0)
    np.testing.assert_allclose(joined._totals().drawn, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["soft", "saturated", "rounded", "tied"])
@pytest.mark.parametrize(
    "m, lens, kernel, matrix",
    [
        (4, None, KERNEL, None),
        (2, None, Gaussian(0.2, metric="cityblock"), None),
        (2, None, Cosine(0.7), None),
        (4, lenses.TopLabel(), KERNEL, None),
        (4, lenses.Groups([0, 0, 1, 2]), KERNEL, None),
        (3, None, 1e6 * Exponential(0.3), 1e-4 * np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])),
        (3, None, Linear() * Gaussian(0.4) + Exponential(0.3), None),
        (3, None, Linear(), None),
    ],
)
def test_sums_are_those_of_all_samples_at_once(m, lens, kernel, matrix, kind):
    n = 300
    y, p = problem(n, m, kind)
    state = CalibrationState(m, kernel=kernel, target_kernel=matrix, lens=lens, n_columns=64, n_resamples=3)
    totals = state.update(y, p)._totals()
    value = (float(np.sum(totals.sums**2)) - totals.own.sum()) / (n * (n - 1))
    options = {"kernel": kernel, "target_kernel": matrix, "lens": lens}
    expected = kcalib.skce(y, p, **options, estimator=kcalib.methods.FeatureEstimator(n_columns=64))
    size = abs(totals.own.sum()) / (n * (n - 1))
    assert abs(value - expected) <= 1e-12 * max(abs(expected), size)
    found = feature_problem(prepare(y, p, lens=lens), kernel, matrix, 64)
    moments = feature_moments(found, second=False)
    assert totals.own.sum() == pytest.approx(moments.trace, rel=1e-12)
    np.testing.assert_allclose(totals.drawn, found.drawn_totals(3, 0), atol=1e-12 * n * abs(totals.own.sum()))
    lengths = float(np.sum(found.null_lengths(np.arange(n)))) * moments.trace / float(np.sum(found.target_features**2))
    if not len(totals.map.projections):  # |phi|^2 is the same for all
        assert totals.null_own == pytest.approx(lengths, rel=1e-11)
    for metric, name in ((kcalib.log_loss, "log_loss"), (kcalib.brier_score, "square_residual")):
        extra = {"scale_by_half": False} if metric is kcalib.brier_score else {}
        assert totals.scores[name] / n == pytest.approx(metric(y, p, lens=lens, **extra), rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["soft", "saturated", "rounded"])
def test_cells_are_sums_over_bins(kind, weighted):
    n, m, n_bins = 400, 3, 7
    y, p = problem(n, m, kind)
    w = np.random.default_rng(0).exponential(size=n) if weighted else np.ones(n)
    totals = CalibrationState(m, kernel=KERNEL, n_bins=n_bins).update(y, p, w if weighted else None)._totals()
    columns = [(p.max(axis=1), (p.argmax(axis=1) == y) * 1.0), *((p[:, k], (y == k) * 1.0) for k in range(m))]
    edges = np.arange(n_bins + 1) / n_bins
    for cells, (values, hits) in zip(totals.cells, columns, strict=True):
        for b in range(n_bins):
            inside = (values > edges[b]) & (values <= edges[b + 1]) | ((b == 0) & (values == 0))
            terms = (np.ones(n), values, hits, values**2, values * hits)
            for name, found, term in zip(CELLS, cells[b], terms, strict=True):
                assert found == pytest.approx(math.fsum((w * term)[inside]), rel=1e-13, abs=1e-20), name
            if cells is totals.cells[0]:
                assert totals.extremes.counts[b] == inside.sum()
                if inside.any():
                    ends = values[inside].min(), values[inside].max()
                    assert (totals.extremes.lowest[b], totals.extremes.highest[b]) == ends


def test_residuals_of_1e_8_keep_their_digits_beside_others():
    n = 257
    e = 10.0 ** np.random.default_rng(0).uniform(-8, -7, size=n)
    p = np.stack([1 - e, e], axis=1)
    y = np.zeros(n, dtype=int)
    state = CalibrationState(2, kernel=Linear(), n_resamples=0).update(y, p)
    totals = state._totals()
    exact = sum((1 - Fraction(float(a))) ** 2 + Fraction(float(b)) ** 2 for a, b in p)
    assert totals.scores["square_residual"] == pytest.approx(float(exact), rel=1e-7)  # 2**-80 is 1e-8 of a square
    kernel = [[Fraction(float(x)) for x in row] for row in p]
    residuals = [(1 - row[0], -row[1]) for row in kernel]
    sums = [[sum(x[a] * r[b] for x, r in zip(kernel, residuals, strict=True)) for b in (0, 1)] for a in (0, 1)]
    total = sum(value**2 for row in sums for value in row)
    assert float(np.sum(totals.sums**2)) == pytest.approx(float(total), rel=1e-13)


def test_weights_of_one_are_no_weights_and_zeros_leave_sums_as_they_are():
    y, p = problem(200, 3)
    options = {"kernel": KERNEL, "n_resamples": 2, "n_columns": 16}
    plain = CalibrationState(3, **options).update(y, p)
    same(plain, CalibrationState(3, **options).update(y, p, np.ones(200)))
    w = np.arange(200) % 2 * 2.0
    weighted = CalibrationState(3, **options).update(y[:100], p[:100], w[:100]).update(y[100:], p[100:], w[100:])
    totals = weighted._totals()
    assert totals.n_weighted == 200
    expected = kcalib.skce(
        y, p, kernel=KERNEL, sample_weight=w, estimator=kcalib.methods.FeatureEstimator(n_columns=16)
    )
    total, squares = totals.scores["weight"], totals.scores["weight_squared"]
    assert (np.sum(totals.sums**2) - totals.own.sum()) / (total**2 - squares) == pytest.approx(expected, rel=1e-12)
    assert weighted.update([0], p[:1], [0.0])._totals().scores["weight"] == total


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-14])
def test_weights_without_digits_are_refused(scale):
    """Squares of weights of 1e-12 would be wrong in the second digit."""
    y, p = problem(50, 3)
    w = np.random.default_rng(0).uniform(size=50)
    options = {"kernel": KERNEL, "n_columns": 16}
    expected = kcalib.skce(
        y, p, kernel=KERNEL, sample_weight=w, estimator=kcalib.methods.FeatureEstimator(n_columns=16)
    )
    small = CalibrationState(3, **options).update(y, p, 1e-5 * w)
    assert small.skce().value == pytest.approx(expected, rel=1e-11)
    state = CalibrationState(3, **options).update(y, p, scale * w)
    for method in ("result", "skce", "scores", "top_label_ece", "brier_decomposition"):
        with pytest.raises(ValueError, match="`sample_weight` has a root mean square of .* at least 1e-6"):
            getattr(state, method)()


def test_a_state_is_pickled_and_copied():
    y, p = problem(300, 3)
    for kernel in (KERNEL, None):
        state = CalibrationState(3, kernel=kernel, n_resamples=2, n_columns=16, part=3, threads=1).update(y, p)
        other = pickle.loads(pickle.dumps(state))
        same(state, other)
        assert other.options == state.options and repr(other) == repr(state)
        copied = state.copy().update(y, p)
        assert (copied.n_samples, state.n_samples) == (600, 300)


def test_a_state_without_draws_is_below_100_kilobytes():
    y, p = problem(5000, 10)
    state = CalibrationState(10, kernel=KERNEL, n_resamples=0).update(y, p)
    assert sum(array.nbytes for array in state._arrays().values()) < 100_000


def test_the_first_2000_rows_say_the_bandwidth():
    y, p = problem(2500, 3)
    state = CalibrationState(3, n_resamples=0)
    for rows in cuts(2500, 13, np.random.default_rng(0)):
        state.update(y[rows], p[rows])
        assert (state.kernel is None) == (state.n_samples < 2000)
    at_once = CalibrationState(3, n_resamples=0).update(y, p)
    same(state, at_once)
    value = kcalib.bandwidth.median_distance(p[:2000]).value
    assert state.kernel == Exponential(value) == at_once.options.kernel
    assert state._totals().bandwidth_rows == 2000
    few = CalibrationState(3).update(y[:50], p[:50])
    assert few._totals().kernel == Exponential(kcalib.bandwidth.median_distance(p[:50]).value)
    assert few.kernel is None and few.options.kernel == Exponential()


def test_states_that_do_not_know_their_bandwidth_are_merged():
    y, p = problem(2500, 3)
    whole = CalibrationState(3, n_resamples=0).update(y, p)

    def part(a: int, b: int, **options: object) -> CalibrationState:
        return CalibrationState(3, n_resamples=0, **options).update(y[a:b], p[a:b], first_row=a)

    small = [part(a, a + 500) for a in range(0, 2500, 500)]
    joined = small[1] + small[3] + small[0] + small[2] + small[4]
    assert joined.kernel is None  # until an update goes on
    same_totals(whole, joined)
    same(whole.copy().update(y[:1], p[:1]), joined.copy().update(y[:1], p[:1]))
    same(whole.copy().update(y, p), CalibrationState.from_bytes(joined.to_bytes()).update(y, p))
    given = part(0, 500, kernel=whole.kernel)
    for one, other in ((given, small[1]), (small[1], given)):
        assert (one + other).kernel == whole.kernel
    with pytest.raises(ValueError, match=r"`kernel` is Exponential.* in one state and .*kernel=first\.kernel"):
        whole.merge(CalibrationState(3, n_resamples=0, kernel=Exponential(0.1)))


@pytest.mark.parametrize(
    "name, value",
    [
        ("n_columns", 32),
        ("n_bins", 10),
        ("seed", 1),
        ("n_resamples", 5),
        ("lens", lenses.ClassWise(1)),
        ("from_logits", True),
        ("target_kernel", np.eye(3)),
        ("kernel", Gaussian(0.3)),
    ],
)
def test_an_option_that_differs_is_named(name, value):
    options = {"kernel": KERNEL, "n_columns": 16, "n_resamples": 0}
    one, other = CalibrationState(3, **options), CalibrationState(3, **(options | {name: value}))
    with pytest.raises(ValueError, match=f"^`{name}` is .* in one state and .* in the other; make "):
        one.merge(other)
    with pytest.raises(ValueError, match="`n_classes`"):
        one + CalibrationState(4, **options)
    with pytest.raises(TypeError, match="`other` is int"):
        one.merge(3)


@pytest.mark.parametrize("known", [False, True])
def test_an_empty_batch_adds_nothing(known):
    y, p = problem(10, 3)
    state = CalibrationState(3, n_resamples=0, kernel=KERNEL if known else None).update(y, p)
    before = state.to_bytes()
    for true, pred in ((y[:0], p[:0]), ([], []), (y[:0], p[:0].astype(np.float32)), (np.empty((0, 3)), p[:0])):
        assert state.update(true, pred).update(true, pred, [], first_row=5).to_bytes() == before
    for true, pred, weights, message in (
        (y[:0], p[:0, :2], None, "`y_pred` has 2 classes, but the state has n_classes=3"),
        (y, p[:0], None, "`y_pred` is empty, expected at least one prediction"),
        (y[:0], p[:0], [1.0], "`y_pred` is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            state.update(true, pred, weights)
    assert state.to_bytes() == before


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda y, p: (y, p[:, :2]),
            "`y_pred` has 2 classes, but the state has n_classes=3; pass the",
        ),
        (lambda y, p: (y + 1, p), r"subtract 1, or make the state with classes=range\(1, 4\)"),
        (lambda y, p: (y + 5, p), "; make the state with classes= with the label of each of the 3 columns"),
        (lambda y, p: (y, 9 * p), r"for logits pass from_logits=True \(an option of the state\)"),
    ],
)
def test_remedies_are_for_a_state(change, message):
    y, p = problem(10, 3)
    with pytest.raises(ValueError, match=message):
        CalibrationState(3, n_columns=16, n_resamples=0).update(*change(y, p))
    state = CalibrationState(3, n_columns=16, n_resamples=0).update(y, p)
    with pytest.raises(ValueError, match="holds a single sample.*; make a state with fewer `n_bins`, or add more samp"):
        state.debiased_ece()


def test_a_row_that_comes_twice_is_refused():
    y, p = problem(100, 3)
    state = CalibrationState(3, kernel=KERNEL, part=2).update(y, p)
    before = state.copy()
    with pytest.raises(ValueError, match=r"rows 90 of part 2 to 99 of part 2 were added already.*`part=`"):
        state.update(y, p, first_row=90)
    with pytest.raises(ValueError, match=r"row 5 of part 2 was added already"):
        state.update(y[:1], p[:1], first_row=5)
    with pytest.raises(ValueError, match="rows 0 of part 2 to 99 of part 2 were added already"):
        state.merge(state)
    same(state, before)
    assert state.update(y, p, first_row=200).update(y, p).rows == (
        (2 * 2**40, 2 * 2**40 + 100),
        (2 * 2**40 + 200, 2 * 2**40 + 400),
    )


@pytest.mark.parametrize(
    "batch, options, error, message",
    [
        (([0, 1], [[0.5, 0.5, 0.0], [np.nan, 0.5, 0.5]]), {}, ValueError, r"`y_pred\[1, 0\]` is nan"),
        (([0, 3], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]), {}, ValueError, r"`y_true\[1\]` is 3"),
        (([0], [[0.5, 0.5]]), {}, ValueError, "`y_pred` has 2 classes, but the state has n_classes=3"),
        ((["a", "b", "c"], np.eye(3)), {}, ValueError, "make the state with classes="),
        (([0], [[0.5, 0.5, 0.0]], [-1.0]), {}, ValueError, r"`sample_weight\[0\]` is -1"),
        (([0], [[0.5, 0.5, 0.0]], [2.0**19]), {}, ValueError, r"`sample_weight\[0\]` is 524288, .* at most 262144"),
        (([0, 0], [[0.5, 0.5, 0.0]] * 2, [2.0**18] * 2), {}, ValueError, "sums of `sample_weight`"),
        (([0], [[0.5, 0.5, 0.0]]), {"first_row": -1}, ValueError, "`first_row` is -1"),
        (([0], [[0.5, 0.5, 0.0]] * 1), {"first_row": 2**40 - 1}, None, ""),
        (([0, 1], [[0.5, 0.5, 0.0]] * 2), {"first_row": 2**40 - 1}, ValueError, "beyond the last number of its part"),
    ],
)
def test_a_batch_with_a_fault_leaves_the_state_as_it_was(batch, options, error, message):
    y, p = problem(100, 3)
    state = CalibrationState(3, kernel=KERNEL, n_columns=16).update(y, p)
    before = state.copy()
    if error is None:
        state.update(*batch, **options)
        assert state.n_samples == 101
        with pytest.raises(ValueError, match="beyond the last number of its part"):
            state.update(y, p)
        return
    with pytest.raises(error, match=message):
        state.update(*batch, **options)
    same(state, before)


def test_sums_of_weights_end_where_they_are_not_exact():
    state = CalibrationState(3, kernel=KERNEL, n_columns=16, n_resamples=0)
    for _ in range(2):
        state.update([0], [[1.0, 0.0, 0.0]], [2.0**18])
        state._arrays()
    before = state.copy()
    with pytest.raises(ValueError, match="divide all weights by one number"):
        state.update([0], [[1.0, 0.0, 0.0]], [2.0**18])
    with pytest.raises(ValueError, match="divide all weights by one number"):
        CalibrationState(3, kernel=KERNEL, n_columns=16, n_resamples=0, part=1).merge(before)
    same(state, before)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"n_classes": 1}, ValueError, "`n_classes` is 1"),
        ({"n_classes": 2.5}, TypeError, "`n_classes`"),
        ({"n_columns": 20}, ValueError, "`n_columns` is 20, expected a multiple of 16"),
        ({"n_columns": None}, TypeError, "`n_columns` is None"),
        ({"n_bins": 0}, ValueError, "`n_bins`"),
        ({"n_resamples": -1}, ValueError, "`n_resamples`"),
        ({"seed": -1}, ValueError, "`seed`"),
        ({"part": 2**23}, ValueError, "`part`"),
        ({"threads": 0}, ValueError, "`threads`"),
        ({"lens": "top"}, TypeError, "`lens`"),
        ({"lens": lenses.ClassWise(3)}, ValueError, "`index`"),
        ({"classes": [1, 2]}, ValueError, "`classes` has shape"),
        ({"classes": [1, 1, 2]}, ValueError, "expected distinct labels"),
        ({"from_logits": 1}, TypeError, "`from_logits`"),
        ({"kernel": "exponential"}, TypeError, "`kernel`"),
        ({"target_kernel": "cosine"}, ValueError, "`target_kernel`"),
        ({"target_kernel": np.eye(2)}, ValueError, "`target_kernel` has shape"),
    ],
)
def test_options_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        CalibrationState(**({"n_classes": 3} | options))


@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
def test_a_kernel_without_features_is_refused_at_once():
    with pytest.raises(ValueError, match="no random features"):
        CalibrationState(3, kernel=Cosine())


def test_a_state_without_rows_has_no_totals():
    with pytest.raises(ValueError, match="there are no samples yet"):
        CalibrationState(3)._totals()


def test_labels_of_classes_and_logits_are_read():
    y, p = problem(60, 3)
    names = np.array(["cat", "dog", "eel"])
    state = CalibrationState(3, kernel=KERNEL, classes=names, from_logits=True)
    state.update(names[y[:1]], np.log(p[:1])).update(names[y[1:]], np.log(p[1:]))
    plain = CalibrationState(3, kernel=KERNEL).update(y, p)
    assert state._totals().scores["log_loss"] == pytest.approx(plain._totals().scores["log_loss"], rel=1e-12)
    assert state._totals().sample.class_names == ("cat", "dog", "eel")


def test_the_sample_is_of_the_smallest_hashes_and_does_not_depend_on_the_order():
    y, p = problem(3000, 2)
    state = CalibrationState(2, kernel=KERNEL, n_resamples=0).update(y, p)
    totals = state._totals()
    assert len(totals.sample_rows) == 256 and np.all(np.diff(totals.sample_rows) > 0)
    assert np.array_equal(totals.sample.probabilities, p[totals.sample_rows])
    assert abs(totals.sample_rows.mean() - 1500) < 4 * 3000 / math.sqrt(12 * 256)
    other = CalibrationState(2, kernel=KERNEL, n_resamples=0, seed=1).update(y, p)
    assert len(np.intersect1d(other._totals().sample_rows, totals.sample_rows)) < 60


@pytest.mark.parametrize("n", [4095, 4096, 8192])
def test_a_state_without_open_rows_comes_back_from_its_arrays(n):
    p = np.random.default_rng(0).dirichlet(np.ones(3), size=n)
    state = CalibrationState(3, n_columns=16, n_resamples=5).update(np.arange(n) % 3, p)
    same(CalibrationState._from(state.options, state._arrays()), state)


def test_predictions_in_float32_have_the_map_of_those_in_float64():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), size=400).astype(np.float32)
    y = rng.integers(5, size=400)
    kernel = Exponential(0.003)  # roundings of the rows' sums are not small beside it
    states = [CalibrationState(5, kernel=kernel, n_resamples=0).update(y, p) for _ in range(2)]
    parts = CalibrationState(5, kernel=kernel, n_resamples=0).update(y[:10], p[:10]).update(y[10:], p[10:])
    same(states[0], parts)
    totals = parts._totals()
    value = (float(np.sum(totals.sums**2)) - totals.own.sum()) / (400 * 399)
    expected = kcalib.skce(y, p, kernel=kernel, estimator=kcalib.methods.FeatureEstimator(n_columns=256))
    assert value == pytest.approx(expected, rel=1e-11, abs=1e-12 * totals.own.sum() / 400)


def test_batches_of_two_precisions_and_of_one_column():
    y, p = problem(600, 2, "saturated")
    single = p.astype(np.float32)
    single[:5] = [1.0, 0.0]
    y[:5] = 1  # whose losses are those of the smallest probability that the type has
    state = CalibrationState(2, kernel=KERNEL, n_resamples=0).update(y[:300], single[:300]).update(y[300:], p[300:, 1])
    expected = 300 * (kcalib.log_loss(y[:300], single[:300]) + kcalib.log_loss(y[300:], p[300:]))
    assert state._totals().scores["log_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "n, m, n_resamples, root",
    [
        (9000, 3, 70, False),
        pytest.param(9000, 5, 9, True, marks=pytest.mark.grid),
        pytest.param(5000, 150, 3, False, marks=pytest.mark.grid),
        pytest.param(4500, 300, 2, False, marks=pytest.mark.grid),
    ],
)
def test_threads_do_not_matter_to_sums_of_many_rows(n, m, n_resamples, root):
    y, p = problem(n, m)
    matrix = 0.5 * np.eye(m) + 0.5 if root else None
    options = {"kernel": KERNEL, "target_kernel": matrix, "n_resamples": n_resamples, "n_columns": 64}
    one, other = (CalibrationState(m, **options, threads=threads).update(y, p) for threads in (1, 3))
    same(one, other)
    expected = feature_problem(prepare(y, p), KERNEL, matrix, 64).drawn_totals(n_resamples, 0)
    np.testing.assert_allclose(one._totals().drawn, expected, rtol=1e-10, atol=1e-10 * one._totals().null_own)
