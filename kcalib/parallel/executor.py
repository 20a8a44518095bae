"""Tiles on any `concurrent.futures.Executor`: processes of this machine, loky, mpi4py.futures, Dask, threads.

A worker receives the samples when it reports that it lacks them, and keeps them. Each worker therefore receives them
once, without initialisers and shared files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass
from typing import Any

from kcalib._backend.options import check_integer
from kcalib._backend.threads import processors
from kcalib._backend.warnings import warn
from kcalib._pairs.backends.base import Progress
from kcalib._pairs.tiles import Tile
from kcalib.parallel.store import Done, Missing, deliver, forget, run_tile
from kcalib.parallel.transport import ATTEMPTS, Parallel, TileError, counted, given_up
from kcalib.parallel.work import Work


class Pool:
    """An executor, and a function that replaces it when it is broken, or None."""

    def __init__(self, executor: futures.Executor, workers: int, renew: Callable[[], futures.Executor] | None) -> None:
        self.executor = executor
        self.workers = workers
        self._renew = renew

    def renewed(self) -> bool:
        """Replace the broken executor if possible, and return whether it was replaced."""
        if self._renew is None:
            return False
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.executor = self._renew()
        return True


class Sweep:
    """The open tiles of a sweep, and which workers have the inputs.

    An executor does not tell which worker takes a task. A worker that lacks inputs returns their names instead of sums.
    A delivery task then brings them; mostly the same worker takes it, as the others are busy. If not, it asks again.
    """

    def __init__(self, pool: Pool, work: Work, tiles: Sequence[Tile], inputs: Mapping[str, Any]) -> None:
        self._pool, self._work, self._inputs, self._n_tiles = pool, work, inputs, len(tiles)
        self.waiting = deque(tiles)
        self._pending: dict[Future[Done | Missing], Tile] = {}
        self._deliveries: set[Future[Missing]] = set()
        self._supplied_workers: set[str] = set()  # workers that have all inputs
        self._lacking: dict[str, tuple[str, ...]] = {}  # keys that other workers lack
        self._stalled = False  # a worker asks again while a delivery is on its way
        self._n_misses: dict[int, int] = {}  # by tile: how often its worker lacked inputs
        self._failed: dict[int, int] = {}  # attempts by tile
        self._undelivered = 0  # times in a row
        self._astray = 0  # deliveries in a row to workers that had not asked
        self._broken = 0  # times in a row

    def results(self) -> Generator[Done]:
        try:
            while self.waiting or self._pending:
                try:
                    self._submit()
                    open_futures: set[Future[Any]] = {*self._pending, *self._deliveries}
                    for future in futures.wait(open_futures, return_when=futures.FIRST_COMPLETED).done:
                        if future in self._deliveries:
                            self._delivered(future)
                        elif (result := self._result(future)) is not None:
                            yield result
                except BrokenExecutor as error:
                    self._renew(error)
        finally:
            left: set[Future[Any]] = {*self._pending, *self._deliveries}
            for future in left:
                future.cancel()

    def _submit(self) -> None:
        while len(self._deliveries) < len(self._lacking):
            keys = {key for of in self._lacking.values() for key in of}
            inputs = {key: value for key, value in self._inputs.items() if key in keys}
            self._deliveries.add(self._task(self.waiting or self._pending.values(), deliver, self._work, inputs))
        # More tasks than workers, so that none of them idles; but not before each worker has its inputs.
        free = self._pool.workers - len(self._deliveries)
        most = free + (max(1, free // 4) if len(self._supplied_workers) >= self._pool.workers else 0)
        while self.waiting and len(self._pending) < most and not self._stalled:
            tile = self.waiting[0]
            # Send everything with the tile to a worker that keeps nothing.
            forgets = self._n_misses.get(tile.number, 0) >= ATTEMPTS
            future = self._task([tile], run_tile, self._work, tile, self._inputs if forgets else {})
            self._pending[future] = self.waiting.popleft()

    def _task(self, tiles: Iterable[Tile], *call: Any) -> Future[Any]:
        try:
            return self._pool.executor.submit(*call)
        except BrokenExecutor:
            raise
        except RuntimeError as error:
            why = f"found no workers, as the executor takes none: {error}"
            raise TileError(next(iter(tiles)), self._n_tiles, why) from error

    def _result(self, future: Future[Any]) -> Done | None:
        """Return the sums of a tile, or None if there are none yet."""
        try:
            result: Done | Missing = future.result()
        except BrokenExecutor:
            raise
        except Exception as error:
            self._failure(self._pending.pop(future), error)
            return None
        tile = self._pending.pop(future)
        if isinstance(result, Missing):
            self._n_misses[tile.number] = self._n_misses.get(tile.number, 0) + 1
            self._stalled = result.worker in self._lacking
            self._lacking[result.worker] = result.keys
            self.waiting.appendleft(tile)
            return None
        self._supplied_workers.add(result.worker)
        self._broken = 0
        return result

    def _delivered(self, future: Future[Missing]) -> None:
        self._deliveries.discard(future)
        self._stalled = False
        try:
            missing = future.result()
        except BrokenExecutor:
            raise
        except Exception as error:
            self._lacking.clear()
            self._undelivered += 1
            if self._undelivered == ATTEMPTS:
                tile = self.waiting[0] if self.waiting else next(iter(self._pending.values()))
                raise given_up(tile, self._n_tiles, error) from error
            return
        self._undelivered = 0
        if missing.keys:
            self._lacking[missing.worker] = missing.keys
            return
        self._supplied_workers.add(missing.worker)
        self._astray = 0 if self._lacking.pop(missing.worker, None) else self._astray + 1
        if self._astray == ATTEMPTS:  # the worker may be gone; otherwise it asks again
            self._lacking.clear()
            self._astray = 0

    def _failure(self, tile: Tile, error: BaseException) -> None:
        self._failed[tile.number] = self._failed.get(tile.number, 0) + 1
        if self._failed[tile.number] == ATTEMPTS:
            raise given_up(tile, self._n_tiles, error) from error
        self.waiting.appendleft(tile)

    def _renew(self, error: BrokenExecutor) -> None:
        """Continue with a new executor, whose workers have no inputs."""
        self._broken += 1
        self.waiting.extendleft(sorted(self._pending.values(), reverse=True))
        for container in (self._pending, self._deliveries, self._supplied_workers, self._lacking):
            container.clear()
        self._stalled = False
        if self._broken >= ATTEMPTS or not self._pool.renewed():
            why = f"is lost, as the workers are gone, {self._broken} times in a row: {error}"
            raise TileError(self.waiting[0], self._n_tiles, why) from error


@dataclass(frozen=True, kw_only=True)
class OnPool(Parallel):
    """Base class of transports with a `Pool`."""

    def results(
        self,
        held: Pool,
        work: Work,
        tiles: Sequence[Tile],
        given: Mapping[str, Any],
        progress: Callable[[Tile], Progress],
    ) -> Generator[Done]:
        return Sweep(held, work, tiles, given).results()


@dataclass(frozen=True)
class Executor(OnPool):
    """Compute tiles on an executor of your own.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        For example of processes, loky, mpi4py.futures, Dask (``client.get_executor()``) or threads. It is not shut
        down. Its processes keep the inputs of the last three sweeps for the next call.
    workers : int, optional
        Number of workers. Default: the number that the executor reports, else the number of processors.
    threads, journal, tile_size, gpu : optional
        See `kcalib.parallel.Parallel`.

    Raises
    ------
    TypeError, ValueError
        If `executor` has no ``submit``, if an option has a wrong type, or if a number is less than 1.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> rng = np.random.default_rng(0)
    >>> y, p = rng.integers(3, size=500), rng.dirichlet(np.ones(3), size=500)
    >>> with ThreadPoolExecutor(2) as pool:
    ...     workers = kcalib.parallel.Executor(pool, tile_size=192)
    ...     kcalib.skce(y, p, backend=workers) == kcalib.skce(y, p)
    True
    """

    executor: Any
    workers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.executor, "submit", None)):
            raise TypeError(f"`executor` is {self.executor!r}, expected a concurrent.futures.Executor")
        if self.workers is not None:
            check_integer("workers", self.workers, 1)

    @property
    def n_workers(self) -> int:
        max_workers = getattr(self.executor, "_max_workers", None)
        return self.workers or (max_workers if isinstance(max_workers, int) else None) or os.cpu_count() or 1

    def describe(self) -> str:
        kind = type(self.executor).__name__
        return f"{kind} of {counted(self.n_workers, 'worker')} of {counted(self.threads_of_task, 'thread')}"

    def open(self) -> Pool:
        return Pool(self.executor, self.n_workers, None)

    def close(self, held: Pool, failed: bool) -> None:
        forget()  # threads are workers of this process


@dataclass(frozen=True)
class Processes(OnPool):
    """Compute tiles in worker processes on this machine, which live as long as the call.

    A process that dies is replaced, and its tile is computed again.

    Parameters
    ----------
    workers : int
        Number of processes.
    threads : int, optional
        Threads of each process, 1 by default. A warning is issued if all processes together have more threads than
        there are processors.
    journal, tile_size, gpu : optional
        See `kcalib.parallel.Parallel`.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer of at least 1.

    Notes
    -----
    Processes are spawned: a script that uses them needs ``if __name__ == "__main__":``. Every process receives and
    holds the samples, O(n m). Threads within one process are as fast and need less memory; processes are useful for
    journals on many cores and for testing a cluster job.
    """

    workers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("workers", self.workers, 1)

    def describe(self) -> str:
        return f"{counted(self.workers, 'process')} of {counted(self.threads_of_task, 'thread')}"

    def open(self) -> Pool:
        threads, n_cpus = self.threads_of_task, processors()
        if self.workers * threads > n_cpus:
            few = f"Processes({n_cpus // threads})" if threads <= n_cpus else f"Processes(1, threads={n_cpus})"
            warn(
                f"{counted(self.workers, 'process')} of {counted(threads, 'thread')} share "
                f"{counted(n_cpus, 'processor')} of this machine; start fewer: {few}",
                RuntimeWarning,
            )
        return Pool(self._started(), self.workers, self._started)

    def close(self, held: Pool, failed: bool) -> None:
        processes = list((getattr(held.executor, "_processes", None) or {}).values())
        held.executor.shutdown(wait=not failed, cancel_futures=True)
        if failed:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()

    def _started(self) -> futures.Executor:
        import multiprocessing  # slow import that only this class needs
        from concurrent.futures.process import ProcessPoolExecutor

        return ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn"), _live_with_parent)


def _live_with_parent() -> None:
    """Set up a worker process: ignore Ctrl-C, which the parent handles, and exit when the parent is gone.

    Otherwise workers would wait for tiles for ever if the parent is killed.
    """
    import multiprocessing

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
