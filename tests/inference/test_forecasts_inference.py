"""Tests, comparisons and conditional errors of predicted distributions: levels, power, loops and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from few_events import FEW_EVENTS
from forecast_problems import FAMILIES, MEAN, STD, N, gaussian, residual_products, targets
from problems import binomial_bounds, named_method

import kcalib
from kcalib.distributions import Laplace, Normal, Poisson, Samples
from kcalib.kernels import MMD, Cosine, Exponential, Gaussian, Linear
from kcalib.target_kernels import Draws


def w21(n: int, d: int, seed: int, first: float | None = None):
    """Widmann et al. 2021, appendix A.2: N(c 1, 0.1^2 I), c uniform; targets from it, or with another first mean."""
    rng = np.random.default_rng(seed)
    mean = np.repeat(rng.uniform(size=(n, 1)), d, axis=1)
    truth = mean.copy()
    if first is not None:
        truth[:, 0] = first
    return rng.normal(truth, 0.1), Normal(mean, np.full((n, d), 0.1))


def pvalues(method: str, n: int, repetitions: int, d: int = 1, kernel=None, **options):
    found = []
    for seed in range(repetitions):
        y, prediction = w21(n, d, seed)
        test = kcalib.calibration_test(y, prediction, method=named_method(method, **options), seed=seed, kernel=kernel)
        found.append(test.pvalue)
    return np.array(found)


class TestLevels:
    """Shares of rejected calibrated models, at the level 0.1."""

    @pytest.mark.grid
    def test_exact(self):
        low, high = binomial_bounds(60, 0.1)
        assert low <= np.mean(pvalues("exact", 12, 60, n_resamples=19) <= 0.1) <= high

    @pytest.mark.grid
    def test_spectrum(self):
        # Asymptotic: at n = 60 the level may be a few percent off.
        low, high = binomial_bounds(120, 0.1)
        assert low - 0.03 <= np.mean(pvalues("spectrum", 60, 120) <= 0.1) <= high + 0.03

    @pytest.mark.grid
    def test_block(self):
        low, high = binomial_bounds(120, 0.1)
        assert low - 0.03 <= np.mean(pvalues("block", 200, 120, block_size=4) <= 0.1) <= high + 0.03

    @pytest.mark.grid
    def test_cme(self):
        low, high = binomial_bounds(100, 0.1)
        assert low - 0.03 <= np.mean(pvalues("cme", 60, 100, locations=3) <= 0.1) <= high + 0.05

    def test_distribution_free(self):
        assert np.all(pvalues("distribution_free", 60, 50) > 0.1)

    def test_consistency(self):
        found = pvalues("consistency", 12, 100, n_resamples=9, resample_predictions=False)
        low, high = binomial_bounds(100, 0.1)
        assert low <= np.mean(found <= 0.1) <= high


@pytest.mark.parametrize("d", [1, 10])
@pytest.mark.parametrize(
    "method", ["exact", "bootstrap", "multiplier", "spectrum", "pearson", "gamma", "block", "linear", "cme"]
)
def test_power(method, d):
    y, prediction = w21(256, d, 0, first=0.1)
    options = {"n_resamples": 49} if method in ("exact", "bootstrap", "multiplier") else {}
    result = kcalib.calibration_test(y, prediction, method=named_method(method, **options), seed=1)
    assert result.pvalue <= 0.02
    assert (result.prediction, result.n_classes) == ("Normal", None)
    assert result.target_factor == "closed form (normal)"


class TestExact:
    def test_features_and_atoms_draw_alike(self):
        """The same draws of targets, by quadratic forms of features and by sweeps: the same p-value."""
        rng = np.random.default_rng(0)
        prediction = Samples(rng.normal(size=(30, 3)))  # too few atoms for features
        more = Samples(np.repeat(prediction.samples, 2, axis=1))  # the same distributions
        y = prediction.sample(1, seed=1)[:, 0]
        options = {"kernel": Exponential(bandwidth=1.0, metric="wasserstein"), "target_kernel": Gaussian(bandwidth=1.0)}
        one, other = (
            kcalib.calibration_test(y, p, method=kcalib.methods.Exact(n_resamples=199), seed=3, **options)
            for p in (prediction, more)
        )
        assert one.target_factor == "sums over atoms" and other.target_factor.startswith("features of rank")
        assert one.statistic == pytest.approx(other.statistic, rel=1e-9)
        assert one.pvalue == other.pvalue

    def test_pvalue_by_hand(self):
        """(1 + draws at least as large) / (1 + R), each draw an SKCE of its own."""
        from kcalib._input.forecasts import prepare

        y, prediction = targets("normal"), Normal(MEAN, STD)
        options = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}
        data = prepare(y, prediction)
        values = [kcalib.skce(data.draw(5, r).y[:, 0], prediction, **options) for r in range(19)]
        larger = sum(value >= kcalib.skce(y, prediction, **options) for value in values)
        result = kcalib.calibration_test(y, prediction, method=kcalib.methods.Exact(n_resamples=19), seed=5, **options)
        assert result.pvalue == (1 + larger) / 20


class TestBlocks:
    @FEW_EVENTS
    def test_permuted_by_the_seed(self):
        y, prediction = w21(40, 1, 3)
        order = np.random.default_rng(9).permutation(40)
        options = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=0.1)}
        result = kcalib.calibration_test(y, prediction, seed=9, method=kcalib.methods.Block(block_size=5), **options)
        expected = kcalib.skce(
            y[order], prediction.take(order), estimator=kcalib.methods.BlockEstimator(block_size=5), **options
        )
        assert result.estimate == pytest.approx(expected, rel=1e-12)


class TestDistributionFree:
    def test_bound(self):
        """2 sup k sup l: attained by far targets and predictions without spread."""
        y, prediction = w21(50, 1, 0)
        options = {"target_kernel": 3 * Gaussian(bandwidth=1.0), "kernel": 2 * Exponential(bandwidth=1.0)}
        result = kcalib.calibration_test(y, prediction, method="distribution_free", **options)
        assert result.bound == 2 * 2 * 3
        far = kcalib.skce(
            [1e3, 1e3],
            Normal([0.0, 0.0], [1e-6, 1e-6]),
            kernel=Exponential(bandwidth=1.0),
            target_kernel=Gaussian(bandwidth=1.0),
        )
        assert far == pytest.approx(2.0, rel=1e-9)

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"kernel": Linear()}, "`kernel` has no known bound"),
            ({"target_kernel": Draws()}, "expectations of the target kernel that are exact"),
            ({"method": kcalib.methods.DistributionFree(norms=(1, 2))}, "`norms` is for class labels"),
        ],
    )
    def test_refusals(self, options, message):
        y, prediction = w21(20, 1, 0)
        with pytest.raises(ValueError, match=message):
            kcalib.calibration_test(y, prediction, **{"method": "distribution_free"} | options)

    def test_unbounded_target_kernel(self):
        y, prediction = targets("samples"), FAMILIES["samples"][0]
        with pytest.raises(ValueError, match="is not bounded"):
            kcalib.calibration_test(y, prediction, method="distribution_free", target_kernel=Linear())


class TestCME:
    @FEW_EVENTS
    @pytest.mark.grid
    def test_references(self):
        """From the covariance of the samples: Hotelling's law allows for its error, the asymptotic one does not."""
        low, high = binomial_bounds(100, 0.1)
        hotelling, asymptotic = (pvalues("cme", 200, 100, locations=2, reference=r) for r in ("F", "chi2"))
        assert low - 0.03 <= np.mean(hotelling <= 0.1) <= high + 0.05
        assert np.all(hotelling >= asymptotic)

    def test_covariance_of_the_predictions(self):
        """E z z^T of one location by hand: k^2 Var l(y_T, Z), by quadrature."""
        from scipy import integrate, stats

        y, prediction = np.array([0.3, -0.5, 0.8]), Normal([0.0, 0.5, 1.0], [1.0, 1.5, 0.7])
        where = {"locations": ([0.4], Normal([0.2], [1.0]))}
        options = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}
        result = kcalib.calibration_test(y, prediction, method=kcalib.methods.CME(**where), seed=0, **options)
        values, variances = [], []
        for target, m, s in zip(y, prediction.mean, prediction.std, strict=True):
            k, law = np.exp(-np.hypot(m - 0.2, s - 1.0)), stats.norm(m, s)
            first, second = (
                integrate.quad(lambda z, p=p, law=law: law.pdf(z) * np.exp(-p * (z - 0.4) ** 2 / 2), -20, 20)[0]
                for p in (1, 2)
            )
            values.append(k * (np.exp(-((target - 0.4) ** 2) / 2) - first))
            variances.append(k**2 * (second - first**2))
        # The covariance comes from 20,000 draws: to about sqrt(2 / 20000) = 1 %, times 4.
        assert result.statistic == pytest.approx(3 * np.mean(values) ** 2 / np.mean(variances), rel=0.05)
        assert result.estimate == pytest.approx(np.mean(values) ** 2, rel=1e-9)


