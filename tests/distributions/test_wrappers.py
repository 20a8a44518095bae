"""Censored, truncated and zero-inflated laws: by hand, by scipy.stats and by sums and integrals of their definition."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from problems import binomial_bounds
from scipy import stats

import kcalib
from kcalib._packing.characteristic import centred
from kcalib.distributions import (
    Beta,
    Censored,
    Distribution,
    Gamma,
    Laplace,
    LogNormal,
    Mixture,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    Truncated,
    ZeroInflated,
)
from kcalib.kernels import Exponential, Gaussian
from kcalib.streaming import ForecastState, load

N = 4
MEAN, STD = np.array([-1.5, 0.0, 0.4, 3.0]), np.array([1.0, 0.5, 2.0, 1.5])
NORMAL, RATE = Normal(MEAN, STD), np.array([0.2, 1.0, 3.0, 12.0])
STEP = 1e-4
Z = np.arange(-8, 8, STEP)
DENSITY = np.exp(-Z * Z / 2) / (2 * np.pi) ** 0.5
KERNEL = Exponential(bandwidth=1.0, metric="wasserstein")
LEVELS = np.array([1e-6, 0.05, 0.3, 0.5, 0.9, 1 - 1e-6])


@dataclasses.dataclass(frozen=True, eq=False)
class Logistic(Distribution):
    """A family of a user's own, with functions of one number for each sample."""

    loc: np.ndarray

    event_shape = ()

    @property
    def n(self):
        return len(self.loc)

    def take(self, rows):
        return Logistic(self.loc[rows])

    def sample(self, size, *, seed=0):
        return self.loc[:, None] + np.random.default_rng(seed).logistic(size=(self.n, size))

    def expected_value(self):
        return self.loc[:, None]

    def standard_deviation(self):
        return np.full((self.n, 1), math.pi / math.sqrt(3))

    def cdf(self, y):
        return stats.logistic.cdf(y, self.loc)

    def quantile(self, levels):
        return stats.logistic.ppf(levels, self.loc[:, None])

    def log_density(self, y):
        return stats.logistic.logpdf(y, self.loc)


LAWS = {
    "censored": Censored(NORMAL, 0.0),
    "censored on both sides": Censored(NORMAL, -0.5, [0.5, 1.0, 1.0, 4.0]),
    "censored from above": Censored(Mixture([0.5, 0.5], [NORMAL, Normal(MEAN + 1, 1.0)]), upper=1.0),
    "censored counts": Censored(Poisson(RATE), upper=5.0),
    "own, censored": Censored(Logistic(MEAN), 0.0),
    "truncated": Truncated(NORMAL, 0.0, 5.0),
    "truncated counts": Truncated(Poisson(RATE), 1.0, 20.0),
    "own, truncated": Truncated(Logistic(MEAN), upper=1.0),
    "inflated": ZeroInflated(Laplace(MEAN, STD), 0.1),
    "inflated counts": ZeroInflated(Poisson(RATE), [0.0, 0.3, 0.5, 1.0]),
    "hurdle": ZeroInflated(Truncated(Poisson(RATE), 1.0), 0.6),
    "inflated and censored": ZeroInflated(Censored(NORMAL, 0.0), 0.2),
    "of scipy.stats, inflated": ZeroInflated(stats.weibull_min([1.0, 1.0, 2.0, 3.0], scale=STD), 0.3),
    "own, inflated": ZeroInflated(Logistic(MEAN), 0.3),
}
every = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


@every
def test_quantiles_are_the_smallest_numbers_with_the_probability(law):
    """F(q-) <= p <= F(q), for each row by itself, and for rows in another order; mixtures bisect to 1e-12."""
    q = law.quantile(LEVELS)
    assert np.all(law.cdf(q) >= LEVELS - 1e-11) and np.all(law.cdf_left(q) <= LEVELS + 1e-11)
    np.testing.assert_allclose(law.take([2, 0]).quantile(LEVELS), q[[2, 0]], rtol=1e-11, atol=1e-11)
    assert law.quasi_sample(4, seed=1).shape == (N, 4) and np.all(np.diff(q, axis=1) >= 0)


