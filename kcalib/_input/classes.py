"""The classes of a problem: `Classes` holds the class of each column of probabilities, and where it comes from.

`choose_classes` determines them from names of columns, categories of labels, or the labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kcalib._input.columns import CLASS_PREFIXES
from kcalib._input.frames import Categories

POSITION, SORTED_LABELS = "position", "sorted labels"
SHOWN = 20  # names in a message


@dataclass(frozen=True)
class Classes:
    """The names of the classes in the order of the columns."""

    names: tuple[Any, ...]
    # Where they come from: "position", "sorted labels", "classes=", "columns" or "categories".
    origin: str = field(default="classes=", compare=False)

    @classmethod
    def by_position(cls, m: int) -> Classes:
        """Return the classes 0..m-1 of columns without names."""
        return cls(tuple(range(m)), POSITION)

    @property
    def is_known(self) -> bool:
        """Whether the user or the data name the columns; positions and sorted labels are conventions."""
        return self.origin not in (POSITION, SORTED_LABELS)

    def permutation_of(self, other: Classes) -> tuple[int, ...]:
        """Return for each column its place in `other`, by name; a ValueError if the names differ."""
        places = places_of(self.names, other.names)
        if places is None or len(self.names) != len(other.names):
            raise ValueError(f"the columns are the classes {self}, expected {other}; name the same classes")
        return places

    def __str__(self) -> str:
        return format_names(self.names)


def places_of(names: Iterable[Any], others: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the place of each name among other names, for any spelling; None if one is missing."""
    keys: list[Any] = [key_of(name) for name in others]
    if len(set(keys)) < len(keys):  # "1" and 1 are two names
        names, keys = [(type(name), name) for name in names], [(type(name), name) for name in others]
    else:
        names = [key_of(name) for name in names]
    place = {key: k for k, key in enumerate(keys)}
    return tuple(place[name] for name in names) if place.keys() >= set(names) else None


def key_of(name: Any) -> str:
    """Return a key that is equal for 1, 1.0, "1", "1.0", True and "true"."""
    text = str(name)
    if text.lower() in ("true", "false"):
        return str(int(text.lower() == "true"))
    whole = re.fullmatch(r"([+-]?\d+)\.0", text, re.ASCII)
    return text if whole is None else whole[1]


def format_names(names: Iterable[Any]) -> str:
    names = list(names)
    return str(names) if len(names) <= SHOWN else f"{str(names[:SHOWN])[:-1]}, ...]"


def choose_classes(
    labels: np.ndarray, m: int, columns: Sequence[Any], categories: Categories | None, names: tuple[str, str]
) -> Classes:
    """Return the classes of m columns without `classes=`, given the sorted distinct labels.

    `columns` are the names of m columns, or of the single column of the second class. `categories` are the classes that
    the labels declare. `names` are the names of labels and predictions in messages.
    """
    classes = None
    if len(columns) == 1:
        classes = _of_single_column(columns[0], labels, categories, names)
    elif columns:
        classes = _of_columns(columns, labels, categories, names)
    if classes is None and categories is not None:
        classes = _of_categories(categories, labels, m, names)
    if classes is None and labels.dtype.kind == "U":
        classes = Classes(tuple(labels.tolist()), SORTED_LABELS)
        if len(columns) > 1 and not is_ascending(columns):
            raise _silent_columns(columns, f"labels {classes}", classes.names, names)
    if classes is None:
        classes = Classes.by_position(m)
        if len(columns) > 1 and not is_ascending(columns):
            raise _silent_columns(columns, f"labels 0..{m - 1}", range(m), names)
    return classes


def match_one_hot(
    one_hot: Sequence[Any], columns: Sequence[Any], m: int, names: tuple[str, str]
) -> tuple[Classes, tuple[int, ...]]:
    """Return the classes, and for each column of one-hot labels its class, by name if both have names."""
    for written in strip_names(columns) if len(columns) == len(one_hot) == m else ():
        for other in strip_names(one_hot):
            places = places_of(other, written)
            if places is not None and len(set(places)) == m:
                return Classes(tuple(written), "columns"), places
    for k, titles in enumerate((one_hot, columns)):
        if len(titles) == m and not is_ascending(titles):
            raise ValueError(
                f"`{names[k]}` has the columns {format_names(titles)}, which are not in ascending order, and "
                f"`{names[1 - k]}` does not have the same; pass both as frames with the same columns, or as arrays"
            )
    return Classes.by_position(m), tuple(range(m))


