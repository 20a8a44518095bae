"""Finished tiles in a file: append-only records with checksums, from which an interrupted call continues.

    record: length of the text (uint32) | length of the whole (uint64) | text (JSON) | arrays | BLAKE2b (16 bytes)

The first record describes the call: data, options, version of the library. Then, for each sweep over the pairs (named
by its fingerprint), there are the plan that it was begun with, sums of tiles, and states: the sum of all tiles below a
number. A state replaces earlier states and the tiles below its number. When many records are replaced, the file is
written again without them. It therefore holds sums, not rows: for n samples 8 n bytes for each sweep with sums of rows,
32 n for the current sweep (for weights 16 KiB a column), and the tiles that cannot be added yet, or 4 MiB. Tiles of
products with vectors are as large as their sum; only their state is saved, from time to time.

A truncated or damaged record ends the file: it was being written when the process was killed or the power failed.
Later tiles are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kcalib._backend.files import REPLACES_OPEN_FILES, lock_file, remove_unfinished, write_whole
from kcalib._pairs.reductions import Part as Sums

MAGIC = b"kcalib journal 1\n"
LENGTHS = struct.Struct("<IQ")
DTYPE = "<f8"  # of all arrays
DIGEST = 16
SYNC_SECONDS = 5.0  # of work that may be lost if the power fails; a process that dies loses nothing
ROOM = 2**22  # minimum bytes of tiles before a state replaces them


class JournalError(ValueError):
    """A journal that does not belong to the call."""


@dataclass
class Sweep:
    """A sweep over the pairs in a journal."""

    plan: dict[str, Any]
    first: int = 0  # the number of the first tile that is not in the state
    tiles: dict[int, Sums] = field(default_factory=dict)
    place: int = 0  # of the record of the state in the file, if `first`
    size: int = 0  # of this record


class Journal:
    """Finished tiles in a file that is open for a call; a JournalError if it is no journal or open elsewhere."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path)
        self._header: dict[str, Any] | None = None
        self._sweeps: dict[str, Sweep] = {}
        self._unfolded = 0  # bytes of tiles
        self._outdated = 0  # bytes of states that were replaced
        self._synced = time.monotonic()
        if os.path.exists(self.path) and not os.path.isfile(self.path):  # a folder, a pipe, a device
            raise JournalError(f"{self.path} is not a journal of kcalib, nor a file; name one that is not there yet")
        is_new = not os.path.exists(self.path)
        try:
            self._file: BinaryIO = open(self.path, "w+b" if is_new else "r+b")  # noqa: SIM115
        except OSError as error:
            raise type(error)(
                f"the journal {self.path} cannot be opened: {error.strerror}; name a file in a folder that is there, "
                "which you may write"
            ) from None
        try:
            self._lock(self._file)
            remove_unfinished(Path(self.path))
            self._read()
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.close()
            if is_new:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            raise

    def check(self, header: dict[str, str]) -> None:
        """Raise a JournalError if the file belongs to another call; an empty file is assigned to this call."""
        if self._header is None:
            self._header = header
            self._append({"header": header}, {})
            return
        for name, value in header.items():
            value_in_file = self._header.get(name)
            if value_in_file != value:
                raise JournalError(
                    f"the journal {self.path} is of another call: its {name} is {value_in_file!r}, that of this call "
                    f"{value!r}; give each call a journal of its own, or remove the file to begin again"
                )

    def begin(self, key: str, plan: dict[str, Any]) -> Sweep:
        """Return what is known of the sweep, with the plan that it was begun with."""
        if key not in self._sweeps:
            self._sweeps[key] = Sweep(plan)
            self._append({"sweep": key, "plan": plan}, {})
        return self._sweeps[key]

    def add(self, key: str, tile: int, sums: Sums) -> None:
        """Keep the sums of a tile."""
        self._unfolded += self._append({"tile": [key, tile]}, sums)

    def advance(self, key: str, first: int, state: Sums, waiting: dict[int, Sums]) -> None:
        """Save the state if its tiles take more space than the state."""
        if self._unfolded < max(ROOM, sum(values.nbytes for values in state.values())):
            return
        self.save(key, first, state, waiting)

    def save(self, key: str, first: int, state: Sums, waiting: dict[int, Sums]) -> None:
        """Write the state of the tiles below number `first`, and the other tiles."""
        sweep = self._sweeps[key]
        self._outdated += sweep.size
        record = _record_of({"state": key, "first": first}, state)
        if self._unfolded < ROOM and self._outdated < max(ROOM, sum(entry.size for entry in self._sweeps.values())):
            place = self._file.tell()
            self._write(record)
        else:
            place = self._rewrite(key, record, waiting)
        sweep.first, sweep.place, sweep.size = first, place, len(record)
        self._unfolded = 0

    def state(self, key: str) -> Sums:
        """Return the latest state of the sweep."""
        self._file.seek(self._sweeps[key].place)
        record = self._record()
        self._file.seek(0, os.SEEK_END)
        if record is None:
            raise JournalError(f"the journal {self.path} was changed by somebody else; remove it, and begin again")
        return record[1]

    def close(self) -> None:
        """Flush the file to disk and close it."""
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()
            os.fsync(self._file.fileno())
        with contextlib.suppress(OSError):  # of a record that could not be written: the call has said so
            self._file.close()

    def _lock(self, file: BinaryIO) -> None:
        """Refuse a file that another process writes, if the system can tell."""
        if lock_file(file.fileno()) is False:
            raise JournalError(f"the journal {self.path} is in use by another process; wait for it, or end it")

    def _read(self) -> None:
        """Read the file, and truncate it before the first damaged record."""
        start = self._file.read(len(MAGIC))
        if start != MAGIC[: len(start)]:
            raise JournalError(f"{self.path} is not a journal of kcalib; name a file that is not there yet")
        if len(start) < len(MAGIC):
            self._file.seek(0)
            with self._writing():
                self._file.write(MAGIC)
                self._file.flush()
        end = len(MAGIC)
        try:
            while (record := self._record()) is not None:
                place, end = end, self._file.tell()
                self._take(*record, place, end - place)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            raise JournalError(
                f"{self.path} is not as kcalib writes a journal, although its checksums are right; remove it, or name "
                "a file that is not there yet"
            ) from None
        self._file.seek(end)
        self._file.truncate()

    def _take(self, description: dict[str, Any], sums: Sums, place: int, size: int) -> None:
        if "header" in description:
            self._header = dict(description["header"])
        elif "sweep" in description:
            self._sweeps[description["sweep"]] = Sweep(dict(description["plan"]))
        elif "state" in description:
            sweep = self._sweeps[description["state"]]
            self._outdated += sweep.size
            sweep.first, sweep.place, sweep.size = _number(description["first"]), place, size
            sweep.tiles = {tile: values for tile, values in sweep.tiles.items() if tile >= sweep.first}
        else:
            key, tile = description["tile"]
            if _number(tile) >= self._sweeps[key].first:
                self._sweeps[key].tiles[tile] = sums
                self._unfolded += sum(values.nbytes for values in sums.values())

    def _record(self) -> tuple[dict[str, Any], Sums] | None:
        """Return the next record; None at the end, or if it is truncated or damaged."""
        lengths = self._file.read(LENGTHS.size)
        if len(lengths) < LENGTHS.size:
            return None
        text, body_size = LENGTHS.unpack(lengths)
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        if not text <= body_size <= left - DIGEST:
            return None
        body = self._file.read(body_size)
        if _digest(lengths + body) != self._file.read(DIGEST):
            return None
        description = json.loads(body[:text])
        sums, offset = {}, text
        for name, dtype, shape in description["arrays"]:
            if dtype != DTYPE:
                raise ValueError(dtype)
            stop = offset + np.dtype(DTYPE).itemsize * math.prod(map(_number, shape))
            sums[name] = np.frombuffer(body[offset:stop], DTYPE).reshape(shape).astype(float)
            offset = stop
        if offset != body_size:
            raise ValueError(f"{body_size - offset} bytes more")
        return description, sums

    def _append(self, description: dict[str, Any], sums: Sums) -> int:
        record = _record_of(description, sums)
        self._write(record)
        return len(record)

    def _write(self, record: bytes) -> None:
        with self._writing():
            self._file.write(record)
            self._file.flush()
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Add the name of the file and a remedy to errors of the system."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"the journal {self.path} cannot be written: {error.strerror}; it keeps the tiles that it has, and the "
                "same call goes on from there when there is room",
            ) from None

    def _rewrite(self, current: str, state: bytes, waiting: dict[int, Sums]) -> int:
        """Write the file again with current records only; return the place of the state of the current sweep."""
        with self._writing():
            return self._replace(current, state, waiting)

    def _replace(self, current: str, state: bytes, waiting: dict[int, Sums]) -> int:
        places: dict[str, int] = {}
        records = [MAGIC, _record_of({"header": self._header}, {})]
        for key, sweep in self._sweeps.items():
            records.append(_record_of({"sweep": key, "plan": sweep.plan}, {}))
            if key == current or sweep.first:
                places[key] = sum(map(len, records))
                records.append(state if key == current else self._bytes_of(sweep))
            for tile, sums in (waiting if key == current else sweep.tiles).items():
                records.append(_record_of({"tile": [key, tile]}, sums))
        if not REPLACES_OPEN_FILES:
            self._file.close()
        write_whole(self.path, b"".join(records))
        file = open(self.path, "r+b")  # noqa: SIM115
        self._lock(file)
        file.seek(0, os.SEEK_END)
        self._file.close()
        self._file = file
        for key, place in places.items():
            self._sweeps[key].place = place
        self._outdated = 0
        return places[current]

    def _bytes_of(self, sweep: Sweep) -> bytes:
        """Return the record of the state of a sweep."""
        self._file.seek(sweep.place)
        return self._file.read(sweep.size)


def _record_of(description: dict[str, Any], sums: Sums) -> bytes:
    arrays = [(name, np.ascontiguousarray(values, dtype=DTYPE)) for name, values in sums.items()]
    text = json.dumps(description | {"arrays": [[name, DTYPE, values.shape] for name, values in arrays]}).encode()
    body = b"".join((text, *(values.tobytes() for _, values in arrays)))
    start = LENGTHS.pack(len(text), len(body))
    return start + body + _digest(start + body)


def _number(value: Any) -> int:
    """Check a count or a place in a record."""
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST, person=b"kcalib journal").digest()
