"""The experiments of Widmann et al. 2021, appendix A, in small: what docs/scripts/w21_*.py draw, with other seeds.

The scripts are imported, so that data sets and kernels here are those of the figures. Shares of rejections are compared
with binomial bounds, and with the published tables by a hypergeometric law.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from few_events import FEW_EVENTS
from problems import binomial_bounds
from scripts import DOCS, load_script
from threadpoolctl import threadpool_limits

import kcalib
from kcalib.distributions import Ensemble, Normal

RISK = 1e-4
FAR = scipy.stats.norm.isf(RISK / 2)  # standard errors
COUNT = 100  # data sets
FIRST_SEED = 10**5  # those of the tables are below


pytestmark = FEW_EVENTS


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Thousands of small eigenproblems, which threads of BLAS make slower."""
    with threadpool_limits(limits=1):
        yield


least_squares = load_script("w21_least_squares")
estimators = load_script("w21_estimators")
friedman = load_script("w21_friedman")


def assert_same_share(count: int, share: float, other_count: int, other_share: float) -> None:
    """Given their sum, one number of rejections is hypergeometric."""
    here, there = round(count * share), round(other_count * other_share)
    law = scipy.stats.hypergeom(count + other_count, here + there, count)
    assert min(law.cdf(here), law.sf(here - 1)) > RISK / 2, (here, count, there, other_count)


# -- A.1: least squares ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def least_squares_pvalues() -> dict[str, np.ndarray]:
    tests = {
        "SKCE, bootstrap": kcalib.methods.Bootstrap(n_resamples=999),
        "SKCE, spectrum": kcalib.methods.Spectrum(reference="residuals"),
    }
    rows = [least_squares.pvalues(FIRST_SEED + seed, tests) for seed in range(COUNT)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.grid
def test_least_squares_is_rejected_though_its_quantiles_look_calibrated(least_squares_pvalues):
    """Shares that would be improbable if the power were below 0.8, or the share of rejected curves above 0.35."""
    for name, values in least_squares_pvalues.items():
        share = np.mean(values < 0.05)
        if name == least_squares.CURVE:
            assert share <= binomial_bounds(COUNT, 0.35, RISK)[1]
        else:
            assert share >= binomial_bounds(COUNT, 0.8, RISK)[0], name


@pytest.mark.grid
def test_least_squares_table(least_squares_pvalues):
    lines = (DOCS / "w21_least_squares.txt").read_text().splitlines()
    count = int(lines[0].split()[0])
    published = {line[:32].strip(): float(line[32:42]) for line in lines[1 : lines.index("")]}
    for name, values in least_squares_pvalues.items():
        assert_same_share(COUNT, float(np.mean(values < 0.05)), count, published[name])


@pytest.mark.grid
def test_least_squares_of_drawn_targets_is_not_rejected():
    """The same predictions, with targets drawn from them."""
    rejected = []
    for seed in range(COUNT):
        _, prediction = least_squares.problem(FIRST_SEED + seed)
        y = np.random.default_rng(seed).normal(prediction.mean, prediction.std)
        test = kcalib.calibration_test(y, prediction, **least_squares.KERNELS, method="spectrum")
        rejected.append(test.pvalue < 0.05)
    assert np.mean(rejected) <= binomial_bounds(COUNT, 0.05, RISK)[1]


# -- A.2: estimators and tests where the truth is known ------------------------------------------------


@pytest.mark.parametrize("d", [1, 10])
def test_truth_by_another_integral(d):
    """Means over the targets by Gauss and Hermite's rule, over c and c' by the midpoint rule.

    The midpoint rule with 400 cells errs by about 1 / (24 400^2) of the second derivatives (and of the kink), of
    which sqrt(d) <= 4 and d are the largest: below 1e-5 of the value.
    """
    z, w = np.polynomial.hermite_e.hermegauss(20)
    w = w / w.sum()

    def mean_kernel(shift):  # of N(0, 2 0.1^2) + shift
        values = np.exp(-((shift[..., None] + math.sqrt(2) * 0.1 * z) ** 2) / 2)
        return values @ w

    c = (np.arange(400) + 0.5) / 400
    a, b = c[:, None], c[None, :]
    zero, between = np.zeros((1, 1)), mean_kernel(a - b)
    first = mean_kernel(zero) - mean_kernel(0.1 - b) - mean_kernel(a - 0.1) + between
    h = np.exp(-np.sqrt(d) * np.abs(a - b)) * first * between ** (d - 1)
    assert estimators.truth(d) == pytest.approx(h.mean(), rel=1e-4)


@pytest.mark.parametrize("d", [1, pytest.param(10, marks=pytest.mark.grid)])
def test_estimates_are_unbiased(d):
    values = {name: [] for name in estimators.ESTIMATORS}
    for seed in range(300):
        y, prediction = estimators.data_set("uncalibrated", 20, d, FIRST_SEED + seed)
        for name, row in values.items():
            row.append(estimators.estimate(name, y, prediction))
    true = estimators.truth(d)
    for name, row in values.items():
        z = (np.mean(row) - true) / (np.std(row, ddof=1) / math.sqrt(len(row)))
        if name == "biased":
            assert np.mean(row) > np.mean(values["unbiased, B = n"])
        else:
            assert abs(z) < FAR, name


@pytest.mark.parametrize("d", [1, 10])
def test_variances_of_the_calibrated_model(d):
    """They fall with the block size: for n = 64 the pairs that are used are 32, 224 and 2016."""
    found = {name: [] for name in estimators.ESTIMATORS}
    for seed in range(200):
        y, prediction = estimators.data_set("calibrated", 64, d, FIRST_SEED + seed)
        for name, row in found.items():
            row.append(estimators.estimate(name, y, prediction))
    variances = [np.var(found[f"unbiased, B = {size}"]) for size in ("n", "sqrt(n)", "2")]
    assert 2 * variances[0] < variances[1] and 2 * variances[1] < variances[2]
    for name, row in found.items():
        z = np.mean(row) / (np.std(row, ddof=1) / math.sqrt(len(row)))
        assert z > FAR if name == "biased" else abs(z) < FAR, name


QUICK_TESTS = ("B = 2", "B = sqrt(n)", "bootstrap", "spectrum")


@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.grid), pytest.param(10, marks=pytest.mark.slow)])
def test_levels(d):
    rows = {name: [] for name in QUICK_TESTS}
    for seed in range(COUNT):
        y, prediction = estimators.data_set("calibrated", 64, d, FIRST_SEED + seed)
        for name, row in rows.items():
            row.append(estimators.pvalue(name, y, prediction, seed) <= 0.05)
    high = binomial_bounds(COUNT, 0.05, RISK)[1]
    for name, row in rows.items():
        assert np.mean(row) <= high, name