@every
def test_moments_and_scores_are_those_of_the_distribution_function(law):
    """E Z = int 1{x >= 0} - F, and so on: sums over counts, else integrals between numbers where F may have jumps."""
    y = law.sample(1, seed=3)
    if law.support == "count":
        x = np.broadcast_to(np.arange(150.0), (N, 150))
        probability = law.cdf(x) - law.cdf_left(x)
        mean, square = np.sum(probability * x, axis=1), np.sum(probability * x**2, axis=1)
        crps = np.sum((np.cumsum(probability, axis=1) - (x >= y)) ** 2, axis=1)
    else:
        powers = 2.0 ** np.arange(-1, 7)
        ends = np.unique(np.concatenate([-powers, [0.0], powers, [5.0], MEAN, MEAN + 1, y[:, 0]]))
        nodes, weights = np.polynomial.legendre.leggauss(20)
        x = (ends[:-1, None] + np.diff(ends)[:, None] * (nodes + 1) / 2).reshape(1, -1) + np.zeros((N, 1))
        dx = (np.diff(ends)[:, None] * weights / 2).reshape(-1)
        lower = law.cdf(x)
        mean, square = ((x >= 0) - lower) @ dx, (2 * x * ((x >= 0) - lower)) @ dx
        crps = (lower - (x >= y)) ** 2 @ dx
    np.testing.assert_allclose(law.expected_value()[:, 0], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(law.standard_deviation()[:, 0] ** 2, square - mean**2, rtol=1e-5, atol=1e-6)
    scores = [kcalib.crps(y[i], law.take([i])) for i in range(N)]
    np.testing.assert_allclose(scores, crps, rtol=1e-7, atol=1e-9)


def test_truncated_normal_laws_are_those_of_scipy():
    oracle = stats.truncnorm((0 - MEAN) / STD, (5 - MEAN) / STD, MEAN, STD)
    law, y = LAWS["truncated"], np.array([0.1, 1.0, 2.0, 4.9])
    np.testing.assert_allclose(law.cdf(y), oracle.cdf(y), rtol=1e-12)
    np.testing.assert_allclose(law.log_density(y), oracle.logpdf(y), rtol=1e-12)
    np.testing.assert_allclose(law.expected_value()[:, 0], oracle.mean(), rtol=1e-7)
    assert law.log_density([-0.1, 5.1, 0.0, 5.0])[:2].tolist() == [-np.inf, -np.inf]


def test_log_densities_by_hand():
    """At atoms the logarithm of the probability, of all that is beyond a bound; elsewhere of the density."""
    phi, y = stats.norm(MEAN, STD), np.array([-0.5, 0.25, 1.0, 7.0])
    law = LAWS["censored on both sides"]
    expected = [phi.logcdf(-0.5)[0], phi.logpdf(0.25)[1], phi.logsf(1.0)[2], -np.inf]
    np.testing.assert_allclose(law.log_density(y), expected, rtol=1e-12)
    zero = np.exp(-RATE)
    counts = LAWS["inflated counts"].log_density(np.zeros(N))
    np.testing.assert_allclose(counts, np.log([zero[0], 0.3 + 0.7 * zero[1], 0.5 + 0.5 * zero[2], 1]), atol=1e-15)
    assert LAWS["inflated counts"].log_density(np.ones(N))[3] == -np.inf
    assert LAWS["hurdle"].log_density(np.zeros(N)) == pytest.approx(np.full(N, math.log(0.6)))
    expected = [math.log(0.1), *stats.laplace.logpdf(1.0, MEAN, STD)[1:] + math.log(0.9)]
    np.testing.assert_allclose(LAWS["inflated"].log_density([0.0, 1.0, 1.0, 1.0]), expected, rtol=1e-12)
    assert kcalib.log_score([0.0], Censored(Logistic(np.zeros(1)), 0.0)) == pytest.approx(math.log(2))
    # Bounds of counts belong to both laws: P(X >= 5) at the upper one, and 1 to 20 of a truncated law. The
    # least P is 2e-6, as a difference from 1 known to 1e-16.
    law = stats.poisson(RATE)
    np.testing.assert_allclose(LAWS["censored counts"].log_density(np.full(N, 5.0)), law.logsf(4), atol=1e-9)
    expected = law.logpmf(1) - np.log(law.cdf(20) - law.cdf(0))
    np.testing.assert_allclose(LAWS["truncated counts"].log_density(np.ones(N)), expected, rtol=1e-12)
    without = type("WithoutDensity", (Logistic,), {"log_density": property()})  # raises AttributeError
    with pytest.raises(ValueError, match="has no density"):
        kcalib.log_score([0.0], Censored(without(np.zeros(1)), 0.0))


def test_crps_by_hand():
    # Of N(0, 1) at the bound 0: int_0^oo (1 - F)^2 = f(0) - 1 / (2 sqrt(pi)), by the antiderivative of F^2.
    expected = (math.sqrt(2) - 1) / (2 * math.sqrt(math.pi))
    assert kcalib.crps([0.0], Censored(Normal([0.0], [1.0]), 0.0)) == pytest.approx(expected, rel=1e-13)
    assert kcalib.crps([-2.0], Censored(Normal([0.0], [1.0]), 0.0)) == pytest.approx(2 + expected, rel=1e-13)
    # 0 or 4 with 1/2 each, nearly: E|y - Z| is 2 at each number between, less E|Z - Z'| / 2 = 1.
    assert kcalib.crps([3.0], ZeroInflated(Normal([4.0], [1e-9]), 0.5)) == pytest.approx(1.0)


@every
def test_pit_values_of_drawn_targets_are_uniform(law):
    law = law.take(np.repeat(np.arange(N), 100))
    y = law.sample(1, seed=5)[:, 0]
    assert stats.kstest(kcalib.pit_values(y, law, seed=2), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Censored(NORMAL), ValueError, r"^`lower` and `upper` are None, .* pass lower=0.0"),
        (lambda: Censored(NORMAL, [0.0, 1.0]), ValueError, r"^`lower` has shape \(2,\), expected a number or \(4,\)"),
        (lambda: Truncated(NORMAL, 1.0, 1.0), ValueError, r"^`lower\[0\]` is 1, expected less than `upper\[0\]`"),
        (lambda: Truncated(NORMAL, 10.0), ValueError, r"^`distribution\[0\]` has the probability 0 .* by Censored"),
        (lambda: ZeroInflated(NORMAL, [0, 1, 1.2, 0]), ValueError, r"^`probability\[2\]` is 1.2, expected .* 0 to 1"),
        (lambda: Censored(Samples([[0.0, 1.0]]), 0.0), TypeError, "^`distribution` is Samples, .* change the numbers"),
        (lambda: Censored(Quantiles([0.5], [[1.0]]), 0.0), TypeError, "^`distribution` is Quantiles"),
        (lambda: Censored(Normal([[0.0, 1.0]], 1.0), 0.0), TypeError, "^`distribution` is Normal, expected .* numbers"),
    ],
)
def test_what_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_laws_of_other_libraries_are_wrapped():
    law = Censored(stats.norm(MEAN, STD), lower=0.0)
    np.testing.assert_array_equal(law.quantile(LEVELS), LAWS["censored"].quantile(LEVELS))
    assert kcalib.pit_values([0.5], Censored(Beta([1.0], [1.0]), -1.0, 2.0)) == 0.5


