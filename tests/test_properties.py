"""Properties of all public functions on adversarial arrays: a few cases here, more by `campaign`."""

from __future__ import annotations

import campaign
import numpy as np
import pytest
from grid import some

FEW = {
    "finite or clear": 60, "of distributions": 20, "containers": 30, "samples": 30, "classes": 30, "threads": 20,
    "float32": 20, "extended precision": 20, "pieces": 10,
}  # fmt: skip


@pytest.mark.parametrize("times", [*some([1, 10], 1), pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", campaign.PROPERTIES)
def test_properties(name: str, times: int) -> None:
    few = times * FEW[name]
    outcomes = campaign.search(name, few)
    assert outcomes.total() >= few
    assert outcomes["finite"] > few / 8  # most cases are not refused for the same reason
    assert outcomes.keys() <= {"finite", "TypeError", "ValueError", "MemoryError"}


def test_what_is_no_clear_error_is_seen() -> None:
    def divided() -> float:
        return float(np.float64(1) / np.float64(0))

    with pytest.raises(RuntimeWarning):
        campaign.outcome(divided)
    with pytest.raises(AssertionError, match="no sentence"):
        campaign.outcome(lambda: _raise(ValueError("short")))
    with pytest.raises(KeyError):
        campaign.outcome(lambda: {}["missing"])
    for value in (float("nan"), {"a": [1.0, float("inf")]}):
        with pytest.raises(AssertionError):
            campaign.assert_finite(value)
    assert campaign.outcome(lambda: 1.0) == ("finite", 1.0)


def _raise(error: Exception) -> None:
    raise error
