"""`load`: read a state of any kind from a file."""

from __future__ import annotations

import os
from typing import Any

from kcalib._backend.files import printable
from kcalib.streaming._files.format import Content, read, unpack
from kcalib.streaming._files.saving import Saved
from kcalib.streaming.comparison import ComparisonState
from kcalib.streaming.forecasts import ForecastState
from kcalib.streaming.groups import GroupedState
from kcalib.streaming.state import CalibrationState

KINDS: dict[str, type[Saved]] = {
    kind._kind: kind for kind in (CalibrationState, ForecastState, ComparisonState, GroupedState)
}


def load(path: Any) -> Any:
    """Read a state of any kind.

    Parameters
    ----------
    path : str or path-like
        A file that was written by `save` of a state.

    Returns
    -------
    state
        A state of the class that was saved.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is a folder, empty, truncated, damaged, not written by kcalib, or of a later version.

    Examples
    --------
    >>> import pathlib, tempfile, kcalib
    >>> state = kcalib.streaming.CalibrationState(2).update([0, 1, 1, 0], [0.2, 0.3, 0.8, 0.6])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     state.save(pathlib.Path(folder) / "state.kcalib")
    ...     kcalib.streaming.load(pathlib.Path(folder) / "state.kcalib") == state
    True
    """
    name = printable(os.fspath(path))
    return state_of(unpack(read(path), name), name)


def state_of(content: Content, name: str) -> Any:
    """Return the state in the content of a file called `name`."""
    if content.kind not in KINDS:
        raise ValueError(
            f"{name} holds a state of the kind {content.kind!r}, which this version does not have; update kcalib"
        )
    return KINDS[content.kind]._of_content(content, name)
