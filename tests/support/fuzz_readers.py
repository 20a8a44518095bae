"""Mutated files for every reader: each ends in values, or in an error of three types that has one line.

    python tests/support/fuzz_readers.py FOLDER [--inputs N] [--seconds S] [--cheap] [--only KIND]

An input is one of a kind (`KINDS`): a file to begin with, or an input that has failed at a new place before, changed
here and there by bytes and tokens that mean something to the format, within containers whose checksums are made again.
Kinds with a suffix are files, from which predictions, labels and states are read to the end; the `CHEAP` ones are what
lies beneath (headers, members, cells, records), mostly in memory, some 5000 inputs a second.

Inputs are read in child processes; one that dies, hangs or needs too much memory is a finding, and so is any other
exception. The input in hand lies in memory that the parent shares, so that it is known then. Findings are kept in
FOLDER, beside the counts, and a later call goes on with the next number. A test calls `campaign` with few.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import kcalib
from kcalib._command.files import npz as arrays_of_files
from kcalib._command.files import read_predictions
from kcalib.distributions import Normal
from kcalib.parallel import journal as journals
from kcalib.streaming import CalibrationState, ComparisonState, ForecastState, GroupedState, load, source
from kcalib.streaming import _file as state_file
from kcalib.streaming.opening import state_of
from kcalib.streaming.sources import text
from kcalib.streaming.sources.lines import Lines

N, FEW = 40, 5  # rows of a file, and of a cheap input
BATCH, REPORT = 50_000, 200  # inputs of a child, and of a line that it tells
SECONDS = 60  # that as many inputs as are told at once may take, on a busy machine, too
MEMORY = 6 * 2**30  # address space of a child
LARGEST = 2**20  # bytes of an input
CORPUS = 300  # inputs of a kind, at most, that are changed further
ALLOWED = (ValueError, TypeError, OSError)  # with one line

RNG = np.random.default_rng(0)
P, Y = RNG.dirichlet(np.ones(3), size=N), RNG.integers(3, size=N)
MEAN, STD = RNG.normal(size=N), RNG.uniform(0.5, 2, size=N)
NAMES = np.array(["cat", "dog", "eel"])


# -- files to begin with


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(compression: int, **arrays: np.ndarray) -> bytes:
    return zipped({f"{name}.npy": npy(np.asarray(array)) for name, array in arrays.items()}, compression)


def zipped(members: dict[str, bytes], compression: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=compression)
    return file.getvalue()


def csv(header: str, *columns: np.ndarray, separator: str = ",") -> bytes:
    rows = zip(*(column.tolist() for column in columns), strict=True)
    lines = [header.replace(",", separator), *(separator.join(map(str, row)) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def parquet(**columns: object) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=16)
    return file.getvalue()


def structured(n: int = N) -> np.ndarray:
    array = np.zeros(n, [("probs", "f8", 3), ("labels", "i8"), ("name", "S5")])
    array["probs"], array["labels"] = P[:n], Y[:n]
    return array


def arrays(n: int = N) -> list[bytes]:
    return [npy(P[:n]), npy(structured(n)), npy(np.asfortranarray(P[:n])), npy(P[:n, 0].astype(">f4"))]


def archives(n: int = N) -> list[bytes]:
    p, y, mean, std = P[:n], Y[:n], MEAN[:n], STD[:n]
    return [
        npz(zipfile.ZIP_STORED, probs=p, labels=y),
        npz(zipfile.ZIP_DEFLATED, logits=np.log(p).astype("f4"), y=NAMES[y], classes=NAMES),
        npz(zipfile.ZIP_STORED, y=mean + std, mean=mean, std=std),
        npz(zipfile.ZIP_DEFLATED, y=y, rate=std),
    ]


def tables(n: int = N) -> list[bytes]:
    p, y, mean, std = P[:n], Y[:n], MEAN[:n], STD[:n]
    return [
        csv("id,p_0,p_1,p_2,y", np.arange(n), *p.T, y),
        csv("p_cat,p_dog,p_eel,label", *p.T, NAMES[y]),
        csv("y,mean,std", mean + std, mean, std),
        csv("p,y", p[:, 0], y > 0),
    ]


def states(n: int = N) -> list[bytes]:
    options = {"n_columns": 16, "n_bins": 3, "threads": 1}
    p, y, mean, std = P[:n], Y[:n], MEAN[:n], STD[:n]
    state = CalibrationState(3, n_resamples=1, **options).update(y, p)
    forecasts = ForecastState(**options).update(mean + std, Normal(mean, std))
    several = ComparisonState(3, models=("a", "b"), n_resamples=0, **options).update(y, {"a": p, "b": p[::-1]})
    groups = GroupedState(3, n_resamples=0, **options).update(y, p, group=NAMES[y])
    return [one.to_bytes() for one in (state, forecasts, several, groups)]


HEADER = {"data": "5f0c", "options": "a1", "version": "0"}
PLAN = {"tiles": 3, "rows": 100}


def begun_journals() -> list[bytes]:
    """One of a sweep in hand, and one of which two are finished."""
    found = []
    for sweeps in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal"
            journal = journals.Journal(path)
            journal.check(HEADER)
            for sweep in map(str, range(sweeps)):
                journal.begin(sweep, PLAN)
                for tile in range(3):
                    journal.add(sweep, tile, {"sums": P[tile], "count": np.array(float(tile))})
                if sweeps > 1:
                    journal.save(sweep, 3, {"sums": P[0]}, {})
            journal.close()
            found.append(path.read_bytes())
    return found


# -- changes

ARRAY_TOKENS = [
    b"(40, 3)",
    b"(-1,)",
    b"(9223372036854775808,)",
    b"()",
    b"'<f8'",
    b"'|O'",
    b"'|S0'",
    b"'<U3'",
    b"'<c16'",
    b"'<M8[s]'",
    b"True",
    b"False",
    b"'fortran_order'",
    b"'shape'",
    b"'descr'",
    b"probs.npy",
    b"\x93NUMPY\x03\x00",
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"[('a', '<f8')]",
    b"labels",
    b"'>i2'",
    b"'|b1'",
    b"'|V0'",
    b"L",
    b"(",
    b"{",
    b"'<f8', (3,)",
    b"\\",
]
TEXT_TOKENS = [
    b",",
    b",,",
    b"\n",
    b"\r\n",
    b"\r",
    b'"',
    b'""',
    b"nan",
    b"-inf",
    b"1e999",
    b"0.1_5",
    b"\xff",
    b"\x00",
    b"_",
    b"#",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"0x1",
    b"+",
    b" ",
    b"p_0",
    b"p_00",
    b"mean",
    b"rate",
    b"samples_0",
    b"True",
    b"cat",
    b"1",
    b"0",
    b"-1",
    b"9" * 40,
    b";",
    b"\t",
    b"\xd9\xa0",
]
PARQUET_TOKENS = [b"PAR1", b"ARROW:schema", b"\x15\x00", b"\x18\x00", b"\xff\xff\xff\x7f"]
JSON_TOKENS = [
    b"null",
    b"NaN",
    b"1e999",
    b"-1",
    b"9223372036854775808",
    b'"',
    b"{}",
    b"[]",
    b"<f8",
    b"<i8",
    b"|O",
    b"seed",
    b"n_columns",
    b"kind",
    b"shape",
    b"offset",
    b"true",
    b"calibration",
    b"forecast",
    b"groups",
    b"[",
    b"9" * 5000,
    b"\\ud800",
    b"\xff",
    b"class",
    b"[2,3]",
]
JOURNAL_TOKENS = [*JSON_TOKENS, b"tile", b"sweep", b"state", b"header", b"first", b"plan", b"arrays", b"[[0, 0]]"]
NUMBERS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)

Change = Callable[[bytes], bytes]


def changed(content: bytes, tokens: list[bytes], front: float, rng: Random) -> bytes:
    """With some changes, of which the share `front` is among the first 400 bytes, where headers are."""
    data, random = bytearray(content), rng.random
    for _ in range((1, 1, 1, 2, 3, 8)[int(6 * random())]):
        size, length = len(data), (1, 2, 4, 8, 32, 200)[int(6 * random())]
        at = int(random() * ((min(size, 400) if random() < front else size) + 1))
        match int(8 * random()):
            case 0 if at < size:
                data[at] ^= 1 << int(8 * random())
            case 1:
                data[at : at + length] = b""
            case 2:
                data[at:at] = data[at : at + length]
            case 3:
                data[at : at + length] = rng.randbytes(length)
            case 4:
                data = data[:at] if random() < 0.3 else data
            case 5:
                size = (1, 2, 4, 8)[int(4 * random())]
                number = NUMBERS[int(len(NUMBERS) * random())]
                data[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
            case 6:
                other = int(random() * (size + 1))
                data[at : at + length] = data[other : other + length]
            case _:
                token = tokens[int(len(tokens) * random())]
                data[at : at + (len(token) if random() < 0.6 else 0)] = token
    return bytes(data)


def within_archive(content: bytes, change: Change, rng: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    members[name] = change(members[name])
    return zipped(members, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))


def within_gzip(content: bytes, change: Change, rng: Random) -> bytes:
    return gzip.compress(change(gzip.decompress(content)), 1, mtime=0)


def within_state(content: bytes, change: Change, rng: Random) -> bytes:
    """With the checksum and, mostly, the length that its content has."""
    content, prologue = change(content[: -state_file.DIGEST]), state_file.PROLOGUE
    if len(content) >= prologue.size:
        magic, version, header, _ = prologue.unpack(content[: prologue.size])
        with contextlib.suppress(struct.error):
            content = prologue.pack(magic, version, header, len(content) + state_file.DIGEST) + content[prologue.size :]
    return content + state_file._digest(content)


def within_journal(content: bytes, change: Change, rng: Random) -> bytes:
    """One of the records is changed, in its text or as a whole, or left out, or comes twice."""
    records, at = [], len(journals.MAGIC)
    while at + journals.LENGTHS.size <= len(content):
        size, whole = journals.LENGTHS.unpack_from(content, at)
        at += journals.LENGTHS.size
        records.append((content[at : at + size], content[at + size : at + whole]))
        at += whole + journals.DIGEST
    if records:
        place = int(len(records) * rng.random())
        words, numbers = records[place]
        match int(8 * rng.random()):
            case 0:
                del records[place]
            case 1:
                records.insert(int(len(records) * rng.random()), (words, numbers))
            case 2:
                records[place] = words, change(numbers)
            case _:
                records[place] = change(words), numbers
    parts = [journals.MAGIC]
    for words, numbers in records:
        start = journals.LENGTHS.pack(len(words), len(words) + len(numbers)) + words + numbers
        parts += start, journals._digest(start)
    return b"".join(parts)


# -- readers


def at_once(path: Path) -> object:
    found = read_predictions(path)
    data = found.prepared(1)
    return data.n


def in_pieces(path: Path) -> object:
    return [np.asarray(y).tolist() for y, _ in source(str(path)).chunks(7)]


def by_cells(path: Path) -> object:
    """Without pyarrow."""
    reader, text.arrow_reader = text.arrow_reader, lambda: None
    try:
        return in_pieces(path)
    finally:
        text.arrow_reader = reader


def a_state(path: Path) -> object:
    state = load(path)
    written_again(state)
    if isinstance(state, (CalibrationState, ForecastState)) and state.n_samples <= 2 * N:
        state.result()
    return None


def a_state_of_bytes(content: bytes) -> object:
    state_of(state_file.unpacked(content, "it"), "it").to_bytes()
    return None


def written_again(state: Any) -> None:
    data = state.to_bytes()
    if type(state).from_bytes(data).to_bytes() != data:
        raise AssertionError("a state that was read is not the one that is written")


def an_array(content: bytes) -> object:
    found = arrays_of_files._read(io.BytesIO(content), "the array", len(content))
    expected = np.load(io.BytesIO(content), allow_pickle=False)
    if found.dtype != expected.dtype or found.shape != expected.shape or found.tobytes() != expected.tobytes():
        raise AssertionError(f"NumPy reads {expected!r:.80}, kcalib {found!r:.80}")
    return None


def an_archive(content: bytes) -> object:
    file: Any = io.BytesIO(content)  # which a zip file may be
    for name in arrays_of_files.npz_source(file).names:
        arrays_of_files.npz_array(file, name)
    return None


def cells(content: bytes) -> object:
    """All rows at once, and by twos."""

    def rows() -> text.TextRows:
        table = text.Table(Lines(io.BytesIO(content)), ",")
        *names, labels = table.header
        return table.columns(names or [labels], labels if names else None)

    values, labels = rows().take(None)
    few, taken = rows(), []
    while len((piece := few.take(2))[0]):
        taken.append(piece[0].astype(values.dtype))
    if np.concatenate([values[:0], *taken]).tobytes() != values.tobytes():
        raise AssertionError(f"rows by twos are others than all at once: {values!r:.80}")
    assert labels is None or len(labels) == len(values)
    return None


def contents_of(journal: journals.Journal) -> dict[str, object]:
    def plain(sums: dict[str, np.ndarray]) -> list[object]:
        return [(name, values.shape, values.tobytes()) for name, values in sums.items()]

    found: dict[str, object] = {}
    for key, one in journal._sweeps.items():
        state = plain(journal.state(key)) if one.size else []
        found[key] = repr(one.plan), one.first, state, {tile: plain(sums) for tile, sums in one.tiles.items()}
    return found


def a_journal(path: Path) -> object:
    """What was read is what is read again, also once more was added."""
    contents = []
    for time_of_it in range(2):
        journal = journals.Journal(path)
        try:
            with contextlib.suppress(journals.JournalError):
                journal.check(HEADER)
            contents.append(contents_of(journal))
            if time_of_it == 0 and "new" not in journal._sweeps:
                journal.begin("new", PLAN)
                journal.add("new", 0, {"sums": P[0]})
                tile = ("sums", P[0].shape, P[0].tobytes())
                contents[0]["new"] = repr(PLAN), 0, [], {0: [tile]}
        finally:
            journal.close()
    if contents[0] != contents[1]:
        raise AssertionError("a journal that was read is not the one that is written")
    return None


# -- kinds


@dataclass(frozen=True)
class Kind:
    """What an input is made of, and who reads it."""

    seeds: Callable[[], list[bytes]]
    tokens: list[bytes]
    readers: dict[str, Callable[[Any], object]]
    within: Callable[[bytes, Change, Random], bytes] | None = None  # its container, whose checksums are right
    front: float = 0.5
    in_memory: bool = False  # what the readers take: bytes, or the path of a file


FILE = {"at once": at_once, "in pieces": in_pieces}
TEXT = {**FILE, "by cells": by_cells}
ALIKE = ("in pieces", "by cells")
KINDS: dict[str, Kind] = {
    ".npz": Kind(archives, ARRAY_TOKENS, FILE, within_archive),
    ".npy": Kind(arrays, ARRAY_TOKENS, FILE),
    ".csv": Kind(tables, TEXT_TOKENS, TEXT, front=0),
    ".tsv.gz": Kind(
        lambda: [gzip.compress(csv("p_0,p_1,p_2,y", *P.T, Y, separator="\t"), mtime=0)], TEXT_TOKENS, TEXT, within_gzip
    ),
    ".parquet": Kind(
        lambda: [
            parquet(p_0=P[:, 0], p_1=P[:, 1], p_2=P[:, 2], y=Y),
            parquet(probs=P.tolist(), y=NAMES[Y].tolist()),
            parquet(y=MEAN + STD, mean=MEAN, std=STD),
        ],
        PARQUET_TOKENS,
        FILE,
    ),
    ".kcalib": Kind(states, JSON_TOKENS, {"state": a_state}, within_state),
    "array": Kind(lambda: arrays(FEW), ARRAY_TOKENS, {"array": an_array}, in_memory=True),
    "archive": Kind(lambda: archives(FEW), ARRAY_TOKENS, {"members": an_archive}, within_archive, in_memory=True),
    "cells": Kind(lambda: tables(FEW), TEXT_TOKENS, {"cells": cells}, front=0, in_memory=True),
    "state": Kind(lambda: states(FEW), JSON_TOKENS, {"state": a_state_of_bytes}, within_state, in_memory=True),
    "journal": Kind(begun_journals, JOURNAL_TOKENS, {"journal": a_journal}, within_journal),
}
CHEAP = (*("cells",) * 4, *("array",) * 3, *("journal",) * 2, "archive", "state")  # more of what takes less time

_MADE: dict[str, list[bytes]] = {}


def _seeds(kind: str) -> list[bytes]:
    if kind not in _MADE:
        _MADE[kind] = KINDS[kind].seeds()
    return _MADE[kind]


def mutated(content: bytes, kind: Kind, rng: Random) -> bytes:
    """Changed as it is, or within its container, if it has one that can be opened."""

    def change(data: bytes) -> bytes:
        return changed(data, kind.tokens, kind.front, rng)

    if kind.within is not None and rng.random() < 0.7:
        with contextlib.suppress(Exception):  # an input that was changed before
            return kind.within(content, change, rng)
    return change(content)


Place = tuple[object, ...]  # where it ended: the lines of the code that an error went through


def ending(read: Callable[[Any], object], given: object) -> tuple[str, str, Place]:
    """Of a reader: "fine", the name of an error, or "FINDING: ..."; what it said; and where."""
    try:
        return "fine", repr(read(given)), ()
    except ALLOWED as error:
        message, name = str(error), type(error).__name__
        if isinstance(error, UnicodeError) or "\n" in message or not message:
            return f"FINDING: {name} with the message {message!r:.200}", message, ()
        return name, message, place_of(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = " ".join(str(error).split())
        return f"FINDING: {type(error).__name__}: {found} ({Path(where.filename).name}:{where.lineno})", found, ()


def place_of(error: BaseException | None) -> Place:
    lines: list[object] = []
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            lines += trace.tb_frame.f_code.co_name, trace.tb_lineno
            trace = trace.tb_next
        lines.append(type(error))
        error = error.__context__
    return tuple(lines)


def outcomes_of(name: str, content: bytes, folder: Path) -> tuple[dict[str, str], Place]:
    """What each reader of a kind says of an input, and where they ended."""
    kind, given = KINDS[name], content
    if not kind.in_memory:
        given = folder / f"m{name if name.startswith('.') else ''}"
        given.write_bytes(content)
    outcomes, said, place = {}, {}, ()
    for reader, read in kind.readers.items():
        outcomes[reader], said[reader], where = ending(read, given)
        place += where
    if ALIKE[1] in said and said[ALIKE[0]] != said[ALIKE[1]]:
        outcomes["by cells"] = f"FINDING: with pyarrow {said[ALIKE[0]]:.150}, without {said[ALIKE[1]]:.150}"
    return outcomes, place


# -- children

SHARED = struct.Struct("<QQ")  # number and length of the input in hand


def child(numbers: range, kinds: tuple[str, ...], folder: Path, shared: mmap.mmap, pipe: Any) -> None:
    """Inputs one after the other; what they came to is told in lines."""
    warnings.simplefilter("ignore")
    corpus: dict[str, list[bytes]] = {kind: [] for kind in kinds}
    places: set[tuple[str, Place]] = set()
    counts: Counter[str] = Counter()
    findings: dict[int, list[str]] = {}

    def tell() -> None:
        print(json.dumps([number, counts, findings]), file=pipe, flush=True)
        counts.clear()
        findings.clear()

    for number in numbers:
        if (number - numbers.start) % REPORT == 0:
            signal.alarm(SECONDS)
            tell()
        kind = kinds[number % len(kinds)]
        rng = Random(number)
        begun = corpus[kind] if corpus[kind] and rng.random() < 0.5 else _seeds(kind)
        content = mutated(begun[int(len(begun) * rng.random())], KINDS[kind], rng)[: LARGEST - SHARED.size]
        shared[: SHARED.size + len(content)] = SHARED.pack(number, len(content)) + content
        outcomes, place = outcomes_of(kind, content, folder)
        for reader, outcome in outcomes.items():
            if outcome.startswith("FINDING"):
                findings[number] = [f"{kind} {reader}: {outcome}", content.hex()]
                outcome = "FINDING"
            counts[f"{kind} {reader}: {outcome}"] += 1
        if place and (kind, place) not in places and len(corpus[kind]) < CORPUS:
            places.add((kind, place))
            corpus[kind].append(content)
    number = numbers.stop
    tell()


def batch(numbers: range, kinds: tuple[str, ...], folder: Path) -> tuple[Counter[str], dict[int, str], int]:
    """Counts and findings of some inputs in a child, and the number at which it died (or the end)."""
    shared = mmap.mmap(-1, LARGEST)
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else folder
        with os.fdopen(writing, "w") as pipe, tempfile.TemporaryDirectory(dir=memory) as place:
            child(numbers, kinds, Path(place), shared, pipe)
        os._exit(0)
    os.close(writing)
    counts: Counter[str] = Counter()
    findings: dict[int, str] = {}
    end = numbers.start
    with os.fdopen(reading) as pipe:
        for line in pipe:
            end, some, found = json.loads(line)
            counts.update(some)
            for number, (what, content) in found.items():
                findings[int(number)] = what
                keep(folder, int(number), kinds, bytes.fromhex(content))
    _, status = os.waitpid(process, 0)
    if status and end < numbers.stop:
        number, length = SHARED.unpack_from(shared)
        content = shared[SHARED.size : SHARED.size + length]
        kind = keep(folder, number, kinds, content)
        died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        what = f"hangs for {SECONDS} s" if died == signal.SIGALRM else f"dies of signal {died}"
        counts[f"{kind}: FINDING"] += 1
        findings[number] = f"{kind}: FINDING: {what}"
        end = number + 1
    return counts, findings, end


def keep(folder: Path, number: int, kinds: tuple[str, ...], content: bytes) -> str:
    kind = kinds[number % len(kinds)]
    (folder / f"finding-{number}{'' if kind.startswith('.') else '.'}{kind}").write_bytes(content)
    return kind


def campaign(
    folder: Path, inputs: int, seconds: float = float("inf"), kinds: tuple[str, ...] = tuple(KINDS), begin: int = 0
) -> tuple[Counter[str], dict[int, str], int]:
    """Counts of outcomes and findings of the inputs from a number on, and the number after the last one."""
    counts: Counter[str] = Counter()
    findings: dict[int, str] = {}
    number, start = begin, time.monotonic()
    for kind in kinds:
        _seeds(kind)
    while number < begin + inputs and time.monotonic() - start < seconds:
        some, found, number = batch(range(number, min(number + BATCH, begin + inputs)), kinds, folder)
        counts += some
        findings |= found
    return counts, findings, number


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=int, default=10**7)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cheap", dest="only", action="store_const", const=CHEAP)
    parser.add_argument("--only", choices=KINDS, action="append")
    given = parser.parse_args()
    kinds = tuple(given.only or KINDS)
    given.folder.mkdir(exist_ok=True)
    record = given.folder / f"counts-{'-'.join(sorted({*kinds}))}.json"
    known = json.loads(record.read_text()) if record.exists() else {"next": 0, "counts": {}, "findings": {}}
    start = time.monotonic()
    while known["next"] < given.inputs and time.monotonic() - start < given.seconds:
        most = min(BATCH, given.inputs - known["next"])
        counts, findings, known["next"] = campaign(given.folder, most, kinds=kinds, begin=known["next"])
        known["counts"] = dict(sorted((Counter(known["counts"]) + counts).items()))
        known["findings"] |= findings
        record.write_text(json.dumps(known, indent=1))
    print(f"kcalib {kcalib.__version__}: {known['next']} inputs, {time.monotonic() - start:.0f} s in this run")
    for name, count in known["counts"].items():
        print(f"{count:9d}  {name}")
    for number, what in known["findings"].items():
        print(f"input {number}: {what}")


if __name__ == "__main__":
    sys.exit(main())
