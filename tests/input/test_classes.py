"""Which column is which class: what names, categories and `classes=` say of it."""

from __future__ import annotations

from typing import Any

import pytest

from kcalib._input.classes import Classes


@pytest.mark.parametrize(
    ("names", "others", "expected"),
    [
        (("cat", "dog"), ("dog", "cat"), (1, 0)),
        ((0, 1, 2), ("2", "0", "1"), (1, 2, 0)),
        ((True, False), (0.0, 1.0), (1, 0)),
        (("True", "False"), (False, True), (1, 0)),
        (("1", 1), (1, "1"), (1, 0)),  # two names
    ],
)
def test_columns_are_reordered_by_name(names: Any, others: Any, expected: tuple[int, ...]) -> None:
    assert Classes(names).permutation_of(Classes(others)) == expected


@pytest.mark.parametrize("others", [("cat", "owl"), ("cat", "dog", "owl"), (0, 1)])
def test_other_names_are_refused_with_both_orders(others: Any) -> None:
    with pytest.raises(ValueError, match=r"classes \['cat', 'dog'\], expected \[.*\]"):
        Classes(("cat", "dog")).permutation_of(Classes(others))


def test_positions_are_no_names_of_the_user() -> None:
    positions = Classes.by_position(2)
    assert positions == Classes((0, 1)) and not positions.is_known and Classes((0, 1)).is_known
