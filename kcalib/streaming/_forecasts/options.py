"""Options of a state of predicted distributions, with the family of the first batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kcalib._backend.options import LARGEST_SEED, check_integer
from kcalib._input.forecasts import Forecasts
from kcalib._packing.features import check_columns, drawn_map
from kcalib._packing.forecasts import check_kernels, open_metrics, resolve
from kcalib._packing.packed import Medians
from kcalib._packing.prediction_points import PredictionPoints
from kcalib._packing.target_features import n_columns_beside, spanning, target_map
from kcalib._pairs.features import FeatureMap
from kcalib.distributions import Quantiles
from kcalib.estimators.binning import MAX_BINS
from kcalib.estimators.forecasts.crps import check_fair, has_members
from kcalib.inference.adaptive.blocks import FEW_DRAWS, FINE, fine_map_options
from kcalib.kernels import VECTOR_METRICS, Kernel
from kcalib.streaming._forecasts.families import Family, is_family
from kcalib.streaming._options import SharedOptions, check_clusters
from kcalib.streaming._row_sums.rows import PARTS
from kcalib.target_kernels import Draws, MahalanobisGaussian

MOST_RESAMPLES = 2**20
LARGEST_SIZE = 2**20  # entries of a parameter of one distribution


@dataclass(frozen=True)
class ForecastOptions(SharedOptions):
    """Options of a `ForecastState`; states to be merged have equal ones, except `part`.

    Kernels are as given, or None, until the first batch determines the family, and get their bandwidths later.
    """

    KERNELS: ClassVar[tuple[str, ...]] = ("kernel", "target_kernel")

    prediction: str | None  #: the family of distributions; None before the first batch
    sizes: tuple[tuple[int, ...], ...]  #: of the arrays of its parameters, beyond the first axis
    kernel: Kernel | None
    target_kernel: Kernel | MahalanobisGaussian | str | None
    n_columns: int
    n_bins: int
    n_resamples: int
    seed: int
    part: int
    clusters: bool  #: whether samples come in clusters
    levels: tuple[float, ...] = ()  #: of quantiles
    fair: bool = False  #: whether the CRPS of samples is that of the law that they are draws from

    @classmethod
    def checked(
        cls,
        kernel: Any,
        target_kernel: Any,
        n_columns: Any,
        n_bins: Any,
        n_resamples: Any,
        seed: Any,
        part: Any,
        clusters: Any = False,
        fair: Any = False,
    ) -> ForecastOptions:
        """Return checked options of the constructor of `ForecastState`."""
        if not (kernel is None or isinstance(kernel, Kernel)):
            raise TypeError(
                f"`kernel` is {kernel!r}, expected a kernel such as kcalib.kernels.Exponential(metric='wasserstein')"
            )
        for factor in () if kernel is None else kernel.factors():
            if factor.metric not in (*VECTOR_METRICS, "wasserstein"):
                raise ValueError(
                    f"`kernel` is {kernel}, whose distances need all predictions at once; use metric='wasserstein', a "
                    "kernel on parameters, or kcalib.skce with all samples in memory"
                )
        if isinstance(target_kernel, Draws):
            raise ValueError(
                f"`target_kernel` is {target_kernel}, but a state needs expectations in closed form; pass "
                "the kernel itself, or use kcalib.skce with all samples in memory"
            )
        known = target_kernel is None or isinstance(target_kernel, (Kernel, MahalanobisGaussian))
        if not known and not (isinstance(target_kernel, str) and target_kernel == "delta"):
            raise TypeError(
                f"`target_kernel` is {target_kernel!r}, expected a kernel between targets, such as "
                "kcalib.kernels.Gaussian(), or MahalanobisGaussian of kcalib.target_kernels"
            )
        n_columns = check_columns(n_columns)
        if n_columns is None:
            raise TypeError("`n_columns` is None, expected an integer, because the number of samples is unknown")
        return cls(
            prediction=None,
            sizes=(),
            kernel=kernel,
            target_kernel=target_kernel,
            n_columns=n_columns,
            n_bins=check_integer("n_bins", n_bins, 1, MAX_BINS),
            n_resamples=check_integer("n_resamples", n_resamples, 0, MOST_RESAMPLES),
            seed=check_integer("seed", seed, 0, LARGEST_SEED),
            part=check_integer("part", part, 0, PARTS - 1),
            clusters=check_clusters(clusters),
            fair=check_fair(fair),
        )

    @classmethod
    def from_file(cls, **known: Any) -> ForecastOptions:
        prediction, sizes, levels = known.pop("prediction"), known.pop("sizes"), known.pop("levels", ())
        options = cls.checked(**known)
        if prediction is None:
            return options
        sizes = tuple(tuple(map(int, size)) for size in sizes)
        if not is_family(str(prediction), sizes):
            raise ValueError(f"there is no family of distributions {prediction!r} of {len(sizes)} parameters")
        if any(not 0 < entries <= LARGEST_SIZE for size in sizes for entries in size):
            raise ValueError(f"distributions of {prediction} have no parameters of the shapes {sizes}")
        if prediction == Quantiles.__name__:
            levels = tuple(Quantiles(levels, np.zeros((1, *sizes[0]))).levels.tolist())
        return options.of_family(Family(prediction, sizes, levels))

    def difference(self, other: SharedOptions) -> str | None:
        """Describe the first option that differs; options without a family fit any."""
        assert isinstance(other, ForecastOptions)
        if (self.prediction is None) == (other.prediction is None):
            return super().difference(other)
        if self.prediction is None:
            return self.of_family(other.family).difference(other)
        return super().difference(other.of_family(self.family))

    @property
    def family(self) -> Family:
        """The family; it must be known."""
        assert self.prediction is not None
        return Family(self.prediction, self.sizes, self.levels)

    @property
    def n_pit_draws(self) -> int:
        """Number of draws of targets with PIT values; 0 for vectors and clusters."""
        return 0 if self.clusters or self.family.row.event_shape else self.n_resamples or FEW_DRAWS

    @property
    def n_flips(self) -> int:
        """Number of sign flips of clusters."""
        return self.n_resamples or FEW_DRAWS

    @property
    def has_bandwidths(self) -> bool:
        """Whether the bandwidths of both kernels are known."""
        if self.prediction is None:
            return False
        assert isinstance(self.kernel, Kernel)
        return not (self.kernel.open_metrics() or open_metrics(self.target_kernel))

    def of_family(self, family: Family) -> ForecastOptions:
        """Return the options for this family, with its default kernels."""
        data = Forecasts(np.zeros((1, family.row.n_dims)), family.row, None)
        if self.fair and not has_members(data):
            raise ValueError(f"`fair` is for Samples, but `y_pred` is {family.name}; leave it out")
        has_wasserstein_points = family.row.wasserstein_points() is not None
        needs_wasserstein = self.kernel is None or any(
            factor.metric == "wasserstein" for factor in self.kernel.factors()
        )
        if needs_wasserstein and not has_wasserstein_points:
            given = "not given" if self.kernel is None else str(self.kernel)
            raise ValueError(
                f"`kernel` is {given}, but Wasserstein distances of {family.name} are not those of points; pass "
                "kernel=kcalib.kernels.Exponential(), a kernel on parameters"
            )
        kernel, target = check_kernels([data], self.kernel, self.target_kernel)
        new = replace(
            self, prediction=family.name, sizes=family.sizes, levels=family.levels, kernel=kernel, target_kernel=target
        )
        # Refuse a kernel without features now, not when its bandwidth is known.
        closed = new._closed()
        feature_map = closed.map()
        if len(feature_map.projections):
            raise ValueError(
                f"`kernel` is {kernel}, with an inner product, but a state needs bounded features; use "
                "kcalib.kernels.Exponential(), or kcalib.skce with all samples in memory"
            )
        if not family.levels:
            closed.target_map(feature_map.n_columns)
        return new

    def _closed(self) -> ForecastOptions:
        """Return the options with arbitrary bandwidths."""
        assert isinstance(self.kernel, Kernel)
        kernel: Kernel = self.kernel.resolve(dict.fromkeys(self.kernel.open_metrics(), 1.0))
        target: Any = self.target_kernel
        if open_metrics(target):
            target = target.resolve(dict.fromkeys(open_metrics(target), 1.0))
        return replace(self, kernel=kernel, target_kernel=target)

    def resolved(
        self, predictions: np.ndarray, threads: int | None, elsewhere: bool
    ) -> tuple[ForecastOptions, Medians, Medians]:
        """Return options with median bandwidths, on predictions with these parameters, and the medians of both."""
        prediction = self.family.distribution(predictions)
        data = Forecasts(np.zeros((prediction.n, prediction.n_dims)), prediction, None)
        kernels = resolve([data], self.kernel, self.target_kernel, threads, elsewhere=elsewhere)
        options = replace(self, kernel=kernels.kernel, target_kernel=kernels.target_kernel)
        return options, kernels.medians, kernels.target_medians

    def map(self) -> FeatureMap:
        """Return the feature map of the kernel, whose bandwidths are known."""
        assert self.kernel is not None
        points = PredictionPoints.of_rows(self.family.row, self.kernel)
        return drawn_map(points.terms(self.kernel), spanning(points.values.shape[1]), self.n_columns, self.seed)

    def fine_map(self) -> FeatureMap:
        """Return the feature map of the fine kernel of the adaptive test."""
        assert self.kernel is not None
        points = PredictionPoints.of_rows(self.family.row, self.kernel)
        wide = self.map()
        n_columns, seed = fine_map_options(wide, self.seed)
        fine = drawn_map(points.terms(self.kernel), spanning(points.values.shape[1]), n_columns, seed)
        return replace(fine, frequencies=fine.frequencies * FINE)

    def target_map(self, n_columns: int) -> tuple[FeatureMap, np.ndarray]:
        """Return the feature map of the target kernel next to `n_columns`, and the frequencies of targets."""
        row = self.family.row
        return target_map(row, self.target_kernel, n_columns_beside(n_columns, row.n_dims), self.seed)

    def _remedy(self, name: str) -> str:
        if name in ("prediction", "sizes", "levels"):
            return "a state is of one family of distributions; make a state for each"
        if name in self.KERNELS:
            return (
                "make one state, and the others with kernel=first.kernel, target_kernel=first.target_kernel once these "
                "are known"
            )
        return super()._remedy(name)