class TestConsistency:
    y, prediction = w21(30, 1, 4)

    @pytest.mark.parametrize("estimator", [None, "biased", "block", "linear", "ucme"])
    def test_estimators(self, estimator):
        result = kcalib.calibration_test(
            self.y,
            self.prediction,
            method=kcalib.methods.Consistency(estimator=estimator, n_resamples=19, resample_predictions=False),
            seed=0,
        )
        assert 0.05 <= result.pvalue <= 1
        if estimator is None:
            assert result.estimator == "unbiased SKCE"

    def test_predictions_drawn_again(self):
        """A replicate by hand: rows and targets, with the bandwidths of the data."""
        from kcalib._input.forecasts import prepare

        data = prepare(self.y, self.prediction)
        _, sample = data.redraw(7, 0)
        options = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=0.1)}
        values = []

        def biased(y, prediction):
            values.append(kcalib.skce(y, prediction, estimator="biased", **options))
            return values[-1]

        with pytest.warns(kcalib.AntiConservativeWarning):
            by_function = kcalib.calibration_test(
                self.y, self.prediction, method=kcalib.methods.Consistency(estimator=biased, n_resamples=19), seed=7
            )
        with pytest.warns(kcalib.AntiConservativeWarning):
            by_name = kcalib.calibration_test(
                self.y,
                self.prediction,
                method=kcalib.methods.Consistency(estimator="biased", n_resamples=19),
                seed=7,
                **options,
            )
        assert by_function.pvalue == by_name.pvalue
        expected = kcalib.skce(sample.y, sample.prediction, estimator="biased", **options)
        assert values[1] == pytest.approx(expected, rel=1e-12)

    def test_no_binned_errors(self):
        with pytest.raises(ValueError, match="needs class probabilities"):
            kcalib.calibration_test(self.y, self.prediction, method=kcalib.methods.Consistency(estimator="ece"))


