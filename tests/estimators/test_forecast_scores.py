"""Scores of predicted distributions: by hand, against integrals, literal sums, scipy.stats and scikit-learn."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import scipy.special
from forecast_problems import AtLeastZero
from problems import binomial_bounds
from scipy import integrate, stats
from scripts import DOCS, load_script

import kcalib
from kcalib._backend import arrays
from kcalib.distributions import (
    Beta,
    Categorical,
    Censored,
    Dirichlet,
    Distribution,
    Ensemble,
    Gamma,
    Laplace,
    LogNormal,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    PowerExponential,
    Samples,
    StudentT,
    Truncated,
)
from kcalib.estimators.forecasts import crps, quantile_calibration
from kcalib.estimators.forecasts.crps import crps_values
from kcalib.estimators.forecasts.quantities import forecasts_of

Y = np.array([0.3, -4.0, 2.5, 100.0])
MEAN = np.array([0.1, 0.5, 2.5, -3.0])
STD = np.array([0.7, 1.9, 1e-3, 20.0])


@dataclasses.dataclass(frozen=True, eq=False)
class Logistic(Distribution):
    """A family of a user's own with quantiles and distribution function."""

    loc: np.ndarray

    @property
    def n(self):
        return len(self.loc)

    event_shape = ()

    def take(self, rows):
        return Logistic(self.loc[rows])

    def cdf(self, y):
        return scipy.special.expit(y - self.loc)

    def quantile(self, levels):
        return self.loc[:, None] + scipy.special.logit(levels)

    def sample(self, size, *, seed=0):
        return self.loc[:, None] + np.random.default_rng(seed).logistic(size=(self.n, size))


@dataclasses.dataclass(frozen=True, eq=False)
class Wrapped(Distribution):
    """A law of scipy.stats, a list of parameters for each row, as a family of a user's own."""

    law: object
    rows: np.ndarray
    support: str = "real"

    @property
    def n(self):
        return len(self.rows)

    event_shape = ()

    def take(self, rows):
        return Wrapped(self.law, self.rows[rows], self.support)

    def cdf(self, y):
        return self.law.cdf(y, *self.rows.T)

    def quantile(self, levels):
        return self.law.ppf(levels, *self.rows.T[:, :, None])

    def sample(self, size, *, seed=0):
        return self.law.rvs(*self.rows.T[:, :, None], size=(self.n, size), random_state=seed)


@dataclasses.dataclass(frozen=True, eq=False)
class DrawsOnly(Distribution):
    """All that kcalib asks of a user's own family."""

    loc: np.ndarray

    @property
    def n(self):
        return len(self.loc)

    event_shape = ()

    def take(self, rows):
        return DrawsOnly(self.loc[rows])

    def sample(self, size, *, seed=0):
        return self.loc[:, None] + np.random.default_rng(seed).normal(size=(self.n, size))


def atoms(samples, weights=None):
    return Samples(samples, weights)


def integral_of(cdf, y, low, high):
    """int (F - 1{y <= x})^2 dx."""
    options = {"epsabs": 1e-13, "epsrel": 1e-12, "limit": 500}
    below = integrate.quad(lambda x: cdf(x) ** 2, min(low, y), y, **options)[0]
    return below + integrate.quad(lambda x: (1 - cdf(x)) ** 2, y, max(high, y), **options)[0]


def values(y, prediction, **options):
    return crps_values(forecasts_of(y, prediction), **options)


# -- CRPS


def test_crps_by_hand():
    """N(0, 1) at 0: sqrt(2 / pi) - 1 / sqrt(pi)."""
    assert kcalib.crps([0.0], Normal([0.0], [1.0])) == pytest.approx(math.sqrt(2 / math.pi) - 1 / math.sqrt(math.pi))
    # Two samples 0 and 1, target 3: (3 + 2) / 2 - 1 / 4; fair: - 1 / 2. With weights 1 and 3: (3 + 3 * 2) / 4 - 3 / 16.
    assert values([3.0], atoms([[1.0, 0.0]])) == pytest.approx([2.25], rel=1e-15)
    assert values([3.0], atoms([[1.0, 0.0]]), fair=True) == pytest.approx([2.0], rel=1e-15)
    weighted = atoms([[0.0, 1.0]], np.array([[0.25, 0.75]]))
    assert values([3.0], weighted) == pytest.approx([2.25 - 0.1875], rel=1e-15)
    # A point: the absolute error.
    assert values([3.0], atoms([[1.0]])) == pytest.approx([2.0], rel=1e-15)


def test_crps_of_normals_by_integration():
    expected = [
        integral_of(stats.norm(m, s).cdf, y, m - 12 * s, m + 12 * s) for y, m, s in zip(Y, MEAN, STD, strict=True)
    ]
    np.testing.assert_allclose(values(Y, Normal(MEAN, STD)), expected, rtol=1e-9)
    assert kcalib.crps(Y, Normal(MEAN, STD), sample_weight=[1, 0, 0, 3]) == pytest.approx(
        (expected[0] + 3 * expected[3]) / 4, rel=1e-9
    )