def check_names(columns: Sequence[Any], classes: Classes, name: str) -> None:
    """Refuse columns that are named after the classes in another order."""
    places = match_names(columns, classes.names, name)
    if places is None or places == tuple(range(len(places))):
        return
    order = format_names(classes.names[k] for k in places)
    if len(columns) == 1:
        raise ValueError(
            f"`{name}` is a column named {columns[0]!r}, but with classes={classes} it holds the "
            f"probabilities of {classes.names[1]!r}; pass classes={order}, or {name}.to_numpy()"
        )
    raise ValueError(
        f"`{name}` has the columns {format_names(columns)}, expected them in the order {classes}; reorder them, or "
        f"pass classes={order}"
    )


def match_names(columns: Sequence[Any], classes: Sequence[Any], name: str) -> tuple[int, ...] | None:
    """Return the class of each column by its name; None if the names do not tell."""
    if len(columns) == 1 and len(classes) == 2:
        first, second = (is_named_after(columns[0], label) for label in classes)
        if first and not second:
            _check_not_zero(columns[0], classes, name)
        return None if first == second else (int(first), int(second))
    for written in strip_names(columns) if len(columns) == len(classes) else ():
        places = places_of(written, classes)
        if places is not None and len(set(places)) == len(places):
            return places
    return None


