"""Sums over pairs that are shared out: the numbers of one machine, whoever computes them, interrupted or not."""

from __future__ import annotations

import contextlib
import functools
import itertools
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib._pairs.tiles import Tile
from kcalib.distributions import Normal, Samples
from kcalib.estimators import ckce, skce
from kcalib.inference import calibration_test, consistency
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.methods import Consistency, Fourier
from kcalib.parallel import Executor, Processes, Serial, TileError, backend, executor
from kcalib.parallel.store import Done, Store

KERNEL = Exponential(0.3)
TILES = Serial(tile_size=100)


def numbers(result):
    return result.value, result.standard_error, result.null_standard_error


@pytest.mark.parametrize(("n", "m"), [(1000, 3), (1500, 40), (2500, 10)])  # by marks, by residuals sorted and not
@pytest.mark.parametrize("size", [96, 500])
def test_bits_of_one_machine(n, m, size):
    y, p = softmax_problem(n, m, seed=1)
    one = kcalib.skce.result(y, p, kernel=KERNEL)
    tiles = kcalib.skce.result(y, p, kernel=KERNEL, backend=Serial(tile_size=size))
    assert numbers(tiles) == numbers(one)
    assert "in parallel" in tiles.backend_reason
    assert kcalib.skce(y, p, kernel=KERNEL, backend=Serial(tile_size=size)) == one.value


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_any_executor(workers):
    y, p = softmax_problem(1500, 5, seed=2)
    one = kcalib.skce.result(y, p, kernel=KERNEL)
    with ThreadPoolExecutor(workers) as pool:
        found = kcalib.skce.result(y, p, kernel=KERNEL, backend=Executor(executor=pool, tile_size=200))
    assert numbers(found) == numbers(one)


@pytest.mark.parametrize("estimator", ["biased", "block", "linear"])
def test_estimators(estimator):
    y, p = softmax_problem(1200, 4, seed=3)
    options = {"kernel": Gaussian(0.4), "estimator": estimator}
    one = kcalib.skce.result(y, p, **options)
    found = kcalib.skce.result(y, p, **options, backend=Serial(tile_size=300))
    assert numbers(found) == numbers(one)


@pytest.mark.parametrize("size", [96, 250])
@pytest.mark.parametrize(
    "method", ["exact", "spectrum", "pearson", "bootstrap", "multiplier", "gamma", "block", "cme", "adaptive"]
)
def test_tests_of_calibration(method, size):
    y, p = softmax_problem(400, 5, seed=1)
    expected = kcalib.calibration_test(y, p, method=method, seed=1)
    result = kcalib.calibration_test(y, p, method=method, seed=1, backend=Serial(tile_size=size))
    assert (result.estimate, result.log_pvalue) == (expected.estimate, expected.log_pvalue)
    assert "in parallel" in result.backend_reason


@pytest.mark.grid
def test_the_default_takes_all_pairs():
    y, p = softmax_problem(7000, 4, seed=1)
    with pytest.raises(Asked):
        kcalib.calibration_test(y, p, backend=Asking())
    with pytest.raises(Asked):
        kcalib.evaluate(y, p, backend=Asking())


class Counting(Serial):
    """How many tiles were submitted."""

    def results(self, held, work, tiles, given, progress):
        submitted.append(len(tiles))
        return super().results(held, work, tiles, given, progress)


