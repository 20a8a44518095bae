"""Published numbers of recalibrators on the logits of a ResNet-110; the variable KCALIB_DATA names their folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = os.environ.get("KCALIB_DATA", "")

spec = importlib.util.spec_from_file_location("recalibrators_table", DOCS / "scripts" / "recalibrators_table.py")
table = importlib.util.module_from_spec(spec)
# Dataclasses look their module up.
sys.modules[spec.name] = table
spec.loader.exec_module(table)

pytestmark = pytest.mark.skipif(
    not (Path(FOLDER) / table.NAME).is_file(), reason=f"KCALIB_DATA does not name a folder with {table.NAME}"
)


def documented() -> dict[str, list[str]]:
    """Rows of docs/recalibrators_table.txt: loss, Brier score, ECE, class-wise ECE, SKCE, its error, p, wrong."""
    lines = (DOCS / "recalibrators_table.txt").read_text().splitlines()
    return {line[:22].strip(): line[22:].split() for line in lines[1 : lines.index("")]}


def test_published_numbers():
    """Of Kull et al. 2019, table 3 and its notebook; those of temperature scaling to all printed digits."""
    validation, test = table.parts(FOLDER)
    found = {
        name: table.scores(test.y, table.repaired(name, validation, test))
        for name in ("as given", "temperature", "vector")
    }
    for name in ("as given", "temperature"):
        published = table.PUBLISHED[name]
        assert np.allclose(found[name][:3], published[:3], rtol=0, atol=2e-6)
        assert np.allclose(found[name][:2], published[:2], rtol=0, atol=5.1e-7)
        # Their lowest bin is open at 0, and edges are sums: a few probabilities lie in the next bin.
        assert found[name][3] == pytest.approx(published[3], abs=2e-4)
    assert found["vector"][0] == pytest.approx(0.206, abs=1e-3)
    assert found["vector"][3] == pytest.approx(0.036, abs=1.5e-3)


def test_documented_dirichlet_calibration_is_near_the_published():
    """They take means over five fits, whose regularisation is chosen, so that digits differ."""
    rows, published = documented(), table.PUBLISHED
    for name, ours in (("dirichlet", "dirichlet, 10"), ("matrix", "matrix, 10")):
        loss, brier = (float(rows[ours][k]) for k in range(2))
        assert loss == pytest.approx(published[name][0], abs=1.5e-3)
        assert brier == pytest.approx(published[name][1], abs=1e-4)
        assert loss < published["temperature"][0]


@pytest.mark.slow
def test_documented_table():
    """After a change: KCALIB_DATA=folder python docs/scripts/recalibrators_table.py > docs/recalibrators_table.txt."""
    validation, test = table.parts(FOLDER)
    rows = documented()
    found = table.rows(validation, test)
    assert [row.name for row in found] == list(rows)
    for row in found:
        numbers = [float(x) for x in rows[row.name]]
        skce = row.skce
        ours = [row.loss, row.brier, row.ece, row.class_wise, 1e4 * skce.value, 1e4 * skce.standard_error]
        assert np.allclose(ours, numbers[:6], rtol=1e-4, atol=6e-4), row.name
        assert row.p_value == pytest.approx(numbers[6], rel=0.5)
        assert 100 * row.error == pytest.approx(numbers[7], abs=0.02)
    lines = (DOCS / "recalibrators_table.txt").read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("choice by"))
    assert table.choice_lines(validation, test)[0] == lines[start]
