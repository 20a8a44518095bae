"""Random features: their sums beside plain NumPy, estimate and test, and what rests on them for many samples.

The bandwidth is given, but for `evaluate` and `compare` with all defaults. Before anything is timed, the sums are
compared with NumPy's.
"""

import numpy as np

from .common import BANDWIDTH, SEED, THREADS, cached_predictions, limited_blas, ratios, require

N, CLASSES, COLUMNS, DRAWS = 100_000, 10, 256, 199
TILE = 4096


def numpy_sums(frequencies, amplitudes, p, marks):
    """Cosines and sines of phases times marks, a tile of rows at a time."""
    total = np.zeros((2 * len(amplitudes), marks.shape[1]))
    for first in range(0, len(p), TILE):
        phases = p[first : first + TILE] @ frequencies.T
        tile = np.concatenate([amplitudes * np.cos(phases), amplitudes * np.sin(phases)], axis=1)
        total += tile.T @ marks[first : first + TILE]
    return total


def residuals(y, p):
    return np.eye(p.shape[1])[y] - p


class FeatureSums:
    """What the estimate sums, (columns, m); `track_ratio`: NumPy's time over it."""

    params = ((64, COLUMNS), THREADS)
    param_names = ("columns", "threads")
    timeout = 300

    def setup(self, columns, threads):
        kcalib = require("_pairs.feature_sums.mark_sums", "_pairs.features.feature_map", "kernels.Exponential")
        self.y, self.p = cached_predictions(N, CLASSES)
        self.marks = residuals(self.y, self.p)
        terms = kcalib.kernels.Exponential(bandwidth=BANDWIDTH).terms()
        self.map = kcalib._pairs.features.feature_map(terms, self.p, columns, SEED)
        self.sums = kcalib._pairs.feature_sums.mark_sums
        ours, _ = self.sums(self.map, self.p[:1000], self.marks[:1000])
        theirs = numpy_sums(self.map.frequencies, self.map.amplitudes, self.p[:1000], self.marks[:1000])
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)

    def time_sums(self, columns, threads):
        self.sums(self.map, self.p, self.marks, threads=threads)

    def track_ratio(self, columns, threads):
        with limited_blas(threads):
            (ratio,) = ratios(
                [lambda: numpy_sums(self.map.frequencies, self.map.amplitudes, self.p, self.marks)],
                lambda: self.sums(self.map, self.p, self.marks, threads=threads),
                threads,
                rounds=3,
            )
        return ratio

    track_ratio.unit = "time of NumPy / time of kcalib"


class FeatureTests:
    """Estimate, and test with draws of labels, by 256 columns."""

    params = (THREADS,)
    param_names = ("threads",)
    timeout = 600

    def setup(self, threads):
        self.kcalib = require("methods.Features", "kernels.Exponential")
        self.y, self.p = cached_predictions(N, CLASSES)
        self.kernel = self.kcalib.kernels.Exponential(bandwidth=BANDWIDTH)

    def time_estimate(self, threads):
        self.kcalib.skce(
            self.y, self.p, kernel=self.kernel, estimator="features", n_columns=COLUMNS, seed=SEED, threads=threads
        )

    def time_test(self, threads):
        method = self.kcalib.methods.Features(n_columns=COLUMNS, n_resamples=DRAWS)
        self.kcalib.calibration_test(self.y, self.p, kernel=self.kernel, method=method, seed=SEED, threads=threads)


class ManySamples:
    """`kcalib.evaluate` of one model and `kcalib.compare` of three, with all defaults."""

    params = (THREADS,)
    param_names = ("threads",)
    timeout = 900
    rounds, repeat, number, warmup_time = 1, 1, 1, 0

    def setup(self, threads):
        self.kcalib = require("methods.Features", "compare", "evaluate")
        self.y, p = cached_predictions(N, CLASSES)
        self.models = {"as they are": p}
        for name, power in (("sharper", 1.1), ("flatter", 0.9)):
            self.models[name] = p**power / (p**power).sum(axis=1, keepdims=True)

    def time_evaluate(self, threads):
        self.kcalib.evaluate(self.y, self.models["as they are"], seed=SEED, threads=threads)

    def time_compare(self, threads):
        self.kcalib.compare(self.y, self.models, seed=SEED, threads=threads)

    def peakmem_evaluate(self, threads):
        self.time_evaluate(threads)
