"""A file as named arrays or columns (`Source`): what each format's module makes, and `names` chooses from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kcalib._input.columns import Choice, Columns

# Gives the predictions, and the labels if a name is given.
Reader = Callable[[Choice, str | None], tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class FileColumns(Columns):
    """The names of a file that the command was given."""

    def spelled(self, option: str) -> str:
        return f"--{option}".replace("_", "-")

    def otherwise(self) -> str:
        return (
            "; for regression expected mean and std, samples, or rate; name them by --mean and --std, --samples, or "
            "--rate, and Laplace distributions by --loc and --scale"
        )


@dataclass(frozen=True)
class Source(FileColumns):
    """The arrays or columns of a file."""

    read: Reader
    in_one_pass: bool = False  # several columns are best read together
