"""SKCE and UCME of predicted distributions against sums over grids, loops, and cases worked out by hand."""

from __future__ import annotations

import math
from typing import ClassVar

import array_api_strict
import numpy as np
import pytest
from few_events import FEW_EVENTS
from forecast_problems import (
    FAMILIES,
    MEAN,
    MEANS,
    STD,
    STDS,
    N,
    estimates,
    exponential,
    gaussian,
    residual_products,
    targets,
)
from grid import some
from scipy import integrate, stats

import kcalib
from kcalib.distributions import Categorical, Distribution, Laplace, Normal, Poisson, Samples
from kcalib.kernels import MMD, Exponential, Gaussian
from kcalib.target_kernels import Draws, MahalanobisGaussian

LAPLACE = ("laplace", "ensemble")


def distances(points):
    return np.array([[math.dist(a, b) for b in points] for a in points])


class TestByHand:
    def test_normal(self):
        """l = exp(-(y - y')^2 / 2), P = N(0, 1) twice, y = 0 and 2.

        E l(Z, y) = exp(-y^2 / 4) / sqrt(2), E l(Z, Z') = 1 / sqrt(3), and k = 1 for equal predictions.
        """
        value = kcalib.skce(
            [0.0, 2.0],
            Normal([0.0, 0.0], [1.0, 1.0]),
            kernel=Exponential(bandwidth=1.0),
            target_kernel=Gaussian(bandwidth=1.0),
        )
        expected = math.exp(-2) - (1 + math.exp(-1)) / math.sqrt(2) + 1 / math.sqrt(3)
        assert value == pytest.approx(expected, rel=1e-14)

    def test_normal_by_quadrature(self):
        y, mean, std = [0.3, -1.2], [0.1, 0.5], [0.7, 1.9]

        def density(m, s):  # not scipy.stats's, which takes a tenth of a millisecond
            return lambda z: math.exp(-(((z - m) / s) ** 2) / 2) / (math.sqrt(2 * math.pi) * s)

        first, second = map(density, mean, std)

        def of(f):
            return integrate.quad(f, -15, 15, epsabs=1e-13, epsrel=1e-13, limit=200)[0]

        def ell(a, b):
            return math.exp(-((a - b) ** 2) / (2 * 0.8**2))

        cross = of(lambda z: first(z) * of(lambda w: second(w) * ell(z, w)))
        one = of(lambda z: first(z) * ell(z, y[1]))
        other = of(lambda w: second(w) * ell(y[0], w))
        k = math.exp(-math.hypot(0.4, 1.2) / 1.5)
        options = {"kernel": Exponential(bandwidth=1.5), "target_kernel": Gaussian(bandwidth=0.8)}
        value = kcalib.skce(y, Normal(mean, std), **options)
        assert value == pytest.approx(k * (ell(*y) - one - other + cross), rel=1e-10)

    def test_counts_with_the_kronecker_delta(self):
        """<onehot(0) - p, onehot(1) - p> = -p_0 - p_1 + sum p^2; for the rate 1, sum p^2 = exp(-2) I_0(2)."""
        value = kcalib.skce([0, 1], Poisson([1.0, 1.0]), kernel=Exponential(bandwidth=1.0), target_kernel="delta")
        squares = sum(math.exp(-2) / math.factorial(k) ** 2 for k in range(30))
        assert value == pytest.approx(-2 * math.exp(-1) + squares, rel=1e-12)

    def test_samples(self):
        """P = (delta_0 + delta_2) / 2 twice, y = 0 and 2, l = exp(-|y - y'|): f(P, P) = (1 + c) / 2, c = exp(-2)."""
        predictions = Samples([[0.0, 2.0], [2.0, 0.0]])
        options = {
            "kernel": Exponential(bandwidth=1.0, metric="wasserstein"),
            "target_kernel": Exponential(bandwidth=1.0),
        }
        c = math.exp(-2)
        expected = c - (1 + c) / 2 - (1 + c) / 2 + (1 + c) / 2
        assert kcalib.skce([0.0, 2.0], predictions, **options) == pytest.approx(expected, rel=1e-14)


