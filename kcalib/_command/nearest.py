"""What may have been meant by a word that is not known: `Parser` and `streams` end their messages with it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

MOST_FILES = 20_000  # of a folder that are looked at


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known word that is most like this one; nothing if none is."""
    by_case = {one.casefold(): one for one in known}
    found = difflib.get_close_matches(word.casefold(), by_case, n=1, cutoff=0.7)
    return f"; did you mean {by_case[found[0]]}?" if found else ""


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
