"""Sources of targets and predicted distributions: every format gives the rows that were written, or a sentence."""

from __future__ import annotations

import os
import pickle
import re
import signal

import numpy as np
import pytest
import scipy.stats
from few_events import FEW_EVENTS

import kcalib
from kcalib import distributions
from kcalib.distributions import (
    Categorical,
    Laplace,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
)
from kcalib.estimators import skce
from kcalib.kernels import Exponential, Gaussian
from kcalib.streaming import CalibrationState, ForecastState, RunStopped, load, run, source

RNG = np.random.default_rng(3)
N = 43
Y, MEAN, STD = RNG.normal(size=N), RNG.normal(size=N), RNG.uniform(0.5, 2, size=N)
COUNTS = RNG.poisson(3.0, size=N).astype(float)
DRAWS = RNG.normal(size=(N, 5))
VECTORS, CENTRES, WIDTHS = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 2)), RNG.uniform(0.5, 2, size=(N, 2))
FACTORS = np.tril(RNG.uniform(0.5, 2, size=(N, 2, 2)))
COVARIANCES = FACTORS @ FACTORS.swapaxes(1, 2)

# Arrays by names, options, and what they are.
CASES = {
    "normal": ({"y": Y, "mean": MEAN, "std": STD}, {}, Y, Normal(MEAN, STD)),
    "named": (
        {"truth": Y, "a": MEAN, "b": STD},
        {"labels": "truth", "parameters": {"mean": "a", "std": "b"}},
        Y,
        Normal(MEAN, STD),
    ),
    "laplace": ({"y": Y, "loc": MEAN, "scale": STD}, {"parameters": {"loc": "loc"}}, Y, Laplace(MEAN, STD)),
    "poisson": ({"y": COUNTS.astype(int), "rate": STD}, {}, COUNTS, Poisson(STD)),
    "counts": ({"y": COUNTS, "mean": STD, "dispersion": STD + 1}, {}, COUNTS, NegativeBinomial(STD, STD + 1)),
}
ARRAYS = CASES | {
    "samples": ({"y": Y, "samples": DRAWS}, {}, Y, Samples(DRAWS)),
    "vectors": ({"y": VECTORS, "mean": CENTRES, "std": WIDTHS}, {}, VECTORS, Normal(CENTRES, WIDTHS)),
    "cov": ({"y": VECTORS, "mean": CENTRES, "cov": COVARIANCES}, {}, VECTORS, MultivariateNormal(CENTRES, COVARIANCES)),
    "scale_tril": (
        {"y": VECTORS, "mean": CENTRES, "scale_tril": FACTORS}, {}, VECTORS,
        MultivariateNormal(CENTRES, scale_tril=FACTORS),
    ),
}  # fmt: skip
COLUMNS = CASES | {
    "samples": ({"y": Y, **{f"samples_{i}": DRAWS[:, i] for i in range(5)}}, {}, Y, Samples(DRAWS)),
    "vectors": (
        {f"{name}_{i}": array[:, i] for name, array in (("y", VECTORS), ("mean", CENTRES), ("std", WIDTHS))
         for i in range(2)}, {}, VECTORS, Normal(CENTRES, WIDTHS),
    ),
}  # fmt: skip
FIELDS = (
    "mean", "std", "cov", "scale_tril", "loc", "scale", "rate", "dispersion", "samples",
    "df", "shape", "mean_log", "std_log",
)  # fmt: skip


def assert_same(found, expected):
    assert type(found) is type(expected)
    for name in FIELDS:
        if hasattr(expected, name) and not callable(getattr(expected, name)):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def assert_rows(samples, true, pred, *, n=N):
    assert samples.n == n and samples.prediction == type(pred).__name__
    for rows in (1, 10, N, 100):
        begin = 0
        for y, p in samples.chunks(rows):
            np.testing.assert_array_equal(y, true[begin : begin + rows])
            assert_same(p, pred.take(slice(begin, begin + rows)))
            begin += len(y)
        assert begin == N
    y, p = samples.read(7, 31)
    np.testing.assert_array_equal(y, true[7:31])
    assert y.dtype == np.float64
    assert_same(p, pred.take(slice(7, 31)))
    assert samples.fingerprint() == samples.fingerprint()
    assert f"{type(pred).__name__} distributions" in samples.describe()
    with pytest.raises(ValueError, match="distributions, which have no classes"):
        samples.n_classes  # noqa: B018


def write_csv(path, columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(repr, map(float, row))) for row in rows)]) + "\n")
    return path


def write_parquet(path, columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=10)
    return path


