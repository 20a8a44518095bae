"""States of predicted distributions: the same bits in any way, and the numbers of samples in memory."""

from __future__ import annotations

import contextlib
import pickle

import emulated_cupy
import numpy as np
import pytest
import scipy.special
from few_events import FEW_EVENTS
from interrupts import stops_within_a_second
from libraries import GPU_LIBRARIES, LIBRARIES, library

import kcalib
from kcalib._packing.prediction_points import PredictionPoints
from kcalib.distributions import (
    Beta,
    Dirichlet,
    Ensemble,
    Laplace,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
)
from kcalib.kernels import MMD, Exponential, Gaussian, Linear
from kcalib.streaming import CalibrationState, ForecastState
from kcalib.streaming._forecasts.scores import most_probable
from kcalib.target_kernels import Draws, MahalanobisGaussian

N = 2300
RNG = np.random.default_rng(0)
MEAN, STD = RNG.normal(size=N), RNG.uniform(0.5, 1.5, size=N)
Y = MEAN + STD * RNG.normal(size=N)
W = RNG.uniform(0.5, 2.0, size=N)
KERNELS = {"kernel": Exponential(1.0, metric="wasserstein"), "target_kernel": Gaussian(1.0)}
OF_PARAMETERS = {"kernel": Exponential(1.0), "target_kernel": Gaussian(1.0)}


def normal(rows=slice(None)):
    return Normal(MEAN[rows], STD[rows])


def vectors(n, rng):
    mean, root = rng.normal(size=(n, 2)), rng.normal(size=(n, 2, 2))
    cov = root @ root.transpose(0, 2, 1) + np.eye(2)
    return MultivariateNormal(mean, cov), mean + rng.normal(size=(n, 2))


def problem(name, n=150, seed=0):
    """Predictions, targets, and kernels that a state takes."""
    rng = np.random.default_rng(seed)
    mean, positive = rng.normal(size=n), rng.gamma(2.0, size=n)
    if name == "normal":
        return Normal(mean, positive), mean + rng.normal(size=n), KERNELS
    if name == "normal of vectors":
        means = rng.normal(size=(n, 3))
        return Normal(means, np.full((n, 3), 0.8)), means + rng.normal(size=(n, 3)), KERNELS
    if name == "multivariate normal":
        return *vectors(n, rng), OF_PARAMETERS
    if name == "laplace":
        kernels = {"kernel": Exponential(1.0), "target_kernel": Exponential(1.0)}
        return Laplace(mean, positive), mean + rng.laplace(size=n), kernels
    if name == "poisson":
        return Poisson(positive), rng.poisson(positive), KERNELS
    if name == "negative binomial":
        return NegativeBinomial(positive, np.full(n, 0.5)), rng.poisson(positive), OF_PARAMETERS
    return Samples(mean[:, None] + rng.normal(size=(n, 8))), mean + rng.normal(size=n), KERNELS


FAMILIES = ["normal", "normal of vectors", "multivariate normal", "laplace", "poisson", "negative binomial", "samples"]
SCORES = ["rmse", "crps", "log_score", "pinball_loss", "interval_coverage", "interval_width", "pit_mean"]
SCORES += ["quantile_calibration_error", "pit_seed", "n_dims", "prediction", "n_samples"]


def in_pieces(sizes, state, y, prediction, weights=None):
    begin = 0
    for size in sizes:
        rows = slice(begin, begin + size)
        state.update(y[rows], prediction.take(rows), None if weights is None else weights[rows])
        begin += size
    assert begin == len(y)
    return state


@pytest.mark.parametrize("name", ["normal", "poisson", pytest.param("multivariate normal", marks=pytest.mark.grid)])
def test_batches_merging_and_threads_do_not_show(name):
    prediction, y, kernels = problem(name, N)
    options = {**kernels, "n_columns": 16, "n_resamples": 2}
    w = W if name == "poisson" else None
    whole = ForecastState(**options, threads=2).update(y, prediction, w)
    assert in_pieces([1] * 40 + [983, 1, 1000, 276], ForecastState(**options), y, prediction, w) == whole
    parts = []
    for begin, end in ((1500, N), (0, 700), (700, 1500)):
        weights = None if w is None else w[begin:end]
        one = ForecastState(**options, threads=1)
        parts.append(one.update(y[begin:end], prediction.take(slice(begin, end)), weights, first_row=begin))
    assert parts[0] + parts[1] + parts[2] == whole == parts[2] + (parts[1] + parts[0])


