"""Transports: how tiles get to workers and their sums back. `Parallel` is the base class.

A transport is an object with options that a user passes as ``backend=``. It brings a `Work` with its inputs and a tile
to a worker, which calls `store.run_tile`, and yields the results in any order. The order of summation, the journal and
progress belong to `backend.DistributedBackend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kcalib._backend.options import check_integer
from kcalib._backend.threads import resolve_threads
from kcalib._pairs.backends.base import Progress
from kcalib._pairs.tiles import Tile
from kcalib.parallel.store import Done, Store
from kcalib.parallel.work import Work

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Parallel(ABC):
    """Base class of all transports, which functions take as ``backend=``.

    Parameters
    ----------
    threads : int, optional
        Threads of a task; environment variables are ignored. Workers times threads should equal the number of
        processors. Default: 1; in this process the number of processors.
    journal : str or path, optional
        File for finished tiles. The same call continues from it after an interruption, with any number of workers and
        any transport. A call with other data, options or version of kcalib is refused. Of products with vectors it
        holds the first ones, up to 256 MiB, or 64 columns of n numbers if that is more. Problems that are not
        distributed leave it empty: fewer than about 4000 samples (fewer for distributions, whose pairs are slower), and
        problems on a line.
    tile_size : int, optional
        Samples on a side of a tile. By default a tile takes at least a tenth of a second, and there are at most 9800.
    gpu : bool
        Compute tiles on the GPU of each worker that has one and CuPy, and on the processors of other workers. Sums
        agree to 1e-12, but not bit for bit. ``backend_reason`` of a result says how many tiles were computed on GPUs. A
        worker uses the first GPU in its ``CUDA_VISIBLE_DEVICES``.

    Raises
    ------
    TypeError, ValueError
        If `threads` or `tile_size` is not an integer of at least 1, `journal` not a path, or `gpu` not a bool.
    """

    threads: int | None = None
    journal: str | Path | None = None
    tile_size: int | None = None
    gpu: bool = False

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_integer("threads", self.threads, 1)
        if self.tile_size is not None:
            check_integer("tile_size", self.tile_size, 1)
        if self.journal is not None and not isinstance(self.journal, (str, Path)):
            raise TypeError(f"`journal` is {self.journal!r}, expected the path of a file")
        if not isinstance(self.gpu, bool):
            raise TypeError(f"`gpu` is {self.gpu!r}, expected True or False: each worker takes the GPU that it has")

    @abstractmethod
    def describe(self) -> str:
        """Return a description of the workers for results."""

    @abstractmethod
    def open(self) -> Any:
        """Return what is held during a call: workers, a client. `results` receives it, `close` ends it."""

    @abstractmethod
    def close(self, held: Any, failed: bool) -> None:
        """Release what `open` returned.

        Parameters
        ----------
        held : object
            What `open` returned.
        failed : bool
            Whether the call ended by an error or Ctrl-C, so that nobody waits for results.
        """

    @abstractmethod
    def results(
        self,
        held: Any,
        work: Work,
        tiles: Sequence[Tile],
        given: Mapping[str, Any],
        progress: Callable[[Tile], Progress],
    ) -> Generator[Done]:
        """Yield the sums of all tiles in any order.

        Parameters
        ----------
        held : object
            What `open` returned.
        work : Work
            What the tiles have in common.
        tiles : sequence of Tile
            The tiles, large ones first.
        given : mapping
            The inputs of `work` by fingerprint. A transport brings each to a worker once, and the worker keeps it.
        progress : callable
            For transports that compute in this process: returns the progress callback of a tile.

        Raises
        ------
        TileError
            If a tile failed three times, or if there are no workers left.
        """

    @property
    def threads_of_task(self) -> int:
        """Number of threads of a task."""
        return self.threads or 1

    @property
    def leads(self) -> bool:
        """Whether `agreed` calls its argument in this process."""
        return True

    def elsewhere(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """Return a function that makes a call where its arguments are.

        Parameters
        ----------
        arguments : sequence
            All arguments of the call.

        Returns
        -------
        callable or None
            A callable that takes the function and its arguments without ``backend``; None if the arguments are here.
        """
        return None

    def agreed(self, make: Callable[[], T]) -> T:
        """Return the value of a whole call, which one process of a program makes for all.

        Parameters
        ----------
        make : callable
            The call, without arguments.

        Returns
        -------
        object
            The value, in all processes.
        """
        return make()


ATTEMPTS = 3  # of a tile


class TileError(RuntimeError):
    """A tile could not be computed. The tiles in the journal are kept.

    Parameters
    ----------
    tile : Tile
        The tile.
    tiles : int
        Number of tiles.
    why : str
        The rest of the message.
    """

    def __init__(self, tile: Tile, tiles: int, why: str) -> None:
        super().__init__(tile, tiles, why)  # arguments for unpickling

    def __str__(self) -> str:
        tile, tiles, why = self.args
        where = f"rows {tile.row} to {tile.row_end}, columns {tile.column} to {tile.column_end}"
        return f"tile {tile.number} of {tiles} ({where}) {why}"


def given_up(tile: Tile, tiles: int, error: BaseException) -> TileError:
    """Return the error of a tile after the last attempt."""
    why = f"failed {ATTEMPTS} times, the last time by {type(error).__name__}: {error}"
    return TileError(tile, tiles, why)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 process", "2 processes"."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


@dataclass(frozen=True, kw_only=True)
class Serial(Parallel):
    """Compute tile by tile in this process, for calls that continue after an interruption.

    Parameters
    ----------
    threads : int, optional
        Threads of a tile. Default: the number of processors.
    journal, tile_size, gpu : optional
        See `kcalib.parallel.Parallel`.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> from kcalib.kernels import Exponential
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(3), size=500)
    >>> y = rng.integers(3, size=500)
    >>> one = kcalib.skce(y, p, kernel=Exponential(0.5))
    >>> kcalib.skce(y, p, kernel=Exponential(0.5), backend=kcalib.parallel.Serial(tile_size=192)) == one
    True
    """

    def describe(self) -> str:
        return f"this process, {counted(self.threads_of_task, 'thread')}"

    @property
    def threads_of_task(self) -> int:
        return resolve_threads(self.threads)

    def open(self) -> Store:
        return Store()

    def close(self, held: Store, failed: bool) -> None:
        held.clear()

    def results(
        self,
        held: Store,
        work: Work,
        tiles: Sequence[Tile],
        given: Mapping[str, Any],
        progress: Callable[[Tile], Progress],
    ) -> Generator[Done]:
        for tile in tiles:
            result = held.compute(work, tile, given, progress(tile))
            assert isinstance(result, Done)
            yield result
