"""Tiles on the workers of a Dask cluster: a future for each tile; samples are scattered once.

Tasks contain no arrays, but the keys of scattered samples. Dask moves the tiles of a dead worker to others. If all
copies of the samples are lost, they are scattered again.
"""

from __future__ import annotations

import dataclasses
import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kcalib._backend.warnings import WarningRecords, record_warnings, warn
from kcalib._pairs.backends.base import Progress
from kcalib._pairs.tiles import Tile
from kcalib._version import __version__
from kcalib.parallel.store import Done, Missing, Recent, forget, run_tile
from kcalib.parallel.transport import ATTEMPTS, Parallel, TileError, counted, given_up
from kcalib.parallel.work import Work

T = TypeVar("T")

PASSING = (OSError, MemoryError)  # errors that may not occur on another worker or later
NAP = 0.01  # seconds between two looks for results
PATIENCE = 60.0  # seconds without a worker before a warning
MEMORY = "its log says why; too little memory is the usual reason"


@dataclasses.dataclass
class Held:
    """Client, scattered samples and pending futures of a call."""

    client: Any
    cluster: Any  # started for the call, or None
    own_client: bool
    scattered: dict[str, Any] = field(default_factory=dict)  # futures by fingerprint
    recent: Recent = field(default_factory=Recent)
    futures: dict[Any, Tile] = field(default_factory=dict)  # submitted and not done