def test_bandwidths_come_from_the_first_rows():
    whole = ForecastState(n_columns=16).update(Y, normal())
    pieces = in_pieces([1, 1998, 300, 1], ForecastState(n_columns=16), Y, normal())
    assert whole == pieces and whole.kernel == pieces.kernel
    first = Normal(MEAN[:2000], STD[:2000])
    result = whole.skce()
    assert result.bandwidth_source == (
        "median wasserstein distance of the first 2000 samples; on targets: median euclidean distance of one draw from "
        "each of the first 2000"
    )
    detailed = kcalib.skce.result(Y[:2000], first, estimator="linear")
    assert detailed.kernel == result.kernel and detailed.target_kernel == result.target_kernel


@pytest.mark.grid
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_any_pieces_in_any_order_have_the_same_bits(name, seed):
    rng = np.random.default_rng(seed)
    prediction, y, kernels = problem(name, 3100, seed)
    w = rng.exponential(size=3100) if seed == 1 else None
    options = {**kernels, "n_columns": 16, "n_resamples": seed, "seed": seed}
    whole = ForecastState(**options).update(y, prediction, w)
    ends = np.sort(rng.choice(3099, 40, replace=False)) + 1
    states = [ForecastState(**options, threads=1 + k % 3) for k in range(4)]
    for begin, end in rng.permutation(np.stack([np.append(0, ends), np.append(ends, 3100)], axis=1)).tolist():
        rows = slice(begin, end)
        weights = None if w is None else w[rows]
        states[int(rng.integers(4))].update(y[rows], prediction.take(rows), weights, first_row=begin)
    while len(states) > 1:
        one = states.pop(int(rng.integers(len(states))))
        other = states.pop(int(rng.integers(len(states))))
        states.append(ForecastState.from_bytes((one + other).to_bytes()))
    assert states[0] == whole


def test_states_that_know_no_bandwidth_add_up_in_any_order():
    parts = []
    for k, (begin, end) in enumerate(((0, 900), (900, 1700), (1700, 2250))):
        rows = slice(begin, end)
        parts.append(ForecastState(n_columns=16, part=k).update(Y[rows], normal(rows)))
    a, b, c = parts
    both = (a + b) + c
    assert both == a + (c + b) == (c + a) + b and both.kernel is None
    fixed = both.update(Y[:1], normal(slice(1)), first_row=2000)
    first = kcalib.skce.result(Y[:2000], normal(slice(2000)), estimator="linear")
    assert str(fixed.kernel) == first.kernel and str(fixed.target_kernel) == first.target_kernel
    with pytest.raises(ValueError, match="`kernel` is .* in one state and .* in the other; make one state, and the"):
        fixed.merge(ForecastState(n_columns=16, part=5).update(Y[::-1], normal(slice(None, None, -1))))


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_in_memory(name):
    prediction, y, kernels = problem(name)
    state = ForecastState(**kernels, n_columns=16, seed=3).update(y[:90], prediction.take(slice(0, 90)))
    found = state.update(y[90:], prediction.take(slice(90, None))).result()
    expected = kcalib.evaluate(y, prediction, kernel=kernels["kernel"], method="linear", seed=3)
    for score in SCORES:
        value, wanted = getattr(found, score), getattr(expected, score)
        assert value == wanted or value == pytest.approx(wanted, rel=1e-12), score
    if found.n_dims == 1:
        curve, wanted = state.quantile_calibration(), kcalib.quantile_calibration(y, prediction, seed=3)
        assert np.array_equal(curve.coverage, wanted.coverage) and np.array_equal(curve.histogram, wanted.histogram)
        assert curve.error == wanted.error and curve.seed == wanted.seed
        assert np.array_equal(curve.consistency_band.low, wanted.consistency_band.low)


