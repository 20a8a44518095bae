"""Tiles one after the other, in this process: the transport without transport."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcalib._backend.threads import resolve_threads
from kcalib._pairs.backends.base import Progress
from kcalib._pairs.tiles import Tile
from kcalib.parallel.store import Done, Store
from kcalib.parallel.transport import Parallel, counted
from kcalib.parallel.work import Work


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
