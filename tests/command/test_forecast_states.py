"""`kcalib update`, `merge`, `show` and `evaluate --stream` with files of predicted distributions."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest
from few_events import FEW_EVENTS

import kcalib
from kcalib._command.cli import main
from kcalib.distributions import Normal
from kcalib.streaming import ForecastState, load

N = 360


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=N), rng.uniform(0.5, 2, size=N)
    y = mean + std * rng.normal(size=N)
    np.savez("reg.npz", y=y, mean=mean, std=std)
    for k in range(3):
        np.savez(f"part-{k}.npz", truth=y[k::3], mu=mean[k::3], s=std[k::3])
    np.savez("loc.npz", y=y, loc=mean, scale=std)
    np.savez("counts.npz", y=rng.poisson(3, N), rate=rng.uniform(2, 4, size=N))
    vectors = rng.normal(size=(3, 50, 2))
    np.savez("vectors.npz", y=vectors[0], mean=vectors[1], std=np.exp(vectors[2]))
    np.savez("full.npz", y=vectors[0], mean=vectors[1], cov=np.tile(np.eye(2), (50, 1, 1)))
    np.savez("classes.npz", labels=rng.integers(2, size=N), probs=rng.uniform(size=N))
    return tmp_path


NAMES = ("--labels", "truth", "--std", "s")


def ran(*arguments, code=0):
    assert main([*map(str, arguments)]) == code


def shown(capsys, *arguments):
    capsys.readouterr()
    ran(*arguments, "--json")
    (model,) = json.loads(capsys.readouterr().out)["models"]
    return model


def error_of(capsys, *arguments):
    capsys.readouterr()
    ran(*arguments, code=1)
    err = capsys.readouterr().err
    assert err.startswith("kcalib: error: ") and err.count("\n") == 1, err
    return err.removeprefix("kcalib: error: ").strip()


def usage_error(capsys, *arguments):
    capsys.readouterr()
    ran(*arguments, code=2)
    return capsys.readouterr().err


@FEW_EVENTS
def test_in_pieces_and_at_once_say_the_same(capsys):
    pieces = shown(capsys, "evaluate", "reg.npz", "--stream")
    whole = shown(capsys, "evaluate", "reg.npz", "--no-stream", "--method", "features")
    for name in ("n_samples", "prediction", "rmse", "crps", "log_score", "interval_coverage"):
        assert pieces[name] == whole[name] or abs(pieces[name] / whole[name] - 1) < 1e-12, name
    other = shown(capsys, "evaluate", "loc.npz", "--stream", "--loc", "loc")
    assert other["prediction"] == "Laplace" and other["rmse"] == pieces["rmse"]
    assert shown(capsys, "evaluate", "vectors.npz", "--stream")["n_dims"] == 2
    ran("evaluate", "reg.npz", "--stream")
    assert "adaptive test of all samples" in capsys.readouterr().out
    ran("evaluate", "reg.npz", "--stream", "--method", "features", code=2)
    assert "--method features needs all samples at once; leave it out, or --stream" in capsys.readouterr().err


@FEW_EVENTS
@pytest.mark.parametrize(
    ("family", "options"),
    [("StudentT", ["--df", "df", "--loc", "a"]), ("LogNormal", []), ("Gamma", ["--shape", "scale"])],
)
def test_families_of_files(family, options, capsys):
    rng, ones = np.random.default_rng(0), np.ones(60)
    columns = {"LogNormal": {"mean_log": 0 * ones, "std_log": ones}}.get(
        family, {"a": ones, "df": 4 * ones, "scale": ones}
    )
    np.savez("family.npz", y=rng.exponential(size=60), **columns)
    state = shown(capsys, "evaluate", "family.npz", "--stream", *options)
    whole = shown(capsys, "evaluate", "family.npz", "--no-stream", "--method", "features", *options)
    assert state["prediction"] == whole["prediction"] == family
    assert state["crps"] == pytest.approx(whole["crps"], rel=1e-12)


def test_standard_input(capsys, monkeypatch):
    with np.load("reg.npz") as file:
        rows = zip(*(file[name].tolist() for name in ("y", "mean", "std")), strict=True)
    text = "y,mean,std\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows)
    expected = shown(capsys, "evaluate", "reg.npz", "--stream")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    found = shown(capsys, "evaluate", "-", "--stream")
    assert found["crps"] == expected["crps"] and found["skce"]["value"] == expected["skce"]["value"]


def test_parts_into_states_that_add_up(folder, capsys):
    pytest.importorskip("matplotlib")
    ran("update", "a.kcalib", "part-0.npz", *NAMES)
    ran("update", "a.kcalib", "part-1.npz", *NAMES)
    ran("update", "a.kcalib", "part-1.npz", *NAMES, "--resume")
    ran("update", "b.kcalib", "part-2.npz", *NAMES, "--part", 1, "--bandwidth-of", "a.kcalib")
    ran("merge", "b.kcalib", "a.kcalib", "-o", "all.kcalib")
    capsys.readouterr()
    state = load("all.kcalib")
    assert type(state) is ForecastState and state.n_samples == N
    with np.load("reg.npz") as file:
        order = np.concatenate([np.arange(k, N, 3) for k in range(3)])
        y, pred = file["y"][order], Normal(file["mean"][order], file["std"][order])
    kernels = {"kernel": state.kernel, "target_kernel": state.target_kernel}
    assert (
        abs(state.skce().value - kcalib.skce(y, pred, estimator=kcalib.methods.FeatureEstimator(256), **kernels))
        < 1e-12
    )
    ran("show", "all.kcalib", "--plot", "x.svg")
    assert "Normal" in capsys.readouterr().out and "<svg" in (folder / "x.svg").read_text()
    # Bandwidths of other predictions are those of their first rows.
    ran("update", "c.kcalib", "part-2.npz", *NAMES, "--part", 1, "--bandwidth-of", "part-0.npz")
    assert load("c.kcalib").target_kernel is not None


def test_checkpoints(capsys):
    expected = shown(capsys, "evaluate", "reg.npz", "--stream")
    for _ in range(2):
        found = shown(capsys, "evaluate", "reg.npz", "--checkpoint", "c.kcalib", "--resume")
        assert found["skce"]["value"] == expected["skce"]["value"]
    assert "the checkpoint 'c.kcalib' exists" in error_of(capsys, "evaluate", "reg.npz", "--checkpoint", "c.kcalib")
    message = error_of(capsys, "evaluate", "counts.npz", "--checkpoint", "c.kcalib", "--resume")
    assert "belongs to another run" in message


@pytest.mark.grid
def test_what_does_not_go_together(capsys):
    ran("update", "n.kcalib", "reg.npz")
    ran("update", "c.kcalib", "classes.npz")
    assert error_of(capsys, "update", "n.kcalib", "reg.npz") == (
        "n.kcalib: holds the rows of reg.npz already; skip them by --resume"
    )
    assert error_of(capsys, "update", "n.kcalib", "counts.npz") == (
        "n.kcalib: is a state of Normal distributions, but counts.npz holds predictions of Poisson distributions"
    )
    assert "but classes.npz holds predictions of 2 classes" in error_of(capsys, "update", "n.kcalib", "classes.npz")
    assert "is a state of 2 classes, but reg.npz" in error_of(capsys, "update", "c.kcalib", "reg.npz")
    assert error_of(capsys, "merge", "n.kcalib", "c.kcalib", "-o", "x.kcalib") == (
        "c.kcalib: is a CalibrationState, but the first file is a ForecastState; merge states of one kind"
    )
    for option, value in {"--bins": 5, "--lens": "top-label", "--bandwidth": 1}.items():
        for command in (("evaluate", "--stream", "reg.npz"), ("update", "new.kcalib", "reg.npz")):
            message = error_of(capsys, *command, option, value)
            fault = f"but {option} is for class probabilities; leave it out"
            assert message == f"reg.npz: holds predicted distributions, {fault}"
    assert "holds 2 classes, but reg.npz holds Normal distributions; name another file" in error_of(
        capsys, "update", "new.kcalib", "reg.npz", "--bandwidth-of", "classes.npz"
    )
    assert "of vectors of 2 entries, but --plot" in error_of(
        capsys, "evaluate", "vectors.npz", "--stream", "--plot", "x.png"
    )
    message = error_of(capsys, "evaluate", "full.npz", "--stream")
    assert "normal distributions with covariances" in message and "--no-stream" in message
    ran("evaluate", "full.npz")
    np.savez("same.npz", y=np.arange(2500.0), mean=np.zeros(2500), std=np.ones(2500))
    np.savez("dry.npz", y=np.zeros(50), samples=np.zeros((50, 4)))
    ran("evaluate", "same.npz", "--stream")
    assert "--no-stream, or update with --bandwidth-of" in error_of(
        capsys, "update", "new.kcalib", "reg.npz", "--bandwidth-of", "same.npz"
    )
    ran("evaluate", "same.npz", "--no-stream", "--method", "features")
    ran("update", "same.kcalib", "same.npz", "--bandwidth-of", "reg.npz")
    ran("evaluate", "dry.npz")
    for command in (("evaluate", "--stream", "reg.npz", "classes.npz"), ("show", "n.kcalib", "c.kcalib")):
        assert "--csv prints one table; evaluate the files of each kind" in error_of(capsys, *command, "--csv")
    ran("compare", "--stream", "reg.npz", "counts.npz", code=1)
    assert "reg.npz: holds predicted distributions, which are not compared in chunks" in capsys.readouterr().err
    assert "--std goes with --mean, not with --rate" in usage_error(
        capsys, "update", "new.kcalib", "reg.npz", "--std", "std", "--rate", "mean"
    )
    assert "--scale goes with --loc or --shape, not with --mean" in usage_error(
        capsys, "evaluate", "reg.npz", "--scale", "std", "--mean", "mean"
    )
    assert "there is no array 'z' for --scale-tril" in error_of(
        capsys, "evaluate", "full.npz", "--mean", "mean", "--scale-tril", "z"
    )