@pytest.mark.parametrize("name", ["normal", "normal of vectors", "multivariate normal", "laplace"])
def test_the_skce_is_that_in_memory(name):
    prediction, y, kernels = problem(name)
    state = ForecastState(**kernels, n_columns=32).update(y, prediction)
    wanted = kcalib.skce(y, prediction, **kernels, estimator=kcalib.methods.FeatureEstimator(n_columns=32))
    assert state.skce().value == pytest.approx(wanted, rel=1e-11, abs=1e-16)
    weighted = ForecastState(**kernels, n_columns=32).update(y, prediction, W[: len(y)])
    wanted = kcalib.skce(
        y, prediction, **kernels, estimator=kcalib.methods.FeatureEstimator(n_columns=32), sample_weight=W[: len(y)]
    )
    assert weighted.skce().value == pytest.approx(wanted, rel=1e-11, abs=1e-16)
    assert weighted.skce().standard_error is None


def literal(state, prediction, y):
    """sum_{i != j} k(i, j) <a_i, a_j> / (n (n - 1)) with the maps of the state, and expectations by 4000 quantiles."""
    machine = state._accumulator.machine
    levels = (np.arange(4000) + 0.5) / 4000
    z = prediction.quantile(levels)
    phases = y[:, None] * machine.frequencies[:, 0]
    drawn = z[:, :, None] * machine.frequencies[:, 0]
    amplitudes = machine.target_map.amplitudes
    target_features = np.concatenate(
        [
            amplitudes * (np.cos(phases) - np.cos(drawn).mean(axis=1)),
            amplitudes * (np.sin(phases) - np.sin(drawn).mean(axis=1)),
        ],
        axis=1,
    )
    points = PredictionPoints.of_rows(prediction, state.kernel).values  # of counts these are tested by themselves
    angles = points @ machine.maps[0].frequencies.T
    a = machine.maps[0].amplitudes * machine.feature_unit
    phi = np.concatenate([a * np.cos(angles), a * np.sin(angles)], axis=1)
    h = (phi @ phi.T) * (target_features @ target_features.T)
    n = len(y)
    return (h.sum() - np.trace(h)) / (n * (n - 1))


@pytest.mark.parametrize("name", ["normal", "poisson", "samples"])
def test_the_skce_is_a_literal_sum(name):
    prediction, y, _ = problem(name, 60)
    kernels = {"kernel": Exponential(1.0, metric="wasserstein"), "target_kernel": Gaussian(2.0)}
    state = ForecastState(**kernels, n_columns=16).update(y, prediction)
    assert state.skce().value == pytest.approx(literal(state, prediction, np.asarray(y, float)), abs=2e-5)


@pytest.mark.parametrize("name", ["normal", "laplace", "poisson", "samples"])
def test_the_adaptive_test_is_that_in_memory(name):
    prediction, y, kernels = problem(name, 60)
    options = {"n_columns": 32, "n_resamples": 39}
    states = [ForecastState(**kernels, **options, seed=3, part=part) for part in (0, 0)]
    rows = np.arange(60)
    states[0].update(y[20:], prediction.take(rows[20:]), first_row=20)
    states[1].update(y[:20], prediction.take(rows[:20]), first_row=0)
    found = states[0].merge(states[1]).calibration_test()
    expected = kcalib.calibration_test(
        y, prediction, **kernels, method=kcalib.methods.Adaptive(**options), seed=3, backend="cpu"
    )
    assert found.method == "adaptive" and found.n_resamples == 39 and found.null_law == expected.null_law
    names = ["bias", "dispersion", "PIT histogram", "tails", "kernel", "fine kernel"]
    assert [block.name for block in found.blocks] == [block.name for block in expected.blocks] == names
    # Features of the target kernel of samples and counts may be exact in memory.
    same = names if name in ("normal", "laplace") else names[:4]
    for one, other in zip(found.blocks[: len(same)], expected.blocks, strict=False):
        assert one.statistic == pytest.approx(other.statistic, rel=1e-7) and one.pvalue == other.pvalue
    if same == names:
        assert found.pvalue == pytest.approx(expected.pvalue, rel=1e-9) and found.finding == expected.finding


