"""Files of states: the format by itself, whatever it holds."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import stat
import struct

import numpy as np
import pytest

from kcalib import kernels, lenses, target_kernels
from kcalib._backend import files
from kcalib.kernels import (
    MMD,
    Cosine,
    Exponential,
    GammaExponential,
    GammaRationalQuadratic,
    Gaussian,
    Linear,
    Matern,
    MixtureWasserstein,
    RationalQuadratic,
)
from kcalib.lenses import Buckets, Canonical, ClassWise, Confidence, Groups, TopK, TopLabel
from kcalib.streaming._files import format as state_file
from kcalib.streaming._files.format import CLASSES, Content, UnknownError, describe, pack_content, restore, unpack

CONTENT = Content(
    "something",
    {"n_bins": 15, "kernel": Exponential(bandwidth=0.1 + 0.2), "lens": None, "classes": ("a", "b")},
    {
        "sums": np.arange(12.0).reshape(3, 4) / 7,
        "counts": np.array([1, -(2**62)], dtype=np.int64),
        "none": np.empty((0, 3)),
        "flags": np.array([True, False]),
        "one": np.array(2**64 - 1, dtype=np.uint64),
    },
)
KERNELS = [
    Exponential(),
    Exponential(bandwidth=1 / 3, metric="cityblock"),
    Gaussian(metric="total_variation"),
    GammaExponential(bandwidth=1e-7, gamma=0.7),
    Matern(bandwidth=2.0, nu=2.5),
    RationalQuadratic(alpha=0.3),
    GammaRationalQuadratic(alpha=3, gamma=1.9, bandwidth=0.2),
    Cosine(bandwidth=np.float64(0.1)),
    Linear(),
    Linear() + Gaussian(bandwidth=0.4),
    0.1 * (Exponential() * Linear() + Matern(bandwidth=0.3)) * Gaussian(),
    Exponential(metric=MMD(bandwidth=0.7)),
    Gaussian(metric=MixtureWasserstein(order=1.5)),
]
LENSES = [Canonical(), TopLabel(), Confidence(), ClassWise(3), TopK(2), Groups([[0, 2], [1, 3]]), Buckets(8)]
TARGETS = [
    None,
    "delta",
    np.array([[2.0, 0.1], [0.1, 1 / 3]]),
    target_kernels.MahalanobisGaussian([[1.0, 0.2], [0.2, 1.0]]),
    target_kernels.Draws(Gaussian(), n_draws=5, seed=3),
]


def equal(first, second):
    if isinstance(first, np.ndarray):
        return isinstance(second, np.ndarray) and first.dtype == second.dtype and np.array_equal(first, second)
    return first == second and type(first) is type(second)


def again(value):
    """Through JSON, as a file has it."""
    return restore(json.loads(json.dumps(describe(value, "it"), allow_nan=False)))


@pytest.mark.parametrize("value", [*KERNELS, *LENSES, *TARGETS, True, 2, 2.0, 1e-300, "x", (1, (2.5, "y"))], ids=str)
def test_options_come_back(value):
    assert equal(again(value), value)


def test_every_public_class_is_there():
    """Of all that users name those that the list above has objects of, so that a new one wants to be added there."""
    seen = set()

    def look(value):
        if type(value) in CLASSES.values():
            seen.add(type(value))
            for name in vars(value):
                look(getattr(value, name))

    for value in [*KERNELS, *LENSES, *TARGETS]:
        look(value)
    bases = {kernels.Kernel, kernels.RadialKernel, lenses.Lens}
    public = {getattr(module, name) for module in (kernels, lenses, target_kernels) for name in module.__all__}
    assert seen == public - bases


def test_numbers_of_numpy_and_lists_are_plain():
    assert equal(again([np.int64(3), np.float32(0.5), np.bool_(True)]), (3, 0.5, True))


def test_classes_of_users_cannot_be_described():
    class Mine(Exponential):
        pass

    with pytest.raises(TypeError, match=r"`kernel` is .*Mine\(.*of the class .*Mine, which is none of kcalib's"):
        pack_content(Content("x", {"kernel": Linear() + Mine()}, {}))


def test_unknown_class():
    with pytest.raises(UnknownError, match="class kernels.Newer"):
        restore({"class": "kernels.Newer", "bandwidth": None})


def test_contents_come_back():
    found = unpack(pack_content(CONTENT), "it")
    assert found.kind == CONTENT.kind and found.options == CONTENT.options
    assert found.arrays.keys() == CONTENT.arrays.keys()
    for name, array in CONTENT.arrays.items():
        assert equal(found.arrays[name], array) and found.arrays[name].flags.writeable


def test_equal_contents_have_equal_bytes():
    backwards = Content(
        "something",
        dict(reversed(CONTENT.options.items())),
        {name: np.array(array, order="F") for name, array in reversed(CONTENT.arrays.items())},
    )
    swapped = backwards._replace(
        arrays={name: array.astype(array.dtype.newbyteorder(">")) for name, array in backwards.arrays.items()}
    )
    assert pack_content(CONTENT) == pack_content(backwards) == pack_content(swapped)


def test_layout():
    """What the module's text says, read by other means."""
    data = pack_content(CONTENT)
    magic, version, header_size, total = struct.unpack_from("<8sIIQ", data)
    assert (magic, version, total) == (b"\x89KCALIB\n", 2, len(data))
    header = json.loads(data[24 : 24 + header_size])
    begin = 24 + header_size
    assert begin % 64 == 0 and header["library"] == __import__("kcalib").__version__
    entry = header["arrays"]["sums"]
    assert (begin + entry["offset"]) % 64 == 0
    found = struct.unpack_from("<12d", data, begin + entry["offset"])
    assert np.array_equal(np.reshape(found, entry["shape"]), CONTENT.arrays["sums"])
    assert data[-32:] == hashlib.blake2b(data[:-32], digest_size=32, person=b"kcalib state").digest()


