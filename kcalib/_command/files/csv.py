"""Columns of .csv files that are read whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice, FileError
from kcalib.streaming.sources.text import check_unique, header_of, lines_of, parsed, typed_labels


def csv_source(path: Path) -> Source:
    header = header_of(path)

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        check_unique(header, (*choice.names, *((labels,) if labels is not None else ())))
        lines = lines_of(path)
        next(lines)  # the header
        pred, cells, whole = parsed(lines, header, choice.names, labels, None)
        if not len(pred):
            raise FileError("there are no rows below the header, expected one for each sample")
        if len(choice.names) == 1:
            pred = pred[:, 0]
            if whole and np.all(np.abs(pred) < 2**53):
                pred = pred.astype(np.int64)
        return pred, None if labels is None else typed_labels(cells, as_text=choice.classes is not None)

    return Source("column", tuple(header), read, in_one_pass=True)
