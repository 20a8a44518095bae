"""Long tables of hubs: a row for each quantile, sample or category of a forecast, named by `output_type`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcalib._input.columns import FileError
from kcalib.distributions import Categorical, Distribution, Samples
from kcalib.streaming.forecast_tables.results import (
    CROSSING,
    ModelForecasts,
    count_reasons,
    find_crossing,
    make_quantiles,
)
from kcalib.streaming.forecast_tables.table import MODEL, Column, Table, listed

FIELDS = ("output_type", "output_type_id", "value")
TYPES = ("quantile", "sample", "pmf")


def read_hub(table: Table, targets: Table, name: str, sort: bool) -> Iterator[ModelForecasts]:
    """Yield the forecasts of each model, `target` and output type."""
    columns, nothing = table.columns, np.zeros(table.n, np.int64)
    for field in FIELDS:
        if field not in columns:
            raise FileError(f"there is no column {field!r}; the table has {listed(columns)}: rename or add it")
    tasks = {name: column for name, column in columns.items() if name not in (*FIELDS, *MODEL)}
    if not tasks or not table.n:
        raise FileError(
            f"there are {table.n} rows and the columns of tasks {listed(tasks)}, expected at least one of both"
        )
    model = next((columns[key] for key in MODEL if key in columns), Column.of_values(nothing, [name]))
    subject = tasks.get("target", Column.of_values(nothing, [""]))
    kind, task = columns["output_type"], nothing
    for column in tasks.values():
        task = np.unique(task * len(column.keys) + column.codes, return_inverse=True)[1]
    is_type = np.isin(kind.shown, TYPES)[kind.codes]
    if not is_type.any():
        raise FileError(f"the output types are {listed(kind.shown.tolist())}, expected one of {', '.join(TYPES)}")
    groups = np.unique(np.stack([model.codes, subject.codes, kind.codes], axis=1)[is_type], axis=0)
    of_numbers = groups[kind.shown[groups[:, 2]] != "pmf", 1]
    if "target" not in targets.columns and len(np.unique(of_numbers)) > 1:
        raise FileError("the forecasts have several targets, but the table of targets has no column 'target'; add it")
    n_subjects, n_kinds = (len(np.unique(groups[:, i])) for i in (1, 2))
    for m, s, k in groups.tolist():
        names = [model.shown[m], *[subject.shown[s]] * (n_subjects > 1), *[kind.shown[k]] * (n_kinds > 1)]
        rows = np.flatnonzero(model.codes == m)
        reasons = np.full(len(rows), "another output type", dtype=object)
        reasons[(kind.codes[rows] == k) & (subject.codes[rows] != s)] = "another target"
        is_part = (kind.codes[rows] == k) & (subject.codes[rows] == s)
        part = Table({name: column.take(rows[is_part]) for name, column in columns.items()}, int(is_part.sum()))
        forecasts = {name: part.columns[name] for name in tasks}
        y_true, y_pred, first, reasons[is_part] = _read_part(
            ": ".join(names), part, forecasts, task[rows[is_part]], targets, sort
        )
        yield ModelForecasts(
            ": ".join(names), len(first), y_true, y_pred,
            {str(name): column.take(first).array() for name, column in forecasts.items()},
            len(rows), int(np.sum(reasons == "")), count_reasons(reasons.tolist()),
        )  # fmt: skip


def _read_part(
    name: str, part: Table, tasks: dict[str, Column], task: np.ndarray, targets: Table, sort: bool
) -> tuple[np.ndarray | None, Distribution | None, np.ndarray, np.ndarray]:
    """Return targets and forecasts of one type, the first row of each, and why rows are not used."""
    kinds, ids, values = (part.columns[field] for field in FIELDS)
    kind, numbers = str(kinds.shown[kinds.codes[0]]), values.numbers(FIELDS[2])
    _, first, task = np.unique(task, return_index=True, return_inverse=True)
    order = np.argsort(first)  # in which the table has the tasks
    first, task = first[order], np.argsort(order)[task]
    used, begin, place = np.unique(ids.codes, return_index=True, return_inverse=True)
    if kind == "sample":  # whose numbers may go on over tasks
        by_task = np.argsort(task, kind="stable")
        place[by_task] = np.arange(part.n) - np.searchsorted(task[by_task], task[by_task])
    else:  # categories as they come
        levels = ids.numbers(FIELDS[1])[begin] if kind == "quantile" else begin
        order = np.argsort(levels)
        place = np.argsort(order)[place]
    matrix = np.full((len(first), place.max() + 1), np.nan)
    matrix[task, place] = numbers
    entry, again = np.unique(task * len(ids.keys) + ids.codes, return_index=True)
    if len(entry) < part.n:
        row = int(np.setdiff1d(np.arange(part.n), again)[0])
        where = ", ".join(f"{field} {column.shown[column.codes[row]]}" for field, column in tasks.items())
        raise FileError(f"output_type_id {ids.shown[ids.codes[row]]} appears twice for {where}; drop one of the rows")
    patterns, counts = np.unique(~np.isnan(matrix), axis=0, return_counts=True)
    columns = patterns[max(range(len(counts)), key=lambda i: (counts[i], patterns[i].sum()))]
    true = targets.find_targets({name: column.take(first) for name, column in tasks.items()}, is_pmf=kind == "pmf")
    is_whole = np.asarray(~np.isnan(matrix[:, columns]).any(axis=1))
    if kind == "pmf":
        codes = used[order][columns]
        classes, of_key = ids.shown[codes].tolist(), dict(zip(ids.keys[codes], ids.shown[codes], strict=True))
        true = np.asarray([of_key.get(key, "") for key in true])
    has_target = true != "" if kind == "pmf" else ~np.isnan(true)
    reasons = np.full(part.n, "", dtype=object)
    reasons[~has_target[task]] = "no target" + (" among the categories" if kind == "pmf" else "")
    crosses = find_crossing(matrix[:, columns]) & (kind == "quantile" and not sort)
    reasons[crosses[task]] = CROSSING
    reasons[~is_whole[task]] = f"the task lacks a {kind} that most have"
    reasons[~columns[place]] = f"a {kind} that most tasks lack"
    reasons[np.isnan(numbers)] = "no value"
    rows = has_target & is_whole & ~crosses & columns.any()
    if not rows.any():
        return None, None, first[rows], reasons
    matrix, true = matrix[rows][:, columns], true[rows]
    if kind == "pmf":
        return true, Categorical(matrix, classes), first[rows], reasons
    prediction = Samples(matrix) if kind == "sample" else make_quantiles(name, levels[order][columns], matrix, sort)
    return true, prediction, first[rows], reasons
