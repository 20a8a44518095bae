"""Files and names that somebody else has made: what they cost before they are checked, and what others open."""

import csv
import gzip
import io
import xml.etree.ElementTree

import numpy as np
import pytest

import kcalib
from kcalib._backend import memory
from kcalib._command.cli import main

N, M = 20_000, 8  # 1.3 MB of float64


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_samples(name):
    y, p = np.zeros(N, dtype=np.int64), np.full((N, M), 1 / M)
    if name.endswith(".npz"):
        np.savez_compressed(name, labels=y, probs=p)
    elif name.endswith(".npy"):
        np.save("labels.npy", y)
        np.save(name, p)
    else:
        lines = ["label," + ",".join(f"p{c}" for c in range(M)), *["0" + f",{1 / M}" * M] * N]
        opener = gzip.open if name.endswith(".gz") else open
        with opener(name, "wt") as file:
            file.write("\n".join(lines))


@pytest.mark.parametrize("name", ["s.npz", "probs.npy", "s.csv", "s.csv.gz"])
def test_files_that_do_not_fit_into_memory_are_refused_before_they_are_read(folder, monkeypatch, capsys, name):
    write_samples(name)
    monkeypatch.setattr(memory, "available_memory", lambda: 2**20 + 1)
    assert main(["evaluate", name]) == 1
    error = capsys.readouterr().err
    assert "not enough memory (all samples at once take 1." in error
    assert "1 MiB are available; read them in pieces (--stream)" in error
    # The remedy works.
    assert main(["evaluate", name, "--stream", "--bandwidth", "1"]) == 0


def test_an_array_by_columns_is_refused_if_it_does_not_fit(folder, monkeypatch, capsys):
    y, p = np.zeros(N, dtype=np.int64), np.full((N, M), 1 / M)
    np.savez_compressed("columns.npz", labels=y, probs=np.asfortranarray(p))
    np.savez_compressed("rows.npz", labels=y, probs=np.ascontiguousarray(p))
    monkeypatch.setattr(memory, "available_memory", lambda: 2**20 + 1)
    assert main(["evaluate", "columns.npz", "--stream", "--bandwidth", "1"]) == 1
    assert "stored by columns, take 1.22 MiB of memory" in capsys.readouterr().err
    assert main(["evaluate", "rows.npz", "--stream", "--bandwidth", "1"]) == 0


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=60)
    return (rng.uniform(size=(60, 1)) > np.cumsum(p, axis=1)).sum(axis=1), p


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_no_cell_of_csv_begins_as_a_formula(folder, capsys, samples, name):
    y, p = samples
    for file in (f"{name}.npz", "other.npz"):
        np.savez(file, labels=y, probs=p)
    files = ["--", f"{name}.npz", "other.npz"]
    for command in (["evaluate", "--csv"], ["compare", "--metric", "brier_score", "--csv"]):
        assert main([*command, *files]) == 0
        rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
        texts = [cell for row in rows for cell in row]
        assert not any(cell[:1] in tuple("=+@\t\r") or cell == "-1" for cell in texts)
        if name.isprintable():
            assert f"'{name}" in texts


CONTROLS = "\0\x1b[31m\r\u202e\u2066"


def test_pages_and_pictures_escape_control_characters(folder, samples):
    pytest.importorskip("matplotlib")
    from kcalib.report import page

    y, p = samples
    evaluation = kcalib.evaluate(y, p, classes=[0, 1, 2], method="block")
    assert set(page.escape(f"a{CONTROLS}b\nc")) & set(CONTROLS) <= set("[31m")
    text = page.svg(lambda: named_figure(f"a{CONTROLS}b"), "a")
    assert "\\x00\\x1b[31m" in text
    xml.etree.ElementTree.fromstring(text.removeprefix("<figure>").removesuffix("</figure>"))
    assert not set(evaluation._repr_html_()) & set(CONTROLS[:2])


def named_figure(name):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.set_title(name, parse_math=False)
    return axes


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_labels_beyond_unicode_are_refused(folder, capsys, order, options):
    labels = np.array([97, 98, 0x110000, 97], dtype=f"{order}u4").view(f"{order}U1")
    np.savez("s.npz", labels=labels, probs=np.full((4, 2), 0.5))
    assert main(["evaluate", "s.npz", *options]) == 1
    assert "is not text: it holds the number 0x110000, expected code points up to 0x10ffff" in capsys.readouterr().err
