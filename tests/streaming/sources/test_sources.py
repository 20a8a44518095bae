"""Every kind of source gives the rows that were written, in chunks of any size; faults have messages that help."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import Source, source
from kcalib.streaming.sources import ReaderSource

RNG = np.random.default_rng(0)
N = 57
P = RNG.dirichlet(np.ones(3), size=N)
Y = RNG.integers(3, size=N)


def assert_rows(samples, true=Y, pred=P, *, n=N):
    """The rows, whole, from any row on, and in chunks of any size."""
    assert (
        isinstance(samples, Source) and samples.n == n and samples.n_classes == (2 if pred.ndim == 1 else pred.shape[1])
    )
    for rows in (1, 20, 100):
        sizes = []
        found = list(samples.chunks(rows))
        for y, _ in found:
            sizes.append(len(y))
            assert y.dtype == np.int64
        assert sizes == [rows] * (len(true) // rows) + [len(true) % rows] * (len(true) % rows > 0)
        np.testing.assert_array_equal(np.concatenate([y for y, _ in found]), true)
        np.testing.assert_array_equal(np.concatenate([p for _, p in found]), pred)
    for start in (0, 1, 30, 56):
        np.testing.assert_array_equal(np.concatenate([p for _, p in samples.chunks(10, start)]), pred[start:])
    y, p = samples.read(13, 41)
    np.testing.assert_array_equal(y, true[13:41])
    np.testing.assert_array_equal(p, pred[13:41])
    assert samples.fingerprint() == samples.fingerprint()


def message_of(data, match, kind=ValueError, **options):
    """The message of opening and reading all of it; a line that has `match`."""
    with pytest.raises(kind, match=match) as caught:
        list(source(data, **options).chunks(10))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def _beside(folder):
    np.save(folder / "m.npy", P)
    np.save(folder / "labels.npy", Y)
    return folder / "m.npy"


def _fortran(folder):
    np.save(folder / "m.npy", np.asfortranarray(P))
    np.save(folder / "y.npy", Y.astype(np.int8))
    return folder / "m.npy"


def _fields(folder):
    rows = np.zeros(N, [("p_0", "f8"), ("p_1", "f8"), ("p_2", "f8"), ("label", "i4")])
    for i in range(3):
        rows[f"p_{i}"] = P[:, i]
    rows["label"] = Y
    np.save(folder / "m.npy", rows)
    return folder / "m.npy"


def _compressed(folder):
    np.savez_compressed(folder / "m.npz", probs=P, labels=Y, other=np.arange(3))
    return folder / "m.npz"


def _mixed_npz(folder):
    """Stored predictions, compressed labels of bytes."""
    np.savez(folder / "m.npz", p=P)
    np.savez_compressed(folder / "other.npz", y=Y)
    with zipfile.ZipFile(folder / "m.npz", "a") as archive, zipfile.ZipFile(folder / "other.npz") as other:
        archive.writestr("y.npy", other.read("y.npy"), zipfile.ZIP_DEFLATED)
    return folder / "m.npz"


def _parts(folder):
    for number, (start, stop) in enumerate([(0, 10), (10, 11), (11, 40), (40, 57)]):
        saved(folder / f"part-{number}.npz", probs=P[start:stop], labels=Y[start:stop])
    (folder / "_SUCCESS").touch()
    return folder


def _named(folder):
    names = np.array(["cat", "dog", "emu"])
    return saved(folder / "m.npz", probs=P, labels=names[Y], classes=names)


FILES = {
    "npy with labels beside": _beside,
    "npy by columns": _fortran,
    "npy with fields": _fields,
    "npz": lambda folder: saved(folder / "m.npz", probs=P, labels=Y),
    "npz, compressed": _compressed,
    "npz, one of each": _mixed_npz,
    "npz with names of classes": _named,
    "folder": _parts,
    "wildcard": lambda folder: _parts(folder) / "part-*.npz",
    "list": lambda folder: sorted(_parts(folder).glob("*.npz")),
    "one-hot": lambda folder: saved(folder / "m.npz", probs=P, y=np.eye(3, dtype=int)[Y]),
}


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name):
    assert_rows(source(FILES[name](tmp_path)))


def test_sums_over_several_files_are_those_of_one(tmp_path):
    """Chunks go on from one file to the next."""
    kernel = Exponential(0.4)
    files, arrays = (kcalib.evaluate(source(data), kernel=kernel) for data in (_parts(tmp_path), (Y, P)))
    assert (files.n_samples, files.brier_score, files.skce.value) == (N, arrays.brier_score, arrays.skce.value)


def _batches():
    for start in range(0, N, 8):
        yield Y[start : start + 8], P[start : start + 8]


def _dictionaries():
    return ({"labels": y, "probs": p, "id": i} for i, (y, p) in enumerate(_batches()))


def test_names_of_fields_that_are_not_ascii(tmp_path):
    rows = np.zeros(N, [("größe", "f8"), ("été", "?")])
    rows["größe"], rows["été"] = P[:, 0], Y > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only newer versions of NumPy read such names
        np.save(tmp_path / "m.npy", rows)
    assert_rows(source(tmp_path / "m.npy", probs="größe", labels="été"), Y > 0, P[:, 0])


ITERABLES = {
    "function": (_batches, {}),
    "list": (list(_batches()), {}),
    "dictionaries": (_dictionaries, {}),
    "single samples": ([(int(y), p.tolist()) for y, p in zip(Y, P)], {}),
    "single samples as arrays": (lambda: zip(Y, P, strict=True), {}),
    "names of classes": (
        lambda: ((np.array(["a", "b", "c"])[y], p) for y, p in _batches()), {"classes": ["a", "b", "c"]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ITERABLES)
def test_iterables(name):
    data, options = ITERABLES[name]
    assert_rows(source(data, **options), n=None)


ARRAYS = {
    "pair": (Y, P),
    "lists": (Y.tolist(), P.tolist()),
    "mapping": {"labels": Y, "logit": P, "probs": P},
    "fields": np.rec.fromarrays([P[:, 0], P[:, 1], P[:, 2], Y], names="p0,p1,p2,y").view(np.ndarray),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name):
    assert_rows(source(ARRAYS[name]))


def test_labels_as_an_array():
    assert_rows(source(P, labels=Y))
    message_of(P, "`data` is a single array, expected .*array of labels by labels=", TypeError)


@pytest.mark.grid
@pytest.mark.parametrize("module", ["torch", "jax.numpy"])
def test_arrays_of_other_libraries(module):
    xp = pytest.importorskip(module)
    samples = source((xp.asarray(Y), xp.asarray(P.astype("f4"))))
    _, p = next(samples.chunks(20, 30))
    assert type(p) is type(xp.asarray(P))
    np.testing.assert_array_equal(np.asarray(p), P[30:50].astype("f4"))
    assert samples.fingerprint() == source((xp.asarray(Y), xp.asarray(P.astype("f4")))).fingerprint()


def test_predictions_of_two_classes():
    y, p = Y > 0, P[:, 1]
    samples = source((y, p))
    assert samples.n_classes == 2
    found = samples.read(3, 9)
    np.testing.assert_array_equal(found[0], y[3:9])
    np.testing.assert_array_equal(found[1], p[3:9])


def test_logits_become_probabilities(tmp_path):
    logits = np.log(P) + 3
    for samples in (
        source(saved(tmp_path / "m.npz", logits=logits, labels=Y)),
        source((Y, logits), from_logits=True),
        source([{"y": Y, "z": logits}], logits="z"),
    ):
        p = samples.read(0, N)[1]
        np.testing.assert_allclose(p, P, rtol=1e-13)
        np.testing.assert_array_equal(p[20:30], samples.read(20, 30)[1])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_probabilities_stay_in_their_dtype(dtype):
    """Half precision sums to one only within its own rounding, which a copy in float64 would not tell."""
    p = source((Y, P.astype(dtype))).read(0, N)[1]
    assert p.dtype == dtype
    np.testing.assert_array_equal(p, P.astype(dtype))


# -- once and again


def test_an_iterator_is_read_once():
    samples = source(_batches())
    assert samples.n_classes == 3
    np.testing.assert_array_equal(np.concatenate([p for _, p in samples.chunks(10)]), P)
    with pytest.raises(ValueError, match="an iterator, which can be read once .* pass a function"):
        next(samples.chunks(10))
    with pytest.raises(ValueError, match=r"source\(lambda: batches\(\)\)"):
        next(source(_batches()).chunks(10, 5))


def test_nothing_is_read_ahead():
    asked = []

    def batches():
        for number in range(100):
            asked.append(number)
            yield np.array([0]), np.array([[0.5, 0.5]])

    chunks = source(batches()).chunks(4)
    assert asked == [0]  # for the number of classes
    next(chunks)
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["npy with fields", "npz, compressed", "folder"])
def test_another_process_opens_the_files_again(tmp_path, name):
    samples = source(FILES[name](tmp_path), classes=[0, 1, 2])
    again = pickle.loads(pickle.dumps(samples))
    assert len(pickle.dumps(samples)) < 1000 and again.fingerprint() == samples.fingerprint()
    assert_rows(again)


def test_readers_alone_are_not_pickled():
    with pytest.raises(TypeError, match=r"only what kcalib.streaming.source returns can be pickled; open it by"):
        pickle.dumps(ReaderSource(source((Y, P))._readers))


# -- fingerprints


def test_a_changed_file_is_noticed(tmp_path):
    path = saved(tmp_path / "m.npz", probs=P, labels=Y)
    first = source(path).fingerprint()
    assert source(path).fingerprint() == source(tmp_path / "*.npz").fingerprint() == first
    status = path.stat()
    changed = Y.copy()
    changed[30] = (changed[30] + 1) % 3
    saved(path, probs=P, labels=changed)
    assert path.stat().st_size == status.st_size
    assert source(path).fingerprint() != first
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert source(path).fingerprint() != first  # the archive has checksums at its end
    saved(path, probs=P, labels=Y)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert source(path).fingerprint() != first


def test_what_is_read_is_in_the_fingerprint(tmp_path):
    path = saved(tmp_path / "m.npz", probs=P, other=P[::-1], labels=Y)
    assert source(path).fingerprint() != source(path, probs="other").fingerprint()
    assert source(path).fingerprint() != source(path, from_logits=True).fingerprint()
    folder = tmp_path / "parts"
    folder.mkdir()
    _parts(folder)
    whole = source(folder).fingerprint()
    (folder / "part-3.npz").unlink()
    assert source(folder).fingerprint() != whole


def test_arrays_and_batches_have_fingerprints():
    assert source((Y, P)).fingerprint() == source((Y.copy(), P.copy())).fingerprint()
    assert source((Y, P)).fingerprint() != source((Y, P[::-1])).fingerprint()
    assert source((Y[:-1], P[:-1])).fingerprint() != source((Y, P)).fingerprint()
    assert source(_batches).fingerprint() == source(_batches()).fingerprint()


def test_description(tmp_path):
    _parts(tmp_path)
    assert source(tmp_path).describe() == (
        f"4 files, {tmp_path}/part-0.npz to {tmp_path}/part-3.npz: 57 samples, 3 classes; "
        "probabilities in array 'probs', labels in 'labels'"
    )
    assert source(_batches).describe() == (
        "unknown number of samples, 3 classes; probabilities in array 'y_pred', labels in 'y_true'"
    )


# -- what is wrong


def test_errors_name_file_column_and_row(tmp_path):
    bad = P.copy()
    bad[33, 1] = np.nan
    message = message_of(saved(tmp_path / "m.npz", probs=bad, labels=Y), r"`probs\[33, 1\]` is nan")
    assert message.startswith(f"{tmp_path}/m.npz: ")
    bad[33] = [0.5, 0.2, 0.2]
    message_of(saved(tmp_path / "m.npz", probs=bad, labels=Y), r"m.npz: `probs\[33\]` sums to 0.9")
    true = Y.copy()
    true[41] = 7
    message_of(saved(tmp_path / "m.npz", probs=P, labels=true), r"m.npz: `labels\[41\]` is 7, expected a label 0..2")
    path = _fields(tmp_path)
    rows = np.load(path)
    rows["p_2"][50] = -1
    np.save(path, rows)
    message_of(path, r"m.npy: `p_2\[50\]` is -1")


def test_errors_count_rows_from_the_beginning_of_the_file(tmp_path):
    _parts(tmp_path)
    bad = P[11:40].copy()
    bad[15, 0] = 2
    saved(tmp_path / "part-2.npz", probs=bad, labels=Y[11:40])
    message = message_of(tmp_path, r"`probs\[15, 0\]` is 2")
    assert message.startswith(f"{tmp_path}/part-2.npz: ")
    batches = [(Y[:30], P[:30]), (Y[30:], P[30:] * 2)]
    message_of(batches, r"^`y_pred\[3\d, \d\]` is ")


def test_logits_are_explained(tmp_path):
    message_of(saved(tmp_path / "m.npz", probs=P * 4 - 2, labels=Y), "for logits pass from_logits=True")


def test_text_needs_the_names_of_all_classes(tmp_path):
    path = saved(tmp_path / "m.npz", probs=P, labels=np.array(["cat", "dog", "emu"])[Y])
    message_of(path, r"m.npz: `labels\[0\]` is '(cat|dog|emu)', but a chunk may lack some classes; pass classes=")
    assert_rows(source(path, classes=["cat", "dog", "emu"]))
    message_of(path, r"`labels\[\d+\]` is 'emu', expected one of classes=", classes=["cat", "dog", "x"])


def test_bounds():
    for data in ((Y, P), list(_batches())):
        samples = source(data)
        with pytest.raises(ValueError, match="`stop` is 58, but there are 57 samples"):
            samples.read(50, 58)
        with pytest.raises(ValueError, match=r"`stop` is 3, expected an integer at least 4: a row beyond `start`"):
            samples.read(3, 3)
    with pytest.raises(ValueError, match="`rows` is 0, expected an integer at least 1"):
        samples.chunks(0)
    with pytest.raises(TypeError, match="`start` is 1.5, expected an integer"):
        samples.chunks(1, 1.5)
    with pytest.raises(ValueError, match="`start` is 3 rows beyond the 57 samples"):
        next(source((Y, P)).chunks(5, 60))
    assert list(source((Y, P)).chunks(5, 57)) == []


@pytest.mark.parametrize(
    ("batches", "match"),
    [
        ([], "there are no batches"),
        ([(Y, P, Y)], "batch 0 has 3 entries, expected a pair"),
        ([(Y, P), 5], "batch 1 is a int, expected a pair"),
        ([(Y, P), {"y": Y, "p": P}], "batch 1 is a dict, unlike the first one"),
        ([{"y": Y, "p": P}, {"y": Y}], "batch 1 has no 'p', as the first one has"),
        ([{"y": Y}], "no array of predictions; the first batch has the arrays 'y', expected .* probs= or"),
        ([(Y, P), (Y[:3], P[:4])], r"batch 1 has labels of shape \(3,\) and predictions of shape \(4, 3\)"),
        ([(Y, P[:, None])], r"batch 0 has labels of shape \(57,\) and predictions of shape \(57, 1, 3\)"),
    ],
)  # fmt: skip
def test_batches_that_are_wrong(batches, match):
    message_of(batches, match)


def test_arrays_that_are_wrong():
    message_of((Y[:-1], P), r"array 'y_true' has shape \(56,\), array 'y_pred' \(57, 3\); expected one label for each")
    message_of((Y, P[:, :, None]), r"the predictions have shape \(57, 3, 1\), expected \(n, m\)")
    message_of({"y": Y}, "the mapping has the arrays 'y', expected one of probs")
    message_of({"p": P, "x": Y}, "no array of labels; the mapping has the arrays 'p', 'x', .* name it by labels=")
    message_of({"p": P, "x": Y}, "there is no array 'z' for labels=", labels="z")
    match = "`labels` is a ndarray, expected the name of one of the arrays; an array goes"
    message_of({"p": P}, match, TypeError, labels=Y)
    message_of(5, "`data` is a int, expected paths", TypeError)


def test_files_that_are_wrong(tmp_path):
    with pytest.raises(FileNotFoundError):
        source(tmp_path / "none.npz")
    message_of(tmp_path / "*.npz", "no file matches; correct the pattern")
    message_of(tmp_path, "the folder has no files with a known suffix")
    (tmp_path / "m.xyz").touch()
    message_of(tmp_path / "m.xyz", "the suffix is '.xyz', expected one of .npy, .npz")
    (tmp_path / "m.npz").touch()
    message_of(tmp_path / "m.npz", "m.npz: is empty")
    (tmp_path / "m.npz").write_bytes(b"no archive")
    message_of(tmp_path / "m.npz", "m.npz: is not what its suffix says")
    np.save(tmp_path / "m.npy", P)
    message_of(tmp_path / "m.npy", "m.npy: the array has no labels; name a file by labels=FILE.npy, or put one of")
    message_of(tmp_path / "m.npy", "has no fields, so probs= names nothing; leave it out", probs="p")
    message_of(tmp_path, "the files have several formats, .npy, .npz, expected one; use a wildcard")


def test_damaged_files(tmp_path):
    path = _beside(tmp_path)
    path.write_bytes(path.read_bytes()[:-8])
    message_of(path, r"m.npy: the array is truncated or damaged \(.*file size\); write it again")
    path = _compressed(tmp_path)
    content = bytearray(path.read_bytes())
    content[200:300] = bytes(100)
    path.write_bytes(content)
    message_of(path, "m.npz: array 'probs' is truncated or damaged")
    path.write_bytes(content[:-30])
    message_of(path, "m.npz: the archive is truncated or damaged")
    np.savez(path, probs=np.array([None] * N), labels=Y)
    message_of(path, "m.npz: array 'probs' holds Python objects")
    np.savez_compressed(path, probs=np.asfortranarray(P), labels=Y)
    assert_rows(source(path))  # is read as a whole


def test_parts_that_differ(tmp_path):
    _parts(tmp_path)
    saved(tmp_path / "part-4.npz", probs=np.eye(4), labels=np.arange(4))
    message_of(
        tmp_path,
        r"part-4.npz has 4 columns of predictions, .*part-0.npz 3 columns .*; files of one source",
    )
    saved(tmp_path / "part-4.npz", logits=P, labels=Y)
    message_of(tmp_path, r"part-4.npz has logits, .*part-0.npz no logits")


# -- memory


@pytest.mark.parametrize(
    "kind",
    ["npz_compressed", *(pytest.param(kind, marks=pytest.mark.grid) for kind in ("npy", "npz", "memory map"))],
)
def test_memory_is_that_of_a_chunk(tmp_path, kind):
    """Of 16 MB on disk a process that reads all of it holds a chunk of 120 KB and its checks."""
    n, m = 200_000, 10
    p = np.full((n, m), 1 / m)
    y = np.zeros(n, dtype=np.int8)
    if kind in ("npy", "memory map"):
        np.save(tmp_path / "m.npy", p)
        np.save(tmp_path / "y.npy", y)
        data = f"{str(tmp_path / 'm.npy')!r}"
        if kind == "memory map":
            data = f"tuple(np.load({str(tmp_path)!r} + name, mmap_mode='r') for name in ('/y.npy', '/m.npy'))"
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(tmp_path / "m.npz", p=p, y=y)
        data = f"{str(tmp_path / 'm.npz')!r}"
    code = f"""
import resource, numpy as np, kcalib
from kcalib.streaming import source
next(source((np.zeros(2000, int), np.full((2000, 10), .1))).chunks(1500))
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])
before = peak()
count = sum(len(p) for y, p in source({data}).chunks(1500))
print(count, peak() - before)
"""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no peak of the resident memory")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == n and grown < 8_000, f"{grown} KB"