@pytest.mark.parametrize("family", ["normal", "laplace"])
def test_crps_of_mixtures_by_integration(family):
    rng = np.random.default_rng(3)
    n, k = 4, 3
    w, m, s = rng.dirichlet(np.ones(k), size=n), rng.normal(size=(n, k)), rng.uniform(0.2, 2, size=(n, k))
    law, made = (stats.norm, Normal) if family == "normal" else (stats.laplace, Laplace)
    prediction = Mixture(w, [made(m[:, i], s[:, i]) for i in range(k)])
    y = rng.normal(size=n)
    expected = [integral_of(lambda x, i=i: float(w[i] @ law.cdf(x, m[i], s[i])), y[i], -70.0, 70.0) for i in range(n)]
    # quad is told 1e-12, but the density of Laplace mixtures has kinks.
    np.testing.assert_allclose(values(y, prediction), expected, rtol=1e-8)


def test_crps_of_counts_by_hand():
    """Poisson of rate 1 at 0: E Z = 1, and half of E|Z - Z'| = exp(-2) (I_0(2) + I_1(2))."""
    expected = 1 - math.exp(-2) * (scipy.special.iv(0, 2) + scipy.special.iv(1, 2))
    assert kcalib.crps([0.0], Poisson([1.0])) == pytest.approx(expected, rel=1e-14)
    # Geometric of probability 1/2 at 0: E Z = 1; |Z - Z'| has mean 4/3.
    assert kcalib.crps([0.0], NegativeBinomial([1.0], [1.0])) == pytest.approx(1 / 3, rel=1e-14)


@pytest.mark.parametrize("rate", [1e-3, 0.7, 12.0, 400.0])
@pytest.mark.parametrize("dispersion", [0.0, 1e-4, 0.1, 2.0])
def test_crps_of_counts_by_literal_sums(rate, dispersion):
    law = stats.poisson(rate) if dispersion == 0 else stats.nbinom(1 / dispersion, 1 / (1 + dispersion * rate))
    prediction = Poisson(np.full(3, rate)) if dispersion == 0 else NegativeBinomial(np.full(3, rate), dispersion)
    y = np.array([0.0, np.floor(rate), np.floor(3 * rate) + 1])
    k = np.arange(int(law.isf(1e-14)) + int(y[2]) + 10)
    expected = [np.sum((law.cdf(k) - (t <= k)) ** 2) for t in y]
    # scipy.stats loses digits for large sizes.
    np.testing.assert_allclose(values(y, prediction), expected, rtol=1e-8)


def test_mean_difference_of_negative_binomial_counts():
    """m s 2F1(1/a + 1, 1/2; 2; -4 a m s), s = 1 + a m (Wei and Held 2014), by mpmath, and the limit of a = 0."""
    mp = pytest.importorskip("mpmath")
    for m in (1e-10, 0.1, 3.0, 100.0):
        for a in (1e-8, 0.01, 0.5, 50.0):
            with mp.workdps(30):
                size, s = 1 / mp.mpf(a), 1 + mp.mpf(a) * mp.mpf(m)
                expected = m * s * mp.hyp2f1(size + 1, mp.mpf(1) / 2, 2, -4 * mp.mpf(a) * m * s)
            found = crps._half_gap_of_negative_binomial(np.array([m]), np.array([a]))
            assert found[0] == pytest.approx(float(expected), rel=1e-13)
    found = crps._half_gap_of_negative_binomial(np.array([1e12]), np.array([1e-15]))
    # The variance is 1e12 (1 + 1e-3); half of the mean difference of normals is the root of that over pi.
    assert found[0] == pytest.approx(math.sqrt(1.001e12 / math.pi), rel=1e-6)


