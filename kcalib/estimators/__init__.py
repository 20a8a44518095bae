"""Estimators, one file for each family.

    skce     squared kernel calibration error of classifiers
    ece      top-label expected calibration error, and the bins of a reliability diagram
    scores   proper scores: Brier score, log loss

Each public function checks its input once (`kcalib._inputs.prepare`) and calls functions of
checked data, which `kcalib.evaluation` calls too.
"""