def test_adaptive_is_the_default():
    y, prediction = w21(20, 1, 0)
    default, named = (kcalib.calibration_test(y, prediction, seed=0, **o) for o in ({}, {"method": "adaptive"}))
    assert default.method == "adaptive" and default.pvalue == named.pvalue and default.blocks == named.blocks


class TestCompare:
    def models(self):
        rng = np.random.default_rng(0)
        mean = rng.normal(size=120)
        y = rng.normal(mean, 1.0)
        one = np.ones(120)
        return y, {"right": Normal(mean, one), "sharp": Normal(mean, 0.3 * one), "laplace": Laplace(mean, 0.2 * one)}

    def test_skce(self):
        y, models = self.models()
        result = kcalib.compare(y, models)
        assert result.ranking[0] == "right" and result.difference("right", "sharp").distinguishable
        assert result.prediction == "Normal, Laplace" and result.n_classes is None
        assert "closed form (normal); " in result.target_factor
        assert "120 samples, Normal, Laplace" in str(result)

    def test_the_same_kernels_as_one_model(self):
        y, models = self.models()
        two = kcalib.compare(y, {"a": models["right"], "b": models["right"]})
        one = kcalib.skce.result(y, models["right"])
        assert two.model("a").value == pytest.approx(one.value, rel=1e-12)
        assert (two.kernel, two.target_kernel) == (one.kernel, one.target_kernel)
        assert two.difference("a", "b").pvalue == 1.0

    def test_ckce(self):
        y, models = self.models()
        del models["laplace"]  # which has no closed form with a Gaussian kernel
        result = kcalib.compare(y, models, metric="ckce")
        assert result.ranking == ("right", "sharp")

    @pytest.mark.parametrize("metric", ["crps", "log_score"])
    def test_scores(self, metric):
        y, models = self.models()
        result = kcalib.compare(y, models, metric=metric)
        assert result.ranking[0] == "right"
        score = getattr(kcalib, metric)
        assert result.model("sharp").value == pytest.approx(score(y, models["sharp"]), rel=1e-12)

    def test_refusals(self):
        y, models = self.models()
        with pytest.raises(ValueError, match="metric='ece' is for class probabilities"):
            kcalib.compare(y, models, metric="ece")
        p = {"a": [0.2, 0.7, 0.4, 0.1], "b": [0.1, 0.5, 0.4, 0.2]}
        with pytest.raises(ValueError, match="metric='crps' is for predicted distributions"):
            kcalib.compare([0, 1, 1, 0], p, metric="crps")
        with pytest.raises(ValueError, match="models of one kind"):
            kcalib.compare([0, 1, 1, 0], {"a": p["a"], "b": Poisson([1.0, 1.0, 1.0, 2.0])})


