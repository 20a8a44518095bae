"""Benchmarks of kcalib, run by asv (see docs/performance.rst).

    common          data and parameter values of all benchmarks
    bench_skce      the SKCE: time, memory, cost of a call, of the standard error, of the bandwidth
    bench_peers     the same number by plain NumPy, in the same run
    bench_limits    the machine's own limit, and the share of it that the SKCE reaches
    bench_line      binary problems against `np.sort` of as many numbers
    bench_import    `import kcalib` in a fresh interpreter
    bench_command   `kcalib demo` in a fresh process

Every file imports with any version of kcalib: a benchmark of something that the version
does not have is skipped (asv skips where `setup` raises NotImplementedError).
"""
