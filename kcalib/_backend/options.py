"""Checks of options that are a number, a name or a seed, and suggestions for mistyped names."""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np


class OptionError(ValueError):
    """A wrong value of an option; name and fault are separate, for callers that use another name."""

    def __init__(self, option: str, fault: str) -> None:
        super().__init__(option, fault)
        self.option, self.fault = option, fault

    def __str__(self) -> str:
        return f"`{self.option}` {self.fault}"


SEED = 0  # default seed
LARGEST_SEED = 2**63 - 1  # fits into int64
LARGEST_KEY = 2**64 - 1  # key of counter-based generators


def check_integer(name: str, value: Any, low: int, high: int | None = None, hint: str = "") -> int:
    """Return an integer in [low, high] as an int, or refuse it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` is {value!r}, expected an integer") from None
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` is {value!r}, expected an integer")
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise OptionError(name, f"is {number}, expected an integer {bounds}{hint}")
    return number


def check_seed(seed: Any, high: int | None = None) -> int:
    """Return a seed as an int, a drawn one for None."""
    return secrets.randbits(63) if seed is None else check_integer("seed", seed, 0, high)


def as_float(value: Any) -> float:
    """Return `float(value)`; integers that are too large become infinite, which callers refuse."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_positive(name: str, value: Any, hint: str = "") -> float:
    """Return a positive finite number as a float, or refuse it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"`{name}` is {value!r}, expected a positive number")
    number = as_float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"`{name}` is {value}, expected a positive finite number{hint}")
    return number


def show_number(value: float) -> str:
    """Return a number with six digits, or with all if these change it, as next to a limit."""
    text = f"{value:.6g}"
    return text if float(text) == value else repr(float(value))


def check_within(name: str, value: Any, low: float, high: float, hint: str = "") -> float:
    """Return `value` as a positive float in [low, high], whose squares and quotients stay in the range of float64."""
    if not low <= check_positive(name, value, hint) <= high:
        raise ValueError(f"`{name}` is {show_number(value)}, expected a number between {low:.0e} and {high:.0e}{hint}")
    return float(value)


def check_fraction(name: str, value: Any) -> None:
    """Check a level of significance or confidence."""
    if not (isinstance(value, Real) and 0 < as_float(value) < 1):
        raise ValueError(f"`{name}` is {value!r}, expected a number between 0 and 1")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise OptionError(name, f"is {value!r}, expected one of {', '.join(map(repr, choices))}")
    return value


def find_similar(word: str, words: Iterable[str]) -> str | None:
    """Return the known word most similar to an unknown one, or one that contains it, or None."""
    import difflib  # needed after a mistype only

    by_case = {name.casefold(): name for name in words}
    folded = word.casefold()
    matches = difflib.get_close_matches(folded, by_case, n=1, cutoff=0.7)
    matches = matches or [name for name in by_case if len(folded) > 2 and folded in name]
    return by_case[matches[0]] if matches else None
