"""Columns of .parquet files that are read whole, by pyarrow, which is imported when one is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice
from kcalib.streaming.sources.arrow import arrow_array, check_once, parquet_library
from kcalib.streaming.sources.content import damaged, stacked


def parquet_source(path: Path) -> Source:
    parquet = parquet_library()
    try:
        with parquet.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
    except Exception as error:
        raise damaged("the file", error) from None

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        wanted = [*choice.names, *(() if labels is None else (labels,))]
        try:
            with parquet.ParquetFile(path) as file:
                table = file.read(columns=wanted)
        except Exception as error:
            raise damaged("the file", error) from None
        check_once(table.column_names, wanted)
        columns = [arrow_array(table.column(name), name) for name in choice.names]
        return stacked(columns, choice.names), None if labels is None else arrow_array(table.column(labels), labels)

    return Source("column", names, read)
