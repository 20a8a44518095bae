"""Calls that are told to stop at random moments end within a second, and leave no broken file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import signal_campaign


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("exact", "save", "checkpoint", "journal") else pytest.param(name, marks=pytest.mark.slow)
        for name in signal_campaign.CALLS
    ],
)
def test_a_signal_at_any_moment(tmp_path: Path, name: str) -> None:
    if name == "picture":
        pytest.importorskip("matplotlib")
    seconds = signal_campaign.campaign(2, 0, tmp_path, [name])[name]
    assert len(seconds) == 2 and max(seconds) < signal_campaign.LATEST