def test_gap_of_laplace_across_equal_scales():
    """Against mpmath, on both sides of the switch to quadrature and where scales are nearly or exactly equal."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60):
        for gap in (0.0, 0.3, 40.0):
            for ratio in (1e-6, -1e-9, 0.0, 0.1, -0.16, 0.2, 3.0, 1e6):
                b, c, d = mp.mpf(1.5), mp.mpf(1.5) * (1 + mp.mpf(ratio)), mp.mpf(gap)
                if ratio == 0:
                    expected = d + mp.exp(-d / b) * (mp.mpf(1.5) * b + d / 2)
                else:
                    expected = d + (b**3 * mp.exp(-d / b) - c**3 * mp.exp(-d / c)) / (b * b - c * c)
                found = crps._mean_gap_of_laplace(np.array(gap), np.array(float(b)), np.array(float(c)))
                assert float(found) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("d", [1, 3])
def test_scores_of_samples_by_literal_sums(d):
    rng = np.random.default_rng(0)
    n, s = 5, 7
    z, y = rng.normal(size=(n, s, d)), rng.normal(size=(n, d))
    z[0, 1] = z[0, 0]  # ties
    w = rng.dirichlet(np.ones(s), size=n)
    y_given, z_given = (y[:, 0], z[:, :, 0]) if d == 1 else (y, z)
    for weights in (np.full((n, s), 1 / s), w):
        for fair in (False, True):
            expected = []
            for i in range(n):
                near = sum(weights[i, j] * math.dist(z[i, j], y[i]) for j in range(s))
                pairs = [(j, k) for j in range(s) for k in range(s)]
                total = sum(weights[i, j] * weights[i, k] for j, k in pairs if j != k or not fair)
                far = sum(weights[i, j] * weights[i, k] * math.dist(z[i, j], z[i, k]) for j, k in pairs)
                expected.append(near - far / total / 2)
            np.testing.assert_allclose(values(y_given, atoms(z_given, weights), fair=fair), expected, rtol=1e-12)


def test_the_fair_score_of_one_member_is_refused_with_a_remedy_that_helps():
    predictions = Samples([[1.0, 0.0], [1.0, 3.0]], [[1.0, 0.0], [0.5, 0.5]])
    with pytest.raises(ValueError, match=r"`y_pred\[0\]` has 1 member of positive weight.*; drop such samples, or"):
        kcalib.crps([2.0, 2.0], predictions, fair=True)
    # (|1 - 2| + |3 - 2|) / 2 less half of |1 - 3|, the mean over the one pair.
    assert kcalib.crps([2.0], predictions.take(slice(1, 2)), fair=True) == 0
    assert kcalib.crps([2.0, 2.0], predictions) == pytest.approx((1 + 0.5) / 2)


def test_fair_score_is_that_of_the_distribution_on_average():
    rng = np.random.default_rng(1)
    n, s = 40_000, 3
    score = values(np.zeros(n), atoms(rng.normal(size=(n, s))), fair=True)
    expected = math.sqrt(2 / math.pi) - 1 / math.sqrt(math.pi)
    assert abs(np.mean(score) - expected) < 4 * np.std(score) / math.sqrt(n)


@pytest.mark.parametrize("d", [2, 5])
def test_energy_score_of_normals(d):
    """For isotropic ones E|Z - y| is the mean of a noncentral chi law; of others draws of Z and Z' agree."""
    centre = np.zeros((1, d))
    y = np.full((1, d), 0.7)
    prediction = Normal(centre, np.full((1, d), 2.0))
    noncentral = integrate.quad(
        lambda r: r * stats.ncx2.pdf(r * r, d, 0.49 * d / 4) * 2 * r, 0, 30, epsabs=1e-13, epsrel=1e-12
    )[0]
    chi = math.sqrt(2) * math.gamma((d + 1) / 2) / math.gamma(d / 2)
    assert kcalib.crps(y, prediction) == pytest.approx(2 * noncentral - math.sqrt(2) * chi, rel=1e-10)

    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=d), rng.uniform(0.1, 3, size=d)
    z, other = (mean + std * rng.normal(size=(100_000, d)) for _ in range(2))
    draws = np.linalg.norm(z - y, axis=1) - 0.5 * np.linalg.norm(z - other, axis=1)
    found = kcalib.crps(y, Normal(mean[None], std[None]))
    assert abs(found - np.mean(draws)) < 4 * np.std(draws) / math.sqrt(len(draws))
    # A rotation changes nothing: full covariances.
    q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    full = MultivariateNormal((q @ mean)[None], (q * std**2 @ q.T)[None])
    assert kcalib.crps(y @ q.T, full) == pytest.approx(found, rel=1e-10)


def test_energy_score_of_mixtures_by_draws():
    rng = np.random.default_rng(2)
    w, m, v = np.array([[0.3, 0.7]]), rng.normal(size=(1, 2, 2)), rng.uniform(0.2, 2, size=(1, 2, 2))
    y = np.array([[0.4, -1.0]])
    draws = 100_000
    z, other = (
        m[0][c] + np.sqrt(v[0][c]) * rng.normal(size=(draws, 2))
        for c in (rng.choice(2, p=w[0], size=draws) for _ in range(2))
    )
    expected = np.linalg.norm(z - y, axis=1) - 0.5 * np.linalg.norm(z - other, axis=1)
    found = kcalib.crps(y, Mixture(w, [Normal(m[:, i], np.sqrt(v[:, i])) for i in range(2)]))
    assert abs(found - np.mean(expected)) < 4 * np.std(expected) / math.sqrt(draws)


def test_vectors_of_one_entry_are_numbers():
    column = [a[:, None] for a in (Y, MEAN, STD)]
    assert kcalib.crps(column[0], Normal(*column[1:])) == pytest.approx(kcalib.crps(Y, Normal(MEAN, STD)), rel=1e-15)


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0])
def test_crps_by_quantiles(shape):
    y = np.array([0.0, 0.7, 8.0])
    law = stats.gennorm(2 * shape, scale=2 ** (1 / (2 * shape)))
    expected = [integral_of(law.cdf, t, law.ppf(1e-12), law.isf(1e-12)) for t in y]
    np.testing.assert_allclose(values(y, PowerExponential(np.zeros(3), 1.0, shape)), expected, rtol=1e-6)
    if shape == 1:
        np.testing.assert_allclose(expected, values(y, Normal(np.zeros(3), 1.0)), rtol=1e-10)


def test_crps_of_proportions():
    a, b, y = np.array([0.3, 2, 50.0]), np.array([0.3, 5, 2.0]), np.array([0.1, 0.9, 0.97])
    expected = [integral_of(stats.beta(*ab).cdf, t, 0, 1) for *ab, t in zip(a, b, y, strict=True)]
    np.testing.assert_allclose(values(y, Beta(a, b)), expected, rtol=1e-6)
    # By draws: their error is at most that of 512 independent ones.
    y = np.array([[0.2, 0.3, 0.5]])
    z, other = np.random.default_rng(0).dirichlet([1, 2, 3], size=(2, 100_000))
    expected = np.linalg.norm(z - y, axis=1) - 0.5 * np.linalg.norm(z - other, axis=1)
    assert abs(kcalib.crps(y, Dirichlet([[1.0, 2, 3]])) - np.mean(expected)) < 4 * np.std(expected) / math.sqrt(512)


