"""Calibration given further variables: blocks by hand, levels, and errors that predictions alone do not show."""

import numpy as np
import pytest
from problems import binomial_bounds

import kcalib
from kcalib.distributions import Normal
from kcalib.methods import Adaptive

QUICK = Adaptive(n_resamples=99, n_columns=16)


def make(seed, n=300):
    rng = np.random.default_rng([3, seed])
    p = rng.dirichlet(np.ones(3), size=n)
    given = {"sex": rng.choice(["f", "m"], n), "age": rng.uniform(20, 80, n)}
    return rng, np.minimum((p.cumsum(axis=1) <= rng.uniform(size=(n, 1))).sum(axis=1), 2), p, given


@pytest.mark.parametrize("clusters", [None, np.arange(300) // 3], ids=["alone", "clusters"])
def test_calibrated_models_keep_the_level(clusters):
    rejections = 0
    for seed in range(40):
        _, y, p, given = make(seed)
        options = {"given": given, "clusters": clusters, "method": QUICK, "seed": seed, "threads": 1}
        rejections += kcalib.calibration_test(y, p, **options).pvalue <= 0.05 + 1e-9
    assert rejections / 40 <= binomial_bounds(40, 0.05, 1e-3)[1]


@pytest.mark.parametrize("clusters", [None, np.arange(1000) // 2], ids=["alone", "clusters"])
def test_an_error_that_cancels_over_a_variable_is_seen(clusters):
    rng = np.random.default_rng(0)
    sex, p = rng.choice(["f", "m"], 1000), rng.uniform(0.2, 0.8, 1000)
    y = rng.uniform(size=1000) < p + np.where(sex == "f", 0.15, -0.15)
    options = {"clusters": clusters, "seed": 0}
    assert kcalib.calibration_test(y, p, **options).pvalue > 0.05
    for given in ({"sex": sex}, {"sex": sex, "other": rng.uniform(size=1000)}):
        result = kcalib.evaluate(y, p, given=given, **options)
        assert result.miscalibrated
        assert result.test.finding in (
            "class 1 predicted too rarely where sex is f",
            "class 1 predicted too often where sex is m",
        )
        assert "where sex is" in result.verdict


def test_blocks_by_hand():
    rng, y, p, given = make(0)
    w = rng.exponential(size=300)
    w /= np.sqrt(np.mean(w**2))
    result = kcalib.calibration_test(y, p, sample_weight=w, given=given, method=QUICK, seed=0)
    statistics = {block.name: block.statistic for block in result.blocks}
    assert list(statistics)[-4:] == ["given sex", "temperature given sex", "given age", "temperature given age"]
    edges = np.quantile(given["age"], np.arange(1, 10) / 10, method="higher")
    logs = np.log(p) - np.sum(p * np.log(p), axis=1, keepdims=True)
    for name, category in (("sex", given["sex"] == "m"), ("age", np.searchsorted(edges, given["age"], side="right"))):
        shares = temperature = 0.0
        for value in np.unique(category):
            here = category == value
            sums = np.sum((w[:, None] * (np.eye(3)[y] - p))[here], axis=0)
            shares += np.sum(sums**2 / np.sum((w[:, None] ** 2 * p * (1 - p))[here], axis=0))
            score = np.sum((w * logs[np.arange(300), y])[here])
            temperature += score**2 / np.sum((w**2 * np.sum(p * logs**2, axis=1))[here])
        assert statistics[f"given {name}"] == pytest.approx(shares)
        assert statistics[f"temperature given {name}"] == pytest.approx(temperature)


def test_blocks_share_the_draws_of_the_others():
    """With one category the blocks are those of all samples, draw for draw."""
    _, y, p, _ = make(1)
    blocks = kcalib.calibration_test(y, p, given=["all"] * 300, method=QUICK, seed=0).blocks
    by_name = {block.name: block for block in blocks}
    for whole, part in (("bias", "given variable"), ("temperature", "temperature given variable")):
        assert by_name[part].statistic == pytest.approx(by_name[whole].statistic)
        assert by_name[part].pvalue == by_name[whole].pvalue


def test_missing_values_are_a_category():
    _, y, p, given = make(2)
    age = np.where(np.arange(300) < 100, np.nan, given["age"])
    y[:100] = 0
    result = kcalib.calibration_test(y, p, given={"age": age}, seed=0)
    assert next(b for b in result.blocks if b.name == "given age").finding.endswith("where age is missing")


def test_what_is_refused():
    y, p, x = [0, 1, 1, 0], [0.4, 0.6, 0.5, 0.5], [1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"`given\['x'\]` has the shape \(3,\), expected \(4,\)"):
        kcalib.calibration_test(y, p, given={"x": x[:3]})
    with pytest.raises(ValueError, match="`given` has no variables"):
        kcalib.calibration_test(y, p, given={})
    with pytest.raises(ValueError, match="`given` has 101 different values, expected at most 100; cut"):
        kcalib.calibration_test([0, 1] * 101, [0.5] * 202, given=[str(k // 2) for k in range(202)])
    with pytest.raises(ValueError, match="`given` has no meaning for the method 'exact'; use 'adaptive'"):
        kcalib.calibration_test(y, p, given=x, method="exact")
    with pytest.raises(ValueError, match="`given` is for class probabilities, but `y_pred` are"):
        kcalib.calibration_test(np.zeros(4), Normal(np.zeros(4), np.ones(4)), given=x)
    with pytest.raises(ValueError, match="`given` is given, but sums over a source have no such option"):
        kcalib.calibration_test(kcalib.streaming.source((y, p)), given=x)
