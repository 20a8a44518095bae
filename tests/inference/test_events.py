"""A warning where the predictions leave too few events open for a law; levels, where there is none."""

from __future__ import annotations

import contextlib
import re
import warnings

import mpmath
import numpy as np
import pytest
from hard_laws import LAWS
from problems import binomial_bounds

import kcalib
from kcalib import methods
from kcalib.inference.gamma import log_gamma_tail
from kcalib.kernels import Exponential

KERNEL = Exponential(bandwidth=0.3)
CONDITIONAL = {
    "gamma": methods.Gamma(),
    "multiplier": methods.Multiplier(99),
    "multiplier, Gaussian": methods.Multiplier(99, "gaussian"),
    "spectrum": methods.Spectrum(),
    "pearson": methods.Pearson(),
    "block": methods.Block(),
    "linear": methods.Linear(),
    "cme": methods.CME(reference="conditional", locations=4),
}
PUBLISHED = {
    "gamma": methods.Gamma("residuals"),
    "multiplier": methods.Multiplier(99, reference="residuals"),
    "spectrum": methods.Spectrum(reference="residuals"),
    "pearson": methods.Pearson(reference="residuals"),
    "bootstrap": methods.Bootstrap(99),
    "block": methods.Block(variance="sample"),
    "block, second moment": methods.Block(variance="second_moment"),
    "linear": methods.Linear("sample"),
    "cme, F": methods.CME(reference="F", locations=4),
    "cme, chi2": methods.CME(reference="chi2", locations=4),
}
VALID = {
    "exact": methods.Exact(99),
    "distribution_free": methods.DistributionFree(),
    "cme": methods.CME(n_resamples=99),
    "consistency": methods.Consistency("unbiased", n_resamples=99, resample_predictions=False),
}
HARD = ("saturated, 1e-8..1e-4", "rare, Beta(.1, 100)")


