"""Families of predicted distributions against scipy.stats, mpmath and their own draws."""

from __future__ import annotations

import inspect
import math
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import array_api_strict
import mpmath
import numpy as np
import pytest
import scipy.stats

from kcalib._backend import arrays
from kcalib.distributions import (
    Beta,
    Categorical,
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
    counts,
)

MEAN, SCALE = np.array([0.0, -3.0, 250.0]), np.array([1.0, 0.01, 40.0])
SHAPE = np.array([0.3, 1.0, 7.0])
A, B = np.array([0.05, 2.0, 3000.0]), np.array([0.4, 5.0, 70.0])
DF, MEAN_LOG, STD_LOG = np.array([5.0, 30.0, 2e7]), np.array([0.0, -3.0, 5.0]), np.array([0.5, 1.2, 0.05])
RATE, DISPERSION = np.array([0.03, 4.0, 900.0]), np.array([2.0, 0.3, 1e-3])
COV = np.array([[[2.0, 0.9], [0.9, 1.0]], [[1e-4, 0.0], [0.0, 3.0]], [[5.0, -4.0], [-4.0, 5.0]]])
VECTORS = np.array([[0.0, 1.0], [2.0, -2.0], [0.5, 0.25]])
P = np.array([1e-9, 0.01, 0.2, 0.5, 0.77, 0.999])


@dataclass(frozen=True)
class Case:
    """Three distributions of numbers, and the same by scipy.stats."""

    distribution: Any
    frozen: list[Any]


NUMBERS = {
    "normal": Case(Normal(MEAN, SCALE), [scipy.stats.norm(m, s) for m, s in zip(MEAN, SCALE)]),
    "normal_column": Case(Normal(MEAN[:, None], SCALE[:, None]), [scipy.stats.norm(m, s) for m, s in zip(MEAN, SCALE)]),
    "laplace": Case(Laplace(MEAN, SCALE), [scipy.stats.laplace(m, s) for m, s in zip(MEAN, SCALE)]),
    "power_exponential": Case(
        PowerExponential(MEAN, SCALE, SHAPE),
        [scipy.stats.gennorm(2 * b, m, s * 2 ** (0.5 / b)) for m, s, b in zip(MEAN, SCALE, SHAPE)],
    ),
    "beta": Case(Beta(A, B), [scipy.stats.beta(a, b) for a, b in zip(A, B)]),
    "student_t": Case(StudentT(DF, MEAN, SCALE), [scipy.stats.t(v, m, s) for v, m, s in zip(DF, MEAN, SCALE)]),
    "log_normal": Case(
        LogNormal(MEAN_LOG, STD_LOG), [scipy.stats.lognorm(s, scale=np.exp(m)) for m, s in zip(MEAN_LOG, STD_LOG)]
    ),
    "gamma": Case(Gamma(A, SCALE), [scipy.stats.gamma(a, scale=s) for a, s in zip(A, SCALE)]),
    "poisson": Case(Poisson(RATE), [scipy.stats.poisson(r) for r in RATE]),
    "negative_binomial": Case(
        NegativeBinomial(RATE, DISPERSION),
        [scipy.stats.nbinom(1 / d, 1 / (1 + d * r)) for r, d in zip(RATE, DISPERSION)],
    ),
}
WEIGHTS = np.array([[0.2, 0.8, 0.0], [0.5, 0.25, 0.25], [0.1, 0.9, 0.0]])
MIXTURES = {
    "normal": Mixture(WEIGHTS, [Normal(MEAN, SCALE), Normal(MEAN + 1, 2.0), Normal(7.0, SCALE)]),
    "laplace": Mixture([0.3, 0.7], [Laplace(MEAN, SCALE), Laplace(MEAN + 1, SCALE)]),
    "ensemble": Ensemble([Normal(MEAN, SCALE), Normal(MEAN + 3, SCALE)]),
    "nested": Mixture(
        [0.4, 0.6], [Ensemble([Normal(MEAN, SCALE), Normal(MEAN + 3, SCALE)]), Ensemble([Normal(MEAN, 5.0)])]
    ),
}
VECTOR = {
    "normal": Normal(VECTORS, np.array([[1.0, 2.0], [0.1, 30.0], [4.0, 4.0]])),
    "multivariate_normal": MultivariateNormal(VECTORS, COV),
    "mixture": Ensemble([MultivariateNormal(VECTORS, COV), MultivariateNormal(VECTORS + 3, COV)]),
    "mixture_of_normals": Mixture([0.3, 0.7], [Normal(VECTORS, 1.0), Normal(VECTORS, 2.0)]),
}
SAMPLES = {
    "samples": Samples(np.array([[1.0, 5.0, 2.0], [0.0, 0.0, 1.0], [-4.0, 3.0, 2.5]])),
    "weighted": Samples(np.array([[1.0, 5.0, 2.0], [0.0, 0.0, 1.0], [-4.0, 3.0, 2.5]]), WEIGHTS),
    "vectors": Samples(np.random.default_rng(0).normal(size=(3, 8, 2))),
}
PROBABILITIES = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
ALL: dict[str, Distribution] = (
    {name: case.distribution for name, case in NUMBERS.items()}
    | {f"{name}_mixture": mixture for name, mixture in MIXTURES.items()}
    | {f"{name}_vectors": vectors for name, vectors in VECTOR.items()}
    | SAMPLES
    | {
        "categorical": Categorical(PROBABILITIES),
        "dirichlet": Dirichlet([[0.1, 0.2, 0.1], [1.0, 1.0, 1.0], [9.0, 200.0, 3.0]]),
    }
)
numbers = pytest.mark.parametrize("case", NUMBERS.values(), ids=NUMBERS)
everything = pytest.mark.parametrize("distribution", ALL.values(), ids=ALL)


def per_row(case: Case, method: str, at: np.ndarray) -> np.ndarray:
    """A method of each frozen distribution at its row."""
    return np.array([getattr(law, method)(row) for law, row in zip(case.frozen, at)])


