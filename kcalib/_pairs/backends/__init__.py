"""Backends: sweeps of the never-stored matrix H, one file for each way to visit its blocks.

Each takes a `PairProblem` and sweeps it for reductions (`base.Backend`, `kcalib._pairs.reductions`). Backends see
neither kernel objects nor user options. `kcalib._pairs.dispatch` chooses.
"""
