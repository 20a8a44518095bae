"""States of samples in clusters: the test of samples in memory, and the same bits from parts that clusters span."""

import pickle

import numpy as np
import pytest

import kcalib
from kcalib.distributions import MultivariateNormal, Normal, Poisson
from kcalib.kernels import Exponential, Gaussian
from kcalib.methods import Adaptive
from kcalib.streaming import CalibrationState, ComparisonState, ForecastState, GroupedState

OPTIONS = {"kernel": Exponential(0.5), "n_columns": 16, "n_resamples": 99, "seed": 3, "clusters": True}
METHOD = Adaptive(n_resamples=99, n_columns=16)


def problem(n, m=3, n_clusters=200):
    rng = np.random.default_rng(0)
    p, cluster = rng.dirichlet(np.ones(m), size=n), rng.integers(0, n_clusters, size=n)
    return (p.cumsum(axis=1) < rng.uniform(size=n_clusters)[cluster, None]).sum(axis=1), p, cluster


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bandwidth", [0.5, 0.01])
def test_the_test_is_that_in_memory(weighted, bandwidth):
    y, p, cluster = problem(1500)
    weight = np.where(p[:, 0] > 0.5, 3.0, 1.0) if weighted else None
    kernel = Exponential(bandwidth)
    state = CalibrationState(3, **OPTIONS | {"kernel": kernel}).update(y, p, weight, clusters=cluster)
    test = kcalib.calibration_test(y, p, sample_weight=weight, clusters=cluster, kernel=kernel, method=METHOD, seed=3)
    result = state.calibration_test()
    assert (result.pvalue, result.finding, result.null_law) == (test.pvalue, test.finding, test.null_law)
    for block, same in zip(result.blocks, test.blocks, strict=True):
        scale = np.mean(weight**2) if weighted and "kernel" in block.name else 1
        assert (block.name, block.pvalue) == (same.name, same.pvalue)
        assert block.statistic / scale == pytest.approx(same.statistic, rel=1e-6)
    assert result.estimate == state.skce().value == pytest.approx(test.estimate, rel=1e-9)
    assert result.estimator == test.estimator
    assert result.standard_error is result.features_standard_error is None
    assert state.result().rms_error_lower is state.scores().accuracy.standard_error is None


def test_parts_that_clusters_span_have_the_bits_of_the_whole():
    y, p, cluster = problem(9000)
    whole = CalibrationState(3, **OPTIONS).update(y, p, clusters=cluster)
    parts = []
    for rows in np.split(np.arange(9000), [10, 5000, 7000]):
        names = cluster[rows].astype(float)  # the same numbers
        part = CalibrationState(3, **OPTIONS, threads=1 + len(parts) % 2)
        parts.append(part.update(y[rows], p[rows], clusters=names, first_row=int(rows[0])))
    assert parts[3] + (parts[1] + parts[0]) + parts[2] == whole
    assert CalibrationState.from_bytes(whole.to_bytes()) == whole == pickle.loads(pickle.dumps(whole))


def test_bandwidths_of_the_first_rows_and_names_of_clusters():
    y, p, cluster = problem(3000, 2)
    names = np.array([f"patient {k}" for k in cluster])
    options = {key: value for key, value in OPTIONS.items() if key != "kernel"}
    state = CalibrationState(2, **options)
    for rows in np.split(np.arange(3000), 6):
        state = CalibrationState.from_bytes(state.update(y[rows], p[rows, 1], clusters=names[rows]).to_bytes())
    test = kcalib.calibration_test(y, p[:, 1], clusters=names, kernel=state.kernel, method=METHOD, seed=3)
    assert state.calibration_test().pvalue == test.pvalue