@numbers
def test_numbers_are_those_of_scipy(case):
    d, frozen = case.distribution, case.frozen
    discrete = isinstance(frozen[0].dist, scipy.stats.rv_discrete)
    y = np.array([law.ppf(P) for law in frozen])
    # The parameters of scipy's negative binomial are rounded: its tails to a few 1e-14 times the mean.
    close = {"rtol": 1e-10 if discrete else 1e-13, "atol": 0}
    np.testing.assert_allclose(d.cdf(y), per_row(case, "cdf", y), **close)
    np.testing.assert_allclose(d.cdf(y[:, 2]), per_row(case, "cdf", y[:, 2]), **close)
    np.testing.assert_allclose(d.quantile(P), y, rtol=1e-13, atol=1e-15)
    for at in y.T:
        logs = per_row(case, "logpmf" if discrete else "logpdf", at)
        np.testing.assert_allclose(d.log_density(at), logs, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(d.expected_value(), [[law.mean()] for law in frozen], rtol=1e-12)
    np.testing.assert_allclose(d.standard_deviation(), [[law.std()] for law in frozen], rtol=1e-12)


def test_tails_keep_their_digits():
    """Where 1 - cdf would have none left."""
    d = Ensemble([Laplace([0.0], 1.0), Laplace([0.0], 2.0)])
    q = d.quantile([1 - 2.0**-50])[0, 0]
    with mpmath.workdps(40):
        tail = (mpmath.exp(-mpmath.mpf(q)) + mpmath.exp(-mpmath.mpf(q) / 2)) / 4
    assert float(tail) == pytest.approx(2.0**-50, rel=1e-11)  # 1e-12 relative of q = 68, slope 1/2
    assert float(Normal([0.0], [1.0]).cdf([-30.0])[0]) == pytest.approx(float(mpmath.ncdf(-30)), rel=1e-13)
    # All of the density is in components 1e6 scales away.
    far = Mixture([0.5, 0.5], [Normal([0.0], 1e-3), Normal([0.0], 2e-3)])
    assert float(far.log_density([1000.0])[0]) == pytest.approx(
        float(scipy.stats.norm(0, 2e-3).logpdf(1000.0)) + math.log(0.5), rel=1e-14
    )


@pytest.mark.parametrize("mean", [1e-12, 0.3, 17.0, 1e6])
@pytest.mark.parametrize("dispersion", [0.0, 1e-15, 1e-3, 0.07, 300.0])
def test_probabilities_of_counts_to_full_accuracy(mean, dispersion):
    """From Poisson's law to heavy tails, where differences of log-gamma functions lose all digits."""
    d = NegativeBinomial([mean], [dispersion]) if dispersion else Poisson([mean])
    std = math.sqrt(mean * (1 + dispersion * mean))
    for k in sorted(
        {0, 1, 2, 15, 16, 17, *(int(mean + z * std) for z in (-3, -0.01, 0, 0.1, 4) if mean + z * std > 0)}
    ):
        with mpmath.workdps(60):
            m, c = mpmath.mpf(mean), mpmath.mpf(dispersion)
            if dispersion:
                r = 1 / c
                exact = mpmath.loggamma(r + k) - mpmath.loggamma(r) - mpmath.loggamma(k + 1)
                exact += k * mpmath.log(c * m / (1 + c * m)) - r * mpmath.log1p(c * m)
            else:
                exact = k * mpmath.log(m) - m - mpmath.loggamma(k + 1)
        # Absolute: the relative error of the probability; relative: what an argument's rounding makes of it.
        assert float(d.log_density([k])[0]) == pytest.approx(float(exact), abs=2e-14, rel=1e-14)


@pytest.mark.parametrize("a", [1e-9, 0.3, 1.0, 7.0, 1e4, 1e9])
@pytest.mark.parametrize("b", [0.5, 1.0, 2e5])
def test_densities_of_beta_to_full_accuracy(a, b):
    mean, std = a / (a + b), math.sqrt(a * b / (a + b + 1)) / (a + b)
    for y in (1e-300, 1e-3, 0.5, mean, mean + 3 * std, mean - 0.5 * std, 1 - 2.0**-40):
        if not 0 < y < 1:
            continue
        with mpmath.workdps(50):
            am, bm, ym = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(y)
            exact = (am - 1) * mpmath.log(ym) + (bm - 1) * mpmath.log1p(-ym)
            exact += mpmath.loggamma(am + bm) - mpmath.loggamma(am) - mpmath.loggamma(bm)
            # What rounding 1 - y does, twice over.
            slope = float(abs((bm - 1) * ym - (am - 1) * (1 - ym)) / (1 - ym)) * 2.0**-51
        assert float(Beta([a], [b]).log_density([y])[0]) == pytest.approx(float(exact), abs=1e-13 + slope, rel=2e-14)


def test_beta_and_dirichlet_at_the_ends():
    d = Beta([0.5, 1.0, 1.0, 2.0], [3.0, 3.0, 1.0, 3.0])
    np.testing.assert_allclose(d.log_density(np.zeros(4)), [math.inf, math.log(3), 0, -math.inf], atol=1e-15)
    np.testing.assert_array_equal(d.log_density([1.0, 1.0, 1.0, 1.0]), [-math.inf, -math.inf, 0, -math.inf])
    np.testing.assert_array_equal(d.cdf(np.array([[-1.0, 0.0, 1.0, 2.0]] * 4)), [[0.0, 0.0, 1.0, 1.0]] * 4)
    alpha = np.array([[1.0, 2.0, 3.0], [0.5, 2.0, 3.0], [2.0, 0.5, 3.0], [1.5, 0.5, 1.0]])
    y = np.array([[0.0, 0.4, 0.6], [0.0, 0.4, 0.6], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]])
    # By hand: Gamma(6) / (Gamma(2) Gamma(3)) 0.4 0.6^2 = 60 * 0.144
    logs = Dirichlet(alpha).log_density(y)
    np.testing.assert_allclose(logs, [math.log(8.64), math.inf, -math.inf, -math.inf], rtol=1e-14)


