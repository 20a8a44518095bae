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
from functools import partial

import numpy as np
import pytest
from grid import some
from interrupts import stops_within_a_second
from problems import named_method, softmax_problem

import kcalib
from kcalib import _native
from kcalib._backend import memory, threads
from kcalib._backend.random import KINDS
from kcalib._backend.threads import ProgressBar, resolve_threads


def run_python(code: str, **environment: str) -> str:
    """Output of a fresh interpreter; -P: the installed package, not the source tree in this folder."""
    finished = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", textwrap.dedent(code)],
        env=os.environ | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_threads_follow_environment_then_affinity_then_argument():
    code = "from kcalib._backend.threads import resolve_threads; print(resolve_threads(), resolve_threads(5))"
    assert run_python(code, OMP_NUM_THREADS="1") == "1 5"
    if hasattr(os, "sched_setaffinity"):
        pinned = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + code
        assert run_python(pinned, OMP_NUM_THREADS="4") == "1 5"
        # The mask may also shrink after the core has looked at it.
        later = "import kcalib._native, os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + code
        assert run_python(later, OMP_NUM_THREADS="4") == "1 5"


def write_groups(folder, groups: dict[str, dict[str, str]], membership: str) -> None:
    for group, files in groups.items():
        (folder / "mounts" / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / "mounts" / group / name).write_text(text + "\n")
    (folder / "cgroup").write_text(membership)


