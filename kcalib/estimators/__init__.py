"""Estimators, one file for each family.

    skce     squared kernel calibration error of classifiers
    ece      binned errors of the top label and of every class
    canonical_ece   binned errors of the whole prediction
    debiased_ece   binned errors without the part that noise in labels adds
    binning, bin_risk   bins over predicted probabilities, and how many there should be
    reliability   reliability diagrams with confidence and consistency bands
    event_bins, bands   bins of a diagram, and where their frequencies may lie
    scores   proper scores: Brier score, log loss
    forecasts   scores and quantile calibration of predicted distributions
    brier    calibration and sharpness in the Brier score

Each public function checks its input once (`kcalib._input.labels.prepare`) and calls functions of
checked data, which `kcalib.evaluation` calls too.
"""
