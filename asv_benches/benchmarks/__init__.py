"""Benchmarks of kcalib, run by asv (see docs/performance.rst), and the functions that `asv_benches/table.py` measures.

    common               data, parameter values and clocks of all benchmarks
    bench_skce           the SKCE: time, memory, cost of a call, of the standard error, of the bandwidth
    bench_tests          tests of calibration: each method, beside plain NumPy, memory; comparison, UCME, laws
    bench_ckce           the CKCE by its methods
    bench_solvers        kernel ridge systems beside dense algebra; bench_regression: paths of regularizations
    bench_features       random features: estimate, test, `evaluate` and `compare` of many samples
    bench_distributions  predicted distributions beside NumPy; bench_transport: distances between them
    bench_line           binary problems beside `np.sort` of as many numbers
    bench_import         `import kcalib` in a fresh interpreter, and the first call after it
    bench_command        `kcalib demo` in a fresh process
    bench_limits         the machine's own limit, the share of it that the SKCE reaches, speedup, the exact median
    bench_peers          the same number by NumPy, scikit-learn, PyTorch and KeOps, in the same run
    bench_resampling     quadratic forms beside a matrix product of as many operations
    bench_ece, bench_kde binned errors beside `np.sum`, Dirichlet kernels beside NumPy
    bench_gpu            what `asv_benches/gpu.py` measures on an NVIDIA GPU

A time that a commit may change is an asv class; a ratio to the machine's limit or to another library is a row of the
table.

Every file imports with any version of kcalib: a benchmark of something that the version
does not have is skipped (asv skips where `setup` raises NotImplementedError).
"""