def test_dirichlet_is_that_of_scipy():
    d = ALL["dirichlet"]
    y = np.array([[0.2, 0.5, 0.3], [0.001, 0.009, 0.99], [0.05, 0.93, 0.02]])
    logs = [scipy.stats.dirichlet(alpha).logpdf(at) for alpha, at in zip(d.alpha, y)]
    np.testing.assert_allclose(d.log_density(y), logs, rtol=1e-13)
    variances = [scipy.stats.dirichlet(alpha).var() for alpha in d.alpha]
    np.testing.assert_allclose(d.standard_deviation(), np.sqrt(variances), rtol=1e-13)
    np.testing.assert_allclose(d.quasi_sample(64).sum(axis=2), 1, rtol=1e-14)
    # Entries are Beta distributed, those of the last stick too.
    for i in range(3):
        cdf = Beta(d.alpha[:, i], d.alpha.sum(axis=1) - d.alpha[:, i]).cdf(d.sample(1000, seed=1)[:, :, i])
        assert scipy.stats.kstest(cdf, "uniform", axis=1).pvalue.min() > 1e-5


@pytest.mark.parametrize("shape", [0.1, 0.5, 1.0, 100.0])
def test_power_exponential_special_cases_and_temperature(shape):
    d = PowerExponential(MEAN, SCALE, shape)
    y = MEAN + SCALE * np.array([0.3, -0.99, 0.9])
    if shape == 0.5:
        np.testing.assert_allclose(d.log_density(y), Laplace(MEAN, 2 * SCALE).log_density(y), rtol=1e-13)
    if shape == 1.0:
        np.testing.assert_allclose(d.cdf(y), Normal(MEAN, SCALE).cdf(y), rtol=1e-13)
    np.testing.assert_allclose(d.cdf(d.quantile(P)), np.broadcast_to(P, (3, P.size)), rtol=1e-9)
    # p^(1/T) is proportional to the density with the scale times T^(1 / (2 shape)): a constant difference of logs.
    tempered = PowerExponential(MEAN, SCALE * 3.0 ** (0.5 / shape), shape)
    shifts = [tempered.log_density(at) - d.log_density(at) / 3.0 for at in (MEAN, y, MEAN - 0.1 * SCALE)]
    np.testing.assert_allclose(shifts[1:], np.broadcast_to(shifts[0], (2, 3)), rtol=1e-12)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_probability_table(name):
    case = NUMBERS[name]
    d = case.distribution
    table = d.pmf_table()
    last = table.shape[1] - 1
    np.testing.assert_allclose(table, [law.pmf(np.arange(last + 1)) for law in case.frozen], rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(table.sum(axis=1), 1, rtol=1e-13)
    beyond = [law.sf(last) for law in case.frozen]
    assert max(beyond) <= 1e-15 < max(law.sf(last - 1) for law in case.frozen)
    assert d.pmf_table(1e-3).shape[1] < table.shape[1] < d.pmf_table(1e-300).shape[1]
    for bad in (0.0, 1.0, math.nan, "small"):
        with pytest.raises(ValueError, match="`tolerance` is .*, expected a number above 0 and below 1"):
            d.pmf_table(bad)


def test_probability_table_that_does_not_fit():
    with pytest.raises(
        MemoryError, match="probabilities of 1[0-9]+ counts for each of 1 predictions take .*`tolerance`"
    ):
        Poisson([1e14]).pmf_table()


@pytest.mark.parametrize("mean", [1e-15, 0.5, 40.0, 1e7, 1e13])
@pytest.mark.parametrize("dispersion", [None, 1e-15, 1e-3, 1.0])
def test_quantiles_of_counts_are_the_smallest(mean, dispersion):
    d = Poisson([mean]) if dispersion is None else NegativeBinomial([mean], dispersion)
    q = d.quantile(P)
    assert (np.where(P < 0.5, d.cdf(q)[0] >= P, 1 - d.cdf(q)[0] <= (1 - P) * (1 + 1e-12))).all()
    inside = (q > 0) & (q < 1e14)
    assert (d.cdf(np.maximum(q - 1, 0))[inside] < np.broadcast_to(P, q.shape)[inside] + 1e-12).all()
    assert (q[:, 1:] >= q[:, :-1]).all()


@pytest.mark.parametrize(
    "d",
    [
        Poisson([1e-9, 0.7, 30.0, 5000.0, 3e9, 1e13]),
        NegativeBinomial([1e-9, 0.7, 30.0, 5000.0, 3e9, 12.0], [1.0, 20.0, 0.3, 1e-12, 1e-6, 500.0]),
    ],
    ids=type,
)
def test_quantiles_of_counts_by_sums_are_those_by_search(d):
    """Draws and Wasserstein points take the sums; neither path's rounding comes near these probabilities."""
    p = (np.arange(128) + 0.5) / 128 + 1e-7
    np.testing.assert_array_equal(d._inverse_cdf(p[None, :]), d.quantile(p))
    far = np.array([2.0**-64, 1e-13, 1 - 1e-10])
    np.testing.assert_allclose(d._inverse_cdf(far[None, :]), d.quantile(far), rtol=0.01, atol=1)


def test_negative_binomial_by_number_and_probability():
    d = NegativeBinomial.from_number_and_probability([3.0, 0.5], [0.25, 0.9])
    law = scipy.stats.nbinom([3.0, 0.5], [0.25, 0.9])
    np.testing.assert_allclose(d.expected_value()[:, 0], law.mean(), rtol=1e-14)
    np.testing.assert_allclose(d.log_density([4, 1]), law.logpmf([4, 1]), rtol=1e-13)


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
def test_mixtures_are_sums_over_their_components(mixture):
    components = mixture.components()
    law = scipy.stats.laplace if components.family == "laplace" else scipy.stats.norm
    weights, loc = components.weights, components.locations[:, :, 0]
    scale = components.scales[:, :, 0] if components.family == "laplace" else np.sqrt(components.scales[:, :, 0])
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-15)
    y = loc[:, :1] + np.array([-2.0, 0.0, 0.3, 8.0]) * scale[:, :1]
    parts = [[law(loc[i, k], scale[i, k]) for k in range(loc.shape[1])] for i in range(3)]
    cdf = [sum(weights[i, k] * part.cdf(y[i]) for k, part in enumerate(parts[i])) for i in range(3)]
    pdf = [sum(weights[i, k] * part.pdf(y[i]) for k, part in enumerate(parts[i])) for i in range(3)]
    np.testing.assert_allclose(mixture.cdf(y), cdf, rtol=1e-13)
    for j in range(y.shape[1]):
        np.testing.assert_allclose(mixture.log_density(y[:, j]), np.log(pdf)[:, j], rtol=1e-12, atol=1e-12)
    mean = np.sum(weights * loc, axis=1)
    second = [sum(w * (p.var() + p.mean() ** 2) for w, p in zip(weights[i], parts[i])) for i in range(3)]
    np.testing.assert_allclose(mixture.expected_value()[:, 0], mean, rtol=1e-14, atol=1e-15)
    # The cancellation in second - mean^2 is here, not in the code.
    np.testing.assert_allclose(mixture.standard_deviation()[:, 0], np.sqrt(second - mean**2), rtol=1e-9)
    q = mixture.quantile(P)
    np.testing.assert_allclose(
        mixture.cdf(q), np.broadcast_to(P, q.shape), rtol=1e-7
    )  # 1e-12 of q = 250, slopes to 1e4
    assert (np.diff(q, axis=1) > 0).all()


