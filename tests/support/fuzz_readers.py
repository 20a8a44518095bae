"""Mutated files for every reader: each ends in values, or in an error of three types that has one line.

    python tests/support/fuzz_readers.py FOLDER [--inputs N] [--seconds S] [--only KIND]

Inputs are functions of their numbers: a file of a kind (`KINDS`), changed here and there by bytes and tokens that mean
something to the format, within containers whose checksums are made again. They are read in child processes; one that
dies, hangs or needs too much memory is a finding, and so is any other exception. Files of findings are kept in FOLDER,
beside the counts, and a later call goes on with the next number. `campaign` is called by a test with few inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
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
from pathlib import Path

import numpy as np

import kcalib
from kcalib._command.files import read_predictions
from kcalib.distributions import Normal
from kcalib.streaming import CalibrationState, ComparisonState, ForecastState, GroupedState, load, source
from kcalib.streaming import _file as state_file
from kcalib.streaming.sources import text

N = 40
BATCH = 200  # inputs of a child
SECONDS = 10  # that an input may take
MEMORY = 6 * 2**30  # address space of a child
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


def states() -> list[bytes]:
    options = {"n_columns": 16, "n_bins": 3, "threads": 1}
    state = CalibrationState(3, n_resamples=1, **options).update(Y, P)
    forecasts = ForecastState(**options).update(MEAN + STD, Normal(MEAN, STD))
    several = ComparisonState(3, models=("a", "b"), n_resamples=0, **options).update(Y, {"a": P, "b": P[::-1]})
    groups = GroupedState(3, n_resamples=0, **options).update(Y, P, group=NAMES[Y])
    return [one.to_bytes() for one in (state, forecasts, several, groups)]


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    ".npz": lambda: [
        npz(zipfile.ZIP_STORED, probs=P, labels=Y),
        npz(zipfile.ZIP_DEFLATED, logits=np.log(P).astype("f4"), y=NAMES[Y], classes=NAMES),
        npz(zipfile.ZIP_STORED, y=MEAN + STD, mean=MEAN, std=STD),
        npz(zipfile.ZIP_DEFLATED, y=Y, rate=STD),
    ],
    ".npy": lambda: [npy(P), npy(structured()), npy(np.asfortranarray(P)), npy(P[:, 0].astype(">f4"))],
    ".csv": lambda: [
        csv("id,p_0,p_1,p_2,y", np.arange(N), *P.T, Y),
        csv("p_cat,p_dog,p_eel,label", *P.T, NAMES[Y]),
        csv("y,mean,std", MEAN + STD, MEAN, STD),
        csv("p,y", P[:, 0], Y > 0),
    ],
    ".tsv.gz": lambda: [gzip.compress(csv("p_0,p_1,p_2,y", *P.T, Y, separator="\t"), mtime=0)],
    ".parquet": lambda: [
        parquet(p_0=P[:, 0], p_1=P[:, 1], p_2=P[:, 2], y=Y),
        parquet(probs=P.tolist(), y=NAMES[Y].tolist()),
        parquet(y=MEAN + STD, mean=MEAN, std=STD),
    ],
    ".kcalib": states,
}
KINDS = tuple(SEEDS)


# -- changes

TOKENS = {
    ".npz": [b"(40, 3)", b"(-1,)", b"(9223372036854775808,)", b"()", b"'<f8'", b"'|O'", b"'|S0'", b"'<U3'", b"'<c16'",
             b"'<M8[s]'", b"True", b"False", b"'fortran_order'", b"'shape'", b"'descr'", b"probs.npy",
             b"\x93NUMPY\x03\x00",
             b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"[('a', '<f8')]", b"labels", b"'>i2'", b"'|b1'", b"'|V0'"],
    ".csv": [b",", b",,", b"\n", b"\r\n", b"\r", b'"', b'""', b"nan", b"-inf", b"1e999", b"0.1_5", b"\xff", b"\x00",
             b"_", b"#", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"0x1", b"+", b" ", b"p_0", b"p_00", b"mean", b"rate",
             b"samples_0", b"True", b"cat", b"1", b"0", b"-1", b"9" * 40, b";", b"\t", b"\xd9\xa0"],
    ".parquet": [b"PAR1", b"ARROW:schema", b"\x15\x00", b"\x18\x00", b"\xff\xff\xff\x7f"],
    ".kcalib": [b"null", b"NaN", b"1e999", b"-1", b"9223372036854775808", b'"', b"{}", b"[]", b"<f8", b"<i8", b"|O",
                b"seed", b"n_columns", b"kind", b"shape", b"offset", b"true", b"calibration", b"forecast", b"groups"],
}  # fmt: skip
TOKENS[".npy"] = TOKENS[".npz"]
TOKENS[".tsv.gz"] = TOKENS[".csv"]
NUMBERS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def changed(content: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """With some changes."""
    data = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 8]))):
        at, length = int(rng.integers(len(data) + 1)), int(rng.choice([1, 2, 4, 8, 32, 200]))
        if kind != ".csv" and rng.uniform() < 0.5:
            at = min(at, int(rng.integers(400)))  # headers are at the front
        match int(rng.integers(8)):
            case 0 if at < len(data):
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at : at + length] = b""
            case 2:
                data[at:at] = data[at : at + length]
            case 3:
                data[at : at + length] = rng.bytes(length)
            case 4:
                data = data[:at] if rng.uniform() < 0.3 else data
            case 5:
                size = int(rng.choice([1, 2, 4, 8]))
                number = int(rng.choice(len(NUMBERS)))
                data[at : at + size] = (NUMBERS[number] % 2 ** (8 * size)).to_bytes(size, "little")
            case 6:
                other = int(rng.integers(len(data) + 1))
                data[at : at + length] = data[other : other + length]
            case _:
                token = TOKENS[kind][int(rng.integers(len(TOKENS[kind])))]
                data[at : at + (len(token) if rng.uniform() < 0.6 else 0)] = token
    return bytes(data)


def mutated(content: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """Changed as it is, or within its container, whose checksums are right then."""
    if rng.uniform() < 0.3:
        return changed(content, kind, rng)
    if kind == ".npz":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = str(rng.choice(list(members)))
        members[name] = changed(members[name], kind, rng)
        return zipped(members, int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])))
    if kind == ".tsv.gz":
        return gzip.compress(changed(gzip.decompress(content), kind, rng), mtime=0)
    if kind == ".kcalib":
        return signed(changed(content[: -state_file.DIGEST], kind, rng))
    return changed(content, kind, rng)


def signed(content: bytes) -> bytes:
    """A state with the checksum and, mostly, the length that its content has."""
    prologue = state_file.PROLOGUE
    if len(content) >= prologue.size:
        magic, version, header, _ = prologue.unpack(content[: prologue.size])
        with contextlib.suppress(struct.error):
            content = prologue.pack(magic, version, header, len(content) + state_file.DIGEST) + content[prologue.size :]
    return content + state_file._digest(content)


def input_of(number: int, kinds: tuple[str, ...]) -> tuple[str, bytes]:
    """The suffix and the content of an input."""
    kind = kinds[number % len(kinds)]
    rng = np.random.default_rng((7, KINDS.index(kind), number))
    seeds = _seeds(kind)
    return kind, mutated(seeds[int(rng.integers(len(seeds)))], kind, rng)


_MADE: dict[str, list[bytes]] = {}


def _seeds(kind: str) -> list[bytes]:
    if kind not in _MADE:
        _MADE[kind] = SEEDS[kind]()
    return _MADE[kind]


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
    data = state.to_bytes()
    if type(state).from_bytes(data).to_bytes() != data:
        raise AssertionError("a state that was read is not the one that is written")
    if isinstance(state, (CalibrationState, ForecastState)) and state.n_samples <= 2 * N:
        state.result()
    return None


READERS: dict[str, dict[str, Callable[[Path], object]]] = {
    kind: {"at once": at_once, "in pieces": in_pieces} for kind in (".npz", ".npy", ".parquet")
}
READERS |= {kind: {"at once": at_once, "in pieces": in_pieces, "by cells": by_cells} for kind in (".csv", ".tsv.gz")}
READERS[".kcalib"] = {"state": a_state}
ALIKE = ("in pieces", "by cells")


def outcomes_of(kind: str, content: bytes, folder: Path) -> dict[str, str]:
    """What each reader says of a file: "fine", the name of an error, or "FINDING: ..."."""
    path = folder / f"m{kind}"
    path.write_bytes(content)
    outcomes, said = {}, {}
    for name, read in READERS[kind].items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                said[name] = repr(read(path))
            outcomes[name] = "fine"
        except ALLOWED as error:
            message = said[name] = str(error)
            outcomes[name] = type(error).__name__
            if isinstance(error, UnicodeError) or "\n" in message or not message:
                outcomes[name] = f"FINDING: {type(error).__name__} with the message {message!r:.200}"
            del error
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcomes[name] = f"FINDING: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    if all(name in said for name in ALIKE) and len({said[name] for name in ALIKE}) > 1:
        outcomes["by cells"] = f"FINDING: with pyarrow {said[ALIKE[0]]:.150}, without {said[ALIKE[1]]:.150}"
    return outcomes


# -- children


def batch(numbers: range, kinds: tuple[str, ...], folder: Path) -> tuple[Counter[str], dict[int, str], int]:
    """Counts and findings of some inputs in a child, and the number at which it died (or the end)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(writing, "w") as pipe, tempfile.TemporaryDirectory(dir=folder) as place:
            for number in numbers:
                signal.alarm(SECONDS)
                kind, content = input_of(number, kinds)
                print(json.dumps([number, kind, outcomes_of(kind, content, Path(place))]), file=pipe, flush=True)
            signal.alarm(0)
        os._exit(0)
    os.close(writing)
    counts: Counter[str] = Counter()
    findings: dict[int, str] = {}
    last = numbers.start - 1
    with os.fdopen(reading) as pipe:
        for line in pipe:
            last, kind, outcomes = json.loads(line)
            for name, outcome in outcomes.items():
                counts[f"{kind} {name}: {outcome.partition(':')[0]}"] += 1
                if outcome.startswith("FINDING"):
                    findings[last] = f"{kind} {name}: {outcome}"
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) or (status and last + 1 < numbers.stop):
        last += 1
        kind = kinds[last % len(kinds)]
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        what = f"hangs for {SECONDS} s" if number == signal.SIGALRM else f"dies of signal {number}"
        counts[f"{kind}: FINDING"] += 1
        findings[last] = f"{kind}: FINDING: {what}"
    return counts, findings, last + 1


def campaign(
    folder: Path, inputs: int, seconds: float = float("inf"), kinds: tuple[str, ...] = KINDS, begin: int = 0
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
        for one in found:
            kind, content = input_of(one, kinds)
            (folder / f"finding-{one}{kind}").write_bytes(content)
    return counts, findings, number


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=int, default=10**7)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", choices=KINDS, action="append")
    given = parser.parse_args()
    kinds = tuple(given.only or KINDS)
    given.folder.mkdir(exist_ok=True)
    record = given.folder / f"counts{''.join(kinds)}.json"
    known = json.loads(record.read_text()) if record.exists() else {"next": 0, "counts": {}, "findings": {}}
    start = time.monotonic()
    while known["next"] < given.inputs and time.monotonic() - start < given.seconds:
        counts, findings, known["next"] = campaign(given.folder, 20 * BATCH, 60, kinds, known["next"])
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
