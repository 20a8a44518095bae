"""Options of states, checked once, and what they determine before any row is added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import LARGEST_SEED, check_integer
from kcalib._input.classes import Classes, places_of
from kcalib._input.labels import Classification
from kcalib._packing.features import check_columns, class_map
from kcalib._packing.labels import check_kernel, target_root
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.label_cells import LabelCells
from kcalib.estimators.binning import MAX_BINS
from kcalib.kernels import Kernel, RadialKernel
from kcalib.lenses import Canonical, Lens
from kcalib.streaming._row_sums.rows import PARTS
from kcalib.target_kernels import TargetKernel

N_COLUMNS = 256
N_RESAMPLES = 199
DRAWN_BYTES = 2**26  # limit for the default sums of draws, of kernels and of cells
SMALLEST_CLASSES, LARGEST_CLASSES = 2, 2**20
MAY_DIFFER = ("part", "classes")  # options that may differ, or are compared separately


class SharedOptions(ABC):
    """Options of a state of any kind, with `kernel`, `n_columns`, `n_bins`, `n_resamples`, `seed` and `part`."""

    KERNELS: ClassVar[tuple[str, ...]] = ("kernel",)  # options that are known with their bandwidths later
    seed: int
    part: int
    clusters: bool  # whether samples come in clusters

    @classmethod
    @abstractmethod
    def from_file(cls, **values: Any) -> Self:
        """Return options from a file, checked."""

    def with_classes_of(self, other: SharedOptions) -> Self:
        """Return the options with the classes of the first samples, if none were given."""
        return self

    def with_kernels_of(self, other: SharedOptions) -> Self:
        """Return the options with the bandwidths of another state."""
        return replace(self, **{name: getattr(other, name) for name in self.KERNELS})  # type: ignore[type-var]

    def difference(self, other: SharedOptions) -> str | None:
        """Describe the first option that differs, or return None."""
        for field in fields(self):  # type: ignore[arg-type]
            name, mine, theirs = field.name, getattr(self, field.name), getattr(other, field.name)
            if name in MAY_DIFFER or mine == theirs or (name in self.KERNELS and _may_be_same(mine, theirs)):
                continue
            remedy = self._remedy(name)
            return (
                f"`{name}` is {_format_option(mine)} in one state and {_format_option(theirs)} in the other; {remedy}"
            )
        return None

    def _remedy(self, name: str) -> str:
        return "make the states with the same options"


@dataclass(frozen=True)
class StateOptions(SharedOptions):
    """Options of a `CalibrationState`; states to be merged have equal ones, except `part`.

    `kernel` is as given until its bandwidths are known.
    """

    n_classes: int  #: columns of `y_pred`
    classes: tuple[Any, ...] | None  #: the label of each column; None before the first row, or if a file lacks them
    from_logits: bool
    lens: Lens
    kernel: Kernel
    target_kernel: Kernel | tuple[tuple[float, ...], ...] | None  #: a kernel between classes, a matrix, or None: delta
    n_columns: int
    n_bins: int
    n_resamples: int
    seed: int
    part: int
    clusters: bool  #: whether samples come in clusters
    n_kernel_resamples: int  #: draws that the kernels have sums of: `n_resamples`, or 0 where these are large

    @classmethod
    def checked(
        cls,
        n_classes: Any,
        classes: Any,
        from_logits: Any,
        lens: Any,
        kernel: Any,
        target_kernel: Any,
        n_columns: Any,
        n_bins: Any,
        n_resamples: Any,
        seed: Any,
        part: Any,
        n_kernel_resamples: Any = None,
        clusters: Any = False,
    ) -> StateOptions:
        """Return checked options of the constructor of `CalibrationState`; `n_kernel_resamples` is from a file."""
        n_classes = check_columns_of(n_classes)
        if not isinstance(from_logits, (bool, np.bool_)):
            raise TypeError(f"`from_logits` is {from_logits!r}, expected True or False")
        if not (lens is None or isinstance(lens, Lens)):
            raise TypeError(f"`lens` is {lens!r}, expected a lens such as kcalib.lenses.TopLabel()")
        if check_clusters(clusters) and n_resamples is not None and _resamples("n_resamples", n_resamples) == 0:
            raise ValueError("`n_resamples` is 0, expected at least 1 for clusters (sign flips)")
        n_columns = check_columns(n_columns)
        if n_columns is None:
            raise TypeError("`n_columns` is None, expected an integer, because the number of samples is unknown")
        lens = Canonical() if lens is None else lens
        m = induced_row(n_classes, lens).m
        if n_resamples is None:
            of_cells = 8 * LabelCells.for_classes(m).size * N_RESAMPLES
            n_resamples = N_RESAMPLES if of_cells <= DRAWN_BYTES else 0
            if n_kernel_resamples is None and 16 * n_columns * m * N_RESAMPLES > DRAWN_BYTES:
                n_kernel_resamples = 0
        if n_kernel_resamples is None:
            n_kernel_resamples = n_resamples
        if clusters:
            n_resamples = n_kernel_resamples = n_resamples or N_RESAMPLES
        options = cls(
            n_classes=n_classes,
            classes=None if classes is None else _class_names(classes, n_classes),
            from_logits=bool(from_logits),
            lens=lens,
            kernel=check_kernel(kernel, m),
            target_kernel=_stored(target_kernel),
            n_columns=n_columns,
            n_bins=check_integer("n_bins", n_bins, 1, MAX_BINS),
            n_resamples=_resamples("n_resamples", n_resamples),
            seed=check_integer("seed", seed, 0, LARGEST_SEED),
            part=check_integer("part", part, 0, PARTS - 1),
            n_kernel_resamples=_resamples("n_kernel_resamples", n_kernel_resamples),
            clusters=bool(clusters),
        )
        if options.n_kernel_resamples not in (0, options.n_resamples):
            raise ValueError(
                f"`n_kernel_resamples` is {n_kernel_resamples}, expected 0 or `n_resamples`, {options.n_resamples}"
            )
        options.root()
        # Refuse a kernel without features now, not when its bandwidth is known.
        closed = options.kernel.resolve(dict.fromkeys(options.kernel.open_metrics(), 1.0))
        class_map(closed.terms(), m, n_columns, options.seed)
        return options

    def with_classes_of(self, other: SharedOptions) -> StateOptions:
        assert isinstance(other, StateOptions)
        return self if self.classes is not None else replace(self, classes=other.classes)

    def difference(self, other: SharedOptions) -> str | None:
        fault = super().difference(other)
        if fault is not None or not isinstance(other, StateOptions) or self.classes == other.classes:
            return fault
        if self.classes is None or other.classes is None:
            return (
                f"`classes` is {Classes(self.classes or other.classes or ())} in one state and not known in the other, "
                "whose file an earlier version wrote; make that state again"
            )
        mine, theirs = Classes(self.classes), Classes(other.classes)
        if places_of(self.classes, other.classes) == tuple(range(self.n_classes)):
            return None
        return (
            f"`classes` is {mine} in one state and {theirs} in the other, and sums cannot be reordered; make both with "
            f"the same, such as classes={mine}"
        )

    @classmethod
    def from_file(cls, **values: Any) -> StateOptions:
        return cls.checked(**values)

    def seen_row(self) -> Classification:
        """Return a row of the problem that the lens induces, for its size and classes."""
        return replace_classes(induced_row(self.n_classes, self.lens), self.classes, self.lens)

    def root(self) -> np.ndarray | None:
        """Return R of the matrix R R^T of the target kernel, shape (m, r); None for the Kronecker delta."""
        target: TargetKernel = self.target_kernel
        return target_root(np.array(target) if isinstance(target, tuple) else target, self.seen_row())

    def map(self, m: int) -> FeatureMap:
        """Return the feature map of the kernel, with known bandwidths, for probabilities of m classes."""
        return class_map(self.kernel.terms(), m, self.n_columns, self.seed)

    def _remedy(self, name: str) -> str:
        if name == "kernel":
            return (
                "make one state, and the others with kernel=first.kernel once that is known (--bandwidth-of of "
                "the command), or all of them with that of a kcalib.streaming.PredictionSample"
            )
        return super()._remedy(name)


def replace_classes(data: Classification, classes: tuple[Any, ...] | None, lens: Lens) -> Classification:
    """Return data with the classes of the columns, if the lens keeps them."""
    return replace(data, classes=Classes(classes)) if classes is not None and isinstance(lens, Canonical) else data


def check_clusters(clusters: Any) -> bool:
    if not isinstance(clusters, (bool, np.bool_)):
        raise TypeError(f"`clusters` is {clusters!r}, expected True or False; pass the clusters themselves to update()")
    return bool(clusters)


def in_order(data: Classification, classes: tuple[Any, ...] | None) -> Classification:
    """Return data with columns in the order of the classes, by name; without classes in ascending order."""
    if classes is None:
        numbers = tuple(range(data.m))
        is_numbered = data.class_names == numbers or places_of(data.class_names, numbers) is not None
        classes = numbers if is_numbered else data.class_names
    return data.in_order(Classes(classes, "columns"))


def check_columns_of(n_classes: Any) -> int:
    return check_integer("n_classes", n_classes, SMALLEST_CLASSES, LARGEST_CLASSES)


def induced_row(n_classes: int, lens: Lens) -> Classification:
    """Return a row of predictions with the lens applied."""
    row = np.full((1, n_classes), 1.0 / n_classes)
    return lens.induced(Classification(np.zeros(1, np.int64), row, None, None, 2.0**-52))


def _class_names(classes: Any, n_classes: int) -> tuple[Any, ...]:
    called = arrays.to_host(arrays.as_array(classes, "classes"))
    if called.shape != (n_classes,):
        raise ValueError(f"`classes` has shape {called.shape}, expected ({n_classes},): the label of each column")
    if len(np.unique(called)) != n_classes:
        raise ValueError(f"`classes` is {called.tolist()}, expected distinct labels")
    return tuple(called.tolist())


def _stored(target_kernel: TargetKernel) -> Any:
    """Return a matrix as plain numbers; other target kernels unchanged, except names of the Kronecker delta."""
    if target_kernel is None or (isinstance(target_kernel, str) and target_kernel == "delta"):
        return None
    if isinstance(target_kernel, Kernel) or not hasattr(target_kernel, "__len__") or isinstance(target_kernel, str):
        return target_kernel
    return tuple(map(tuple, arrays.to_host(arrays.as_array(target_kernel, "target_kernel")).tolist()))


def _resamples(name: str, value: Any) -> int:
    return check_integer(name, value, 0, 2**20)


def _may_be_same(first: Any, second: Any) -> bool:
    """Return whether kernels are equal, except for bandwidths that one of them does not know yet."""
    if not (isinstance(first, Kernel) and isinstance(second, Kernel)):
        return False
    if _without_bandwidths(first) != _without_bandwidths(second):
        return False
    pairs = zip(first.factors(), second.factors(), strict=True)
    return all(a.bandwidth is None or b.bandwidth is None or a == b for a, b in pairs)


def _without_bandwidths(kernel: Kernel) -> Kernel:
    def opened(factor: RadialKernel) -> RadialKernel:
        return replace(factor, bandwidth=None)

    return kernel.mapped(opened)


def _format_option(value: Any) -> str:
    if isinstance(value, tuple):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return str(value)