@pytest.mark.parametrize("rate", [1e-3, 0.7, 20.0, 400.0, 3e7])
def test_crps_of_ones_own_counts_is_that_of_the_family(rate):
    """By sums, and for 3e7, whose counts are too many, by an integral. Rate 20 at 20 was 1.047489."""
    y, rows = np.floor([0.2 * rate, rate, rate + 6 * math.sqrt(rate) + 2]), np.full((3, 1), rate)
    expected = values(y, Poisson(rows[:, 0]))
    np.testing.assert_allclose(values(y, Wrapped(stats.poisson, rows, "count")), expected, rtol=1e-7)
    if rate == 20:
        assert expected[1] == pytest.approx(1.0382025166898607, rel=1e-13)
        # Counts that are said to be real numbers: a jump of F at each.
        np.testing.assert_allclose(values(y, Wrapped(stats.poisson, rows)), expected, rtol=1e-7)


@pytest.mark.parametrize("a", [1e-3, 0.1, 1.0, 40.0])
@pytest.mark.parametrize("b", [1e-3, 0.1, 1.0, 3e4])
def test_crps_of_beta_to_the_promise(a, b):
    """Against the closed form by mpmath, infinite densities at either end included."""
    mp = pytest.importorskip("mpmath")
    y = np.array([0.0, 1e-9, a / (a + b), 0.9, 1.0])
    expected = []
    with mp.workdps(40):
        am, bm = mp.mpf(a), mp.mpf(b)
        for t in map(mp.mpf, y):
            first, second = (mp.betainc(am + k, bm, 0, t, regularized=True) for k in (0, 1))
            gap = 2 * mp.beta(2 * am, 2 * bm) / (am * mp.beta(am, bm) ** 2)
            expected.append(float(t * (2 * first - 1) + am / (am + bm) * (1 - 2 * second - gap)))
    np.testing.assert_allclose(values(y, Beta(np.full(5, a), np.full(5, b))), expected, rtol=1e-6)
    np.testing.assert_allclose(values(y, Wrapped(stats.beta, np.full((5, 2), (a, b)))), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "prediction, y, expected",
    [
        (Normal([0.0], [1.0]), -3.0, 2.43657473),
        (Normal([0.1], [0.9]), -2.6, 2.43657473 * 0.9),
        (StudentT([5.0], 0.0, 1.0), -3.0, 2.33875895),
        (StudentT([5.0], 0.1, 0.9), -2.6, 2.33875895 * 0.9),
        (Truncated(StudentT([5.0], 0.0, 1.0), -3.0, 2.0), -1.0, 0.566814455),
        (Censored(Normal([0.1], [0.9]), -1e9), -2.6, 2.43657473 * 0.9),
        (LogNormal([0.1], [0.9]), 3.0, 1.13552645),
        (Gamma([1.1], 1.0), 0.2, 0.399009355),
        (Gamma([1.1], 0.9), 0.18, 0.399009355 * 0.9),
        (NegativeBinomial.from_number_and_probability([100.0], [0.95]), 5, 0.53215257681),
        (NegativeBinomial.from_number_and_probability([200000.1], [0.0001]), 1999797667, 1045062.81311),
        (NegativeBinomial.from_number_and_probability([200.1], [0.82]), 44, 1.70859687251),
        (NegativeBinomial.from_number_and_probability([20000.1], [0.9]), 2222, 11.6114812752),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Distribution) else "",
)
def test_values_of_the_tests_of_scoringrules(prediction, y, expected):
    assert kcalib.crps([y], prediction) == pytest.approx(expected, rel=5e-9)


def test_closed_forms_are_the_integrals():
    """Small and large shapes, targets in both tails, and below 0 for laws of positive numbers."""
    y, shape = np.array([-2.0, 0.0, 1e-3, 1.0, 30.0]), np.array([1.1, 0.3, 2.5, 60.0, 3e6])
    rows = np.column_stack((shape, np.zeros(5), np.full(5, 2.0)))
    for prediction, law, columns in (
        (StudentT(np.maximum(shape, 1.2), 0.0, 2.0), stats.t, np.maximum(rows, [1.2, 0, 0])),
        (Gamma(shape, 2.0), stats.gamma, rows),
        (LogNormal(np.full(5, math.log(2.0)), np.minimum(shape, 3.0)), stats.lognorm, np.minimum(rows, [3, 9, 9])),
    ):
        np.testing.assert_allclose(values(y, prediction), values(y, Wrapped(law, columns)), rtol=1e-6)
    with pytest.raises(ValueError, match=r"`y_true\[1\]` is 0.0, where the density of this row's Gamma is infinite"):
        kcalib.log_score(y, Gamma(shape, 2.0))
    assert kcalib.log_score(y[:1], LogNormal([0.0], 1.0)) == math.inf


