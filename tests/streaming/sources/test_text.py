"""Text files are read alike with and without pyarrow, block by block or cell by cell: values, errors, places."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from file_contents import read_contents

from kcalib._input.columns import FileError
from kcalib.streaming import source
from kcalib.streaming.sources import text
from kcalib.streaming.sources.text import import_arrow_csv

needs_pyarrow = pytest.mark.skipif(import_arrow_csv() is None, reason="pyarrow is not installed")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of some lines, so that files of few lines have several."""
    monkeypatch.setattr(text, "BLOCK_BYTES", 48)
    monkeypatch.setattr(text, "BLOCK_HEADERS", 0)


def both(monkeypatch, read):
    """What is read, or its error, with pyarrow and without."""
    found = []
    for reader in (import_arrow_csv, lambda: None):
        monkeypatch.setattr(text, "import_arrow_csv", reader)
        try:
            found.append(read())
        except FileError as error:
            found.append(str(error))
    return found


def assert_alike(monkeypatch, read):
    fast, slow = both(monkeypatch, read)
    if isinstance(slow, str):
        assert fast == slow
        return slow
    for one, other in zip(fast, slow, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other, strict=True)
    return slow


def whole(path, **options):
    found = read_contents(path, **options)
    return found.y_pred, found.y_true, found.classes


CELLS = (
    ["0.5", "1", "0", "+0.25", ".5", "5.", "1e-3", "1E-320", "2.47e-324", "-0", " 0.5", "0.5 ", "\t0.5", "0.5\xa0"]
    + ["0.1000000000000000055511151231257827021181583404541015625", "0.30000000000000004", "\u0660.\u0665"]
    + ["9007199254740993"]
    + ["0.1_5", "", "nan", "inf", "1e999", "nan(3)", "0x1", "True", "high", "+-1", "1,5", '"0.5"']
    + ["\0"]
)
LABELS = ["cat", " cat ", '"cat"', '"a ""b"" c"', "0", "01", "+1", "1.0", "True", "FALSE", "", "é", "\udcff", "a_b"]


@needs_pyarrow
def test_every_cell_is_read_alike(tmp_path, monkeypatch, small_blocks):
    """A cell of each kind in a column of probabilities, or of labels."""
    path = tmp_path / "m.csv"
    outcomes = set()
    cells = [(cell, "cat") for cell in CELLS] + [("0.5", label) for label in LABELS]
    for cell, label in cells:
        rows = [["0.5", "0.25", "x", "cat"] for _ in range(13)]
        rows[7] = ["0.125", cell, "y", label]
        lines = ["p_cat,p_dog,z,y", *map(",".join, rows), ""]
        path.write_bytes("\r\n".join(lines).encode("utf-8", "surrogateescape"))
        outcomes.add(type(assert_alike(monkeypatch, lambda: whole(path))))
    assert outcomes == {str, tuple}


@pytest.mark.parametrize("pyarrow", [False, pytest.param(True, marks=needs_pyarrow)])
def test_place_of_a_cell_that_is_wrong(tmp_path, monkeypatch, small_blocks, pyarrow):
    if not pyarrow:
        monkeypatch.setattr(text, "import_arrow_csv", lambda: None)
    path = tmp_path / "m.csv"
    good = "id,p_0,p_1,y\n" + "".join(f"{i},0.5,0.5,{i % 2}\n" for i in range(40)) + "\n"
    for line, match in {
        "40,0.5,0.1_5,1": r"line 43, column 'p_1' is '0.1_5', expected a number",
        "40,0.5,x,1": r"line 43, column 'p_1' is 'x', expected a number",
        "40,0.5,0.5,": r"line 43, column 'y' is empty",
        "40,0.5,0.5": r"line 43 has 3 cells, expected 4",
        "40,0.5,0.5,\udcff": r"line 43 is not UTF-8 text",
        '40,0.5,"0.5,1': r"line \d+ is not CSV",
    }.items():
        path.write_bytes((good + line + "\n41,0.5,0.5,1\n").encode("utf-8", "surrogateescape"))
        with pytest.raises(FileError, match=match):
            read_contents(path)
        with pytest.raises(FileError, match="m.csv: " + match):
            list(source(path).chunks(9))
        with pytest.raises(FileError, match="m.csv: " + match):
            list(source(path).chunks(9, 37))


def test_whole_numbers_at_the_end_are_probabilities(tmp_path, small_blocks):
    """Of a column that has others before; alone they look like predicted labels."""
    (tmp_path / "m.csv").write_text("p,y\n" + "0.5,1\n" * 20 + "1,1\n0,0\n")
    pred = source(tmp_path / "m.csv").read(20, 22)[1]
    assert pred.dtype == np.float64 and pred.tolist() == [1, 0]
    assert [len(pred) for _, pred in source(tmp_path / "m.csv").chunks(20)] == [20, 2]
    (tmp_path / "m.csv").write_text("p,y\n" + "1,1\n0,0\n" * 20)
    with pytest.raises(TypeError, match="looks like predicted labels"):
        source(tmp_path / "m.csv").read(20, 22)


@needs_pyarrow
@pytest.mark.grid
def test_fast_reading_does_not_import_pandas(tmp_path):
    (tmp_path / "m.csv").write_text("p,y\n" + "0.5,1\n0.25,0\n" * 100_000)
    code = (
        "import sys; from kcalib.streaming import source; "
        f"y, p = source({str(tmp_path / 'm.csv')!r}).read(0, 200_000); "
        "assert p.shape == (200_000,) and 'pyarrow' in sys.modules; print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("pyarrow", [False, pytest.param(True, marks=needs_pyarrow)])
def test_thousands_of_columns_in_linear_time(tmp_path, monkeypatch, pyarrow):
    if not pyarrow:
        monkeypatch.setattr(text, "import_arrow_csv", lambda: None)
    m = 21_843
    header = ",".join([*(f"probs_{i}" for i in range(m)), "y"])
    (tmp_path / "m.csv").write_text(header + "\n" + (",".join(["0.5"] * m) + ",7\n") * 2)
    begin = time.process_time()
    found = read_contents(tmp_path / "m.csv")
    assert found.y_pred.shape == (2, m) and found.y_true.tolist() == [7, 7]
    assert time.process_time() - begin < 3  # it was ten seconds


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_and_devices_are_refused(tmp_path):
    """Opening a pipe that nobody writes to would wait forever."""
    for name in ("m.csv", "m.npz", "m.parquet"):
        os.mkfifo(tmp_path / name)
        for read in (read_contents, source):
            with pytest.raises(FileError, match="is a pipe, expected a file.* named -"):
                read(tmp_path / name)
    (tmp_path / "n.csv").symlink_to("/dev/zero")
    with pytest.raises(FileError, match="is a device, expected a file"):
        read_contents(tmp_path / "n.csv")


def test_names_of_files_are_shown_without_what_terminals_obey(tmp_path):
    path = tmp_path / "a\x1b[31m\nb\u202e.csv"
    path.write_text("p,y\nx,1\n")
    with pytest.raises(FileError) as caught:
        list(source(path).chunks(3))
    assert r"a\x1b[31m\nb\u202e.csv: line 2" in str(caught.value)
    path.write_text("z\n")
    with pytest.raises(FileError) as caught:
        source(path)
    assert r"a\x1b[31m\nb\u202e.csv: there is no column" in str(caught.value)