def test_mixture_quantile_by_hand():
    """Halves at -1 and 1 are symmetric: the median is 0, to 1e-15 of a scale."""
    d = Ensemble([Normal([-1.0], 0.5), Normal([1.0], 0.5)])
    assert abs(d.quantile(0.5)[0, 0]) <= 1e-15
    # One that has all the weight gives its own quantile.
    d = Mixture([1.0, 0.0], [Laplace([3.0], 2.0), Laplace([-1e9], 1.0)])
    assert d.quantile(0.25)[0, 0] == pytest.approx(3 + 2 * math.log(0.5), rel=1e-12)


def test_multivariate_normal_is_that_of_scipy():
    by_cov = MultivariateNormal(VECTORS, COV)
    by_factor = MultivariateNormal(VECTORS, scale_tril=np.linalg.cholesky(COV))
    y = VECTORS + np.array([0.3, -1.1])
    logs = [scipy.stats.multivariate_normal(m, c).logpdf(at) for m, c, at in zip(VECTORS, COV, y)]
    for d in (by_cov, by_factor):
        np.testing.assert_allclose(d.log_density(y), logs, rtol=1e-13)
        np.testing.assert_allclose(d.scale_tril @ d.scale_tril.swapaxes(1, 2), COV, rtol=1e-14, atol=1e-16)
        np.testing.assert_allclose(d.standard_deviation(), np.sqrt(np.diagonal(COV, axis1=1, axis2=2)), rtol=1e-15)
        np.testing.assert_allclose(d.components().scales[:, 0], COV, rtol=1e-15, atol=1e-16)
    common = MultivariateNormal(VECTORS, COV[0])
    np.testing.assert_array_equal(common.cov, np.broadcast_to(COV[0], (3, 2, 2)))
    mixture = VECTOR["mixture"]
    pdf = [
        sum(0.5 * scipy.stats.multivariate_normal(m + shift, c).pdf(at) for shift in (0, 3))
        for m, c, at in zip(VECTORS, COV, y)
    ]
    np.testing.assert_allclose(mixture.log_density(y), np.log(pdf), rtol=1e-12)


def test_covariances_are_refused_relative_to_their_diagonals():
    """Units say nothing: variances 1e-8 and 1e8, of correlation 0.5."""
    cov = np.array([[1e-8, 0.5], [0.5, 1e8]])
    units = np.diag([1e-4, 1e4])
    found = MultivariateNormal(np.zeros((1, 2)), cov).scale_tril[0]
    np.testing.assert_allclose(found, units @ np.linalg.cholesky([[1, 0.5], [0.5, 1]]), rtol=1e-14)
    with pytest.raises(ValueError, match=r"`cov` has the smallest eigenvalue .* relative to its diagonal"):
        MultivariateNormal(np.zeros((1, 2)), units @ [[1.0, 1.0], [1.0, 1.0]] @ units)


def test_parameters_of_covariances_have_frobenius_distances():
    a, b = MultivariateNormal(VECTORS, COV), MultivariateNormal(VECTORS[::-1], COV[::-1])
    squares = np.sum((VECTORS - VECTORS[::-1]) ** 2, axis=1) + np.sum((COV - COV[::-1]) ** 2, axis=(1, 2))
    np.testing.assert_allclose(np.sum((a.parameters() - b.parameters()) ** 2, axis=1), squares, rtol=1e-14)


