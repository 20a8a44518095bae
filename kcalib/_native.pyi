# Types of src/_native.pyx and src/native/.
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

version: str

def cpu_levels() -> tuple[str, ...]: ...

class RunOptions:
    def __init__(
        self,
        threads: int,
        progress: Callable[[float], None] | None = None,
        block: int = 0,
        per_group: int = 0,
    ) -> None: ...

class FamilyOfDistributions(NamedTuple):
    number: int
    bound: dict[str, float]
    cost: float
    max_dims: int | None
    matrices: bool
    of_kernel: bool
    apart: bool

    def component_columns(self, n_dims: int) -> int: ...

FAMILIES: dict[str, FamilyOfDistributions]

def profiles() -> list[tuple[str, str, str, str, float, str]]: ...

class Kernel:
    def __init__(
        self,
        terms: Sequence[tuple[float, Sequence[tuple[int, int, float, float, float]]]],
        target: tuple[Any, ...] | None = None,
        predicted: tuple[Any, ...] | None = None,
        table: np.ndarray | None = None,
        centre: np.ndarray | None = None,
        one_product: bool = True,
    ) -> None: ...

# Points, features, labels and order of a side.
Arrays = tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]

class Reduction: ...

class Problem:
    left: Arrays
    right: Arrays
    def __init__(self, kernel: Kernel, left: Arrays, right: Arrays | None = None) -> None: ...
    def groups(self, options: RunOptions) -> tuple[int, int]: ...
    def sweep(self, reductions: list[Reduction], options: RunOptions, merged: bool = True) -> list[Any]: ...
    def block_sums(self, size: int, options: RunOptions) -> np.ndarray: ...
    def own_products(self, options: RunOptions) -> np.ndarray: ...

class Moments(Reduction):
    def __init__(self, rows: bool = True, squares: bool = False, null_variance: bool = False) -> None: ...

class QuadraticForms(Reduction):
    def __init__(self, panels: list[np.ndarray], first_row: int = 0, first_column: int = 0) -> None: ...

class LabelMatches(Reduction):
    def __init__(self, panels: list[np.ndarray], first_row: int = 0, first_column: int = 0) -> None: ...

class Products(Reduction):
    def __init__(
        self,
        vectors: np.ndarray,
        left_vectors: np.ndarray | None = None,
        *,
        single: bool = False,
        rounded: bool = False,
        apart: bool = False,
    ) -> None: ...

class Counts(Reduction):
    def __init__(self, thresholds: np.ndarray) -> None: ...

class EntriesInRange(Reduction):
    def __init__(self, low: float, high: float, most: int) -> None: ...

class DenseRectangle(Reduction): ...

THRESHOLDS: int

def weights_at_once(dtype: Any, options: RunOptions) -> int: ...
def labels_at_once(options: RunOptions) -> int: ...
def line_gap(points: np.ndarray, options: RunOptions) -> float: ...
def line_residuals(
    points: np.ndarray, labels: np.ndarray, options: RunOptions
) -> tuple[np.ndarray, int, float, float]: ...
def line_total(
    sizes: np.ndarray, n_zeros: int, rate: float, coefficients: np.ndarray, squared: bool, options: RunOptions
) -> tuple[float, float]: ...
def line_order(
    points: np.ndarray, labels: np.ndarray | None, block: int, options: RunOptions
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, float, float, float]: ...
def line_product(
    places: np.ndarray,
    positions: np.ndarray,
    block: int,
    terms: Sequence[tuple[float, np.ndarray, np.ndarray, np.ndarray]],
    diagonal: bool,
    vectors: np.ndarray | None,
    first: int,
    n_rows: int,
    options: RunOptions,
) -> np.ndarray: ...
def line_forms(
    places: np.ndarray,
    positions: np.ndarray,
    terms: Sequence[tuple[float, np.ndarray, np.ndarray]],
    weights: np.ndarray | None,
    seed: int,
    n_replicates: int,
    options: RunOptions,
) -> np.ndarray: ...
def line_label_forms(
    places: np.ndarray,
    positions: np.ndarray,
    terms: Sequence[tuple[float, np.ndarray, np.ndarray]],
    labels: np.ndarray,
    options: RunOptions,
) -> np.ndarray: ...
def line_drawn_forms(
    places: np.ndarray,
    positions: np.ndarray,
    terms: Sequence[tuple[float, np.ndarray, np.ndarray]],
    thresholds: np.ndarray,
    key0: int,
    key1: int,
    n_draws: int,
    options: RunOptions,
) -> np.ndarray: ...
def line_counts(places: np.ndarray, thresholds: np.ndarray, options: RunOptions) -> np.ndarray: ...
def line_between(places: np.ndarray, low: float, high: float, count: int) -> np.ndarray: ...
def class_shares(
    queries: np.ndarray,
    training: np.ndarray,
    offsets: np.ndarray,
    labels: np.ndarray,
    n_classes: int,
    leave_one_out: bool,
    options: RunOptions,
) -> tuple[np.ndarray, np.ndarray]: ...
def log_normalisers(x: np.ndarray, options: RunOptions) -> np.ndarray: ...

