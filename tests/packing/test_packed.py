"""One packed problem: in another order, or with other targets, it is what packing with its kernels would give."""

import dataclasses

import numpy as np
import pytest
from few_events import FEW_EVENTS
from grid import sampled

import kcalib
from kcalib import _packing
from kcalib import kernels as K
from kcalib._input.forecasts import prepare
from kcalib._packing import forecasts, labels
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.reductions import DenseRectangle, Moments, sweep_one
from kcalib.distributions import Laplace, MultivariateNormal, Normal, Poisson, Samples
from kcalib.estimators.skce import PairOptions
from kcalib.inference import task
from kcalib.target_kernels import Draws, MahalanobisGaussian

N = 24
RNG = np.random.default_rng(0)
MEAN = RNG.normal(size=(N, 2))
COVARIANCES = np.tile([[1.0, 0.3], [0.3, 0.5]], (N, 1, 1))
P2, P3 = RNG.dirichlet(np.ones(2), N), RNG.dirichlet(np.ones(3), N)
GAUSSIAN = K.Gaussian(bandwidth=0.7)

# Targets, predictions, and kernels whose bandwidths are numbers.
CASES = {
    "labels": (RNG.integers(3, size=N), P3, K.Exponential(bandwidth=0.5), None),
    "binary": (RNG.integers(2, size=N), P2, K.Exponential(bandwidth=0.5), None),
    "matrix": (RNG.integers(3, size=N), P3, GAUSSIAN, np.eye(3) + 0.5),
    "normal": (MEAN[:, 1], Normal(MEAN[:, 0], 1.5), K.Exponential(bandwidth=0.5, metric="wasserstein"), GAUSSIAN),
    "laplace": (MEAN[:, 1], Laplace(MEAN[:, 0], 1.5), K.Exponential(bandwidth=0.5, metric="wasserstein"),
                K.Exponential(bandwidth=0.8)),
    "mmd": (MEAN[:, 1], Normal(MEAN[:, 0], 1.5), K.Gaussian(bandwidth=0.5, metric=K.MMD(1.0)), GAUSSIAN),
    "table": (MEAN[::-1], MultivariateNormal(MEAN, COVARIANCES), K.Exponential(bandwidth=0.5, metric="wasserstein"),
              GAUSSIAN),
    "mahalanobis": (MEAN[::-1], MultivariateNormal(MEAN, COVARIANCES), K.Gaussian(bandwidth=0.5, metric=K.MMD(1.0)),
                    MahalanobisGaussian(np.eye(2) + 0.2)),
    "atoms": (MEAN[:, 1], Samples(MEAN[:, :1] + RNG.normal(size=(N, 3))), K.Gaussian(bandwidth=0.5, metric=K.MMD(1.0)),
              GAUSSIAN),
    "features": (RNG.poisson(3, size=N), Poisson(RNG.uniform(1, 5, size=N)), K.Gaussian(bandwidth=0.5), GAUSSIAN),
    "draws": (MEAN[:, 1], Normal(MEAN[:, 0], 1.5), K.Exponential(bandwidth=0.5), Draws(GAUSSIAN, 5)),
}  # fmt: skip

