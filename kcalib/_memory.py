"""Memory that a dense method needs: said before it is taken, and refused where it is not there."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def check_memory(needed: int, max_memory: Any, what: str, remedy: str) -> None:
    """Refuse `needed` bytes above `max_memory`, or by default above what the machine has available.

    Raises
    ------
    TypeError, ValueError
        If `max_memory` is not a positive number of bytes.
    MemoryError
        If `needed` is more than that; the message says how much, and the remedy.
    """
    limit = available_memory() if max_memory is None else check_max_memory(max_memory)
    if limit is not None and needed > limit:
        source = "available" if max_memory is None else "allowed by `max_memory`"
        raise MemoryError(f"{what} take {_shown(needed)} of memory, {_shown(limit)} are {source}; {remedy}")


def check_max_memory(max_memory: Any) -> int:
    """`max_memory` in bytes."""
    if isinstance(max_memory, (bool, np.bool_)) or not isinstance(max_memory, (int, float, np.integer, np.floating)):
        raise TypeError(f"`max_memory` is {max_memory!r}, expected a number of bytes")
    if not 0 < max_memory < float("inf"):
        raise ValueError(f"`max_memory` is {max_memory}, expected a positive number of bytes")
    return int(max_memory)


def available_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _shown(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
