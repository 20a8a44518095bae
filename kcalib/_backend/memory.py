"""Checks of the memory for dense methods, before it is allocated.

For arrays on a GPU the memory of the GPU counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.faults import format_size
from kcalib._backend.threads import MEMBERSHIP, MOUNTS, control_groups

SMALL = 2**20  # bytes that are not checked, because checking takes longer than using them


def check_memory(needed: int, max_memory: Any, contents: str, remedy: str, array: Any = None) -> None:
    """Refuse `needed` bytes above `max_memory`, by default above the available memory.

    For an `array` on a GPU this is the free memory of the GPU plus the pool of CuPy. On the host less than a MiB is not
    checked.
    """
    on_gpu = array is not None and arrays.is_cuda(array)
    if max_memory is not None:
        limit: int | None = check_max_memory(max_memory)
    elif needed <= SMALL and not on_gpu:
        return
    else:
        limit = available_memory_on_gpu(array.device) if on_gpu else available_memory()
    if limit is not None and needed > limit:
        where = f" on GPU {array.device.id}" if on_gpu else ""
        source = "available" if max_memory is None else "allowed by `max_memory`"
        raise MemoryError(
            f"{contents} take {format_size(needed)} of memory{where}, {format_size(limit)} are {source}; {remedy}"
        )


def check_max_memory(max_memory: Any) -> int:
    """Check `max_memory` and return it in bytes."""
    if isinstance(max_memory, (bool, np.bool_)) or not isinstance(max_memory, (int, float, np.integer, np.floating)):
        raise TypeError(f"`max_memory` is {max_memory!r}, expected a number of bytes")
    if not 0 < max_memory < float("inf"):
        raise ValueError(f"`max_memory` is {max_memory}, expected a positive number of bytes")
    return int(max_memory)


def available_memory(mounts: Path = MOUNTS, membership: Path = MEMBERSHIP) -> int | None:
    """Return the bytes available without swapping and within control groups; None if unknown."""
    sizes = [_left_on_machine(), *map(_left_in_group, control_groups("memory", mounts, membership))]
    return min((size for size in sizes if size is not None), default=None)


def _left_in_group(group: Path) -> int | None:
    """Return the bytes that a control group has left, reclaimable caches included; None if it has no limit."""
    versions = (
        ("memory.max", "memory.current", "inactive_file"),  # 2
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # 1
    )
    for limit, usage, cache in versions:
        try:
            left = int((group / limit).read_text()) - int((group / usage).read_text())
            numbers = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return max(0, left + int(numbers.get(cache, 0)))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None


def _left_on_machine() -> int | None:
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


def available_memory_on_gpu(device: Any) -> int:
    """Return the free bytes of a GPU, including the memory pool of CuPy."""
    import cupy

    with device:
        pool = cupy.get_default_memory_pool()
        available = int(device.mem_info[0]) + int(pool.free_bytes())
        limit = int(pool.get_limit())  # 0: none
        return min(available, max(0, limit - int(pool.used_bytes()))) if limit else available