@pytest.mark.parametrize("name", ["normal", "laplace"])
def test_wasserstein_points(name):
    """Distances of points against that of quantile functions, by Gauss's rule over logits of probabilities.

    There these are analytic on either side of 0, up to i pi: of 20 nodes in an interval of length 2 the error is of the
    order (pi + (pi^2 + 1)^(1/2))^-40 < 1e-30. Beyond 80 there is exp(-80) of the probability.
    """
    case = NUMBERS[name]
    nodes, gauss = np.polynomial.legendre.leggauss(20)
    logits = (np.arange(1, 80, 2)[:, None] + nodes).reshape(-1)
    tail = scipy.special.expit(-logits)  # both tails have small probabilities, which scipy's laws know
    weights = np.tile(gauss, 40) * tail * scipy.special.expit(logits)
    quantiles = [np.concatenate([law.ppf(tail), law.isf(tail)]) for law in case.frozen]
    points = case.distribution.wasserstein_points()
    for i, j in ((0, 1), (0, 2), (1, 2)):
        expected = math.sqrt(np.sum(np.tile(weights, 2) * (quantiles[i] - quantiles[j]) ** 2))
        assert np.linalg.norm(points[i] - points[j]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_wasserstein_points_of_counts(name):
    """Of 128 quantiles: off by no more than the quantile functions are from being constant in 128 cells."""
    case, counts = NUMBERS[name], np.arange(20_000)
    cdfs = [law.cdf(counts) for law in case.frozen]
    edges = np.unique(np.concatenate([np.arange(129) / 128, *cdfs]))
    p, lengths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    quantiles = [np.searchsorted(cdf, p) for cdf in cdfs]
    centres = [np.searchsorted(cdf, (np.floor(128 * p) + 0.5) / 128) for cdf in cdfs]
    rough = [math.sqrt(np.sum(lengths * (q - c) ** 2)) for q, c in zip(quantiles, centres)]
    points = case.distribution.wasserstein_points()
    for i, j in ((0, 1), (0, 2), (1, 2)):
        exact = math.sqrt(np.sum(lengths * (quantiles[i] - quantiles[j]) ** 2))
        rule = math.sqrt(np.sum(lengths * (centres[i] - centres[j]) ** 2))
        found = np.linalg.norm(points[i] - points[j])
        assert found == pytest.approx(rule, rel=1e-12)
        assert abs(found - exact) <= rough[i] + rough[j]


def test_wasserstein_points_of_samples():
    rng = np.random.default_rng(5)
    samples = rng.normal(size=(2, 7))
    points = Samples(samples).wasserstein_points()
    cost = (samples[0][:, None] - samples[1][None, :]) ** 2
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    assert np.sum((points[0] - points[1]) ** 2) == pytest.approx(cost[rows, columns].mean(), rel=1e-13)
    assert Samples(samples[:, :, None]).wasserstein_points() is not None
    assert Samples(samples, np.arange(7) / 21).wasserstein_points() is None
    assert SAMPLES["vectors"].wasserstein_points() is None


@pytest.mark.parametrize("weights", [None, np.array([0.0, 0.5, 0.1, 0.0, 0.4, 0.0])])
def test_samples_by_literal_loops(weights):
    rng = np.random.default_rng(1)
    samples = rng.integers(4, size=(20, 6)).astype(float)  # with ties
    d = Samples(samples, weights)
    w = np.full(6, 1 / 6) if weights is None else weights
    for y in (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0):
        expected = [sum(weight for z, weight in zip(row, w) if z <= y) for row in samples]
        np.testing.assert_allclose(d.cdf(np.full(20, y)), expected, rtol=1e-15, atol=1e-300)
    for p in (0.001, 1 / 6, 0.33, 0.5, 2 / 3, 0.9999):
        for q, row in zip(d.quantile(p)[:, 0], samples):
            weight_up_to = {z: sum(v for x, v in zip(row, w) if x <= z) for z in row}
            positive = [z for z, v in zip(row, w) if v > 0]
            assert q == min(z for z in positive if weight_up_to[z] >= p * (1 - 1e-15))
    components = d.components()
    np.testing.assert_allclose(np.sum(components.weights * components.locations[:, :, 0], axis=1), samples @ w)
    np.testing.assert_allclose(d.expected_value()[:, 0], samples @ w)
    variance = (samples**2) @ w - (samples @ w) ** 2
    np.testing.assert_allclose(d.standard_deviation()[:, 0], np.sqrt(np.maximum(variance, 0)), atol=1e-7)


def test_categorical():
    d = Categorical(PROBABILITIES, classes=["a", "b", "c"])
    assert (d.n, d.n_classes, d.event_shape, d.classes) == (3, 3, (), ("a", "b", "c"))
    draws = d.sample(20_000, seed=3)
    share = np.mean(draws[0] == 1)
    assert share == pytest.approx(0.5, abs=4.5 * 0.5 / math.sqrt(20_000))  # 4.5 standard errors
    assert (draws[1] == 1).all() and (draws[2] == 0).all()
    np.testing.assert_array_equal(d.log_density([1, 0, 0]), [math.log(0.5), -math.inf, 0.0])
    binary = Categorical([0.25, 0.5])
    assert binary.n_classes == 2 and binary.take([1]).n == 1
    np.testing.assert_array_equal(binary.parameters(), [[0.75, 0.25], [0.5, 0.5]])


def host_draws(d: Distribution, size: int, seed: int, quasi: bool = False) -> np.ndarray:
    draws = (d.quasi_sample if quasi else d.sample)(size, seed=seed)
    assert tuple(draws.shape) == (d.n, size, *d.event_shape)
    return np.asarray(draws, dtype=float).reshape(d.n, size, d.n_dims)


@everything
def test_draws_have_the_moments(distribution):
    size = 4096
    mean, std = distribution.expected_value(), distribution.standard_deviation()
    draws = host_draws(distribution, size, seed=1)
    # 5 standard errors: a chance below 1e-6 each. That of the variance by the draws' fourth moments.
    assert (np.abs(draws.mean(axis=1) - mean) <= 5 * std / math.sqrt(size) + 1e-12).all()
    squares = (draws - np.asarray(mean)[:, None, :]) ** 2
    error = squares.std(axis=1) / math.sqrt(size)
    assert (np.abs(squares.mean(axis=1) - std**2) <= 5 * error + 1e-12).all()
    np.testing.assert_array_equal(draws, host_draws(distribution, size, seed=1))
    if np.any(std > 0):
        assert (draws != host_draws(distribution, size, seed=2)).any()


@pytest.mark.parametrize("quasi", [False, True])
@pytest.mark.parametrize(
    "distribution", [d for d in ALL.values() if d.event_shape in ((), (1,)) and d.support != "class"], ids=type
)
def test_draws_have_the_distribution(distribution, quasi):
    """Kolmogorov and Smirnov's test of probability integral transforms, randomised where there are atoms."""
    draws = host_draws(distribution, 1000, seed=7, quasi=quasi)[:, :, 0]
    upper = distribution.cdf(draws)
    lower = distribution.cdf(np.nextafter(draws, -np.inf)) if distribution.support == "count" else upper
    if isinstance(distribution, Samples):
        lower = distribution.cdf(draws - 1e-9)
    u = lower + (upper - lower) * np.random.default_rng(0).uniform(size=draws.shape)
    assert scipy.stats.kstest(u, "uniform", axis=1).pvalue.min() > 1e-5


@everything
def test_quasi_draws_have_smaller_errors(distribution):
    """Means over 1024 points: well within the standard error of as many independent draws; any number of them."""
    draws = host_draws(distribution, 1024, 0, quasi=True)
    error = np.abs(draws.mean(axis=1) - distribution.expected_value())
    assert (error <= 0.5 * distribution.standard_deviation() / math.sqrt(1024) + 1e-12).all()
    assert host_draws(distribution, 37, 0, quasi=True).shape[1] == 37


def test_quasi_draws_have_no_bias_in_pairs():
    """Averages over pairs of points of two predictions, over seeds, against E exp(-(Z - Z')^2 / 2) = 3^(-1/2)."""
    d = Normal([0.0, 0.0], 1.0)
    values = []
    for seed in range(200):
        z = d.quasi_sample(8, seed=seed)
        values.append(np.mean(np.exp(-0.5 * (z[0][:, None] - z[1][None, :]) ** 2)))
    error = np.std(values) / math.sqrt(len(values))
    assert np.mean(values) == pytest.approx(3**-0.5, abs=4.5 * error)


class Uniform(Distribution):
    """A user's own: the least that there must be."""

    def __init__(self, low, high):
        self.low, self.high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)

    @property
    def n(self):
        return len(self.low)

    @property
    def event_shape(self):
        return ()

    def take(self, rows):
        return Uniform(self.low[rows], self.high[rows])

    def sample(self, size, *, seed=0):
        u = np.random.default_rng(seed).uniform(size=(self.n, size))
        return self.low[:, None] + (self.high - self.low)[:, None] * u


