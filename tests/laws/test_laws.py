"""`kcalib.laws` against closed forms in extended precision, published tables, and moments.

The oracle shares no formula with the inversion integral: weights that occur twice each make a sum of exponential
laws, whose tail is a sum of exponentials by partial fractions, with or without a normal part.
"""

from __future__ import annotations

import functools
import math
import pickle

import mpmath
import numpy as np
import pytest
import scipy.stats
from grid import some
from problems import binomial_bounds
from scipy import stats

from kcalib.laws import ChiSquareMixture, PearsonCurve, chi_square_mixture

DEVIATIONS = np.array([0.0, 0.01, 0.3, 1, 3, 10, 30, 400, 1400])  # how far from the mean, on both sides


def paired_log_tail(weights, x, variance=0.0, digits=900):
    """log P(Q > x) where Q has each of the distinct `weights` twice, and a normal part."""
    with mpmath.workdps(digits):
        x, variance = mpmath.mpf(x), mpmath.mpf(variance)
        return float(mpmath.log(sum(s * exponential_tail(w, x, variance) for w, s in shares(tuple(weights), digits))))


@functools.cache
def shares(weights, digits):
    """Weights, and the shares of exponential laws in the law of their sum."""
    exact = [mpmath.mpf(w) for w in weights]
    return [(w, mpmath.fprod(w / (w - v) for j, v in enumerate(exact) if j != i)) for i, w in enumerate(exact)]


def exponential_tail(weight, x, variance):
    """P(weight E + N > x), with weight E exponential of mean 2 weight and N normal."""
    if weight < 0:
        return 1 - exponential_tail(-weight, -x, variance)
    rate = 1 / (2 * weight)
    if not variance:
        return mpmath.exp(-rate * x) if x > 0 else mpmath.mpf(1)
    deviation = mpmath.sqrt(variance)
    shifted = normal_tail((rate * variance - x) / deviation)
    return normal_tail(x / deviation) + mpmath.exp(rate**2 * variance / 2 - rate * x) * shifted


def normal_tail(z):
    return mpmath.erfc(z / mpmath.sqrt(2)) / 2


def assert_log_tails_close(law, x, expected, upper):
    """Within rounding of logarithms: 4 units in the last place, and of the sums over weights and steps."""
    found = law.logsf(x) if upper else law.logcdf(x)
    assert found == pytest.approx(expected, rel=1e-15, abs=2e-14), x


PAIRED = {
    "two": [2.0, 1.0],
    "five": [1.0, 2.0, 3.0, 4.0, 5.0],
    "geometric": list(0.8 ** np.arange(40)),
    "12 decades": list(10.0 ** -np.arange(13)),
    "close": [1.0, 1.0 + 1e-9, 1.0 - 1e-9],
    "negative": [-1.0, -2.0, -3.0],
    "opposite": [1.0, -1.0],
    "mixed": [1.0, -1.0, 0.5, -0.25, 2.0],
    "mostly negative": [1e-3, -1.0, -0.5, -0.25, -2.0],
    "12 decades mixed": list((-10.0) ** -np.arange(13)),
    "huge": [1e100, 3e100],
    "tiny": [1e-100, -3e-100],
}


@pytest.mark.parametrize("weights", PAIRED.values(), ids=PAIRED)
def test_paired_weights_far_into_both_tails(weights):
    law = ChiSquareMixture(np.repeat(weights, 2))
    deviation = np.sqrt(law.var)
    for x in law.mean + deviation * DEVIATIONS:
        if x < law.support[1]:
            assert_log_tails_close(law, x, paired_log_tail(weights, x), upper=True)
    for x in law.mean - deviation * DEVIATIONS[1:]:
        if x > law.support[0]:
            assert_log_tails_close(law, x, paired_log_tail([-w for w in weights], -x), upper=False)


@pytest.mark.parametrize("share", [1e-20, 1e-6, 1.0, 1e4, 1e12])
@pytest.mark.parametrize("weights", [[1.0, 0.5, 0.2], [1.0, -0.5, 0.2], [-1.0]])
def test_a_normal_part_of_any_size(weights, share):
    law = ChiSquareMixture(np.repeat(weights, 2), share)
    for step in [0.0, 0.3, 1, 3, 10, 30]:
        x = law.mean + step * np.sqrt(law.var)
        if paired_support(weights) or step <= 1:  # beyond the squares' support the oracle needs 1/share digits
            assert_log_tails_close(law, x, paired_log_tail(weights, x, share, digits=400), upper=True)


def paired_support(weights):
    return max(weights) > 0


