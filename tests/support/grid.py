"""Grids of tests: every backend, level or library with every problem, of which the quick tests keep a part."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from libraries import LIBRARIES, is_installed


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Mark as `grid` what is between the first and the last case of each test, unless the test itself marks some.

    Cases that need what is not installed, or that only other marks choose, are not counted.
    """
    cases = collections.defaultdict(list)
    for item in items:
        if not _never_runs_here(item):
            cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        if not any(item.get_closest_marker("grid") for item in group):
            for item in group[1:-1]:
                item.add_marker(pytest.mark.grid)


def _never_runs_here(item: pytest.Item) -> bool:
    library = item.callspec.params.get("xp") if hasattr(item, "callspec") else None
    is_missing = library in LIBRARIES and not (library == "cupy-emulated" or is_installed(library.partition("-")[0]))
    return is_missing or any(item.get_closest_marker(name) for name in ("slow", "gpu", "cluster", "slurm"))


def some(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Values of a parameter, of which all but those that are `kept` are marked `grid`."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.grid) for value in values]


def sampled(rows: Iterable[Any], columns: Collection[Any], every: int) -> list[Any]:
    """All pairs, of which each `every`-th of a row, and so of a column, is without the mark `grid`."""
    return [
        pytest.param(row, column, id=f"{row}-{column}", marks=[pytest.mark.grid] if (i + j) % every else [])
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def cells(
    columns: Iterable[Any], problems: Iterable[Any], *, in_full: Collection[str], few: Collection[str]
) -> list[Any]:
    """Parameters (column, problem), of columns by name and problems by `pytest.param`s of one value with an id.

    The columns `in_full` have each problem without a mark; the others only the `few`, and the rest is marked `grid`.
    """
    columns = [column if hasattr(column, "values") else pytest.param(column) for column in columns]
    problems = list(problems)
    unknown = set(few) - {problem.id for problem in problems}
    assert not unknown, f"no such problems: {unknown}"
    found = []
    for problem in problems:  # in one go for all columns, which share its oracle
        for column in columns:
            (name,) = column.values
            beyond = name not in in_full and problem.id not in few
            marks = [*column.marks, *problem.marks, *([pytest.mark.grid] if beyond else [])]
            found.append(pytest.param(name, *problem.values, id=f"{name}-{problem.id}", marks=marks))
    return found
