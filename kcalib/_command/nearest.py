"""What may have been meant by a word that is not known: `Parser` and `streams` end their messages with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from kcalib._backend.options import most_like

MOST_FILES = 20_000  # of a folder that are looked at


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known word that is most like this one; nothing if none is."""
    found = most_like(word, known)
    return "" if found is None else f"; did you mean {found}?"


def nearest_file(name: str) -> str:
    """The same for the name of a file that is not there, among those beside which it would be."""
    path = Path(name)
    try:
        with os.scandir(path.parent) as entries:
            files = [entry.name for entry in islice(entries, MOST_FILES)]
    except FileNotFoundError:
        return f"; there is no folder {str(path.parent)!r}"
    except OSError:
        return ""
    return nearest(path.name, files)
