"""Frames with a column for each quantile, as from sktime, GluonTS, AutoGluon, darts and Nixtla."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kcalib._input.columns import LABEL_NAMES, FileError
from kcalib.streaming.forecast_tables.results import ModelForecasts, keep_complete
from kcalib.streaming.forecast_tables.table import Column, Table, listed
from kcalib.streaming.sources.text import is_number

NUMBER = r"(\d*\.?\d+(?:\.0)?)"
# Names of columns, with the level as coverage in percent, percent, or fraction.
NIXTLA = re.compile(rf"(.+)-(lo|hi)-{NUMBER}")
MEDIAN = re.compile(r"(.+)-median")
PERCENT = re.compile(rf"(?:(.+)-q-|[pq](?=\d\d)){NUMBER}")  # TimeGPT, and p10 of GluonTS
LEVEL = re.compile(r"(?:(.+?)?[-_.]?q(?:l|uantile)?[-_]?)?(0?\.\d+)")  # 0.1 of AutoGluon, y_q0.10 of darts, M_ql0.1
SIDES = {"lower": -1, "lo": -1, "upper": 1, "hi": 1}


def find_quantiles(names: Iterable[Any]) -> dict[str, dict[Any, Any]]:
    """Return for each model its columns by the level of their quantiles; empty for other tables."""
    names = list(names)
    models: dict[str, dict[Any, Any]] = {}
    if "p0" in names or "p1" in names or all(is_number(str(name)) for name in names):
        return models  # probabilities of classes, or no header
    for name in names:
        model, level = _parse(name)
        columns = models.setdefault(model, {})
        if level in columns and level is not None:
            raise FileError(f"the columns {columns[level]!r} and {name!r} both have the level {level:g}; drop one")
        columns[level] = name
    for columns in models.values():
        columns.pop(None, None)
    return {model: columns for model, columns in models.items() if len(columns) > 1}


def _parse(name: Any) -> tuple[str, float | None]:
    """Return the model and the level in the name of a column; None for other columns."""
    if isinstance(name, tuple):  # of sktime: variable, coverage or level, and the side
        side = SIDES.get(name[2]) if len(name) == 3 else 0
        is_quantile = len(name) in (2, 3) and side is not None and isinstance(name[1], (int, float))
        return str(name[0]), round((1 + side * name[1]) / 2 if side else name[1], 12) if is_quantile else None
    text = str(name)
    if match := NIXTLA.fullmatch(text):
        return match[1], round((1 + SIDES[match[2]] * float(match[3]) / 100) / 2, 12)
    if match := PERCENT.fullmatch(text):
        return match[1] or "", round(float(match[2]) / 100, 12)
    if match := LEVEL.fullmatch(text):
        return match[1] or "", float(match[2])
    match = MEDIAN.fullmatch(text)
    return (match[1], 0.5) if match else ("", None)


def read_wide(table: Table, targets: Any, name: str, sort: bool) -> Iterator[ModelForecasts]:
    """Yield the forecasts of each model; targets are an array, a table, or a column of the table."""
    models = find_quantiles(table.columns)
    quantiles = {column for columns in models.values() for column in columns.values()}
    tasks = {name: column for name, column in table.columns.items() if name not in quantiles}
    if isinstance(targets, Table):
        true = targets.find_targets(tasks)
        _check_once(tasks)
    elif targets is not None:
        true = targets
        if true.shape != (table.n,):
            raise FileError(f"`targets` has shape {true.shape}, expected ({table.n},): one for each row")
    else:
        label = next((name for name in (*LABEL_NAMES, "observation") if name in tasks), None)
        if label is None:
            remedy = "pass `targets`, or add y"
            if all(is_number(str(column)) for column in quantiles):
                remedy += "; the first line must hold names of columns"
            raise FileError(f"there are no targets: the table has {listed(tasks)} beside quantiles; {remedy}")
        true = tasks.pop(label).numbers(label)
    for model, columns in models.items():
        levels = sorted(columns)
        values = np.stack([table.columns[columns[level]].numbers(columns[level]) for level in levels], axis=1)
        yield keep_complete(
            model or name, true, values, levels, {k: c.array() for k, c in tasks.items()}, sort, table.n
        )


def _check_once(tasks: Mapping[Any, Column]) -> None:
    """Refuse several rows for the same task, whose target would count twice."""
    _, first, counts = np.unique(
        np.stack([column.codes for column in tasks.values()]), axis=1, return_index=True, return_counts=True
    )
    for row in first[counts > 1]:
        where = ", ".join(f"{name} {column.shown[column.codes[row]]}" for name, column in tasks.items())
        raise FileError(f"there are several rows of {where}; drop all but one, or add the column that tells them apart")
