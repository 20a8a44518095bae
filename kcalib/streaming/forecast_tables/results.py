"""What was read of one model: targets, forecasts, what they are of, and the rows that were not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend.options import OptionError
from kcalib._input.columns import FileError
from kcalib._input.sparse import SparseProbabilities
from kcalib.distributions import Distribution, Quantiles, Samples
from kcalib.lenses import CANONICAL, Lens
from kcalib.report.summary import Summarized

CROSSING = "quantiles that cross"  # the reason why rows are not used


@dataclass(frozen=True, eq=False)
class ModelForecasts(Summarized):
    """Forecasts or answers of one model with their targets, for `kcalib.evaluate` and all other functions."""

    _shown = ("model", "n_samples", "n_rows", "n_rows_used", "unused")

    model: str  #: its name; of a table without one that of the file
    n_samples: int  #: forecasts that have a target
    y_true: np.ndarray | None  #: targets or labels, shape (n,); None if no forecast has one
    y_pred: Distribution | SparseProbabilities | np.ndarray | None  #: distributions, or probabilities of classes
    tasks: dict[str, np.ndarray]  #: what each forecast is of: other columns, or coordinates, shape (n,)
    n_rows: int  #: rows of the model, or entries of an array
    n_rows_used: int  #: of them in `y_pred`
    unused: dict[str, int]  #: number of the other rows by the reason why they are not
    read_as: str = ""  #: what the predictions of a log are
    lens: Lens = CANONICAL  #: `kcalib.lenses.Confidence` of confidences
    clusters: np.ndarray | None = None  #: the text that each position of a log of tokens is in

    def column(self, name: str) -> np.ndarray:
        """Return a column of `tasks`; a ValueError names those that there are."""
        if name not in self.tasks:
            raise ValueError(f"there is no column {name!r}; expected one of {', '.join(map(repr, self.tasks))}")
        return self.tasks[name]

    def check_one_series(self) -> None:
        """Refuse forecasts that have no column with another value for each, as dates of one series are."""
        if not any(len(np.unique(column)) == self.n_samples for column in self.tasks.values()):
            columns = ", ".join(map(repr, self.tasks))
            raise OptionError(
                "time_blocks",
                f"is for one series in the order of time, but no column of {self.model} ({columns}) differs for each "
                "forecast; keep one location and horizon, or give clusters, such as the date",
            )

    def split(self, *names: str) -> tuple[ModelForecasts, ...]:
        """Return the forecasts of each combination of values of columns of `tasks`, in order, added to the name."""
        rows_of: dict[tuple[Any, ...], list[int]] = {}
        for row, values in enumerate(zip(*(self.column(name).tolist() for name in names), strict=True)):
            rows_of.setdefault(values, []).append(row)
        parts = []
        for values in sorted(rows_of):
            model = ", ".join([self.model, *(f"{name} {value}" for name, value in zip(names, values, strict=True))])
            parts.append(self.take(np.asarray(rows_of[values]), model))
        return tuple(parts)

    def take(self, rows: np.ndarray, model: str) -> ModelForecasts:
        """Return the forecasts of some tasks, by another name."""
        assert self.y_true is not None and self.y_pred is not None
        n, tasks = self.n_rows_used * len(rows) // self.n_samples, {k: column[rows] for k, column in self.tasks.items()}
        pred = self.y_pred.take(rows) if isinstance(self.y_pred, Distribution) else self.y_pred[rows]
        true, clusters = self.y_true[rows], None if self.clusters is None else self.clusters[rows]
        return ModelForecasts(model, len(rows), true, pred, tasks, n, n, {}, self.read_as, self.lens, clusters)

    def describe_rows(self) -> str:
        """Return how many rows were used, and why others were not, in words."""
        reasons = "; not used: " + ", ".join(f"{reason} ({n})" for reason, n in self.unused.items())
        rows = f"{self.n_rows_used} of {self.n_rows} rows, {self.n_samples} samples{reasons if self.unused else ''}"
        return f"{self.read_as}: {rows}" if self.read_as else rows


def count_reasons(reasons: Iterable[str]) -> dict[str, int]:
    """Return the number of rows for each reason, of rows that are used none."""
    return {reason: n for reason, n in Counter(reasons).most_common() if reason}


def keep_complete(
    model: str,
    y_true: np.ndarray,
    values: np.ndarray,
    levels: Any,
    tasks: Mapping[Any, np.ndarray],
    sort: bool,
    n_rows: int,
    noun: str = "value",
) -> ModelForecasts:
    """Return the forecasts by members, or by quantiles at `levels`, that have all numbers and a target."""
    reasons = np.full(len(y_true), "", dtype=object)
    if levels is not None and not sort:
        reasons[find_crossing(values[:, np.argsort(levels)])] = CROSSING
    reasons[np.isnan(values).any(axis=1)] = f"no {noun}"
    reasons[np.isnan(y_true)] = "no target"
    rows, prediction = np.flatnonzero(reasons == ""), None
    if len(rows):
        prediction = Samples(values[rows]) if levels is None else make_quantiles(model, levels, values[rows], sort)
    unused = count_reasons([*reasons.tolist(), *["no target"] * (n_rows - len(y_true))])
    true, tasks = y_true[rows] if len(rows) else None, {str(name): column[rows] for name, column in tasks.items()}
    return ModelForecasts(model, len(rows), true, prediction, tasks, n_rows, len(rows), unused)


def find_crossing(values: np.ndarray) -> np.ndarray:
    """Return which rows of quantiles in the order of their levels decrease somewhere."""
    return np.asarray((values[:, 1:] < values[:, :-1]).any(axis=1))


def make_quantiles(model: str, levels: Any, values: Any, sort: bool) -> Quantiles:
    """Return forecasts by quantiles; an error names the model."""
    try:
        return Quantiles(levels, values, sort=sort)
    except ValueError as error:
        raise FileError(f"{model}: {error}") from None