submitted = []
METHODS = [method.name for method in calibration_test.METHODS]
ASKED = [
    *(("skce", "estimator", name) for name in (*skce.ESTIMATORS, "features")),
    *(("calibration_test", "method", name) for name in METHODS),
    *(("evaluate", "method", name) for name in METHODS),
    *(("ckce", "method", method.name) for method in ckce.CKCE_METHODS),
    *(("jkce", "estimator", name) for name in ("unbiased", "biased")),
    *(("compare", "metric", name) for name in ("skce", "ckce", "ece", "brier_score", "log_loss")),
    *(("calibration_test", "method", Consistency(e, n_resamples=1)) for e in consistency.ESTIMATORS),
    ("calibration_test", "method", Consistency(lambda y, p: 0.0, n_resamples=1)),
]
OF_NO_PAIRS = {
    ("skce", "features"), ("calibration_test", "features"), ("calibration_test", "consistency"),
    ("evaluate", "features"), ("evaluate", "consistency"), ("calibration_test", "ranks"), ("evaluate", "ranks"),
    ("ckce", "nystrom"), ("ckce", "pivoted_cholesky"), ("compare", "ece"), ("compare", "brier_score"),
    ("compare", "log_loss"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
@pytest.mark.parametrize(("function", "argument", "choice"), ASKED)
def test_parallel_is_never_ignored(function, argument, choice):
    """Tiles are submitted, or an error says that there are none, and what to do."""
    y, p = softmax_problem(150, 3, seed=1)  # more than the columns that factors of kernel matrices begin with
    p = Samples(p) if choice == "ranks" else p
    samples = (y, {"a": p, "b": np.roll(p, 1, axis=0)}) if function == "compare" else (y, p)
    linear = choice.estimator == "ece" or callable(choice.estimator) if isinstance(choice, Consistency) else None
    submitted.clear()
    kernel = {"kernel": KERNEL} if choice == "ckce" else {}  # of which no factor is exact
    options = (
        {"metric": kcalib.methods.CKCE(**kernel)} if kernel and function == "compare" else {argument: choice} | kernel
    )
    call = functools.partial(getattr(kcalib, function), *samples, **options, backend=Counting(tile_size=96))
    if linear or (linear is None and (function, choice) in OF_NO_PAIRS):
        with pytest.raises(ValueError, match=r"`backend` (is given, but|has no meaning for) .*leave it out"):
            call()
        assert not submitted
    else:
        call()
        assert sum(submitted) >= (1 if choice == "fourier" else 2)


def test_what_could_be_parallel_is_named():
    y, p = softmax_problem(120, 3, seed=1)
    with pytest.raises(
        ValueError, match=r"estimator='ece' takes .* with one of 'unbiased', 'biased', 'block', 'linear'"
    ):
        kcalib.calibration_test(y, p, method="consistency", backend=TILES)
    with pytest.raises(ValueError, match="method='nystrom' takes linear time .* or use method='cg'"):
        kcalib.ckce(y, p, method="nystrom", backend=TILES)


class Asked(Exception):
    pass


class Asking(Serial):
    def results(self, *args):
        raise Asked


@pytest.mark.parametrize("size", [96, 250])
@pytest.mark.parametrize("method", ["cg", "cholesky", "auto"])
def test_ckce(method, size):
    y, p = softmax_problem(400, 5, seed=1)
    assert kcalib.ckce(y, p, method=method, backend=Serial(tile_size=size)) == kcalib.ckce(y, p, method=method)


@pytest.mark.parametrize("kernel", [Linear() + Gaussian(0.3) + Gaussian(0.9), Linear()])
def test_fourier_features(tmp_path, kernel):
    """The bits of one machine, on any number of workers, and after an interruption."""
    y, p = softmax_problem(5000, 4, seed=1)
    method = Fourier(n_features=20, seed=3)
    one = kcalib.ckce.result(y, p, kernel=kernel, method=method)
    for workers in (1, 2, 7):
        with ThreadPoolExecutor(workers) as pool:
            parallel = Executor(pool, tile_size=2048 if workers == 2 else 1)
            found = kcalib.ckce.result(y, p, kernel=kernel, method=method, backend=parallel)
        assert (found.value, found.error_bound) == (one.value, one.error_bound)
        assert f"in parallel: {3 if workers == 2 else 5} tiles, ThreadPoolExecutor" in found.backend_reason

    class Half(Serial):
        def results(self, *args):
            yield from itertools.islice(super().results(*args), 2)
            raise Asked

    with pytest.raises(Asked):
        kcalib.ckce(y, p, kernel=kernel, method=method, backend=Half(journal=tmp_path / "tiles"))
    found = kcalib.ckce.result(
        y, p, kernel=kernel, method=method, backend=Serial(journal=tmp_path / "tiles", threads=2)
    )
    assert (found.value, found.error_bound) == (one.value, one.error_bound)
    assert "5 tiles, 2 of them from the journal" in found.backend_reason


@pytest.mark.parametrize("metric", ["skce", "ckce"])
def test_compare(metric):
    y, p = softmax_problem(300, 5, seed=1)
    models = {"right": p, "other": np.roll(p, 1, axis=0)}
    assert (
        kcalib.compare(y, models, metric=metric, backend=TILES).differences
        == kcalib.compare(y, models, metric=metric).differences
    )
    result = kcalib.compare(y, models, metric=metric, backend=TILES)
    assert re.search(r"in parallel: \d+ tiles, this process, \d+ threads?", result.backend_reason)
    assert "parallel" not in kcalib.compare(y, models, metric=metric).backend_reason


def test_evaluate_and_jkce():
    y, p = softmax_problem(300, 5, seed=1)
    assert kcalib.evaluate(y, p, backend=TILES).skce.value == kcalib.evaluate(y, p).skce.value
    assert kcalib.jkce(y, p, backend=TILES) == kcalib.jkce(y, p)


@pytest.mark.parametrize("kernel", [None, Gaussian(metric="mmd")])
def test_distributions(kernel):
    rng = np.random.default_rng(0)
    mean, scale = rng.normal(size=300), rng.uniform(0.5, 2, 300)
    y, p = rng.normal(mean, scale), Normal(mean, scale)
    one = kcalib.skce.result(y, p, kernel=kernel)
    assert numbers(kcalib.skce.result(y, p, kernel=kernel, backend=TILES)) == numbers(one)


def test_weights_in_float32():
    y, p = softmax_problem(400, 5, seed=1)
    options = {"sample_weight": np.random.default_rng(0).uniform(size=400), "dtype": "float32"}
    assert kcalib.skce(y, p, **options, backend=TILES) == kcalib.skce(y, p, **options)


@pytest.mark.parametrize("rare", [1e-4, 1e-8])
def test_saturated_predictions(rare):
    rng = np.random.default_rng(0)
    p = np.full((500, 10), rare * rng.uniform(size=(500, 1)))
    p[np.arange(500), rng.integers(10, size=500)] = 0
    p[np.arange(500), np.argmin(p, axis=1)] = 1 - p.sum(axis=1)
    y = np.where(rng.uniform(size=500) < 0.02, 3, np.argmax(p, axis=1))
    one = kcalib.skce.result(y, p, kernel=KERNEL)
    assert numbers(kcalib.skce.result(y, p, kernel=KERNEL, backend=TILES)) == numbers(one)


def test_processes():
    y, p = softmax_problem(1500, 5, seed=2)
    found = kcalib.skce.result(y, p, kernel=KERNEL, backend=Processes(workers=2, tile_size=400))
    assert numbers(found) == numbers(kcalib.skce.result(y, p, kernel=KERNEL))
    assert "2 processes of 1 thread" in found.backend_reason


def test_an_error_of_a_tile_comes_back_from_pickling():
    error = TileError(Tile(3, 0, 192, 192, 400), 7, "is lost")
    error.add_note("from the journal")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is TileError and str(again) == str(error) and again.__notes__ == error.__notes__
    assert str(error).startswith("tile 3 of 7 (rows ") and str(error).endswith(" is lost")


@pytest.mark.parametrize(
    ("workers", "threads", "remedy"),
    [(2, 3, r"Processes\(1\)"), (5, 1, r"Processes\(4\)"), (1, 5, r"Processes\(1, threads=4\)")],
)
def test_more_threads_than_processors(monkeypatch, workers, threads, remedy):
    monkeypatch.setattr(executor, "processors", lambda: 4)
    y, p = softmax_problem(300, 3, seed=0)
    monkeypatch.setattr(Processes, "_started", lambda self: ThreadPoolExecutor(1))
    with pytest.warns(RuntimeWarning, match=rf"of {threads} threads? share 4 processors.*fewer: {remedy}$") as caught:
        kcalib.skce(y, p, backend=Processes(workers, threads=threads))
    assert caught[0].filename == __file__


def test_on_a_line_and_few_samples_stay_here():
    y, p = softmax_problem(600, 2, seed=0)
    found = kcalib.skce.result(y, p, kernel=KERNEL, backend=Serial())
    assert found.backend == "sorted"
    assert "nothing to share out" in found.backend_reason
    few = kcalib.skce.result(*softmax_problem(20, 4, seed=0), backend=Serial())
    assert "too few samples" in few.backend_reason


def test_a_source(tmp_path):
    y, p = softmax_problem(1200, 4, seed=3)
    one = kcalib.skce(y, p, kernel=KERNEL)
    options = {"kernel": KERNEL, "backend": Serial(tile_size=300)}
    assert kcalib.skce(kcalib.streaming.source((y, p)), **options) == one
    assert kcalib.skce(y_true=kcalib.streaming.source((y, p)), **options) == one
    result = kcalib.evaluate(y_true=kcalib.streaming.source((y, p)), **options)
    assert result.skce.value == one and "in parallel" in result.skce.backend_reason


def test_a_source_of_unknown_length():
    y, p = softmax_problem(600, 4, seed=3)
    batches = kcalib.streaming.source((y[rows], p[rows]) for rows in np.split(np.arange(600), 3))
    assert batches.n is None
    assert kcalib.skce(batches, kernel=KERNEL, backend=TILES) == kcalib.skce(y, p, kernel=KERNEL)
    mean = np.random.default_rng(0).normal(size=600)
    prediction = Normal(mean, np.ones(600))
    batches = kcalib.streaming.source((mean[::-1][rows], prediction.take(rows)) for rows in np.split(np.arange(600), 3))
    assert kcalib.skce(batches, backend=TILES) == kcalib.skce(mean[::-1], prediction)


class Late(ThreadPoolExecutor):
    """The first tile is computed last."""

    def submit(self, function, *args):
        return super().submit(late, function, *args)


def late(function, work, *args):
    if isinstance(args[0], Tile) and args[0].number == 0 and not returned.wait(10):
        raise TimeoutError
    done = function(work, *args)
    if isinstance(done, Done) and done.tile.number > 5:
        returned.set()
    return done


returned = Event()


def test_a_worker_that_is_late():
    y, p = softmax_problem(800, 4, seed=0)
    returned.clear()
    with Late(3) as pool:
        found = kcalib.skce.result(y, p, kernel=KERNEL, backend=Executor(pool, tile_size=192))
    assert returned.is_set()
    assert numbers(found) == numbers(kcalib.skce.result(y, p, kernel=KERNEL))


@pytest.mark.parametrize("kind", ["serial", "executor", "journal"])
def test_progress_over_all_workers(monkeypatch, tmp_path, kind):
    """On a terminal; of what is left to do, if some was in the journal."""
    seen, (y, p) = [], softmax_problem(1500, 4, seed=0)
    monkeypatch.setattr(backend, "TerminalProgress", lambda: contextlib.nullcontext(seen.append))

    class Half(Serial):
        def results(self, *args):
            yield from itertools.islice(super().results(*args), 12)
            raise Asked

    with ThreadPoolExecutor(2) as pool:
        options = {"tile_size": 288, "journal": tmp_path / "tiles" if kind == "journal" else None}
        if kind == "journal":
            with pytest.raises(Asked):
                kcalib.skce(y, p, kernel=KERNEL, backend=Half(**options))
            seen.clear()
        workers = Executor(pool, **options) if kind == "executor" else Serial(**options)
        kcalib.skce(y, p, kernel=KERNEL, backend=workers)
    assert seen == sorted(seen) and seen[-1] == pytest.approx(1, rel=1e-12)
    assert seen[0] <= (0.3 if kind == "journal" else 0.08)


def test_an_executor_that_is_shut_down():
    y, p = softmax_problem(400, 3, seed=0)
    with ThreadPoolExecutor(1) as pool:
        pass
    with pytest.raises(TileError, match="found no workers, as the executor takes none: cannot schedule"):
        kcalib.skce(y, p, backend=Executor(pool, tile_size=96))


def test_what_is_no_transport():
    y, p = softmax_problem(50, 3, seed=0)
    with pytest.raises(TypeError, match="`backend` is 4, expected the name of a backend, an object of kcalib.parallel"):
        kcalib.skce(y, p, backend=4)
    with pytest.raises(TypeError, match="`backend` is the class Serial; pass an object"):
        kcalib.skce(y, p, backend=Serial)
    with pytest.raises(ValueError, match="`backend` is given, but estimator='features' takes linear time"):
        kcalib.skce(y, p, estimator="features", backend=Serial())
    for function in (kcalib.calibration_test, kcalib.evaluate):
        with pytest.raises(ValueError, match="`backend` is given, but method='features' takes linear time"):
            function(y, p, method="features", backend=Serial())
    with pytest.raises(ValueError, match="`backend` is given, but a comparison of sources takes linear time"):
        kcalib.compare({name: kcalib.streaming.source((y, p)) for name in "ab"}, backend=Serial())
    with pytest.raises(ValueError, match="threads"):
        Serial(threads=0)


@pytest.mark.slow
@pytest.mark.parametrize("m", [4, 40])
def test_a_gpu_among_processors(m):
    """The emulated one: tiles of both kinds are of the same samples, and the result says how many are of which."""
    import emulated_cupy

    y, p = softmax_problem(250, m, seed=1)
    one = kcalib.skce.result(y, p, kernel=KERNEL)
    block = kcalib.skce(y, p, kernel=KERNEL, estimator=kcalib.methods.BlockEstimator(block_size=20))
    tested = kcalib.calibration_test(y, p, kernel=KERNEL, method="bootstrap", seed=1)
    by_comparisons = kcalib.calibration_test(y, p, kernel=KERNEL, method="exact", seed=1)
    fourier = kcalib.ckce(y, p, method=Fourier(seed=1))
    with emulated_cupy.installed():
        workers = Mixed(tile_size=96, gpu=True)
        found = kcalib.skce.result(y, p, kernel=KERNEL, backend=workers)
        assert numbers(found) == pytest.approx(numbers(one), rel=1e-12)
        tiles, on_gpus = re.search(r"(\d+) tiles, (\d+) on GPUs", found.backend_reason).groups()
        assert 2 * int(on_gpus) == int(tiles)
        blocks = kcalib.skce(
            y, p, kernel=KERNEL, estimator=kcalib.methods.BlockEstimator(block_size=20), backend=workers
        )
        assert blocks == pytest.approx(block, rel=1e-12)
        again = kcalib.calibration_test(y, p, kernel=KERNEL, method="bootstrap", seed=1, backend=workers)
        assert again.pvalue == tested.pvalue
        drawn = kcalib.calibration_test(y, p, kernel=KERNEL, method="exact", seed=1, backend=workers)
        assert drawn.log_pvalue == pytest.approx(by_comparisons.log_pvalue, rel=1e-4)  # labels are not compared
        assert int(re.search(r"(\d+) on GPUs", drawn.backend_reason)[1]) > int(on_gpus)  # those of features, too
        assert kcalib.ckce(y, p, method=Fourier(seed=1), backend=workers) == fourier  # no sum over pairs: on processors
    with pytest.raises(TypeError, match="`gpu` is 2, expected True or False"):
        Serial(gpu=2)


class Mixed(Serial):
    """Two workers, of which one has a GPU."""

    def open(self):
        return Store(), Store()

    def close(self, held, failed):
        pass

    def results(self, held, work, tiles, given, progress):
        for k, tile in enumerate(tiles):
            one = work if k % 2 else replace(work, gpu=False)
            yield Done(tile, held[k % 2].sums(one, tile, given), "worker", 0.0)
