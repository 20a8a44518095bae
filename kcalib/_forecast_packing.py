"""From targets and predicted distributions to a pair problem; `_packing` calls it, as for class labels itself.

Points are what the kernel on predictions has distances of: parameters or Wasserstein points. Marks are the
parameters of the signed measures "observed minus predicted" (`kcalib._mixtures`), where the target kernel has
closed forms for the family.
"""

from __future__ import annotations

from collections.abc import Callable

from kcalib import _arrays, _mixtures
from kcalib._forecasts import Forecasts
from kcalib._problem import Mixtures, PairProblem, Side
from kcalib.bandwidth import MedianDistance, median_of_points
from kcalib.kernels import SMALLEST, Exponential, Gaussian, Kernel

TARGET_SEED = 0  # of the draws from the predictions whose median distance is the default bandwidth on targets


def pack_forecasts(
    data: Forecasts, kernel: Kernel | None, target_kernel: Kernel | str, threads: int | None
) -> tuple[PairProblem, Kernel, Kernel, tuple[MedianDistance, ...]]:
    """The problem, both kernels with bandwidths as numbers, and the medians that those of `kernel` come from."""
    target = _target_kernel(data, target_kernel, threads)
    components = data.prediction.components()
    points = data.prediction.wasserstein_points()
    if not isinstance(target, Gaussian) or components is None or points is None or target.bandwidth is None:
        raise NotImplementedError
    medians: dict[str, MedianDistance] = {}
    resolved = (Exponential() if kernel is None else kernel).resolve(_median(points, medians, threads))
    marks = _mixtures.mark_columns(data.y, components, 1 / (2 * target.bandwidth**2), data.sample_weight)
    xp = data.xp
    dtype = getattr(xp, data.dtype)
    side = Side(xp.astype(points, dtype, copy=False), xp.astype(marks, dtype, copy=False))
    mixtures = Mixtures(components.family, data.n_dims, int(components.weights.shape[1]))
    return PairProblem(side, None, resolved.terms(), mixtures), resolved, target, tuple(medians.values())


def _target_kernel(data: Forecasts, target_kernel: Kernel | str, threads: int | None) -> Kernel:
    """The kernel on targets (default: Gaussian), with its bandwidth.

    The default bandwidth is a function of the predictions alone, so that tests that draw targets from them are exact.
    """
    kernel = Gaussian() if isinstance(target_kernel, str) else target_kernel
    draws = data.prediction.sample(1, seed=TARGET_SEED)
    points = _arrays.namespace(draws).reshape(draws, (data.n, data.n_dims))
    return kernel.resolve(_median(points, {}, threads))


def _median(points: _arrays.Array, found: dict[str, MedianDistance], threads: int | None) -> Callable[[str], float]:
    def bandwidth(metric: str) -> float:
        if metric not in found:
            found[metric] = median_of_points(points, metric, threads=threads)
        return max(found[metric].value, SMALLEST)

    return bandwidth