@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.grid), pytest.param(10, marks=pytest.mark.slow)])
def test_powers_rise(d):
    """From 16 samples to 64 to 256, where nearly all uncalibrated data sets are rejected."""
    powers = {name: [] for name in QUICK_TESTS}
    for n in (16, 64, 256):
        data = [estimators.data_set("uncalibrated", n, d, FIRST_SEED + seed) for seed in range(40)]
        for name, row in powers.items():
            row.append(np.mean([estimators.pvalue(name, *one, seed) <= 0.05 for seed, one in enumerate(data)]))
    for name, row in powers.items():
        assert row == sorted(row), name
        assert row[-1] >= binomial_bounds(40, 0.99, RISK)[0], name
    assert powers["B = 2"][0] < powers["bootstrap"][0]


def published_errors() -> dict[tuple[int, str, str], list[float]]:
    """Test errors in docs/w21_estimators.txt by d, model and test; nan where there are none."""
    found: dict[tuple[int, str, str], list[float]] = {}
    d, model, wanted = 0, "", False
    for line in (DOCS / "w21_estimators.txt").read_text().splitlines():
        if line.startswith("d = "):
            d, model = int(line[4:].split(",")[0]), line.split(",")[1].split()[0]
        elif "n = 4" in line:
            wanted = line.startswith("type")
        elif wanted and line:
            found[d, model, line[:34].strip()] = [math.nan if x == "." else float(x) for x in line[34:].split()]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", estimators.TESTS)
@pytest.mark.parametrize("model", estimators.MODELS)
@pytest.mark.parametrize("d", estimators.DIMENSIONS)
def test_table_is_reproduced(d, model, name):
    count = int((DOCS / "w21_estimators.txt").read_text().split()[0])
    for n, published in zip(estimators.SIZES, published_errors()[d, model, name], strict=True):
        if n > 256 or math.isnan(published):
            continue
        pvalues = []
        for seed in range(200):
            y, prediction = estimators.data_set(model, n, d, FIRST_SEED + seed)
            pvalues.append(estimators.pvalue(name, y, prediction, FIRST_SEED + seed))
        rejected = float(np.mean(np.array(pvalues) <= 0.05 * (1 + 1e-9)))
        assert_same_share(200, rejected if model == "calibrated" else 1 - rejected, count, published)


# -- A.3: overfitting ----------------------------------------------------------------------------------