def test_blocks_without_draws_of_the_kernel():
    rejected = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        state = ForecastState(**KERNELS, n_columns=16, seed=seed)
        test = state.update(MEAN[:90] + STD[:90] * rng.normal(size=90), normal(slice(90))).calibration_test()
        rejected += test.pvalue <= 0.1
    assert rejected <= 6  # of the binomial law with 20 and 0.1 in all but 0.2 % of the cases
    assert [block.name for block in test.blocks] == ["bias", "dispersion", "PIT histogram", "tails", "kernel"]
    assert "shared by 4 blocks, at 4 of 5 parts of the level; the kernel has no draws" in test.null_law
    sharp = ForecastState(**KERNELS, n_columns=16).update(Y[:400], Normal(MEAN[:400], 0.8 * STD[:400]))
    test = sharp.calibration_test()
    assert test.pvalue < 1e-4 and test.finding == "over-confident" and test.pvalue_from == "bound"
    # Errors that cancel between predictions: PIT values are uniform, and the kernel sees them.
    side = np.sign(MEAN[:400])
    shifted = ForecastState(**KERNELS, n_columns=64).update(Y[:400], Normal(MEAN[:400] + 0.8 * side, STD[:400]))
    test = shifted.calibration_test()
    assert test.pvalue == pytest.approx(5 * test.blocks[-1].pvalue, rel=1e-9) and test.pvalue_from == "law"
    assert test.finding == "an error that only the kernel sees"


def test_weights_of_pit_values_and_of_draws():
    state = ForecastState(**KERNELS, n_columns=16, n_resamples=19).update(Y[:300], normal(slice(300)), W[:300])
    method = kcalib.methods.Adaptive(n_resamples=19, n_columns=16)
    options = {**KERNELS, "method": method, "sample_weight": W[:300], "seed": 0}
    wanted = kcalib.calibration_test(Y[:300], normal(slice(300)), **options)
    assert [block.pvalue for block in state.calibration_test().blocks] == [block.pvalue for block in wanted.blocks]
    bias, dispersion, *_ = state.calibration_test().blocks
    score = scipy.special.ndtri(kcalib.pit_values(Y[:300], normal(slice(300))))
    squares = np.sum(W[:300] ** 2)
    assert bias.statistic == pytest.approx(np.sum(W[:300] * score) ** 2 / squares, rel=1e-9)
    assert dispersion.statistic == pytest.approx(np.sum(W[:300] * (score**2 - 1)) ** 2 / (2 * squares), rel=1e-9)


@pytest.mark.grid
def test_draws_are_of_the_predictions_and_of_row_numbers_alone():
    options = {**KERNELS, "n_columns": 16, "n_resamples": 19}
    rejected = 0
    for seed in range(20):
        prediction, y, _ = problem("poisson", 20, seed)
        state = ForecastState(**options, seed=seed).update(y, prediction)
        rejected += state.calibration_test().pvalue <= 0.1
    assert rejected <= 6  # of the binomial law with 20 and 0.1 in all but 0.2 % of the cases
    state = ForecastState(**options).update(y, prediction)
    test = state.calibration_test()
    assert test.n_resamples == 19 and test.pvalue_from == "draws" and "19 draws of the targets" in test.null_law
    off = ForecastState(**options).update(Y[:300] + 1, normal(slice(300)))
    assert off.calibration_test().pvalue <= 1 / 20


@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
def test_counts_that_are_rare_have_a_law_that_knows_events_not_seen():
    rate = 10 ** np.random.default_rng(0).uniform(-6, -4, size=400)
    none = np.zeros(400)
    state = ForecastState(kernel=Exponential(), n_columns=16).update(none, Poisson(rate))
    with pytest.warns(kcalib.AntiConservativeWarning, match="leave about 0.0.* uncertain events.*n_resamples=199"):
        test = state.calibration_test()
    assert test.pvalue > 0.1
    method = kcalib.methods.Features(n_columns=16, n_resamples=1)
    wanted = kcalib.calibration_test(none, Poisson(rate), kernel=Exponential(), method=method, seed=0)
    assert test.few_errors.seen == 0 and test.few_errors.largest == wanted.few_errors.largest
    assert test.few_errors.expected == pytest.approx(wanted.few_errors.expected, rel=0.1)
    table = kcalib.distributions.Poisson([0.3, 1.0, 1.5, 7.2]).pmf_table()
    assert most_probable(Poisson([0.3, 1.0, 1.5, 7.2])).tolist() == np.argmax(table, axis=1).tolist()
    broad = NegativeBinomial([0.3, 4.0, 9.0, 25.0], [2.0, 0.45, 0.11, 0.01])
    assert most_probable(broad).tolist() == np.argmax(broad.pmf_table(), axis=1).tolist()


