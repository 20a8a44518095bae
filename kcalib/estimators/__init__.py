"""Estimators, one file for each family.

A public function checks its input (`kcalib._input`) and calls a function of checked data, which `kcalib.evaluation`
calls, too.
"""
