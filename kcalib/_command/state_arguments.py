"""Options of the commands on states, `update`, `merge` and `show`, and of `evaluate` where it streams."""

from __future__ import annotations

import argparse
import math
from typing import Any

from kcalib.estimators.binning import N_BINS
from kcalib.kernels import Exponential, Kernel

STREAMED_FROM = 2**30  # bytes of the files that are read together
STATE = ".kcalib"  # suffix of states

# Options of `CalibrationState` that have the same name here; a bandwidth is one of the kernel.
GIVEN = ("n_columns", "n_resamples", "n_bins", "lens", "seed")


def add_running(group: Any) -> None:
    """Options of a run over a source."""
    group.add_argument(
        "--rows",
        metavar="A:B",
        type=_rows,
        help="a share: rows from A up to but not including B; either may be left out",
    )
    group.add_argument(
        "--resume", action="store_true",
        help="go on where a run of this command was interrupted, or begin if there is none: rows that are there are "
        "skipped",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint-every", metavar="SECONDS", type=_seconds, default=0.0,
        help="save no more often (default: whenever saving costs at most 5 %% of the time)",
    )  # fmt: skip


def add_bandwidth(group: Any, default: str) -> None:
    group.add_argument(
        "--bandwidth", metavar="FLOAT", type=_bandwidth, help=f"of the exponential kernel (default: {default})"
    )


def given_kernel(arguments: argparse.Namespace) -> Kernel | None:
    """That of the bandwidth, where one is given."""
    return None if arguments.bandwidth is None else Exponential(bandwidth=arguments.bandwidth)


def add_kernel(group: Any) -> None:
    kernel = group.add_mutually_exclusive_group()
    add_bandwidth(kernel, "the median distance of the first 2000 rows")
    kernel.add_argument(
        "--bandwidth-of", metavar="FILE",
        help="the bandwidth of another state, or the median distance of the first 2000 rows of other predictions: "
        "states that are to be merged need one bandwidth (of regression two, that on targets, too)",
    )  # fmt: skip


def add_state_options(group: Any) -> None:
    """Options of a state that does not exist yet."""
    add_kernel(group)
    group.add_argument(
        "--columns", dest="n_columns", metavar="INT", type=int, help="columns of features (default: 256)"
    )
    group.add_argument(
        "--resamples", dest="n_resamples", metavar="INT", type=int,
        help="draws of all labels for the law of the test (default: 199; 0 for very many classes and for regression)",
    )  # fmt: skip
    group.add_argument("--bins", dest="n_bins", metavar="INT", type=int, help=f"bins of the ECE (default: {N_BINS})")
    group.add_argument("--seed", metavar="INT", type=int, help="of features and draws (default: 0)")


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options of `CalibrationState` that the user has named."""
    found = {name: getattr(arguments, name) for name in GIVEN}
    return {name: value for name, value in found.items() if value is not None}


def _rows(text: str) -> tuple[int, int | None]:
    begin, colon, end = text.partition(":")
    try:
        first = int(begin) if begin else 0
        last = int(end) if end else None
    except ValueError:
        colon = ""
    if not colon or first < 0 or (last is not None and last < first):
        raise argparse.ArgumentTypeError(f"{text!r}, expected A:B with whole numbers, 0 <= A <= B")
    return first, last


def _seconds(text: str) -> float:
    return _number(text, 0.0, "a number of seconds, at least 0")


def _bandwidth(text: str) -> float:
    value = _number(text, 0.0, "a positive number")
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a positive number")
    return value


def _number(text: str, low: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}, expected {what}")
    return value
