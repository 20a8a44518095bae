"""Plugins of Dask workers, also of those that come later: a certain tile kills its worker, or finds no memory."""

from __future__ import annotations

import os
import signal
from typing import Any

from distributed import WorkerPlugin

from kcalib.parallel import dask
from kcalib.parallel.store import run_tile

DEADLY = 7


def deadly(work: Any, tile: Any, given: Any) -> Any:
    if tile.number == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_tile(work, tile, given)


class DeadlyTile(WorkerPlugin):
    """Put `deadly` in the place of `run_tile`."""

    name = "deadly-tile"

    def setup(self, worker: Any) -> None:
        dask.run_tile = deadly


class GreedyTile(WorkerPlugin):
    """The same tile takes too much memory, so many times."""

    name = "greedy-tile"

    def __init__(self, times: int) -> None:
        self.times = times

    def setup(self, worker: Any) -> None:
        left = [self.times]

        def greedy(work: Any, tile: Any, given: Any) -> Any:
            if tile.number == DEADLY and left[0]:
                left[0] -= 1
                raise MemoryError("no room")
            return run_tile(work, tile, given)

        dask.run_tile = greedy
