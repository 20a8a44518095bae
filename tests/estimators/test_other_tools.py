"""The table of other tools' numbers: what it says is ours is what this version computes."""

from __future__ import annotations

import re

import pytest
from scripts import DOCS, load_script


def test_the_table_says_what_is_computed():
    script = load_script("other_tools")
    table = (DOCS / "other_tools_table.txt").read_text()
    entries = re.findall(r"^(\d\.\d+)  (\S+): .*\n(\d\.\d+)  (.*)\n( {8}.*)?", table, re.M)
    assert len(entries) == len(script.ROWS)
    for (theirs, tool, ours, call, why), row in zip(entries, script.ROWS, strict=True):
        assert (tool, call, why.strip()) == (row.tool, row.our_call, row.why)
        assert float(ours) == pytest.approx(script.numbers(call), abs=6e-7)
        assert (abs(float(ours) - float(theirs)) > 2e-6) == bool(why), row
