"""Characteristic functions of predictions against sums, quadrature, and numbers with more digits."""

import mpmath
import numpy as np
import pytest
import scipy.stats
from forecast_problems import FAMILIES

from kcalib._packing.characteristic import centred, centred_mixtures, law_of, shifts
from kcalib.distributions import Beta, Laplace, NegativeBinomial, Normal, Poisson

LINE = np.array([[0.03], [0.4], [-1.7], [6.0]])
PLANE = 0.4 * np.random.default_rng(3).normal(size=(5, 2))


def of_probabilities(pmf, mean, frequencies):
    counts = np.arange(4000)
    return np.stack([(np.exp(1j * v * (counts[:, None] - mean)) * pmf(counts[:, None])).sum(0) for v in frequencies], 1)


def found(prediction, frequencies):
    real, imaginary = centred(prediction, prediction.expected_value(), frequencies)
    return 1 + real + 1j * imaginary


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "ensemble"])
def test_sums_over_nodes(name):
    prediction, nodes, accuracy = FAMILIES[name]
    frequencies = PLANE if prediction.n_dims == 2 else LINE
    means = prediction.expected_value()
    expected = [np.exp(1j * (z - m) @ frequencies.T).T @ w for (z, w), m in zip(nodes, means, strict=True)]
    np.testing.assert_allclose(found(prediction, frequencies), expected, rtol=0, atol=accuracy)


def test_laplace():
    scale = np.array([0.4, 1.5])
    expected = 1 / (1 + (scale[:, None] * LINE[:, 0]) ** 2)
    np.testing.assert_allclose(found(Laplace([0.3, -2.0], scale), LINE), expected, rtol=1e-14)


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
