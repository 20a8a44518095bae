"""What the tutorial and the API page show: what the program prints, and nothing of the inside."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from kcalib._command.cli import main

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.rst").read_text()


def _rows(table: str) -> list[dict[str, str]]:
    """Rows of a table whose last column may hold spaces, and others at most one."""
    names, *rows = (re.split(r"\s{2,}", line.strip()) for line in table.strip().splitlines())
    return [dict(zip(names, row, strict=True)) for row in rows]


def _numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"(?<![\w.])-?\d+\.?\d*(?:e[+-]\d+)?(?![\w.])", text)]


@pytest.mark.grid  # some ten seconds: the demo with all its defaults
def test_the_table_of_the_tutorial_is_the_demos(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["demo", "--threads", "2"]) == 0
    table = TUTORIAL.partition("Shown here without some of its columns:\n\n.. code-block:: none\n\n")[2]
    shown = _rows(table.partition("\n\n")[0])
    printed = _rows(capsys.readouterr().out.partition("\n\n")[0])
    assert len(shown) == 6
    for row, other in zip(shown, printed, strict=True):
        for name, text in row.items():
            # The last printed digit may differ between instruction levels.
            assert _numbers(text) == pytest.approx(_numbers(other[name]), rel=0.01)
            assert re.sub(r"[\d.e+-]+", "#", text) == re.sub(r"[\d.e+-]+", "#", other[name])


def test_the_api_page_shows_nothing_of_the_inside():
    """Docstrings of modules that the page includes name no private modules, and no files."""
    pages = sorted((ROOT / "docs" / "api").glob("*.rst"))
    page = "\n".join(one.read_text() for one in [ROOT / "docs" / "api.rst", *pages])
    texts = {name: importlib.import_module(name).__doc__ for name in re.findall(r"automodule:: (\S+)", page)}
    assert len(texts) >= 3
    for name, text in (texts | {"api.rst": page}).items():
        assert not re.findall(r"`_\w+`|\w+\.py\b|``[A-Z]\w+`` \(`_", text), name
