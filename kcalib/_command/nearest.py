"""Suggestions for unknown words, at the end of messages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from kcalib._backend.options import most_like

MOST_FILES = 20_000  # of a folder that are looked at


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the most similar known word, if there is one."""
    match = most_like(word, known)
    return "" if match is None else f"; did you mean {match}?"


def nearest_file(name: str) -> str:
    """Return the same for a missing file, among the files of its folder."""
    path = Path(name)
    try:
        with os.scandir(path.parent) as entries:
            files = [entry.name for entry in islice(entries, MOST_FILES)]
    except FileNotFoundError:
        return f"; there is no folder {str(path.parent)!r}"
    except OSError:
        return ""
    return nearest(path.name, files)