class TestFamilies:
    @pytest.mark.parametrize("name", some(FAMILIES, "normal", "laplace", "poisson", "samples"))
    def test_all_estimators(self, name):
        """The kernel on predictions is constant to 1e-9, the target factor what the grid says."""
        prediction, nodes, accuracy = FAMILIES[name]
        y = targets(name)
        target, ell = (Exponential, exponential) if name in LAPLACE else (Gaussian, gaussian)
        g = residual_products(y, nodes, ell(1.3))
        kernel = Exponential(bandwidth=1e12, metric=MMD(bandwidth=1.0))
        expected = estimates(g, block_size=3)
        for estimator, value in expected.items():
            found = kcalib.skce(
                y,
                prediction,
                kernel=kernel,
                target_kernel=target(bandwidth=1.3),
                estimator=kcalib.methods.BlockEstimator(block_size=3) if estimator == "block" else estimator,
            )
            assert found == pytest.approx(value, abs=accuracy * np.abs(g).max() + 1e-9)

    @pytest.mark.parametrize("name", FAMILIES)
    def test_the_default(self, name):
        prediction, _, _ = FAMILIES[name]
        result = kcalib.skce.result(targets(name), prediction, estimator="biased")
        assert result.value > 0 and result.prediction == type(prediction).__name__
        assert result.n_classes is None and result.draws_standard_error is None
        assert "on targets: median euclidean distance of one draw" in result.bandwidth_source
        expected = "Exponential" if name in LAPLACE else "Gaussian"
        assert result.target_kernel.startswith(expected)

    @pytest.mark.parametrize("name", FAMILIES)
    def test_ucme(self, name):
        """Locations at given predictions: (1/J) sum_j (1/n sum_i k (l(y_j, y_i) - E l(y_j, Z_i)))^2, k = 1."""
        prediction, nodes, accuracy = FAMILIES[name]
        y = targets(name)
        target, ell = (Exponential, exponential) if name in LAPLACE else (Gaussian, gaussian)
        at = y[[1, 4]].reshape(2, -1)
        differences = []
        for location in at:
            values = []
            for own, (points, weights) in zip(y.reshape(N, -1), nodes, strict=True):
                expected = weights @ ell(1.3)(np.sqrt(np.sum((points - location) ** 2, axis=1)))
                values.append(float(ell(1.3)(np.linalg.norm(own - location))) - expected)
            differences.append(np.mean(values))
        result = kcalib.ucme.result(
            y,
            prediction,
            kernel=Exponential(bandwidth=1e12, metric=MMD(bandwidth=1.0)),
            target_kernel=target(bandwidth=1.3),
            locations=(y[[1, 4]], prediction.take(np.array([1, 4]))),
        )
        np.testing.assert_allclose(result.differences, differences, atol=accuracy + 1e-9)
        assert result.n_locations == 2 and result.seed is None


class TestSpecialCases:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=30)
    labels = rng.integers(4, size=30)

    def test_categorical_is_the_classification_case(self):
        result = kcalib.skce.result(self.labels, Categorical(self.p))
        assert result.value == kcalib.skce(self.labels, self.p)
        assert (result.n_classes, result.prediction) == (4, None)

    def test_classes_as_weighted_atoms(self):
        """Atoms 0..3, the delta kernel, and MMD under it, which is |p - q|: the same number by the general code."""
        atoms = np.tile(np.arange(4.0), (30, 1))
        kernel = Exponential(bandwidth=0.4, metric=MMD(bandwidth=0.02))
        target = Gaussian(bandwidth=0.02)
        for estimator in ("unbiased", "biased", "block"):
            value = kcalib.skce(
                self.labels.astype(float),
                Samples(atoms, self.p),
                kernel=kernel,
                target_kernel=target,
                estimator=estimator,
            )
            expected = kcalib.skce(self.labels, self.p, kernel=Exponential(bandwidth=0.4), estimator=estimator)
            assert value == pytest.approx(
                expected, rel=1e-6, abs=1e-9
            )  # MMD by differences of features: roots of 1e-13

    def test_one_component_mixtures(self):
        mixture = kcalib.distributions.Mixture([1.0], [Normal(MEAN, STD)])
        options = {
            "kernel": Exponential(bandwidth=1.0, metric=MMD(bandwidth=1.0)),
            "target_kernel": Gaussian(bandwidth=1.0),
        }
        y = targets("normal")
        expected = kcalib.skce(y, Normal(MEAN, STD), **options)
        assert kcalib.skce(y, mixture, **options) == pytest.approx(expected, rel=1e-12)

    def test_mahalanobis_is_a_linear_map_of_targets(self):
        """A = L L^T: y L is N(m L, ...) with the Gaussian kernel; here L is diagonal, or a rotation of it."""
        y, options = targets("normal of vectors"), {"kernel": Exponential(bandwidth=1e12)}
        scales = np.array([0.5, 2.0])
        found = kcalib.skce(y, Normal(MEANS, STDS), target_kernel=MahalanobisGaussian(np.diag(scales**2)), **options)
        mapped = Normal(MEANS * scales, STDS * scales)
        expected = kcalib.skce(y * scales, mapped, target_kernel=Gaussian(bandwidth=1.0), **options)
        assert found == pytest.approx(expected, rel=1e-12)
        turn = np.array([[0.6, -0.8], [0.8, 0.6]])
        covariances = turn @ (STDS[:, :, None] ** 2 * turn.T)
        rotated = kcalib.skce(
            y @ turn.T,
            kcalib.distributions.MultivariateNormal(MEANS @ turn.T, covariances),
            target_kernel=MahalanobisGaussian(turn @ np.diag(scales**2) @ turn.T),
            kernel=Exponential(bandwidth=1e12, metric=MMD(bandwidth=1.0)),
        )
        assert rotated == pytest.approx(expected, rel=1e-9)

    def test_sums_of_target_kernels(self):
        y, prediction = targets("normal"), Normal(MEAN, STD)
        one, other = Gaussian(bandwidth=0.5), Gaussian(bandwidth=2.0)
        values = [kcalib.skce(y, prediction, target_kernel=k) for k in (one, other, 2 * one + 0.5 * other)]
        assert values[2] == pytest.approx(2 * values[0] + 0.5 * values[1], rel=1e-12)
        product = Gaussian(bandwidth=(1 / 0.25 + 1 / 4) ** -0.5)
        assert kcalib.skce(y, prediction, target_kernel=one * other) == pytest.approx(
            kcalib.skce(y, prediction, target_kernel=product), rel=1e-12
        )