def few(name: str, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    return LAWS[name].calibrated(np.random.default_rng(3), n)


def many(n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    p = rng.uniform(0.1, 0.9, size=n)
    return (rng.uniform(size=n) < p).astype(int), p


@pytest.mark.parametrize("method", [*CONDITIONAL.values(), *PUBLISHED.values()], ids=str)
@pytest.mark.parametrize("law", HARD)
def test_few_events_are_warned_of(law, method):
    y, p = few(law)
    message = "uncertain events, and it needs .*method='exact' and"
    with warnings.catch_warnings(record=True) as found, contextlib.suppress(ValueError):
        # "F" and "chi2" refuse locations that no sample varies at.
        warnings.simplefilter("always")
        kcalib.calibration_test(y, p, method=method, seed=0)
    assert [one.category for one in found] == [kcalib.AntiConservativeWarning]
    assert re.search(message, str(found[0].message))


@pytest.mark.parametrize("method", VALID.values(), ids=str)
@pytest.mark.parametrize("law", HARD)
def test_valid_tests_do_not_warn(law, method):
    y, p = few(law)
    kcalib.calibration_test(y, p, method=method, seed=0, kernel=KERNEL)


@pytest.mark.parametrize("method", CONDITIONAL.values(), ids=str)
def test_many_events_are_not_warned_of(method):
    y, p = many(1200)
    kcalib.calibration_test(y, p, method=method, seed=0, kernel=KERNEL)


@pytest.mark.parametrize("method", [one for one in PUBLISHED.values() if one.name != "cme"], ids=str)
def test_published_forms_are_quiet_where_they_hold(method):
    y, p = many()
    kcalib.calibration_test(y, p, method=method, seed=0, kernel=KERNEL)


def test_pairs_that_seldom_agree_are_warned_of():
    """Of 100 classes one pair in a hundred has equal labels: thirty pairs have about .3 such events."""
    y, p = few("Dir(1), m = 100")
    with pytest.warns(kcalib.AntiConservativeWarning, match=r"about 0\.\d+ pairs of samples that agree, and"):
        kcalib.calibration_test(y, p, method="linear")
    kcalib.calibration_test(y, p, method="block")


def test_the_warning_is_of_the_predictions_alone():
    _, p = few(HARD[0])
    for label in (0, 3):
        with pytest.warns(kcalib.AntiConservativeWarning, match=r"about 0\.00\d+ uncertain events"):
            kcalib.calibration_test(np.full(len(p), label), p, method="gamma")


def test_the_warning_points_at_the_line_of_the_user():
    y, p = few(HARD[1])
    with pytest.warns(kcalib.AntiConservativeWarning) as found:
        kcalib.calibration_test(y, p, method="block")
    assert found[0].filename == __file__


def test_rare_counts_are_warned_of():
    rng = np.random.default_rng(5)
    prediction = kcalib.distributions.Poisson(10 ** rng.uniform(-6, -3, size=50))
    with pytest.warns(kcalib.AntiConservativeWarning):
        kcalib.calibration_test(
            np.zeros(50, int),
            prediction,
            method="gamma",
            kernel=Exponential(bandwidth=1.0, metric="wasserstein"),
            target_kernel=kcalib.kernels.Gaussian(bandwidth=1.0),
        )


LEVELS = {
    "gamma": methods.Gamma(),
    "multiplier": methods.Multiplier(19),
    "block": methods.Block(),
    "linear": methods.Linear(),
    "cme": methods.CME(n_resamples=19),
}


@pytest.mark.parametrize(
    "law",
    [
        "rare, Beta(.1, 100)",
        pytest.param("20 distinct rows", marks=pytest.mark.grid),
        pytest.param("saturated, 1e-6..1e-3", marks=pytest.mark.grid),
        pytest.param("n = 20", marks=pytest.mark.grid),
    ],
)
@pytest.mark.parametrize("name", LEVELS)
def test_levels_of_default_forms(law, name):
    """At most their level; where a warning is given nothing is claimed but that at 0.05 they do not go wild."""
    rng, count, n = np.random.default_rng(6), 16, 100
    pvalues, warned = [], False
    for seed in range(count):
        y, p = LAWS[law].calibrated(rng, min(n, LAWS[law].n))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            pvalues.append(kcalib.calibration_test(y, p, method=LEVELS[name], seed=seed).pvalue)
        warned = warned or bool(found)
    assert np.mean(np.array(pvalues) <= 0.05) <= binomial_bounds(count, 0.1 if warned else 0.05)[1]
    assert warned == (name != "cme" and law != "20 distinct rows")


@pytest.mark.parametrize("skewness", [0.0, 0.3, 0.999, 1.001, 3.0, 40.0, 3e3, 1e6])
def test_the_tail_of_the_gamma_law(skewness):
    """Without bound on the skewness, which few events do not have, and into the far tail."""
    for x in (-1e3, -1e-4, 0.0, 1.0, 7.0, 50.0):
        found = log_gamma_tail(2.0 * x, 4.0, skewness)
        with mpmath.workdps(40):
            if skewness == 0:
                expected = mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2)
            else:
                shape = 4 / mpmath.mpf(skewness) ** 2
                at = shape + mpmath.sqrt(shape) * x
                expected = mpmath.log(mpmath.gammainc(shape, at, regularized=True)) if at > 0 else mpmath.mpf(0)
        assert found == pytest.approx(float(expected), rel=1e-7, abs=1e-12)


def test_published_forms_go_wrong_where_they_warn():
    """As measured for the documentation: calibrated saturated predictions are rejected nearly always."""
    rng, rejections = np.random.default_rng(7), dict.fromkeys(("gamma", "multiplier", "block"), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcalib.AntiConservativeWarning)
        for seed in range(20):
            y, p = LAWS["saturated, 1e-8..1e-6"].calibrated(rng, 200)
            for name in rejections:
                found = kcalib.calibration_test(y, p, method=PUBLISHED[name], seed=seed)
                rejections[name] += found.pvalue <= 0.05
    assert min(rejections.values()) >= 15, rejections