def structured(columns):
    array = np.zeros(N, [(name, np.asarray(a).dtype, np.shape(a)[1:]) for name, a in columns.items()])
    for name, values in columns.items():
        array[name] = values
    return array


@pytest.mark.parametrize("case", ARRAYS)
def test_files_and_mappings_of_arrays(tmp_path, case):
    arrays, options, true, pred = ARRAYS[case]
    np.savez(tmp_path / "m.npz", **arrays)
    np.savez_compressed(tmp_path / "c.npz", **arrays)
    for data in (tmp_path / "m.npz", tmp_path / "c.npz", arrays):
        assert_rows(source(data, **options), true, pred)
    assert_rows(pickle.loads(pickle.dumps(source(tmp_path / "m.npz", **options))), true, pred)
    truth = options.get("labels", "y")
    np.save(tmp_path / "truth.npy", arrays[truth])
    options = {**options, "labels": str(tmp_path / "truth.npy")}
    assert_rows(source(tmp_path / "m.npz", **options), true, pred)


@pytest.mark.parametrize("case", ARRAYS)
def test_stores(tmp_path, case):
    arrays, options, true, pred = ARRAYS[case]
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "m.zarr"), mode="w")
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
            group[name] = np.asarray(array)
    assert_rows(source(tmp_path / "m.h5", **options), true, pred)
    assert_rows(source(tmp_path / "m.zarr", **options), true, pred)


@pytest.mark.parametrize("case", COLUMNS)
def test_tables(tmp_path, case):
    columns, options, true, pred = COLUMNS[case]
    np.save(tmp_path / "m.npy", structured(columns))
    assert_rows(source(tmp_path / "m.npy", **options), true, pred)
    assert_rows(source(structured(columns), **options), true, pred)
    assert_rows(source(write_csv(tmp_path / "m.csv", columns), **options), true, pred, n=None)
    path = write_parquet(tmp_path / "m.parquet", columns)
    assert_rows(source(path, **options), true, pred)
    import pyarrow as pa

    assert_rows(source(pa.table(columns), **options), true, pred)


def test_lists_in_columns(tmp_path):
    path = write_parquet(tmp_path / "m.parquet", {"y": Y, "samples": DRAWS.tolist()})
    assert_rows(source(path), Y, Samples(DRAWS))
    assert_rows(source(structured({"y": VECTORS, "mean": CENTRES, "std": WIDTHS})), VECTORS, Normal(CENTRES, WIDTHS))


def test_parts_one_after_the_other(tmp_path):
    for number, (start, stop) in enumerate([(0, 10), (10, 11), (11, N)]):
        np.savez(tmp_path / f"part-{number}.npz", y=Y[start:stop], mu=MEAN[start:stop], sigma=STD[start:stop])
    assert_rows(source(tmp_path), Y, Normal(MEAN, STD))
    np.savez(tmp_path / "part-3.npz", y=COUNTS, rate=STD)
    with pytest.raises(ValueError, match=r"part-3.npz has Poisson distributions, .*part-0.npz Normal"):
        source(tmp_path)


@pytest.mark.parametrize("case", ARRAYS)
def test_distributions_themselves(case):
    _, _, true, pred = ARRAYS[case]
    cuts = [slice(0, 11), slice(11, 12), slice(12, N)]
    batches = [(true[cut], pred.take(cut)) for cut in cuts]
    assert_rows(source((true, pred)), true, pred)
    assert_rows(source(batches), true, pred, n=None)
    assert_rows(source(lambda: iter(batches)), true, pred, n=None)
    assert_rows(source([{"y": y, "y_pred": p} for y, p in batches]), true, pred, n=None)


@pytest.mark.parametrize("case", ARRAYS)
def test_batches_of_parameters(case):
    arrays, options, true, pred = ARRAYS[case]
    cuts = [slice(0, 11), slice(11, 12), slice(12, N)]
    batches = [{name: array[cut] for name, array in arrays.items()} for cut in cuts]
    assert_rows(source(batches, **options), true, pred, n=None)
    assert sum(len(y) for y, _ in source(iter(batches), **options).chunks(7)) == N


def test_single_samples_and_other_libraries():
    samples = source([{"y": y, "mean": m, "std": s} for y, m, s in zip(Y.tolist(), MEAN.tolist(), STD.tolist())])
    assert_rows(samples, Y, Normal(MEAN, STD), n=None)
    assert_rows(source((Y, scipy.stats.norm(MEAN, STD))), Y, Normal(MEAN, STD))
    p = RNG.dirichlet(np.ones(3), size=N)
    labels = np.array(["a", "b", "c"])[RNG.integers(3, size=N)]
    for data in (
        (labels, Categorical(p, classes=["a", "b", "c"])),
        [(labels, Categorical(p, classes=["a", "b", "c"]))],
    ):
        samples = source(data)
        assert samples.prediction is None and samples.n_classes == 3
        np.testing.assert_array_equal(samples.read(0, N)[1], p)


