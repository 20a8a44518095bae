"""Binned calibration errors beside one np.sum over the predictions, which reads them once.

np.sum runs on one thread, whatever kcalib has. What has to sort is compared with np.sum and np.sort of as many
doubles, on one thread, too.
"""

import numpy as np

from .common import ROUNDS, SEED, cached_predictions, ratios, require

N, CLASSES = 1_000_000, 100
MMCE_SAMPLES = 10_000_000
# Function, options, and the columns that are to be sorted: none, the confidences, or all.
CASES = {
    "top_label_ece": ("top_label_ece", {}, "none"),
    "top_label_ece, equal mass": ("top_label_ece", {"binning": "equal_mass"}, "confidence"),
    "top_label_ece, median variance": ("top_label_ece", {"binning": "median_variance"}, "confidence"),
    "debiased_ece": ("debiased_ece", {}, "confidence"),
    "class_wise_ece": ("class_wise_ece", {}, "none"),
    "class_wise_ece, equal mass": ("class_wise_ece", {"binning": "equal_mass"}, "all"),
    "class_wise_ece, median variance": ("class_wise_ece", {"binning": "median_variance"}, "all"),
    "canonical_ece": ("canonical_ece", {}, "confidence"),
    "canonical_ece, median variance": ("canonical_ece", {"binning": "median_variance", "n_bins": 16}, "confidence"),
}


def yardstick(p, sorts):
    """np.sum, and np.sort of a column that lies in one piece as often as columns are sorted."""
    column = p.max(axis=1)
    count = {"none": 0, "confidence": 1, "all": p.shape[1]}[sorts]

    def run():
        p.sum()
        for _ in range(count):
            np.sort(column)

    return run


def over_sum(case, n, m, threads, rounds=ROUNDS):
    """Time of the whole public call over that of its yardstick."""
    name, options, sorts = CASES[case]
    function = getattr(require(name), name)
    labels, p = cached_predictions(n, m)
    return ratios([lambda: function(labels, p, threads=threads, **options)], yardstick(p, sorts), threads, rounds)[0]


def smooth_over_relplot(n, threads, rounds=ROUNDS):
    """Time of `kcalib.smooth_ece` of a binary problem over that of the package of its authors; None without it."""
    try:
        import relplot
    except ImportError:
        return None
    kcalib = require("smooth_ece")
    rng = np.random.default_rng([SEED, n])
    p = rng.random(n)
    labels = (rng.random(n) < p**1.3).astype(np.int64)
    lens = kcalib.lenses.Canonical()
    theirs = labels.astype(float)
    return ratios([lambda: kcalib.smooth_ece(labels, p, lens=lens)], lambda: relplot.smECE(p, theirs), threads, rounds)[
        0
    ]


# Functions of a binary problem without an option `threads`: at most so many sorts, with room over what was measured.
ON_A_LINE = {
    "logistic_recalibration": 80,
    "observed_expected_ratio": 15,
    "integrated_calibration_index": 220,
    "spiegelhalter_test": 8,
    "hosmer_lemeshow_test": 20,
    "cumulative_calibration_error": 70,
}


def over_sort(name, n, rounds=ROUNDS, **options):
    """Time of a function of a binary problem over that of one np.sort (one thread) of as many doubles."""
    function = getattr(require(name), name)
    rng = np.random.default_rng([SEED, n])
    p = rng.random(n)
    labels = (rng.random(n) < p).astype(np.int64)
    threads = options.get("threads", 1)
    return ratios([lambda: function(labels, p, **options)], lambda: np.sort(p), threads, rounds)[0]
