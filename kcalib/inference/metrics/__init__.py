"""The metrics of `kcalib.compare`: a module for each, listed in `kcalib.inference.compare.METRICS`."""