def test_a_distribution_of_ones_own():
    d = Uniform([0.0, 1.0], [1.0, 5.0])
    np.testing.assert_array_equal(d.quasi_sample(5, seed=2), d.sample(5, seed=2))
    # 1024 draws: 5 standard errors; those of the deviation are less than those of the mean.
    np.testing.assert_allclose(d.expected_value(), [[0.5], [3.0]], atol=5 * 4 / math.sqrt(12 * 1024))
    np.testing.assert_allclose(d.standard_deviation(), np.array([[1.0], [4.0]]) / math.sqrt(12), atol=0.2)
    assert d.components() is None and d.parameters() is None and d.wasserstein_points() is None
    many = Uniform(np.zeros(5000), np.arange(1.0, 5001.0))  # in blocks of rows
    np.testing.assert_allclose(many.expected_value()[:, 0], many.high / 2, rtol=5 / math.sqrt(3 * 1024))
    with pytest.raises(NotImplementedError, match="Distribution has no `sample`; a distribution of your own defines"):
        Distribution().sample(1)


def test_methods_of_ones_own_are_as_they_were_written():
    for name in ("__init__", "take", "sample"):
        assert not hasattr(vars(Uniform)[name], "__wrapped__")


@everything
def test_methods_run_on_the_gpu_of_their_arrays(distribution):
    """Every public method and constructor of a family; a new family that forgets its decorator is found here."""
    families = [
        cls for cls in type(distribution).__mro__ if cls.__module__ not in ("builtins", Distribution.__module__)
    ]
    for cls in families:
        for name, value in vars(cls).items():
            if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
                assert hasattr(value, "__wrapped__"), f"{cls.__name__}.{name}"


@everything
def test_selection_and_pickling(distribution):
    rows = np.array([2, 0, 2])
    for taken, same in (
        (distribution.take(rows), rows),
        (distribution.take(slice(1, None)), slice(1, None)),
        (pickle.loads(pickle.dumps(distribution)), slice(None)),
    ):
        assert type(taken) is type(distribution) and taken.event_shape == distribution.event_shape
        np.testing.assert_array_equal(taken.expected_value(), distribution.expected_value()[same])
        if distribution.components() is not None:
            np.testing.assert_array_equal(taken.components().weights, distribution.components().weights[same])
            np.testing.assert_array_equal(taken.components().locations, distribution.components().locations[same])
        assert taken.sample(2, seed=4).shape == (taken.n, 2, *taken.event_shape)
    for bad in (np.array([True, False, True]), [0.0, 1.0], 1):
        with pytest.raises(TypeError, match=r"`rows` has dtype .*expected a slice or a row of integers"):
            distribution.take(bad)


