"""Tiles on the ranks of an MPI program, which all make the same call.

Rank 0 has the arguments and the journal, hands out tiles, adds up the sums and computes the result, which all ranks
return. Other ranks receive the samples once, by a broadcast, and compute tiles. MPI reductions are not used, since
their order of summation depends on the number of ranks.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import platform
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kcalib._backend.warnings import warn
from kcalib._pairs.backends.base import Progress
from kcalib._pairs.tiles import Tile
from kcalib.parallel.store import Done, Missing, Store
from kcalib.parallel.transport import Parallel, TileError, counted
from kcalib.parallel.work import Work

T = TypeVar("T")

ORDER, DONE, END = 7101, 7102, 7103  # tags: from rank 0, to rank 0, from rank 0 and back
AHEAD = 2  # tiles of a rank at a time: rank 0 computes, too, and may answer late
PIECE = 2**30  # bytes of a message; MPI counts to 2^31
NAP = 1e-3  # seconds between two looks for messages: MPI's own waiting uses a whole processor
# Number of ranks by the launcher.
STARTED = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class RankError(RuntimeError):
    """A call ended on another rank."""


class Failed(NamedTuple):
    """Sent by a rank in place of sums."""

    tile: Tile
    why: str


@dataclasses.dataclass
class Held:
    """What a rank holds during a call."""

    store: Store = field(default_factory=Store)
    calling: bool = False  # rank 0, within a call


@dataclass(frozen=True)
class MPI(Parallel):
    """Compute tiles on the ranks of an MPI program, which all make the same call.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        The communicator; default ``MPI.COMM_WORLD``.
    threads : int, optional
        Threads of each rank, 1 by default.
    journal : str or path, optional
        File for finished tiles, which rank 0 writes.
    tile_size, gpu : optional
        See `kcalib.parallel.Parallel`.

    Raises
    ------
    ImportError
        If mpi4py is not installed.
    TypeError
        If `comm` is not a communicator.
    RuntimeError
        If several processes were started, but MPI sees a single rank in each.
    TileError, RankError
        When a result is computed: TileError on rank 0 if a tile fails, RankError on other ranks if rank 0 fails.

    Notes
    -----
    Only the arguments of rank 0 count; other ranks may pass None for samples. All ranks return the same result. Start
    the program by ``srun python -m mpi4py program.py`` or ``mpiexec -n 64 python -m mpi4py program.py``: with ``-m
    mpi4py`` an exception on one rank ends all ranks.

    The samples, O(n m) bytes, are broadcast once, in messages below 2^31 bytes. Ranks receive tiles as they finish
    others. A rank that dies ends the program; with a journal the same call continues.

    Examples
    --------
    >>> import kcalib
    >>> from mpi4py import MPI  # doctest: +SKIP
    >>> y, p = load() if MPI.COMM_WORLD.rank == 0 else (None, None)  # doctest: +SKIP
    >>> kcalib.skce(y, p, backend=kcalib.parallel.MPI(journal="tiles.journal"))  # doctest: +SKIP
    """

    comm: Any = None
    _held: Held = field(default_factory=Held, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        mpi = _mpi()
        if self.comm is None:
            object.__setattr__(self, "comm", mpi.COMM_WORLD)
        if not isinstance(self.comm, mpi.Comm):
            raise TypeError(f"`comm` is a {type(self.comm).__name__}, expected a communicator of mpi4py")
        started = max((int(os.environ[name]) for name in STARTED if os.environ.get(name, "").isdecimal()), default=1)
        if started > 1 and mpi.COMM_WORLD.size == 1:
            raise RuntimeError(
                f"{started} processes were started, and MPI takes each for a program of one rank; start them by the "
                "mpiexec of the MPI that mpi4py was built with, or by srun with its interface: `srun --mpi=list` shows "
                "those there are (pmi2 for MPICH, pmix for Open MPI)"
            )

    def describe(self) -> str:
        return f"{counted(self.comm.size, 'MPI rank')} of {counted(self.threads_of_task, 'thread')}"

    @property
    def leads(self) -> bool:
        return bool(self.comm.rank == 0)

    def agreed(self, make: Callable[[], T]) -> T:
        comm, held = self.comm, self._held
        if held.calling:  # a call within a call
            return make()
        _check_threads(comm, self.threads_of_task)
        held.store = Store()
        if not self.leads:
            return _served(comm, held.store)
        held.calling = True
        try:
            value = make()
        except BaseException as error:
            _end(comm, _format_error(error))
            _drop_results(comm)
            raise
        finally:
            held.calling = False
        _end(comm, None)
        return _shared(comm, value)

    def open(self) -> None:
        return  # what ranks hold they have from `agreed`

    def close(self, held: None, failed: bool) -> None:
        return  # it ends there, too

    def results(
        self,
        held: None,
        work: Work,
        tiles: Sequence[Tile],
        given: Mapping[str, Any],
        progress: Callable[[Tile], Progress],
    ) -> Generator[Done]:
        from mpi4py import MPI

        comm, store = self.comm, self._held.store
        for rank in range(1, comm.size):
            comm.send((work, None), dest=rank, tag=ORDER)
        missing = frozenset().union(*comm.allgather([]))
        _shared(comm, {key: given[key] for key in work.needs if key in missing})
        left, busy, status = iter(tiles), 0, MPI.Status()
        arrivals: deque[Done] = deque()  # results that were not yielded yet

        def give(rank: int) -> int:
            tile = next(left, None)
            if tile is not None:
                comm.send((work, tile), dest=rank, tag=ORDER)
            return tile is not None

        def look() -> None:
            nonlocal busy
            while comm.iprobe(source=MPI.ANY_SOURCE, tag=DONE, status=status):
                rank = status.Get_source()
                result = _received(comm, rank)
                busy += give(rank) - 1
                if isinstance(result, Failed):
                    raise TileError(result.tile, len(tiles), f"failed on rank {rank}: {result.why}")
                arrivals.append(result)

        for _ in range(AHEAD):
            for rank in range(1, comm.size):
                busy += give(rank)
        for tile in left:
            result = store.compute(work, tile, given, _combine_callbacks(progress(tile), look))
            assert isinstance(result, Done)
            arrivals.append(result)
            look()
            while arrivals:
                yield arrivals.popleft()
        while busy or arrivals:
            look()
            while arrivals:
                yield arrivals.popleft()
            time.sleep(NAP)


def _combine_callbacks(progress: Progress, look: Callable[[], None]) -> Callable[[float], None]:
    """Return a callback that shows progress and looks for messages, about ten times a second."""

    def call(share: float) -> None:
        if progress is not None:
            progress(share)
        look()

    return call


def _end(comm: Any, failure: str | None) -> None:
    for rank in range(1, comm.size):
        comm.send(failure, dest=rank, tag=END)


class Ended(Exception):
    """Raised when nobody waits for the current tile any more."""


def _served(comm: Any, store: Store) -> Any:
    """Compute tiles for rank 0 until it ends the call, and return its result."""
    try:
        failure = _serve(comm, store)
    except BaseException:  # such as an interrupt
        comm.send(None, dest=0, tag=END)
        raise
    if failure is None:
        return _shared(comm, None)
    while comm.iprobe(source=0, tag=ORDER):
        comm.recv(source=0, tag=ORDER)
    comm.send(None, dest=0, tag=END)
    raise RankError(f"the call ended on rank 0: {failure}")


def _serve(comm: Any, store: Store) -> str | None:
    """Compute tiles for rank 0, and return why the call failed, or None."""
    inputs: Mapping[str, Any] = {}
    sending: list[Any] = []

    def look(share: float) -> None:
        if comm.iprobe(source=0, tag=END):
            raise Ended

    while not comm.iprobe(source=0, tag=END):
        if not comm.iprobe(source=0, tag=ORDER):
            time.sleep(NAP)
            continue
        work, tile = comm.recv(source=0, tag=ORDER)
        if tile is None:
            comm.allgather(store.missing(work))
            inputs = _shared(comm, None)
            continue
        try:
            result: Done | Missing | Failed = store.compute(work, tile, inputs, look, sent=True)
            assert not isinstance(result, Missing)
        except Ended:
            break
        except Exception as error:
            result = Failed(tile, _format_error(error))
        _wait(sending)
        sending = _send(comm, result)
    _wait(sending)
    return comm.recv(source=0, tag=END)


def _drop_results(comm: Any) -> None:
    """Receive and drop late results until each rank has seen the end."""
    from mpi4py import MPI

    status, left = MPI.Status(), comm.size - 1
    while left:
        if comm.iprobe(source=MPI.ANY_SOURCE, tag=DONE, status=status):
            _received(comm, status.Get_source())
        elif comm.iprobe(source=MPI.ANY_SOURCE, tag=END, status=status):
            comm.recv(source=status.Get_source(), tag=END)
            left -= 1
        else:
            time.sleep(NAP)


def _pickled(value: Any) -> list[memoryview]:
    """Return buffers from which `value` is unpickled; arrays are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [memoryview(content), *(buffer.raw() for buffer in buffers)]


