"""Estimators, one file for each family.

    skce     squared kernel calibration error of classifiers
    ece      binned errors of the top label and of every class
    canonical_ece   binned errors of the whole prediction
    binning  bins over predicted probabilities, and how many there should be
    reliability   reliability diagrams with confidence and consistency bands
    scores   proper scores: Brier score, log loss
    forecast_scores   CRPS, log score, pinball loss, PIT values of predicted distributions
    brier    calibration and sharpness in the Brier score

Each public function checks its input once (`kcalib._input.labels.prepare`) and calls functions of
checked data, which `kcalib.evaluation` calls too.
"""
