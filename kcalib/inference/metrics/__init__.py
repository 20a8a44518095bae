"""What `kcalib.compare` measures: a file for each metric, a row of `kcalib.inference.compare.METRICS` each."""
