"""Runs: chunks, checkpoints, signals. An interrupted run that is resumed has the bits of an undisturbed one."""

import errno
import io
import os
import re
import signal
import sys
import threading

import kill_campaign
import numpy as np
import pytest

from kcalib.kernels import Exponential
from kcalib.lenses import TopLabel
from kcalib.streaming import CalibrationState, RunStopped, run, running, source
from kcalib.streaming import state as streaming_state

N = 12_000
OPTIONS = {"n_columns": 16, "n_resamples": 3, "threads": 1}


@pytest.fixture(autouse=True)
def interruptible():
    """A shell's background jobs ignore SIGINT, and their children with them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(3, 0.3), size=N)
    return (rng.uniform(size=(N, 1)) > np.cumsum(p, axis=1)).sum(axis=1), p


@pytest.fixture(scope="module")
def undisturbed(data):
    return CalibrationState(3, **OPTIONS).update(*data)


def state(**more):
    return CalibrationState(3, **OPTIONS, **more)


def interrupting(monkeypatch, calls, act):
    """`act` in the middle of the given calls of `update`."""
    update, count = CalibrationState.update, 0

    def acting(self, *args, **kwargs):
        nonlocal count
        count += 1
        if count in calls:
            act()
        return update(self, *args, **kwargs)

    monkeypatch.setattr(CalibrationState, "update", acting)


@pytest.mark.parametrize("chunk_rows", [997, 4096, 65536])
def test_a_run_has_the_bits_of_one_update_for_any_chunks(data, undisturbed, chunk_rows):
    assert run(state(), source(data), chunk_rows=chunk_rows) == undisturbed


def test_a_source_of_unknown_length(data, undisturbed):
    y, p = data
    batches = source([(y[i : i + 500], p[i : i + 500]) for i in range(0, N, 500)])
    assert batches.n is None
    assert run(state(), batches, chunk_rows=900) == undisturbed


@pytest.mark.parametrize(
    "pred, options",
    [
        (lambda p: p.astype(np.float32), {}),
        (lambda p: p[:, 0], {}),
        (lambda p: p, {"lens": TopLabel()}),
        (lambda p: p, {"from_logits": True}),
        (lambda p: p, {"classes": [2, 1, 0]}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*its rows are probabilities already")
def test_rows_are_checked_once_and_are_those_of_an_update(monkeypatch, data, pred, options):
    """Where a state would see more than numbers of columns and probabilities, it does."""
    y, p = data[0][:3000], pred(data[1][:3000])
    y = np.minimum(y, 1) if p.ndim == 1 else y
    m, seen, real = max(2, p.ndim == 2 and p.shape[1]), [], streaming_state.prepare
    expected = CalibrationState(m, **OPTIONS, **options).update(y, p)
    monkeypatch.setattr(streaming_state, "prepare", lambda *a, **k: seen.append(1) or real(*a, **k))
    parts = source([(y[:1700], p[:1700]), (y[1700:], p[1700:])])
    for one in (source((y, p)), parts):
        assert run(CalibrationState(m, **OPTIONS, **options), one, chunk_rows=900) == expected
    assert bool(seen) == bool({"from_logits", "classes"} & options.keys())


def test_a_source_that_is_not_ours_is_checked(data):
    class Theirs(type(source(data))):
        chunks_for = None

        def chunks(self, rows, start=0):
            yield data[0][:5], np.full((5, 3), 0.9)

    theirs = source(data)
    theirs.__class__ = Theirs
    with pytest.raises(ValueError, match=r"`y_pred\[0\]` sums to 2.7"):
        run(state(), theirs)
    with pytest.raises(ValueError, match="`y_pred` has 3 classes, but the state has n_classes=4"):
        run(CalibrationState(4), source(data))


def test_options_are_checked_before_the_work(tmp_path, data):
    for options, kind, message in (
        ({"checkpoint": tmp_path}, ValueError, "`checkpoint` is '.*', a folder; name a file in it"),
        ({"checkpoint_seconds": "1"}, TypeError, "`checkpoint_seconds` is '1', expected a positive number"),
        ({"checkpoint_seconds": -1}, ValueError, "`checkpoint_seconds` is -1, expected a positive finite number, or 0"),
        ({"log_seconds": 0}, ValueError, "`log_seconds` is 0, expected a positive finite number"),
    ):
        empty = state()
        with pytest.raises(kind, match=message):
            run(empty, source(data), **options)
        assert empty.n_samples == 0


def test_shares_of_a_source_merge_into_all_of_it(data, undisturbed):
    kernel = undisturbed.kernel
    shares = [run(state(kernel=kernel), source(data), rows=rows) for rows in ((7000, None), (0, 300), (300, 7000))]
    both = shares[0] + shares[1] + shares[2]
    assert both == run(state(kernel=kernel), source(data))
    assert both.rows == ((0, N),)
    second = run(both.copy(), source(data), first_row=N)
    assert second.rows == ((0, 2 * N),)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_resumed_run_has_the_same_bits(
    tmp_path, monkeypatch, data, undisturbed, number
):
    checkpoint = tmp_path / "run.kcalib"
    before = signal.getsignal(number)
    rows = []
    for calls in ({1}, {2}, {3}):
        with monkeypatch.context() as patched:
            interrupting(patched, calls, lambda: os.kill(os.getpid(), number))
            with pytest.raises(RunStopped, match=f"stopped by {number.name} before row") as stopped:
                run(state(), source(data), checkpoint=checkpoint, resume=True, chunk_rows=1000)
        assert signal.getsignal(number) is before
        assert stopped.value.signal == number and stopped.value.checkpoint == checkpoint
        rows.append(stopped.value.row)
        assert CalibrationState.load(checkpoint).rows == ((0, rows[-1]),)  # the chunk at hand is in it
    assert 0 < rows[0] < rows[1] < rows[2] < N
    assert run(state(), source(data), checkpoint=checkpoint, resume=True) == undisturbed
    assert CalibrationState.load(checkpoint) == undisturbed
    read = CalibrationState.load(checkpoint)
    assert run(state(), source(data), checkpoint=checkpoint, resume=True) == read  # nothing is left to do


def test_a_second_sigint_stops_at_once(tmp_path, monkeypatch, data):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting(monkeypatch, {3}, twice)
    with pytest.raises(KeyboardInterrupt):
        run(state(), source(data), checkpoint=tmp_path / "run.kcalib", chunk_rows=1000)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_checkpoint_signals_do_what_they_did(monkeypatch, data):
    interrupting(monkeypatch, {2}, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run(state(), source(data), chunk_rows=1000)


def test_a_signal_that_is_ignored_stays_so(tmp_path, monkeypatch, data, undisturbed):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupting(monkeypatch, {2}, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert run(state(), source(data), checkpoint=tmp_path / "run.kcalib", chunk_rows=1000) == undisturbed
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path, data, undisturbed):
    found = []
    handlers = []

    def work():
        found.append(run(state(), source(data), checkpoint=tmp_path / "run.kcalib"))
        handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [undisturbed] and handlers == [signal.default_int_handler]


def test_an_error_in_the_middle_leaves_the_last_checkpoint(tmp_path, data, undisturbed):
    y, p = data
    wrong = p.copy()
    wrong[9000] = np.nan
    batches = [(y[:8000], p[:8000]), (y[8000:], wrong[8000:])]
    checkpoint = tmp_path / "run.kcalib"
    with pytest.raises(ValueError, match=r"y_pred\[9000, 0\]` is nan"):
        run(state(), source(batches), checkpoint=checkpoint, chunk_rows=1000)
    left = CalibrationState.load(checkpoint)
    ((start, stop),) = left.rows
    assert start == 0 and 0 < stop <= 9000
    assert left.update(y[stop:], p[stop:]) == undisturbed


def test_a_checkpoint_of_another_run_is_refused_and_says_in_what(tmp_path, monkeypatch, data):
    y, p = data
    checkpoint = tmp_path / "run.kcalib"
    run(state(), source(data), checkpoint=checkpoint)
    with pytest.raises(FileExistsError, match="exists; pass resume=True to continue, or remove it"):
        run(state(), source(data), checkpoint=checkpoint)

    def refused(other, samples=data, **options):
        with pytest.raises(ValueError, match="belongs to another run") as error:
            run(other, source(samples), checkpoint=checkpoint, resume=True, **options)
        assert str(error.value).endswith("name another checkpoint, or remove this one to start over")
        return str(error.value)

    assert "`n_columns` is 16 in one state and 32 in the other" in refused(CalibrationState(3, n_columns=32))
    assert "`seed` is 0" in refused(CalibrationState(3, **OPTIONS, seed=1))
    assert "`kernel` is" in refused(state(kernel=Exponential(0.2)))
    assert "its part is 0, not 2" in refused(state(part=2))
    assert "as it was before a change" in refused(state(), (y, p[:, [1, 0, 2]]))
    assert re.search("its source is .*12000 samples.* not .*11000 samples", refused(state(), (y[:11000], p[:11000])))
    assert "its rows are 0:12000, not 5:12000" in refused(state(), rows=(5, None))
    assert "its row 0 has the number 0, not 7" in refused(state(), first_row=7)
    assert "it has no rows 20000 to 20001" in refused(state().update(y[:2], p[:2], first_row=20_000))
    state().update(*data).save(checkpoint)
    assert "it has no note of a run" in refused(state())


def test_rows_are_checked(data):
    with pytest.raises(ValueError, match=r"`rows` is 5:12001, but the source has 12000 rows"):
        run(state(), source(data), rows=(5, N + 1))
    with pytest.raises(TypeError, match="`rows` is 3, expected a pair"):
        run(state(), source(data), rows=3)
    with pytest.raises(ValueError, match="`rows` is 3, expected an integer at least 4"):
        run(state(), source(data), rows=(4, 3))
    with pytest.raises(ValueError, match="`chunk_rows` is 0"):
        run(state(), source(data), chunk_rows=0)
    with pytest.raises(ValueError, match="were added already"):
        run(run(state(), source(data)), source(data))
    assert run(state(), source(data), rows=(4, 4)).n_samples == 0


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(tmp_path, monkeypatch, data, undisturbed):
    checkpoint = tmp_path / "run.kcalib"
    real, count = os.fsync, 0

    def full(descriptor):
        nonlocal count
        count += 1
        if count > 2:  # the first save takes two, of the file and of its folder
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run(state(), source(data), checkpoint=checkpoint, chunk_rows=1000)
    assert 0 < CalibrationState.load(checkpoint).n_samples < N
    assert run(state(), source(data), checkpoint=checkpoint, resume=True) == undisturbed


def test_what_a_killed_process_left_is_removed(tmp_path, data):
    litter = tmp_path / ".run.kcalib.0123456789ab.part"
    litter.write_bytes(b"half")
    (tmp_path / ".other.kcalib.0123456789ab.part").touch()
    run(state(), source(data), checkpoint=tmp_path / "run.kcalib")
    assert sorted(os.listdir(tmp_path)) == [".other.kcalib.0123456789ab.part", "run.kcalib"]


# -- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A second passes between two looks."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(running.time, "monotonic", lambda: next(seconds))


def test_progress_on_a_terminal_is_one_line_that_goes_away(monkeypatch, clock, data):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    run(state(), source(data), chunk_rows=1000)
    lines = stream.getvalue().split("\r")
    assert len(lines) > 5 and lines[-1] == "\033[K"
    assert re.fullmatch(
        r"kcalib: [\d,]+ of 12,000 rows \(\d+ %\), [\d,]+ rows/s, (\d+ min )?\d+ s left\033\[K", lines[3]
    ), lines[3]


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch, clock, data):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    run(state(), source(data), chunk_rows=1000)
    assert stream.getvalue() == ""
    run(state(), source(data), chunk_rows=1000, log_seconds=5)
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= 4
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d kcalib: [\d,]+ of 12,000 rows .* left", lines[0])


def test_rates_in_words():
    assert running.format_progress(10, 0, None, 2.0) == "10 rows, 5 rows/s"
    assert running.format_progress(1000, 500, 4000, 0.5) == "1,500 of 4,000 rows (38 %), 2,000 rows/s, 1 s left"
    assert [running.duration(s) for s in (3, 75, 7500)] == ["3 s", "1 min 15 s", "2 h 05 min"]


# -- kill -9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path, kills):
    done, _ = kill_campaign.campaign(kills, seed=1, folder=tmp_path)
    assert done > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_a_killed_run_of_distributions_goes_on_with_the_same_bits(tmp_path, kills):
    done, _ = kill_campaign.campaign(kills, seed=2, folder=tmp_path, kind="distributions")
    assert done > 0
