"""Properties of all public functions on adversarial arrays: a few cases here, a campaign of many by the same code."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import campaign
import numpy as np
import pytest
from grid import some

FEW = {
    "finite or clear": 150, "of distributions": 30, "containers": 50, "samples": 50, "classes": 50, "threads": 30,
    "float32": 30, "extended precision": 30, "pieces": 15,
}  # fmt: skip


@pytest.mark.parametrize("times", some([1, 10], 1))
@pytest.mark.parametrize("name", campaign.PROPERTIES)
def test_properties(name: str, times: int) -> None:
    few = times * FEW[name]
    outcomes = campaign.search(name, few)
    assert outcomes.total() >= few
    assert outcomes["finite"] > few / 8  # most cases are not refused for the same reason


def broken(case: campaign.Case) -> str:
    assert case.n < 4
    return "finite"


def test_a_campaign_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    samples = campaign.PROPERTIES["samples"]
    monkeypatch.setattr(campaign, "PROPERTIES", {"samples": samples, "broken": (broken, samples[1], 1)})
    monkeypatch.setattr(campaign, "CHUNK", 10)
    totals, faults = campaign.campaign(40, tmp_path / "whole.jsonl")
    assert totals["samples"].total() == 30 and len(faults) == 1
    assert "assert case.n < 4" in faults[0] and "n=4," in capsys.readouterr().err  # shrunk
    lines = (tmp_path / "whole.jsonl").read_text().splitlines()
    (tmp_path / "stopped.jsonl").write_text(lines[0] + "\n")
    assert campaign.campaign(40, tmp_path / "stopped.jsonl")[0] == totals
    assert [json.loads(line)["outcomes"] for line in lines] == [
        json.loads(line)["outcomes"] for line in (tmp_path / "stopped.jsonl").read_text().splitlines()
    ]
    monkeypatch.setitem(campaign.PROPERTIES, "broken", (lambda case: "finite", samples[1], 1))  # mended
    totals, faults = campaign.campaign(40, tmp_path / "whole.jsonl")
    assert totals["broken"].total() == 10 and not faults


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


@pytest.mark.slow
def test_a_campaign(tmp_path: Path) -> None:
    totals, faults = campaign.campaign(50_000, tmp_path / "campaign.jsonl")
    assert not faults
    assert sum(totals.values(), collections.Counter()).keys() <= {"finite", "TypeError", "ValueError", "MemoryError"}