def test_infinite_log_scores_name_row_and_value():
    y, prediction = [0.3, 0.0, 0.0], Beta([1.0, 2.0, 0.5], 1.0)
    with pytest.raises(ValueError, match=r"^`y_true\[2\]` is 0.0, where the density of this row's Beta is infinite"):
        kcalib.log_score(y, prediction)
    assert kcalib.log_score(y, prediction, sample_weight=[1, 1, 0]) == math.inf
    assert kcalib.log_score([0.3, 0.0, 1e-6], prediction) == math.inf
    y, both = [0.3, 0.0, 0.2, 0.4], {"a": prediction.take([0, 1, 1, 1]), "b": Beta([1.0] * 4, 1.0)}
    with pytest.raises(ValueError, match=r"^`y_true\[1\]` is 0.0, where the density of this row's Beta is 0 .* CRPS"):
        kcalib.compare(y, both, metric="log_score")
    kcalib.compare(y, both, metric="crps")


def test_distributions_of_scipy():
    assert kcalib.crps(Y, stats.norm(MEAN, STD)) == kcalib.crps(Y, Normal(MEAN, STD))
    assert np.all(kcalib.pit_values(Y, stats.norm(MEAN, STD)) == kcalib.pit_values(Y, Normal(MEAN, STD)))


def test_a_family_of_ones_own():
    loc = np.array([0.0, 1.0, -2.0])
    y = np.array([0.5, -30.0, 60.0])
    expected = [integral_of(lambda x, m=m: scipy.special.expit(x - m), t, -80, 80) for t, m in zip(y, loc, strict=True)]
    np.testing.assert_allclose(values(y, Logistic(loc)), expected, rtol=1e-8)
    # Draws are right to four standard errors of the mean of 512 of them, |Z - y| having at most the variance of Z.
    y = np.array([0.5, 1.0, -3.0])
    exact = values(y, Normal(loc, np.ones(3)))
    assert np.all(np.abs(values(y, DrawsOnly(loc)) - exact) < 4 * 1.5 / math.sqrt(512))
    pinball = kcalib.pinball_loss(y, DrawsOnly(loc))
    assert pinball == pytest.approx(kcalib.pinball_loss(y, Normal(loc, np.ones(3))), abs=0.1)
    assert np.all(np.abs(kcalib.pit_values(y, DrawsOnly(loc)) - stats.norm.cdf(y - loc)) < 0.1)


def test_batches_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    y, mean = rng.normal(size=50), rng.normal(size=(50, 4, 1))
    prediction = Ensemble([Normal(mean[:, i, 0], 1.0) for i in range(4)])
    whole = values(y, prediction)
    monkeypatch.setattr(crps, "BATCH_ELEMENTS", 100)
    np.testing.assert_array_equal(values(y, prediction), whole)


def test_against_scoringrules():
    """A second referee, where it is installed."""
    sr = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(values(Y, Normal(MEAN, STD)), sr.crps_normal(Y, MEAN, STD), rtol=1e-12)
    z = rng.normal(size=(4, 9))
    np.testing.assert_allclose(values(Y, atoms(z)), sr.crps_ensemble(Y, z, estimator="nrg"), rtol=1e-12)
    np.testing.assert_allclose(values(Y, atoms(z), fair=True), sr.crps_ensemble(Y, z, estimator="fair"), rtol=1e-12)
    np.testing.assert_allclose(values(Y, Laplace(MEAN, STD)), sr.crps_laplace(Y, MEAN, STD), rtol=1e-12)
    k, rate = np.array([0.0, 3.0, 50.0]), np.array([0.5, 7.0, 20.0])
    np.testing.assert_allclose(values(k, Poisson(rate)), sr.crps_poisson(k, rate), rtol=1e-12)
    found = values(k, NegativeBinomial(rate, 0.5))
    np.testing.assert_allclose(found, sr.crps_negbinom(k, 2.0, 1 / (1 + 0.5 * rate)), rtol=1e-9)


# -- log score, pinball loss


def test_log_score():
    expected = -np.mean(stats.norm.logpdf(Y, MEAN, STD))
    assert kcalib.log_score(Y, Normal(MEAN, STD)) == pytest.approx(expected, rel=1e-14)
    y, mean, std = (np.stack((a, a[::-1]), axis=1) for a in (Y, MEAN, STD))
    assert kcalib.log_score(y, Normal(mean, std)) == pytest.approx(2 * expected, rel=1e-14)
    counts = np.array([0.0, 2.0, 9.0])
    expected = -np.mean(stats.poisson.logpmf(counts, 3.0))
    assert kcalib.log_score(counts, Poisson(np.full(3, 3.0))) == pytest.approx(expected, rel=1e-13)
    cov = np.array([[2.0, 0.6], [0.6, 1.0]])
    expected = -stats.multivariate_normal([1.0, 0.0], cov).logpdf([0.5, 2.0])
    assert kcalib.log_score([[0.5, 2.0]], MultivariateNormal([[1.0, 0.0]], cov[None])) == pytest.approx(expected)
    # What is impossible costs infinitely much, unless it has no weight.
    prediction = Beta([2.0, 1.0], 1.0)
    assert kcalib.log_score([0.0, 0.5], prediction) == math.inf
    assert kcalib.log_score([0.0, 0.5], prediction, sample_weight=[0, 1]) == pytest.approx(0, abs=1e-14)
    with pytest.raises(ValueError, match=r"`y_pred` is Samples, which has no density"):
        kcalib.log_score([0.0], atoms([[1.0]]))
    with pytest.raises(ValueError, match=r"`y_pred` is DrawsOnly, which has no density .* use kcalib.crps"):
        kcalib.log_score([0.0], DrawsOnly(np.zeros(1)))


