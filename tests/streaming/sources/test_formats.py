"""Formats of other libraries, and text: the rows that were written, and what is wrong with file, column and row."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import kcalib
from kcalib.streaming import source
from kcalib.streaming.sources import content

RNG = np.random.default_rng(0)
N = 57
P = RNG.dirichlet(np.ones(3), size=N)
Y = RNG.integers(3, size=N)
CLASSES = ["cat", "dog", "emu"]


def assert_rows(samples, true=Y, pred=P, *, n=N):
    assert samples.n == n and samples.n_classes == (2 if pred.ndim == 1 else pred.shape[1])
    for rows in (10, 57, 100):
        found = list(samples.chunks(rows))
        assert {len(y) for y, _ in found[:-1]} <= {rows}
        np.testing.assert_array_equal(np.concatenate([y for y, _ in found]), true)
        np.testing.assert_array_equal(np.concatenate([p for _, p in found]), pred)
    for start in (1, 30):
        np.testing.assert_array_equal(np.concatenate([p for _, p in samples.chunks(10, start)]), pred[start:])
    np.testing.assert_array_equal(samples.read(13, 41)[0], true[13:41])
    assert samples.fingerprint() == samples.fingerprint()


def message_of(data, match, kind=ValueError, **options):
    with pytest.raises(kind, match=match) as caught:
        list(source(data, **options).chunks(10))
    assert "\n" not in str(caught.value)


# -- text


def text(path, rows=None, header=("id", "probs_0", "probs_1", "probs_2", "label")):
    rows = [[i, *p.tolist(), y] for i, (y, p) in enumerate(zip(Y, P))] if rows is None else rows
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="") as file:
        csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",").writerows([header, *rows])
    return path


@pytest.mark.parametrize("name", ["m.csv", "m.tsv", "m.csv.gz", "m.tsv.gz"])
def test_text(tmp_path, name):
    assert_rows(source(text(tmp_path / name)), n=None)


def test_text_in_parts(tmp_path):
    rows = [[*p.tolist(), CLASSES[y]] for y, p in zip(Y, P)]
    for number, (start, stop) in enumerate([(0, 10), (10, 11), (11, 57)]):
        text(tmp_path / f"part-{number}.csv", rows[start:stop], [*(f"p_{name}" for name in CLASSES), "label"])
    assert_rows(source(tmp_path), n=None)


def test_text_of_two_classes(tmp_path):
    rows = [[p[0], y > 0] for y, p in zip(Y, P)]
    assert_rows(source(text(tmp_path / "m.csv", rows, ["p", "y"])), Y > 0, P[:, 0], n=None)
    rows = [[int(p[0] > 0.5), y > 0] for y, p in zip(Y, P)]
    match = "m.csv: `p` has dtype int64 and looks like predicted labels"
    message_of(text(tmp_path / "m.csv", rows, ["p", "y"]), match, TypeError)


def test_whole_numbers_may_be_logits(tmp_path):
    z = RNG.integers(-3, 4, size=N)
    path = text(tmp_path / "m.csv", [[x, int(y > 0)] for x, y in zip(z, Y)], ["logits", "y"])
    np.testing.assert_allclose(source(path).read(0, N)[1][:, 1], 1 / (1 + np.exp(-z)), rtol=1e-14)


def test_text_that_is_wrong(tmp_path):
    path = tmp_path / "m.csv"
    rows = [[*p.tolist(), y] for y, p in zip(Y, P)]
    header = ["p_0", "p_1", "p_2", "y"]
    rows[20][1] = "x"
    message_of(text(path, rows, header), r"m.csv: line 22, column 'p_1' is 'x', expected a number")
    rows[20][1] = "nan"
    message_of(text(path, rows, header), r"m.csv: `p_1\[20\]` is nan, expected a finite probability")
    rows[20] = rows[20][:3]
    message_of(text(path, rows, header), r"m.csv: line 22 has 3 cells, expected 4")
    rows[20] = [1, 0, 0, "cat"]
    message_of(text(path, rows, header), r"m.csv: `y\[20\]` is '?cat.* pass classes=")
    message_of(text(path, rows[:5], ["p_0", "p_1", "p_2", "z"]), "m.csv: there is no column of labels.* by labels=")
    message_of(text(path, rows, [*header[:3], "p_2"]), "columns", labels="p_2")
    message_of(text(tmp_path / "m.tsv", rows, ["p_0,p_1,p_2,y"]), "it has no tabs; separate the cells by tabs")
    path = text(tmp_path / "m.csv.gz")
    path.write_bytes(path.read_bytes()[:-400])
    message_of(path, "m.csv.gz: the file is truncated or damaged")
    path.write_text("p,y")
    message_of(path, "m.csv.gz: is not what its suffix says")


# -- Parquet, Arrow


def tables():
    pa = pytest.importorskip("pyarrow")
    flat = pa.array(P.ravel())
    columns = {f"p{i}": P[:, i] for i in range(3)}
    return {
        "family": pa.table({**columns, "label": Y, "other": ["x"] * N}),
        "lists": pa.table({"probs": pa.ListArray.from_arrays(np.arange(0, 3 * N + 1, 3), flat), "y": Y}),
        "fixed lists": pa.table({"probs": pa.FixedSizeListArray.from_arrays(flat, 3), "y": Y.astype("i1")}),
        "text": pa.table({**{f"p_{n}": P[:, i] for i, n in enumerate(CLASSES)}, "y": np.array(CLASSES)[Y].tolist()}),
        "dictionary": pa.table(
            {**{f"p_{n}": P[:, i] for i, n in enumerate(CLASSES)},
             "y": pa.array(np.array(CLASSES)[Y].tolist()).dictionary_encode()}
        ),
    }  # fmt: skip


def written(path, table, rows=10):
    import pyarrow.parquet as pq

    pq.write_table(table, path, row_group_size=rows)
    return path


@pytest.mark.parametrize("kind", ["family", "lists", "fixed lists", "text", "dictionary"])
def test_parquet(tmp_path, kind):
    table = tables()[kind]
    assert_rows(source(written(tmp_path / "m.parquet", table)))
    assert_rows(source(table))


def test_ordered_dictionaries_declare_classes_of_a_column(tmp_path):
    pa = pytest.importorskip("pyarrow")

    def labels(ordered):
        return pa.DictionaryArray.from_arrays(pa.array([0, 1] * 5, pa.int32()), ["ok", "fraud"], ordered=ordered)

    table = pa.table({"y": labels(True), "prob": [0.1, 0.9] * 5})
    for data in (table, written(tmp_path / "m.parquet", table)):
        y, p = source(data).read(0, 10)
        assert y.tolist() == [0, 1] * 5
        assert kcalib.brier_score(y, p) == pytest.approx(0.01)
    table = pa.table({"y": labels(False), "prob": [0.1, 0.9] * 5})
    message_of(table, r"dictionary with the values \['ok', 'fraud'\], whose order it does not declare.*pass classes=")
    y, p = source(table, classes=["ok", "fraud"]).read(0, 10)
    assert kcalib.brier_score(y, p) == pytest.approx(0.01)


def test_parquet_folders(tmp_path):
    table = tables()["lists"]
    (tmp_path / "b").mkdir()
    written(tmp_path / "a-0.parquet", table.slice(0, 20))
    written(tmp_path / "a-1.parquet", table.slice(20, 1))
    written(tmp_path / "b" / "c.parquet", table.slice(21))
    written(tmp_path / "0.parquet", table.slice(0, 0))  # whose lists have no length
    (tmp_path / "_SUCCESS").touch()
    assert_rows(source(tmp_path))
    assert source(tmp_path).fingerprint() != source(tmp_path / "*.parquet").fingerprint()
    dataset = pytest.importorskip("pyarrow.dataset").dataset(tmp_path)
    assert_rows(source(dataset))
    assert source(dataset).fingerprint() == source(tmp_path).fingerprint()


def test_parquet_that_is_wrong(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "m.parquet"
    columns = {f"p{i}": P[:, i] for i in range(3)}
    gap = [None if i == 33 else float(x) for i, x in enumerate(P[:, 1])]
    message_of(written(path, pa.table({**columns, "p1": gap, "y": Y})), "m.parquet: column 'p1' has no value in row 33")
    bad = P[:, 2].copy()
    bad[51] = 3
    message_of(written(path, pa.table({**columns, "p2": bad, "y": Y})), r"m.parquet: `p2\[51\]` is 3, expected a")
    short = [p.tolist()[: 2 if i == 44 else 3] for i, p in enumerate(P)]
    message_of(written(path, pa.table({"p": short, "y": Y})), "column 'p' has 2 numbers in row 44, expected 3")
    message_of(written(path, pa.table({"p": [{"a": 1}] * N, "y": Y})), "column 'p' has type struct.*, expected numbers")
    message_of(written(path, pa.table(columns)), "m.parquet: there is no column of labels; the file has the columns")
    path.write_bytes(path.read_bytes()[:-100])
    message_of(path, "m.parquet: the file is truncated or damaged")
    message_of(pa.table({"x": [1]}), "no column of predictions; the table has the columns 'x'")


def test_a_data_set_of_other_files_is_refused(tmp_path):
    dataset = pytest.importorskip("pyarrow.dataset")
    text(tmp_path / "m.csv")
    message_of(dataset.dataset(tmp_path, format="csv"), "the data set has no Parquet files")


# -- HDF5, Zarr


def test_labels_in_a_file_of_their_own(tmp_path):
    columns = {f"p{i}": P[:, i] for i in range(3)}
    files = [text(tmp_path / "m.csv", P.tolist(), list(columns))]
    if importlib.util.find_spec("pyarrow") is not None:
        import pyarrow as pa

        files.append(written(tmp_path / "m.parquet", pa.table(columns)))
    labels = str(tmp_path / "y.npy")
    for file in files:
        n = None if file.suffix == ".csv" else N
        np.save(labels, Y)
        assert_rows(source(file, labels=labels), n=n)
        first = source(file, labels=labels).fingerprint()
        np.save(labels, Y[::-1])
        assert source(file, labels=labels).fingerprint() != first
        np.save(labels, Y[:-1])
        message_of(file, "y.npy' are 56, and there are more than 56 rows of predictions", labels=labels)
        np.save(labels, np.append(Y, 0))
        message_of(file, "y.npy' are 58, and there are only 57 rows of predictions", labels=labels)


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["probs"], file["labels"] = P, Y
        file["test/p"], file["test/y"] = P[::-1], np.array(CLASSES, dtype=object)[Y[::-1]]
        file["test/short"] = Y[1:]
    assert_rows(source(path))
    assert_rows(source(path, probs="test/p", labels="test/y", classes=CLASSES), Y[::-1], P[::-1])
    message_of(path, r"m.h5: array 'test/short' has shape \(56,\), array 'probs' \(57, 3\)", labels="test/short")
    with h5py.File(path, "r") as file:
        assert_rows(source((file["labels"], file["probs"])))
        assert_rows(source(file["test"], classes=CLASSES), Y[::-1], P[::-1])
    path.write_bytes(path.read_bytes()[:1000])
    message_of(path, "m.h5: the file is truncated or damaged")
    with h5py.File(path, "w") as file:
        file["x"] = Y
        file.create_dataset("p", data=P, chunks=(20, 3), compression="gzip")
        at = file["p"].id.get_chunk_info(1).byte_offset
    content = bytearray(path.read_bytes())
    content[at : at + 50] = bytes(50)
    path.write_bytes(content)
    message_of(path, "m.h5: what there is between the rows 20 and 30 is truncated or damaged", labels="x")
    with h5py.File(path, "w") as file:
        file["x"] = Y
    message_of(path, "m.h5: there is no array of predictions; the file has the arrays 'x'")


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.grid), 3])
def test_zarr(tmp_path, version):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "m.zarr"
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for name, array in (("probs", P), ("labels", Y)):
        group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(8, *array.shape[1:]))[:] = array
    assert_rows(source(path))
    assert_rows(source(tmp_path))  # a folder of folders
    assert_rows(source(group))
    assert_rows(source((group["labels"], group["probs"])))
    first = source(path).fingerprint()
    group["probs"][30] = P[30]
    assert source(path).fingerprint() != first
    group["probs"][30, 1] = 7
    message_of(path, r"m.zarr: `probs\[30, 1\]` is 7, expected a probability")
    message_of(path / "probs", "is one array, expected a group with arrays")


# -- Hugging Face


def test_hugging_face():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"probs": P.tolist(), "label": Y.tolist(), "text": ["x"] * N})
    assert_rows(source(data))
    again = datasets.Dataset.from_dict({"probs": P.tolist(), "label": Y.tolist(), "text": ["x"] * N})
    assert source(again).fingerprint() == source(data).fingerprint()
    assert_rows(source(data.select(range(N - 1, -1, -1))), Y[::-1], P[::-1])
    assert_rows(source(data.to_iterable_dataset()), n=None)
    assert_rows(
        source(datasets.IterableDataset.from_generator(lambda: ({"p": p, "y": y} for y, p in zip(Y, P.tolist())))),
        n=None,
    )
    message_of(data.remove_columns("label"), "no column of labels; the data set has the columns 'probs', 'text'")


# -- libraries that are not there


@pytest.mark.parametrize(
    ("library", "name", "message"),
    [
        ("pyarrow", "m.parquet", "reading .parquet files needs pyarrow; pip install 'kcalib[parquet]'"),
        ("h5py", "m.h5", "reading HDF5 files needs h5py; pip install 'kcalib[hdf5]'"),
        ("zarr", "m.zarr", "reading Zarr folders needs zarr; pip install 'kcalib[zarr]'"),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, library, name, message):
    path = tmp_path / name
    if name == "m.zarr":
        path.mkdir()
        (path / "zarr.json").write_text(json.dumps({}))
    else:
        path.write_bytes({"m.parquet": b"PAR1", "m.h5": b"\x89HDF\r\n\x1a\n"}[name])

    def missing(wanted):
        raise ModuleNotFoundError(wanted)

    monkeypatch.setattr(content.importlib, "import_module", missing)
    for kind in (ImportError, ValueError):
        with pytest.raises(kind) as caught:
            source(path)
        assert str(caught.value) == f"{path}: {message}"
    assert library in message


# -- memory


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["m.parquet", "m.csv", "m.h5", "m.zarr"])
def test_memory_is_that_of_a_chunk(tmp_path, kind):
    """Of 24 MB and more on disk a process holds a chunk of 120 KB, or what its format keeps together."""
    n, m = 300_000, 10
    p = np.random.default_rng(0).dirichlet(np.ones(m), size=n)
    y = np.zeros(n, dtype=np.int8)
    path = tmp_path / kind
    if kind == "m.parquet":
        pa = pytest.importorskip("pyarrow")
        written(path, pa.table({**{f"p{i}": p[:, i] for i in range(m)}, "y": y}), 20_000)
    elif kind == "m.csv":
        n = 30_000
        header = ",".join([f"p{i}" for i in range(m)]) + ",y"
        np.savetxt(path, np.column_stack([p, y])[:n], "%.17g", ",", header=header, comments="")
    elif kind == "m.h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.create_dataset("p", data=p, chunks=(5000, m), compression="gzip", compression_opts=1)
            file["y"] = y
    else:
        group = pytest.importorskip("zarr").open_group(str(path), mode="w")
        for name, array in (("p", p), ("y", y)):
            chunks = (5000, *array.shape[1:])
            group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks)[:] = array
    code = f"""
import numpy as np, kcalib
from kcalib.streaming import source
samples = source({str(path)!r})
next(samples.chunks(1500))
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])
before = peak()
print(sum(len(p) for y, p in samples.chunks(1500)), peak() - before)
"""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no peak of the resident memory")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == n and grown < 18_000, f"{grown} KB"
