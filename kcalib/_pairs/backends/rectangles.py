"""Rectangles of H on a GPU: within its memory, with regular checks for signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from kcalib._backend.memory import available_memory_on_gpu
from kcalib._backend.threads import TerminalProgress

# A launch costs pairs times instructions a pair, at most so many: 0.2 s on a GPU that does 3e11 of them in a second
# (float64 on a consumer's), 4 ms on an H200, beside which a synchronisation is not seen.
LAUNCH_COST = 6e10

R = TypeVar("R")


class Rectangle(NamedTuple):
    """A part of H: rows [row, row_end), columns [column, column_end)."""

    row: int
    row_end: int
    column: int
    column_end: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.row_end - self.row, self.column_end - self.column

    def parts(self, rows: int, columns: int, symmetric: bool) -> Iterator[Rectangle]:
        """Yield rectangles of `rows` by `columns`, row after row; if `symmetric`, none below its diagonal."""
        for row in range(self.row, self.row_end, rows):
            first = (row - self.row) // columns * columns if symmetric else 0
            for column in range(self.column + first, self.column_end, columns):
                yield Rectangle(row, min(row + rows, self.row_end), column, min(column + columns, self.column_end))


@contextmanager
def paced(rectangle: Rectangle, cost: float, symmetric: bool = False) -> Iterator[Callable[[Rectangle, float], None]]:
    """Yield a function to report which part is launched and the cost of a pair in it, out of `cost` in total.

    After `LAUNCH_COST` it waits for the launches, handles signals, and shows progress.
    """
    import cupy

    launched_cost, waiting_cost = 0.0, 0.0
    work = cost * rectangle.shape[0] * rectangle.shape[1] * (0.5 if symmetric else 1.0)
    with TerminalProgress() as progress:

        def spent(part: Rectangle, cost: float) -> None:
            nonlocal launched_cost, waiting_cost
            # A symmetric problem costs roughly what lies above its diagonal.
            above = part.column_end - max(part.column, part.row) if symmetric else part.shape[1]
            part_cost = cost * part.shape[0] * max(0, above)
            launched_cost, waiting_cost = launched_cost + part_cost, waiting_cost + part_cost
            if waiting_cost < LAUNCH_COST:
                return
            cupy.cuda.get_current_stream().synchronize()
            waiting_cost = 0.0
            if progress is not None:
                progress(min(1.0, launched_cost / work))

        yield spent


def within_memory(work: Callable[[int], R], contents: str, n: int) -> R:
    """Return work(1), or with too little memory on the GPU work with workspaces 1/4, 1/16 as large."""
    import cupy

    pool = cupy.get_default_memory_pool()
    for shrink in (1, 4, 16):
        try:
            return work(shrink)
        except cupy.cuda.memory.OutOfMemoryError as error:
            message = str(error)
        pool.free_all_blocks()  # the error's frames, which held arrays, are gone
    raise MemoryError(
        f"{contents} of {n} samples do not fit into the memory of GPU {cupy.cuda.Device().id} ({message}); "
        "free other arrays on it, or pass fewer samples"
    )


def free_memory() -> int:
    """Return the bytes available for arrays on the current device."""
    import cupy

    return available_memory_on_gpu(cupy.cuda.Device())