@pytest.mark.parametrize("dominant", [1.0, -1.0])
def test_one_dominant_weight_and_many_tiny_ones(dominant):
    weights = [dominant, *(1e-4 * (1 + np.arange(25) / 25))]
    law = ChiSquareMixture(np.repeat(weights, 2))
    deviation = np.sqrt(law.var)
    assert_log_tails_close(law, law.mean + deviation, paired_log_tail(weights, law.mean + deviation), upper=True)
    x = law.mean - deviation / 2
    assert_log_tails_close(law, x, paired_log_tail([-w for w in weights], -x), upper=False)


@pytest.mark.parametrize("pvalue", [0.5, 5e-10, 1e-100, 1e-300])
@pytest.mark.parametrize("weights", [[5.0, 3.0, 2.0, 1.0], [1.0, -2.0, 0.5]])
def test_quantiles_of_small_probabilities(weights, pvalue):
    law = ChiSquareMixture(np.repeat(weights, 2))
    x = law.isf(pvalue)
    assert paired_log_tail(weights, x) == pytest.approx(np.log(pvalue), rel=1e-14, abs=1e-13)
    assert law.sf(x) == pytest.approx(pvalue, rel=1e-12)  # 1e-15 |log(1e-300)|
    assert law.cdf(law.ppf(pvalue)) == pytest.approx(pvalue, rel=1e-12)


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 10, 1000, 5000])
def test_equal_weights_have_a_chi_square_law(dof):
    law = ChiSquareMixture([2.0] * dof)
    for x in stats.chi2(dof).isf([0.999, 0.5, 0.1, 1e-3, 1e-100]):
        with mpmath.workdps(50):
            half, z = mpmath.mpf(dof) / 2, mpmath.mpf(x) / 2
            upper = mpmath.gammainc(half, z, regularized=True)
            lower = z**half * mpmath.exp(-z) / mpmath.gamma(half + 1) * mpmath.hyp1f1(1, half + 1, z)
        # x is rounded, and so is 2 x over the largest weight: dof units in the last place of the logarithm
        assert law.logsf(2 * x) == pytest.approx(float(mpmath.log(upper)), rel=1e-14, abs=1e-13)
        assert law.logcdf(2 * x) == pytest.approx(float(mpmath.log(lower)), rel=1e-14, abs=1e-13)


def test_one_weight_down_to_the_smallest_floats():
    law = ChiSquareMixture([3.0])
    x = 10.0 ** -np.arange(2, 300, 30)
    np.testing.assert_allclose(law.cdf(x), np.sqrt(2 * x / 3 / np.pi) * (1 - x / 18), rtol=1e-4)
    np.testing.assert_allclose(law.cdf(x[1:]), np.sqrt(2 * x[1:] / 3 / np.pi), rtol=1e-13)
    np.testing.assert_allclose(law.ppf(law.cdf(x)), x, rtol=1e-12)
    assert 0 <= law.ppf(1e-300) <= 5e-324
    np.testing.assert_allclose(law.cdf([1e-304, 1e-320]), np.sqrt([2e-304 / 3 / np.pi, 2e-320 / 3 / np.pi]), rtol=1e-3)


@pytest.mark.parametrize(
    "weights", some([[0.6, 0.3, 0.1], [1.0, -0.7, 0.2], [3.0, 0.01, 0.01], [1.0]], [0.6, 0.3, 0.1])
)
def test_odd_degrees_of_freedom_by_convolution(weights):
    """One more square, by quadrature over a normal variable of the closed form for two of each weight."""
    paired, single = [0.5, -0.3], weights
    law = ChiSquareMixture([*np.repeat(paired, 2), *single[:1]])
    with mpmath.workdps(25):
        for x in [-3.0, 0.2, 30.0]:

            def integrand(z, x=x):
                tail = sum(s * exponential_tail(w, x - single[0] * z * z, 0) for w, s in shares(tuple(paired), 25))
                return tail * mpmath.exp(-z * z / 2)

            kink = mpmath.sqrt(x / single[0]) if x > 0 else mpmath.mpf(0)
            edges = sorted({mpmath.mpf(0), kink, kink + 2, kink + 6, kink + 14})
            expected = mpmath.quad(integrand, edges) * mpmath.sqrt(2 / mpmath.pi)
            assert law.sf(x) == pytest.approx(float(expected), rel=1e-13), x