class Features:
    def __init__(
        self, frequencies: np.ndarray, amplitudes: np.ndarray, projections: np.ndarray, offsets: np.ndarray
    ) -> None: ...
    def sum_products(
        self, points: np.ndarray, target_features: np.ndarray, options: RunOptions
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def row_forms(
        self, points: np.ndarray, target_features: np.ndarray, sums: np.ndarray, options: RunOptions
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def gram_parts(
        self, points: np.ndarray, columns: np.ndarray, part_rows: int, options: RunOptions
    ) -> np.ndarray: ...
    def rows(self, points: np.ndarray, options: RunOptions) -> np.ndarray: ...
    def drawn_label_totals(
        self,
        points: np.ndarray,
        probabilities: np.ndarray,
        root: np.ndarray | None,
        seed: int,
        first: int,
        n_draws: int,
        options: RunOptions,
        cells: tuple[Any, ...] | None = None,
        weights: np.ndarray | None = None,
    ) -> np.ndarray: ...

def distributions(rows: np.ndarray, tolerance: float, threads: int, widen: bool = True) -> np.ndarray | None: ...
def completed(seconds: np.ndarray, threads: int) -> np.ndarray: ...
def classes(labels: np.ndarray, m: int, threads: int) -> np.ndarray | None: ...
def points_and_residuals(
    p: np.ndarray, labels: np.ndarray, dtype: Any, threads: int
) -> tuple[np.ndarray, np.ndarray]: ...
def pair_law_sums(
    traces: np.ndarray,
    own: np.ndarray,
    other: np.ndarray,
    unlikely: np.ndarray,
    top: np.ndarray,
    d: np.ndarray,
    options: RunOptions,
) -> np.ndarray: ...
def square_norms(vectors: np.ndarray, threads: int) -> np.ndarray: ...
def top_labels(p: np.ndarray, labels: np.ndarray, threads: int) -> tuple[np.ndarray, np.ndarray]: ...
def uniform_bins(
    p: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, n_bins: int, threads: int
) -> np.ndarray: ...
def uniform_cells(
    p: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, n_bins: int, norm: str, threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def median_variance_cells(
    p: np.ndarray, labels: np.ndarray, max_bins: int, min_size: int, norm: str, threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def isotonic_with_hit(weight: np.ndarray, hits: np.ndarray) -> np.ndarray: ...
def fill_weights(kind: int, seed: int, first_replicate: int, out: np.ndarray, options: RunOptions) -> None: ...
def count_products(
    seed: int, first_replicate: int, vector: np.ndarray, out: np.ndarray, options: RunOptions
) -> None: ...
def draw_labels(
    cumulative: np.ndarray, key0: int, key1: int, first: int, out: np.ndarray, options: RunOptions
) -> None: ...
def label_thresholds(probabilities: np.ndarray, options: RunOptions) -> np.ndarray: ...
def label_sums(table: np.ndarray, labels: np.ndarray, options: RunOptions) -> np.ndarray: ...
def changed_sums(
    rows: np.ndarray, values: np.ndarray, likely: np.ndarray, labels: np.ndarray, options: RunOptions
) -> np.ndarray: ...
def probe(what: str, dtype: Any, repetitions: int, options: RunOptions) -> float: ...
def evaluate(function: str, x: np.ndarray, out: np.ndarray, options: RunOptions, a: float = 1.0) -> None: ...
def thread_library() -> str: ...
def max_threads() -> int: ...
def running_sweeps() -> int: ...
def sum_label_cells(
    p: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    cells: tuple[np.ndarray, np.ndarray, float],
    sums: tuple[np.ndarray, np.ndarray],
    logs: tuple[np.ndarray, np.ndarray],
    impossible: np.ndarray,
    options: RunOptions,
) -> None: ...
def sum_temperatures(
    p: np.ndarray,
    labels: np.ndarray,
    floor: float,
    sums: tuple[np.ndarray, np.ndarray],
    options: RunOptions,
) -> None: ...
def state_scores(
    p: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    n_bins: int,
    epsilon: float,
    scores: tuple[np.ndarray, np.ndarray],
    cells: tuple[np.ndarray, np.ndarray],
    counts: np.ndarray,
    lowest: np.ndarray,
    highest: np.ndarray,
    options: RunOptions,
) -> None: ...
def state_sums(
    features: Features,
    p: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    root: np.ndarray | None,
    ends: np.ndarray,
    sums: tuple[np.ndarray, np.ndarray],
    own: tuple[np.ndarray, np.ndarray],
    null_own: tuple[np.ndarray, np.ndarray],
    options: RunOptions,
) -> None: ...
def drawn_block_sums(
    features: Features,
    p: np.ndarray,
    root: np.ndarray | None,
    seed: int,
    n_draws: int,
    first_rows: np.ndarray,
    base: tuple[np.ndarray, np.ndarray],
    base_own: tuple[np.ndarray, np.ndarray],
    changes: tuple[np.ndarray, np.ndarray],
    changes_own: tuple[np.ndarray, np.ndarray],
    options: RunOptions,
    cells: tuple[Any, ...] | None = None,
    weights: np.ndarray | None = None,
) -> None: ...
