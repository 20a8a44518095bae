"""From checked data to a pair problem: points, features, and the kernel's normal form.

Only this package knows both user objects (kernels, target kernels) and `PairProblem`. `packed` is common to all kinds
of data, `labels` and `forecasts` are for one kind each. For predicted distributions `prediction_points` has the points
for the kernel on predictions, `target_factors` the features, `finite_rank` finite features of target kernels.
`features` has random features for kernels of class labels, `forecast_features` those for predicted distributions, with
target features from `target_features` and expectations from `characteristic`. `variance` has the distribution of H
under calibration.
"""

from kcalib._packing.forecast_features import ForecastFeatures
from kcalib._packing.forecasts import prediction_kernel_problem
from kcalib._packing.labels import TargetMatrix, check_kernel, pack_points, points_and_residuals, target_root
from kcalib._packing.packed import Alike, Packed, Target, pack, pack_alike, pack_locations

__all__ = [
    "Alike",
    "ForecastFeatures",
    "Packed",
    "Target",
    "TargetMatrix",
    "check_kernel",
    "pack",
    "pack_alike",
    "pack_locations",
    "pack_points",
    "points_and_residuals",
    "prediction_kernel_problem",
    "target_root",
]
