"""What a transport is: who computes tiles, and how they get there and back. `Parallel` is the base of all.

A transport is an object with its options, which a user passes as ``backend=``. Transports know nothing of sums: they
bring a `Work`, with what it needs, and a tile to a worker, which calls `store.run_tile`, and hand back what it returns,
in any order. The order of summation, the journal and progress are those of `backend.DistributedBackend`.
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
    """Base of all transports, which functions take as ``backend=``.

    Parameters
    ----------
    threads : int, optional
        Threads of a task, which are passed with it: no environment variable counts. Workers times threads should be
        the processors there are. Default: 1, in this process as many as there are.
    journal : str or path, optional
        A file for finished tiles. A call that was interrupted goes on from it, with any number of workers and any
        transport. It belongs to one call: data, options or a version of the library that are others are refused. Of
        products with vectors it has those that were made first, up to 256 MiB, or 64 columns of n numbers if that is
        more. What is not shared out, less than about 4000 samples (of distributions, whose pairs are slower, less) and
        problems on a line, leaves it empty.
    tile_size : int, optional
        Samples on a side of a tile. By default tiles take a tenth of a second or more, and are at most 9800.
    gpu : bool
        Compute tiles on the GPU of each worker that has one, and CuPy, on the processors of the others. The sums of
        both are equal to 1e-12, not to the bit; ``backend_reason`` of a result says how many tiles are of GPUs. Of
        several GPUs in a machine each worker takes the first that its ``CUDA_VISIBLE_DEVICES`` names.

    Raises
    ------
    TypeError, ValueError
        If `threads` or `tile_size` is no integer of at least 1, `journal` no path, or `gpu` neither True nor False.
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
        """The workers, in words, as results have them."""

    @abstractmethod
    def open(self) -> Any:
        """What is held during a call: workers, a client. `results` gets it, `close` ends it."""

    @abstractmethod
    def close(self, held: Any, failed: bool) -> None:
        """Give back what `open` made.

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
        """The sums of all tiles, in any order.

        Parameters
        ----------
        held : object
            What `open` returned.
        work : Work
            What the tiles have in common.
        tiles : sequence of Tile
            Which are wanted: large ones first, as they come.
        given : mapping
            What `work` needs, by fingerprint; a transport brings each to a worker once, and the worker keeps it.
        progress : callable
            For those that compute in this process: what to call with the share of a tile that is done.

        Raises
        ------
        TileError
            If a tile was tried three times in vain, or there is nobody left to compute it.
        """

    @property
    def threads_of_task(self) -> int:
        """Threads that a task is sent with."""
        return self.threads or 1

    @property
    def leads(self) -> bool:
        """Whether `agreed` calls its argument in this process."""
        return True

    def elsewhere(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """What makes a call where its arguments are.

        Parameters
        ----------
        arguments : sequence
            Those of the call, by position and by name.

        Returns
        -------
        callable or None
            It takes the function and its arguments without ``backend``; None where arguments are here.
        """
        return None

    def agreed(self, make: Callable[[], T]) -> T:
        """The value of a whole call: of several processes of one program one makes it, and all have its value.

        Parameters
        ----------
        make : callable
            The call, without arguments.

        Returns
        -------
        object
            What it returned.
        """
        return make()


ATTEMPTS = 3  # of a tile


class TileError(RuntimeError):
    """A tile could not be computed; what is in the journal stays there.

    Parameters
    ----------
    tile : Tile
        Which one.
    tiles : int
        How many there are.
    why : str
        The rest of the message.
    """

    def __init__(self, tile: Tile, tiles: int, why: str) -> None:
        super().__init__(tile, tiles, why)  # pickled, it is made of these again

    def __str__(self) -> str:
        tile, tiles, why = self.args
        where = f"rows {tile.row} to {tile.row_end}, columns {tile.column} to {tile.column_end}"
        return f"tile {tile.number} of {tiles} ({where}) {why}"


def given_up(tile: Tile, tiles: int, error: BaseException) -> TileError:
    """Of a tile that was tried as often as it is."""
    why = f"failed {ATTEMPTS} times, the last time by {type(error).__name__}: {error}"
    return TileError(tile, tiles, why)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 process", "2 processes"."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


@dataclass(frozen=True, kw_only=True)
class Serial(Parallel):
    """Compute tile by tile in this process: for sums that go on where they were interrupted.

    Parameters
    ----------
    threads : int, optional
        Threads of a tile; by default as many as there are.
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
