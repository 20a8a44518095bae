"""Names and objects of methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from kcalib._input.methods import Method, resolved


@dataclass(frozen=True)
class Fast(Method):
    name: ClassVar[str] = "fast"
    n_steps: int = 3


@dataclass(frozen=True)
class Slow(Method):
    name: ClassVar[str] = "slow"


def test_a_name_stands_for_the_default_options():
    assert resolved("fast", (Fast, Slow)) == Fast(n_steps=3)
    assert resolved(Fast(n_steps=5), (Fast, Slow)) == Fast(n_steps=5)


@pytest.mark.parametrize(
    "method, error, message",
    [
        ("fats", ValueError, r"`method` is 'fats', expected one of 'fast', or such an object of kcalib\.methods"),
        (Slow(), ValueError, r"`method` is Slow\(\), expected one of 'fast'"),
        (Fast, TypeError, r"`method` is the class Fast; pass an object, Fast\(\)"),
        (3, TypeError, r"`method` is 3, expected one of 'fast'"),
        (None, TypeError, r"`method` is None"),
    ],
)
def test_what_is_no_method_of_the_function(method, error, message):
    with pytest.raises(error, match=message):
        resolved(method, (Fast,))