@dataclass(frozen=True)
class Dask(Parallel):
    """Compute tiles on a Dask cluster.

    Parameters
    ----------
    client : distributed.Client or str, optional
        A client, which is not closed, or the address of a scheduler, such as ``"tcp://10.0.0.1:8786"``. Default: a
        cluster of the processors of this machine is started for the call (``distributed.LocalCluster``).
    threads : int, optional
        Threads of a task, 1 by default. A worker runs as many tasks at once as it has threads (``nthreads``): keep 1,
        or start workers with ``nthreads=1`` and pass the number of their processors.
    journal : str or path, optional
        File for finished tiles, which this process writes.
    tile_size, gpu : optional
        See `kcalib.parallel.Parallel`.

    Raises
    ------
    TypeError
        If `client` is of another type.
    ImportError
        If distributed is not installed.
    OSError
        If no scheduler answers at the address.
    RuntimeError
        If the client is closed, or if kcalib is missing on a worker or has another version.
    TileError
        When a result is computed: if the scheduler is lost, if the workers of a tile die repeatedly, or if a tile
        fails.

    Notes
    -----
    The samples, O(n m) bytes, are sent to each worker once. A task has some hundred bytes. All workers need the same
    version of kcalib.

    Dask's nannies set OMP_NUM_THREADS to 1 for their workers; it is ignored here. If a call is interrupted, running
    tiles finish, which takes seconds; all others are cancelled.

    Examples
    --------
    >>> import kcalib
    >>> from distributed import Client, LocalCluster  # doctest: +SKIP
    >>> client = Client(LocalCluster(n_workers=2, threads_per_worker=1))  # doctest: +SKIP
    >>> kcalib.skce(y, p, backend=kcalib.parallel.Dask(client))  # doctest: +SKIP
    """

    client: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.client is None or isinstance(self.client, str) or is_client(self.client)):
            raise TypeError(
                f"`client` is a {type(self.client).__name__}, expected a distributed.Client or the address of a "
                "scheduler; of a cluster pass distributed.Client(cluster)"
            )
        _distributed()

    def describe(self) -> str:
        where = self.client if isinstance(self.client, str) else _address(self.client) if self.client else "here"
        return f"Dask cluster {where}, {counted(self.threads_of_task, 'thread')} a task"

    def open(self) -> Held:
        if self.client is not None and not isinstance(self.client, str):
            if self.client.status != "running":
                raise RuntimeError(f"`client` is {self.client.status}; pass one that is connected to a scheduler")
            held = Held(self.client, None, own_client=False)
        else:
            distributed, cluster = _distributed(), None
            if self.client is None:
                workers = max(1, place().processors // self.threads_of_task)
                cluster = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
            try:
                client = distributed.Client(cluster or self.client, set_as_default=False)
            except (OSError, ValueError):
                raise OSError(
                    f"no Dask scheduler answers at {self.client}; correct the address, or start one: dask scheduler"
                ) from None
            held = Held(client, cluster, own_client=True)
        _check_workers(held.client, self.threads_of_task)
        return held

    def close(self, held: Held, failed: bool) -> None:
        _cancel(held)
        if held.client.status == "running":
            held.client.run(forget, on_error="ignore")
        if held.own_client:
            held.client.close()
        if held.cluster is not None:
            held.cluster.close()

    def elsewhere(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        models = [model for value in arguments if isinstance(value, Mapping) for model in value.values()]
        return self.call if any(map(_is_lazy, [*arguments, *models])) else None

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function on a worker.

        This is done for Dask arrays, whose chunks then move between workers, and not through this process.

        Parameters
        ----------
        function : callable
            A function of kcalib with an argument ``backend``, such as `kcalib.skce`.
        *args, **kwargs
            Its arguments without ``backend``. Dask arrays, also in a dictionary, become arrays on the worker. All
            workers hold all samples. A journal is a path on the worker, and progress is in its log.

        Returns
        -------
        object
            The result of the function.

        Raises
        ------
        TypeError
            If `backend` is given.
        RuntimeError
            If the scheduler is lost, or workers that made the call or held its arrays.
        Exception
            The exceptions of the function.
        """
        from distributed import CancelledError, Event, KilledWorker

        if "backend" in kwargs:
            raise TypeError("`backend` is given to a call that is made in parallel already; leave it out")
        held, failed = self.open(), True
        stop = Event(f"kcalib-stop-{uuid.uuid4().hex[:8]}", client=held.client)

        def check() -> None:
            if held.client.status != "running":
                raise CancelledError("there is no scheduler")

        try:
            options = {"threads": self.threads, "journal": self.journal, "tile_size": self.tile_size, "gpu": self.gpu}
            submitted = partial(_submitted, held.client, args, kwargs, function, options, stop.name)
            result, warning_records = _with_workers(held.client, submitted, check).result()
            failed = False
        except (CancelledError, KilledWorker) as error:
            raise RuntimeError(
                f"the call on a worker of {_address(held.client)} is lost, as are the scheduler, or workers that made "
                f"it or held its arrays: {error}"
            ) from error
        finally:
            if failed and held.client.status == "running":
                stop.set()
            self.close(held, failed)
        for message, category in warning_records:
            warn(message, category)
        return result

    def results(
        self,
        held: Held,
        work: Work,
        tiles: Sequence[Tile],
        given: Mapping[str, Any],
        progress: Callable[[Tile], Progress],
    ) -> Generator[Done]:
        left = {tile.number: tile for tile in tiles}
        failed = dict.fromkeys(left, 0)
        losses = 0  # of all tiles in a row
        while left:
            before = len(left), sum(failed.values())
            yield from self._round(held, work, len(tiles), left, failed, given)
            losses = losses + 1 if before == (len(left), sum(failed.values())) else 0
            if losses == ATTEMPTS:
                tile = next(iter(left.values()))
                why = f"and {len(left) - 1} others were lost {losses} times with all workers that held the samples"
                raise TileError(tile, len(tiles), f"{why}: {MEMORY.replace('its log says', 'their logs say')}")

    def _round(
        self,
        held: Held,
        work: Work,
        n_tiles: int,
        left: dict[int, Tile],
        failed: dict[int, int],
        inputs: Mapping[str, Any],
    ) -> Iterator[Done]:
        """Yield the results of the tiles in `left` and remove them; lost and failed tiles stay."""
        client, tiles = held.client, list(left.values())
        name = f"kcalib-{work.name}-{uuid.uuid4().hex[:8]}"
        submitted = client.map(
            _on_worker,
            tiles,
            work=work,
            inputs=_scattered(held, work, inputs, tiles[0], n_tiles),
            key=[f"{name}-{tile.number}" for tile in tiles],
            pure=False,
        )
        futures = held.futures = dict(zip(submitted, tiles, strict=True))
        del submitted  # Dask frees the result of a future without references
        from distributed import as_completed

        completions = as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False)
        while futures:
            batch = completions.next_batch(block=False)
            if not batch:
                _check_scheduler(client, next(iter(left.values())), n_tiles)
                time.sleep(NAP)
            for future, result in batch:
                tile, status = futures.pop(future), future.status
                if status == "finished":
                    del left[tile.number]
                    yield result
                elif status == "error":
                    failed[tile.number] += 1
                    _check_error(result[1], tile, n_tiles, failed[tile.number])
                else:  # the samples or the scheduler are lost
                    held.scattered.clear()


@dataclass(frozen=True)
class _There(Dask):
    """Dask from within a worker, for a call that another process waits for."""

    stop: Any = None

    def open(self) -> Held:  # the workers were checked already
        return Held(self.client, None, own_client=False)

    def results(
        self,
        held: Held,
        work: Work,
        tiles: Sequence[Tile],
        given: Mapping[str, Any],
        progress: Callable[[Tile], Progress],
    ) -> Generator[Done]:
        last_check = time.monotonic()
        for result in super().results(held, work, tiles, given, progress):
            yield result
            if time.monotonic() > last_check + 1.0:
                last_check = time.monotonic()
                if self.stop.is_set():
                    raise RuntimeError("nobody waits for the call any more")


def _submitted(
    client: Any, args: Sequence[Any], kwargs: Mapping[str, Any], function: Any, options: Any, stop: str
) -> Any:
    """Submit the call to a worker. Only the returned future holds the futures of its arguments."""
    arguments = [_computed(client, value) for value in args]
    named = {name: _computed(client, value) for name, value in kwargs.items()}
    return client.submit(_call_there, function, options, stop, *arguments, pure=False, **named)


def _call_there(
    function: Callable[..., T], options: Mapping[str, Any], stop: str, *args: Any, **kwargs: Any
) -> tuple[T, WarningRecords]:
    from distributed import Event, worker_client

    with worker_client() as client, record_warnings() as warning_records:
        result = function(*args, backend=_There(client, stop=Event(stop, client=client), **options), **kwargs)
    return result, warning_records


def _computed(client: Any, value: Any) -> Any:
    """Return a future of a Dask or NumPy array on a worker, so that tasks stay small."""
    if isinstance(value, Mapping):
        return {name: _computed(client, item) for name, item in value.items()}
    if _is_lazy(value):
        return client.compute(value)
    return client.scatter(value, hash=False) if isinstance(value, np.ndarray) else value


def _is_lazy(value: Any) -> bool:
    """Return whether a value is a Dask collection, or an xarray object that holds one."""
    from dask import is_dask_collection

    return bool(is_dask_collection(value))


def _on_worker(tile: Tile, work: Work, inputs: Mapping[str, Any]) -> Done:
    result = run_tile(work, tile, inputs)
    assert not isinstance(result, Missing)
    return result


def _scattered(held: Held, work: Work, inputs: Mapping[str, Any], tile: Tile, n_tiles: int) -> dict[str, Any]:
    """Return futures of the inputs; all current workers have a copy."""
    client = held.client
    gone = [key for key, future in held.scattered.items() if future.cancelled()]
    for key in {*gone, *held.recent.unused(work.needs, held.scattered)}:
        del held.scattered[key]
    if missing := [key for key in work.needs if key not in held.scattered]:
        scatter = partial(client.scatter, [inputs[key] for key in missing], broadcast=True, hash=False)
        futures = _with_workers(client, scatter, lambda: _check_scheduler(client, tile, n_tiles))
        held.scattered.update(zip(missing, futures, strict=True))
    return {key: held.scattered[key] for key in work.needs}


def _with_workers(client: Any, make: Callable[[], T], check: Callable[[], None]) -> T:
    """Return the result of `make` as soon as there are workers; `check` raises if there cannot be any."""
    start, has_warned = time.monotonic(), False
    while True:
        check()
        try:
            client.wait_for_workers(1, timeout=1)
            return make()
        except TimeoutError:  # no worker, or lost during `make`
            if not has_warned and time.monotonic() - start > PATIENCE:
                has_warned = True
                warn(
                    f"the Dask cluster {_address(client)} has no workers since {PATIENCE:.0f} s; the call waits for "
                    "them: start some, or interrupt it",
                    RuntimeWarning,
                )
        except OSError:
            time.sleep(1.0)  # by then the client knows whether the scheduler is lost
            check()
            raise


def _cancel(held: Held) -> None:
    if held.futures and held.client.status == "running":
        with suppress(Exception):  # of a scheduler that is lost just now
            held.client.cancel(list(held.futures), force=True)
    held.futures.clear()
    held.scattered.clear()


def _check_scheduler(client: Any, tile: Tile, n_tiles: int) -> None:
    if client.status != "running":
        raise TileError(tile, n_tiles, f"is not done, and Dask's scheduler {_address(client)} is lost")


def _check_error(error: BaseException, tile: Tile, n_tiles: int, times: int) -> None:
    """Raise an error that would recur."""
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        last = error.last_worker.address
        why = f"was given up, as {error.allowed_failures + 1} workers died while they had it, the last {last}: {MEMORY}"
        raise TileError(tile, n_tiles, why) from None
    if not isinstance(error, PASSING):
        raise error
    if times == ATTEMPTS:
        raise given_up(tile, n_tiles, error) from error


def _check_workers(client: Any, threads: int) -> None:
    """Check the version of workers, and warn if tasks on a machine have more threads than processors."""
    try:
        workers: dict[str, Place] = client.run(place)
    except ImportError as error:
        raise RuntimeError(
            f"the workers of {_address(client)} cannot import kcalib ({error}); install it there"
        ) from None
    info = client.scheduler_info(n_workers=-1)["workers"]
    for address, worker in workers.items():
        if worker.version != __version__:
            raise RuntimeError(
                f"the worker {address} has kcalib {worker.version}, this process {__version__}; install one version "
                "everywhere"
            )
    for host in sorted({worker.host for worker in workers.values()}):
        workers_of_host = {address: worker for address, worker in workers.items() if worker.host == host}
        tasks = sum(info[address]["nthreads"] for address in workers_of_host if address in info)
        processors = max(worker.processors for worker in workers_of_host.values())
        if tasks * threads > processors:
            warn(
                f"on {host} up to {tasks} tasks of {threads} threads run at a time, for {processors} processors; start "
                f"workers with fewer threads (nthreads), or pass threads={max(1, processors // tasks)}",
                RuntimeWarning,
            )


class Place(NamedTuple):
    """Host, processors and version of a worker."""

    host: str
    processors: int
    version: str


def place() -> Place:
    """Return the place of the calling process."""
    from dask.system import CPU_COUNT

    return Place(socket.gethostname(), CPU_COUNT, __version__)


def _address(client: Any) -> str:
    scheduler = getattr(client, "scheduler", None)
    return getattr(scheduler, "address", None) or "without an address"


def is_client(value: Any) -> bool:
    """Return whether a value is a `distributed.Client`, without importing distributed."""
    return any(kind.__module__ == "distributed.client" and kind.__name__ == "Client" for kind in type(value).__mro__)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise ImportError("Dask clusters need distributed: pip install 'kcalib[dask]'") from None
    return distributed