def test_files_and_pickles_bring_states_back(tmp_path):
    for name in ("poisson", "multivariate normal"):
        prediction, y, kernels = problem(name, 50)
        path = tmp_path / "state.kcalib"
        for options in ({**kernels, "n_resamples": 2}, {"kernel": kernels["kernel"]}):
            state = ForecastState(**options, n_columns=16).update(y, prediction)
            state.save(path)
            found = kcalib.streaming.load(path)
            assert isinstance(found, ForecastState)
            assert found == state == pickle.loads(pickle.dumps(state)) == ForecastState.from_bytes(state.to_bytes())
            assert found.update(y, prediction) == state.update(y, prediction)
            with pytest.raises(ValueError, match="holds a state of the kind 'forecast', expected 'calibration'"):
                CalibrationState.load(path)
    empty = ForecastState(n_columns=16)
    assert ForecastState.from_bytes(empty.to_bytes()) == empty


OTHER_LIBRARIES = [
    pytest.param(name, marks=[pytest.mark.grid, pytest.mark.gpu] if name in GPU_LIBRARIES else pytest.mark.grid)
    for name in LIBRARIES[1:]
]


@pytest.mark.parametrize("name", OTHER_LIBRARIES)
def test_arrays_of_any_library_give_the_same_state(name):
    place = library(name)
    with emulated_cupy.installed() if name == "cupy-emulated" else contextlib.nullcontext():
        prediction = Normal(place.asarray(MEAN[:50]), place.asarray(STD[:50]))
        state = ForecastState(**KERNELS, n_columns=16).update(place.asarray(Y[:50]), prediction, place.asarray(W[:50]))
    assert state == ForecastState(**KERNELS, n_columns=16).update(Y[:50], normal(slice(50)), W[:50])


def test_empty_states_take_the_family_of_others():
    prediction, y, kernels = problem("laplace", 50)
    state = ForecastState(**kernels, n_columns=16).update(y, prediction)
    empty = ForecastState(**kernels, n_columns=16, part=1)
    assert (empty.copy().merge(empty)).n_samples == 0
    assert (empty + state).n_samples == (state + empty).n_samples == 50
    with pytest.raises(ValueError, match="`n_columns` is 16 in one state and 32 in the other"):
        ForecastState(**kernels, n_columns=16).merge(ForecastState(**kernels, n_columns=32))
    with pytest.raises(ValueError, match="no samples"):
        empty.result()


def test_states_of_different_families_do_not_add_up():
    one = ForecastState(n_columns=16).update([1.0, 2.0], Normal([0.0, 1.0], [1.0, 1.0]))
    other = ForecastState(n_columns=16, part=1).update([1, 2], Poisson([1.0, 2.0]))
    with pytest.raises(ValueError, match="`prediction` is Normal in one state and Poisson in the other; a state is of"):
        one.merge(other)
    state = ForecastState().update([0.0], Samples([[1.0, 2.0, np.nan]], missing="drop"))
    state.update([0.0], Samples([[1.0, 2.0, 3.0]]))
    with pytest.raises(ValueError, match=r"; pad all to one number of samples with NaN.*"):
        state.update([0.0], Samples([[1.0, 2.0]]))
    with pytest.raises(ValueError, match="`y_pred` is Poisson, but the state is of Normal; make a state for each"):
        one.update([1], Poisson([1.0]))
    more = ForecastState(n_columns=16, part=1).update(np.zeros((2, 2)), Normal(np.zeros((2, 2)), np.ones((2, 2))))
    with pytest.raises(ValueError, match=r"`sizes` is \(\(\), \(\)\) in one state and"):
        one.merge(more)
    assert one.n_samples == 2
    known = ForecastState(kernel=Exponential(2.0, metric="wasserstein"), n_columns=16, part=1)
    with pytest.raises(ValueError, match="target_kernel=first.target_kernel once these are known"):
        known.update([1.0], Normal([0.0], [1.0])).merge(ForecastState(**KERNELS, n_columns=16).update(Y, normal()))


