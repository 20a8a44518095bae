"""What moves: samples once to each worker, whatever is computed from them; tasks of some hundred bytes."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib.distributions import Normal
from kcalib.kernels import Exponential
from kcalib.parallel import Dask, Executor, Serial
from kcalib.parallel.store import Missing, Recent, deliver, run_tile
from kcalib.parallel.transport import ATTEMPTS

KERNEL = Exponential(0.3)
N, M, TILE = 3000, 10, 500
SAMPLES = 8 * N * (M + 1)  # predictions and labels
TASK = 1500  # bytes, at most
SENT = re.compile(r"(?P<bytes>[\d.e+]+) MB sent to each of (?P<workers>\d+) workers?, [\d.e+-]+ MB of sums back")


def awake(seconds):
    """By a process that has imported kcalib, as this module does."""
    time.sleep(seconds)


class Weighed(ProcessPoolExecutor):
    """How many bytes are pickled for workers."""

    def __init__(self, workers):
        super().__init__(workers, multiprocessing.get_context("spawn"))
        self.tasks, self.brought = [], []
        for future in [super(Weighed, self).submit(awake, 0.5) for _ in range(workers)]:
            future.result()

    def submit(self, function, *args):
        size = len(pickle.dumps((function, *args), protocol=5))
        (self.brought if function is deliver else self.tasks).append(size)
        return super().submit(function, *args)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_samples_go_to_each_process_once(workers):
    """Of two that start, one may take what the other asked for: an executor does not say who gets a task."""
    y, p = softmax_problem(N, M, seed=1)
    with Weighed(workers) as pool:
        parallel = Executor(pool, tile_size=TILE)
        found = kcalib.skce.result(y, p, kernel=KERNEL, backend=parallel)
        said = SENT.search(found.backend_reason)
        assert SAMPLES <= sum(pool.brought) / workers <= SAMPLES * (2 - 1 / workers) + 5000
        assert float(said["bytes"]) * 1e6 == pytest.approx(SAMPLES, rel=0.01 if workers == 1 else 1.0)
        pool.brought.clear()
        kcalib.calibration_test(y, p, kernel=KERNEL, method="distribution_free", backend=parallel)
        assert sum(pool.brought) == 0  # the same matrix, which is there
        assert max(pool.tasks) < TASK


@pytest.mark.slow
def test_points_go_once_where_targets_are_drawn():
    """A sweep for each of 99 draws of the targets: what is sent is a column of features or two."""
    rng = np.random.default_rng(0)
    mean, n = rng.normal(size=900), 900
    y, p = rng.normal(mean), Normal(mean, np.ones(n))
    with Weighed(1) as pool:
        kcalib.calibration_test(y, p, method=kcalib.methods.Exact(99), seed=0, backend=Executor(pool, tile_size=400))
    assert len(pool.brought) >= 100
    assert (
        sum(size > max(pool.brought) - n * 8 for size in pool.brought) <= 2
    )  # the others lack the points, 2 n numbers
    assert max(pool.tasks) < TASK


def test_a_worker_that_keeps_nothing_gets_all_with_the_tile():
    """As where each task has a process of its own."""
    y, p = softmax_problem(600, 4, seed=1)
    with Forgetful(2) as pool:
        found = kcalib.skce(y, p, kernel=KERNEL, backend=Executor(pool, tile_size=200))
    assert found == kcalib.skce(y, p, kernel=KERNEL)


class Forgetful(ThreadPoolExecutor):
    def submit(self, function, *args):
        return super().submit(afresh, function, *args)


def afresh(function, work, *args):
    if function is deliver:
        return Missing("somebody", ())
    tile, given = args
    store = kcalib.parallel.store.Store()
    sums = store.sums(work, tile, given)
    return Missing("somebody", store.missing(work)) if sums is None else run_tile(work, tile, given)


def test_what_a_worker_asked_for_that_is_gone_is_not_sent_with_every_tile():
    """One asks, and is replaced before it gets anything."""
    y, p = softmax_problem(600, 4, seed=1)
    with Replaced(1) as pool:
        found = kcalib.skce(y, p, kernel=KERNEL, backend=Executor(pool, tile_size=100))
    assert found == kcalib.skce(y, p, kernel=KERNEL)
    assert pool.calls.count(deliver) == ATTEMPTS < pool.calls.count(run_tile)


class Replaced(ThreadPoolExecutor):
    def __init__(self, workers):
        super().__init__(workers)
        self.calls = []

    def submit(self, function, *args):
        self.calls.append(function)
        if len(self.calls) == 1:
            return super().submit(Missing, "gone", args[0].needs)
        return super().submit(function, *args)


def test_a_worker_that_gets_what_another_asked_for_says_what_it_lacks():
    """The problem, of one that has its arrays, by one that has nothing."""
    y, p = softmax_problem(600, 4, seed=1)
    with Split(1) as pool:
        found = kcalib.skce(y, p, kernel=KERNEL, backend=Executor(pool, tile_size=100))
    assert found == kcalib.skce(y, p, kernel=KERNEL)
    assert [len(keys) for keys in pool.lacked] == [3, 0]


class Split(ThreadPoolExecutor):
    """Of what was asked for first only the problem comes, as from another process."""

    def __init__(self, workers):
        super().__init__(workers)
        self.lacked = []

    def submit(self, function, *args):
        if function is not deliver:
            return super().submit(function, *args)
        work, given = args
        if not self.lacked:
            given = {work.problem: pickle.loads(pickle.dumps(given[work.problem]))}
        future = super().submit(deliver, work, given)
        self.lacked.append(future.result().keys)
        return future


def test_what_the_last_sweeps_did_not_need_is_dropped():
    recent = Recent()
    assert recent.unused(("a", "b"), ["a", "b"]) == []
    for vector in "cde":
        recent.unused(("a", vector), [])
    assert recent.unused(("a", "e"), ["a", "b", "c", "d", "e"]) == ["b"]
    assert recent.unused(("f",), ["a", "b", "c", "d", "e"]) == ["b", "c"]


def test_nothing_is_sent_within_a_process():
    y, p = softmax_problem(600, 4, seed=1)
    found = kcalib.skce.result(y, p, backend=Serial(tile_size=200))
    assert "sent" not in found.backend_reason


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*distributed:DeprecationWarning")
def test_samples_go_to_each_worker_of_dask_once():
    distributed = pytest.importorskip("distributed")
    y, p = softmax_problem(N, M, seed=1)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        parallel = Dask(client, tile_size=TILE)
        found = kcalib.skce.result(y, p, kernel=KERNEL, backend=parallel)
        assert float(SENT.search(found.backend_reason)["bytes"]) * 1e6 == pytest.approx(SAMPLES, rel=0.01)
        blocks = kcalib.skce.result(y, p, kernel=KERNEL, estimator="block", backend=parallel)
        assert float(SENT.search(blocks.backend_reason)["bytes"]) * 1e6 == pytest.approx(SAMPLES, rel=0.01)
