"""`evaluate`, `skce`, `calibration_test` and `compare` of sources: what states say, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import kcalib
from kcalib._backend.options import SEED
from kcalib.kernels import Exponential, Gaussian
from kcalib.methods import ECE
from kcalib.streaming import CalibrationState, source

RNG = np.random.default_rng(3)
N = 2203
P = RNG.dirichlet(np.ones(3), size=N)
Y = (np.cumsum(P, axis=1) < RNG.uniform(size=(N, 1))).sum(axis=1)
Q = P**1.5 / (P**1.5).sum(axis=1, keepdims=True)
KERNEL = Exponential(0.4)


def batches(p, size=301):
    """A function that gives the samples in batches: their number is not known before they are read."""
    return lambda: ((Y[i : i + size], p[i : i + size]) for i in range(0, N, size))


# -- blocks


@pytest.mark.parametrize("lens", [None, kcalib.lenses.TopLabel()])
@pytest.mark.parametrize("size", [2, 7, 54, 2203])
def test_blocks_are_those_of_all_samples(monkeypatch, lens, size):
    """In pieces of whole blocks, whatever their number."""
    whole = kcalib.skce.result(Y, Q, estimator=kcalib.methods.BlockEstimator(block_size=size), kernel=KERNEL, lens=lens)
    for piece in (100, 65_536):
        monkeypatch.setattr("kcalib.estimators.skce.CHUNK", piece)
        for data in ((Y, Q), batches(Q)):
            found = kcalib.skce.result(
                source(data), estimator=kcalib.methods.BlockEstimator(block_size=size), kernel=KERNEL, lens=lens
            )
            assert found.value == pytest.approx(whole.value, rel=1e-12)
            if size == 2203:
                assert found.standard_error is whole.standard_error is None
            else:
                assert found.standard_error == pytest.approx(whole.standard_error, rel=1e-9)
            same = ("n_samples", "n_samples_used", "block_size", "kernel", "bandwidth_source", "n_classes", "lens")
            assert [getattr(found, name) for name in same] == [getattr(whole, name) for name in same]


def test_pairs_of_samples_and_the_default_size():
    for estimator in ("linear", "block"):
        whole = kcalib.skce(Y, Q, estimator=estimator, kernel=KERNEL)
        assert kcalib.skce(source((Y, Q)), estimator=estimator, kernel=KERNEL) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    "p",
    [
        np.repeat(np.eye(3), 40, axis=0) * (1 - 3e-6) + 1e-6,
        np.round(P[:100], 1) + [0, 0, 1] * (1 - np.round(P[:100], 1).sum(axis=1, keepdims=True)),
        P[:4],
    ],
)
def test_blocks_of_hard_predictions(p):
    p = p[(p >= 0).all(axis=1)]
    y = np.arange(len(p)) % 3
    whole = kcalib.skce(y, p, estimator="block", kernel=KERNEL)
    assert kcalib.skce(source((y, p)), estimator="block", kernel=KERNEL) == pytest.approx(whole, rel=1e-12, abs=1e-18)


def test_a_bandwidth_that_is_not_given_is_that_of_the_first_samples():
    found = kcalib.skce.result(source((Y, Q)), estimator="block")
    first = kcalib.skce.result(Y[:2000], Q[:2000])
    assert (found.kernel, found.bandwidth) == (first.kernel, first.bandwidth)
    assert found.bandwidth_source == "median euclidean distance of the first 2000 samples"
    whole = kcalib.skce(Y, Q, estimator="block", kernel=Exponential(found.bandwidth))
    assert found.value == pytest.approx(whole, rel=1e-12)


def test_blocks_of_identical_predictions():
    y, p = np.arange(2400) % 3, np.tile([0.2, 0.3, 0.5], (2400, 1))
    whole, found = (
        kcalib.skce.result(*data, estimator=kcalib.methods.BlockEstimator(block_size=40))
        for data in ((y, p), (source((y, p)),))
    )
    assert found.value == pytest.approx(whole.value, rel=1e-12)
    assert found.bandwidth_source == "no median: the first 2000 predictions are identical"


def test_blocks_need_a_size_where_the_number_of_samples_is_not_known():
    with pytest.raises(ValueError, match="`block_size` is None, but the source does not know .*; pass a block size"):
        kcalib.skce(source(batches(Q)), estimator="block")
    with pytest.raises(ValueError, match="there are 2203 samples, expected at least the 5000 of a block"):
        kcalib.skce(source(batches(Q)), estimator=kcalib.methods.BlockEstimator(block_size=5000))
    with pytest.raises(ValueError, match="`block_size` is 5000, expected an integer between 2 and 2203"):
        kcalib.skce(source((Y, Q)), estimator=kcalib.methods.BlockEstimator(block_size=5000))


# -- sums


def state_of(p=Q, size=77, **options):
    state = CalibrationState(3, **options)
    for start in range(0, N, size):
        state.update(Y[start : start + size], p[start : start + size])
    return state


def plain(result):
    """A result without what differs between two runs of the same."""
    return {name: value for name, value in vars(result).items() if name != "seconds"}


def test_the_bits_are_those_of_a_state(monkeypatch):
    state = state_of()
    for rows, data in ((65_536, (Y, Q)), (1000, batches(Q))):
        monkeypatch.setattr("kcalib.streaming.sources.reader_source.CHUNK_ROWS", rows)
        found, expected = kcalib.evaluate(source(data)), state.result()
        assert plain(found.skce) == plain(expected.skce) and plain(found.test) == plain(expected.test)
        left_out = ("skce", "test")
        assert {k: v for k, v in vars(found).items() if k not in left_out} == {
            k: v for k, v in vars(expected).items() if k not in left_out
        }
        assert plain(kcalib.calibration_test(source(data), seed=0)) == plain(state.calibration_test())


def test_features():
    found = kcalib.skce.result(source((Y, Q)), estimator="features")
    assert plain(found) == plain(state_of(n_resamples=0).skce())
    assert kcalib.skce(source((Y, Q)), estimator="features") == found.value


def test_options_reach_the_state():
    options = {"kernel": Gaussian(0.3), "lens": kcalib.lenses.TopLabel(), "seed": 5}
    samples = source((Y, Q))
    kernel_and_lens = {name: options[name] for name in ("kernel", "lens")}
    features = kcalib.methods.FeatureEstimator(n_columns=64, seed=5)
    found = kcalib.skce.result(samples, estimator=features, **kernel_and_lens)
    assert plain(found) == plain(state_of(n_columns=64, n_resamples=0, **options).skce())
    method = kcalib.methods.Adaptive(n_columns=64, n_resamples=99)
    state = state_of(n_columns=64, n_resamples=99, **options)
    assert plain(kcalib.calibration_test(samples, method=method, **options)) == plain(state.calibration_test())
    state = state_of(**options)
    found = kcalib.evaluate(samples, level=0.01, tolerance=0.1, method="adaptive", **options)
    expected = state.result(level=0.01, tolerance=0.1)
    assert (found.top_label_ece, found.verdict) == (expected.top_label_ece, expected.verdict)
    assert (found.level, found.tolerance, found.skce.value) == (0.01, 0.1, expected.skce.value)
    drawn = kcalib.evaluate(samples, seed=None)
    assert drawn.test.seed != SEED and kcalib.evaluate(samples, seed=drawn.test.seed).test.pvalue == drawn.test.pvalue


def test_draws_that_are_asked_for():
    """Of distributions there are none by default; an object asks for those that it has."""
    mean = np.linspace(-1, 1, 60)
    samples = source({"y": mean[::-1], "mean": mean, "std": np.ones(60)})
    method = kcalib.methods.Adaptive(n_columns=16, n_resamples=199)
    remedy = r"of a source pass method=kcalib.methods.Adaptive\(n_resamples=199\)"
    with pytest.warns(kcalib.AntiConservativeWarning, match=remedy):
        assert kcalib.calibration_test(samples).pvalue_from == "law"
    found = kcalib.calibration_test(samples, method=method)
    assert (found.pvalue_from, found.n_resamples) == ("draws", 199)


def test_sums_agree_with_all_samples_at_once():
    found = kcalib.evaluate(source((Y, Q)), kernel=KERNEL)
    assert found.log_loss == pytest.approx(kcalib.log_loss(Y, Q), rel=1e-12)
    assert found.brier_score == pytest.approx(kcalib.brier_score(Y, Q), rel=1e-12)
    assert found.top_label_ece == pytest.approx(kcalib.top_label_ece(Y, Q), rel=1e-12)
    assert found.accuracy == np.mean(Q.argmax(axis=1) == Y)
    features = kcalib.skce(Y, Q, estimator=kcalib.methods.FeatureEstimator(n_columns=256), kernel=KERNEL)
    assert found.skce.value == pytest.approx(features, rel=1e-12)


def test_logits_and_classes_are_those_of_the_source():
    names = ["a", "b", "c"]
    samples = source((np.array(names)[Y], np.log(Q)), from_logits=True, classes=names)
    assert kcalib.evaluate(samples).skce.value == pytest.approx(kcalib.evaluate(source((Y, Q))).skce.value, rel=1e-9)


# -- comparison


@pytest.mark.parametrize("metric", ["skce", "ece", "brier_score", "log_loss"])
def test_models_are_compared_as_their_states_are(metric):
    from kcalib.streaming import ComparisonState

    state = ComparisonState(3, ("sharp", "right"), n_resamples=0)
    for start in range(0, N, 500):
        rows = slice(start, start + 500)
        state.update(Y[rows], {"sharp": Q[rows], "right": P[rows]})
    found = kcalib.compare({"sharp": source((Y, Q)), "right": source(batches(P))}, metric=metric)
    assert plain(found) == plain(state.result(metric))
    assert found.ranking == ("right", "sharp")


def test_models_of_other_samples():
    other = Y.copy()
    other[2100] = (other[2100] + 1) % 3
    for match, data in (
        (r"the label of sample 2100 is \d for 'a' and \d for 'b'; models are compared on the same", (other, Q)),
        ("'a' has 2203 samples, 'b' has 2000; models are compared on the same samples", (Y[:2000], Q[:2000])),
        ("'b' has 2000 samples, 'a' has more; models are compared on the same sam", [(Y[:2000], Q[:2000])]),
        ("'a' has 2203 samples, 'b' has more", [(np.append(Y, 0), np.vstack([Q, Q[:1]]))]),
        ("'a' has 3 classes, 'b' has 2; models are compared on the same samples, with", (Y, Q[:, 0])),
    ):
        with pytest.raises(ValueError, match=match):
            kcalib.compare({"a": source((Y, P)), "b": source(data)})


# -- what is refused


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
def test_estimators_that_read_all_samples(estimator):
    match = (
        f"`estimator` is '{estimator}', which reads all samples at once; use estimator='features', or pass the samples "
        r"themselves: y, p = source.read\(0, n\)"
    )
    with pytest.raises(ValueError, match=match):
        kcalib.skce(source((Y, Q)), estimator=estimator)


def test_methods_that_read_all_samples():
    for method in ("exact", "features", kcalib.methods.CME()):
        for function in (kcalib.calibration_test, kcalib.evaluate):
            match = "`method` is '.*', which reads all samples at once; use method='adaptive', or pass"
            with pytest.raises(ValueError, match=match):
                function(source((Y, Q)), method=method)
    with pytest.raises(ValueError, match="`metric` is 'ckce', which reads all samples at once; use one of skce, ece"):
        kcalib.compare({"a": source((Y, Q)), "b": source((Y, P))}, metric="ckce")


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: kcalib.skce(s, Q), "`y_pred` is given with a source"),
        (lambda s: kcalib.skce(Y), "`y_pred` is missing; pass labels and predictions, or a source"),
        (lambda s: kcalib.evaluate(Y), "`y_pred` is missing"),
        (lambda s: kcalib.calibration_test(Y), "`y_pred` is missing"),
        (lambda s: kcalib.compare(Y), "`y_preds` is missing; pass labels"),
        (lambda s: kcalib.compare(s), "`y_preds` is missing, and `y_true` is one source; pass labels"),
        (lambda s: kcalib.compare({"a": s, "b": Q}), r"`y_true\['b'\]` is a ndarray, expected a kcalib.*Source"),
        (lambda s: kcalib.compare({1: s}), "`y_true` has the key 1, expected names that are strings"),
    ],
)  # fmt: skip
def test_what_is_no_pair_and_no_source(call, match):
    with pytest.raises(TypeError, match=match):
        call(source((Y, Q)))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: kcalib.skce(s, classes=[1, 2, 3]), "`classes` is .*, but a source has its own; pass it to"),
        (lambda s: kcalib.evaluate(s, from_logits=True), "`from_logits` is True, but a source has its own"),
        (lambda s: kcalib.skce(s, sample_weight=np.ones(N)), "`sample_weight` is .* have no such option"),
        (lambda s: kcalib.skce(s, estimator="features", dtype="float32"), "`dtype` is 'float32', but sums over"),
        (lambda s: kcalib.skce(s, estimator="features", backend="cpu"), "`backend` is 'cpu', but features"),
        (lambda s: kcalib.calibration_test(s, backend="cpu"), "`backend` is 'cpu', but sums over a source"),
        (lambda s: kcalib.evaluate(s, backend="cpu"), "`backend` is 'cpu', but sums over a source have no such option"),
        (lambda s: kcalib.compare({"a": s}), "`y_true` has 1 sources, expected two or more"),
        (lambda s: kcalib.compare({"a": s, "b": s}, metric=ECE(n_resamples=3000)), "`n_resamples` is 3000, but sums"),
    ],
)  # fmt: skip
def test_options_that_sums_do_not_have(call, match):
    with pytest.raises(ValueError, match=match):
        call(source((Y, Q)))


def test_arrays_on_a_gpu(cupy):
    """They stay there until the state has them."""
    samples = source((cupy.asarray(Y), cupy.asarray(Q)))
    y, p = next(samples.chunks(20))
    assert isinstance(p, cupy.ndarray) and isinstance(y, cupy.ndarray)
    found, expected = (kcalib.skce(one, estimator="features") for one in (samples, source((Y, Q))))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.grid
@pytest.mark.parametrize("estimator", ["features", "block"])
def test_memory_is_that_of_a_chunk(tmp_path, estimator):
    """Of 88 MB on disk a process holds no more than of a chunk of 65,536 rows."""
    n, m = 1_000_000, 10
    np.savez(tmp_path / "m.npz", probs=np.full((n, m), 1 / m) + np.linspace(-0.01, 0.01, m), labels=np.arange(n) % m)
    code = f"""
import numpy as np, kcalib
from kcalib.streaming import source
s, k = source({str(tmp_path / "m.npz")!r}), kcalib.kernels.Exponential(0.3)
small = source((np.arange(70_000) % 10, s.read(0, 70_000)[1]))
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])
kcalib.skce(small, estimator={estimator!r}, kernel=k)
before = peak()
kcalib.skce(s, estimator={estimator!r}, kernel=k)
print(peak() - before)
"""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no peak of the resident memory")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000, f"{done.stdout} KB"
