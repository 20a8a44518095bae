"""Columns of text files that are read whole, and of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice, FileError
from kcalib.streaming.sources.batches import BatchesPart
from kcalib.streaming.sources.lines import Lines
from kcalib.streaming.sources.part import Part, Wanted
from kcalib.streaming.sources.text import Table

STDIN = Path("-")
LINES = 8192  # of standard input at a time


def csv_source(path: Path) -> Source:
    table = _standard_input() if path == STDIN else Table.opened(path)
    if path != STDIN:
        table.lines.close()

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        opened = table if path == STDIN else Table.opened(path)
        try:
            pred, true = opened.columns(choice.names, labels, as_text=choice.classes is not None).take(None)
        finally:
            opened.lines.close()
        if not len(pred):
            raise FileError("there are no rows below the header, expected one for each sample")
        return pred, true

    return Source("column", table.header, read, in_one_pass=True)


def stdin_part(wanted: Wanted) -> Part:
    """Standard input in pieces, as it comes."""
    table = _standard_input()
    found = wanted.found(wanted.columns("column", table.header))
    rows = table.rows(found)

    def batches() -> Iterator[tuple[np.ndarray, Any]]:
        whole = True
        while len((batch := rows.take(LINES))[1]):
            true, pred = batch
            if isinstance(pred, np.ndarray):
                whole = whole and pred.dtype.kind == "i"
                pred = pred if whole else pred.astype(np.float64, copy=False)
            yield true, pred

    return BatchesPart(batches, Wanted(classes=found.classes), once=True, place="-", found=found)


def _standard_input() -> Table:
    return Table(Lines(sys.stdin.buffer), ",")
