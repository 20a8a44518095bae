"""The classes of a problem: `Classes` says which column of probabilities is which, and who said so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

POSITION, SORTED_LABELS = "position", "sorted labels"
SHOWN = 20  # names in a message


@dataclass(frozen=True)
class Classes:
    """The names of the classes in the order of the columns."""

    names: tuple[Any, ...]
    # What says so: "position", "sorted labels", "classes=", "columns" or "categories".
    origin: str = field(default="classes=", compare=False)

    @classmethod
    def by_position(cls, m: int) -> Classes:
        """Return the classes 0..m-1 of columns about which nothing is known."""
        return cls(tuple(range(m)), POSITION)

    @property
    def is_known(self) -> bool:
        """Whether the user or the data say which column is which; positions and sorted labels are conventions."""
        return self.origin not in (POSITION, SORTED_LABELS)

    def permutation_of(self, other: Classes) -> tuple[int, ...]:
        """Return the column of `other` that each column here is, by name; a ValueError where the names differ."""
        places = places_of(self.names, other.names)
        if places is None or len(self.names) != len(other.names):
            raise ValueError(f"the columns are the classes {self}, expected {other}; name the same classes")
        return places

    def __str__(self) -> str:
        return format_names(self.names)


def places_of(names: Iterable[Any], others: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the place of each name among other names, however these are written; None where one is missing."""
    keys: list[Any] = [key_of(name) for name in others]
    if len(set(keys)) < len(keys):  # "1" and 1 are two names
        names, keys = [(type(name), name) for name in names], [(type(name), name) for name in others]
    else:
        names = [key_of(name) for name in names]
    place = {key: k for k, key in enumerate(keys)}
    return tuple(place[name] for name in names) if place.keys() >= set(names) else None


def key_of(name: Any) -> str:
    """Return a text that is the same for 1, 1.0, "1", "1.0", True and "true"."""
    text = str(name)
    if text.lower() in ("true", "false"):
        return str(int(text.lower() == "true"))
    whole = re.fullmatch(r"([+-]?\d+)\.0", text, re.ASCII)
    return text if whole is None else whole[1]


def format_names(names: Iterable[Any]) -> str:
    names = list(names)
    return str(names) if len(names) <= SHOWN else f"{str(names[:SHOWN])[:-1]}, ...]"
