"""Options of the command's `--method` are the fields of the classes of `kcalib.methods`."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from few_events import FEW_EVENTS

import kcalib
from kcalib import methods
from kcalib._command.cli import main
from kcalib._command.method_options import flag
from kcalib.inference.calibration_test import METHODS

# Fields that no word or number can fill, and the option of arrays of test locations that goes with them.
NO_OPTIONS = {"norms", "from_logits"}


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=120)
    return (rng.uniform(size=(120, 1)) > np.cumsum(p, axis=1)).sum(axis=1), p


@pytest.fixture
def file(tmp_path, data):
    np.savez(tmp_path / "m.npz", labels=data[0], probs=data[1])
    return str(tmp_path / "m.npz")


@pytest.mark.parametrize("command", ["evaluate", "demo"])
def test_every_field_is_an_option(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main([command, "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.partition("options of --method:\n")[2].split())
    fields = {field.name for cls in METHODS for field in dataclasses.fields(cls)}
    assert len(fields) >= 14
    for name in fields - NO_OPTIONS - {"n_bins"}:
        names = ", ".join(cls.name for cls in METHODS if name in {field.name for field in dataclasses.fields(cls)})
        assert re.search(rf"{flag(name)}(, --no-[a-z-]+| \S+) {names}: \w+", text)
    assert (
        "number R of draws, at least 1 (default: 999; features: 199; ranks: 199)" in text
        and "{conditional,residuals,auto,draws,F,chi2}" in text
    )
    assert not {flag(name) for name in NO_OPTIONS} & set(text.split())


@FEW_EVENTS
@pytest.mark.parametrize(
    ("options", "method", "others"),
    [
        ("exact --resamples 99", methods.Exact(n_resamples=99), {}),
        ("features --columns 32 --resamples 19", methods.Features(n_columns=32, n_resamples=19), {}),
        ("bootstrap --resamples 99", methods.Bootstrap(n_resamples=99), {}),
        ("multiplier --multipliers gaussian", methods.Multiplier(multipliers="gaussian"), {}),
        ("spectrum --eigenvalues 5", methods.Spectrum(n_eigenvalues=5), {}),
        ("pearson --eigenvalues all", methods.Pearson(n_eigenvalues="all"), {}),
        ("block --block-size 7 --variance second_moment", methods.Block(block_size=7, variance="second_moment"), {}),
        ("linear --variance second_moment", methods.Linear(variance="second_moment"), {}),
        ("distribution_free --bound 2.5", methods.DistributionFree(bound=2.5), {}),
        ("distribution_free --estimator biased", methods.DistributionFree(estimator="biased"), {}),
        ("cme --locations 3 --reference F", methods.CME(locations=3, reference="F"), {}),
        (
            "consistency --resamples 19 --no-resample-predictions --bins 4",
            methods.Consistency(n_resamples=19, resample_predictions=False, n_bins=4),
            {},
        ),
    ],
)
def test_options_make_the_object(capsys, data, file, options, method, others):
    assert main(["evaluate", file, "--seed", "3", "--json", "--method", *options.split()]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    expected = kcalib.evaluate(*data, method=method, seed=3, **others)
    expected = json.loads(json.dumps(dataclasses.asdict(expected)))
    for part in ("test", "skce"):
        assert found[part].pop("seconds") > 0 and expected[part].pop("seconds") > 0
        assert found[part] == expected[part]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--method spectrum --resamples 9",
            "--resamples is for --method adaptive, exact, features, cme, consistency, ranks, bootstrap or multiplier, "
            "not for spectrum; leave it out",
        ),
        ("--reference F", "--reference is for --method spectrum, cme, multiplier, pearson or gamma, not for adaptive"),
        (
            "--no-resample-predictions",
            "--resample-predictions is for --method consistency, not for adaptive; leave it out",
        ),
        ("--method exact --resamples 0", "--resamples is 0, expected an integer between 1 and"),
        ("--method exact --resamples x", "argument --resamples: invalid int value: 'x'"),
        ("--method cme --reference chi", "argument --reference: invalid choice: 'chi'"),
        ("--method spectrum --eigenvalues many", "--eigenvalues is 'many', expected"),
        ("--method spectrum --eigenvalues 3 --max-memory 1e9", "`max_memory`"),
        ("--method distribution_free --bound -1", "`bound` is -1.0, expected a positive number"),
        (
            "--block-size 9",
            "--block-size is for --method consistency, block or distribution_free, not for adaptive; leave it out",
        ),
        ("--method distribution_free --block-size 9", "--block-size is 9, but estimator='unbiased' has no block size"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "demo"])
def test_options_that_the_method_does_not_take(capsys, file, command, options, message):
    assert main([command, *([file] if command == "evaluate" else []), *options.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("usage: kcalib") and message in " ".join(err.split())


@pytest.mark.grid
def test_without_docstrings():
    """`python -OO` takes them away: the options stay."""
    code = "from kcalib._command.cli import main; main(['evaluate', '--help-all'])"
    done = subprocess.run([sys.executable, "-P", "-OO", "-c", code], capture_output=True, text=True, check=True)
    assert "--resamples INT" in done.stdout and "--reference NAME" in done.stdout