def message_of(data, match, **options):
    with pytest.raises(ValueError, match=match) as caught:
        list(source(data, **options).chunks(10))
    assert "\n" not in str(caught.value)


def test_what_is_wrong(tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, y=Y, mean=MEAN)
    message_of(
        path,
        r"m.npz: there is array .mean., but no array of std; .* one of std, .* name it by parameters={'std': ...}",
    )
    message_of(
        path,
        r"m.npz: there is array .mean., but no array of scale; .* name it by parameters={'scale'",
        parameters={"loc": "mean"},
    )
    message_of(path, "there is no array 'z' for parameters={'mean': ...}", parameters={"mean": "z"})
    message_of(path, "belong to different families of distributions", parameters={"mean": "mean", "samples": "y"})
    message_of(path, "`parameters` has the key 'sd', expected keys among mean, std", parameters={"sd": "y"})
    np.savez(path, y=Y, mean=MEAN, std=STD, probs=np.full((N, 2), 0.5))
    message_of(
        path, "class probabilities .* and predicted distributions, .* choose by probs= or parameters={'mean': ...}"
    )
    message_of(path, "classes= is for class probabilities; leave it out", parameters={"mean": "mean"}, classes=[0, 1])
    np.savez(path, y=Y, mean=MEAN, std=STD[:-1])
    message_of(path, r"array 'y' has shape \(43,\), array 'std' \(42,\); expected one target for each row")
    bad = STD.copy()
    bad[23] = -1
    np.savez(path, y=Y, mean=MEAN, sd=bad)
    message_of(path, r"m.npz: `sd\[23\]` is -1, expected a positive standard deviation", parameters={"std": "sd"})
    table = COLUMNS["vectors"][0]
    message_of(write_csv(tmp_path / "m.csv", {**table, "std_1": bad}), r"m.csv: `std_1\[23\]` is -1, expected a pos")
    target = Y.copy()
    target[31] = np.nan
    message_of((target, Normal(MEAN, STD)), r"`y_true\[31\]` is nan")
    message_of({"y": Y, "rate": STD}, r"`y\[0\]` is .* a count")
    np.save(tmp_path / "z.npy", Y)
    np.save(tmp_path / "labels.npy", Y)
    message_of(tmp_path / "z.npy", "so parameters={'std': ...} names nothing; save predicted", parameters={"std": "s"})
    some = Normal(MEAN, STD)
    message_of((Y, Mixture(np.full((N, 2), 0.5), [some, some])), "predictions are Mixture, which cannot be read")
    message_of(
        (Y, Samples(DRAWS, [0.1, 0.15, 0.2, 0.25, 0.3])),
        "Samples with weights, which cannot be read in chunks",
    )
    message_of([(Y, some), (Y, Laplace(MEAN, STD))], "batch 1 has other predictions")
    message_of([(Y, some), (Y, np.full(N, 0.5))], "batch 1 has other predictions than the first one")
    message_of([(Y, some), (Y[:5], some)], r"batch 1 has targets of shape \(5,\) for parameters of 43 distributions")
    wide = Samples(np.concatenate([DRAWS, DRAWS], axis=1))
    with pytest.raises(ValueError, match=r"`samples` has shape \(43, 10\) after \(43, 5\)"):
        source([(Y, Samples(DRAWS)), (Y, wide)]).read(0, 2 * N)


def test_families_have_these_names():
    """What files are read by is what `kcalib.distributions` takes."""
    from kcalib._input.parameters import FAMILIES, PARAMETERS

    arrays = {name: array for data, *_ in ARRAYS.values() for name, array in data.items()} | {"mean": CENTRES}
    arrays = dict.fromkeys(PARAMETERS, np.full(N, 2.0)) | arrays
    for family, parameters in FAMILIES:
        values = {name: MEAN if family in ("Normal", "NegativeBinomial") and name == "mean" else arrays[name]
                  for name in parameters}  # fmt: skip
        values = {name: np.abs(array) + 0.1 if array is MEAN else array for name, array in values.items()}
        if family == "Normal":
            values["std"] = STD
        assert getattr(distributions, family)(**values).n == N
    assert set(PARAMETERS) <= set(FIELDS)


