"""Backends: sweeps of the matrix H, which is never stored; one file for each way to visit its blocks.

Each sweeps a `PairProblem` for reductions (`base.Backend`, `kcalib._pairs.reductions`). Backends see neither kernel
objects nor user options. `kcalib._pairs.dispatch` chooses.
"""
