"""Estimators, one file for each family.

    skce     squared kernel calibration error of classifiers
    ece      top-label expected calibration error, and the bins of a reliability diagram
    reliability   reliability diagrams with confidence and consistency bands
    scores   proper scores: Brier score, log loss
    forecast_scores   CRPS, log score, pinball loss, PIT values of predicted distributions
    brier    calibration and sharpness in the Brier score

Each public function checks its input once (`kcalib._input.labels.prepare`) and calls functions of
checked data, which `kcalib.evaluation` calls too.
"""