@pytest.mark.parametrize(
    ("groups", "membership", "expected"),
    [
        # version 2: the group's own quota, that of one above, that of the mount (a container's), in a mixed set-up
        ({"a/b": {"cpu.max": "150000 100000"}}, "0::/a/b", 2),
        ({"a/b": {"cpu.max": "50000 100000"}}, "0::/a/b", 1),
        ({"a/b": {"cpu.max": "max 100000"}}, "0::/a/b", None),
        ({"a/b": {"cpu.max": "400000 100000"}, "a": {"cpu.max": "300000 100000"}}, "0::/a/b", 3),
        ({"": {"cpu.max": "200000 100000"}}, "0::/host/path", 2),
        ({"unified/a": {"cpu.max": "200000 100000"}}, "5:memory:/\n0::/a", 2),
        # version 1
        ({"cpu/a": {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"}}, "3:cpu,cpuacct:/a\n0::/", 3),
        ({"cpu/a": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}}, "3:cpu:/a", None),
        ({"cpu": {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}}, "3:cpu:/docker/1", 1),
        # not the group of the process
        ({"other": {"cpu.max": "100000 100000"}}, "0::/a", None),
        ({"cpu/a": {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}}, "3:cpuset:/a", None),
        ({}, "", None),
    ],
)
def test_threads_follow_the_control_group(groups, membership, expected, tmp_path):
    write_groups(tmp_path, groups, membership)
    assert threads._cgroup_quota(tmp_path / "mounts", tmp_path / "cgroup") == (expected or sys.maxsize)
    assert threads._cgroup_quota(tmp_path / "mounts", tmp_path / "absent") == sys.maxsize


def version_2(limit: str, usage: int, cache: int = 0) -> dict[str, str]:
    return {"memory.max": limit, "memory.current": str(usage), "memory.stat": f"anon 1\ninactive_file {cache}"}


def version_1(limit: str, usage: int, cache: int) -> dict[str, str]:
    statistics = f"inactive_file 3\ntotal_inactive_file {cache}"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": str(usage), "memory.stat": statistics}


@pytest.mark.parametrize(
    ("groups", "membership", "expected"),
    [
        # version 2: the group's limit less its usage, caches given back; of one above; none
        ({"a": version_2("100", 40)}, "0::/a", 60),
        ({"a": version_2("100", 90, cache=40)}, "0::/a", 50),
        ({"a/b": version_2("max", 90), "a": version_2("1000", 990)}, "0::/a/b", 10),
        ({"a": version_2("100", 130)}, "0::/a", 0),
        ({"a": version_2("max", 1)}, "0::/a", None),
        # version 1, inside a container too; its "no limit" is a number
        ({"memory": version_1("500", 400, cache=100)}, "4:memory:/docker/1\n0::/", 200),
        ({"memory/a": version_1("9223372036854771712", 1, cache=0)}, "4:memory:/a", None),
        ({"cpu/a": version_2("1", 0)}, "4:cpu:/a", None),
    ],
)
def test_memory_is_what_the_control_group_leaves(groups, membership, expected, tmp_path, monkeypatch):
    write_groups(tmp_path, groups, membership)
    monkeypatch.setattr(memory, "_left_on_machine", lambda: 2**50)
    found = memory.available_memory(tmp_path / "mounts", tmp_path / "cgroup")
    assert found == (2**50 if expected is None else expected)
    assert memory.available_memory(tmp_path / "mounts", tmp_path / "absent") == 2**50
    monkeypatch.setattr(memory, "_left_on_machine", lambda: None)
    absent = memory.available_memory(tmp_path / "mounts", tmp_path / "absent")
    assert absent is None


def test_threads_are_at_most_the_quota_and_the_argument_wins(monkeypatch):
    monkeypatch.setattr(threads, "_cgroup_quota", lambda: 1)
    assert (resolve_threads(), resolve_threads(3)) == (1, 3)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two"])
def test_threads_are_checked(threads):
    with pytest.raises((ValueError, TypeError), match="`threads` is"):
        kcalib.skce([0, 1], [0.5, 0.25], threads=threads)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", some(["fork", "forkserver", "spawn"], "fork", "spawn"))
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
        assert method != "fork" or pool.submit(resolve_threads).result(timeout=60) == 1


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_joblib_workers_compute(backend):
    joblib = pytest.importorskip("joblib")
    y, p = softmax_problem(1500, 3)
    expected = kcalib.skce(y, p)
    with joblib.parallel_config(backend, n_jobs=2, inner_max_num_threads=1 if backend == "loky" else None):
        assert joblib.Parallel()(joblib.delayed(kcalib.skce)(y, p) for _ in range(4)) == [expected] * 4
        if backend == "loky":  # which tells its workers by OMP_NUM_THREADS
            assert joblib.Parallel()(joblib.delayed(resolve_threads)() for _ in range(2)) == [1, 1]
    if backend == "loky":
        joblib.externals.loky.get_reusable_executor().shutdown()


def test_a_call_inside_a_parallel_region_uses_one_thread():
    """A progress callback runs inside the sweep's region, on one of its threads."""
    y, p = softmax_problem(40_000, 2)
    small = softmax_problem(800, 3)
    expected = kcalib.skce(*small)
    seen = []

    def inside(done: float) -> None:
        seen.append((_native.max_threads(), resolve_threads(), kcalib.skce(*small), kcalib.skce(*small, threads=2)))

    features = np.ascontiguousarray(np.eye(2)[y] - p)
    kernel = _native.Kernel([(1.0, [(0, 0, 2.0, 0.0, 0.0)])])
    options = _native.RunOptions(2, inside)
    _native.Problem(kernel, (p, features, None, None)).sweep([_native.Moments(rows=False)], options)
    assert seen and set(seen) == {(1, 1, expected, expected)}


def test_concurrent_calls_share_the_threads(monkeypatch):
    monkeypatch.setattr(threads, "_affinity", lambda: 8)
    monkeypatch.setattr(threads, "_cgroup_quota", lambda: 8)
    monkeypatch.setattr(_native, "max_threads", lambda: 8)
    shares = []

    class Enough(Exception):
        pass

    def sweep_within_sweep(running: int) -> None:
        """Starts a sweep and, from its progress callback while it runs, the next one."""
        shares.append((_native.running_sweeps(), resolve_threads(), resolve_threads(5)))
        if running == 3:
            raise Enough
        out = np.empty((2**21, 64), dtype=np.float32)
        options = _native.RunOptions(1, lambda done: sweep_within_sweep(running + 1))
        _native.fill_weights(KINDS["gaussian"], 0, 0, out, options)

    with pytest.raises(Enough):
        sweep_within_sweep(0)
    assert shares == [(0, 8, 5), (1, 4, 5), (2, 2, 5), (3, 2, 5)]
    assert _native.running_sweeps() == 0  # also after an exception


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_bits_do_not_depend_on_affinity():
    code = """
        import hashlib, os, sys, numpy as np, kcalib
        os.sched_setaffinity(0, {cpus})
        from kcalib._pairs.backends.cpu import CpuBackend
        from kcalib._pairs.problem import Factor, PairProblem, Side, Term
        from kcalib._pairs.reductions import BlockSums, Moments, Products
        from kcalib._backend.random import Weights
        rng = np.random.default_rng(0)
        p = rng.dirichlet(np.ones(4), size=1500)
        y = p.argmax(axis=1)
        side = Side(p, np.eye(4)[y] - p)
        problem = PairProblem(side, None, (Term(1.0, (Factor("exponential", "euclidean", 2.0),)),))
        digests = set()
        for threads in (1, 2, 3, 7):
            backend = CpuBackend(problem, threads=threads)
            some = [Moments(second=True), BlockSums(300), Products(p[:, :3])]
            moments, *arrays = backend.sweep(some)
            arrays += [moments.row_sums, moments.sum_of_squares]
            arrays += [Weights(kind, 1000, 50, 1).values(threads=threads) for kind in ("multinomial", "gaussian")]
            arrays += [kcalib.skce(y, p, threads=threads), kcalib.skce(y, p, threads=threads, dtype="float32")]
            digests.add(hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest())
        print(*digests)
    """
    cpus = sorted(os.sched_getaffinity(0))
    masks = [{cpus[-1]}, set(cpus)]
    found = {run_python(code.replace("{cpus}", str(mask))) for mask in masks}
    assert len(found) == 1 and " " not in found.pop()


def test_concurrent_calls_do_not_disturb_each_other():
    problems = [softmax_problem(700 + 50 * i, 3, seed=i) for i in range(4)]
    expected = [kcalib.skce(y, p) for y, p in problems]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda yp: kcalib.skce(*yp), problems)) == expected


