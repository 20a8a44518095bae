"""Tables with any columns: `read_table` reads files and frames, `Table.find_targets` looks up rows by shared columns.

Cells are compared as numbers or dates if possible: libraries turn 01 into 1, and a date into a time.
"""

from __future__ import annotations

import os
import re
from array import array as CArray
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend.files import printable
from kcalib._input.columns import LABEL_NAMES, FileError
from kcalib._input.frames import is_default_index
from kcalib.streaming.sources.content import check_file, check_unique
from kcalib.streaming.sources.opening import find_files, suffix_of
from kcalib.streaming.sources.tables import open_parquet
from kcalib.streaming.sources.text import is_number, open_text, read_records

BATCH_ROWS = 2**16
TABLES = (".csv", ".tsv", ".gz", ".parquet")  # last suffixes of files
MISSING = {"", "NA", "N/A", "NaN", "nan", "NaT", "None", "<NA>", "null"}
TIME = re.compile(r"\d{4}-?\d\d-?\d\d[T ]\d\d.*")
MODEL = ("model_id", "model")
TARGETS = ("oracle_value", "observation", *LABEL_NAMES)
DATES = ("target_end_date", "target_date", "date", "time", "ds", "timestamp")  # of the predicted event
BESIDE = ("output_type", "output_type_id", "as_of")  # columns that do not match targets and forecasts


class Column(NamedTuple):
    """A column, with each distinct value once."""

    codes: np.ndarray  # indices into `keys` and `shown`, shape (n,)
    keys: np.ndarray  # canonical texts; "" for missing values
    shown: np.ndarray  # texts as written

    @classmethod
    def of_values(cls, codes: np.ndarray, values: Sequence[Any]) -> Column:
        texts = [_shorten_time(str(value).strip()) for value in values]
        texts = ["" if text in MISSING else text for text in texts]
        keys = np.asarray([repr(float(text)) if is_number(text) else text for text in texts], dtype=str)
        unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        return cls(inverse[codes], unique, np.asarray([texts[i] for i in first], dtype=str))

    def take(self, rows: Any) -> Column:
        return self._replace(codes=self.codes[rows])

    def first(self) -> str:
        """Return the first cell."""
        return str(self.shown[self.codes[0]]) if len(self.codes) else "no row"

    def texts(self) -> list[str]:
        """Return the keys of all rows."""
        return list(self.keys[self.codes].tolist())

    def numbers(self, name: Any) -> np.ndarray:
        """Return floats, NaN for missing values."""
        values = np.asarray([float(text) if is_number(text) else np.nan for text in self.keys])[self.codes]
        for row in np.flatnonzero(np.isnan(values) & (self.keys[self.codes] != "")):
            text = str(self.shown[self.codes[row]])
            raise FileError(f"column {name!r} has the cell {text!r}, expected a number; repair its row")
        return values

    def array(self) -> np.ndarray:
        """Return numbers if all values are numbers, else texts."""
        shown = self.shown[self.codes]
        used = np.unique(shown)
        if all(is_number(text) and not re.match(r"[+-]?0\d", text) for text in used):
            return shown.astype(np.int64 if all(re.fullmatch(r"[+-]?\d{1,15}", text) for text in used) else np.float64)
        return shown


class Table(NamedTuple):
    """Columns of n rows by name; names of frames may be tuples."""

    columns: Mapping[Any, Column]
    n: int

    def find_targets(self, tasks: Mapping[Any, Column], *, is_pmf: bool = False) -> np.ndarray:
        """Return the target of each task, NaN if missing; with `is_pmf` the key of a category, or ""."""
        others = [name for name in self.columns if name not in tasks]
        value = next((name for name in TARGETS if name in others), others[0] if len(others) == 1 else None)
        used = {name: name for name in self.columns if name in tasks and name not in BESIDE}
        dates, task_dates = ([name for name in DATES if name in names] for names in (others, tasks))
        if dates and task_dates and not any(name in used for name in DATES):
            used[dates[0]] = task_dates[0]
        has_dates = any(len(np.unique(tasks[name].codes)) > 1 for name in task_dates)
        if value is None or not used or (has_dates and not set(used.values()) & set(DATES)):
            raise FileError(
                f"the targets have the columns {listed(self.columns)}, the forecasts {listed(tasks)}; expected shared "
                "columns, such as location and target_end_date, and the values in a column oracle_value, observation "
                "or y; rename columns, or with columns of quantiles pass an array"
            )
        values, is_row = self.columns[value], np.ones(self.n, dtype=bool)
        if "output_type" in self.columns:
            kinds = self.columns["output_type"]
            is_row = np.isin(kinds.shown, ("pmf",) if is_pmf else ("pmf", "cdf"))[kinds.codes] == is_pmf
            if is_pmf:  # 1 for the category that was observed
                is_row, values = is_row & (values.numbers(value) == 1), self.columns.get("output_type_id", values)
        rows = np.flatnonzero(is_row & (values.keys[values.codes] != ""))
        versions = self.columns["as_of"].codes[rows] if "as_of" in self.columns else np.zeros(len(rows), np.int64)
        keys = zip(*(self.columns[name].take(rows).texts() for name in used), strict=True)
        latest: dict[tuple[str, ...], tuple[int, int]] = {}
        for key, code, version in zip(keys, values.codes[rows].tolist(), versions.tolist(), strict=True):
            before = latest.get(key, (version, code))
            if before[0] == version and before[1] != code:
                where = ", ".join(f"{name} {text}" for name, text in zip(used, key, strict=True))
                raise FileError(
                    f"the targets of {where} are {values.shown[before[1]]} and {values.shown[code]}, expected one; add "
                    f"the column that tells them apart to the forecasts, which have {listed(tasks)}"
                )
            latest[key] = max(before, (version, code))
        asked = zip(*(tasks[name].texts() for name in used.values()), strict=True)
        codes = np.asarray([latest.get(key, (0, -1))[1] for key in asked], np.int64)
        targets = Column(codes, np.append(values.keys, ""), np.append(values.shown, ""))  # -1 is the last
        return targets.keys[codes] if is_pmf else targets.numbers(value)


