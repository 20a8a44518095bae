"""Tiles by any `concurrent.futures.Executor`: processes of this machine, loky, mpi4py.futures, Dask's, threads.

A worker is not sent the samples before it says that it has not got them; then it keeps them. So they go to each worker
about once, whatever executor it is, without initialisers and without shared files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass
from typing import Any

from kcalib._backend.options import check_integer
from kcalib.parallel.plan import Tile
from kcalib.parallel.transport import ATTEMPTS, Parallel, TileError, counted
from kcalib.parallel.work import Done, Missing, Progress, Work, forget, run_tile


class Pool:
    """An executor, and a way to another one when it is broken; None: there is none."""

    def __init__(self, executor: futures.Executor, workers: int, renew: Callable[[], futures.Executor] | None) -> None:
        self.executor = executor
        self.workers = workers
        self._renew = renew

    def renewed(self) -> bool:
        """Whether the broken executor was replaced."""
        if self._renew is None:
            return False
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.executor = self._renew()
        return True


def results_of(pool: Pool, work: Work, tiles: Sequence[Tile], given: Mapping[str, Any]) -> Generator[Done]:
    """The sums of all tiles as they are done; those that nobody waits for any more are cancelled.

    Raises
    ------
    TileError
        If a tile was tried in vain, or the workers are gone.
    """
    waiting = deque(tiles)
    failed: dict[int, int] = {}  # attempts by tile
    pending: dict[Future[Done | Missing], Tile] = {}
    known: set[str] = set()  # workers that have what they need
    broken = 0  # times in a row

    def submit(tile: Tile, with_data: bool) -> None:
        try:
            future = pool.executor.submit(run_tile, work, tile, given if with_data else {})
        except BrokenExecutor:
            raise
        except RuntimeError as error:
            raise TileError(tile, len(tiles), f"found no workers, as the executor takes none: {error}") from error
        pending[future] = tile

    def failure(tile: Tile, error: BaseException) -> None:
        failed[tile.number] = failed.get(tile.number, 0) + 1
        if failed[tile.number] == ATTEMPTS:
            why = f"failed {ATTEMPTS} times, the last time by {type(error).__name__}: {error}"
            raise TileError(tile, len(tiles), why) from error
        waiting.appendleft(tile)

    try:
        while waiting or pending:
            # One more than workers, so that none waits for this process; but at first each is asked what it has.
            most = pool.workers + (max(1, pool.workers // 4) if len(known) >= pool.workers else 0)
            try:
                while waiting and len(pending) < most:
                    submit(waiting[0], with_data=False)
                    waiting.popleft()
                finished, _ = futures.wait(pending, return_when=futures.FIRST_COMPLETED)
                for future in finished:
                    tile = pending[future]
                    try:
                        found = future.result()
                    except BrokenExecutor:
                        raise
                    except Exception as error:
                        del pending[future]
                        failure(tile, error)
                        continue
                    if isinstance(found, Missing):
                        submit(tile, with_data=True)
                        del pending[future]
                        continue
                    del pending[future]
                    known.add(found.worker)
                    broken = 0
                    yield found
            except BrokenExecutor as error:
                broken += 1
                lost = sorted(pending.values())
                pending.clear()
                known.clear()
                waiting.extendleft(reversed(lost))
                if broken >= ATTEMPTS or not pool.renewed():
                    why = f"is lost, as the workers are gone, {broken} times in a row: {error}"
                    raise TileError(waiting[0], len(tiles), why) from error
    finally:
        for future in pending:
            future.cancel()


@dataclass(frozen=True, kw_only=True)
class OnPool(Parallel):
    """Base of what computes tiles by a `Pool`."""

    def results(
        self,
        held: Pool,
        work: Work,
        tiles: Sequence[Tile],
        given: Mapping[str, Any],
        progress: Callable[[Tile], Progress],
    ) -> Generator[Done]:
        return results_of(held, work, tiles, given)


@dataclass(frozen=True)
class Executor(OnPool):
    """Compute tiles by an executor of your own.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        Of processes, loky, mpi4py.futures, Dask (``client.get_executor()``), threads. It is not shut down.
    workers : int, optional
        How many it has; by default what it says itself, else the processors of this machine.
    threads : int, optional
        Threads of a task, 1 by default; see `kcalib.parallel.Parallel`.
    journal : str or path, optional
        A file for finished tiles.
    tile_size : int, optional
        Samples on a side of a tile.
    gpu : bool
        Compute tiles on GPUs where there are some; see `kcalib.parallel.Parallel`.

    Raises
    ------
    TypeError
        If `executor` has no ``submit``, or an option is of the wrong type.
    ValueError
        If a number is less than 1.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> rng = np.random.default_rng(0)
    >>> y, p = rng.integers(3, size=500), rng.dirichlet(np.ones(3), size=500)
    >>> with ThreadPoolExecutor(2) as pool:
    ...     workers = kcalib.parallel.Executor(pool, tile_size=192)
    ...     kcalib.skce(y, p, parallel=workers) == kcalib.skce(y, p)
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
        own = getattr(self.executor, "_max_workers", None)
        return self.workers or (own if isinstance(own, int) else None) or os.cpu_count() or 1

    def describe(self) -> str:
        kind = type(self.executor).__name__
        return f"{kind} of {counted(self.n_workers, 'worker')} of {counted(self.threads_of_task, 'thread')}"

    def open(self) -> Pool:
        return Pool(self.executor, self.n_workers, None)

    def close(self, held: Pool, failed: bool) -> None:
        forget()  # threads are workers in this process


@dataclass(frozen=True)
class Processes(OnPool):
    """Compute tiles by processes of this machine, which are started for the call, and end with it.

    A process that dies is replaced, and its tile computed again.

    Parameters
    ----------
    workers : int
        How many processes.
    threads : int, optional
        Threads of each, 1 by default; processes times threads should be the processors there are.
    journal : str or path, optional
        A file for finished tiles; see `kcalib.parallel.Parallel`.
    tile_size : int, optional
        Samples on a side of a tile.
    gpu : bool
        Compute tiles on GPUs where there are some; see `kcalib.parallel.Parallel`.

    Raises
    ------
    TypeError, ValueError
        If a number is no integer of at least 1.

    Notes
    -----
    Processes are started afresh (spawned): a script that uses them needs ``if __name__ == "__main__":``. Samples go to
    each about once, O(n m), and are held by each. Within one process the threads of a single call do the same with
    less memory; processes are for journals on many cores, for rehearsals of a cluster, and for builds without OpenMP.
    """

    workers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("workers", self.workers, 1)

    def describe(self) -> str:
        return f"{counted(self.workers, 'process')} of {counted(self.threads_of_task, 'thread')}"

    def open(self) -> Pool:
        return Pool(self._started(), self.workers, self._started)

    def close(self, held: Pool, failed: bool) -> None:
        processes = list((getattr(held.executor, "_processes", None) or {}).values())
        held.executor.shutdown(wait=not failed, cancel_futures=True)
        if failed:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()

    def _started(self) -> futures.Executor:
        import multiprocessing  # takes a while, and only this class needs it
        from concurrent.futures.process import ProcessPoolExecutor

        return ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn"), _live_with_parent)


def _live_with_parent() -> None:
    """Of a worker process: Ctrl-C in a terminal reaches all, and the process that the user started ends the others.

    Where that one is killed it ends nobody, and the others would wait for tiles for ever.
    """
    import multiprocessing

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