def calibrated_share(build, count: int, n: int = 40) -> float:
    """Return how often the test rejects calibrated sets at the level 0.05."""
    rejected = 0
    for i in range(count):
        rng = np.random.default_rng([31, i])
        law = build(rng.normal(size=n))
        rejected += kcalib.calibration_test(law.sample(1, seed=i)[:, 0], law, seed=i).pvalue <= 0.05
    return rejected / count


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda x: Censored(Normal(x, 1.0), 0.0),
        lambda x: ZeroInflated(Poisson(np.exp(x)), 0.3),
        lambda x: Truncated(Normal(x, 1.0), 0.0),
        lambda x: Censored(StudentT(2.0, x, 1.0), 0.0),
    ],
    ids=["censored", "zero-inflated", "truncated", "heavy-tailed"],
)
def test_calibrated_models_are_rejected_as_often_as_the_level_says(build):
    low, high = binomial_bounds(400, 0.05, 1e-4)
    assert low <= calibrated_share(build, 400) <= high


@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")  # of few samples
@pytest.mark.parametrize("name", ["censored", "truncated counts", "inflated counts"])
def test_states_add_up_wrapped_laws(name, tmp_path):
    """In any order, and from a file: scores of the samples in memory."""
    law = LAWS[name].take(np.tile(np.arange(N), 10))
    y = law.sample(1, seed=8)[:, 0]

    def summed(rows, part):
        return ForecastState(kernel=KERNEL, target_kernel=Gaussian(bandwidth=1.0), seed=3, part=part).update(
            y[rows], law.take(rows)
        )

    parts = [summed(slice(0, 24), 0), summed(slice(24, 40), 1)]
    (parts[1] + parts[0]).save(tmp_path / "sums.kcalib")
    result = load(tmp_path / "sums.kcalib").result()
    assert result == (parts[0] + parts[1]).result()
    assert result.crps == pytest.approx(kcalib.crps(y, law), rel=1e-12)
    assert result.log_score == pytest.approx(kcalib.log_score(y, law), rel=1e-12)
    assert result.pit_seed == 3
    with pytest.raises(ValueError, match=f"but the state is of {type(law).__name__} of "):
        parts[0].update([1.0], Normal([0.0], [1.0]))
    with pytest.raises(ValueError, match="`y_pred` is ZeroInflated, .* a ForecastState takes .* Censored, Truncated"):
        ForecastState().update([0.0], ZeroInflated(Censored(Normal([0.0], [1.0]), 0.0), 0.1))