class TestOptions:
    y, prediction = targets("normal"), Normal(MEAN, STD)
    options: ClassVar = {"kernel": Exponential(bandwidth=1.1), "target_kernel": Gaussian(bandwidth=1.3)}

    def h(self):
        g = residual_products(self.y, FAMILIES["normal"][1], gaussian(1.3))
        return np.exp(-distances(np.column_stack([MEAN, STD])) / 1.1) * g

    @pytest.mark.parametrize("estimator", ["unbiased", "biased"])
    def test_weights(self, estimator):
        weights = np.array([1.0, 0.0, 2.0, 0.5, 1.0, 3.0])
        value = kcalib.skce(self.y, self.prediction, estimator=estimator, sample_weight=weights, **self.options)
        assert value == pytest.approx(estimates(self.h(), weights)[estimator], rel=1e-10)

    def test_order(self):
        order = np.array([3, 1, 5, 0, 2, 4])
        value = kcalib.skce(self.y[order], self.prediction.take(order), **self.options)
        assert value == pytest.approx(kcalib.skce(self.y, self.prediction, **self.options), rel=1e-12)

    def test_single_precision(self):
        result = kcalib.skce.result(self.y, self.prediction, dtype="float32", **self.options)
        assert result.dtype == "float32"
        assert result.value == pytest.approx(kcalib.skce(self.y, self.prediction, **self.options), rel=1e-4)

    def test_threads(self):
        values = {kcalib.skce(self.y, self.prediction, threads=k, **self.options) for k in (1, 2)}
        assert len(values) == 1

    def test_standard_error(self):
        from kcalib._pairs.reductions import MomentSums
        from kcalib._pairs.statistics import standard_error

        h = self.h()
        off = h - np.diag(np.diag(h))
        moments = MomentSums(off.sum(), off.sum(axis=1), None, np.diag(h), float(np.sum(off**2)), float(np.trace(h)))
        result = kcalib.skce.result(self.y, self.prediction, **self.options)
        # No smaller than what the predictions themselves promise.
        squares = result.null_standard_error**2 * len(self.y) ** 2 * (len(self.y) - 1) ** 2 / 2
        assert squares > moments.sum_of_squares
        assert result.standard_error == pytest.approx(standard_error(moments, squares), rel=1e-9)

    @pytest.mark.grid
    @pytest.mark.parametrize("device", ["CPU_DEVICE", "device1"])
    @pytest.mark.parametrize("metric", some(["wasserstein", "mmd"], "mmd"))
    def test_other_array_libraries(self, device, metric):
        xp = array_api_strict
        where = xp.Device(device)
        mean, std, y = (xp.asarray(a, device=where) for a in (MEAN, STD, self.y))
        kernel = Exponential(bandwidth=1.1, metric=metric)
        result = kcalib.skce.result(y, Normal(mean, std), kernel=kernel)
        assert result.value == pytest.approx(kcalib.skce(self.y, self.prediction, kernel=kernel), rel=1e-10)
        assert result.backend == ("cpu" if device == "CPU_DEVICE" else "array-api")

    @pytest.mark.parametrize("name", ["samples", "poisson"])
    def test_features_on_another_device(self, name):
        xp, y = array_api_strict, targets(name)
        prediction = FAMILIES[name][0]
        array = xp.asarray(prediction.samples if name == "samples" else prediction.rate, device=xp.Device("device1"))
        value = kcalib.skce(y, type(prediction)(array))
        assert value == pytest.approx(kcalib.skce(y, prediction), rel=1e-9)

    def test_torch_and_scipy_distributions(self):
        expected = kcalib.skce(self.y, self.prediction)
        assert kcalib.skce(self.y, stats.norm(MEAN, STD)) == expected
        torch = pytest.importorskip("torch")
        law = torch.distributions.Normal(torch.tensor(MEAN), torch.tensor(STD))
        assert kcalib.skce(torch.tensor(self.y), law) == pytest.approx(expected, rel=1e-12)

    def test_shapes_of_targets(self):
        assert kcalib.skce(self.y[:, None], self.prediction) == kcalib.skce(self.y, self.prediction)


