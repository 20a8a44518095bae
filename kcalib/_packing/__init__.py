"""From checked data to a pair problem: points, features, and the kernel's normal form.

The only room that knows both user objects (kernels, target kernels) and `PairProblem`. `packed` has what all kinds of
data share, `labels` and `forecasts` each kind's own way; of predicted distributions `prediction_points` has what the
kernel on predictions sees, `target_factors` what the features say, `finite_rank` finite features of target kernels.
`features` has random features of class labels' kernels, `forecast_features` those of predicted distributions, whose
features are in `target_features`, with expectations by `characteristic`. `variance` has the law of H under calibration.
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