def written_otherwise(version=2, **changes):
    """A file with another header, with the checksum that it should have."""
    data = pack_content(CONTENT)
    size = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[24 : 24 + size]) | changes
    text = json.dumps(header).encode()
    text = text.ljust(-(-(24 + len(text)) // 64) * 64 - 24)
    body = text + data[24 + size : -32]
    whole = struct.pack("<8sIIQ", b"\x89KCALIB\n", version, len(text), 24 + len(body) + 32) + body
    return whole + hashlib.blake2b(whole, digest_size=32, person=b"kcalib state").digest()


def test_unknown_entries_of_the_header_are_skipped():
    found = unpack(written_otherwise(further={"a": [1, 2]}), "it")
    assert found.options == CONTENT.options and found.arrays.keys() == CONTENT.arrays.keys()


def test_later_version():
    message = (
        r"^state\.kcalib was written by kcalib 9\.9 in format 3, but this version, .*, reads format 2; update kcalib$"
    )
    with pytest.raises(ValueError, match=message):
        unpack(written_otherwise(version=3, library="9.9"), "state.kcalib")
    with pytest.raises(ValueError, match=r"in format 1, but this version, .*, reads format 2; make the state again$"):
        unpack(written_otherwise(version=1), "state.kcalib")
    options = {"kernel": {"class": "kernels.Newer", "bandwidth": 1.0}}
    with pytest.raises(ValueError, match=r"by kcalib 9\.9 and has an option of the class kernels\.Newer.*update"):
        unpack(written_otherwise(library="9.9", options=options), "state.kcalib")


@pytest.mark.parametrize(
    "changes",
    [
        {"arrays": {"sums": {"dtype": "|O", "shape": [1], "offset": 0}}},
        {"arrays": {"sums": {"dtype": "<f8", "shape": [10**9], "offset": 0}}},
        {"arrays": {"sums": {"dtype": "<f8", "shape": [-1], "offset": 0}}},
        {"arrays": {"sums": {"dtype": "<f8", "shape": [1], "offset": -8}}},
        {"arrays": {"sums": 1}},
        {"arrays": None},
        {"options": {"kernel": {"class": "kernels.Exponential", "width": 1.0}}},
        {"options": {"kernel": {"class": "kernels.Exponential", "bandwidth": -1.0}}},
        {"options": {"kernel": {"name": "Exponential"}}},
        {"options": {"matrix": {"class": "array", "dtype": "<f8", "shape": [2], "base64": "AAA"}}},
    ],
    ids=str,
)
def test_a_header_that_makes_no_sense(changes):
    with pytest.raises(ValueError, match="it is not as kcalib writes a state, although its checksum is right"):
        unpack(written_otherwise(**changes), "it")


def test_truncated_and_flipped():
    """Every truncation and every changed byte is refused, in a sentence that names the file."""
    data, random = pack_content(CONTENT), np.random.default_rng(0)
    for end in [*range(1, 60), *random.integers(60, len(data), size=100)]:
        with pytest.raises(ValueError, match=r"^it is truncated: it has \d+ bytes"):
            unpack(data[:end], "it")
    for at in [*range(60), *random.integers(60, len(data), size=200)]:
        flipped = bytearray(data)
        flipped[at] ^= int(random.integers(1, 256))
        with pytest.raises(ValueError, match="^it is (damaged|truncated|not a state)"):
            unpack(bytes(flipped), "it")
    with pytest.raises(ValueError, match="^it is damaged"):
        unpack(data + b"\0", "it")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty, expected a state"),
        (b"\x93NUMPY\x01\x00" + bytes(100), "is not a state of kcalib, expected what `save` has written"),
        (b"K", "is not a state of kcalib"),
        (b"\x89KCAL", "is truncated: it has 5 bytes; copy or make it again"),
    ],
)
def test_what_is_no_state(tmp_path, data, message):
    path = tmp_path / "a.kcalib"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        state_file.read(path)
    assert str(caught.value).startswith(str(path))


