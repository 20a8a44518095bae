"""Where and when a number was computed, for results, HTML pages and JSON."""

from __future__ import annotations

import datetime
import functools
import platform

import numpy as np
import scipy

from kcalib import _native
from kcalib._version import __version__


@functools.cache
def machine() -> str:
    """Return the system, the processor architecture, and the instruction level of the compiled core."""
    return f"{platform.system()} {platform.machine()}, {_native.cpu_levels()[0]}"


def versions() -> dict[str, str]:
    """Return the versions of kcalib and its dependencies."""
    return {
        "kcalib": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
    }


def utc_time() -> str:
    """Return UTC to the second, as in RFC 3339."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