def ruben_tail(weights, x, terms):
    """P(Q > x) for positive weights as a mixture of chi-square tails (Ruben 1962); all terms are positive."""
    smallest, half = mpmath.mpf(min(weights)), mpmath.mpf(len(weights)) / 2
    shares = [1 - smallest / w for w in weights]
    rates = [mpmath.fsum(share**r for share in shares) / 2 for r in range(terms)]
    mixing = [mpmath.sqrt(mpmath.fprod(smallest / w for w in weights))]
    for j in range(1, terms):
        mixing.append(mpmath.fsum(rates[j - r] * mixing[r] for r in range(j)) / j)
    z = mpmath.mpf(x) / smallest / 2
    tail, total = mpmath.gammainc(half, z, regularized=True), mpmath.mpf(0)
    step = z**half * mpmath.exp(-z) / mpmath.gamma(half + 1)  # from a degrees of freedom to a + 2
    for j, share in enumerate(mixing):
        total += share * tail
        tail, step = tail + step, step * z / (half + j + 1)
    return total


@pytest.mark.parametrize("pvalue", [0.3, 5e-10, 1e-100])
def test_single_weights_by_a_series_of_chi_square_laws(pvalue):
    weights = [1.0, 0.8, 0.7, 0.65, 0.6]
    law = ChiSquareMixture(weights)
    x = law.isf(pvalue)
    with mpmath.workdps(40):
        expected = ruben_tail(weights, x, terms=100 + int(x))
    assert law.sf(x) == pytest.approx(float(expected), rel=1e-12)  # 4e-15 |log(1e-100)|


# Imhof (1961), table 1: weights, degrees of freedom, x, P(Q > x) to four digits.
IMHOF = [
    ([0.6, 0.3, 0.1], [1, 1, 1], [0.1, 0.7, 2], [0.9458, 0.5064, 0.1240]),
    ([0.6, 0.3, 0.1], [2, 2, 2], [0.2, 2, 6], [0.9936, 0.3998, 0.0161]),
    ([0.6, 0.3, 0.1], [6, 4, 2], [1, 5, 12], [0.9973, 0.4353, 0.0088]),
    ([0.6, 0.3, 0.1], [2, 4, 6], [1, 3, 8], [0.9666, 0.4196, 0.0087]),
]
# Examples of Davies (1980), algorithm AS 155, computed to an accuracy of 1e-4: P(Q < x).
DAVIES = [
    ([6, 3, 1], [1, 1, 1], [1, 7, 20], [0.054213, 0.493555, 0.876027]),
    ([6, 3, 1], [2, 2, 2], [2, 20, 60], [0.006435, 0.600208, 0.983897]),
    ([6, 3, 1, 12, 6, 2], [6, 4, 2, 2, 4, 6], [45, 120, 210], [0.01095, 0.654735, 0.984606]),
    ([30, 1], [1, 10], [5, 25, 100], [0.015392, 0.510819, 0.916340]),
    ([30, 1], [1, 30], [20, 50, 100], [0.017101, 0.566488, 0.871323]),
]


@pytest.mark.parametrize("weights, dof, x, expected", IMHOF)
def test_table_of_imhof(weights, dof, x, expected):
    np.testing.assert_allclose(ChiSquareMixture(np.repeat(weights, dof)).sf(x), expected, atol=1e-4)


@pytest.mark.parametrize("weights, dof, x, expected", DAVIES)
def test_examples_of_davies(weights, dof, x, expected):
    np.testing.assert_allclose(ChiSquareMixture(np.repeat(weights, dof)).cdf(x), expected, atol=1e-4)


def test_normal_part_alone():
    law, x = ChiSquareMixture([], 4.0), np.linspace(-60, 60, 25)
    np.testing.assert_allclose(law.logsf(x), stats.norm(scale=2).logsf(x), rtol=1e-12)
    np.testing.assert_allclose(law.logcdf(x), stats.norm(scale=2).logcdf(x), rtol=1e-12)
    np.testing.assert_allclose(law.ppf([1e-200, 0.3, 0.5]), stats.norm(scale=2).ppf([1e-200, 0.3, 0.5]), atol=1e-13)


def test_far_beyond_where_floats_end():
    law = ChiSquareMixture([2.0, 2.0])
    assert law.logsf(4e5) == pytest.approx(-1e5, rel=1e-15)
    assert law.sf(4e5) == 0.0
    assert ChiSquareMixture([-2.0, -2.0]).logcdf(-4e300) == pytest.approx(-1e300, rel=1e-15)
    assert ChiSquareMixture([1e-300]).logsf(1e300) == -np.inf