def match_columns(columns: Sequence[Any], known: Sequence[Any], classes: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the class of each column, by the names of columns in the fit, or by the names of the classes.

    None if the names do not tell; a ValueError if they contradict the classes.
    """
    if columns == known:
        return None
    if len(columns) < 2:
        return match_names(columns, classes, "y_pred")
    places = match_names(columns, known, "y_pred") or match_names(columns, classes, "y_pred")
    if places is not None:
        return places
    keys = {key_of(name) for name in classes}
    if not is_ascending(columns) or any(keys & set(map(key_of, written)) for written in strip_names(columns)):
        raise ValueError(
            f"`y_pred` has the columns {format_names(columns)}, but the fit had the classes {format_names(classes)}"
            f"{f' in the columns {format_names(known)}' if known else ''}; name them so, or pass an array in this order"
        )
    return None


def _check_not_zero(column: Any, classes: Sequence[Any], name: str) -> None:
    if column == 0 and not isinstance(column, (str, bool)):  # the default name of pandas
        raise ValueError(
            f"`{name}` is a column named 0, which may be the default name or the class; pass {name}.to_numpy() if it "
            f"holds the probabilities of {classes[1]!r}, or (1 - {name}).to_numpy() if it holds those of {classes[0]!r}"
        )


def _silent_columns(columns: Sequence[Any], labels: str, order: Iterable[Any], names: tuple[str, str]) -> ValueError:
    classes = list(order)
    return ValueError(
        f"`{names[1]}` has the columns {format_names(columns)}, which are not named after the {labels}, and "
        "are not in ascending order; pass classes= with the label of each column: classes="
        f"{classes if len(classes) <= SHOWN else '...'} if they are in this order"
    )


def _of_columns(
    columns: Sequence[Any], labels: np.ndarray, categories: Categories | None, names: tuple[str, str]
) -> Classes | None:
    """Return the classes that columns are named after; None if the names are unrelated to the labels."""
    values = labels.tolist() if categories is None else [*labels.tolist(), *categories.names]
    is_text = labels.dtype.kind == "U"
    known: dict[str, Any] = {key_of(value): value for value in values}
    expected = {key_of(label) for label in labels.tolist()}
    missing: set[str] = expected
    closest: list[str] = []
    for written in strip_names(columns):
        keys = [key_of(name) for name in written]
        if expected <= set(keys) and len(set(keys)) == len(keys):
            if not is_text and not all(map(is_number, keys)):
                continue
            return Classes(
                tuple(known.get(key, written[k] if is_text else float_or_int(key)) for k, key in enumerate(keys)),
                "columns",
            )
        if len(expected - set(keys)) < len(missing) or (not is_text and not closest and all(map(is_number, keys))):
            missing, closest = expected - set(keys), keys
    if not closest or closest == [str(k) for k in range(len(columns))]:
        return None
    label = next(value for value in labels.tolist() if key_of(value) in missing)
    raise ValueError(
        f"`{names[0]}` holds the label {label!r}, but the columns of `{names[1]}` are named {format_names(columns)}; "
        "correct the labels, or pass classes= with the label of each column"
    )


def _of_single_column(
    column: Any, labels: np.ndarray, categories: Categories | None, names: tuple[str, str]
) -> Classes | None:
    """Return the two classes if a single column is named after one of them, which is then the second."""
    values = labels.tolist() if categories is None or len(categories.names) != 2 else list(categories.names)
    if labels.dtype.kind != "U" and {key_of(value) for value in values} <= {"0", "1"}:
        values = [False, True] if labels.dtype.kind == "b" else [0, 1]
    if len(values) != 2:
        return None
    named = [value for value in values if is_named_after(column, value)]
    if len(named) != 1:
        return None
    classes = (*(value for value in values if value != named[0]), named[0])
    _check_not_zero(column, classes[::-1], names[1])
    return Classes(classes, "columns")


def is_named_after(column: Any, label: Any) -> bool:
    """Return whether a column is named after a class, possibly with a prefix such as "prob_"."""
    text, key = str(column), key_of(label)
    if key_of(column) == key:
        return True
    if isinstance(label, str) and not is_number(key):
        return text.endswith(label) and not text[-len(label) - 1].isalnum()
    return key_of(strip_prefix(text)) == key


def strip_prefix(column: str) -> str:
    """Return the name of a column without a prefix of probabilities; an empty text if it has none."""
    starts = [len(start) for start in CLASS_PREFIXES if column.lower().startswith(start)]
    return column[max(starts, default=len(column)) :].lstrip("_.")


def _of_categories(categories: Categories, labels: np.ndarray, m: int, names: tuple[str, str]) -> Classes | None:
    """Return the declared classes, also unused ones, if they are ordered or as many as columns."""
    declared = tuple(categories.names)
    if len(declared) != m:
        declared = tuple(name for name in declared if name in labels.tolist())
        if not categories.is_ordered or len(declared) != m:
            return None
    if categories.is_ordered is None and list(declared) != sorted(declared):
        raise ValueError(
            f"`{names[0]}` is a dictionary with the values {format_names(declared)}, whose order it does not declare, "
            f"and sorted labels are {format_names(sorted(declared))}; pass classes= with the label of each column"
        )
    return Classes(declared, "categories")


def strip_names(columns: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the names of columns, and the names without common beginnings and ends."""
    if all(isinstance(name, tuple) for name in columns):  # of several levels, the one that differs
        levels = [list(level) for level in zip(*columns, strict=True) if len(set(level)) > 1]
        columns = levels[0] if len(levels) == 1 else ["_".join(map(str, name)) for name in columns]
    yield list(columns)
    texts = [str(name) for name in columns]
    start = _common_start(texts)
    end = _common_start([text[::-1] for text in texts])[::-1]
    starts = [i for i in range(len(start), 0, -1) if not start[i - 1].isalnum() or _begin_numbers(start, i, texts)]
    ends = [0, *(len(end) - i for i in range(len(end)) if not end[i].isalnum())]
    for i in [*starts, 0]:
        for j in ends:
            if (i or j) and all(len(text) > i + j for text in texts):
                yield [text[i : len(text) - j] for text in texts]


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _begin_numbers(start: str, i: int, texts: Sequence[str]) -> bool:
    return not start[i - 1].isdigit() and all(text[i : i + 1].isdigit() for text in texts)


def is_ascending(columns: Sequence[Any]) -> bool:
    """Return whether names, or the numbers in them, are in the order that label encoders use."""
    for written in strip_names(columns):
        if all(is_number(key_of(name)) for name in written):
            numbers = [float(key_of(name)) for name in written]
            return numbers == sorted(numbers)
    texts = [str(name) for name in columns]
    return texts == sorted(texts)


def float_or_int(key: str) -> float:
    """Return the number in a name."""
    return int(key) if re.fullmatch(r"[+-]?\d+", key, re.ASCII) else float(key)


def is_number(key: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?", key, re.ASCII) is not None