def test_read_and_write(tmp_path):
    path = tmp_path / "a.kcalib"
    state_file.write(path, pack_content(CONTENT))
    assert state_file.read(path) == pack_content(CONTENT) and os.listdir(tmp_path) == ["a.kcalib"]
    with pytest.raises(ValueError, match=r"is a folder, expected a file with a state$"):
        state_file.read(tmp_path)
    with pytest.raises(ValueError, match=r"is a folder, expected the name of a file$"):
        state_file.write(tmp_path, b"")
    with pytest.raises(FileNotFoundError, match="the state was not saved"):
        state_file.write(tmp_path / "no" / "a.kcalib", b"")


def test_links_and_rights_stay(tmp_path):
    path, link = tmp_path / "a.kcalib", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    state_file.write(link, b"new")
    assert link.is_symlink() and path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("fault", ["write", "fsync", "replace"])
def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch, fault):
    path = tmp_path / "a.kcalib"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fault == "write":
        opened = open

        class Full:
            def __init__(self, *arguments):
                self.file = opened(*arguments)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.file.close()

            write = full

        monkeypatch.setattr(files, "open", Full, raising=False)
    else:
        monkeypatch.setattr(files.os, fault, full)
    with pytest.raises(OSError, match=r"No space left on device, the state was not saved.*a\.kcalib") as caught:
        state_file.write(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.kcalib"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_device_that_is_full(tmp_path, monkeypatch):
    """As it happens in the system's own way: what is written goes to a device without space."""
    path = tmp_path / "a.kcalib"
    path.write_bytes(b"old")
    opened = os.open

    def to_full(name, flags, mode=0o777):
        if str(name).endswith(".part"):
            opened(name, flags, mode)
            return opened("/dev/full", os.O_WRONLY)
        return opened(name, flags, mode)

    monkeypatch.setattr(files.os, "open", to_full)
    with pytest.raises(OSError, match="No space left on device"):
        state_file.write(path, bytes(100))
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.kcalib"]


def test_an_interrupt_while_saving_leaves_nothing(tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        state_file.write(tmp_path / "a.kcalib", b"new")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is a device or a pipe, expected the name of a file"):
        state_file.write(tmp_path / "pipe", b"state")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_what_killed_processes_left_is_removed_and_what_is_being_written_is_not(tmp_path):
    path, left = tmp_path / "a.kcalib", []
    for where in ("fsync", "replace"):
        child = os.fork()
        if child == 0:
            setattr(os, where, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            state_file.write(path, b"half")
        os.waitpid(child, 0)
        left.append(len(os.listdir(tmp_path)))
    assert left == [1, 1]  # the second has removed what the first one left
    descriptor, living = files._create_unfinished(path)
    (tmp_path / ".b.kcalib.0123456789ab.part").touch()
    state_file.write(path, b"new")
    assert sorted(os.listdir(tmp_path)) == sorted([".b.kcalib.0123456789ab.part", living.name, "a.kcalib"])
    os.close(descriptor)
    state_file.write(path, b"newer")
    assert sorted(os.listdir(tmp_path)) == [".b.kcalib.0123456789ab.part", "a.kcalib"]
    assert path.read_bytes() == b"newer"