def test_ends_of_the_support_and_infinities():
    positive, negative, both = ChiSquareMixture([1.0, 2.0]), ChiSquareMixture([-1.0]), ChiSquareMixture([1.0, -1.0])
    assert positive.support == (0.0, np.inf) and negative.support == (-np.inf, 0.0)
    assert both.support == ChiSquareMixture([1.0], 0.1).support == (-np.inf, np.inf)
    x = [-np.inf, -1.0, 0.0]
    assert positive.cdf(x).tolist() == [0, 0, 0] and positive.sf(x).tolist() == [1, 1, 1]
    assert positive.logcdf(x).tolist() == [-np.inf] * 3 and positive.logsf(x).tolist() == [0, 0, 0]
    assert positive.sf(np.inf) == 0 and positive.cdf(np.inf) == 1
    assert negative.sf([0.0, 1.0, np.inf]).tolist() == [0, 0, 0] and negative.cdf(0.0) == 1
    assert both.sf(0.0) == pytest.approx(0.5, rel=1e-14)
    assert positive.ppf([0, 1]).tolist() == [0, np.inf] and positive.isf([0, 1]).tolist() == [np.inf, 0]
    assert negative.ppf([0, 1]).tolist() == [-np.inf, 0]


def test_larger_tail_is_the_complement():
    law = ChiSquareMixture([1.0, -0.4, 0.3], 0.2)
    x = np.linspace(-8, 20, 57)
    np.testing.assert_allclose(law.cdf(x) + law.sf(x), 1, rtol=1e-15)
    np.testing.assert_allclose(np.exp(law.logcdf(x)), law.cdf(x), rtol=1e-13)
    np.testing.assert_allclose(np.exp(law.logsf(x)), law.sf(x), rtol=1e-13)
    assert np.all(np.diff(law.cdf(x)) > 0)
    np.testing.assert_allclose(law.ppf(law.cdf(x[law.cdf(x) < 0.99])), x[law.cdf(x) < 0.99], rtol=1e-9, atol=1e-12)