def test_pinball_loss_by_hand():
    # Medians 0: half of the absolute error. Level 0.975: 0.025 of what the quantile 1.959964 is above.
    assert kcalib.pinball_loss([1.0, -3.0], Normal([0, 0], [1, 1]), levels=0.5) == pytest.approx(1.0)
    expected = 0.025 * 1.959963984540054
    assert kcalib.pinball_loss([0.0], Normal([0], [1]), levels=[0.975]) == pytest.approx(expected, rel=1e-12)
    both = kcalib.pinball_loss([0.0], Normal([0], [1]), levels=[0.025, 0.975])
    assert both == pytest.approx(expected, rel=1e-12)


def test_pinball_loss_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    w = [1, 2, 3, 4]
    losses = [
        metrics.mean_pinball_loss(Y, stats.norm.ppf(level, MEAN, STD), alpha=level, sample_weight=w)
        for level in np.arange(1, 20) / 20
    ]
    assert kcalib.pinball_loss(Y, Normal(MEAN, STD), sample_weight=w) == pytest.approx(np.mean(losses), rel=1e-12)


def test_pinball_loss_is_half_of_the_crps():
    """The midpoint rule over 10,000 levels; its error at the two ends is about the integrand's size over 10,000^2."""
    levels = (np.arange(10_000) + 0.5) / 10_000
    twice = 2 * kcalib.pinball_loss(Y, Normal(MEAN, STD), levels=levels)
    assert twice == pytest.approx(kcalib.crps(Y, Normal(MEAN, STD)), rel=1e-5)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([0.5, 1.0], r"`levels\[1\]` is 1, expected a level between 0 and 1"),
        ([math.nan], r"`levels\[0\]` is nan, expected a level"),
        ([], r"`levels` has shape \(0,\), expected \(k,\)"),
        ([[0.5]], r"`levels` has shape \(1, 1\)"),
    ],
)
@pytest.mark.parametrize("function", [kcalib.pinball_loss, kcalib.quantile_calibration])
def test_bad_levels(function, levels, message):
    with pytest.raises(ValueError, match=message):
        function(Y, Normal(MEAN, STD), levels=levels)


# -- PIT values and quantile calibration


def test_pit_values_of_calibrated_models_are_uniform():
    rng = np.random.default_rng(0)
    n = 2000
    mean, std = rng.normal(size=n), rng.uniform(0.1, 2, size=n)
    y = mean + std * rng.normal(size=n)
    pit = kcalib.pit_values(y, Normal(mean, std))
    np.testing.assert_allclose(pit, stats.norm.cdf(y, mean, std), rtol=1e-12)
    assert stats.kstest(pit, "uniform").pvalue > 1e-3
    assert stats.kstest(kcalib.pit_values(y, Normal(mean, 1.2 * std)), "uniform").pvalue < 1e-3
    # Ranks among few samples are uniform once randomised, and with ties, too.
    z = mean[:, None] + std[:, None] * rng.normal(size=(n, 4))
    for digits in (None, 0):
        targets, samples = (y, z) if digits is None else (np.round(y), np.round(z))
        pit = kcalib.pit_values(targets, atoms(samples), seed=1)
        assert stats.kstest(pit, "uniform").pvalue > 1e-3
    assert not np.array_equal(pit, kcalib.pit_values(targets, atoms(samples), seed=2))
    np.testing.assert_array_equal(pit, kcalib.pit_values(targets, atoms(samples), seed=1))
    assert stats.kstest(kcalib.pit_values(y + 0.2, atoms(z)), "uniform").pvalue < 1e-3


def test_pit_values_of_counts():
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.1, 5, size=2000)
    y = rng.poisson(rate)
    assert stats.kstest(kcalib.pit_values(y, Poisson(rate)), "uniform").pvalue > 1e-3
    assert stats.kstest(kcalib.pit_values(y, NegativeBinomial(rate, 1.0)), "uniform").pvalue < 1e-3
    # At 0 uniform below P(0); at 2 between P(Z <= 1) and P(Z <= 2).
    u = np.random.default_rng((quantile_calibration.PIT_STREAM, 7)).uniform(size=2)
    low, high = np.array([0, stats.poisson.cdf(1, 3.0)]), stats.poisson.cdf([0, 2], 3.0)
    np.testing.assert_allclose(kcalib.pit_values([0, 2], Poisson([3.0, 3.0]), seed=7), low + u * (high - low))


def test_pit_values_of_own_families_with_atoms():
    """At 0 uniform below the probability of 0, above it the distribution function."""
    loc, y = np.array([0.5, -1.0, 0.3]), np.array([0.0, 0.0, 2.0])
    u, low = np.random.default_rng((quantile_calibration.PIT_STREAM, 7)).uniform(size=3), stats.norm.cdf(y, loc)
    for scale in (1.0, 1e-150):  # next to 0 there are numbers without all digits
        np.testing.assert_allclose(AtLeastZero(loc).cdf_left(y * scale), [0, 0, *AtLeastZero(loc).cdf(y * scale)[2:]])
    np.testing.assert_allclose(kcalib.pit_values(y, AtLeastZero(loc), seed=7), [*(u * low)[:2], low[2]])
    # Of continuous families nothing is drawn.
    assert kcalib.pit_values([0.0], Logistic(np.zeros(1)), seed=3) == pytest.approx(0.5, abs=1e-15)
    assert kcalib.quantile_calibration([0.0], Logistic(np.zeros(1))).seed is None
    rng, curves = np.random.default_rng(0), []
    for _ in range(20):
        loc = rng.normal(size=200)
        y = np.maximum(loc + rng.normal(size=200), 0)
        curves.append(kcalib.quantile_calibration(y, AtLeastZero(loc), levels=[0.1, 0.5]))
    # Each of 40 shares is out of its band of 95 % once in 20.
    out = [(c.coverage < c.consistency_band.low) | (c.coverage > c.consistency_band.high) for c in curves]
    assert np.sum(out) <= stats.binom.ppf(0.999, 40, 0.05)


