"""What was read of one model: targets, forecasts, what they are of, and the rows that were not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._input.columns import FileError
from kcalib.distributions import Distribution, Quantiles
from kcalib.report.summary import Summarized


@dataclass(frozen=True, eq=False)
class ModelForecasts(Summarized):
    """Forecasts of one model with their targets, for `kcalib.evaluate` and all other functions."""

    _shown = ("model", "n_samples", "n_rows", "n_rows_used", "unused")

    model: str  #: its name; of a table without one that of the file
    n_samples: int  #: forecasts that have a target
    y_true: np.ndarray | None  #: targets, shape (n,); None if no forecast has one
    y_pred: Distribution | None  #: of kcalib.distributions: Quantiles, Samples, or Categorical
    tasks: dict[str, np.ndarray]  #: what each forecast is of: other columns, or coordinates, shape (n,)
    n_rows: int  #: rows of the model, or entries of an array
    n_rows_used: int  #: of them in `y_pred`
    unused: dict[str, int]  #: number of the other rows by the reason why they are not

    def column(self, name: str) -> np.ndarray:
        """Return a column of `tasks`; a ValueError names those that there are."""
        if name not in self.tasks:
            raise ValueError(f"there is no column {name!r}; expected one of {', '.join(map(repr, self.tasks))}")
        return self.tasks[name]

    def split(self, *names: str) -> tuple[ModelForecasts, ...]:
        """Return the forecasts of each combination of values of columns of `tasks`, in order, added to the name."""
        rows_of: dict[tuple[Any, ...], list[int]] = {}
        for row, values in enumerate(zip(*(self.column(name).tolist() for name in names), strict=True)):
            rows_of.setdefault(values, []).append(row)
        parts = []
        for values in sorted(rows_of):
            assert self.y_true is not None and self.y_pred is not None
            rows = np.asarray(rows_of[values])
            model = ", ".join([self.model, *(f"{name} {value}" for name, value in zip(names, values, strict=True))])
            n, y_true, y_pred = (
                self.n_rows_used * len(rows) // self.n_samples,
                self.y_true[rows],
                self.y_pred.take(rows),
            )
            tasks = {name: column[rows] for name, column in self.tasks.items()}
            parts.append(ModelForecasts(model, len(rows), y_true, y_pred, tasks, n, n, {}))
        return tuple(parts)

    def describe_rows(self) -> str:
        """Return how many rows were used, and why others were not, in words."""
        reasons = "; not used: " + ", ".join(f"{reason} ({n})" for reason, n in self.unused.items())
        return f"{self.n_rows_used} of {self.n_rows} rows, {self.n_samples} samples{reasons if self.unused else ''}"


def count_reasons(reasons: Iterable[str]) -> dict[str, int]:
    """Return the number of rows for each reason, of rows that are used none."""
    return {reason: n for reason, n in Counter(reasons).most_common() if reason}


def make_quantiles(model: str, levels: Any, values: Any, sort: bool) -> Quantiles:
    """Return forecasts by quantiles; an error names the model, and the option that sorts."""
    try:
        return Quantiles(levels, values, sort=sort)
    except ValueError as error:
        raise FileError(f"{model}: {error}".replace("pass sort=", "pass sort_quantiles=")) from None
