"""`kcalib.evaluate` and the command for predicted distributions."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import struct

import numpy as np
import pytest
from scipy import stats

import kcalib
from kcalib._command.cli import main
from kcalib.distributions import Normal, Poisson, Samples
from kcalib.kernels import Gaussian
from kcalib.report import figures

N = 80
SPREAD_FINDINGS = ("over-confident", "intervals of 99% hold too few targets")
QUICK = {"method": "spectrum", "threads": 1}
OPTIONS = ["--method", "spectrum", "--threads", "1"]


def problem(seed=0):
    rng = np.random.default_rng(seed)
    mean = 0.5 * rng.normal(size=N)
    return mean + rng.normal(size=N), mean


def without_times(entry):
    return {k: without_times(v) if isinstance(v, dict) else v for k, v in entry.items() if k != "seconds"}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "220")


@pytest.fixture
def good(tmp_path):
    y, mean = problem()
    np.savez(tmp_path / "good.npz", y=y, mean=mean, std=np.ones(N))
    return str(tmp_path / "good.npz")


@pytest.fixture
def poor(tmp_path):
    y, mean = problem()
    np.savez(tmp_path / "poor.npz", y=y, mean=mean, std=np.full(N, 0.4))
    return str(tmp_path / "poor.npz")


@pytest.fixture
def ensemble(tmp_path):
    y, mean = problem()
    np.savez(tmp_path / "ensemble.npz", y=y, samples=mean[:, None] + np.random.default_rng(9).normal(size=(N, 15)))
    return str(tmp_path / "ensemble.npz")


@pytest.fixture
def classes(tmp_path):
    rng = np.random.default_rng(0)
    p = rng.uniform(size=N)
    np.savez(tmp_path / "classes.npz", y=(rng.uniform(size=N) < p).astype(int), probs=p)
    return str(tmp_path / "classes.npz")


def load_json(capsys):
    return json.loads(capsys.readouterr().out)


def error_line(capsys):
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kcalib: error: ") and err.count("\n") == 1
    return err.removeprefix("kcalib: error: ").strip()


# -- evaluate


def test_the_numbers_are_those_of_the_functions():
    y, mean = problem()
    prediction = Normal(mean, np.full(N, 1.2))
    e = kcalib.evaluate(y, prediction, **QUICK)
    assert isinstance(e, kcalib.ForecastEvaluation)
    assert (e.n_samples, e.n_dims, e.prediction, e.level) == (N, 1, "Normal", 0.05)
    assert e.rmse == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-14)
    assert e.crps == kcalib.crps(y, prediction)
    assert e.log_score == kcalib.log_score(y, prediction)
    assert e.pinball_loss == kcalib.pinball_loss(y, prediction)
    assert e.quantile_calibration_error == kcalib.quantile_calibration(y, prediction).error
    half = 1.2 * stats.norm.ppf(0.95)
    assert e.interval_coverage == np.mean(np.abs(y - mean) <= half)
    assert e.interval_width == pytest.approx(2 * half, rel=1e-12)
    assert e.pit_mean == pytest.approx(np.mean(kcalib.pit_values(y, prediction)), rel=1e-14)
    assert e.skce.value == kcalib.skce(y, prediction, threads=1)
    assert e.test.pvalue == kcalib.calibration_test(y, prediction, **QUICK).pvalue
    assert e.miscalibrated == (e.test.pvalue < 0.05)
    assert json.loads(json.dumps(dataclasses.asdict(e)))["crps"] == e.crps


SPREADS = [
    (0.0, 1.0, "no evidence against calibration"),
    (0.0, 0.4, "miscalibrated, over-confident"),
    (0.0, 3.0, "miscalibrated, under-confident"),
]
SHIFTS = [
    (0.8, 1.3, "miscalibrated, too high"),
    (-0.8, 1.3, "miscalibrated, too low"),
    (2.0, 1.0, "miscalibrated, too high, over-confident"),
]


@pytest.mark.parametrize(("shift", "factor", "verdict"), SPREADS + SHIFTS)
def test_verdicts_name_what_is_wrong(shift, factor, verdict):
    y, mean = problem()
    assert kcalib.evaluate(y, Normal(mean + shift, np.full(N, factor)), **QUICK).verdict.partition(":")[0] == verdict


@pytest.mark.parametrize(("shift", "factor", "verdict"), SPREADS)
def test_verdicts_on_vectors(shift, factor, verdict):
    y, mean = (np.stack((a, b), axis=1) for a, b in zip(problem(), problem(1), strict=True))
    e = kcalib.evaluate(y, Normal(mean + shift, np.full(y.shape, factor)), **QUICK)
    assert e.verdict.partition(":")[0] == verdict
    assert e.pinball_loss is e.interval_coverage is e.pit_mean is e.quantile_calibration_error is None
    assert (
        e.n_dims == 2 and e.crps == kcalib.crps(y, Normal(mean, np.full(y.shape, factor))) and e.log_score is not None
    )


def test_spreads_that_the_kernel_does_not_see():
    """Among predictions that are far apart the median distance is too coarse for their spread."""
    rng = np.random.default_rng(0)
    mean = 5 * rng.normal(size=N)
    y = mean + rng.normal(size=N)
    e = kcalib.evaluate(y, Normal(mean, np.full(N, 0.4)), **QUICK)
    assert e.verdict == "no evidence against calibration" and e.interval_coverage < 0.6
    by_default = kcalib.evaluate(y, Normal(mean, np.full(N, 0.4)), seed=0)
    assert by_default.verdict.partition(":")[0].removeprefix("miscalibrated, ") in SPREAD_FINDINGS
    assert kcalib.evaluate(y, Normal(mean, np.ones(N)), **QUICK).verdict == "no evidence against calibration"


def test_predictions_without_a_scale_are_evaluated_with_one_that_the_result_tells():
    y, dry = [0.0, 1.0, 3.0], Samples(np.zeros((3, 4)))
    e = kcalib.evaluate(y, dry)
    # |0| + |1| + |3| over 3; one of three targets is in [0, 0]; sum over i != j of <e_i, e_j> = 1 - k(y_i, 0) - ...
    assert (e.crps, e.interval_coverage, e.interval_width) == (4 / 3, 1 / 3, 0.0)
    assert "no median, draws from the predictions are all the same" in e.skce.bandwidth_source
    k1, k2, k3 = np.exp([-0.5, -2.0, -4.5])
    assert e.skce.value == pytest.approx((k2 - k1 - k3 + 1) / 3)
    wide = kcalib.evaluate(y, dry, target_kernel=Gaussian(bandwidth=2.0))
    k1, k2, k3 = np.exp([-0.125, -0.5, -1.125])
    assert wide.skce.value == pytest.approx((k2 - k1 - k3 + 1) / 3) and "on targets" not in wide.skce.bandwidth_source
    # All three draws are 0, of members with a standard deviation of (0 + 0 + 4 * 4 / 25)^(1/2) / 3^(1/2).
    one_wet = kcalib.skce.result(y, Samples([[0.0] * 5, [0.0] * 5, [0.0] * 4 + [2.0]]))
    assert one_wet.target_kernel == str(Gaussian(bandwidth=np.sqrt(0.64 / 3)))


@pytest.mark.parametrize(("size", "share"), [(3, 1 / 2), (5, 2 / 3), (10, 9 / 11)])
def test_coverage_is_that_of_the_intervals_whose_width_is_reported(size, share):
    """S members and a target are exchangeable: all hold it with probability (S - 1) / (S + 1)."""
    values = np.random.default_rng(0).normal(size=(400, size + 1))
    y, members = values[:, 0], values[:, 1:]
    e = kcalib.evaluate(y, Samples(members), method="gamma")
    low, high = members.min(axis=1), members.max(axis=1)
    assert e.interval_width == pytest.approx(np.mean(high - low))
    assert e.interval_coverage == np.mean((y >= low) & (y <= high))
    assert abs(e.interval_coverage - share) < 4 * np.sqrt(share * (1 - share) / 400)
    state = kcalib.streaming.ForecastState(n_columns=16).update(y, Samples(members))
    assert state.result().interval_coverage == e.interval_coverage


def test_predictions_without_density_and_counts():
    rng = np.random.default_rng(0)
    y, mean = problem()
    e = kcalib.evaluate(y, Samples(mean[:, None] + rng.normal(size=(N, 10))), **QUICK)
    assert e.log_score is None and e.crps > 0 and 0.5 < e.interval_coverage <= 1
    rate = rng.uniform(1, 9, size=N)
    counts = rng.poisson(rate)
    e = kcalib.evaluate(counts, Poisson(rate), **QUICK)
    assert e.log_score == pytest.approx(-np.mean(stats.poisson.logpmf(counts, rate)), rel=1e-12)
    assert e.rmse == pytest.approx(np.sqrt(np.mean((counts - rate) ** 2)), rel=1e-12)
    assert kcalib.evaluate(counts + 4, Poisson(rate), **QUICK).verdict.startswith("miscalibrated, too low")


def test_the_usual_evaluation_of_classes():
    y, p = [0, 1, 1, 0, 1, 0], [[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]
    e = kcalib.evaluate(y, p)
    assert isinstance(e, kcalib.Evaluation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": [0, 1]}, "`classes` is for class probabilities"),
        ({"level": 2}, "`level` is 2, expected a number between 0 and 1"),
    ],
)
def test_bad_options(options, message):
    y, mean = problem()
    with pytest.raises(ValueError, match=re.escape(message)):
        kcalib.evaluate(y, Normal(mean, np.ones(N)), **options)


# -- the command


@pytest.mark.parametrize("fixture", ["good", "ensemble"])
def test_json_has_the_numbers_of_the_library(capsys, request, fixture):
    path = request.getfixturevalue(fixture)
    data = np.load(path)
    prediction = Normal(data["mean"], data["std"]) if fixture == "good" else Samples(data["samples"])
    assert main(["evaluate", path, "--json", *OPTIONS]) == 0
    (entry,) = load_json(capsys)["models"]
    assert (entry.pop("model"), entry.pop("file")) == (fixture, path)
    evaluation = kcalib.evaluate(data["y"], prediction, **QUICK)
    interval = evaluation.test.confidence_interval(1 - evaluation.level)._asdict()
    assert entry.pop("confidence_interval") == pytest.approx(interval, rel=1e-12)
    expected = dataclasses.asdict(evaluation)
    assert without_times(entry) == without_times(expected)


def test_table(capsys, good, poor, ensemble):
    assert main(["evaluate", good, poor, ensemble, *OPTIONS]) == 0
    out, err = capsys.readouterr()
    header, *rows, blank = out.splitlines()[:5]
    assert err == "" and blank == ""
    assert re.split(r"  +", header) == [
        "model", "n", "predicted", "RMSE", "CRPS", "log score", "pinball", "in 90 %", "SKCE", "std. error", "p-value",
        "verdict",
    ]  # fmt: skip
    y, mean = problem()
    e = kcalib.evaluate(y, Normal(mean, np.ones(N)), **QUICK)
    assert re.split(r"  +", rows[0]) == [
        "good", str(N), "Normal", f"{e.rmse:.4g}", f"{e.crps:.4g}", f"{e.log_score:.4f}", f"{e.pinball_loss:.4g}",
        f"{e.interval_coverage:.4f}", f"{e.skce.value:.2e}", f"{e.skce.standard_error:.2e}", f"{e.test.pvalue:.2g}",
        "no evidence against calibration",
    ]  # fmt: skip
    assert rows[1].endswith("  miscalibrated, over-confident: off by at least 0.11")
    assert re.split(r"  +", rows[2])[2:6:3] == ["Samples", "-"]
    assert out.splitlines()[5:] == [
        "SKCE: unbiased estimator, Exponential kernel with the median distance as bandwidth, Gaussian kernel on "
        "targets; cpu",
        "  backend, 1 thread",
        "in 90 %: share of the targets in central intervals of that probability",
        "ensemble: targets from the distribution of S members are outside their range with probability 2 / (S + 1)",
        "verdict at level 0.05: spectrum test of all pairs",
        "off by at least: with confidence 0.95, the root mean square over predictions of the largest error in the "
        "probability of",
        "  any event",
        "the level holds for each model separately; for 0.05 over all 3 models use --level 0.017",
    ]


def test_vectors_in_table(tmp_path, capsys):
    y, mean = (np.stack(pair, axis=1) for pair in zip(problem(0), problem(1), strict=True))
    np.savez(tmp_path / "pairs.npz", y=y, mean=mean, std=np.ones((N, 2)))
    path = str(tmp_path / "pairs.npz")
    assert main(["evaluate", path, *OPTIONS]) == 0
    out = capsys.readouterr().out
    assert re.split(r"  +", out.splitlines()[1])[6:8] == ["-", "-"] and "CRPS of vectors: the energy score" in out
    assert main(["evaluate", path, "--plot", str(tmp_path / "out.png"), *OPTIONS]) == 1
    assert "holds predictions of vectors of 2 entries, but --plot draws predictions of numbers" in error_line(capsys)


def test_csv(capsys, good, poor):
    assert main(["evaluate", good, poor, "--csv", *OPTIONS]) == 0
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    y, mean = problem()
    e = kcalib.evaluate(y, Normal(mean, np.ones(N)), **QUICK)
    for name in ("rmse", "crps", "log_score", "pinball_loss", "interval_coverage", "interval_width", "pit_mean"):
        assert float(first[name]) == getattr(e, name)
    assert first["prediction"] == "Normal" and float(first["rms_error_lower"]) == 0
    assert second["verdict"] == "miscalibrated, over-confident: off by at least 0.11"
    assert float(first["skce"]) == e.skce.value and float(first["pvalue"]) == e.test.pvalue


def test_files_of_both_kinds(tmp_path, capsys, good, classes, poor):
    assert main(["evaluate", good, classes, poor, *OPTIONS]) == 0
    out = capsys.readouterr().out
    first, _, second, _ = out.split("\n\n")
    assert "accuracy" in first and "classes " in first and "CRPS" not in first
    assert [line.split()[0] for line in second.splitlines()] == ["model", "good", "poor"]
    assert main(["evaluate", good, classes, "--json", *OPTIONS]) == 0
    entries = load_json(capsys)["models"]
    assert "crps" in entries[0] and "accuracy" in entries[1]
    assert main(["evaluate", good, classes, "--csv", *OPTIONS]) == 1
    out, err = capsys.readouterr()
    assert [row["model"] for row in csv.DictReader(io.StringIO(out))] == ["good"]
    assert "holds class probabilities, but good holds predicted distributions, and --csv prints one table" in err


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"std": [1, 1, -0.5, 1]}, ["`std[2]` is -0.5, expected a positive standard deviation"]),
        ({"std": [1, 1, 0, 1]}, ["`std[2]` is 0, expected a positive standard deviation"]),
        ({"mean": [0, np.nan, 0, 0]}, ["`mean[1]` is nan, expected a finite number; drop or repair"]),
        ({"std": [1, 1, 1]}, ["array 'y' has shape (4,), array 'std' (3,)"]),
        ({"y": [1, 2, 3]}, ["array 'y' has shape (3,), array 'mean' (4,)"]),
        ({"y": [1, 2, 3, np.inf]}, ["`y[3]` is inf"]),
        ({"mean": None, "samples": [[0, 1], [0, 1], [0, np.nan], [1, 2]]}, ["`samples[2, 1]` is nan"]),
        ({"mean": None, "samples": [0, 1, 2, 3]}, ["`samples` has shape (4,), expected (n, S)"]),
        ({"mean": None, "rate": [1, 2, -3, 4]}, ["`rate[2]` is -3, expected a positive rate"]),
        ({"mean": None, "rate": [1, 2, 3, 4], "y": [0, 1, 1.5, 2]}, ["`y[2]` is 1.5, expected a count"]),
        ({"std": None}, ["there is array 'mean', but no array of std"]),
    ],
)
def test_bad_values(tmp_path, capsys, change, fragments):
    arrays = {"y": [1.0, 2, 3, 4], "mean": [1.0, 2, 3, 4], "std": [1.0, 1, 1, 1], **change}
    path = str(tmp_path / "m.npz")
    np.savez(path, **{name: np.array(values) for name, values in arrays.items() if values is not None})
    assert main(["evaluate", path]) == 1
    message = error_line(capsys)
    assert message.startswith(f"{path}: ")
    for fragment in fragments:
        assert fragment.replace("std is array", "array 'std'") in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bins", "3"], "holds predicted distributions, but --bins is for class probabilities; leave it out"),
        (["--lens", "top-label"], "holds predicted distributions, but --lens is for class probabilities"),
    ],
)
def test_options_of_classes(capsys, good, options, message):
    assert main(["evaluate", good, *options]) == 1
    assert message in error_line(capsys)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--mean", "a", "--probs", "b"], "not allowed with"),
        (["--mean", "a", "--samples", "b"], "not allowed with"),
        (["--std", "a", "--samples", "b"], "--std goes with --mean, not with --samples; leave it out"),
        (["--std", "a", "--probs", "b"], "--std goes with --mean, not with --probs"),
        (["--mean", "a", "--from-logits"], "--from-logits is for class probabilities, but --mean is for regression"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_usage_errors(capsys, good, poor, command, options, fragment):
    assert main([command, good, poor, *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and fragment in err and err.startswith("usage: kcalib")


def test_options_name_columns(tmp_path, capsys):
    y, mean = problem()
    np.savez(tmp_path / "m.npz", truth=y, y_pred=mean, error=np.ones(N), probs=np.zeros(N))
    arguments = ["--labels", "truth", "--mean", "y_pred", "--std", "error", "--json", *OPTIONS]
    assert main(["evaluate", str(tmp_path / "m.npz"), *arguments]) == 0
    assert load_json(capsys)["models"][0]["crps"] == kcalib.crps(y, Normal(mean, np.ones(N)))


def test_help_names_everything(capsys):
    for command in ("evaluate", "compare"):
        assert main([command, "--help-all"]) == 0
        out = capsys.readouterr().out
        for text in (
            "--mean",
            "--std",
            "--samples",
            "--rate",
            "mean, y_mean, mu, y_pred; std, y_std",
            "y_samples",
        ):
            assert text in out


# -- compare


def test_compare(capsys, good, poor, ensemble):
    assert main(["compare", good, poor, ensemble, "--json", "--threads", "1"]) == 0
    result = load_json(capsys)["comparison"]
    y, mean = problem()
    predictions = {
        "good": Normal(mean, np.ones(N)),
        "poor": Normal(mean, np.full(N, 0.4)),
        "ensemble": Samples(np.load(ensemble)["samples"]),
    }
    expected = kcalib.compare(y, predictions, threads=1)
    assert result["ranking"] == list(expected.ranking) and result["ranking"][-1] == "poor"
    assert [m["value"] for m in result["models"]] == [m.value for m in expected.models]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": 7}, "the target of sample 7 (counted from 0) is {new:.6g}, but in good {old:.6g} (1 targets differ)"),
        ({"rows": 60}, "60 samples and targets of 1 entries, but good has 80 and 1; models are compared"),
        (
            {"probs": True},
            "holds class probabilities, but good holds predicted distributions; compare models of one kind",
        ),
    ],
)
def test_files_that_cannot_be_compared(tmp_path, capsys, good, classes, change, message):
    y, mean = problem()
    new = y.copy()
    if "y" in change:
        new[change["y"]] += 1
        message = message.format(old=y[7], new=new[7])
    rows = change.get("rows", N)
    path = str(tmp_path / "other.npz")
    np.savez(path, y=new[:rows], mean=mean[:rows], std=np.ones(rows))
    path = classes if "probs" in change else path
    assert main(["compare", good, path]) == 1
    assert error_line(capsys).startswith(f"{path}: {message}")
    if "probs" not in change:
        return
    assert main(["compare", classes, good]) == 1
    assert "holds predicted distributions, but classes holds class probabilities" in error_line(capsys)


@pytest.mark.parametrize("metric", ["crps", "log_score", "ckce"])
def test_compare_by_other_metrics(capsys, good, poor, metric):
    y, mean = problem()
    expected = kcalib.compare(
        y, {"good": Normal(mean, np.ones(N)), "poor": Normal(mean, np.full(N, 0.4))}, metric=metric
    )
    assert main(["compare", good, poor, "--metric", metric, "--json"]) == 0
    result = load_json(capsys)["comparison"]
    assert [m["value"] for m in result["models"]] == [m.value for m in expected.models]
    assert main(["compare", good, poor, "--metric", metric]) == 0
    assert "good" in capsys.readouterr().out


def test_metrics_of_classes(capsys, good, poor, classes):
    assert main(["compare", good, poor, "--metric", "ece"]) == 1
    assert "'ece' is for class probabilities" in error_line(capsys)
    copy = classes.replace("classes.npz", "copy.npz")
    shutil.copy(classes, copy)
    assert main(["compare", classes, copy, "--metric", "crps"]) == 1
    assert "'crps' is for predicted distributions" in error_line(capsys)


# -- picture and examples


def test_plot(tmp_path, capsys, monkeypatch, good, poor, classes):
    pytest.importorskip("matplotlib")
    drawn = []
    plot = figures.plot_reliability
    monkeypatch.setattr(figures, "plot_reliability", lambda panels, *how: (drawn.extend(panels), plot(panels, *how)))
    path = tmp_path / "out.png"
    assert main(["evaluate", good, poor, classes, "--plot", str(path), *OPTIONS]) == 0
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG") and struct.unpack(">II", content[16:24])[0] > 900
    first, second, third = drawn
    assert (first.style, third.style) == (figures.QUANTILES, figures.RELIABILITY)
    assert isinstance(first.diagram, kcalib.QuantileCalibration)
    assert second.verdict == "miscalibrated, over-confident" and second.miscalibrated
    assert re.fullmatch(r"CRPS 0\.\d+", first.notes[0]) and first.notes[1].startswith("SKCE ")


def test_texts_of_the_picture_do_not_overlap(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    saved = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a, **k)))
    y, mean = problem()
    panels = [
        figures.Panel(
            "model", "miscalibrated, too high, over-confident", True, ("CRPS 0.1", "p = 0.5"),
            kcalib.quantile_calibration(y + shift, Normal(mean, np.ones(N))), figures.QUANTILES,
        )
        for shift in (1, -1, 0, 2, -2)
    ]  # fmt: skip
    figures.plot_reliability(panels, tmp_path / "out.png")
    (figure,) = saved
    boxes = [text.get_window_extent() for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts)]
    boxes = [
        box for box in (*boxes, *(text.get_window_extent() for text in figure.texts)) if box.width * box.height > 0
    ]
    assert len(boxes) > 15
    for i, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_the_examples_that_ship(capsys):
    folder = os.path.join(os.path.dirname(kcalib.__file__), "data")
    files = [os.path.join(folder, f"diabetes_{name}.npz") for name in ("bayesian_ridge", "forest")]
    assert main(["evaluate", *files, "--json", *OPTIONS]) == 0
    ridge, forest = load_json(capsys)["models"]
    assert ridge["n_samples"] == forest["n_samples"] == 442
    # Nearly constant standard deviations: better scores and coverage, and yet miscalibrated.
    assert ridge["crps"] < forest["crps"] and abs(ridge["interval_coverage"] - 0.9) < 0.03
    assert ridge["test"]["pvalue"] < 1e-3 and not forest["miscalibrated"]


@pytest.mark.parametrize(
    ("shift", "scale", "least"),
    [
        (0.0, 1.0, 0.0),
        *(pytest.param(*law, marks=pytest.mark.grid) for law in ((0.5, 1.0, 0.7), (0.0, 2.0, 0.7), (-0.3, 0.6, 0.4))),
    ],
)
def test_lower_limit_of_the_distance_to_the_targets_laws(shift, scale, least):
    """Of normal laws the distance is E |shift + (scale - 1) s z|: not exceeded, and near where only one is wrong."""
    rng = np.random.default_rng(8)
    misses, ratios = 0, []
    for _ in range(20):
        mean, s = 3 * rng.normal(size=1000), np.exp(0.3 * rng.normal(size=1000))
        y = mean + shift + scale * s * rng.normal(size=1000)
        law = stats.norm(shift, np.maximum(np.abs(scale - 1) * s, 1e-100))
        truth = np.sqrt(np.mean((shift * (1 - 2 * law.cdf(0)) + 2 * law.std() ** 2 * law.pdf(0)) ** 2))
        e = kcalib.evaluate(y, Normal(mean, s), threads=1, method="block")
        misses += e.rms_distance_lower > truth
        ratios.append(e.rms_distance_lower / truth if truth > 0 else 0.0)
        if e.rms_distance_lower > 0:
            assert e.verdict.endswith("in the units of the targets")
    assert misses <= stats.binom(20, 0.05).isf(1e-3) and np.median(ratios) >= least


def test_distance_has_the_units_of_the_targets():
    rng = np.random.default_rng(2)
    mean = rng.normal(size=500)
    y = mean + 1 + rng.normal(size=500)
    small, large = (
        kcalib.evaluate(unit * y, Normal(unit * mean, np.full(500, unit)), threads=1).rms_distance_lower
        for unit in (1.0, 1000.0)
    )
    assert 0.5 < small < 1 and large == pytest.approx(1000 * small, rel=1e-9)
    assert kcalib.evaluate(y[:10], Normal(mean[:10], np.ones(10)), threads=1).rms_distance_lower == 0
