"""Threads, processes, signals, memory, progress: how a sweep behaves, not what it returns."""

from __future__ import annotations

import concurrent.futures
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib import _native, _threads
from kcalib._threads import ProgressBar, resolve_threads


def run_python(code: str, **environment: str) -> str:
    """Output of a fresh interpreter; -P: the installed package, not the source tree in this folder."""
    finished = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", textwrap.dedent(code)],
        env=os.environ | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_threads_follow_environment_then_affinity_then_argument():
    code = "from kcalib._threads import resolve_threads; print(resolve_threads(), resolve_threads(5))"
    assert run_python(code, OMP_NUM_THREADS="1") == "1 5"
    if hasattr(os, "sched_setaffinity") and _native.has_openmp():
        pinned = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + code
        assert run_python(pinned, OMP_NUM_THREADS="4") == "1 5"
        # The mask may also shrink after OpenMP has looked at it.
        later = "import kcalib._native, os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + code
        assert run_python(later, OMP_NUM_THREADS="4") == "1 5"


def test_threads_follow_the_control_group(tmp_path, monkeypatch):
    quota = tmp_path / "cpu.max"
    for text, expected in (("150000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", sys.maxsize)):
        quota.write_text(text)
        assert _threads._cgroup_quota(str(quota)) == expected
    assert _threads._cgroup_quota(str(tmp_path / "absent")) == sys.maxsize
    monkeypatch.setattr(_threads, "_cgroup_quota", lambda: 1)
    assert resolve_threads() == 1


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two"])
def test_threads_are_checked(threads):
    with pytest.raises((ValueError, TypeError), match="`threads` is"):
        kcalib.skce([0, 1], [0.5, 0.25], threads=threads)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_forked_and_spawned_children_compute(method):
    """OpenMP's threads do not survive a fork: the child must not wait for them."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no start method {method!r} here")
    y, p = softmax_problem(1500, 3)
    expected = kcalib.skce(y, p, threads=2)  # starts OpenMP's threads in this process
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        values = [pool.submit(kcalib.skce, y, p, threads=2) for _ in range(2)]
        assert [value.result(timeout=60) for value in values] == [expected, expected]


def test_concurrent_calls_do_not_disturb_each_other():
    problems = [softmax_problem(700 + 50 * i, 3, seed=i) for i in range(4)]
    expected = [kcalib.skce(y, p) for y, p in problems]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda yp: kcalib.skce(*yp), problems)) == expected


def test_interrupt_stops_a_long_sweep_within_a_second():
    y, p = softmax_problem(400_000, 2)
    kernel = kcalib.kernels.Exponential(bandwidth=0.5)
    sent = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    for options in ({}, {"estimator": "block", "block_size": 200_000}):
        timer = threading.Timer(0.5, interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            kcalib.skce(y, p, kernel=kernel, operator="openmp", **options)
        assert time.monotonic() - sent[-1] < 1.0


def test_sigterm_ends_the_process_within_a_second():
    code = """
        import numpy as np, kcalib
        p = np.random.default_rng(0).uniform(size=400_000)
        print("ready", flush=True)
        kcalib.skce(p > 0.5, p, kernel=kcalib.kernels.Exponential(bandwidth=0.5), operator="openmp")
    """
    child = subprocess.Popen([sys.executable, "-P", "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    child.terminate()
    start = time.monotonic()
    assert child.wait(timeout=10) == -signal.SIGTERM
    assert time.monotonic() - start < 1.0
    child.stdout.close()


def test_memory_is_linear_in_n():
    """40,000 x 10: H would take 12.8 GB; packed copies of 3.2 MB inputs, parts and Python must fit in 100 MB."""
    code = """
        import resource, numpy as np, kcalib
        rng = np.random.default_rng(0)
        p = rng.dirichlet(np.ones(10), size=40_000)
        y = p.argmax(axis=1)
        kernel = kcalib.kernels.Exponential(bandwidth=0.5)
        kcalib.skce(y[:100], p[:100], kernel=kernel)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        kcalib.skce(y, p, kernel=kernel, full_output=True)
        kcalib.skce(y, p, kernel=kernel, estimator="block", block_size=20_000)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    grown = int(run_python(code)) / (1024 if sys.platform == "darwin" else 1)
    assert grown < 100_000  # KiB


def test_progress_is_for_terminals():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    bar = ProgressBar("kcalib", shown, delay=0.0)
    bar(0.25)
    assert " 25 %" in shown.getvalue()
    bar.close()
    assert shown.getvalue().endswith("\r\033[K")
    early = Terminal()
    ProgressBar("kcalib", early, delay=60.0)(0.5)
    assert early.getvalue() == ""


def test_progress_reaches_the_sweep(monkeypatch, capfd):
    monkeypatch.setattr("kcalib._threads.sys.stderr", None)
    with _threads.terminal_progress() as bar:
        assert bar is None
    seen: list[float] = []
    y, p = softmax_problem(40_000, 2)
    sweep = _native.Sweep(2, None, seen.append)
    marks = np.ascontiguousarray(np.eye(2)[y] - p)
    kernel = _native.Kernel([(1.0, [(0, 0, 2.0, 0.0)])])
    _native.moments(p, marks, None, p, marks, None, True, kernel, sweep, False, False)
    assert seen and seen == sorted(seen) and 0 < seen[0] <= seen[-1] <= 1

    class Stop(Exception):
        pass

    def stop(done: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        _native.moments(p, marks, None, p, marks, None, True, kernel, _native.Sweep(2, None, stop), False, False)
    assert capfd.readouterr().err == ""
