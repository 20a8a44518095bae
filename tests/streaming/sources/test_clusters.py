"""Sources of samples in clusters, which are named as labels are."""

import numpy as np
import pytest

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, run, source

N = 300
RNG = np.random.default_rng(0)
P, NUMBERS = RNG.dirichlet(np.ones(3), size=N), RNG.integers(0, 60, size=N)
Y = (P.cumsum(axis=1) < RNG.uniform(size=60)[NUMBERS, None]).sum(axis=1)
NAMES = np.where(NUMBERS < 30, NUMBERS.astype(str), "patient")  # some are numbers
OPTIONS = {"kernel": Exponential(0.5), "n_columns": 16, "n_resamples": 99, "clusters": True}


def batches():
    for rows in np.split(np.arange(N), 5):
        yield {"labels": Y[rows], "probs": P[rows], "patient": NAMES[rows]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", labels=Y, probs=P, patient=NAMES)
    np.save("patients.npy", NAMES)
    lines = [",".join(map(str, (y, *p.tolist(), name))) for y, p, name in zip(Y, P, NAMES, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["label,p_0,p_1,p_2,patient", *lines]))


@pytest.mark.parametrize(
    ("data", "clusters"),
    [
        ("a.npz", "patient"),
        ("a.csv", "patient"),
        ("a.npz", "patients.npy"),
        ((Y, P), NAMES),
        ({"y": Y, "p": P, "patient": NAMES}, "patient"),
        (batches, "patient"),
    ],
)
def test_a_run_adds_the_clusters_of_a_source(folder, data, clusters):
    samples = source(data, clusters=clusters)
    state = CalibrationState(3, **OPTIONS).update(Y, P, clusters=NAMES)
    assert run(CalibrationState(3, **OPTIONS), samples, chunk_rows=70) == state
    assert "clusters" in samples.describe()
    assert samples.fingerprint() != source(data).fingerprint()
    method, seed = kcalib.methods.Adaptive(n_resamples=99, n_columns=16), state.options.seed
    test = kcalib.calibration_test(samples, kernel=OPTIONS["kernel"], method=method, seed=seed)
    assert (test.pvalue, test.null_law) == (state.calibration_test().pvalue, state.calibration_test().null_law)
    of_skce = CalibrationState(3, kernel=OPTIONS["kernel"], n_columns=16, clusters=True).update(Y, P, clusters=NAMES)
    estimator = kcalib.methods.FeatureEstimator(16, seed=seed)
    assert kcalib.skce(samples, kernel=OPTIONS["kernel"], estimator=estimator) == of_skce.skce().value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: source((Y, P), clusters="patient"), "`clusters` is 'patient', but a pair"),
        (lambda: source((Y, P), clusters=NAMES[1:]), r"array of the clusters has shape \(299,\)"),
        (
            lambda: source({"y": Y, "p": P}, clusters=NAMES),
            "`clusters` is an array, expected a name; arrays go with a pair",
        ),
        (lambda: source("a.npz", clusters="patent"), "no array 'patent' for clusters=.*did you mean 'patient'"),
        (lambda: source([(Y, P)], clusters="patient"), "clusters= is a name, but batches are pairs without names"),
        (lambda: source(batches(), clusters="patient"), "clusters= reads the samples twice, but `data` is an iterator"),
        (lambda: run(CalibrationState(3, **OPTIONS), source("a.npz")), "but the source has no clusters; open it with"),
        (
            lambda: run(CalibrationState(3), source("a.npz", clusters="patient")),
            "`clusters` is given, but the state was made without; make it with clusters=True",
        ),
        (
            lambda: kcalib.compare({"a": source("a.npz", clusters="patient"), "b": source("a.npz")}),
            "the source of 'a' has clusters, but a comparison of sources has none; open it without",
        ),
        (
            lambda: kcalib.calibration_test(source("a.npz"), clusters=NAMES),
            "`clusters` is given, but sums over a source have no such option; open the source with clusters=",
        ),
    ],
)
def test_clusters_that_a_source_cannot_have(folder, call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
