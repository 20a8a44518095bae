"""SKCE of predicted distributions against integrals and cases worked out by hand."""

from __future__ import annotations

import math

import pytest
from scipy import integrate, stats

import kcalib
from kcalib.distributions import Normal
from kcalib.kernels import Exponential, Gaussian


def test_normal_by_hand():
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


def test_normal_by_quadrature():
    y, mean, std = [0.3, -1.2], [0.1, 0.5], [0.7, 1.9]
    first, second = (stats.norm(m, s) for m, s in zip(mean, std, strict=True))

    def of(f):
        return integrate.quad(f, -15, 15, epsabs=1e-13, epsrel=1e-13, limit=200)[0]

    def ell(a, b):
        return math.exp(-((a - b) ** 2) / (2 * 0.8**2))

    cross = of(lambda z: first.pdf(z) * of(lambda w: second.pdf(w) * ell(z, w)))
    one = of(lambda z: first.pdf(z) * ell(z, y[1]))
    other = of(lambda w: second.pdf(w) * ell(y[0], w))
    k = math.exp(-math.hypot(0.4, 1.2) / 1.5)
    value = kcalib.skce(y, Normal(mean, std), kernel=Exponential(bandwidth=1.5), target_kernel=Gaussian(bandwidth=0.8))
    assert value == pytest.approx(k * (ell(*y) - one - other + cross), rel=1e-10)
