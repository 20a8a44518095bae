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
    """An option with a wrong value; name and fault are apart, for callers with another name for it."""

    def __init__(self, option: str, fault: str) -> None:
        super().__init__(option, fault)
        self.option, self.fault = option, fault

    def __str__(self) -> str:
        return f"`{self.option}` {self.fault}"


SEED = 0  # of what draws, unless another is given
LARGEST_SEED = 2**63 - 1  # that an int64 holds
LARGEST_KEY = 2**64 - 1  # of the counter-based generators


def check_integer(name: str, value: Any, low: int, high: int | None = None, hint: str = "") -> int:
    """Check an integer and return it as an int in [low, high]."""
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
    """Check a seed and return it as an int; draw one for None, which the caller's result reports."""
    return secrets.randbits(63) if seed is None else check_integer("seed", seed, 0, high)


def as_float(value: Any) -> float:
    """`float(value)`; integers beyond all floats are infinite, which callers refuse."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_positive(name: str, value: Any, hint: str = "") -> float:
    """Check a number and return it as a finite float above 0."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"`{name}` is {value!r}, expected a positive number")
    number = as_float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"`{name}` is {value}, expected a positive finite number{hint}")
    return number


def show_number(value: float) -> str:
    """Return a number in six digits, or in full where these are another one: it may be next to a limit."""
    text = f"{value:.6g}"
    return text if float(text) == value else repr(float(value))


def check_within(name: str, value: Any, low: float, high: float, hint: str = "") -> float:
    """`value` as a float in [low, high], positive: squares and quotients of others would leave the range of float64."""
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
    """Return the known word most similar to an unknown one, or one that contains it."""
    import difflib  # after a mistype only

    by_case = {name.casefold(): name for name in words}
    folded = word.casefold()
    matches = difflib.get_close_matches(folded, by_case, n=1, cutoff=0.7)
    matches = matches or [name for name in by_case if len(folded) > 2 and folded in name]
    return by_case[matches[0]] if matches else None
