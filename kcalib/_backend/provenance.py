"""Where and when a number was computed: what results and printed JSON carry, so that histories can say it.

`results`, pages of HTML (`report`) and the command call these functions.
"""

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
    """The system, the processor's architecture, and the instruction level that the compiled core runs at."""
    return f"{platform.system()} {platform.machine()}, {_native.cpu_levels()[0]}"


def versions() -> dict[str, str]:
    """Of what took part."""
    return {
        "kcalib": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,
    }


def utc_time() -> str:
    """UTC to the second, as in RFC 3339."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