pytestmark = [FEW_EVENTS, pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")]


@pytest.fixture(params=[name for name in CASES if name != "draws"])  # their draws depend on the row
def case(request):
    y, prediction, kernel, target_kernel = CASES[request.param]
    return prepare(y, prediction), kernel, target_kernel


def _matrix(packed):
    n = len(packed.problem.left.points)
    return sweep_one(ArrayApiBackend(packed.problem), DenseRectangle(slice(0, n), slice(0, n)))


def _no_packing(monkeypatch):
    """What chooses bandwidths and points may not be called any more."""

    def refuse(*arguments, **options):
        raise AssertionError("packed a second time")

    for module, name in ((labels, "median_of_points"), (labels, "resolve"), (forecasts, "resolve")):
        monkeypatch.setattr(module, name, refuse)


def _assert_close(packed, expected):
    # Features of target kernels come from the targets, too: those drawn later are approximated as well.
    np.testing.assert_allclose(_matrix(packed), _matrix(expected), rtol=1e-9, atol=1e-11)


def test_another_order(case, monkeypatch):
    data, *kernels = case
    packed, order = _packing.pack(data, *kernels), data.order(3)
    expected = _packing.pack(data.take(order), *kernels)
    _no_packing(monkeypatch)
    taken = packed.take(order)
    _assert_close(taken, expected)
    assert (taken.kernel, taken.medians) == (packed.kernel, packed.medians)


@pytest.mark.parametrize("name", CASES)
def test_another_order_has_the_same_entries(name):
    y, prediction, *kernels = CASES[name]
    packed, order = _packing.pack(prepare(y, prediction), *kernels), np.random.default_rng(3).permutation(N)
    np.testing.assert_array_equal(_matrix(packed.take(order)), _matrix(packed)[np.ix_(order, order)])


def test_other_targets(case, monkeypatch):
    data, *kernels = case
    packed, drawn = _packing.pack(data, *kernels), data.draw(1, 0)
    expected = _packing.pack(drawn, *kernels)
    _no_packing(monkeypatch)
    _assert_close(packed.with_targets(drawn), expected)


def test_other_targets_in_another_order(case, monkeypatch):
    """The target goes with the samples: targets that come later stand beside the right predictions."""
    data, *kernels = case
    packed, (rows, drawn) = _packing.pack(data, *kernels), data.redraw(1, 0)
    expected = _packing.pack(drawn, *kernels)
    _no_packing(monkeypatch)
    _assert_close(packed.take(rows).with_targets(drawn), expected)
    assert not np.allclose(_matrix(packed.take(rows)), _matrix(expected))


def test_samples_stand_on_the_right_of_locations(case, monkeypatch):
    data, *kernels = case
    locations = data.take(np.arange(4)).draw(5, 0)
    packed, order = _packing.pack_locations(data, locations, *kernels), data.order(2)
    drawn = data.take(order).draw(1, 0)
    expected = _packing.pack_locations(drawn, locations, *kernels)
    _no_packing(monkeypatch)
    found = packed.take(order).with_targets(drawn)
    # Rows of a table of distances are those of the locations, so the order of the columns alone differs.
    assert len(found.problem.left.points) == 4 and len(found.problem.columns.points) == N
    tiles = [
        sweep_one(ArrayApiBackend(one.problem), DenseRectangle(slice(0, 4), slice(0, N))) for one in (found, expected)
    ]
    np.testing.assert_allclose(*tiles, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["labels", "normal", "features"])
def test_features_of_other_predictions_on_the_same_points(name):
    y, prediction, *kernels = CASES[name]
    packed, other = _packing.pack(prepare(y, prediction), *kernels), prepare(y, _flipped(prediction))
    found = packed.with_features_of(other)
    np.testing.assert_array_equal(found.problem.left.points, packed.problem.left.points)
    features = _packing.pack(other, *kernels).problem.left.features
    if found.problem.target is None and name == "features":  # another basis
        features, ours = features @ features.T, found.problem.left.features @ found.problem.left.features.T
        np.testing.assert_allclose(ours, features, atol=1e-11)
    else:
        np.testing.assert_array_equal(found.problem.left.features, features)


def _flipped(prediction):
    rows = np.arange(N)[::-1].copy()
    return prediction[rows] if isinstance(prediction, np.ndarray) else prediction.take(rows)


@pytest.mark.parametrize(
    ("kernel", "bandwidth"),
    [
        (K.Gaussian(bandwidth=0.3), 0.3),
        (K.Linear() + K.Gaussian(bandwidth=0.3), 0.3),
        (K.Gaussian(bandwidth=0.3) + 2 * K.Exponential(bandwidth=0.3), 0.3),
        (K.Gaussian(bandwidth=0.3) * K.Exponential(bandwidth=0.4), None),
        (K.Linear(), None),
    ],
)
def test_bandwidth_of_results(kernel, bandwidth):
    result = kcalib.skce.result(*CASES["labels"][:2], kernel=kernel)
    assert result.bandwidth == bandwidth


def test_bandwidth_of_results_is_the_median():
    y, p, *_ = CASES["labels"]
    median = kcalib.bandwidth.median_distance(p).value
    models = {"a": p, "b": p}
    results = [
        kcalib.skce.result(y, p),
        kcalib.ucme.result(y, p),
        kcalib.ckce.result(y, p),
        kcalib.calibration_test(y, p, method="spectrum"),
        kcalib.calibration_test(y, p, method="cme", seed=0),
        kcalib.compare(y, models),
        kcalib.compare(y, models, metric="ckce"),
    ]
    assert [result.bandwidth for result in results] == [median] * len(results)
    assert kcalib.compare(y, models, metric="brier_score").bandwidth is None
    assert kcalib.mmce.result(y, p).bandwidth == 0.4


@pytest.mark.parametrize(("name", "method"), sampled(CASES, ("spectrum", "block"), 2))
def test_evaluate_packs_once_and_sweeps_once(name, method, monkeypatch):
    y, prediction, *_ = CASES[name]
    packings, sweeps = [], []
    originals = {module: module.resolve for module in (labels, forecasts)}
    for module, original in originals.items():
        monkeypatch.setattr(
            module, "resolve", lambda *a, original=original, **k: packings.append(0) or original(*a, **k)
        )

    def counting(make):
        def made(*arguments):
            backend = make(*arguments)
            sweep = backend.sweep

            def counted(reductions):
                sweeps.extend(one for one in reductions if isinstance(one, Moments))
                return sweep(reductions)

            backend.sweep = counted
            return backend

        return made

    monkeypatch.setattr(PairOptions, "backend_for", counting(PairOptions.backend_for))
    monkeypatch.setattr(task.Task, "backend_of", counting(task.Task.backend_of))
    result = kcalib.evaluate(y, prediction, method=method)
    assert len(packings) == 1
    # One sweep over the pairs, and for the spectrum of distributions but counts one with drawn targets.
    of_the_law = (
        method == "spectrum" and isinstance(prediction, kcalib.distributions.Distribution) and name != "features"
    )
    assert len(sweeps) == 1 + of_the_law
    assert result.skce.bandwidth == result.test.bandwidth
    assert dataclasses.asdict(result.skce)["kernel"] == result.test.kernel


@pytest.mark.parametrize("name", CASES)
def test_estimates_of_evaluate_are_those_of_skce(name):
    y, prediction, *_ = CASES[name]
    expected = kcalib.skce.result(y, prediction)
    found = kcalib.evaluate(y, prediction, method="gamma").skce
    assert dataclasses.replace(found, seconds=0.0) == dataclasses.replace(expected, seconds=0.0)


def test_a_kind_of_data_that_is_not_packed_says_so():
    with pytest.raises(NotImplementedError, match="class 'object'"):
        _packing.pack(object(), None, None)
    with pytest.raises(NotImplementedError, match="class 'object'"):
        _packing.pack_locations(object(), object(), None, None)


def test_counts_of_rates_near_zero_have_the_smallest_distance_as_a_bandwidth():
    """One draw of each is 0, and the first draws that differ are 1."""
    data = prepare(np.zeros(40), Poisson(np.geomspace(1e-8, 1e-6, 40)))
    packed = _packing.pack(data, K.Exponential(bandwidth=1.0), K.Gaussian())
    assert packed.target.kernel == K.Gaussian(bandwidth=1.0)
    kernel = K.Exponential(bandwidth=1.0, metric="wasserstein")
    zeros = _packing.pack(prepare(np.zeros(4), Samples(np.zeros((4, 3)))), kernel, K.Gaussian())
    assert zeros.target.kernel == K.Gaussian(bandwidth=1.0)  # of no scale at all