class TestCKCE:
    y, prediction = targets("normal"), Normal(MEAN, STD)

    @pytest.mark.parametrize("method", ["auto", "cholesky", "cg", "pivoted_cholesky", "nystrom"])
    def test_trace_formula(self, method):
        """tr(K (K + s I)^{-2} G), with K and G by loops."""
        points = np.column_stack([MEAN, STD])
        k = np.exp(-np.sum((points[:, None] - points) ** 2, axis=-1) / (2 * 0.9**2))
        g = residual_products(self.y, FAMILIES["normal"][1], gaussian(1.3))
        s = N * 0.2
        inverse = np.linalg.inv(k + s * np.eye(N))
        result = kcalib.ckce.result(
            self.y,
            self.prediction,
            kernel=Gaussian(bandwidth=0.9),
            target_kernel=Gaussian(bandwidth=1.3),
            regularization=0.2,
            method=method,
        )
        value = np.trace(k @ inverse @ inverse @ g)
        assert result.value == pytest.approx(value, rel=1e-8)
        assert abs(result.value - value) <= result.error_bound + 1e-12
        assert (result.prediction, result.target_factor) == ("Normal", "closed form (normal)")

    def test_features(self):
        y, prediction = targets("samples"), FAMILIES["samples"][0]
        atoms = Samples(prediction.samples[:, :3])
        for p in (prediction, atoms):  # features, and sums over atoms
            kernel = Gaussian(bandwidth=1.0, metric="wasserstein")
            value = kcalib.ckce(y, p, kernel=kernel, target_kernel=Gaussian(bandwidth=1.0), regularization=1e3)
            # For a large shift the value is tr(K G) / s^2.
            biased = kcalib.skce(y, p, kernel=kernel, target_kernel=Gaussian(bandwidth=1.0), estimator="biased")
            assert value == pytest.approx(biased / 1e6, rel=1e-2)

    def test_classes(self):
        """Residuals of atoms with the delta kernel are those of classes."""
        rng = np.random.default_rng(0)
        p, labels = rng.dirichlet(np.ones(4), size=20), rng.integers(4, size=20)
        prediction = Samples(np.tile(np.arange(4.0), (20, 1)), p)
        kernel = Gaussian(bandwidth=0.4, metric=MMD(bandwidth=0.02))
        value = kcalib.ckce(labels.astype(float), prediction, kernel=kernel, target_kernel=Gaussian(bandwidth=0.02))
        assert value == pytest.approx(kcalib.ckce(labels, p, kernel=Gaussian(bandwidth=0.4)), rel=1e-7)

    def test_jkce(self):
        kernel = Gaussian(metric="wasserstein")
        assert kcalib.jkce(self.y, self.prediction) == kcalib.skce(self.y, self.prediction, kernel=kernel)

    def test_refusals(self):
        with pytest.raises(ValueError, match="come from draws"):
            kcalib.ckce(self.y, self.prediction, target_kernel=Draws())
        with pytest.raises(ValueError, match="method='fourier' needs points with a Euclidean distance"):
            kcalib.ckce(targets("mixture"), FAMILIES["mixture"][0], method="fourier")