def _pieces(content: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


def _send(comm: Any, value: Any) -> list[Any]:
    """Send a value of any size to rank 0, and return the open requests."""
    contents = _pickled(value)
    sizes = comm.isend([len(content) for content in contents], dest=0, tag=DONE)
    return [sizes, *(comm.Isend(piece, dest=0, tag=DONE) for content in contents for piece in _pieces(content))]


def _wait(sending: list[Any]) -> None:
    """Wait for open requests by polling: MPI's own waiting uses a whole processor."""
    while sending:
        sending[:] = [request for request in sending if not request.Test()]
        if sending:
            time.sleep(NAP)


def _received(comm: Any, rank: int) -> Any:
    contents = [memoryview(bytearray(size)) for size in comm.recv(source=rank, tag=DONE)]
    for content in contents:
        for piece in _pieces(content):
            comm.Recv(piece, source=rank, tag=DONE)
    return pickle.loads(contents[0], buffers=contents[1:])


def _shared(comm: Any, value: Any) -> Any:
    """Return rank 0's `value` on all ranks."""
    first = comm.rank == 0
    contents = _pickled(value) if first else []
    sizes = comm.bcast([len(content) for content in contents])
    if not first:
        contents = [memoryview(bytearray(size)) for size in sizes]
    for content in contents:
        for piece in _pieces(content):
            comm.Bcast(piece)
    return value if first else pickle.loads(contents[0], buffers=contents[1:])


def _check_threads(comm: Any, threads: int) -> None:
    """Warn where the ranks of a machine would have more threads than processors."""
    from mpi4py import MPI

    machine_comm = comm.Split_type(MPI.COMM_TYPE_SHARED)
    masks, ranks = machine_comm.allgather(_processors()), machine_comm.size
    first = machine_comm.rank == 0
    machine_comm.Free()
    processors = len(frozenset().union(*masks))
    if first and ranks * threads > processors:
        warn(
            f"{ranks} ranks of {threads} threads share {processors} processors of {platform.node()}; start fewer "
            f"ranks, or pass threads={max(1, processors // ranks)}",
            RuntimeWarning,
        )


def _processors() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _format_error(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError:
        raise ImportError("MPI needs mpi4py and an MPI: pip install 'kcalib[mpi]'") from None
    return MPI
