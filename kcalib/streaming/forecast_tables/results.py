"""`ModelForecasts`: what was read of one model."""

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
from kcalib.lenses import Lens
from kcalib.report.summary import Summarized

CROSSING = "quantiles that cross"  # the reason why rows are not used


@dataclass(frozen=True, eq=False)
class ModelForecasts(Summarized):
    """Forecasts or answers of one model with their targets, for `kcalib.evaluate` and all other functions."""

    _shown = ("model", "n_samples", "n_rows", "n_rows_used", "unused")

    model: str  #: name of the model, or of the file
    n_samples: int  #: number of forecasts with a target
    y_true: np.ndarray | None  #: targets or labels, shape (n,); None if no forecast has one
    y_pred: Distribution | SparseProbabilities | np.ndarray | None  #: distributions, or class probabilities
    tasks: dict[str, np.ndarray]  #: other columns or coordinates of each forecast, shape (n,)
    n_rows: int  #: number of rows of the model, or of entries of an array
    n_rows_used: int  #: number of rows in `y_pred`
    unused: dict[str, int]  #: number of the other rows by reason
    read_as: str = ""  #: kind of predictions of a log
    lens: Lens | None = None  #: for ``lens=``: `kcalib.lenses.Confidence` for confidences
    clusters: np.ndarray | None = None  #: text of each token, for logs of tokens

    def column(self, name: str) -> np.ndarray:
        """Return a column of `tasks`; the message of a ValueError lists the columns."""
        if name not in self.tasks:
            raise ValueError(f"there is no column {name!r}; expected one of {', '.join(map(repr, self.tasks))}")
        return self.tasks[name]

    def check_one_series(self) -> None:
        """Refuse forecasts without a column that differs for each of them, such as the dates of one series."""
        if not any(len(np.unique(column)) == self.n_samples for column in self.tasks.values()):
            columns = ", ".join(map(repr, self.tasks))
            raise OptionError(
                "time_blocks",
                f"is for a single time series, but no column of {self.model} ({columns}) differs for each "
                "forecast; keep one location and horizon, or give clusters, such as the date",
            )

    def split(self, *names: str) -> tuple[ModelForecasts, ...]:
        """Return the forecasts for each combination of values of columns of `tasks`, which become part of the name."""
        rows_of: dict[tuple[Any, ...], list[int]] = {}
        for row, values in enumerate(zip(*(self.column(name).tolist() for name in names), strict=True)):
            rows_of.setdefault(values, []).append(row)
        parts = []
        for values in sorted(rows_of):
            model = ", ".join([self.model, *(f"{name} {value}" for name, value in zip(names, values, strict=True))])
            parts.append(self.take(np.asarray(rows_of[values]), model))
        return tuple(parts)

    def take(self, rows: np.ndarray, model: str) -> ModelForecasts:
        """Return the forecasts of some tasks under another name."""
        assert self.y_true is not None and self.y_pred is not None
        n, tasks = self.n_rows_used * len(rows) // self.n_samples, {k: column[rows] for k, column in self.tasks.items()}
        pred = self.y_pred.take(rows) if isinstance(self.y_pred, Distribution) else self.y_pred[rows]
        true, clusters = self.y_true[rows], None if self.clusters is None else self.clusters[rows]
        return ModelForecasts(model, len(rows), true, pred, tasks, n, n, {}, self.read_as, self.lens, clusters)

    def describe_rows(self) -> str:
        """Return a text on how many rows were used, and why others were not."""
        reasons = "; not used: " + ", ".join(f"{reason} ({n})" for reason, n in self.unused.items())
        rows = f"{self.n_rows_used} of {self.n_rows} rows, {self.n_samples} samples{reasons if self.unused else ''}"
        return f"{self.read_as}: {rows}" if self.read_as else rows


def count_reasons(reasons: Iterable[str]) -> dict[str, int]:
    """Return the number of rows for each reason, except the empty one."""
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
    """Return the forecasts (members, or quantiles at `levels`) that have all numbers and a target."""
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
    """Return which rows of quantiles, sorted by level, decrease somewhere."""
    return np.asarray((values[:, 1:] < values[:, :-1]).any(axis=1))


def make_quantiles(model: str, levels: Any, values: Any, sort: bool) -> Quantiles:
    """Return forecasts by quantiles; an error names the model."""
    try:
        return Quantiles(levels, values, sort=sort)
    except ValueError as error:
        raise FileError(f"{model}: {error}") from None