def _shorten_time(text: str) -> str:
    """Return an ISO time in UTC, without hours, minutes and seconds if they are 0; other text unchanged."""
    if not TIME.fullmatch(text):
        return text
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return str(time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time).removesuffix(" 00:00:00")


def listed(names: Any) -> str:
    """Return some names for a message."""
    texts = [repr(name) for name in names]
    return ", ".join(texts[:12]) + (", ..." if len(texts) > 12 else "")


def read_table(data: Any) -> Table:
    """Read all columns of files or of a frame; without a column of models these are named after folders."""
    numbers: dict[Any, dict[Any, int]] = {}
    codes: dict[Any, CArray[int]] = {}
    for columns in _read_batches(data):
        if numbers and set(numbers) != set(columns):
            raise FileError(f"the files have the columns {listed(numbers)} and {listed(columns)}; read them separately")
        for name, values in columns.items():
            places = numbers.setdefault(name, {})
            for value in dict.fromkeys(values):
                places.setdefault(value, len(places))
            codes.setdefault(name, CArray("q")).extend(map(places.__getitem__, values))
    if len({len(places) for places in codes.values()}) > 1:
        raise FileError(f"the columns have {', '.join(str(len(p)) for p in codes.values())} rows, expected equal ones")
    whole = {name: Column.of_values(np.asarray(codes[name], np.int64), list(numbers[name])) for name in numbers}
    return Table(whole, len(next(iter(codes.values()), [])))


def read_file(path: Path) -> Iterator[dict[Any, Any]]:
    """Yield columns of a file by name, first without rows."""
    check_file(path)
    suffix = suffix_of(path)
    if suffix == ".parquet":
        names, tables, n = open_parquet(lambda: path)
        yield dict.fromkeys(names, ())
        for table in tables(list(names), 0, BATCH_ROWS) if n else ():
            yield {name: table.column(name).to_pylist() for name in names}
        return
    if suffix.removesuffix(".gz") not in (".csv", ".tsv"):
        raise FileError(f"the suffix is {suffix!r}, expected .csv, .tsv, their .gz, or .parquet; convert the file")
    records = read_records(*open_text(path))
    header = [cell.strip() for cell in next(records, (0, []))[1]]
    check_unique(header, header)
    yield dict.fromkeys(header, ())
    while batch := list(islice(records, BATCH_ROWS)):
        rows = [cells for _, cells in batch]
        for line, cells in batch if set(map(len, rows)) != {len(header)} else ():
            if len(cells) != len(header):
                raise FileError(f"line {line} has {len(cells)} cells, expected {len(header)}; repair the line")
        yield dict(zip(header, zip(*rows, strict=True), strict=True))


def is_path(data: Any) -> bool:
    return isinstance(data, (str, os.PathLike))


def _read_batches(data: Any) -> Iterator[dict[Any, Any]]:
    if is_path(data) or (isinstance(data, (list, tuple)) and data and is_path(data[0])):
        files = [file for path in ([data] if is_path(data) else data) for file in find_files(Path(path))]
        for file in files:
            try:
                for columns in read_file(file):
                    if len(files) > 1 and not set(MODEL) & set(columns):
                        columns[MODEL[0]] = [file.parent.name] * len(next(iter(columns.values()), ()))
                    yield columns
            except FileError as error:
                raise FileError(f"{printable(file)}: {error}") from None
        return
    if hasattr(data, "reset_index"):  # of pandas, whose index says what is predicted
        data = data.to_frame() if data.ndim == 1 else data
        index = data.index
        if data.columns.nlevels == 1 < data.shape[1]:  # unnamed numbers are places in a longer frame
            unnamed = [k for k, name in enumerate(index.names) if name is None]
            counts = [k for k in unnamed if index.get_level_values(k).dtype.kind in "iu"]
            data = data.reset_index(level=counts, drop=True)
        data = data if is_default_index(data.index) else data.reset_index()
        called = [name[0] if isinstance(name, tuple) and set(name[1:]) == {""} else name for name in data.columns]
        yield {name: data.iloc[:, i].tolist() for i, name in enumerate(called)}
        return
    names = data if isinstance(data, Mapping) else getattr(data, "column_names", getattr(data, "columns", None))
    if names is None:
        raise TypeError(f"a table is a {type(data).__name__}, expected paths, a data frame or a mapping of columns")
    arrays_by_name = {name: np.asarray(data[name]) for name in names}
    yield {
        name: (array.astype(str) if array.dtype.kind in "Mm" else array).tolist()
        for name, array in arrays_by_name.items()
    }
