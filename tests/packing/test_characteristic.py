"""Characteristic functions of predictions against sums, quadrature, and numbers with more digits."""

import mpmath
import numpy as np
import pytest
import scipy.stats

from kcalib._packing.characteristic import centred, centred_mixtures, law_of, shifts
from kcalib.distributions import Beta, Laplace, Mixture, MultivariateNormal, NegativeBinomial, Normal, Poisson, Samples

RNG = np.random.default_rng(3)
LINE = np.array([[0.03], [0.4], [-1.7], [6.0]])
PLANE = RNG.normal(size=(5, 2))
COVARIANCE = np.array([[1.0, 0.6], [0.6, 0.7]])


def of_density(density, mean, frequencies):
    """By the trapezoidal rule on a fine grid, for densities on a line."""
    grid = np.linspace(-40.0, 40.0, 160_001)
    weights = density(grid[:, None]) * (grid[1] - grid[0])
    return np.stack([(np.exp(1j * v * (grid[:, None] - mean)) * weights).sum(0) for v in frequencies], 1)


def of_probabilities(pmf, mean, frequencies):
    counts = np.arange(4000)
    return np.stack([(np.exp(1j * v * (counts[:, None] - mean)) * pmf(counts[:, None])).sum(0) for v in frequencies], 1)


def of_vectors(weights, members, mean, frequencies):
    """Of mixtures of normals of two entries, by Gauss and Hermite's rule."""
    z, w = np.polynomial.hermite_e.hermegauss(80)
    points = np.stack(np.meshgrid(z, z), axis=-1).reshape(-1, 2)
    w = np.outer(w, w).ravel() / (2 * np.pi)
    total = 0
    for weight, (location, covariance) in zip(weights, members, strict=True):
        draws = location[:, None, :] + np.einsum("nij,sj->nsi", np.linalg.cholesky(covariance), points)
        phases = np.einsum("nsi,fi->nsf", draws - mean[:, None, :], frequencies)
        total = total + weight * np.einsum("s,nsf->nf", w, np.exp(1j * phases))
    return total


def found(prediction, frequencies):
    real, imaginary = centred(prediction, prediction.expected_value(), frequencies)
    return 1 + real + 1j * imaginary


def test_normal():
    mean, std = np.array([0.3, -2.0, 5.0]), np.array([0.2, 1.0, 3.0])
    expected = of_density(lambda x: scipy.stats.norm.pdf(x, mean, std), mean, LINE[:, 0])
    np.testing.assert_allclose(found(Normal(mean, std), LINE), expected, atol=1e-12)


def test_laplace():
    loc, scale = np.array([0.3, -2.0]), np.array([0.4, 1.5])
    expected = of_density(lambda x: scipy.stats.laplace.pdf(x, loc, scale), loc, LINE[:, 0])
    np.testing.assert_allclose(found(Laplace(loc, scale), LINE), expected, atol=1e-6)  # the grid's error at the kink


def test_poisson():
    rate = np.array([1e-4, 0.7, 30.0, 900.0])
    expected = of_probabilities(lambda k: scipy.stats.poisson.pmf(k, rate), rate, LINE[:, 0])
    np.testing.assert_allclose(found(Poisson(rate), LINE), expected, atol=1e-12)


@pytest.mark.parametrize("dispersion", [1e-3, 0.5, 4.0])
def test_negative_binomial(dispersion):
    mean = np.array([1e-4, 0.7, 20.0])
    law = scipy.stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))
    expected = of_probabilities(law.pmf, mean, LINE[:, 0])
    np.testing.assert_allclose(found(NegativeBinomial(mean, dispersion), LINE), expected, atol=1e-10)


def test_a_mixture():
    mean = np.array([[0.0, 2.0], [1.0, -1.0], [4.0, 4.0]])
    weights = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]])
    members = [Normal(mean[:, k], [0.5, 1.0, 2.0]) for k in range(2)]
    prediction = Mixture(weights, members)

    def density(x):
        return sum(weights[:, k] * scipy.stats.norm.pdf(x, mean[:, k], members[k].std) for k in range(2))

    expected = of_density(density, prediction.expected_value()[:, 0], LINE[:, 0])
    np.testing.assert_allclose(found(prediction, LINE), expected, atol=1e-12)


