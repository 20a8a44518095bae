"""Files that the command writes, on a disk that is full at any byte."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from command_runs import ran

from kcalib._command.cli import main

SMALL = ("--columns", "16", "--resamples", "9", "--threads", "1")
NOT_SAVED = "out.kcalib: File too large, the state was not saved and the file is as it was"
# What writes a file, the file, and what is said of one that cannot be written.
WRITING = {
    "plot": (
        ("evaluate", "a.npz", "--plot", "out.svg", "--threads", "1"),
        "out.svg",
        "out.svg: cannot write the picture: File too large",
    ),
    "update": (("update", "out.kcalib", "b.npz", "--part", "1", *SMALL), "out.kcalib", f"b.npz: {NOT_SAVED}"),
    "merge": (("merge", "a.kcalib", "b.kcalib", "-o", "out.kcalib"), "out.kcalib", NOT_SAVED),
    "checkpoint": (
        ("evaluate", "a.npz", "--checkpoint", "out.kcalib", *SMALL),
        "out.kcalib",
        f"a.npz: --checkpoint {NOT_SAVED}",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rng = np.random.default_rng(0)
    for part, name in enumerate(("a", "b")):
        p = rng.dirichlet(np.ones(3), size=300)
        np.savez(f"{name}.npz", labels=p.argmax(axis=1), probs=p)
        ran("update", f"{name}.kcalib", f"{name}.npz", "--part", part, *SMALL)
    return tmp_path


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("what", [pytest.param("plot", marks=pytest.mark.grid), "update", "merge", "checkpoint"])
def test_a_disk_that_is_full_at_any_byte(folder, capsys, what):
    """Exit code 1, a line that names the file, and the old file as it was."""
    resource = pytest.importorskip("resource")
    arguments, out, message = WRITING[what]
    if what == "plot":
        pytest.importorskip("matplotlib")
    if what != "checkpoint":  # which refuses a file that is there
        Path(out).write_bytes(Path("a.kcalib").read_bytes())
    before = contents(folder)
    ran(*arguments)
    size, most = Path(out).stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    for k in (0, size - 1) if what == "plot" else (0, 1, size // 2, size - 1):
        os.remove(out)
        if out in before:
            Path(out).write_bytes(before[out])
        capsys.readouterr()
        resource.setrlimit(resource.RLIMIT_FSIZE, (k, most[1]))
        try:
            assert main([*arguments]) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        assert capsys.readouterr().err == f"kcalib: error: {message}\n"
        assert contents(folder) == before
        Path(out).touch()