def test_random_numbers_and_moments():
    law = ChiSquareMixture([1.0, 1.0, -0.5, 0.0], 0.3)
    n = 20_000
    values = law.rvs((n // 2, 2), rng=5)
    assert values.shape == (n // 2, 2) and isinstance(law.rvs(rng=1), float)
    np.testing.assert_array_equal(values, law.rvs((n // 2, 2), rng=5))
    for probability in (0.05, 0.5, 0.95):
        low, high = binomial_bounds(n, probability)
        assert low <= np.mean(values <= law.ppf(probability)) <= high
    third, fourth = 8 * (1 + 1 - 0.125), 48 * (1 + 1 + 0.0625)
    assert (law.mean, law.var) == pytest.approx((1.5, 2 * 2.25 + 0.3), rel=1e-15)
    assert (law.skewness, law.kurtosis) == pytest.approx((third / 4.8**1.5, fourth / 4.8**2), rel=1e-14)


@pytest.mark.parametrize("law", [ChiSquareMixture([2.0, -1.0, 0.0], 0.5), PearsonCurve(1.0, 2.0, 0.3, 0.4)])
def test_laws_are_plain_values(law):
    law.sf(1.0)
    copy = pickle.loads(pickle.dumps(law))
    assert copy == law and hash(copy) == hash(law) and copy.sf(0.5) == law.sf(0.5)
    for method in (law.sf, law.cdf, law.logsf, law.logcdf, law.isf, law.ppf):
        assert isinstance(method(0.25), float) and isinstance(method(1), float)
        x = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
        assert method(x).shape == (2, 3) and method(np.zeros((0, 2))).shape == (0, 2)
        np.testing.assert_allclose(method(x)[1, 2], method(0.6), rtol=1e-14)
    with pytest.raises(AttributeError):
        law.mean = 3.0


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (([1.0, np.nan],), ValueError, r"`weights\[1\]` is nan"),
        (([np.inf],), ValueError, r"`weights\[0\]` is inf"),
        (([[1.0]],), ValueError, r"shape \(1, 1\), expected \(k,\)"),
        ((1.0,), ValueError, r"shape \(\)"),
        (([1j],), TypeError, "dtype complex128"),
        ((["a"],), TypeError, "expected real numbers"),
        (([1.0], -1.0), ValueError, "`normal_variance` is -1.0"),
        (([1.0], np.nan), ValueError, "`normal_variance` is nan"),
        (([1.0], [1.0]), ValueError, r"`normal_variance` has shape \(1,\)"),
        (([0.0, 0.0],), ValueError, "all `weights` and `normal_variance` are 0"),
        (([],), ValueError, "all `weights` and `normal_variance` are 0"),
        (([1e200],), ValueError, "overflows"),
    ],
)
def test_bad_mixtures(arguments, error, message):
    with pytest.raises(error, match=message):
        ChiSquareMixture(*arguments)


@pytest.mark.parametrize("law", [ChiSquareMixture([1.0]), PearsonCurve(0.0, 1.0, 0.5, 1.0)])
def test_bad_points_and_probabilities(law):
    with pytest.raises(ValueError, match=r"`x\[1\]` is nan"):
        law.sf([0.0, np.nan])
    with pytest.raises(ValueError, match="`x` is nan"):
        law.logcdf(np.nan)
    with pytest.raises(TypeError, match="`x` has dtype"):
        law.cdf("0.3")
    for q in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match=r"`q` is .*, expected probabilities in \[0, 1\]"):
            law.isf(q)
        with pytest.raises(ValueError, match="`q` is"):
            law.ppf(q)


SCIPY_LAWS = {
    "normal": (stats.norm(1, 2), "normal"),
    "exponential": (stats.gamma(1.0), "III"),
    "gamma": (stats.gamma(0.3), None),  # one ulp of the moments decides between I, III and VI
    "gamma 1000": (stats.gamma(1000.0), None),
    "uniform": (stats.uniform(), "I"),
    "beta": (stats.beta(2.0, 5.0), "I"),
    "beta U": (stats.beta(0.3, 0.5), "I"),
    "beta near gamma": (stats.beta(5.0, 1e5), "I"),
    "t": (stats.t(5), "VII"),
    "t near normal": (stats.t(1e6), "VII"),
    "inverse gamma": (stats.invgamma(6.0), None),  # V, or VI or IV beside it
    "beta prime": (stats.betaprime(3.0, 6.0), "VI"),
}


@pytest.mark.parametrize("law, kind", SCIPY_LAWS.values(), ids=SCIPY_LAWS)
def test_pearson_curves_that_have_names(law, kind):
    curve = PearsonCurve(*(float(moment) for moment in law.stats("mvsk")))
    assert kind in (None, curve.kind)
    # Far enough from a finite end that its place, which is rounded, does not matter.
    x = law.isf([1e-3, 0.01, 0.3, 0.5, 0.7, 0.99])
    np.testing.assert_allclose(curve.sf(x), law.sf(x), rtol=1e-10)
    np.testing.assert_allclose(curve.cdf(x), law.cdf(x), rtol=1e-9)
    np.testing.assert_allclose(curve.isf([0.3, 0.01]), law.isf([0.3, 0.01]), rtol=1e-10)


@pytest.mark.parametrize(
    "skewness, kurtosis",
    [*((0.5, 1.0), (-1.5, 5.5)), *(pytest.param(*m, marks=pytest.mark.grid) for m in ((2.0, 10.0), (0.1, 0.03)))],
)
@pytest.mark.parametrize("x", [*(pytest.param(x, marks=pytest.mark.grid) for x in (0.5, 4.0)), -40.0, 1e6])
def test_pearson_type_iv_by_its_usual_parameters(skewness, kurtosis, x):
    """Density (1 + z^2)^-m exp(-nu atan z), z = (x - position) / scale (Heinrich 2004), by quadrature."""
    curve = PearsonCurve(0.0, 1.0, skewness, kurtosis)
    assert curve.kind == "IV"
    with mpmath.workdps(30):
        squared, b = mpmath.mpf(skewness) ** 2, mpmath.mpf(kurtosis) + 3
        r = 6 * (b - squared - 1) / (2 * b - 3 * squared - 6)
        root = mpmath.sqrt(16 * (r - 1) - squared * (r - 2) ** 2)
        m, nu = 1 + r / 2, -r * (r - 2) * skewness / root
        scale, position = root / 4, -(r - 2) * skewness / 4

        def density(z):
            return mpmath.exp(-m * mpmath.log(1 + z * z) - nu * mpmath.atan(z))

        z, centre = (x - position) / scale, -position / scale
        powers = [mpmath.mpf(10) ** (mpmath.mpf(k) / 2) for k in (*range(-2, 18), 24)]
        steps = [power / scale for power in powers]
        upwards = mpmath.quad(density, [centre, *(centre + step for step in steps)])
        downwards = mpmath.quad(density, [centre, *(centre - step for step in steps)])
        tail = mpmath.quad(density, [z, *(z + step * mpmath.sign(x) for step in steps)])
        total = upwards - downwards
        expected = float(mpmath.log(abs(tail) / total))
    assert (curve.logsf(x) if x > 0 else curve.logcdf(x)) == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(
    "moments",
    [(1.0, 4.0, 0.0, 0.0), (2.0, 0.5, -0.5, 0.2), (5.0, 2.0, -0.7, 1.2),
     *(pytest.param((0.0, 1.0, *m), marks=pytest.mark.grid) for m in ((1.0, 1.5), (1.0, 1.7), (0.4, -1.3), (0.0, 1.0))),
    ],
)  # fmt: skip
def test_pearson_moments_by_quadrature(moments):
    """E Z^k by parts, k times the integral of z^(k-1) (P(Z > z) + (-1)^k P(Z < -z)), in panels that shrink."""
    curve = PearsonCurve(*moments)
    deviation = np.sqrt(moments[1])
    ends = [abs(end - moments[0]) / deviation for end in curve.support]
    edges = {0.0, *2.0 ** np.arange(-3, 14)}
    edges |= {end * (1 - sign * 4.0**-j) for end in ends if end < 1e4 for j in range(1, 13) for sign in (0, 1, -1)}
    edges = np.sort([edge for edge in edges if edge < 1.1 * max(ends)])
    nodes, weights = np.polynomial.legendre.leggauss(12)
    z = ((edges[1:] + edges[:-1]) / 2 + np.outer(nodes, np.diff(edges) / 2)).ravel()
    weights = np.outer(weights, np.diff(edges) / 2).ravel()
    upper, lower = curve.sf(moments[0] + z * deviation), curve.cdf(moments[0] - z * deviation)
    found = [k * weights @ (z ** (k - 1) * (upper + (-1) ** k * lower)) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(found, [0, 1, moments[2], moments[3] + 3], atol=1e-8)


# On the borders between types: I and VI (gamma), IV and VI (inverse gamma), symmetric, normal.
BORDERS = [(1.0, 1.5), (0.2, 0.06), (1e-6, 1.5e-12), (3.4641016151377544, 42.0), (0.0, -0.5), (0.0, 2.0), (0.0, 0.0)]


@pytest.mark.parametrize("skewness, kurtosis", BORDERS)
def test_pearson_curves_are_continuous_across_borders(skewness, kurtosis):
    x, centre = np.array([-1.2, -0.3, 0.0, 0.5, 2.0, 8.0]), PearsonCurve(0.0, 1.0, skewness, kurtosis)
    for step in (1e-4, 1e-8, 1e-12, 1e-16):
        for along, across in [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1)]:
            near = PearsonCurve(0.0, 1.0, skewness + along * step, kurtosis + across * step)
            # The derivatives of these logarithms are below 400; 2e-13 is rounding.
            np.testing.assert_allclose(near.logsf(x), centre.logsf(x), atol=400 * step + 2e-13, rtol=0)


def test_pearson_curves_far_into_the_tails():
    heavy, law = PearsonCurve(*(float(m) for m in stats.t(6).stats("mvsk"))), stats.t(6)
    assert heavy.logsf(1e40) - heavy.logsf(1e30) == pytest.approx(-60 * np.log(10), rel=1e-13)
    # P(T > x) is 33.75 x^-6 in the far tail, of which SciPy 1.13 has another quantile.
    np.testing.assert_allclose(heavy.isf([1e-15, 1e-200]), [law.isf(1e-15), 33.75e200 ** (1 / 6)], rtol=1e-9)
    exponential = PearsonCurve(1.0, 1.0, 2.0, 6.0)
    np.testing.assert_allclose(exponential.logsf([10.0, 1e5]), [-10.0, -1e5], rtol=1e-13)
    mirrored = PearsonCurve(-1.0, 1.0, -2.0, 6.0)
    np.testing.assert_allclose(mirrored.logcdf([-10.0, -1e5]), [-10.0, -1e5], rtol=1e-13)
    assert mirrored.support == pytest.approx((-np.inf, 0.0), abs=1e-15)
    normal = PearsonCurve(0.0, 1.0, 0.0, 0.0)
    assert normal.logsf(1e3) == pytest.approx(stats.norm.logsf(1e3), rel=1e-14)


def test_pearson_curve_of_a_mixture_is_near_it():
    law = ChiSquareMixture([0.5, 0.3, 0.2, 0.1, 0.1])
    curve = PearsonCurve(law.mean, law.var, law.skewness, law.kurtosis)
    assert curve.kind == "VI" and curve.var == law.var
    np.testing.assert_allclose(curve.sf([0.5, 2.0, 4.0]), law.sf([0.5, 2.0, 4.0]), rtol=0.02)
    equal = ChiSquareMixture([1.0] * 4)
    gamma = PearsonCurve(equal.mean, equal.var, equal.skewness, equal.kurtosis)
    np.testing.assert_allclose(gamma.logsf([1.0, 10.0, 100.0]), equal.logsf([1.0, 10.0, 100.0]), rtol=1e-12)


@pytest.mark.parametrize(
    "moments, error, message",
    [
        ((0.0, 0.0, 0.0, 0.0), ValueError, "`variance` is 0.0"),
        ((0.0, -1.0, 0.0, 0.0), ValueError, "`variance` is -1.0"),
        ((0.0, 1.0, 1.0, -1.0), ValueError, "expected more than skewness"),
        ((0.0, 1.0, 0.0, -2.0), ValueError, "expected more than skewness"),
        ((np.nan, 1.0, 0.0, 0.0), ValueError, "`mean` is nan"),
        ((0.0, np.inf, 0.0, 0.0), ValueError, "`variance` is inf"),
        ((0.0, 1.0, [0.0], 0.0), ValueError, "`skewness` is"),
        ((0.0, 1.0, 0.0, "a"), TypeError, "`kurtosis` has dtype"),
    ],
)
def test_impossible_moments(moments, error, message):
    with pytest.raises(error, match=message):
        PearsonCurve(*moments)


@pytest.mark.slow
def test_random_mixtures_agree_with_a_finer_rule(monkeypatch):
    """No weights, however spread, defeat the contour: steps of another length give the same."""
    import kcalib.laws.chi_square_mixture as module

    rng = np.random.default_rng(0)
    for _ in range(1000):
        size = int(rng.choice([1, 2, 3, 5, 10, 40, 200]))
        weights = 10.0 ** rng.uniform(-rng.choice([0.1, 2, 6, 14]), 0, size) * rng.choice([-1, 1], size)
        weights = np.abs(weights) if rng.random() < 0.5 else weights
        law = ChiSquareMixture(weights, rng.choice([0, 1]) * 10.0 ** rng.uniform(-12, 12))
        steps = np.concatenate([rng.normal(size=3) * 3, 10.0 ** rng.uniform(-8, 6, 3) * rng.choice([-1, 1], 3), [0]])
        x = law.mean + steps * np.sqrt(law.var)
        found = law.logsf(x)
        with monkeypatch.context() as patch:
            patch.setattr(module, "FIRST_STEP", 0.11)
            patch.setattr(module, "AGREEMENT", 1e-11)
            np.testing.assert_allclose(found, law.logsf(x), rtol=1e-12, atol=1e-12)


# -- degrees of freedom ------------------------------------------------------------------------


def test_degrees_of_freedom_are_repeated_weights():
    law = ChiSquareMixture([0.7, -0.2, 0.1], 0.3, degrees_of_freedom=[3, 1, 4])
    repeated = ChiSquareMixture([0.7] * 3 + [-0.2] + [0.1] * 4, 0.3)
    x = np.array([-5.0, 0.0, 1.0, 3.0, 40.0, 900.0])
    assert np.allclose(law.logsf(x), repeated.logsf(x), rtol=1e-14, atol=0)
    assert np.allclose(law.logcdf(x), repeated.logcdf(x), rtol=1e-13, atol=0)
    for name in ("mean", "var", "skewness", "kurtosis"):
        assert getattr(law, name) == pytest.approx(getattr(repeated, name), rel=1e-14)
    assert ChiSquareMixture([2.0, 3.0], degrees_of_freedom=2).degrees_of_freedom == (2.0, 2.0)
    draws = law.rvs(20_000, rng=0)
    assert abs(draws.mean() - law.mean) < 5 * math.sqrt(law.var / 20_000)


def test_many_degrees_of_freedom_are_a_normal_part(monkeypatch):
    """With a mean beyond x, so that exp(-s x) does not say where the path has to bend; the rest adds 8e-6."""
    paths, trapezoidal = [], chi_square_mixture._trapezoidal
    monkeypatch.setattr(chi_square_mixture, "_trapezoidal", lambda *args: paths.append(args) or trapezoidal(*args))
    weights = [0.190508, 0.047783, 0.039239, 0.038287, 0.034607, 0.032875, 0.023626, 0.019985]
    many, w = 330437.8, -9.9846e-5
    law = ChiSquareMixture([*weights, w], degrees_of_freedom=[1] * 8 + [many])
    normal = ChiSquareMixture(weights, 2 * many * w**2)
    assert law.logsf(-14.2738) == pytest.approx(normal.logsf(-14.2738 - many * w), abs=1e-5)
    paths.clear()
    assert law.logsf(-14.2738) == pytest.approx(-50.94, abs=0.01)
    assert len(paths) == 1  # the first one is not outgrown


def test_a_path_that_is_outgrown_bends_the_other_way(monkeypatch):
    """Without a warning of overflow; beside the integral along a line, in extended precision."""
    weights, freedom = [0.8, -0.03], [1.0, 62_000.5]
    law = ChiSquareMixture(weights, degrees_of_freedom=freedom)
    x, paths, trapezoidal = law.mean + 30 * law.var**0.5, [], chi_square_mixture._trapezoidal

    def noted(*args):
        paths.append(args)
        return trapezoidal(*args)

    monkeypatch.setattr(chi_square_mixture, "_trapezoidal", noted)
    found = law.logsf(x)
    assert len(paths) == 2
    with mpmath.workdps(25):
        parts = [(mpmath.mpf(w), mpmath.mpf(d)) for w, d in zip(weights, freedom, strict=True)]

        def exponent(s):  # of E exp(s Q), times exp(-s x)
            return -s * x - sum(d * mpmath.log(1 - 2 * s * w) for w, d in parts) / 2

        slope, ends = (lambda s: sum(d * w / (1 - 2 * s * w) for w, d in parts) - x), (1e-6, 0.625 - 1e-9)
        saddle = mpmath.findroot(slope, ends, solver="bisect", tol=1e-20)
        width, height = sum(2 * d * (w / (1 - 2 * saddle * w)) ** 2 for w, d in parts) ** -0.5, exponent(saddle)

        def on_line(t):
            s = mpmath.mpc(saddle, t)
            return mpmath.re(mpmath.exp(exponent(s) - height) / s)

        line = mpmath.quad(on_line, [0, *(width * 2**k for k in range(12))])
        assert found == pytest.approx(float(height + mpmath.log(line / mpmath.pi)), rel=1e-13)


@pytest.mark.parametrize("freedom", [1.0, 1.7, 23.4, 1e4 + 0.5])
def test_degrees_of_freedom_need_not_be_whole(freedom):
    law = ChiSquareMixture([1.5], degrees_of_freedom=freedom)
    gamma = scipy.stats.gamma(freedom / 2, scale=3.0)
    for q in (1e-200, 1e-20, 1e-3, 0.5, 0.999):
        x = gamma.isf(q)
        assert law.sf(x) == pytest.approx(gamma.sf(x), rel=1e-11)
        assert law.cdf(gamma.ppf(q)) == pytest.approx(gamma.cdf(gamma.ppf(q)), rel=1e-11)


@pytest.mark.parametrize(
    ("freedom", "message"),
    [
        ([1, 2, 3], r"`degrees_of_freedom` has shape \(3,\), expected \(\) or \(2,\)"),
        ([1, 0.5], r"`degrees_of_freedom\[1\]` is 0.5, expected finite numbers >= 1"),
        (np.inf, "`degrees_of_freedom` is inf, expected finite numbers >= 1"),
    ],
)
def test_degrees_of_freedom_that_are_none(freedom, message):
    with pytest.raises(ValueError, match=message):
        ChiSquareMixture([1.0, 2.0], degrees_of_freedom=freedom)


@pytest.mark.parametrize("x", [1e7, 1.5e7, 1e9, 1e20, 1e69])
def test_pearson_tails_that_have_no_digits_left(x):
    """By the leading terms of the normal and the gamma tail, of which the next are below an ulp."""
    normal = -x * x / 2 - np.log(x) - np.log(2 * np.pi) / 2
    assert PearsonCurve(0.0, 1.0, 0.0, 0.0).logsf(x) == pytest.approx(normal, rel=1e-13)
    with mpmath.workdps(60):
        shape, value = mpmath.mpf(16), 16 + 4 * mpmath.mpf(x)  # of skewness 1/2
        gamma = (shape - 1) * mpmath.log(value) - value - mpmath.loggamma(shape)
    assert PearsonCurve(0.0, 1.0, 0.5, 0.375).logsf(x) == pytest.approx(float(gamma), rel=1e-13)


@pytest.mark.parametrize("kurtosis", [0.375, 0.4, 1.0, 6.0])
def test_pearson_tails_go_on_to_the_largest_floats(kurtosis):
    curve = PearsonCurve(0.0, 1.0, 0.5, kurtosis)
    found = curve.logsf(10.0 ** np.array([60, 69, 71, 100, 160, 300]))
    assert np.all(np.isfinite(found)) and np.all(np.diff(found[:2]) < 0) and np.all(found[2:] == found[2])
    assert found[2] <= found[1]


def test_an_inversion_that_does_not_converge_says_where(monkeypatch):
    monkeypatch.setattr(chi_square_mixture, "GROWTH", 0.0)
    with pytest.raises(ArithmeticError, match="the inversion integral did not converge at s = "):
        ChiSquareMixture([1.0, 0.5], 0.1).logsf(3.0)
