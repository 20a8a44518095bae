"""Arrays of xarray: ensembles, whose members are in a dimension of a known name, and quantiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kcalib._input.columns import FileError
from kcalib.streaming.forecast_tables.results import ModelForecasts, keep_complete

MEMBERS = (
    "member", "members", "number", "realization", "realisation", "ensemble", "ensemble_member", "ens", "sample", "draw",
    "chain",
)  # fmt: skip
QUANTILE = "quantile"


def read_labelled(data: Any, targets: Any, name: str, sort: bool) -> Iterator[ModelForecasts]:
    """Yield the forecasts of an array, or of each variable of a Dataset."""
    if not hasattr(targets, "dims"):
        raise FileError(f"`targets` is {type(targets).__name__}, expected an array of xarray as the forecasts are")
    arrays_by_name = dict(data.data_vars) if hasattr(data, "data_vars") else {data.name or name: data}
    for variable, array in arrays_by_name.items():
        true = targets
        if hasattr(targets, "data_vars"):
            if variable not in targets.data_vars:
                raise FileError(f"`targets` has no variable {variable!r}; rename one, or drop it from the forecasts")
            true = targets[variable]
        yield _read_array(array, true, str(variable), sort)


def _read_array(array: Any, targets: Any, name: str, sort: bool) -> ModelForecasts:
    import xarray

    across = [dim for dim in array.dims if dim in MEMBERS] or [dim for dim in array.dims if dim == QUANTILE]
    if not across:
        raise FileError(
            f"the array {name!r} has the dimensions {array.dims}, expected one of members, {', '.join(MEMBERS)}, or "
            f"{QUANTILE}; rename it: array.rename(NAME='member')"
        )
    dims = [dim for dim in array.dims if dim not in across]
    if set(targets.dims) != set(dims):
        raise FileError(
            f"`targets` has the dimensions {targets.dims}, expected {tuple(dims)}, those of {name!r} but "
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