@pytest.mark.parametrize("family", [Normal, Poisson, MultivariateNormal])
def test_predicted_distributions_have_the_test_in_memory_and_parts(family):
    rng, n = np.random.default_rng(4), 2500
    cluster = rng.integers(0, 150, size=n)
    prediction = {
        Normal: lambda: Normal(rng.normal(size=n), np.full(n, 1.2)),
        Poisson: lambda: Poisson(rng.uniform(1, 5, size=n)),
        MultivariateNormal: lambda: MultivariateNormal(rng.normal(size=(n, 2)), np.tile(np.eye(2), (n, 1, 1))),
    }[family]()
    mean = prediction.expected_value()
    y = rng.poisson(mean[:, 0]) if family is Poisson else (mean + rng.normal(size=mean.shape)).squeeze()
    kernel = Exponential(1.0) if family is MultivariateNormal else Exponential(1.0, metric="wasserstein")
    kernels = {"kernel": kernel, "target_kernel": Gaussian(1.0)}
    options = kernels | {name: OPTIONS[name] for name in ("n_resamples", "n_columns", "seed", "clusters")}
    whole = ForecastState(**options).update(y, prediction, clusters=cluster)
    parts = [
        ForecastState(**options).update(y[rows], prediction.take(rows), clusters=cluster[rows], first_row=int(rows[0]))
        for rows in np.split(np.arange(n), [1000, 1100])
    ]
    assert parts[2] + (parts[0] + parts[1]) == whole == ForecastState.from_bytes(whole.to_bytes())
    test = kcalib.calibration_test(y, prediction, clusters=cluster, method=METHOD, seed=3, **kernels)
    result = whole.calibration_test()
    for block, same in zip(result.blocks, test.blocks, strict=True):
        assert (block.name, block.finding) == (same.name, same.finding)
        if family is not Poisson or "kernel" not in block.name:  # in memory features of few counts are exact
            assert block.pvalue == same.pvalue
            assert block.statistic == pytest.approx(same.statistic, rel=1e-6)
    assert result.null_law == test.null_law
    assert whole.result().rms_error_lower is result.standard_error is None


def test_groups_of_samples_in_clusters():
    y, p, cluster = problem(600)
    grouped = GroupedState(3, **OPTIONS).update(y, p, group=np.arange(600) % 2, clusters=cluster)
    odd = CalibrationState(3, **OPTIONS).update(y[1::2], p[1::2], clusters=cluster[1::2])
    assert grouped.groups[1] == odd


def test_states_of_clusters_refuse_what_they_cannot_say():
    y, p, cluster = problem(100)
    state = CalibrationState(3, **OPTIONS)
    with pytest.raises(ValueError, match="`clusters` is None, but the state was made with clusters=True; pass the"):
        state.update(y, p)
    with pytest.raises(ValueError, match=r"`clusters` has the shape \(99,\), expected \(100,\)"):
        state.update(y, p, clusters=cluster[1:])
    state.update(y, p, clusters=cluster)
    independent = CalibrationState(3, **OPTIONS | {"clusters": False})
    with pytest.raises(ValueError, match="`clusters` is given, but the state was made without; make it with"):
        independent.update(y, p, clusters=cluster)
    with pytest.raises(ValueError, match="`clusters` is True in one state and False in the other"):
        state.merge(independent.update(y, p, first_row=100))
    with pytest.raises(ValueError, match="the ECE of samples in clusters has no interval; make a state without clus"):
        state.ece_interval()
    with pytest.raises(ValueError, match="`n_resamples` is 0, expected at least 1 for clusters"):
        CalibrationState(3, **OPTIONS | {"n_resamples": 0})
    with pytest.raises(TypeError, match="`clusters` is .*, expected True or False; pass the clusters themselves to"):
        CalibrationState(3, **OPTIONS | {"clusters": "patient"})
    with pytest.raises(ValueError, match="`clusters` is for states of single models; leave it out"):
        ComparisonState(3, clusters=True)
    with pytest.raises(ValueError, match="`clusters` has 1 cluster of positive weight"):
        CalibrationState(3, **OPTIONS).update(y, p, clusters=np.zeros(100)).calibration_test()
    assert state.n_samples == 100