def test_characteristic_functions_are_sums_over_nodes():
    """Of 0 with probability p and N(m, s^2) otherwise: p + (1 - p) exp(i v m - s^2 v^2 / 2)."""
    law, v = ZeroInflated(NORMAL, 0.3), np.array([0.1, 1.0, 3.0])
    mean = law.expected_value()
    real, imaginary = centred(law, mean, v[:, None])
    expected = 0.3 + 0.7 * np.exp(1j * MEAN[:, None] * v - 0.5 * (STD[:, None] * v) ** 2)
    np.testing.assert_allclose((1 + real + 1j * imaginary) * np.exp(1j * mean * v), expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")  # of few samples
@pytest.mark.parametrize(
    ("law", "function"),
    [
        (Gamma([0.5], [2.0]), lambda v: (1 - 2j * v) ** -0.5),
        # Of 3 degrees of freedom: (1 + root(3) |v|) exp(-root(3) |v|).
        (StudentT([3.0], [0.0], [1.0]), lambda v: (1 + 3**0.5 * abs(v)) * np.exp(-(3**0.5) * abs(v))),
        # An integral over the logarithm by small steps.
        (LogNormal([0.0], [1.5]), lambda v: np.exp(1j * v[:, None] * np.exp(1.5 * Z)) @ DENSITY * STEP),
    ],
    ids=["gamma", "student", "log-normal"],
)
def test_states_add_up_laws_with_characteristic_functions(law, function, tmp_path):
    v = np.array([-2.0, -0.5, 0.1, 1.0, 3.0])
    mean = law.expected_value()
    real, imaginary = centred(law, mean, v[:, None])
    expected = function(v) * np.exp(-1j * v * mean[0]) - 1
    np.testing.assert_allclose(real[0] + 1j * imaginary[0], expected, rtol=0, atol=1e-8)

    law = law.take(np.zeros(40, dtype=int))
    y, kernels = law.sample(1, seed=8)[:, 0], {"kernel": KERNEL, "target_kernel": Gaussian(bandwidth=1.0)}

    def summed(rows, part):
        return ForecastState(n_columns=16, part=part, **kernels).update(y[rows], law.take(rows))

    parts = [summed(slice(0, 24), 0), summed(slice(24, 40), 1)]
    (parts[1] + parts[0]).save(tmp_path / "sums.kcalib")
    result = load(tmp_path / "sums.kcalib").result()
    assert result == (parts[0] + parts[1]).result()
    assert result.crps == pytest.approx(kcalib.crps(y, law), rel=1e-12)
    assert result.log_score == pytest.approx(kcalib.log_score(y, law), rel=1e-12)