@everything
def test_fields_and_arrays_cannot_be_changed(distribution):
    for field in fields(distribution):
        with pytest.raises(AttributeError):
            setattr(distribution, field.name, None)
        array = getattr(distribution, field.name)
        if isinstance(array, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                array[:1] = 0


@everything
def test_bad_sizes(distribution):
    for size in (0, -1, 1.0, True, "many"):
        for draw in (distribution.sample, distribution.quasi_sample):
            with pytest.raises((TypeError, ValueError), match="`size` is .*, expected (an integer|at least 1 draw)"):
                draw(size)


def on_device(values: Any) -> Any:
    return array_api_strict.asarray(np.asarray(values, dtype=float), device=array_api_strict.Device("device1"))


DEVICE: dict[str, tuple[Callable[[Callable], Distribution], Any]] = {
    "normal": (lambda a: Normal(a(MEAN), a(SCALE)), MEAN + 1),
    "normal_number": (lambda a: Normal(a(MEAN), 2.0), MEAN + 1),
    "vectors": (lambda a: Normal(a(VECTORS), 2.0), VECTORS + 1),
    "laplace": (lambda a: Laplace(a(MEAN), a(SCALE)), MEAN + 1),
    "multivariate_normal": (lambda a: MultivariateNormal(a(VECTORS), a(COV)), VECTORS + 1),
    "mixture": (lambda a: Mixture(a(WEIGHTS[:, :2] / WEIGHTS[:, :2].sum(axis=1, keepdims=True)),
                                  [Normal(a(MEAN), a(SCALE)), Normal(a(MEAN), 3.0)]), MEAN + 1),
    "ensemble": (lambda a: Ensemble([MultivariateNormal(a(VECTORS), a(COV))] * 2), VECTORS + 1),
    "samples": (lambda a: Samples(a(VECTORS)), None),
    "weighted": (lambda a: Samples(a(VECTORS), a([0.25, 0.75])), None),
    "poisson": (lambda a: Poisson(a(RATE)), np.array([0.0, 3.0, 900.0])),
    "negative_binomial": (lambda a: NegativeBinomial(a(RATE), a(DISPERSION)), np.array([0.0, 3.0, 900.0])),
    "categorical": (lambda a: Categorical(a(PROBABILITIES)), None),
    "power_exponential": (lambda a: PowerExponential(a(MEAN), a(SCALE), 0.7), MEAN + 1),
    "beta": (lambda a: Beta(a(A), a(B)), np.array([0.1, 0.2, 0.3])),
    "dirichlet": (lambda a: Dirichlet(a(RATE[:, None] + A)), np.full((3, 3), 1 / 3)),
}  # fmt: skip


def computed(distribution: Distribution, y: Any) -> dict[str, Any]:
    """What the methods of a distribution return in the library of its parameters."""
    names = ("expected_value", "standard_deviation", "parameters", "wasserstein_points")
    values = {name: getattr(distribution, name)() for name in names}
    values |= {name: getattr(distribution, name)(4, seed=1) for name in ("sample", "quasi_sample")}
    for label, given in (("all", distribution), ("taken", distribution.take([1, 0]))):
        components = given.components()
        if components is not None:
            values |= {f"{label} {part}": getattr(components, part) for part in ("weights", "locations", "scales")}
    return values if y is None else values | {"log_density": distribution.log_density(y)}


@pytest.mark.parametrize("name", DEVICE)
def test_arrays_on_another_device_stay_there(name):
    make, y = DEVICE[name]
    there, here = make(on_device), make(np.asarray)
    values, expected = computed(there, None if y is None else on_device(y)), computed(here, y)
    for method, array in values.items():
        if expected[method] is None:
            assert array is None
            continue
        assert str(array.device) == "array_api_strict.Device('device1')", method
        np.testing.assert_allclose(arrays.to_host(array), expected[method], rtol=1e-13, atol=1e-300)
    if there.event_shape == () and there.support != "class":
        at = np.array([1.0, 2.0, 3.0])
        np.testing.assert_array_equal(there.cdf(at), here.cdf(on_device(at)))
        np.testing.assert_allclose(there.quantile(P), here.quantile(P), rtol=1e-12)


@pytest.mark.parametrize("name", DEVICE)
def test_arrays_of_all_libraries(xp, name):
    make, y = DEVICE[name]
    there, here = make(lambda values: xp.asarray(values, dtype=np.float64)), make(np.asarray)
    assert arrays.is_host(there.expected_value()) == xp.on_host
    np.testing.assert_allclose(arrays.to_host(there.expected_value()), here.expected_value(), rtol=1e-14)
    if xp.backend == "cuda" and name in ("negative_binomial", "beta"):  # by rejection, from NumPy
        with pytest.raises(NotImplementedError, match="independent draws from .* distributions cannot be computed on"):
            there.sample(3, seed=2)
    else:
        np.testing.assert_allclose(arrays.to_host(there.sample(3, seed=2)), here.sample(3, seed=2), rtol=1e-13)
    if y is not None:
        logs = there.log_density(xp.asarray(y, dtype=np.float64))
        np.testing.assert_allclose(arrays.to_host(logs), here.log_density(y), rtol=1e-13)


def test_arrays_are_not_copied_nor_locked():
    mean = np.array([1.0, 2.0])
    d = Normal(mean, 1.0)
    assert np.shares_memory(d.mean, mean) and mean.flags.writeable


def test_tensors_become_numpy():
    torch = pytest.importorskip("torch")
    d = Normal(torch.tensor([0.0, 1.0], requires_grad=True), torch.tensor([1.0, 2.0]))
    assert isinstance(d.mean, np.ndarray) and d.mean.dtype == np.float64
    mixed = Laplace(torch.tensor([0.0, 1.0]), [1.0, 2.0])
    assert isinstance(mixed.sample(2), np.ndarray)


SIGNS = np.array([np.ones((2, 2)), [[1.0, 1.0], [1.0, -1 / 3]], np.ones((2, 2))])  # one matrix is indefinite
WRONG_VALUES: dict[str, Callable[[], Any]] = {
    r"`std\[1\]` is 0, expected a positive standard dev": lambda: Normal([0.0, 1.0], [1.0, 0.0]),
    r"`mean\[1\]` is nan, expected a finite number": lambda: Normal([0.0, np.nan], 1.0),
    r"`mean` has shape \(2,\) and `std` \(3,\)": lambda: Normal([0.0, 1.0], [1.0, 2.0, 3.0]),
    r"`mean` has shape \(\), expected \(n,\), or": lambda: Normal(0.0, 1.0),
    "`mean` is empty, expected at least one prediction": lambda: Normal([], []),
    r"`mean\[0\]` is 1e\+16, expected at most 1e\+15 in size; rescale": lambda: Normal([1e16], [1.0]),
    "`cdf` is for predictions of numbers, these are of": lambda: Normal(VECTORS, 1.0).cdf(VECTORS),
    "`quantile` is for predictions of numbers": lambda: Normal(VECTORS, 1.0).quantile(0.5),
    r"`probability\[1\]` is 1, expected .* below 1": lambda: Normal(MEAN, 1.0).quantile([0.5, 1.0]),
    r"`probability` has shape \(1, 1\), expected a num": lambda: Normal(MEAN, 1.0).quantile([[0.5]]),
    r"`y` has shape \(1,\), expected \(3,\): one tar": lambda: Normal(MEAN, 1.0).log_density([0.0]),
    r"`y` has shape \(1,\), expected \(3,\), or \(3, k\)": lambda: Normal(MEAN, 1.0).cdf([0.0]),
    r"`y\[1\]` is nan, expected a finite number": lambda: Normal(MEAN, 1.0).cdf([0.0, np.nan, 1]),
    r"`scale\[0\]` is -1, expected a positive scale": lambda: Laplace([0.0], [-1.0]),
    r"`loc` has shape \(1, 2\), expected \(n,\)": lambda: Laplace([[0.0, 1.0]], [[1.0, 1.0]]),
    r"`y\[0\]` is 1.9999999999999996, expected a count": lambda: Poisson([1.0]).log_density([2 - 4e-16]),
    r"`std\[0\]` is 9.99999999999999e-16, expected .*at least 1e-15": lambda: Normal([0.0], [9.99999999999999e-16]),
    r"`cov` has shape \(3, 2\).*variances.*Normal": lambda: MultivariateNormal(VECTORS, VECTORS),
    r"`mean` has shape \(3,\), expected \(n, d\); for numbers": lambda: MultivariateNormal(MEAN, COV),
    r"`cov\[1, 1, 1\]` is -1, expected a variance of": lambda: MultivariateNormal(VECTORS, COV * SIGNS),
    "`cov` has the smallest eigenvalue (-?[0-9.e-]+|0) r": lambda: MultivariateNormal(
        VECTORS, [[1.0, 1.0], [1.0, 1.0]]
    ),
    r"`cov\[0, 1\]` is 0.5 and differs from the entry a": lambda: MultivariateNormal(VECTORS, [[1.0, 0.5], [0.4, 1.0]]),
    r"`scale_tril\[0, 1\]` is 0.5, expected ": lambda: MultivariateNormal(VECTORS, scale_tril=[[1.0, 0.5], [0.5, 1.0]]),
    r"`scale_tril\[1, 1\]` is -1, expected ": lambda: MultivariateNormal(VECTORS, scale_tril=[[1.0, 0.0], [0.5, -1.0]]),
    r"`weights\[0\]` sums to 1.1, expected 1 within": lambda: Mixture([0.5, 0.6], [Normal(MEAN, 1.0)] * 2),
    r"`weights\[0, 0\]` is -0.5, expected a weight": lambda: Mixture([-0.5, 1.5], [Normal(MEAN, 1.0)] * 2),
    r"`weights` has shape \(1,\), expected \(3, 2\) or": lambda: Mixture([1.0], [Normal(MEAN, 1.0)] * 2),
    r"`components\[1\]` is Laplace and `componen": lambda: Mixture([0.5, 0.5], [Normal(MEAN, 1.0), Laplace(MEAN, 1.0)]),
    r"`members\[1\]` has 3 predictions of shape \(2,\) an": lambda: Ensemble([Normal(MEAN, 1.0), Normal(VECTORS, 1.0)]),
    r"`members\[1\]` are array_api_strict arrays ": lambda: Ensemble([Normal(MEAN, 1.0), Normal(on_device(MEAN), 1.0)]),
    "`members` is empty": lambda: Ensemble([]),
    r"`samples` has shape \(2,\), expected \(n, S\), or": lambda: Samples([1.0, 2.0]),
    r"`samples\[0, 1\]` is nan, expected a finite number": lambda: Samples([[1.0, np.nan]]),
    r"`weights\[0\]` sums to 0.9, expected 1 within 1e-6": lambda: Samples([[1.0, 2.0]], [0.5, 0.4]),
    "`cdf` is for predictions of numbers": lambda: SAMPLES["vectors"].cdf([0.0] * 3),
    r"`shape\[0\]` is 0.01, expected one from 0.1 to 100; clip": lambda: PowerExponential([0.0], 1.0, 0.01),
    r"`b\[0\]` is 0, expected a positive shape": lambda: Beta([1.0], [0.0]),
    r"`df\[0\]` is 1, expected above 1: there is no mean": lambda: StudentT([1.0], 0.0, 1.0),
    r"`mean_log\[0\]` is 30, .* at most 34.5; rescale": lambda: LogNormal([30.0], [3.0]),
    r"`scale\[0\]` is 1e\+10, more than 1e\+15 over `sh": lambda: Gamma([1e6], 1e10),
    r"`y\[0\]` is 1.5, expected a number from 0 to 1": lambda: Beta([1.0], 2.0).log_density([1.5]),
    r"`alpha` has shape \(2,\), expected \(n, d\) with d >= 2": lambda: Dirichlet([1.0, 2.0]),
    r"`alpha` has shape \(2, 1\)": lambda: Dirichlet([[1.0], [2.0]]),
    r"`alpha\[0, 1\]` is -2, expected a positive concentration": lambda: Dirichlet([[1.0, -2.0]]),
    r"`y\[0\]` sums to 1.1, expected 1 within": lambda: Dirichlet([[1.0, 2.0]]).log_density([[0.5, 0.6]]),
    r"`rate\[1\]` is 0, expected a positive rate": lambda: Poisson([1.0, 0.0]),
    r"`y\[0\]` is 1.5, expected a count": lambda: Poisson([1.0]).log_density([1.5]),
    r"`y\[0\]` is -1, expected a count": lambda: Poisson([1.0]).log_density([-1]),
    r"`dispersion` is 0, expected a pos.*\(for 0 use Poisson\)": lambda: NegativeBinomial([1.0], 0.0),
    r"`dispersion\[0\]` is 1e\+10, more than 1e\+15 over": lambda: NegativeBinomial([1e10], 1e10),
    r"`p\[0\]` is 1, expected a prob": lambda: NegativeBinomial.from_number_and_probability([1.0], [1.0]),
    r"`probabilities\[0\]` sums to 1.1, expected 1": lambda: Categorical([[0.5, 0.6]]),
    r"`classes` has shape \(1,\).*column of `probabilities`": lambda: Categorical([[0.5, 0.5]], ["a"]),
    r"`y\[0\]` is 2, expected the position of": lambda: Categorical([[0.5, 0.5]]).log_density([2]),
    r"`y` has shape \(1,\) and dtype float64": lambda: Categorical([[0.5, 0.5]]).log_density([0.5]),
}
WRONG_TYPES: dict[str, Callable[[], Any]] = {
    "`mean` has dtype <U1, expected real numbers": lambda: Normal(["a"], [1.0]),
    "neither of `cov` and `scale_tril` given.*use Normal": lambda: MultivariateNormal(VECTORS),
    "both of `cov` and `scale_tril` given": lambda: MultivariateNormal(VECTORS, COV, COV),
    "`members` is of type Normal, expected a list of dist": lambda: Ensemble(Normal(MEAN, 1.0)),
    r"`members\[0\]` is of type Samples.*put all samples": lambda: Ensemble([SAMPLES["samples"]]),
}


@pytest.mark.parametrize("message", [*WRONG_VALUES, *WRONG_TYPES])
def test_bad_input(message):
    with pytest.raises(ValueError if message in WRONG_VALUES else TypeError, match=message):
        (WRONG_VALUES | WRONG_TYPES)[message]()


@pytest.mark.grid
def test_the_memory_of_a_table_of_counts_is_all_that_it_takes(monkeypatch):
    """Of two predictions with a large rate the computation takes ten times the table."""
    asked = []
    monkeypatch.setattr(counts, "check_memory", lambda needed, *rest: asked.append(needed))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    Poisson([2e6, 1.0]).pmf_table()
    taken = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert 0.6 * asked[0] < taken <= asked[0]
