"""Random features: estimate and test, and what rests on them for many samples.

The bandwidth is given, but for `evaluate` and `compare` with all defaults.
"""

from .common import BANDWIDTH, SEED, THREADS, cached_predictions, require

N, CLASSES, COLUMNS, DRAWS = 100_000, 10, 256, 199


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
            self.y,
            self.p,
            kernel=self.kernel,
            estimator=self.kcalib.methods.FeatureEstimator(n_columns=COLUMNS, seed=SEED),
            threads=threads,
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
