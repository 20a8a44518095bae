"""Benchmarks of kcalib, run by asv (see docs/performance.rst).

    common            data, parameter values and clocks of all benchmarks
    bench_skce        the SKCE: time, memory, cost of a call, of the standard error, of the bandwidth
    bench_peers       the same number by NumPy, scikit-learn, PyTorch and KeOps, in the same run
    bench_limits      the machine's own limit, the share of it that the SKCE reaches, speedup by threads
    bench_resampling  quadratic forms beside a matrix product of as many operations
    bench_line        binary problems beside `np.sort` of as many numbers
    bench_median      the exact median of all distances beside a sweep of the SKCE
    bench_tests       tests of calibration: each method, beside plain NumPy, memory; comparison, UCME, laws
    bench_transport   distances between predicted distributions; shortest paths beside linear programmes
    bench_import      `import kcalib` in a fresh interpreter, and the first call after it
    bench_command     `kcalib demo` in a fresh process

`asv_benches/table.py` prints what most of them measure as one table.

Every file imports with any version of kcalib: a benchmark of something that the version
does not have is skipped (asv skips where `setup` raises NotImplementedError).
"""
