"""Names in tables: columns, the index of rows, and categories of labels.

Samples are paired by position; `check_rows` refuses a contradicting index. `_input.classes` interprets names of
columns. For arrays of xarray names are the coordinates of dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend import arrays

NAMELESS = (np.ndarray, list, type(None))  # frequent types without names


class Categories(NamedTuple):
    """The classes that labels declare, also unused ones."""

    names: tuple[Any, ...]
    is_ordered: bool | None  # None for dictionaries, whose order may be that of the labels


def check_rows(y_true: Any, y_pred: Any, sample_weight: Any, names: tuple[str, str]) -> None:
    """Refuse frames whose rows are in a different order."""
    if type(y_true) in NAMELESS and type(y_pred) in NAMELESS and type(sample_weight) in NAMELESS:
        return
    true_name, pred_name = names
    _check_rows(y_true, true_name, y_pred, pred_name)
    if sample_weight is not None:
        reference = (y_true, true_name) if _index(y_pred) is None else (y_pred, pred_name)
        _check_rows(sample_weight, "sample_weight", *reference)


def check_variables(y_true: Any, y_pred: Any, **variables: Any) -> None:
    """Refuse further variables of the samples, or tables of them, whose rows are in another order than the samples."""
    samples = {"y_pred": y_pred, "y_true": y_true}
    reference = next(((values, name) for name, values in samples.items() if _index(values) is not None), None)
    if reference is None:
        return
    for name, values in variables.items():
        parts = {f"{name}[{key!r}]": value for key, value in values.items()} if isinstance(values, Mapping) else {}
        for part_name, part in (parts or {name: values}).items():
            _check_rows(part, part_name, *reference)


def check_dimensions(y_true: Any, y_pred: Any, names: tuple[str, str]) -> None:
    """Refuse arrays of xarray whose first dimension is not that of the samples, by the names of dimensions."""
    if type(y_true) in NAMELESS or type(y_pred) in NAMELESS:
        return
    true_name, pred_name = names
    if not (_is_labelled(y_true) and _is_labelled(y_pred)) or y_true.ndim != 1 or y_pred.ndim != 2:
        return
    of_samples, (first, second) = y_true.dims[0], y_pred.dims
    if second == of_samples != first:
        raise ValueError(
            f"`{pred_name}` has the dimensions {y_pred.dims}, `{true_name}` has {y_true.dims}; pass "
            f"{pred_name}.transpose({second!r}, {first!r})"
        )


def _check_rows(values: Any, name: str, reference: Any, reference_name: str) -> None:
    """Refuse an index that has the entries of the reference in another order, or other entries."""
    index, other_index = _index(values), _index(reference)
    if index is None or other_index is None or len(index) != len(other_index) or index.equals(other_index):
        return
    by_position = f"to pair them by position, pass {name}.to_numpy()"
    reordered = f"{name}.loc[{reference_name}.index]"
    if _is_labelled(values):
        dimension = values.dims[0]
        order = reference.dims[0] if _is_labelled(reference) else "index"
        reordered = f"{name}.sel({{{dimension!r}: {reference_name}.{order}}})"
    if index.is_unique and other_index.is_unique and not len(index.difference(other_index, sort=False)):
        at = next(i for i, (entry, expected) in enumerate(zip(index, other_index, strict=True)) if entry != expected)
        raise ValueError(
            f"`{name}` and `{reference_name}` have the same index in another order: row {at} is {index[at]} in "
            f"`{name}` and {other_index[at]} in `{reference_name}`; pass {reordered}, or, {by_position}"
        )
    if not (is_default_index(index) or is_default_index(other_index)):
        raise ValueError(
            f"`{name}` and `{reference_name}` have different indexes; pass the same samples, or, {by_position}"
        )


def _is_labelled(values: Any) -> bool:
    """Return whether `values` is a DataArray of xarray."""
    return arrays.library(values) == "xarray" and hasattr(values, "ndim") and hasattr(values, "indexes")


def _index(values: Any) -> Any:
    """Return the index of a pandas object or of the first dimension of xarray; None if there is none."""
    if _is_labelled(values):
        index = values.indexes.get(values.dims[0]) if values.dims else None
        if index is None or list(index) != list(range(len(index))):
            return index
        import pandas  # a dependency of xarray

        return pandas.RangeIndex(len(index))  # the default index
    index = getattr(values, "index", None)
    return index if index is not None and not callable(index) and hasattr(index, "equals") else None


def is_default_index(index: Any) -> bool:
    """Return whether the index is the default one, 0, 1, 2, ..."""
    return bool(getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1)


def column_names(frame: Any, m: int) -> tuple[Any, ...]:
    """Return the names of m columns, or of the single column for two classes; () if there are none."""
    if type(frame) in NAMELESS:
        return ()
    columns: Any
    if _is_labelled(frame):
        index = frame.indexes.get(frame.dims[1]) if frame.ndim == 2 else None
        columns = index if frame.ndim == 2 else [frame.name]
    elif getattr(frame, "ndim", 2) == 1 or len(getattr(frame, "shape", (0, 0))) == 1:
        columns = [getattr(frame, "name", None)]  # a series
    else:
        columns = getattr(frame, "column_names", getattr(frame, "columns", ()))  # Arrow, or pandas and polars
    try:
        names = tuple(columns)
    except TypeError:
        return ()
    if len(names) == 1 and m == 2 and names[0] not in (None, "") and not is_default_index(columns):
        return names
    return names if len(names) == m else ()


def categories_of(labels: Any) -> Categories | None:
    """Return the classes declared by a pandas Categorical, a polars Enum or an Arrow dictionary."""
    if type(labels) in NAMELESS:
        return None
    if hasattr(labels, "iloc") and getattr(labels, "ndim", 1) == 2:
        labels = labels.iloc[:, 0]
    elif arrays.library(labels) == "polars" and hasattr(labels, "to_series"):
        labels = labels.to_series(0)
    if arrays.library(labels) == "pyarrow":
        kind: Any = getattr(labels, "type", None)
        if not hasattr(kind, "index_type"):
            return None
        labels = labels.combine_chunks() if hasattr(labels, "chunks") else labels
        return Categories(tuple(labels.dictionary.to_pylist()), kind.ordered or None)
    dtype = getattr(labels, "dtype", None)
    categories = getattr(dtype, "categories", None)
    if categories is None or type(dtype).__name__ == "Categorical":  # in polars its order is not declared
        return None
    return Categories(tuple(categories.to_list()), bool(getattr(dtype, "ordered", True)))