def test_what_has_no_closed_forms_is_refused():
    y = np.full(3, 0.5)
    normals = Normal(y, y)
    refused = [
        (Ensemble([normals, normals]), "is Ensemble, which has no closed forms that a state could add up; a Forecast"),
        (Beta(y, y), "Beta"),
        (Samples(np.ones((3, 2)), [0.25, 0.75]), "Samples of numbers with weights, whose distances"),
    ]
    for prediction, message in refused:
        with pytest.raises(ValueError, match=message):
            ForecastState().update(y, prediction)
    with pytest.raises(ValueError, match="Samples of vectors"):
        ForecastState().update(np.ones((3, 2)), Samples(np.ones((3, 2, 2))))
    with pytest.raises(ValueError, match="is Dirichlet"):
        ForecastState().update(np.full((3, 2), 0.5), Dirichlet(np.ones((3, 2))))
    prediction, y, _ = problem("multivariate normal", 5)
    with pytest.raises(ValueError, match="`kernel` is not given, but Wasserstein distances of MultivariateNormal"):
        ForecastState().update(y, prediction)
    with pytest.raises(TypeError, match="for class probabilities use a CalibrationState"):
        ForecastState().update([0, 1], np.full((2, 2), 0.5))
    with pytest.raises(ValueError, match=r"use metric='wasserstein', a kernel on parameters"):
        ForecastState(kernel=Exponential(metric=MMD(1.0)))
    with pytest.raises(ValueError, match="needs expectations in closed form"):
        ForecastState(target_kernel=Draws(Gaussian()))
    with pytest.raises(TypeError, match="`kernel` is 'rbf', expected a kernel"):
        ForecastState(kernel="rbf")
    for target_kernel in (5, "rbf", np.eye(2)):
        with pytest.raises(TypeError, match="(?s)`target_kernel` is .*, expected a kernel between targets"):
            ForecastState(target_kernel=target_kernel)
    with pytest.raises(TypeError, match="`n_columns` is None"):
        ForecastState(n_columns=None)
    with pytest.raises(ValueError, match="an inner product, but a state needs bounded features"):
        ForecastState(kernel=Linear()).update([0.0], Normal([0.0], [1.0]))
    with pytest.raises(ValueError, match="`target_kernel` is .*inner product"):
        ForecastState(target_kernel=Linear()).update([0.0], Normal([0.0], [1.0]))


def test_an_error_leaves_the_state_as_it_was():
    state = ForecastState(**KERNELS, n_columns=16)
    empty = state.to_bytes()
    with pytest.raises(ValueError, match="is nan"):
        state.update([np.nan], Normal([0.0], [1.0]))
    with pytest.raises(ValueError, match="at most 262144 in a state"):
        state.update([1.0], Normal([0.0], [1.0]), [1e9])
    assert state.to_bytes() == empty and state.options.prediction is None
    state.update(Y[:5], normal(slice(5)))
    before = state.to_bytes()
    with pytest.raises(ValueError, match="rows 2 to 4 were added already"):
        state.update(Y[:5], normal(slice(5)), first_row=2)
    with pytest.raises(TypeError, match="expected a ForecastState"):
        state.merge(CalibrationState(2))
    assert state.to_bytes() == before


def test_a_dry_start_of_a_stream_leaves_a_scale_that_results_tell():
    """Ensembles of rain where it does not rain at first: all draws are 0."""
    dry, rain = Samples(np.zeros((2000, 5))), np.random.default_rng(0).gamma(2.0, size=(400, 6))
    state = ForecastState(n_columns=16).update(np.zeros(2000), dry)
    assert state.skce().value == 0 and "no median, draws" in state.skce().bandwidth_source
    e = state.update(rain[:, 0], Samples(rain[:, 1:])).result()
    assert e.n_samples == 2400 and e.crps == pytest.approx(kcalib.crps(rain[:, 0], Samples(rain[:, 1:])) / 6)
    assert state.target_kernel == Gaussian(1.0)


def test_sums_of_more_draws_than_there_is_memory_are_refused():
    with pytest.raises(MemoryError, match="sums of 1048576 draws of targets.*fewer `n_resamples` or `n_columns`"):
        ForecastState(**KERNELS, n_columns=4096, n_resamples=2**20).update(Y[:5], normal(slice(5)))


def test_an_empty_batch_adds_nothing():
    state = ForecastState(**KERNELS, n_columns=16).update(Y[:5], normal(slice(5)))
    before = state.to_bytes()
    none = normal().take(slice(0, 0))
    assert state.update([], none).update([], none, []).to_bytes() == before
    with pytest.raises(ValueError, match=r"`y_true` has shape \(1,\), expected \(0,\)"):
        state.update([1.0], none)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_stops_draws_soon_and_leaves_the_state_as_it_was(threads):
    prediction = normal()
    state = ForecastState(**KERNELS, n_columns=32, n_resamples=800, threads=threads).update(Y[:1], normal(slice(1)))
    before = state.to_bytes()
    stops_within_a_second(lambda: state.update(Y, prediction), after=0.2)
    assert state.to_bytes() == before


