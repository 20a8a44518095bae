# Types of src/_native.pyx.
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

version: str

class Sweep:
    def __init__(
        self, threads: int, level: str | None = None, progress: Callable[[float], None] | None = None
    ) -> None: ...
    @property
    def level(self) -> str: ...

class Kernel:
    def __init__(self, terms: Sequence[tuple[float, Sequence[tuple[int, int, float, float]]]]) -> None: ...

def moments(
    points: np.ndarray,
    marks: np.ndarray,
    labels: np.ndarray | None,
    right_points: np.ndarray,
    right_marks: np.ndarray,
    right_labels: np.ndarray | None,
    symmetric: bool,
    kernel: Kernel,
    sweep: Sweep,
    second: bool,
) -> tuple[np.ndarray, np.ndarray | None, float | None]: ...
def block_sums(
    points: np.ndarray, marks: np.ndarray, labels: np.ndarray | None, kernel: Kernel, sweep: Sweep, size: int
) -> np.ndarray: ...
def matmul(
    points: np.ndarray,
    marks: np.ndarray,
    labels: np.ndarray | None,
    right_points: np.ndarray,
    right_marks: np.ndarray,
    right_labels: np.ndarray | None,
    symmetric: bool,
    kernel: Kernel,
    sweep: Sweep,
    vectors: np.ndarray,
) -> np.ndarray: ...
def entries(
    points: np.ndarray,
    marks: np.ndarray,
    labels: np.ndarray | None,
    right_points: np.ndarray,
    right_marks: np.ndarray,
    right_labels: np.ndarray | None,
    symmetric: bool,
    kernel: Kernel,
    sweep: Sweep,
) -> np.ndarray: ...
def line_product(
    gap: np.ndarray, decay: np.ndarray, coefficients: np.ndarray, vectors: np.ndarray, sweep: Sweep
) -> np.ndarray: ...
def distributions(rows: np.ndarray, tolerance: float, threads: int) -> np.ndarray | None: ...
def labels_within(labels: np.ndarray, m: int, threads: int) -> bool: ...
def points_and_residuals(
    p: np.ndarray, labels: np.ndarray, dtype: Any, threads: int
) -> tuple[np.ndarray, np.ndarray]: ...
def square_norms(vectors: np.ndarray, threads: int) -> np.ndarray: ...
def probe(what: str, dtype: Any, repetitions: int, sweep: Sweep) -> float: ...
def has_openmp() -> bool: ...
def max_threads() -> int: ...
