"""Estimators, one file for each family.

Each public function checks its input once (`kcalib._input.labels.prepare`) and calls functions of checked data, which
`kcalib.evaluation` calls too.
"""
