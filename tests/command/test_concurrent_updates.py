"""Processes that change one state at the same time: each waits for the others, and no row is lost."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from command_runs import predictions, ran

from kcalib._backend.files import FileBusyError, hold_file
from kcalib._command.cli import main
from kcalib.streaming import CalibrationState, load, run, source

WRITERS, ROWS = 8, 300
SMALL = ("--columns", "16", "--resamples", "5", "--threads", "1", "--bandwidth", "0.5")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    y, p = predictions()
    for k in range(WRITERS):
        rows = slice(k * ROWS, (k + 1) * ROWS)
        np.savez(f"{k}.npz", labels=y[rows], probs=p[rows])
    return tmp_path


def start(*arguments):
    """A process of its own that runs the command, forked, so that many of them start at the same moment."""
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(main([*map(str, arguments)])))
    process.start()
    return process


def update(k):
    return start("update", "all.kcalib", f"{k}.npz", "--part", k, "--resume", *SMALL)


def test_no_rows_are_lost_of_eight_writers_that_are_killed_at_random(folder):
    for k in range(WRITERS):
        ran("update", "whole.kcalib", f"{k}.npz", "--part", k, *SMALL)
    rng = np.random.default_rng(0)
    writers = [update(k) for k in range(WRITERS)]
    for k in rng.permutation(WRITERS)[: WRITERS // 2]:
        time.sleep(rng.uniform(0, 0.05))
        writers[k].kill()
    for process in writers:
        process.join()
    # 1: an update that was killed in the middle has to be finished first, which the message says
    assert all(process.exitcode in (0, 1, -signal.SIGKILL) for process in writers)
    parts = {start >> 40 for start, _ in load("all.kcalib").rows} if os.path.exists("all.kcalib") else set()
    assert parts >= {k for k, process in enumerate(writers) if process.exitcode == 0}
    for _ in range(2):  # the interrupted update may come after others, which it stops
        for k in range(WRITERS):
            main(["update", "all.kcalib", f"{k}.npz", "--part", str(k), "--resume", *SMALL])
    all_rows, whole = load("all.kcalib"), load("whole.kcalib")
    assert all_rows.rows == whole.rows
    assert all_rows.result().skce.value == whole.result().skce.value
    assert not list(folder.glob(".*"))  # neither locks nor unfinished files


def test_a_second_writer_waits_and_then_gives_up_with_a_code_of_its_own(folder, capsys):
    ran("update", "all.kcalib", "0.npz", *SMALL)
    with hold_file("all.kcalib"):
        assert main(["update", "all.kcalib", "1.npz", "--wait", "0.05", *SMALL]) == 75
        assert capsys.readouterr().err == ("kcalib: all.kcalib is being changed by another process; try again later\n")
        assert main(["merge", "-o", "all.kcalib", "all.kcalib", "--wait", "0"]) == 2  # its own input
        assert main(["merge", "-o", "all.kcalib", "whole.kcalib", "--wait", "0"]) == 1  # no such file
        capsys.readouterr()
        waiting = start("update", "all.kcalib", "1.npz", *SMALL)
        time.sleep(0.1)
        assert load("all.kcalib").n_samples == ROWS
    waiting.join()
    assert waiting.exitcode == 0
    assert load("all.kcalib").n_samples == 2 * ROWS


def test_merging_waits_for_whoever_changes_the_file(folder, capsys):
    ran("update", "all.kcalib", "0.npz", *SMALL)
    with hold_file("sum.kcalib"):
        assert main(["merge", "-o", "sum.kcalib", "all.kcalib", "--wait", "0.05"]) == 75
    assert "sum.kcalib is being changed by another process" in capsys.readouterr().err
    assert not os.path.exists("sum.kcalib")


def test_two_runs_with_one_checkpoint(folder, capsys):
    y, p = predictions()
    with hold_file("run.kcalib"):
        with pytest.raises(FileBusyError, match="is being changed by another process"):
            run(CalibrationState(p.shape[1], n_columns=16, n_resamples=0), source([(y, p)]), checkpoint="run.kcalib")
        assert main(["evaluate", "--stream", "--checkpoint", "run.kcalib", "0.npz"]) == 75
    assert "run.kcalib is being changed by another process" in capsys.readouterr().err


def test_a_file_is_held_by_one_of_many_threads_at_a_time(tmp_path):
    holders, most = [], []

    def hold():
        for _ in range(20):
            with hold_file(tmp_path / "state", 60):
                holders.append(0)
                most.append(len(holders))
                holders.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert set(most) == {1}
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as failure, hold_file(tmp_path / "no" / "state"):
        pass
    assert failure.value.filename == str(tmp_path / "no" / "state")


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="has no locks"), hold_file(tmp_path / "state"):
        pass
