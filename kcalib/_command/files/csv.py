"""Columns of text files that are read whole, and of standard input."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice, FileError
from kcalib.streaming.sources.batches import BatchesPart
from kcalib.streaming.sources.part import Part, Wanted
from kcalib.streaming.sources.text import (
    Lines,
    check_unique,
    columns_in,
    header_in,
    header_of,
    lines_in,
    lines_of,
)

STDIN = Path("-")
LINES = 8192  # of standard input at a time


def csv_source(path: Path) -> Source:
    if path == STDIN:
        lines = _standard_input()
        header = header_in(lines, ",")
    else:
        header = header_of(path)

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        check_unique(header, (*choice.names, *((labels,) if labels is not None else ())))
        if path == STDIN:
            rows = lines
        else:
            rows = lines_of(path)
            next(rows)  # the header
        try:
            pred, true = columns_in(rows, header, choice.names, labels, None, as_text=choice.classes is not None)
        finally:
            rows.close()  # type: ignore[attr-defined]
        if not len(pred):
            raise FileError("there are no rows below the header, expected one for each sample")
        return pred, true

    return Source("column", tuple(header), read, in_one_pass=True)


def stdin_part(wanted: Wanted) -> Part:
    """Standard input in pieces, as it comes."""
    lines = _standard_input()
    header = header_in(lines, ",")
    columns = wanted.columns("column", tuple(header))
    choice, labels = wanted.choice(columns), wanted.label_name(columns)
    check_unique(header, (*choice.names, labels))
    found = wanted.found(columns, choice, labels)
    logits, as_text = found.from_logits, choice.classes is not None

    def batches() -> Iterator[tuple[np.ndarray | None, np.ndarray]]:
        while True:
            pred, true = columns_in(lines, header, choice.names, labels, LINES, logits=logits, as_text=as_text)
            if not len(pred):
                return
            yield true, pred

    return BatchesPart(batches, Wanted(from_logits=found.from_logits, classes=found.classes), once=True, place="-")


def _standard_input() -> Lines:
    return lines_in(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline=""), ",")