def test_vectors():
    means = [RNG.normal(size=(3, 2)) for _ in range(2)]
    covariances = [np.tile(scale * COVARIANCE, (3, 1, 1)) for scale in (0.5, 2.0)]
    prediction = Mixture([0.3, 0.7], [MultivariateNormal(m, c) for m, c in zip(means, covariances, strict=True)])
    members = list(zip(means, covariances, strict=True))
    expected = of_vectors([0.3, 0.7], members, prediction.expected_value(), PLANE)
    np.testing.assert_allclose(found(prediction, PLANE), expected, atol=1e-12)
    independent = Normal(means[0], np.full((3, 2), 0.8))
    diagonal = np.tile(0.64 * np.eye(2), (3, 1, 1))
    expected = of_vectors([1.0], [(means[0], diagonal)], means[0], PLANE)
    np.testing.assert_allclose(found(independent, PLANE), expected, atol=1e-12)


def test_samples():
    samples, weights = RNG.normal(size=(4, 6, 2)), RNG.dirichlet(np.ones(6), 4)
    prediction = Samples(samples, weights)
    phases = np.einsum("nsi,fi->nsf", samples - prediction.expected_value()[:, None, :], PLANE)
    expected = np.einsum("ns,nsf->nf", weights, np.exp(1j * phases))
    np.testing.assert_allclose(found(prediction, PLANE), expected, atol=1e-14)


def test_all_digits_of_what_is_nearly_certain():
    """Predictions that are nearly certain differ from their targets by little."""
    mpmath.mp.dps = 60
    v, size = 1.3, 1e-9
    frequencies, mean = np.array([[v]]), np.array([[0.7]])
    exact = {
        "normal": (Normal([0.7], [size]), mpmath.exp(-((mpmath.mpf(v) * size) ** 2) / 2) - 1),
        "laplace": (Laplace([0.7], [size]), 1 / (1 + (mpmath.mpf(v) * size) ** 2) - 1),
    }
    for prediction, expected in exact.values():
        real, imaginary = centred(prediction, mean, frequencies)
        assert real[0, 0] == pytest.approx(float(expected), rel=1e-14) and imaginary[0, 0] == 0
    phase = mpmath.expj(mpmath.mpf(v))
    rare = {
        "poisson": (Poisson([size]), lambda mean: mpmath.exp(mean * (phase - 1))),
        "negative binomial": (NegativeBinomial([size], 2.0), lambda mean: (1 + 2 * mean * (1 - phase)) ** -0.5),
    }
    for prediction, function in rare.values():
        mean = mpmath.mpf(size)
        residual = 1 - function(mean)  # of the count 0
        residual *= mpmath.expj(-mpmath.mpf(v) * mean)
        mean = np.array([[size]])
        seen, expected = shifts(0 - mean, frequencies.T), centred(prediction, mean, frequencies)
        np.testing.assert_allclose(seen[0] - expected[0], float(residual.real), rtol=1e-13)
        np.testing.assert_allclose(seen[1] - expected[1], float(residual.imag), rtol=1e-13)


def test_shifts():
    differences = np.array([[1e-12], [0.3], [-2.5], [np.pi], [40.0]])
    real, imaginary = shifts(differences, np.array([[1.0, 3.0]]))
    expected = np.exp(1j * differences * np.array([1.0, 3.0]))
    np.testing.assert_allclose(1 + real + 1j * imaginary, expected, atol=1e-14)
    np.testing.assert_allclose(real[0], -0.5e-24 * np.array([1.0, 9.0]), rtol=1e-14)


def test_who_has_one():
    assert law_of(Poisson([1.0])) == law_of(NegativeBinomial([1.0], 1.0)) == "counts"
    assert [law_of(p) for p in (Normal([0.0], 1.0), Laplace([0.0], 1.0))] == ["normal", "laplace"]
    assert law_of(Beta([1.0], [2.0])) is None
    components = Normal([0.0], 1.0).components()
    real, _ = centred_mixtures(components, np.zeros((1, 1)), np.array([[2.0]]))
    assert real[0, 0] == np.expm1(-2.0)
