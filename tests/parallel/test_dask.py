"""Tiles on a Dask cluster: bits, workers and schedulers that die, threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib.kernels import Exponential
from kcalib.parallel import Dask, Processes

distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore:.*distributed:DeprecationWarning",
        "ignore:the Dask cluster .* has no workers:RuntimeWarning",  # new ones take their time on a busy machine
    ),
]
KERNEL = Exponential(0.3)
Y, P = softmax_problem(3000, 5, seed=0)
TILE = 192
OPTIONS = {"kernel": KERNEL}


def numbers(result):
    return result.value, result.standard_error, result.null_standard_error


@pytest.fixture(scope="module")
def one():
    """What one machine says."""
    return numbers(kcalib.skce.result(Y, P, **OPTIONS))


def started(workers=2, **options):
    options = {"threads_per_worker": 1, "dashboard_address": ":0"} | options
    return distributed.LocalCluster(n_workers=workers, **options)


@pytest.fixture(scope="module")
def cluster():
    with started() as found:
        yield found


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as found:
        found.wait_for_workers(2, timeout=60)
        yield found


def kill(client, count, how=signal.SIGKILL):
    """End workers without a word; with SIGTERM as a queue ends those that it preempts."""
    for pid in list(client.run(os.getpid).values())[:count]:
        os.kill(pid, how)


class Then(Dask):
    """Dask, and something that happens when `after` tiles are done."""

    def __init__(self, client, after, act, **options):
        super().__init__(client, tile_size=TILE, **options)
        object.__setattr__(self, "waiting", [after])
        object.__setattr__(self, "act", act)

    def results(self, held, work, tiles, given, progress):
        for done in super().results(held, work, tiles, given, progress):
            yield done
            self.waiting[0] -= 1
            if self.waiting[0] == 0:
                self.act()


def test_the_bits_of_one_machine(client, one):
    found = kcalib.skce.result(Y, P, **OPTIONS, backend=Dask(client, tile_size=TILE))
    assert numbers(found) == one
    assert "Dask cluster tcp://127.0.0.1" in found.backend_reason
    assert not client.futures  # nothing is left behind


def test_a_bare_client(client):
    y, p = softmax_problem(6000, 3, seed=1)  # enough to be shared out
    found = kcalib.skce.result(y, p, **OPTIONS, backend=client)
    assert "Dask cluster" in found.backend_reason
    assert found.value == kcalib.skce(y, p, kernel=KERNEL)


def test_an_address(cluster, one):
    address = cluster.scheduler_address
    assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=Dask(address, tile_size=TILE))) == one


def test_a_cluster_for_the_call(one):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=Dask(tile_size=TILE))) == one


def test_other_numbers_of_workers(one):
    for workers, threads in (1, 1), (3, 1), (1, 3):
        with (
            started(workers, threads_per_worker=threads) as cluster,
            distributed.Client(cluster) as client,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", RuntimeWarning)  # more of them than processors
            assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=Dask(client, tile_size=TILE))) == one


def test_chunks_of_dask_arrays_stay_on_workers(client, one, monkeypatch):
    """Nothing here makes an array of them: only the result comes."""
    da = pytest.importorskip("dask.array")
    chunks = [0, 700, 1500, 3000]
    sizes = tuple(np.diff(chunks).tolist())
    y, p = da.from_array(Y, chunks=(sizes,)), da.from_array(P, chunks=(sizes, 5))
    for name in ("__array__", "compute"):
        monkeypatch.setattr(da.Array, name, refused)
    parallel = Dask(client, tile_size=TILE)
    assert numbers(kcalib.skce.result(y, p, **OPTIONS, backend=parallel)) == one
    assert numbers(kcalib.skce.result(Y, y_pred=p, **OPTIONS, backend=parallel)) == one
    compared = kcalib.compare(
        y, {"a": p, "b": 1 - (1 - p)}, metric=kcalib.methods.SKCE(kernel=KERNEL), backend=parallel
    )
    assert "Dask cluster" in compared.backend_reason
    with pytest.raises(ValueError, match="estimator") as caught:
        kcalib.skce(Y, p, estimator="none", backend=parallel)
    left = [key for key in client.futures if not key.startswith("_call_there")]
    assert caught.value.__traceback__ and not left  # who keeps the error keeps no arrays on workers


def test_arrays_that_are_here_stay_here(client):
    """Of xarray, which asks the same as Dask's, but has NumPy's arrays."""
    xr = pytest.importorskip("xarray")
    da = pytest.importorskip("dask.array")
    here, there = xr.DataArray(P, dims=("sample", "class")), xr.DataArray(da.from_array(P), dims=("sample", "class"))
    assert Dask(client).elsewhere([Y, here]) is None
    assert Dask(client).elsewhere([Y, there]) is not None


def test_warnings_of_a_call_on_a_worker_reach_its_user(client):
    da = pytest.importorskip("dask.array")
    p = np.full(200, 1e-4)
    with pytest.warns(kcalib.AntiConservativeWarning) as one:
        kcalib.calibration_test(np.zeros(200, dtype=int), p, kernel=KERNEL, method="spectrum")
    y = da.zeros(200, dtype=int, chunks=50)
    with pytest.warns(kcalib.AntiConservativeWarning) as found:
        kcalib.calibration_test(y, p, kernel=KERNEL, method="spectrum", backend=Dask(client))
    assert [str(each.message) for each in found] == [str(each.message) for each in one]
    assert found[0].filename == __file__


def refused(*args, **kwargs):
    raise AssertionError("an array of Dask came here")


@pytest.mark.parametrize("times", [1, 3])
def test_a_tile_that_finds_too_little_memory_is_tried_again(one, times):
    greedy_tile = pytest.importorskip("deadly_tile")
    da = pytest.importorskip("dask.array")
    with started(1) as cluster, distributed.Client(cluster) as client:
        client.register_plugin(greedy_tile.GreedyTile(times))
        parallel = Dask(client, tile_size=TILE)
        if times == 1:
            assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=parallel)) == one
            return
        for p in P, da.from_array(P):
            client.register_plugin(greedy_tile.GreedyTile(times), name=f"for {type(p)}")
            with pytest.raises(kcalib.parallel.TileError, match="failed 3 times, .* by MemoryError: no room"):
                kcalib.skce.result(Y, p, **OPTIONS, backend=parallel)


def test_a_call_on_a_worker_is_given_up(client, monkeypatch):
    """Ctrl-C here stops what goes on there."""
    y, p = softmax_problem(60_000, 10, seed=1)
    monkeypatch.setattr(distributed.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Dask(client, tile_size=TILE).call(kcalib.skce, y, p, kernel=KERNEL)
    deadline = time.monotonic() + 60
    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def interrupted(future):
    time.sleep(2)
    raise KeyboardInterrupt


def test_executor_of_a_client(client, one):
    with client.get_executor() as executor:
        assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=executor_of(executor))) == one


def executor_of(executor):
    return kcalib.parallel.Executor(executor, workers=2, tile_size=TILE)


@pytest.mark.parametrize(("workers", "how"), [(1, signal.SIGKILL), (2, signal.SIGKILL), (1, signal.SIGTERM)])
def test_workers_are_killed_or_preempted(client, one, workers, how):
    """One of two: its tiles go to the other. Both: all samples are lost, and scattered again."""
    parallel = Then(client, 20, lambda: kill(client, workers, how))
    assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=parallel)) == one


def test_a_worker_comes_late(one, monkeypatch):
    monkeypatch.setattr(kcalib.parallel.dask, "PATIENCE", 0.5)
    with started(0) as cluster, distributed.Client(cluster) as client, ThreadPoolExecutor(1) as later:
        later.submit(lambda: (time.sleep(3), cluster.scale(1)))
        with pytest.warns(RuntimeWarning, match="has no workers since .* waits for them: start some, or interrupt it"):
            assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=Dask(client, tile_size=TILE))) == one


def test_the_worker_of_a_call_comes_late(one, monkeypatch):
    """Labels are here, and predictions are not: nobody takes either yet."""
    da = pytest.importorskip("dask.array")
    monkeypatch.setattr(kcalib.parallel.dask, "PATIENCE", 0.5)
    with started(0) as cluster, distributed.Client(cluster) as client, ThreadPoolExecutor(1) as later:
        later.submit(lambda: (time.sleep(3), cluster.scale(1)))
        with pytest.warns(RuntimeWarning, match="has no workers since"):
            assert (
                numbers(kcalib.skce.result(Y, da.from_array(P), **OPTIONS, backend=Dask(client, tile_size=TILE))) == one
            )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_call_that_is_lost_with_its_scheduler(workers):
    """While it waits for workers, or while it is made."""
    cluster = started(workers)
    with distributed.Client(cluster) as client, ThreadPoolExecutor(1) as later:

        def close():
            while workers and not any(key.startswith("_call_there") for key in client.futures):
                time.sleep(0.1)
            time.sleep(2)
            cluster.close()

        closed = later.submit(close)
        with pytest.raises(RuntimeError, match="the call on a worker of .* is lost"):
            Dask(client).call(lambda backend: time.sleep(60))
        closed.result()


def test_a_tile_that_kills_its_workers(one, tmp_path):
    deadly_tile = pytest.importorskip("deadly_tile")
    with started() as cluster, distributed.Client(cluster) as client:
        client.register_plugin(deadly_tile.DeadlyTile())
        parallel = Dask(client, tile_size=TILE, journal=tmp_path / "tiles")
        with pytest.raises(kcalib.parallel.TileError, match=r"workers.*memory is the usual reason") as caught:
            kcalib.skce.result(Y, P, **OPTIONS, backend=parallel)
    assert "the same call goes on from there" in caught.value.__notes__[0]


def test_the_scheduler_is_lost_and_another_transport_goes_on(one, tmp_path):
    journal = tmp_path / "tiles"
    cluster = started()
    with distributed.Client(cluster) as client:
        parallel = Then(client, 30, cluster.close, journal=journal)
        with pytest.raises(kcalib.parallel.TileError, match="scheduler .* is lost") as caught:
            kcalib.skce.result(Y, P, **OPTIONS, backend=parallel)
    assert str(journal) in caught.value.__notes__[0]
    found = kcalib.skce.result(Y, P, **OPTIONS, backend=Processes(2, journal=journal, tile_size=TILE))
    assert numbers(found) == one
    assert "from the journal" in found.backend_reason


def test_errors_of_tiles_are_raised_and_the_rest_is_cancelled(client):
    def act():
        raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        kcalib.skce.result(Y, P, **OPTIONS, backend=Then(client, 5, act))
    deadline = time.monotonic() + 60
    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_threads_are_passed_and_more_than_processors_warned_of(one, monkeypatch):
    """A nanny sets OMP_NUM_THREADS=1; tiles have the threads of the call."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    processors = len(os.sched_getaffinity(0))
    with started(1) as cluster, distributed.Client(cluster) as client:
        assert set(client.run(os.getenv, "OMP_NUM_THREADS").values()) == {"1"}
        (before,) = client.run(os.listdir, "/proc/self/task").values()
        parallel = Dask(client, threads=processors, tile_size=1500)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            assert numbers(kcalib.skce.result(Y, P, **OPTIONS, backend=parallel)) == one
        (after,) = client.run(os.listdir, "/proc/self/task").values()
        assert len(after) - len(before) >= processors - 1
        with pytest.warns(RuntimeWarning, match=f"1 tasks of {processors + 1} threads .* for {processors} processors"):
            kcalib.skce.result(Y, P, **OPTIONS, backend=Dask(client, threads=processors + 1, tile_size=1500))