def test_probabilities_below_a_number_by_hand():
    assert Poisson([2.0]).cdf_left([[0.0, 0.5, 1.0, 2.0]]) == pytest.approx(math.exp(-2) * np.array([[0, 1, 1, 3]]))
    for weights, below in ((None, [0, 2 / 3, 2 / 3, 1]), ([[0.2, 0.3, 0.5]], [0, 0.5, 0.5, 1])):
        assert atoms([[0.0, 0.0, 1.0]], weights).cdf_left([[0.0, 0.5, 1.0, 2.0]]) == pytest.approx(np.array([below]))
    assert Normal([0.0], [1.0]).cdf_left([0.0]) == 0.5


def test_pit_of_samples_by_hand():
    """One sample of four below, two equal, u uniform: (1 + 3 u) / 5."""
    u = np.random.default_rng((quantile_calibration.PIT_STREAM, 5)).uniform(size=1)
    assert kcalib.pit_values([2.0], atoms([[2.0, 1.0, 3.0, 2.0]]), seed=5) == pytest.approx((1 + 3 * u) / 5)
    # Weights 1/2, 1/4 and 1/4 are worth 8/3 samples: half of these below, none equal.
    weighted = atoms([[1.0, 3.0, 4.0]], np.array([[0.5, 0.25, 0.25]]))
    assert kcalib.pit_values([2.0], weighted, seed=5) == pytest.approx((4 / 3 + u) / (11 / 3))


def test_quantile_calibration_by_hand():
    """PIT values 0.1, 0.5, 0.5 and 0.95."""
    y = stats.norm.ppf([0.1, 0.5, 0.5, 0.95])
    curve = kcalib.quantile_calibration(y, Normal(np.zeros(4), np.ones(4)), levels=[0.05, 0.5, 0.9])
    np.testing.assert_array_equal(curve.coverage, [0, 0.75, 0.75])
    assert curve.error == pytest.approx((0.05 + 0.25 + 0.15) / 3)
    np.testing.assert_allclose(curve.standard_error, np.sqrt([0.05 * 0.95, 0.25, 0.09]) / 2, rtol=1e-12)
    assert curve.histogram[10] == 0.5 and curve.histogram.sum() == 1
    assert (curve.seed, curve.n_samples, curve.confidence_level, curve.simultaneous) == (None, 4, 0.95, False)
    assert "n_levels=3" in repr(curve)
    assert kcalib.quantile_calibration(y, atoms(np.zeros((4, 2)))).seed == 0
    assert kcalib.quantile_calibration(np.arange(4), Poisson(np.ones(4)), seed=3).seed == 3


@pytest.mark.parametrize("n", [1, 7, 50, 1000])
def test_band_is_binomial(n):
    y = np.zeros(n)
    for level in (0.5, 0.9, 0.95, 0.999):
        curve = kcalib.quantile_calibration(y, Normal(y, y + 1), confidence_level=level)
        low, high = (np.rint(limit * n) for limit in curve.consistency_band)
        for tau, a, b in zip(curve.levels, low, high, strict=True):
            law, tail = stats.binom(n, tau), (1 - level) / 2
            assert law.cdf(a - 1) < tail + 1e-12 and law.sf(b) < tail + 1e-12
            # The narrowest such limits.
            assert law.cdf(a) >= tail * (1 - 1e-9) and law.sf(b - 1) >= tail * (1 - 1e-9)


def test_bands_hold_as_often_as_they_say():
    rng = np.random.default_rng(0)
    n, repeats = 100, 400
    single, whole = [], []
    for _ in range(repeats):
        y = rng.normal(size=n)
        for simultaneous, held in ((False, single), (True, whole)):
            curve = kcalib.quantile_calibration(
                y, Normal(np.zeros(n), np.ones(n)), simultaneous=simultaneous, confidence_level=0.9
            )
            low, high = curve.consistency_band
            inside = (curve.coverage >= low - 1e-12) & (curve.coverage <= high + 1e-12)
            held.append(inside[9] if not simultaneous else inside.all())
    exact = stats.binom(n, 0.5)
    low, high = stats.binom.ppf(0.05, n, 0.5), n - stats.binom.ppf(0.05, n, 0.5)
    bounds = binomial_bounds(repeats, float(exact.cdf(high) - exact.cdf(low - 1)))
    assert bounds[0] <= np.mean(single) <= bounds[1]
    assert np.mean(whole) >= binomial_bounds(repeats, 0.9)[0]


