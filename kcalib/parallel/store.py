"""What a worker was sent and keeps, and the functions that transports to other processes call.

A problem is sent as separate arrays, named by their fingerprints: problems that share arrays send these to a worker
once (H and the kernel matrix share points; sweeps over drawn targets share all but the features). Inputs that the last
sweeps did not need are dropped.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._pairs.backends.base import Progress
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import Part, Reduction
from kcalib._pairs.tiles import Tile
from kcalib.parallel.work import Prepared, Work, sweep_tile

SWEEPS = 3  # a worker keeps the inputs of the last sweeps


class Done(NamedTuple):
    """The sums of a tile, and the worker."""

    tile: Tile
    sums: Part
    worker: str
    seconds: float
    received: int = 0  # bytes of samples and vectors since the previous result


class Missing(NamedTuple):
    """Inputs that a worker lacks."""

    worker: str
    keys: tuple[str, ...]


class Outline:
    """A problem with fingerprints in place of arrays; in the process that made it, also the problem."""

    def __init__(self, problem: PairProblem) -> None:
        self.problem: PairProblem | None = problem
        self.arrays: dict[str, Any] = {}
        self.sides = [self._parts(side) for side in (problem.left, problem.right) if side is not None]
        self.table = self._part(problem.table)
        self.rest = problem.kernel, problem.target, problem.predicted

    @property
    def key(self) -> str:
        """Fingerprint of H, the same in every process."""
        return _digest(repr((self.sides, self.table, self.rest)).encode())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"problem": None, "arrays": {}}

    def build_problem(self, values: Mapping[str, Any]) -> PairProblem:
        """Return the problem, given its arrays by fingerprint."""
        if self.problem is not None:
            return self.problem
        left, *right = (Side.of(*(None if key is None else values[key] for key in side)) for side in self.sides)
        kernel, target, predicted = self.rest
        table = None if self.table is None else values[self.table]
        return PairProblem(left, right[0] if right else None, kernel, target, predicted, table)

    def _parts(self, side: Side) -> tuple[str | None, ...]:
        return tuple(self._part(array) for array in side.parts())

    def _part(self, array: Any) -> str | None:
        if array is None:
            return None
        key = fingerprint(array)
        self.arrays[key] = array
        return key


class Recent:
    """The keys that the last sweeps needed."""

    def __init__(self) -> None:
        self._needs: list[tuple[str, ...]] = []

    def unused(self, needs: tuple[str, ...], keys: Iterable[str]) -> list[str]:
        """Return the keys that neither a sweep with these needs nor one of the last sweeps uses."""
        self._needs = [*(sweep_keys for sweep_keys in self._needs if sweep_keys != needs), needs][-SWEEPS:]
        used_keys = {key for sweep_keys in self._needs for key in sweep_keys}
        return [key for key in keys if key not in used_keys]


class Store:
    """The inputs of a worker, and what it has computed from them, by fingerprint."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._recent = Recent()
        self._received = 0
        self._lock = Lock()

    def missing(self, work: Work) -> tuple[str, ...]:
        return tuple(key for key in work.needs if key not in self._values)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def keep(self, work: Work, inputs: Mapping[str, Any], *, sent: bool = False) -> dict[str, Any]:
        """Keep the inputs that the work needs, and return those that this process has."""
        with self._lock:  # threads of a process do not repeat work
            for key in dict.fromkeys(work.needs):
                if key in inputs and (sent or key not in self._values):
                    self._received += getattr(inputs[key], "nbytes", 0)
                if key in inputs and key not in self._values and self._has_parts(work, inputs[key]):
                    self._values[key] = self._build(work, inputs[key])
            for key in self._recent.unused(work.needs, list(self._values)):
                del self._values[key]
            return {key: self._values[key] for key in work.needs if key in self._values}

    def pop_received_bytes(self) -> int:
        """Return the bytes that were received since the last call."""
        with self._lock:
            received, self._received = self._received, 0
        return received

    def compute(
        self, work: Work, tile: Tile, inputs: Mapping[str, Any], progress: Progress = None, *, sent: bool = False
    ) -> Done | Missing:
        """Compute the sums of a tile in this process; `sent`: the inputs come from another process."""
        start = time.perf_counter()
        sums = self.sums(work, tile, inputs, progress)
        if sums is None:
            return Missing(worker_name(), self.missing(work))
        return Done(tile, sums, worker_name(), time.perf_counter() - start, self.pop_received_bytes() if sent else 0)

    def sums(self, work: Work, tile: Tile, inputs: Mapping[str, Any], progress: Progress = None) -> Part | None:
        """Return the sums of a tile from `inputs` of this or previous calls; None if something is missing."""
        needed = self.keep(work, inputs)
        if len(needed) < len(work.needs):
            return None
        prepared = needed[work.problem]
        reduction, vectors = (work.options, None) if work.options is not None else needed[work.reduction]
        return sweep_tile(work, tile, prepared, reduction, vectors, progress)

    def _has_parts(self, work: Work, value: Any) -> bool:
        """Return whether the parts of a value are here; another worker may have asked for it."""
        parts = work.parts if isinstance(value, Outline) else (work.problem,) if isinstance(value, Reduction) else ()
        return all(key in self._values for key in parts)

    def _build(self, work: Work, value: Any) -> Any:
        if isinstance(value, Outline):
            prepared = Prepared(value.build_problem(self._values), work.backend, work.threads, work.gpu)
            if work.options is not None:
                prepared.prepare(work.options)  # now, by one thread
            return prepared
        return self._values[work.problem].prepare(value) if isinstance(value, Reduction) else value


_store = Store()  # of a worker process


def forget() -> None:
    """Drop what this process keeps as a worker."""
    _store.clear()


def run_tile(work: Work, tile: Tile, inputs: Mapping[str, Any]) -> Done | Missing:
    """Return the sums of a tile in a worker process, which keeps the `inputs` by fingerprint."""
    return _store.compute(work, tile, inputs, sent=True)


def deliver(work: Work, inputs: Mapping[str, Any]) -> Missing:
    """Keep the `inputs` in any worker process, and return its name and the keys that it still lacks."""
    _store.keep(work, inputs, sent=True)
    return Missing(worker_name(), _store.missing(work))


def worker_name() -> str:
    """Return the machine and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def fingerprint(value: Any) -> str:
    """Return the fingerprint of an array, or of a reduction with its arrays."""
    if isinstance(value, Reduction | FeatureMap):
        of_fields = [(field.name, _describe_value(getattr(value, field.name))) for field in fields(value)]  # type: ignore[arg-type]
        return _digest(repr((type(value).__name__, of_fields)).encode())
    numbers = np.ascontiguousarray(arrays.to_host(value))
    return _digest(repr((numbers.shape, numbers.dtype.str)).encode(), numbers)


def _describe_value(value: Any) -> str:
    return fingerprint(value) if isinstance(value, np.ndarray | FeatureMap) else repr(value)


def _digest(text: bytes, numbers: np.ndarray | None = None) -> str:
    digest = hashlib.blake2b(text, digest_size=16)
    if numbers is not None and numbers.size:
        digest.update(numbers.view(np.uint8).reshape(-1).data)
    return digest.hexdigest()
