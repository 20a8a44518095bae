"""States whose checksum is right although their contents are none: refused before a number is used as an index."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import fuzz_readers
import numpy as np
import pytest

from kcalib.distributions import MultivariateNormal, Normal
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, ForecastState
from kcalib.streaming._files.format import DIGEST, MAGIC, PROLOGUE, VERSION, Content, _digest, pack_content, unpack

RNG = np.random.default_rng(0)
N = 40
P, Y = RNG.dirichlet(np.ones(3), size=N), RNG.integers(3, size=N)
MEAN, STD = RNG.normal(size=N), RNG.uniform(0.5, 2, size=N)
CLASSES = CalibrationState(3, n_columns=16, n_resamples=1).update(Y, P)
FORECASTS = ForecastState(n_columns=16).update(MEAN, Normal(MEAN, STD))
VECTORS = ForecastState(n_columns=16, kernel=Exponential(1.0)).update(
    RNG.normal(size=(N, 2)), MultivariateNormal(RNG.normal(size=(N, 2)), np.tile(np.eye(2), (N, 1, 1)))
)


def forged(state, *, options=None, **arrays):
    """The bytes of a state with other entries, and a checksum that is right."""
    content = unpack(state.to_bytes(), "it")
    found = {name: array.copy() for name, array in content.arrays.items()}
    for name, (place, value) in arrays.items():
        found[name][place] = value
    return pack_content(content._replace(arrays=found, options=content.options | (options or {})))


@pytest.mark.parametrize(
    ("state", "change", "match"),
    [
        (CLASSES, {"open_targets": (3, 3)}, "labels beyond 0 to 2"),
        (CLASSES, {"sample_targets": (0, -(2**62))}, "labels beyond 0 to 2"),
        (CLASSES, {"sample_predictions": ((2, 1), np.nan)}, "no probabilities"),
        (CLASSES, {"open_predictions": ((2, 1), 1.5)}, "no probabilities"),
        (CLASSES, {"open_numbers": (1, 2**50)}, "not in ascending order"),
        (CLASSES, {"sample_numbers": (N - 1, 2**50)}, "not among those that the state has seen"),
        (CLASSES, {"open_weights": (1, np.nan)}, "weights beyond 0 to"),
        (CLASSES, {"rows": ((0, 1), 0)}, "rows 0 to -1 are"),
        (CLASSES, {"rows": ((0, 1), 2**63 - 1)}, "but 9223372036854775807 row numbers"),
        (CLASSES, {"rows": ((0, 1), N + 1)}, "sums of 40 rows, but 41 row numbers"),
        (CLASSES, {"scores_high": (0, -1)}, "cannot have the sum"),
        (CLASSES, {"n_weighted": ((), -1)}, "-1 of 40 rows have weights"),
        (CLASSES, {"options": {"n_bins": -1}}, "`n_bins` is -1"),
        (CLASSES, {"options": {"n_columns": 2**62}}, "n_columns"),
        (FORECASTS, {"open_targets": ((0, 0), np.inf)}, "is inf"),
        (FORECASTS, {"open_predictions": ((0, 1), -1.0)}, "`std.0.` is -1"),
        (FORECASTS, {"sample_predictions": ((0, 0), np.nan)}, "`mean.0.` is nan"),
        (FORECASTS, {"weights_high": (0, 0)}, "cannot have the sum"),
        (FORECASTS, {"options": {"sizes": ((2**62,), (2**62,))}}, "no parameters of the shapes"),
        (FORECASTS, {"options": {"prediction": "Beta"}}, "no family of distributions 'Beta'"),
        (VECTORS, {"open_predictions": ((0, 2), 7.0)}, "factors of covariances do not match"),
    ],
)
def test_forged_contents_are_refused(state, change, match):
    assert type(state).from_bytes(forged(state)) == state
    with pytest.raises(ValueError, match=match):
        type(state).from_bytes(forged(state, **change))


def test_rows_that_lack_a_part_are_refused():
    content = unpack(CLASSES.to_bytes(), "it")
    arrays = content.arrays | {"sample_targets": content.arrays["sample_targets"][:-1]}
    with pytest.raises(
        ValueError, match=f"sample rows have {N} numbers, {N} predictions, {N - 1} targets, {N} weights"
    ):
        CalibrationState.from_bytes(pack_content(content._replace(arrays=arrays)))


def test_mutated_files_end_in_values_or_one_line(tmp_path: Path):
    """A few inputs of the campaign of `fuzz_readers`; each child that reads them must live."""
    counts, findings = fuzz_readers.campaign(tmp_path, 330, begin=10**6)
    assert findings == {}
    assert {name.partition(" ")[0] for name in counts} == set(fuzz_readers.KINDS)
    assert sum(count for name, count in counts.items() if name.endswith("fine")) > 10


def died(content: bytes) -> None:
    if b"cat" in content:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"dog" in content:
        raise KeyError("dog")


def test_inputs_that_end_otherwise_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The child goes on after an exception; what it dies of is known, and the next one goes on."""
    kind = fuzz_readers.Kind(lambda: [b"one of a few"], [b"cat", b"dog"], {"it": died}, front=0, in_memory=True)
    monkeypatch.setitem(fuzz_readers.KINDS, "it", kind)
    monkeypatch.setattr(fuzz_readers, "REPORT", 1)  # counts that were not written are lost with a child
    counts, findings = fuzz_readers.campaign(tmp_path, 60, kinds=("it",))
    assert counts["it it: fine"] + len(findings) == counts.total() == 60
    whats = {number: (tmp_path / f"finding-{number}.it").read_bytes() for number in findings}
    for number, what in findings.items():
        expected = "it: FINDING: dies of signal 9" if b"cat" in whats[number] else "it it: FINDING: KeyError: 'dog'"
        assert what.startswith(expected)
    assert {b"cat" in content for content in whats.values()} == {True, False}


def test_the_time_of_reading_is_linear():
    """A state of groups is an array for each; once all bytes were copied for each of them, here 30 GB."""
    found = {f"array {i}": np.full(3, i) for i in range(1000)} | {"large": np.zeros(2**22)}
    data, start = pack_content(Content("of groups", {}, found)), time.process_time()
    again = unpack(data, "it").arrays
    assert time.process_time() - start < 2
    assert again.keys() == found.keys() and all(np.array_equal(again[name], found[name]) for name in found)


@pytest.mark.parametrize(("name", "value"), [("offset", 10**30), ("shape", [0, 10**30]), ("shape", [2**62, 4])])
def test_numbers_beyond_those_of_the_machine_are_refused(name, value):
    """In the header of a file whose checksum is right."""
    array = {"dtype": "<f8", "shape": [3], "offset": 0} | {name: value}
    header = {"kind": "calibration", "library": "1", "options": {}, "arrays": {"a": array}}
    words = json.dumps(header).encode().ljust(256)
    body = PROLOGUE.pack(MAGIC, VERSION, len(words), PROLOGUE.size + len(words) + 64 + DIGEST) + words + bytes(64)
    with pytest.raises(ValueError, match="not as kcalib writes a state, although its checksum is right"):
        unpack(body + _digest(body), "it")