def test_interrupt_stops_a_long_sweep_within_a_second():
    y, p = softmax_problem(400_000, 2)
    kernel = kcalib.kernels.Exponential(bandwidth=0.5)
    for options in ({}, {"estimator": kcalib.methods.BlockEstimator(200_000)}):
        stops_within_a_second(partial(kcalib.skce, y, p, kernel=kernel, backend="cpu", **options))


@pytest.mark.parametrize(
    ("method", "n"),
    [
        ("bootstrap", 40_000),
        ("exact", 20_000),
        *(
            pytest.param(*case, marks=pytest.mark.grid)
            for case in (("multiplier", 40_000), ("spectrum", 150_000), ("consistency", 20_000))
        ),
    ],
)
def test_interrupt_stops_a_long_test_within_a_second(method, n):
    y, p = softmax_problem(n, 3)
    kernel = kcalib.kernels.Exponential(bandwidth=0.5)
    options = {"estimator": "unbiased", "resample_predictions": False} if method == "consistency" else {}
    method = named_method(method, **options)
    stops_within_a_second(lambda: kcalib.calibration_test(y, p, method=method, kernel=kernel), after=0.7)


def test_a_large_block_is_stopped_within_a_strip_of_rows():
    """Which of slow pairs takes minutes: the share that is done is counted by squares of 192 samples, not by strips."""
    n = 60_000
    y, p = softmax_problem(n, 2)
    features = np.ascontiguousarray(np.eye(2)[y] - p)
    kernel = _native.Kernel([(1.0, [(0, 0, 2.0, 0.0, 0.0)])])
    shares = []

    def stop(done: float) -> None:
        shares.append(done)
        if len(shares) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _native.Problem(kernel, (p, features, None, None)).block_sums(n, _native.RunOptions(1, stop))
    strips = -(-n // 192)
    squares = np.array(shares) * (strips * (strips + 1) / 2)
    np.testing.assert_allclose(squares, np.round(squares), rtol=1e-12)
    assert any(abs(share * strips - round(share * strips)) > 1e-6 for share in shares)


@pytest.mark.parametrize("kind", ["multinomial", "gaussian"])
def test_weights_stop_when_asked(kind):
    def stop(done: float) -> None:
        raise KeyboardInterrupt

    out = np.empty((2**21, 64), dtype=np.float32)  # touched only until it stops
    start = time.thread_time()
    with pytest.raises(KeyboardInterrupt):
        _native.fill_weights(KINDS[kind], 0, 0, out, _native.RunOptions(1, stop))
    assert time.thread_time() - start < 1.0


def test_changed_sums_stop_within_a_part():
    """Whose rows are all that there are, and take seconds."""
    shares = []

    def stop(done: float) -> None:
        shares.append(done)
        raise KeyboardInterrupt

    n, draws = 8192, 1024
    labels, rows = np.ones((n, draws), dtype=np.int32), np.ones((n, 512))
    with pytest.raises(KeyboardInterrupt):
        _native.changed_sums(rows, rows[:2], np.zeros(n, dtype=np.int32), labels, _native.RunOptions(1, stop))
    assert shares[0] < 1


def test_sigterm_ends_the_process():
    code = """
        import numpy as np, kcalib
        p = np.random.default_rng(0).uniform(size=400_000)
        print("ready", flush=True)
        kcalib.skce(p > 0.5, p, kernel=kcalib.kernels.Exponential(bandwidth=0.5), backend="cpu")
    """
    child = subprocess.Popen([sys.executable, "-P", "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    child.terminate()
    # A second where nothing else runs; the sums would take minutes.
    assert child.wait(timeout=10) == -signal.SIGTERM
    child.stdout.close()


ESTIMATES = """
kcalib.skce.result(y, p, kernel=kernel)
kcalib.skce(y, p, kernel=kernel, estimator=kcalib.methods.BlockEstimator(10_000))
"""
TESTS = """
for method in (kcalib.methods.Spectrum(), kcalib.methods.Bootstrap(n_resamples=99), kcalib.methods.Exact(4)):
    kcalib.calibration_test(y, p, kernel=kernel, method=method)
"""


@pytest.mark.parametrize(
    ("calls", "n", "most"), [(ESTIMATES, 20_000, 100_000), pytest.param(TESTS, 10_000, 300_000, marks=pytest.mark.grid)]
)
def test_memory_is_linear_in_n(calls, n, most):
    """H would take 3.2 GB and 800 MB; copies of the input, parts, batches of weights and Krylov vectors much less."""
    code = f"""
import resource, numpy as np, kcalib
rng = np.random.default_rng(0)
p = rng.dirichlet(np.ones(10), size={n})
y = (p.cumsum(axis=1) < rng.uniform(size=({n}, 1))).sum(axis=1)
kernel = kcalib.kernels.Exponential(bandwidth=0.5)
kcalib.calibration_test(y[:300], p[:300], kernel=kernel, method="spectrum")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{calls}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(run_python(code)) / (1024 if sys.platform == "darwin" else 1)
    assert grown < most  # KiB


def test_for_little_memory_nobody_is_asked(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(memory, "available_memory", lambda: asked.append(1) or 1000)
    y, p = softmax_problem(10, 10)
    kcalib.top_label_ece(y, p)
    memory.check_memory(2**20, None, "numbers", "take fewer")
    assert not asked
    with pytest.raises(MemoryError, match="numbers take 1 MiB of memory, .* are available; take fewer"):
        memory.check_memory(2**20 + 1, None, "numbers", "take fewer")
    with pytest.raises(MemoryError, match="allowed by `max_memory`"):
        memory.check_memory(2, 1, "numbers", "take fewer")


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
    monkeypatch.setattr("kcalib._backend.threads.sys.stderr", None)
    with threads.TerminalProgress() as bar:
        assert bar is None
    seen: list[float] = []
    y, p = softmax_problem(40_000, 2)
    options = _native.RunOptions(2, seen.append)
    features = np.ascontiguousarray(np.eye(2)[y] - p)
    kernel = _native.Kernel([(1.0, [(0, 0, 2.0, 0.0, 0.0)])])
    _native.Problem(kernel, (p, features, None, None)).sweep([_native.Moments(rows=False)], options)
    assert seen and seen == sorted(seen) and 0 < seen[0] <= seen[-1] <= 1

    class Stop(Exception):
        pass

    def stop(done: float) -> None:
        raise Stop

    problem = _native.Problem(kernel, (p, features, None, None))
    with pytest.raises(Stop):
        problem.sweep([_native.Moments(rows=False)], _native.RunOptions(2, stop))
    assert capfd.readouterr().err == ""


def test_threads_that_cannot_be_started_are_an_error(monkeypatch):
    """OpenMP would end the process, so they are started once before."""
    some, start = threading.active_count() + 3, threading.Thread.start

    def limited(thread):
        if threading.active_count() >= some:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(ValueError, match=r"`threads` is 4000, but only \d+ can be started, by a limit on processes"):
        resolve_threads(4000)
    assert threading.active_count() < some
    assert resolve_threads(1) == 1


@pytest.mark.grid
def test_many_threads_under_a_limit_do_not_end_python():
    code = """
import resource, numpy as np, kcalib
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
p = np.random.default_rng(0).dirichlet(np.ones(10), 20000)
try:
    kcalib.skce(np.zeros(20000, int), p, threads=4000)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "`threads` is 4000, but only" in done.stdout, done.stderr
