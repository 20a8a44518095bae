"""Mutated files for every reader: each ends in values, or in an error of three types that has one line.

    python tests/support/fuzz_readers.py FOLDER [--inputs N] [--begin NUMBER] [--only KIND] [--guided]

An input is one of a kind (`KINDS`): a file, changed here and there by bytes and tokens that mean something to the
format, within containers whose checksums are computed again. It follows from its number alone. Kinds with a suffix are
files from which predictions, labels and states are read to the end.

With --guided, Atheris (`pip install atheris`) counts which branches of kcalib an input takes: inputs that take new ones
are kept in FOLDER and changed further, one kind after the other.

Inputs are read in child processes; one that dies, hangs or needs too much memory is a finding, and so is any other
exception. Inputs with findings are kept in FOLDER. A test calls `campaign` with few.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import gzip
import io
import json
import mmap
import os
import resource
import signal
import struct
import tempfile
import traceback
import types
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from kcalib._command.files import open_file
from kcalib.distributions import Normal
from kcalib.parallel import journal as journals
from kcalib.streaming import CalibrationState, ComparisonState, ForecastState, GroupedState, load, source
from kcalib.streaming._files import format as state_file
from kcalib.streaming.loading import state_of

N = 40  # rows of a file
BATCH, REPORT = 50_000, 200  # inputs of a child, and of a line that it writes
SECONDS = 60  # that so many inputs may take, on a busy machine, too
MEMORY = 6 * 2**30  # address space of a child
MOST = 2**16  # bytes of an input that Atheris changes
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


def structured() -> np.ndarray:
    array = np.zeros(N, [("probs", "f8", 3), ("labels", "i8"), ("name", "S5")])
    array["probs"], array["labels"] = P, Y
    return array


def arrays() -> list[bytes]:
    return [npy(P), npy(structured()), npy(np.asfortranarray(P)), npy(P[:, 0].astype(">f4"))]


def archives() -> list[bytes]:
    p, y, mean, std = P, Y, MEAN, STD
    return [
        npz(zipfile.ZIP_STORED, probs=p, labels=y),
        npz(zipfile.ZIP_DEFLATED, logits=np.log(p).astype("f4"), y=NAMES[y], classes=NAMES),
        npz(zipfile.ZIP_STORED, y=mean + std, mean=mean, std=std),
        npz(zipfile.ZIP_DEFLATED, y=y, rate=std),
    ]


def tables() -> list[bytes]:
    p, y, mean, std = P, Y, MEAN, STD
    return [
        csv("id,p_0,p_1,p_2,y", np.arange(N), *p.T, y),
        csv("p_cat,p_dog,p_eel,label", *p.T, NAMES[y]),
        csv("y,mean,std", mean + std, mean, std),
        csv("p,y", p[:, 0], y > 0),
    ]


def states() -> list[bytes]:
    options = {"n_columns": 16, "n_bins": 3, "threads": 1}
    p, y, mean, std = P, Y, MEAN, STD
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

ARRAY_TOKENS = (
    b"(40, 3) (-1,) (9223372036854775808,) () '<f8' '|O' '|S0' '<U3' '<c16' '<M8[s]' True False 'fortran_order' "
    b"'shape' 'descr' probs.npy [('a','<f8')] labels '>i2' '|b1' '|V0' L ( { '<f8',(3,) \\"
).split() + [b"\x93NUMPY\x03\x00", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"]
TEXT_TOKENS = b', ,, " "" nan -inf 1e999 0.1_5 _ # 0x1 + p_0 p_00 mean rate samples_0 True cat 1 0 -1 ;'.split() + [
    b"\n", b"\r\n", b"\r", b"\xff", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b" ", b"9" * 40, b"\t", b"\xd9\xa0",
]  # fmt: skip
PARQUET_TOKENS = [b"PAR1", b"ARROW:schema", b"\x15\x00", b"\x18\x00", b"\xff\xff\xff\x7f"]
JSON_TOKENS = (
    b'null NaN 1e999 -1 9223372036854775808 " {} [] <f8 <i8 |O seed n_columns kind shape offset true calibration '
    b"forecast groups [ \\ud800 \xff class [2,3]"
).split() + [b"9" * 5000]
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
    return open_file(str(path), {}).prepare(1).n


def in_pieces(path: Path) -> object:
    return [np.asarray(y).tolist() for y, _ in source(str(path)).chunks(7)]


def a_state(path: Path) -> object:
    state = load(path)
    written_again(state)
    if isinstance(state, (CalibrationState, ForecastState)) and state.n_samples <= 2 * N:
        state.result()
    return None


def a_state_of_bytes(content: bytes) -> object:
    state_of(state_file.unpack(content, "it"), "it").to_bytes()
    return None


def written_again(state: Any) -> None:
    data = state.to_bytes()
    if type(state).from_bytes(data).to_bytes() != data:
        raise AssertionError("a state that was read is not the one that is written")


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
KINDS: dict[str, Kind] = {
    ".npz": Kind(archives, ARRAY_TOKENS, FILE, within_archive),
    ".npy": Kind(arrays, ARRAY_TOKENS, FILE),
    ".csv": Kind(tables, TEXT_TOKENS, FILE, front=0),
    ".tsv.gz": Kind(
        lambda: [gzip.compress(csv("p_0,p_1,p_2,y", *P.T, Y, separator="\t"), mtime=0)], TEXT_TOKENS, FILE, within_gzip
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
    "state": Kind(states, JSON_TOKENS, {"state": a_state_of_bytes}, within_state, in_memory=True),
    "journal": Kind(begun_journals, JOURNAL_TOKENS, {"journal": a_journal}, within_journal),
}


@functools.cache
def seeds_of(kind: str) -> list[bytes]:
    return KINDS[kind].seeds()


def mutation(kind: Kind, content: bytes, rng: Random, change: Change) -> bytes:
    """The content changed as it is, or within its container if it has one."""
    return kind.within(content, change, rng) if kind.within and rng.random() < 0.7 else change(content)


def mutated(number: int, kinds: tuple[str, ...]) -> tuple[str, bytes]:
    """The kind and the content of an input."""
    name, rng = kinds[number % len(kinds)], Random(number)
    kind = KINDS[name]
    return name, mutation(
        kind, rng.choice(seeds_of(name)), rng, lambda data: changed(data, kind.tokens, kind.front, rng)
    )


def outcome_of(read: Callable[[Any], object], given: object) -> str:
    """ "fine", the name of an error, or "FINDING: ..."."""
    try:
        read(given)
    except ALLOWED as error:
        message, name = str(error), type(error).__name__
        if isinstance(error, UnicodeError) or "\n" in message or not message:
            return f"FINDING: {name} with the message {message!r:.200}"
        return name
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        return f"FINDING: {type(error).__name__}: {text} ({Path(where.filename).name}:{where.lineno})"
    return "fine"


# -- children


def kept(folder: Path, name: str, number: int) -> Path:
    return folder / f"finding-{number}{'' if name.startswith('.') else '.'}{name}"


def child(
    numbers: range, kinds: tuple[str, ...], folder: Path, place: Path, shared: mmap.mmap, pipe: Any, guided: bool
) -> None:
    """Read inputs one after the other, and write their outcomes in lines."""
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    findings: dict[int, str] = {}

    def take(number: int, name: str, given: bytes) -> None:
        signal.alarm(SECONDS)
        shared[:16] = struct.pack("<2Q", number, len(given))
        shared[16 : 16 + len(given)] = given
        path = place / f"m{name if name.startswith('.') else ''}"
        if not KINDS[name].in_memory:
            path.write_bytes(given)
        for reader, read in KINDS[name].readers.items():
            outcome = outcome_of(read, given if KINDS[name].in_memory else path)
            if outcome.startswith("FINDING"):
                kept(folder, name, number).write_bytes(given)
                findings[number], outcome = f"{name} {reader}: {outcome}", "FINDING"
            counts[f"{name} {reader}: {outcome}"] += 1
        if (number + 1 - numbers.start) % REPORT == 0 or number == numbers.stop - 1:
            print(json.dumps([counts, findings]), file=pipe, flush=True)
            counts.clear()
            findings.clear()
        if number == numbers.stop - 1:
            os._exit(0)  # Atheris would go on

    if guided:
        guide(iter(numbers), kinds[0], folder, place, take)
    for number in numbers:
        take(number, *mutated(number, kinds))


def guide(numbers: Any, name: str, folder: Path, place: Path, take: Callable[[int, str, bytes], None]) -> None:
    """Let Atheris choose what is changed. It never returns."""
    import atheris

    kind, corpus = KINDS[name], folder / f"corpus-{name.strip('.')}"
    corpus.mkdir(exist_ok=True)
    for place_of_it, seed in enumerate(seeds_of(name)):
        path = corpus / f"seed-{place_of_it}{name if name.startswith('.') else ''}"
        path.write_bytes(seed)
        for read in kind.readers.values():
            outcome_of(read, seed if kind.in_memory else path)  # imports what it needs
    for function in [one for one in gc.get_objects() if isinstance(one, types.FunctionType)]:
        if str(function.__module__).startswith("kcalib"):
            atheris.instrument_func(function)

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = Random(seed)

        def change(data: bytes) -> bytes:
            if data and rng.random() < 0.3:
                return atheris.Mutate(data, most)
            return changed(data, kind.tokens, kind.front, rng)

        with contextlib.suppress(Exception):  # the container may be broken by now
            return mutation(kind, content, rng, change)[:most]
        return change(content)[:most]

    # Signals end the child, as they do otherwise.
    flags = [f"-handle_{signal}=0" for signal in ("segv", "bus", "abrt", "ill", "fpe")]
    flags += ["-timeout=0", "-rss_limit_mb=0", "-malloc_limit_mb=0", f"-max_len={MOST}", f"-artifact_prefix={place}/"]
    atheris.Setup(["fuzz", *flags, str(corpus)], lambda data: take(next(numbers), name, data), custom_mutator=mutate)
    atheris.Fuzz()


def batch(
    numbers: range, kinds: tuple[str, ...], folder: Path, guided: bool
) -> tuple[Counter[str], dict[int, str], int]:
    """Counts and findings of some inputs in a child, and the number after the one at which it died, or the last."""
    shared = mmap.mmap(-1, 16 + 2**24)
    reading, writing = os.pipe()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else folder
    counts: Counter[str] = Counter()
    findings: dict[int, str] = {}
    with tempfile.TemporaryDirectory(dir=memory) as place:
        process = os.fork()
        if process == 0:
            os.close(reading)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends it
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writing, "w") as pipe:
                child(numbers, kinds, folder, Path(place), shared, pipe, guided)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            for some, found in map(json.loads, pipe):
                counts.update(some)
                findings |= {int(number): what for number, what in found.items()}
        _, status = os.waitpid(process, 0)
    end = numbers.stop
    if status:
        number, size = struct.unpack("<2Q", shared[:16])
        died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        what = f"hangs for {SECONDS} s" if died == signal.SIGALRM else f"dies of signal {died}"
        kind = kinds[0 if guided else number % len(kinds)]
        counts[f"{kind}: FINDING"] += 1
        findings[number], end = f"{kind}: FINDING: {what}", number + 1
        kept(folder, kind, number).write_bytes(shared[16 : 16 + size])
    return counts, findings, end


def campaign(
    folder: Path, inputs: int, kinds: tuple[str, ...] = tuple(KINDS), begin: int = 0, guided: bool = False
) -> tuple[Counter[str], dict[int, str]]:
    """Counts of outcomes and findings of the inputs from a number on."""
    counts: Counter[str] = Counter()
    findings: dict[int, str] = {}
    for kind in kinds:
        seeds_of(kind)
    shares = [(kind,) for kind in kinds] if guided else [kinds]
    number = begin
    for share, some_kinds in enumerate(shares, 1):
        end = begin + inputs * share // len(shares)
        while number < end:
            some, found, number = batch(range(number, min(number + BATCH, end)), some_kinds, folder, guided)
            counts += some
            findings |= found
    return counts, findings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=int, default=10**6)
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--guided", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    counts, findings = campaign(given.folder, given.inputs, tuple(given.only or KINDS), given.begin, given.guided)
    for name, count in sorted(counts.items()):
        print(f"{count:9d}  {name}")
    for number, what in findings.items():
        print(f"input {number}: {what}")


if __name__ == "__main__":
    main()
