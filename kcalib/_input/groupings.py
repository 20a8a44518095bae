"""Further variables of the samples: the category of each sample, from categories, numbers, or tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays

MOST_VALUES = 100  # of a grouping
N_BINS = 10  # for numbers


@dataclass(frozen=True, eq=False)
class Grouping:
    """The category of each sample."""

    name: str
    codes: np.ndarray  # number of the category, shape (n,)
    values: list[str]  # names of the categories


def read_groupings(groups: Any, n: int) -> list[Grouping]:
    """Return the groupings in a mapping or a data frame."""
    names = _column_names(groups)
    if names is None or not len(names):
        what = "is empty" if isinstance(groups, Mapping) else f"is a {type(groups).__name__}"
        raise TypeError(
            f"`groups` {what}, expected a mapping of names to a category of each sample, {{'sex': sex, 'age': age}}, "
            "or a data frame"
        )
    return [_read_categories(groups[name], n, str(name), f"groups[{name!r}]") for name in names]


def read_given(given: Any, n: int) -> tuple[Grouping, ...]:
    """Return the groupings of one variable, or of several in a mapping or a data frame; numbers are binned."""
    names = _column_names(given)
    if names is None:
        name = getattr(given, "name", None)
        return (_read_variable(given, n, "variable" if name is None else str(name), "given"),)
    if not len(names):
        raise ValueError("`given` has no variables, expected values of each sample; leave it out")
    return tuple(_read_variable(given[name], n, str(name), f"given[{name!r}]") for name in names)


def _column_names(table: Any) -> Any | None:
    """Return the names of a mapping or a data frame, or None."""
    if isinstance(table, Mapping):
        return list(table)
    return next((getattr(table, name) for name in ("column_names", "columns") if hasattr(table, name)), None)


def _read_variable(values: Any, n: int, name: str, argument: str) -> Grouping:
    """Return bins of equal mass for numbers with more values than bins, else categories."""
    array = np.asarray(arrays.to_host(arrays.as_array(values, argument)) if hasattr(values, "__dlpack__") else values)
    if array.shape == (n,) and array.dtype.kind in "iuf":
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if len(np.unique(finite)) > N_BINS:
            edges = np.unique(np.quantile(finite, np.arange(1, N_BINS) / N_BINS, method="higher"))
            codes = np.searchsorted(edges, numbers, side="right")
            low, high = [-math.inf, *edges], [*edges, math.inf]
            texts = [f"[{a:.3g}, {b:.3g})" for a, b in zip(low, high, strict=True)]
            texts[0], texts[-1] = f"below {edges[0]:.3g}", f"at least {edges[-1]:.3g}"
            is_missing = np.isnan(numbers)
            codes = np.where(is_missing, len(texts), codes)
            return Grouping(name, codes, [*texts, "missing"] if np.any(is_missing) else texts)
    return _read_categories(array, n, name, argument)


def _read_categories(values: Any, n: int, name: str, argument: str) -> Grouping:
    array = np.asarray(values)
    if array.shape != (n,):
        raise ValueError(f"`{argument}` has the shape {array.shape}, expected ({n},): the category of each sample")
    texts = [_category(value) for value in (array.astype(str) if array.dtype.kind in "mM" else array).tolist()]
    categories = sorted(set(texts))
    if len(categories) > MOST_VALUES:
        raise ValueError(
            f"`{argument}` has {len(categories)} different values, expected at most {MOST_VALUES}; cut "
            "numbers into intervals, by numpy.digitize or pandas.qcut"
        )
    numbers = {category: k for k, category in enumerate(categories)}
    return Grouping(name, np.array([numbers[text] for text in texts]), categories)


def _category(value: Any) -> str:
    is_missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value in ("NaT",)
    if is_missing or (isinstance(value, float) and math.isnan(value)):
        return "missing"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