class Uniform(Distribution):
    """A user's own has nothing but draws."""

    def __init__(self, low, high):
        self.low, self.high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)

    n = property(lambda self: len(self.low))
    event_shape = ()

    def take(self, rows):
        return Uniform(self.low[rows], self.high[rows])

    def sample(self, size, *, seed=0):
        u = np.random.default_rng(seed).uniform(size=(self.n, size))
        return self.low[:, None] + (self.high - self.low)[:, None] * u


class TestDraws:
    @pytest.mark.grid
    def test_the_error_is_that_of_the_draws(self):
        """Over seeds the estimates spread as the standard error says, around the closed form."""
        y, prediction = targets("normal"), Normal(MEAN, STD)
        exact = kcalib.skce(y, prediction, target_kernel=Gaussian(bandwidth=1.0))
        results = [
            kcalib.skce.result(y, prediction, target_kernel=Draws(Gaussian(bandwidth=1.0), 16, seed))
            for seed in range(20)
        ]
        errors = np.array([r.value - exact for r in results])
        claimed = math.sqrt(np.mean([r.draws_standard_error**2 for r in results]))
        # By quasi Monte Carlo two sets of 8 groups of 2 draws are worse than one of 16: the claim may be too large.
        assert np.std(errors) <= 1.5 * claimed
        assert abs(np.mean(errors)) <= 4 * np.std(errors) / math.sqrt(20) + 1e-6
        assert results[3].target_factor.startswith("16 draws from each prediction, seed 3")

    def test_a_pure_function_of_the_seed(self):
        y, prediction = targets("normal"), Normal(MEAN, STD)
        one, again, other = (kcalib.skce(y, prediction, target_kernel=Draws(seed=s)) for s in (1, 1, 2))
        assert one == again != other

    @pytest.mark.grid
    def test_kernels_without_closed_form(self):
        """Normal predictions and the exponential kernel: draws by themselves, right within their error."""
        y, (prediction, nodes, _) = targets("normal"), FAMILIES["normal"]
        g = residual_products(y, [nodes[i] for i in range(N)], exponential(1.0))
        result = kcalib.skce.result(
            y, prediction, kernel=Exponential(bandwidth=1e12), target_kernel=Exponential(bandwidth=1.0)
        )
        assert result.draws_standard_error > 0
        assert result.value == pytest.approx(estimates(g)["unbiased"], abs=6 * result.draws_standard_error + 1e-3)

    @FEW_EVENTS
    def test_a_distribution_of_ones_own(self):
        prediction = Uniform(MEAN - 1, MEAN + 1)
        y = prediction.sample(1, seed=4)[:, 0]
        result = kcalib.skce.result(y, prediction)
        assert result.prediction == "Uniform" and result.draws_standard_error > 0
        assert kcalib.ucme(y, prediction) >= 0
        for method in ("exact", "spectrum", "cme"):
            assert 0 < kcalib.calibration_test(y, prediction, method=method, seed=0).pvalue <= 1