@FEW_EVENTS
def test_scores_of_any_size_add_up():
    huge = Normal([0.0, 0.0], [1e-15, 1e15])
    state = ForecastState(kernel=Exponential(1.0), target_kernel=Gaussian(1.0), n_columns=16)
    state.update([1e14, 1.0], huge).update([1e-30], Normal([0.0], [1e-15]), first_row=5000)
    assert state.result().rmse == pytest.approx(1e14 / np.sqrt(3), rel=1e-15)
    both = Normal([0.0, 0.0, 0.0], [1e-15, 1e15, 1e-15])
    assert state.result().log_score == pytest.approx(kcalib.log_score([1e14, 1.0, 1e-30], both), rel=1e-15)


def test_quantiles_need_no_kernel_and_numbers():
    one = ForecastState().update([0.0], Normal([0.0], [1.0]))
    assert one.quantile_calibration().coverage.tolist() == [0.0] * 9 + [1.0] * 10
    with pytest.raises(ValueError, match="needs at least 2 samples"):
        one.result()
    with pytest.raises(ValueError, match="quantiles need numbers"):
        ForecastState().update(np.zeros((1, 2)), Normal(np.zeros((1, 2)), np.ones((1, 2)))).quantile_calibration()
    with pytest.raises(ValueError, match="make a state without `sample_weight`"):
        ForecastState().update([0.0], Normal([0.0], [1.0]), [2.0]).quantile_calibration()


def test_target_kernels_of_matrices():
    prediction, y, _ = problem("multivariate normal", 60)
    options = {"kernel": Exponential(1.0), "target_kernel": MahalanobisGaussian([[2.0, 0.5], [0.5, 1.0]])}
    state = ForecastState(**options, n_columns=16).update(y, prediction)
    wanted = kcalib.skce(y, prediction, **options, estimator=kcalib.methods.FeatureEstimator(n_columns=16))
    assert state.skce().value == pytest.approx(wanted, rel=1e-11)
    assert ForecastState.from_bytes(state.to_bytes()) == state


@pytest.mark.grid
@FEW_EVENTS
def test_results_of_few_and_of_many_rows():
    for n in (2, 4, 20):
        result = ForecastState(**KERNELS, n_columns=16).update(Y[:n], normal(slice(n))).result()
        assert result.n_samples == n and 0 <= result.test.pvalue <= 1
    method = kcalib.methods.Features(n_columns=16, n_resamples=1)
    for n, rel in ((600, 1e-10), (1100, 0.05)):  # all rows are kept, and a sample of them
        y, sharp = Y[:n], Normal(MEAN[:n], 0.6 * STD[:n])
        found = ForecastState(kernel=KERNELS["kernel"], n_columns=16).update(y, sharp).result()
        assert found.miscalibrated and found.verdict.startswith("miscalibrated, over-confident: off by at least")
        expected = kcalib.evaluate(y, sharp, kernel=KERNELS["kernel"], method=method)
        for name in (
            "standard_error",
            "features_standard_error",
            "features_freedom",
            "variance_slope",
            "variance_constant",
        ):
            assert getattr(found.test, name) == pytest.approx(getattr(expected.test, name), rel=rel), name
        assert found.kernel_eigenvalue == pytest.approx(expected.kernel_eigenvalue, rel=rel)


@pytest.mark.parametrize("unit", [1e4])
def test_the_first_rows_may_be_identical(unit):
    """Climatology: the kernel is 1 at each bandwidth; what is kept for others to come has the unit of the targets."""
    climatology = Normal(np.zeros(N), np.full(N, unit))
    options = {"target_kernel": Gaussian(unit), "n_columns": 16, "n_resamples": 0}
    state = ForecastState(**options).update(unit * Y, climatology)
    found = state.skce()
    assert state.kernel == Exponential(unit, metric="wasserstein")
    assert found.bandwidth_source == "no median: the first 2000 predictions are identical"
    expected = kcalib.skce.result(unit * Y, climatology, target_kernel=Gaussian(unit))
    assert abs(found.value - expected.value) < 4 * np.hypot(found.standard_error, expected.standard_error)