class TestKernels:
    def test_mmd(self):
        """By sums over grids: k = exp(-MMD / 0.7)."""
        from forecast_problems import mmd_distances

        for name in ("normal", "mixture", "samples", "full covariances"):
            prediction, nodes, accuracy = FAMILIES[name]
            d = mmd_distances(nodes, gaussian(0.8))
            k = np.exp(-d / 0.7)
            kernel = Exponential(bandwidth=0.7, metric=MMD(bandwidth=0.8))
            expected = np.linalg.eigvalsh(k)[0]
            # Distances are roots of what the nodes know to their accuracy.
            assert kcalib.smallest_eigenvalue(prediction, kernel) == pytest.approx(expected, abs=30 * accuracy**0.5)

    def test_bures_table(self):
        """Wasserstein distances of full covariances by matrix roots, and the warning that names the reason."""
        import scipy.linalg

        prediction = FAMILIES["full covariances"][0]
        means, covariances = prediction.components().locations[:, 0], prediction.components().scales[:, 0]
        d2 = np.zeros((N, N))
        for i in range(N):
            root = scipy.linalg.sqrtm(covariances[i]).real
            for j in range(N):
                cross = scipy.linalg.sqrtm(root @ covariances[j] @ root).real
                d2[i, j] = np.sum((means[i] - means[j]) ** 2) + np.trace(covariances[i] + covariances[j] - 2 * cross)
        k = np.exp(-d2 / (2 * 1.5**2))
        g = residual_products(targets("full covariances"), FAMILIES["full covariances"][1], gaussian(1.3))
        kernel = Gaussian(bandwidth=1.5, metric="wasserstein")
        with pytest.warns(kcalib.IndefiniteKernelWarning, match="full covariances is not the distance of a Hilbert"):
            value = kcalib.skce(
                targets("full covariances"),
                prediction,
                kernel=kernel,
                target_kernel=Gaussian(bandwidth=1.3),
                estimator="biased",
            )
        assert value == pytest.approx(np.mean(k * g), abs=1e-4)
        assert kcalib.smallest_eigenvalue(prediction, kernel) == pytest.approx(np.linalg.eigvalsh(k)[0], abs=1e-9)

    @pytest.mark.parametrize("method", ["exact", "spectrum", "block", "cme", "consistency"])
    def test_tables_in_tests(self, method):
        prediction = FAMILIES["full covariances"][0].take(np.arange(60) % N)
        y = prediction.sample(1, seed=2)[:, 0]
        options = {"n_resamples": 19} if method in ("exact", "consistency") else {}
        options |= {"resample_predictions": False} if method == "consistency" else {}
        with pytest.warns(kcalib.IndefiniteKernelWarning):
            result = kcalib.calibration_test(
                y, prediction, method=named_method(method, **options), kernel=Exponential(metric="wasserstein"), seed=0
            )
        assert 0 < result.pvalue <= 1

    def test_smallest_eigenvalue(self):
        p = np.array([[0.2, 0.8], [0.5, 0.5]])
        value = kcalib.smallest_eigenvalue(p, Gaussian(bandwidth=1.0))
        assert value == pytest.approx(1 - np.exp(-0.18 / 2), rel=1e-12)
        with pytest.raises(MemoryError):
            kcalib.smallest_eigenvalue(Normal(MEAN, STD), max_memory=10)

    @pytest.mark.parametrize(
        ("metric", "message"),
        [
            ("euclidean", "for 2 parameters Cosine is positive definite on a line only"),
            ("wasserstein", "for 2 coordinates Cosine is positive definite on a line only"),
            ("mmd", "for MMD distances Cosine is positive definite on a line only"),
        ],
    )
    def test_profiles_that_are_positive_definite_on_a_line_only(self, metric, message):
        prediction = Normal([0.0, 1.0, 0.3], [1.0, 2.0, 0.5])
        with pytest.warns(kcalib.IndefiniteKernelWarning, match=message):
            kcalib.skce([0.1, 0.2, 0.3], prediction, kernel=Cosine(bandwidth=1.0, metric=metric))
        numbers = Samples([[0.0], [1.0], [0.5]])  # on a line: no warning
        kcalib.skce([0.1, 0.2, 0.3], numbers, kernel=Cosine(bandwidth=1.0, metric="wasserstein"))