class TestErrors:
    y, prediction = targets("normal"), Normal(MEAN, STD)

    @pytest.mark.parametrize(
        "kernel, message",
        [
            (Exponential(metric="total_variation"), "metric of class probabilities"),
            (Exponential(metric="wasserstein") + Exponential(metric="mmd"), "use one metric in all of its parts"),
            (Exponential(metric=MMD(1.0)) * Exponential(metric=MMD(2.0)), "use one metric"),
        ],
    )
    def test_metrics(self, kernel, message):
        with pytest.raises(ValueError, match=message):
            kcalib.skce(self.y, self.prediction, kernel=kernel)

    def test_metrics_of_distributions_for_class_probabilities(self):
        for metric in ("wasserstein", "mmd"):
            with pytest.raises(ValueError, match="metric between predicted distributions"):
                kcalib.skce([0, 1, 1], [0.2, 0.6, 0.9], kernel=Exponential(metric=metric))
        with pytest.raises(ValueError, match="metric between predicted distributions"):
            kcalib.skce([0, 1, 1], [0.2, 0.6, 0.9], target_kernel=Gaussian(bandwidth=1.0, metric="mmd"))

    def test_parameters_that_a_family_does_not_have(self):
        with pytest.raises(ValueError, match="Samples has none whose distance makes sense; use metric='wasserstein'"):
            kcalib.skce(targets("samples"), FAMILIES["samples"][0], kernel=Exponential())

    def test_target_kernels(self):
        with pytest.raises(ValueError, match="for classes and counts"):
            kcalib.skce(self.y, self.prediction, target_kernel="delta")
        with pytest.raises(ValueError, match="the targets have dimension 1"):
            kcalib.skce(self.y, self.prediction, target_kernel=MahalanobisGaussian(np.eye(2)))
        with pytest.raises(TypeError, match="expected a kernel between targets"):
            kcalib.skce(self.y, self.prediction, target_kernel=np.eye(2))
        with pytest.raises(ValueError, match="targets are numbers"):
            kcalib.skce(self.y, self.prediction, target_kernel=Gaussian(metric="mmd"))
        with pytest.raises(ValueError, match="is for predicted distributions, not for classes|which is for predicted"):
            kcalib.skce([0, 1, 1], [0.2, 0.6, 0.9], target_kernel=Draws())

    def test_targets(self):
        with pytest.raises(ValueError, match=r"expected \(6,\)"):
            kcalib.skce(self.y[:4], self.prediction)
        with pytest.raises(ValueError, match=r"`y_true\[2, 0\]` is 0.5|`y_true\[2\]` is 0.5"):
            kcalib.skce([1.0, 2.0, 0.5], Poisson([1.0, 1.0, 1.0]))
        with pytest.raises(ValueError, match="`classes` is for class probabilities"):
            kcalib.skce(self.y, self.prediction, classes=[0, 1])

    def test_locations_of_another_family(self):
        with pytest.raises(ValueError, match="expected the same family"):
            kcalib.ucme(self.y, self.prediction, locations=([0.0], Samples([[0.0, 1.0, 2.0]])))
        with pytest.raises(ValueError, match="expected distributions of the same family"):
            kcalib.ucme(self.y, self.prediction, locations=([[0.0, 1.0]], Normal([[0.0, 1.0]], [[1.0, 1.0]])))

    def test_identical_predictions(self):
        same = Normal(np.zeros(N), np.ones(N))
        found = kcalib.skce.result(self.y, same)
        assert found.bandwidth_source.startswith("any: the distances of all predictions are 0")
        for kernel in (Exponential(bandwidth=0.01, metric="wasserstein"), Exponential(metric="mmd")):
            assert kcalib.skce(self.y, same, kernel=kernel) == pytest.approx(found.value, rel=1e-12)
        with pytest.raises(ValueError, match="identical rows only"):  # test locations elsewhere
            kcalib.ucme(self.y, same, locations=([0.0], Normal([1.0], [1.0])))

    def test_matrices(self):
        with pytest.raises(ValueError, match="positive semi-definite"):
            MahalanobisGaussian([[1.0, 2.0], [2.0, 1.0]])
        with pytest.raises(ValueError, match="`n_draws` is 1"):
            Draws(n_draws=1)


def test_laplace_bandwidth_and_samples_of_it_agree():
    """A Laplace prediction against many samples of it."""
    prediction = Laplace(MEAN, STD)
    y, kernel = targets("laplace"), Exponential(bandwidth=1e12, metric=MMD(1.0))
    drawn = Samples(prediction.quasi_sample(512, seed=1))
    options = {"kernel": kernel, "target_kernel": Exponential(bandwidth=1.0)}
    assert kcalib.skce(y, drawn, **options) == pytest.approx(kcalib.skce(y, prediction, **options), abs=2e-3)
