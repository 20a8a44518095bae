"""What the README shows is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcalib._command.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()


def _numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"(?<![\w.])-?\d+\.?\d*(?:e[+-]\d+)?(?![\w.])", text)]


@pytest.mark.grid  # some ten seconds: the demo with all its defaults
def test_the_table_of_the_readme_is_the_demos(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = README.partition("<!-- demo output -->\n```text\n")[2].partition("```")[0]
    assert main(["demo", "--threads", "2"]) == 0
    printed = capsys.readouterr().out
    for line, other in zip(shown.splitlines(), printed.splitlines(), strict=True):
        # The last printed digit may differ between instruction sets.
        assert _numbers(line) == pytest.approx(_numbers(other), rel=0.01)
        assert re.sub(r"[\d.e+-]+", "#", line).split() == re.sub(r"[\d.e+-]+", "#", other).split()