def test_error_of_the_curve():
    rng = np.random.default_rng(0)
    y = rng.normal(size=3000)
    calibrated = kcalib.quantile_calibration(y, Normal(np.zeros(3000), np.ones(3000)))
    sharp = kcalib.quantile_calibration(y, Normal(np.zeros(3000), np.full(3000, 0.5)))
    # sqrt(2 / pi) times the mean of sqrt(tau (1 - tau) / n) is 0.31 / sqrt(n); four times that is rare.
    assert calibrated.error < 4 * 0.31 / math.sqrt(3000) < sharp.error


def test_plot_of_the_curve(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    curve = kcalib.quantile_calibration(rng.normal(size=300), Normal(np.zeros(300), np.ones(300)))
    axes = curve.plot()
    np.testing.assert_allclose(axes.collections[1].get_offsets(), np.stack((curve.levels, curve.coverage), axis=1))
    below = axes.figure.axes[1]
    np.testing.assert_allclose([bar.get_height() for bar in below.patches[1:]], curve.histogram)  # after the band
    axes.figure.savefig(tmp_path / "curve.png")
    assert len(curve.plot(histogram=False, legend=False, color="k").figure.axes) == 1


def test_arrays_of_every_library(xp):
    expected = [f(Y, Normal(MEAN, STD)) for f in (kcalib.crps, kcalib.log_score, kcalib.pinball_loss)]
    y, prediction = xp.asarray(Y), Normal(xp.asarray(MEAN), xp.asarray(STD))
    found = [f(y, prediction) for f in (kcalib.crps, kcalib.log_score, kcalib.pinball_loss)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    pit = arrays.to_host(kcalib.pit_values(y, prediction))
    np.testing.assert_allclose(pit, kcalib.pit_values(Y, Normal(MEAN, STD)), rtol=1e-12)
    samples = np.random.default_rng(0).normal(size=(4, 5))
    assert kcalib.crps(y, Samples(xp.asarray(samples))) == pytest.approx(kcalib.crps(Y, Samples(samples)), rel=1e-12)
    counts, rate = np.arange(4.0), np.array([1.0, 2.0, 0.5, 9.0])
    for function in (kcalib.crps, kcalib.log_score, kcalib.pinball_loss):
        found = function(xp.asarray(counts), Poisson(xp.asarray(rate)))
        assert found == pytest.approx(function(counts, Poisson(rate)), rel=1e-12)


# -- bad input


FUNCTIONS = [kcalib.crps, kcalib.log_score, kcalib.pinball_loss, kcalib.pit_values, kcalib.quantile_calibration]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_no_distribution(function):
    with pytest.raises(TypeError, match=r"`y_pred` is list, expected predicted distributions .* kcalib.brier_score"):
        function([0, 1], [0.5, 0.5])
    with pytest.raises(TypeError, match="`y_pred` is Categorical, expected predicted distributions of numbers"):
        function([0, 1], Categorical([[0.5, 0.5], [0.5, 0.5]]))
    with pytest.raises(ValueError, match=r"`y_true` has shape \(3,\), expected \(4,\)"):
        function(Y[:3], Normal(MEAN, STD))
    with pytest.raises(ValueError, match=r"`y_true\[1\]` is nan"):
        function([0.0, math.nan], Normal([0, 0], [1, 1]))


@pytest.mark.parametrize("function", [kcalib.pinball_loss, kcalib.pit_values, kcalib.quantile_calibration])
def test_vectors_have_no_quantiles(function):
    pair = np.zeros((3, 2))
    with pytest.raises(ValueError, match="`y_pred` predicts vectors of 2 entries, but .* one entry at a time"):
        function(pair, Normal(pair, pair + 1))


def test_other_bad_options():
    with pytest.raises(ValueError, match="`y_pred` has 1 sample for each prediction; leave it out"):
        kcalib.crps([1.0], kcalib.distributions.Samples([[1.0]]), fair=True)
    with pytest.raises(ValueError, match="`fair` is for predictions by two or more samples, but `y_pred` is Normal"):
        kcalib.crps(Y, Normal(MEAN, STD), fair=True)
    with pytest.raises(ValueError, match="`fair`"):
        kcalib.crps([0.0], atoms([[1.0]]), fair=True)
    with pytest.raises(ValueError, match="`confidence_level` is 95, expected a number between 0 and 1"):
        kcalib.quantile_calibration(Y, Normal(MEAN, STD), confidence_level=95)
    with pytest.raises(TypeError, match="`simultaneous` is 'yes', expected True or False"):
        kcalib.quantile_calibration(Y, Normal(MEAN, STD), simultaneous="yes")
    with pytest.raises(ValueError, match="`seed` is -1, expected an integer at least 0"):
        kcalib.pit_values(Y, Normal(MEAN, STD), seed=-1)


def test_table_of_accuracy():
    """Rows of docs/forecast_accuracy_table.txt hold the promise of 1e-6, and one is measured again."""
    pytest.importorskip("mpmath")
    script = load_script("forecast_accuracy")
    lines = (DOCS / "forecast_accuracy_table.txt").read_text().splitlines()[1:]
    assert [line[:28].strip() for line in lines] == [law.name for law in script.LAWS]
    law = next(law for law in script.LAWS if law.name.startswith("ZeroInflated"))
    assert all(float(line[28:].split()[1]) < 1e-6 for line in [*lines, script.measure(law)])