KERNELS = {"kernel": Exponential(1.0, metric="wasserstein"), "target_kernel": Gaussian(0.8)}


@FEW_EVENTS
def test_functions_of_a_source_are_those_in_memory():
    pred = Normal(MEAN, STD)
    samples = source((Y, pred))
    for options in (
        {"estimator": "block"},
        {"estimator": "linear"},
        {"estimator": kcalib.methods.FeatureEstimator(64)},
    ):
        options |= KERNELS
        assert abs(kcalib.skce(Y, pred, **options) - kcalib.skce(samples, **options)) < 1e-12
    with pytest.raises(
        ValueError, match="`estimator` is 'unbiased', which reads all samples at once; use estimator='f"
    ):
        kcalib.skce(samples)
    inside = kcalib.evaluate(Y, pred, kernel=KERNELS["kernel"], method="features")
    pieces = kcalib.evaluate(samples, kernel=KERNELS["kernel"])
    assert pieces.n_samples == N and pieces.prediction == "Normal"
    for name in ("rmse", "crps", "log_score", "pit_mean", "interval_coverage", "quantile_calibration_error"):
        assert abs(getattr(pieces, name) - getattr(inside, name)) < 1e-9, name
    result = kcalib.calibration_test(samples, **KERNELS)
    assert result.n_samples == N and result.prediction == "Normal"


def test_kernel_on_targets_of_pieces_is_that_of_the_first(monkeypatch):
    """A median of each piece would make other estimates of them."""
    monkeypatch.setattr(skce, "CHUNK", 12)
    pred = Normal(MEAN, STD)
    found = kcalib.skce.result(source((Y, pred)), estimator=kcalib.methods.BlockEstimator(4))
    first = kcalib.skce.result(Y[:12], pred.take(slice(12)), estimator=kcalib.methods.BlockEstimator(4))
    kernels = {"kernel": Exponential(first.bandwidth, metric="wasserstein")}
    blocks = [
        kcalib.skce(Y[i : i + 4], pred.take(slice(i, i + 4)), target_kernel=on_targets(first), **kernels)
        for i in range(0, 40, 4)
    ]
    assert abs(found.value - np.mean(blocks)) < 1e-6  # of the bandwidth that the result shows
    assert found.target_kernel == first.target_kernel and "of the first 12 samples" in found.bandwidth_source


def on_targets(result):
    """The kernel on targets of a result."""
    return Gaussian(float(re.search(r"bandwidth=([\d.e-]+)", result.target_kernel)[1]))


def test_options_that_are_not_for_distributions():
    samples = source((Y, Normal(MEAN, STD)))
    for function in (
        kcalib.evaluate,
        kcalib.calibration_test,
        lambda s, **o: kcalib.skce(s, estimator="features", **o),
    ):
        with pytest.raises(ValueError, match="`lens` is for class probabilities, but the source has Normal"):
            function(samples, lens=kcalib.lenses.TopLabel())
    with pytest.raises(ValueError, match=r"`y_true\['a'\]` has Normal distributions, and only models of class prob"):
        kcalib.compare({"a": samples, "b": samples})


def checkpointed(path, batches, **options):
    state = ForecastState(n_columns=16, n_resamples=9, **KERNELS)
    return run(state, source(lambda: iter(batches)), checkpoint=path, **options)


def test_a_run_that_was_stopped_goes_on(tmp_path):
    n = 6000
    mean, std = RNG.normal(size=n), RNG.uniform(0.5, 2, size=n)
    y = mean + std * RNG.normal(size=n)
    batches = [(y[i : i + 500], Normal(mean[i : i + 500], std[i : i + 500])) for i in range(0, n, 500)]
    undisturbed = ForecastState(n_columns=16, n_resamples=9, **KERNELS).update(y, Normal(mean, std))

    def stopping():
        for number, batch in enumerate(batches):
            if number == 7:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    path = tmp_path / "run.kcalib"
    state = ForecastState(n_columns=16, n_resamples=9, **KERNELS)
    with pytest.raises(RunStopped) as stopped:
        run(state, source(stopping), checkpoint=path, chunk_rows=1000)
    assert 0 < stopped.value.row < n
    assert checkpointed(path, batches, resume=True) == undisturbed == load(path)
    other = ForecastState(n_columns=32, n_resamples=9, **KERNELS)
    with pytest.raises(ValueError, match="belongs to another run: `n_columns` is 16 in one state and 32 in the other"):
        run(other, source(lambda: iter(batches)), checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="belongs to another run: it holds a ForecastState"):
        run(CalibrationState(2), source(lambda: iter(batches)), checkpoint=path, resume=True)