def test_what_is_no_client():
    with pytest.raises(TypeError, match="`client` is a int, expected a distributed.Client"):
        Dask(7)
    with pytest.raises(OSError, match="no Dask scheduler answers at nonsense"):
        kcalib.skce(Y, P, backend=Dask("nonsense"))
    with pytest.raises(TypeError, match="`backend` is given to a call"):
        Dask("nonsense").call(kcalib.skce, Y, P, backend=None)


def test_a_closed_client(cluster):
    with distributed.Client(cluster) as client:
        pass
    with pytest.raises(RuntimeError, match="`client` is closed; pass one that is connected"):
        kcalib.skce(Y, P, backend=client)


def test_ctrl_c(tmp_path):
    """All is cancelled, and the workers end."""
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, kcalib, numpy as np\n"
        "from kcalib.parallel import Dask\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
        "    rng = np.random.default_rng(0)\n"
        "    p = rng.dirichlet(np.ones(10), size=200_000)\n"
        "    y = rng.integers(10, size=200_000)\n"
        f"    parallel = Dask(journal={str(tmp_path / 'tiles')!r})\n"
        "    kcalib.skce(y, p, kernel=kcalib.kernels.Exponential(1.0), backend=parallel)\n"
    )
    run = subprocess.Popen([sys.executable, str(program)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "tiles").exists() or (tmp_path / "tiles").stat().st_size < 2000:
        assert time.monotonic() < deadline and run.poll() is None, run.stderr.read()
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)  # a second or two where nothing else runs; the sums would take minutes
    assert "KeyboardInterrupt" in errors
