"""The landing page's numbers: those of docs/performance_table.txt, whatever stands in it."""

from __future__ import annotations

import ast
import re

import pytest
from scripts import DOCS, load_script


@pytest.fixture(scope="module")
def script():
    return load_script("speed_summary")


def test_the_page_says_what_the_table_says(script):
    """Each number is in the table's text, or one division or product away from it."""
    text = (DOCS / "performance_table.txt").read_text()
    table = script.read(text)
    said = dict(script.summary(table))
    row = re.search(r"^skce, n = 1e\+07, 2 threads +(.*)$", text, re.M)[1].split("<=")[0].split()[-1]
    assert said["SKCE of 10 million binary forecasts"].split()[0] == f"{float(row):.1f}"
    ours, numpy = (re.search(rf"^{name}, 2 threads +(.*)$", text, re.M)[1] for name in ("kcalib", "numpy_tiled"))
    ours, numpy = (float(re.sub(r"[<>]=.*|[\d.]+ times.*", "", row).split()[-1]) for row in (ours, numpy))
    assert float(said["the same by NumPy, in tiles"].split()[0]) == pytest.approx(numpy / ours, abs=0.06)
    assert said["SKCE over all pairs of 10,000 samples, 10 classes"] == f"{ours * 49.995:.0f} ms"
    yes, no = (len(re.findall(rf"[<>]= \S+ +{word}$", text, re.M)) for word in ("yes", "no"))
    assert said["bars of the whole table that are met"] == f"{yes} of {yes + no}" and yes
    assert table.cpu in text and ".. speed-summary::" in (DOCS / "index.rst").read_text()


def test_its_rows_are_what_the_program_prints(script):
    source = (DOCS.parent / "asv_benches" / "table.py").read_text()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    titles = {ast.get_docstring(one): ast.get_source_segment(source, one) for one in functions}
    for _, _, title, name, _ in script.ROWS:
        (text,) = (text for one, text in titles.items() if one and one.startswith(title))
        if title != script.PAIR:  # whose names are those of bench_peers
            stem = re.split(r", (?:n = |float64|\d|microseconds)", name)[0].removesuffix(" of 10 samples")
            assert stem in text or stem == "top_label_ece", name


@pytest.mark.parametrize("before", ["", "0.5"])
def test_columns_are_told_apart(script, before):
    """What is new has nothing before."""
    old = [f"{one:>10}" if before else "" for one in ("before", before, "")]
    rows = ["  measured  bar       within", "      0.25  <= 0.3    yes", "      1234  >= 2e+03  no"]
    names = [" " * 8, "a, n = 1", "b       "]
    lines = [name + one + row for name, one, row in zip(names, old, rows, strict=True)]
    table = script.read("\n".join(["A title: 3", *lines, "", "CPU: one", "kcalib 1", ""]))
    assert table.sections == {"A title: 3": {"a, n = 1": 0.25, "b": 1234.0}}
    assert table.verdicts == ("yes", "no") and table.cpu == "one"
    assert table.section("A title")["b"] == 1234 and table.section("Another") == {}
