"""What tables say beside their numbers: names of columns, and an index of rows.

Samples and classes are paired by position. Where names contradict that, `check_frames` says so, rather than pair what
does not belong together; names that say nothing of the order are left alone. Called by `_input.labels.prepare`.
Arrays of xarray are named by the coordinates of their dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from kcalib._backend import arrays

SHOWN = 20  # names in a message
NAMELESS = (np.ndarray, list, type(None))  # what comes most often, and has no names


def check_frames(
    y_true: Any, y_pred: Any, sample_weight: Any, called: Sequence[Any] | None, m: int, names: tuple[str, str]
) -> None:
    """Refuse frames whose rows or columns are in another order than those that they are paired with.

    `called` are the classes in the order of the columns; None for labels 0..m-1.
    """
    if type(y_true) in NAMELESS and type(y_pred) in NAMELESS and type(sample_weight) in NAMELESS:
        return
    true_name, pred_name = names
    _check_rows(y_true, true_name, y_pred, pred_name)
    if sample_weight is not None:
        beside = (y_true, true_name) if _index(y_pred) is None else (y_pred, pred_name)
        _check_rows(sample_weight, "sample_weight", *beside)
    columns, one_hot = _columns(y_pred, m), _columns(y_true, m)
    if columns and one_hot:
        if _texts(columns) == _texts(one_hot):
            return
        if set(_texts(columns)) == set(_texts(one_hot)):
            raise ValueError(
                f"`{true_name}` has the one-hot columns {_listed(one_hot)}, `{pred_name}` {_listed(columns)}; write "
                "them in the same order"
            )
    expected = range(m) if called is None else called
    _check_order(one_hot, true_name, expected, called is None)
    _check_order(columns, pred_name, expected, called is None)
    if columns and called is None and not one_hot and _say_nothing(columns):
        shown = f"range({m})" if m > SHOWN else str(list(range(m)))
        raise ValueError(
            f"`{pred_name}` has the columns {_listed(columns)}, which do not say which of the labels 0..{m - 1} each "
            f"is, and are not in alphabetical order; pass classes= with the label of each column: classes={shown} if "
            "label k is column k"
        )


def check_dimensions(y_true: Any, y_pred: Any, names: tuple[str, str]) -> None:
    """Refuse arrays of xarray whose samples are not in the first dimension, by the names of the dimensions."""
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


def _check_order(columns: Sequence[Any], name: str, expected: Sequence[Any], numbered: bool) -> None:
    """Refuse names that are those of the classes, or numbers if the classes are, in another order."""
    if not columns:
        return
    found, wanted = _texts(columns), _texts(expected)
    if found != wanted and len(set(found)) == len(found) and set(found) == set(wanted):
        raise ValueError(
            f"`{name}` has the columns {_listed(columns)}, expected them in the order {_listed(expected)}; reorder "
            f"them, or pass classes={_listed(columns)}"
        )
    numbers = _numbers(found)
    if numbered and numbers is not None and numbers != sorted(numbers):
        raise ValueError(
            f"`{name}` has the columns {_listed(columns)}, expected their numbers in ascending order; reorder them, or "
            "pass classes= with the label of each column"
        )


def _check_rows(values: Any, name: str, others: Any, others_name: str) -> None:
    """Refuse rows that are named alike in another order, or named otherwise."""
    mine, theirs = _index(values), _index(others)
    if mine is None or theirs is None or len(mine) != len(theirs) or mine.equals(theirs):
        return
    by_position = f"to pair them by position, pass {name}.to_numpy()"
    reordered = f"{name}.loc[{others_name}.index]"
    if _is_labelled(values):
        dimension = values.dims[0]
        order = others.dims[0] if _is_labelled(others) else "index"
        reordered = f"{name}.sel({{{dimension!r}: {others_name}.{order}}})"
    if mine.is_unique and theirs.is_unique and not len(mine.difference(theirs, sort=False)):
        at = next(i for i, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
        raise ValueError(
            f"`{name}` and `{others_name}` have the same index in another order: row {at} is {mine[at]} in `{name}` "
            f"and {theirs[at]} in `{others_name}`; pass {reordered}, or, {by_position}"
        )
    if not (_is_count(mine) or _is_count(theirs)):
        raise ValueError(
            f"`{name}` and `{others_name}` have different indexes, as rows of different samples have; pass rows of the "
            f"same samples, or, {by_position}"
        )


def _is_labelled(values: Any) -> bool:
    """Whether it is a DataArray of xarray."""
    return arrays.library(values) == "xarray" and hasattr(values, "ndim") and hasattr(values, "indexes")


def _index(values: Any) -> Any:
    """The index of a Series or a DataFrame of pandas, of the first dimension in xarray, of what has one; else None."""
    if _is_labelled(values):
        index = values.indexes.get(values.dims[0]) if values.dims else None
        if index is None or list(index) != list(range(len(index))):
            return index
        import pandas  # which xarray is made on

        return pandas.RangeIndex(len(index))  # of rows that nobody named
    index = getattr(values, "index", None)
    return index if index is not None and not callable(index) and hasattr(index, "equals") else None


def _is_count(index: Any) -> bool:
    """Whether it is 0, 1, 2, ..., which rows have where nobody named them."""
    return bool(getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1)


def _columns(frame: Any, m: int) -> tuple[Any, ...]:
    """Return the names of m columns; none for what is no frame."""
    if arrays.is_host(frame):
        return ()
    if _is_labelled(frame):
        index = frame.indexes.get(frame.dims[1]) if frame.ndim == 2 else None
        return () if index is None or len(index) != m else tuple(index)
    columns = getattr(frame, "column_names", getattr(frame, "columns", ()))  # Arrow, or pandas and polars
    try:
        columns = tuple(columns)
    except TypeError:
        return ()
    return columns if len(columns) == m else ()


def _texts(names: Sequence[Any]) -> list[str]:
    """Return names as they are written: a column "2" is the label 2."""
    return [str(name) for name in names]


def _numbers(texts: list[str]) -> list[int] | None:
    """What names such as p_0, p_1 are numbered with; None where they are not alike but for that."""
    found = [re.fullmatch(r"(.*?)(\d+)", text, re.ASCII | re.DOTALL) for text in texts]
    if any(one is None for one in found) or len({one.group(1) for one in found if one}) != 1:
        return None
    return [int(one.group(2)) for one in found if one]


def _say_nothing(columns: Sequence[Any]) -> bool:
    """Whether strings without numbers are in an order that no encoder of labels gives them."""
    if not all(isinstance(name, str) for name in columns) or _numbers(list(columns)) is not None:
        return False
    return list(columns) != sorted(columns)


def _listed(names: Sequence[Any]) -> str:
    names = list(names)
    return str(names) if len(names) <= SHOWN else f"{str(names[:SHOWN])[:-1]}, ...]"
