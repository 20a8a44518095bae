"""Names of files as messages show them, and what is no file although it has a name of one.

Called by whatever opens files that users name: sources, states, the command.
"""

from __future__ import annotations

import os
import stat
from typing import Any

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def printable(text: Any) -> str:
    """A name in one line that no terminal obeys: what cannot be printed is escaped, as Python's `repr` does it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def endless(path: Any) -> str | None:
    """What a name stands for if it is no file, and reading it might wait forever or never end; None if it is one.

    Raises
    ------
    OSError
        The system's own error if there is nothing of that name.
    """
    mode = os.stat(path).st_mode
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), None)
