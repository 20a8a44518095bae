"""`read_forecasts`: forecasts of hubs and forecasting libraries; `share_tasks`: forecasts of the common tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._input.columns import FileError
from kcalib.streaming.forecast_tables.hub import FIELDS, read_hub
from kcalib.streaming.forecast_tables.results import CROSSING, ModelForecasts, keep_complete
from kcalib.streaming.forecast_tables.table import Column, Table, is_path, listed, read_table
from kcalib.streaming.forecast_tables.wide import find_quantiles, read_wide
from kcalib.streaming.sources.text import is_number

MEMBERS = (
    "member", "members", "number", "realization", "realisation", "ensemble", "ensemble_member", "ens", "sample", "draw",
    "chain",
)  # fmt: skip
QUANTILE = "quantile"


def read_forecasts(data: Any, targets: Any = None, *, sort_quantiles: bool = False) -> tuple[ModelForecasts, ...]:
    """Read the forecasts of each model in a table of a hub, a frame of quantiles, or an array of xarray.

    Parameters
    ----------
    data : path, list of paths, data frame, mapping of columns, or array of xarray
        The kind is recognised by names:

        - long tables of the hubverse: ``output_type`` (quantile, sample or pmf), ``output_type_id``, ``value``, columns
          of tasks, and ``model_id``; without ``model_id`` models are named after the folders of their files;
        - frames with a column for each quantile: ``AutoARIMA-lo-90``, ``-hi-90`` and ``-median`` (Nixtla), ``0.1``
          (AutoGluon), ``p10`` (GluonTS), ``y_q0.10`` (darts), and the column levels of ``predict_quantiles`` and
          ``predict_interval`` (sktime);
        - a ``DataArray`` or ``Dataset`` of xarray with a dimension ``member``, ``number``, ``realization``,
          ``ensemble``, ``sample``, ``chain`` and ``draw`` (together) or the like, or ``quantile``.

        Files are .csv, .tsv (also .gz) or .parquet.
    targets : the same, or array_like of shape (n,), optional
        A table with the targets in a column ``oracle_value``, ``observation`` or ``y``, or in the only column that the
        forecasts do not have. Targets are matched by the common columns; of several versions (``as_of``) the last is
        used. For frames of quantiles it may be an array; default: their own column ``y`` or the like. For xarray it is
        an array with the other dimensions, aligned by its coordinates.
    sort_quantiles : bool
        Whether to sort crossing quantiles. By default such forecasts are not used.

    Returns
    -------
    tuple of ModelForecasts
        One for each model, and in tables of hubs for each value of ``target`` and each output type, which are part of
        its name.

    Raises
    ------
    FileNotFoundError, OSError
        If a file does not exist or cannot be opened.
    TypeError, ValueError
        If `data` is of another kind, if a column or dimension is missing, if targets contradict each other, or if no
        row can be used.

    Notes
    -----
    All forecasts of a model have the same levels, categories, or number of draws: those of most tasks. Other rows, and
    tasks that lack some of them, are not used; ``unused`` counts them by reason. Cells are compared as numbers or dates
    if possible, so that location 01 equals 1.

    Examples
    --------
    >>> import kcalib
    >>> frame = {"ds": ["2024-01-01", "2024-01-02"], "M-lo-90": [0, 1], "M-median": [2, 2.5], "M-hi-90": [4, 5]}
    >>> (forecasts,) = kcalib.streaming.read_forecasts(frame, {"ds": ["2024-01-02"], "y": [3.0]})
    >>> forecasts.y_true.tolist(), forecasts.y_pred.levels.tolist(), forecasts.unused
    ([3.0], [0.05, 0.5, 0.95], {'no target': 1})
    >>> kcalib.crps(forecasts.y_true, forecasts.y_pred) > 0
    True
    """
    name = Path(data).name.partition(".")[0] if is_path(data) else "model"
    if arrays.library(data) == "xarray":
        return tuple(read_labelled(data, targets, name, sort_quantiles))
    table = read_table(data)
    is_array = hasattr(targets, "shape") and not hasattr(targets, "columns") and not hasattr(targets, "reset_index")
    if is_array or (isinstance(targets, (list, tuple)) and targets and isinstance(targets[0], Real)):
        targets = arrays.to_host(arrays.as_array(targets, "targets")).astype(np.float64)
    elif targets is not None:
        targets = read_table(targets)
    if FIELDS[0] in table.columns or FIELDS[1] in table.columns:
        if not isinstance(targets, Table):
            raise FileError("the forecasts are a table of a hub; give the table of their targets by `targets`")
        return _check_usable(tuple(read_hub(table, targets, name, sort_quantiles)), table, targets)
    if not find_quantiles(table.columns):
        if all(is_number(str(name)) for name in table.columns):
            raise FileError(
                f"all columns are named by numbers, {listed(table.columns)}; add the header, or for quantiles a "
                "column of what is predicted, or of targets, such as y"
            )
        raise FileError(
            f"the table has {listed(table.columns)}, expected {', '.join(FIELDS)} of a hub, or columns of quantiles "
            "such as M-lo-90 and M-hi-90, 0.1 and 0.9, or q10 and q90"
        )
    return _check_usable(tuple(read_wide(table, targets, name, sort_quantiles)), table, targets)


def _check_usable(models: tuple[ModelForecasts, ...], table: Table, targets: Any) -> tuple[ModelForecasts, ...]:
    """Refuse tables of which no row can be used."""
    if not models or any(model.y_true is not None for model in models):
        return models
    remedy = "sort them by `sort_quantiles`"
    if CROSSING not in models[0].unused:
        shared = [name for name in table.columns if isinstance(targets, Table) and name in targets.columns]
        keys = [", ".join(f"{name} {t.columns[name].first()}" for name in shared) for t in (table, targets) if shared]
        first = f"; the first forecast has {keys[0]}, the first target {keys[1]}" if keys else ""
        remedy = f"check `targets`{first}"
    raise FileError(f"no forecast can be evaluated: {models[0].describe_rows()}; {remedy}")


def read_labelled(data: Any, targets: Any, name: str, sort: bool) -> Iterator[ModelForecasts]:
    """Yield the forecasts of an array, or of each variable of a Dataset."""
    if not hasattr(targets, "dims"):
        raise FileError(f"`targets` is {type(targets).__name__}, expected an array of xarray, as the forecasts")
    arrays_by_name = dict(data.data_vars) if hasattr(data, "data_vars") else {data.name or name: data}
    for variable, array in arrays_by_name.items():
        true = targets
        if hasattr(targets, "data_vars"):
            if variable not in targets.data_vars:
                raise FileError(f"`targets` has no variable {variable!r}; rename it, or drop it from the forecasts")
            true = targets[variable]
        yield _read_array(array, true, str(variable), sort)


def _read_array(array: Any, targets: Any, name: str, sort: bool) -> ModelForecasts:
    import xarray

    across = [dim for dim in array.dims if dim in MEMBERS] or [dim for dim in array.dims if dim == QUANTILE]
    if not across:
        raise FileError(
            f"the array {name!r} has the dimensions {array.dims}, expected one of {', '.join(MEMBERS)} or "
            f"{QUANTILE}; rename the dimension: array.rename(NAME='member')"
        )
    dims = [dim for dim in array.dims if dim not in across]
    if set(targets.dims) != set(dims):
        raise FileError(
            f"`targets` has the dimensions {targets.dims}, expected {tuple(dims)}, those of {name!r} without "
            f"{', '.join(across)}; select or rename them"
        )
    n_rows = int(np.prod([array.sizes[dim] for dim in dims]))
    array, targets = xarray.align(array, targets.transpose(*dims), join="inner")
    true = np.asarray(targets.values, dtype=np.float64).reshape(-1)
    values = np.asarray(array.transpose(*dims, *across).values, dtype=np.float64)
    values = values.reshape(len(true), int(np.prod([array.sizes[dim] for dim in across])))
    places = np.unravel_index(np.arange(len(true)), targets.shape) if dims else ()
    tasks = {dim: np.asarray(array[dim].values)[place] for dim, place in zip(dims, places, strict=True)}
    levels = None if across[0] != QUANTILE else array[QUANTILE].values
    return keep_complete(name, true, values, levels, tasks, sort, n_rows, f"value of a {across[0]}")


def share_tasks(models: Sequence[ModelForecasts]) -> list[ModelForecasts]:
    """Return the forecasts of each model for the tasks that all models have, in the order of the first model."""
    columns, rows_of = list(models[0].tasks), []
    for model in models:
        cells = (Column.of_values(np.arange(model.n_samples), model.column(name).tolist()) for name in columns)
        tasks = list(zip(*(column.texts() for column in cells), strict=True))
        rows = {task: row for row, task in enumerate(tasks)}
        if model.y_true is None or len(rows) < model.n_samples:
            raise ValueError(f"{model.model} has {model.describe_rows()}, of {len(rows)} tasks; keep one for each")
        rows_of.append(rows)
    tasks = [task for task in rows_of[0] if all(task in rows for rows in rows_of)]
    if not tasks:
        names = ", ".join(model.model for model in models)
        raise ValueError(
            f"{names} have no task in common by the columns {', '.join(columns)}; keep the rows of one target"
        )
    return [
        model.take(np.asarray([rows[task] for task in tasks]), model.model)
        for model, rows in zip(models, rows_of, strict=True)
    ]
