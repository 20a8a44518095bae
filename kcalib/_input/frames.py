"""Check the names of columns and the index of rows that tables have besides their numbers.

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
        reference = (y_true, true_name) if _index(y_pred) is None else (y_pred, pred_name)
        _check_rows(sample_weight, "sample_weight", *reference)
    columns, one_hot = _columns(y_pred, m), _columns(y_true, m)
    if columns and one_hot:
        if _as_texts(columns) == _as_texts(one_hot):
            return
        if set(_as_texts(columns)) == set(_as_texts(one_hot)):
            raise ValueError(
                f"`{true_name}` has the one-hot columns {_format(one_hot)}, `{pred_name}` {_format(columns)}; write "
                "them in the same order"
            )
    expected = range(m) if called is None else called
    _check_order(one_hot, true_name, expected, called is None)
    _check_order(columns, pred_name, expected, called is None)
    if columns and called is None and not one_hot and _are_unsorted_names(columns):
        classes = f"range({m})" if m > SHOWN else str(list(range(m)))
        raise ValueError(
            f"`{pred_name}` has the columns {_format(columns)}, which do not say which of the labels 0..{m - 1} each "
            f"is, and are not in alphabetical order; pass classes= with the label of each column: classes={classes} if "
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
    """Refuse names of the classes, or numbers if classes are numbered, in another order."""
    if not columns:
        return
    texts, expected_texts = _as_texts(columns), _as_texts(expected)
    if texts != expected_texts and len(set(texts)) == len(texts) and set(texts) == set(expected_texts):
        raise ValueError(
            f"`{name}` has the columns {_format(columns)}, expected them in the order {_format(expected)}; reorder "
            f"them, or pass classes={_format(columns)}"
        )
    numbers = _numbers(texts)
    if numbered and numbers is not None and numbers != sorted(numbers):
        raise ValueError(
            f"`{name}` has the columns {_format(columns)}, expected their numbers in ascending order; reorder them, or "
            "pass classes= with the label of each column"
        )


def _check_rows(values: Any, name: str, reference: Any, reference_name: str) -> None:
    """Refuse rows whose names are those of the reference in another order, or other names."""
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
    if not (_is_count(index) or _is_count(other_index)):
        raise ValueError(
            f"`{name}` and `{reference_name}` have different indexes, as rows of different samples have; pass rows of "
            f"the same samples, or, {by_position}"
        )


def _is_labelled(values: Any) -> bool:
    """Whether `values` is a DataArray of xarray."""
    return arrays.library(values) == "xarray" and hasattr(values, "ndim") and hasattr(values, "indexes")


def _index(values: Any) -> Any:
    """Return the index of a pandas object or of the first dimension in xarray; None where there is no index."""
    if _is_labelled(values):
        index = values.indexes.get(values.dims[0]) if values.dims else None
        if index is None or list(index) != list(range(len(index))):
            return index
        import pandas  # which xarray is made on

        return pandas.RangeIndex(len(index))  # the default index
    index = getattr(values, "index", None)
    return index if index is not None and not callable(index) and hasattr(index, "equals") else None


def _is_count(index: Any) -> bool:
    """Whether the index is 0, 1, 2, ..., which rows have by default."""
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


def _as_texts(names: Sequence[Any]) -> list[str]:
    """Return names as they are written: a column "2" is the label 2."""
    return [str(name) for name in names]


def _numbers(texts: list[str]) -> list[int] | None:
    """Return the numbers of names such as p_0, p_1; None where the names differ in more than the number."""
    matches = [re.fullmatch(r"(.*?)(\d+)", text, re.ASCII | re.DOTALL) for text in texts]
    if any(match is None for match in matches) or len({match.group(1) for match in matches if match}) != 1:
        return None
    return [int(match.group(2)) for match in matches if match]


def _are_unsorted_names(columns: Sequence[Any]) -> bool:
    """Whether strings without numbers are in an order that no encoder of labels gives them."""
    if not all(isinstance(name, str) for name in columns) or _numbers(list(columns)) is not None:
        return False
    return list(columns) != sorted(columns)


def _format(names: Sequence[Any]) -> str:
    names = list(names)
    return str(names) if len(names) <= SHOWN else f"{str(names[:SHOWN])[:-1]}, ...]"
