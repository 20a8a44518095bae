"""Print results of many parallel loops, bit for bit, for one, two and three threads.

`python -P tests/support/thread_results.py`. The first line names what starts threads; the others are the same whatever
it is, and for every number of threads, or this ends with an error.
"""

from __future__ import annotations

import numpy as np

import kcalib
from kcalib import _native
from kcalib.methods import Bootstrap
from kcalib.streaming import CalibrationState


def results(threads: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), size=3000)
    y = (p.cumsum(axis=1) < rng.uniform(size=(3000, 1))).sum(axis=1)
    c = rng.uniform(size=200_000).round(3)
    b = (rng.uniform(size=c.size) < c).astype(int)
    state = CalibrationState(5, n_columns=64, n_resamples=9, kernel=kcalib.kernels.Exponential(bandwidth=0.5), seed=0)
    state.update(y, p)
    return {
        "skce": kcalib.skce(y, p, threads=threads),
        "float32": kcalib.skce(y, p, dtype="float32", threads=threads),
        "blocks": kcalib.skce(y, p, estimator=kcalib.methods.BlockEstimator(block_size=2), threads=threads),
        "features": kcalib.skce(y, p, estimator=kcalib.methods.FeatureEstimator(n_columns=64, seed=0), threads=threads),
        "line": kcalib.skce(b, c, threads=threads),
        "ckce": kcalib.ckce(y[:1000], p[:1000], threads=threads),
        "default test": kcalib.calibration_test(y, p, seed=0, threads=threads).statistic,
        "bootstrap": kcalib.calibration_test(y, p, method=Bootstrap(n_resamples=99), seed=0, threads=threads).pvalue,
        "test by features": kcalib.calibration_test(y, p, method="features", seed=0, threads=threads).statistic,
        "locations": kcalib.ucme(y, p, seed=0, threads=threads),
        "classes": kcalib.class_wise_ece(np.tile(y, 20), np.tile(p, (20, 1)), threads=threads),
        "Dirichlet": kcalib.kde_calibration_error(y, p, bandwidth=0.1, threads=threads),
        "state": state.skce().value,
    }


def main() -> None:
    print(_native.thread_library())
    first = results(1)
    for name, value in first.items():
        print(f"{name}: {float(value).hex()}")
    for threads in (2, 3):
        assert results(threads) == first, f"{threads} threads give other bits"


if __name__ == "__main__":
    main()
