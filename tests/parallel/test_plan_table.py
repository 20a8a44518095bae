"""The page on large clusters: what its table counts is what the plan has."""

from __future__ import annotations

import pytest
from scripts import DOCS, load_script


@pytest.fixture(scope="module")
def script():
    return load_script("plan_table")


@pytest.mark.parametrize("n", [10**6, 10**7, 10**8])
def test_tasks_are_below_ten_thousand(script, n):
    assert script.plan(n).n_tiles < 10_000


def test_the_table_is_of_this_plan(script):
    """After a change of the plan: python docs/scripts/plan_table.py > docs/plan_table.txt."""
    lines = (DOCS / "plan_table.txt").read_text().splitlines()
    plans = [script.plan(n) for n in script.SIZES]
    assert lines[1].split() == ["tiles", *(f"{plan.n_tiles:,}" for plan in plans)]
    assert lines[2].split()[4:] == [f"{plan.size:,}" for plan in plans]


def test_the_plan_is_that_of_a_problem(script):
    """Blocks and groups that the script works out are the core's."""
    from kcalib._pairs.reductions import Moments
    from kcalib.parallel.work import Prepared

    tiles = Prepared(script.problem(20_000), "cpu", 1).tiles(Moments())
    group = -(-20_000 // script.BLOCK)
    assert (tiles.block, tiles.group) == (script.BLOCK, -(-group // script.GROUPS) * script.BLOCK)
