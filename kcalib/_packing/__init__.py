"""From checked data to a pair problem: points, marks, and the kernel's normal form.

The only room that knows both user objects (kernels, target kernels) and `PairProblem`. `labels` has what is called from
outside, `forecasts` what predicted distributions need, `target_features` finite features of target kernels.
"""

from kcalib._packing.labels import (
    Packed,
    check_kernel,
    pack,
    pack_locations,
    pack_points,
    points_and_residuals,
    repack,
    target_root,
)

__all__ = [
    "Packed",
    "check_kernel",
    "pack",
    "pack_locations",
    "pack_points",
    "points_and_residuals",
    "repack",
    "target_root",
]