def fitted(x, y, points, ridge, seed):
    """Ridge regression on 300 random ReLU features, more than the 100 samples: without a ridge it interpolates."""
    rng = np.random.default_rng(seed)
    weights, offsets = rng.normal(size=(10, 300)), rng.normal(size=300)

    def features(z):
        return np.maximum((z - 0.5) @ weights + offsets, 0)

    a = features(x)
    gram = a @ a.T + ridge * np.eye(len(y))
    centre = y.mean()
    coefficients = np.linalg.solve(gram, y - centre)
    mean, mean_there = (centre + features(z) @ a.T @ coefficients for z in (x, points))
    std = np.sqrt(np.mean((y - mean) ** 2))
    return Normal(mean, np.full(len(mean), std)), Normal(mean_there, np.full(len(mean_there), std))


def test_overfitting_shows_on_test_data_only():
    rng = np.random.default_rng(3)
    (x, y), (x_test, y_test) = friedman.problem(100, rng), friedman.problem(50, rng)
    pairs = {ridge: [fitted(x, y, x_test, ridge, seed) for seed in range(5)] for ridge in (100.0, 0.1)}
    skces = {
        ridge: [
            (kcalib.skce(y, train, **friedman.KERNELS), kcalib.skce(y_test, test, **friedman.KERNELS))
            for train, test in found
        ]
        for ridge, found in pairs.items()
    }
    moderate, over = np.array(skces[100.0]), np.array(skces[0.1])
    assert np.all(over[:, 1] > 3 * np.abs(moderate[:, 1]))
    assert np.all(np.abs(over[:, 0]) < over[:, 1] / 3)
    tests = [
        kcalib.calibration_test(
            data, forecast, **friedman.KERNELS, method=kcalib.methods.Bootstrap(n_resamples=199), seed=0
        ).pvalue
        for data, forecast in ((y, pairs[0.1][0][0]), (y_test, pairs[0.1][0][1]), (y_test, pairs[100.0][0][1]))
    ]
    assert tests[1] == 1 / 200 and tests[0] > 0.05 and tests[2] > 0.05


def test_ensembles_score_better_than_their_members_on_average():
    """By Jensen's inequality for the log score; for the MSE that of the mean."""
    rng = np.random.default_rng(4)
    (x, y), (x_test, y_test) = friedman.problem(100, rng), friedman.problem(50, rng)
    members = [fitted(x, y, x_test, 1.0, seed)[1] for seed in range(5)]
    rows = np.array([friedman.measures(y_test, member, member.mean, 99) for member in members])
    mean = np.mean([member.mean for member in members], axis=0)
    together = dict(zip(friedman.MEASURES, friedman.measures(y_test, Ensemble(members), mean, 99), strict=True))
    for measure in ("MSE", "NLL", "pinball loss"):
        assert together[measure] < rows[:, friedman.MEASURES.index(measure)].mean()


@pytest.mark.slow
def test_networks_overfit():
    """After 5000 iterations, and not after 200: SKCE and NLL of the test samples have risen, the p-value fallen."""
    pytest.importorskip("sklearn")
    found = friedman.measured(199, 2, np.array([200, 3000]))
    index = friedman.MEASURES.index
    test = found[1]
    for measure in ("NLL", "SKCE, unbiased", "SKCE, biased"):
        assert np.all(test[1, :, index(measure)] > test[0, :, index(measure)]), measure
    assert np.all(test[1, :2, index("p-value")] == 1 / 200)
    assert np.all(found[0, 1, :2, index("MSE")] < 0.1 * test[1, :2, index("MSE")])


# -- a real data set -----------------------------------------------------------------------------------


@pytest.mark.grid
def test_diabetes():
    """The boosted trees differ in their standard deviation alone: that of the fitted errors is far too small."""
    pytest.importorskip("sklearn")
    diabetes = load_script("diabetes_regression")
    y, models = diabetes.predictions(seed=1)
    fitted_errors, in_folds = models["trees, fitted errors"], models["trees, errors in folds"]
    assert np.array_equal(fitted_errors.mean, in_folds.mean)
    comparison = kcalib.compare(y, models, metric=kcalib.methods.SKCE(**diabetes.KERNELS))
    assert comparison.ranking[-1] == "trees, fitted errors"
    difference = comparison.difference("trees, errors in folds", "trees, fitted errors")
    assert difference.confidence_interval.high < 0 and difference.pvalue_holm < 0.01
    test = kcalib.calibration_test(y, fitted_errors, **diabetes.KERNELS, seed=0)
    assert test.pvalue < 1e-100 and test.finding == "over-confident"
