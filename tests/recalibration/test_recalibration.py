"""Temperature scaling: densities to a power, likelihoods against literal ones, temperatures that are known."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest
from grid import some
from libraries import Library
from problems import binomial_bounds, draw_labels
from scipy import optimize, special, stats
from scipy.spatial.distance import cdist

import kcalib
from kcalib.distributions import (
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Laplace,
    MultivariateNormal,
    Normal,
    Poisson,
    PowerExponential,
)
from kcalib.kernels import Exponential, Gaussian
from kcalib.recalibration import ProbabilityFloorWarning, TemperatureBoundWarning, TemperatureScaling
from kcalib.recalibration._likelihood import _log_gamma
from kcalib.target_kernels import Draws


def labels_at(temperature: float, n: int = 400, m: int = 4, seed: int = 0, scale: float = 3.0):
    """Labels, probabilities, and logits whose true temperature this is."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(n, m))
    y = draw_labels(special.softmax(logits / temperature, axis=1), rng)
    return y, special.softmax(logits, axis=1), logits


def positive_definite(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    roots = rng.normal(size=(n, d, 2 * d))
    return roots @ roots.transpose(0, 2, 1) / (2 * d)


@dataclass(frozen=True)
class Family:
    """A family: predictions, targets drawn from them at a temperature, log densities from scipy or by hand."""

    make: Callable[[int, np.random.Generator], Distribution]
    draw: Callable[[Any, float, np.random.Generator], np.ndarray]
    log_density: Callable[[Any, np.ndarray], np.ndarray]  # of (k, [d]) points under the first prediction
    points: np.ndarray
    log_reference: Callable[[np.ndarray], np.ndarray] = lambda y: np.zeros(len(y))  # log d mu / d lambda


def power_exponential(p: PowerExponential, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """|z|^(2 shape) / 2 has a Gamma law."""
    energy = temperature * rng.gamma(0.5 / p.shape)
    return p.loc + p.scale * rng.choice([-1, 1], p.n) * (2 * energy) ** (0.5 / p.shape)


def shares(alpha: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    gammas = np.maximum(rng.gamma(alpha), 1e-12)
    return gammas / gammas.sum(axis=1, keepdims=True)


LINE = np.linspace(-4.0, 5.0, 31)
PLANE = np.stack(np.meshgrid(LINE[::3], LINE[::3]), axis=-1).reshape(-1, 2)
FAMILIES = {
    "normal": Family(
        lambda n, rng: Normal(rng.normal(size=n), rng.uniform(0.3, 3.0, n)),
        lambda p, t, rng: p.mean + np.sqrt(t) * p.std * rng.normal(size=p.mean.shape),
        lambda p, y: stats.norm(p.mean[0], p.std[0]).logpdf(y),
        LINE,
    ),
    "normal vectors": Family(
        lambda n, rng: Normal(rng.normal(size=(n, 2)), rng.uniform(0.3, 3.0, (n, 2))),
        lambda p, t, rng: p.mean + np.sqrt(t) * p.std * rng.normal(size=p.mean.shape),
        lambda p, y: stats.multivariate_normal(p.mean[0], np.diag(p.std[0] ** 2)).logpdf(y),
        PLANE,
    ),
    "covariances": Family(
        lambda n, rng: MultivariateNormal(rng.normal(size=(n, 2)), positive_definite(n, 2, rng)),
        lambda p, t, rng: p.mean + np.sqrt(t) * np.einsum("nij,nj->ni", p.scale_tril, rng.normal(size=p.mean.shape)),
        lambda p, y: stats.multivariate_normal(p.mean[0], p.cov[0]).logpdf(y),
        PLANE,
    ),
    "laplace": Family(
        lambda n, rng: Laplace(rng.normal(size=n), rng.uniform(0.3, 3.0, n)),
        lambda p, t, rng: p.loc + t * p.scale * rng.laplace(size=p.n),
        lambda p, y: stats.laplace(p.loc[0], p.scale[0]).logpdf(y),
        LINE,
    ),
    "power exponential": Family(
        lambda n, rng: PowerExponential(rng.normal(size=n), rng.uniform(0.3, 3.0, n), rng.uniform(0.4, 2.0, n)),
        lambda p, t, rng: power_exponential(p, t, rng),
        # scipy's generalised normal distribution has the density exp(-|z|^(2 shape)).
        lambda p, y: stats.gennorm(2 * p.shape[0], p.loc[0], 2 ** (0.5 / p.shape[0]) * p.scale[0]).logpdf(y),
        LINE,
    ),
    "beta": Family(
        lambda n, rng: Beta(rng.uniform(0.3, 20.0, n), rng.uniform(0.3, 20.0, n)),
        lambda p, t, rng: np.clip(rng.beta(p.a / t, p.b / t), 1e-15, 1 - 1e-15),
        lambda p, y: stats.beta(p.a[0], p.b[0]).logpdf(y),
        np.linspace(0.01, 0.99, 31),
        lambda y: -np.log(y * (1 - y)),
    ),
    "dirichlet": Family(
        lambda n, rng: Dirichlet(rng.uniform(0.3, 20.0, (n, 3))),
        lambda p, t, rng: shares(p.alpha / t, rng),
        lambda p, y: np.array([stats.dirichlet(p.alpha[0]).logpdf(row) for row in y]),
        np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], size=20),
        lambda y: -np.sum(np.log(y), axis=1),
    ),
}
family = pytest.mark.parametrize("name", FAMILIES)


# What scaling does.


@family
@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.7])
def test_density_is_a_power(name, temperature):
    """log q - log(p) / T, both with respect to the reference measure, is a constant."""
    case = FAMILIES[name]
    rng = np.random.default_rng(1)
    prediction = case.make(3, rng)
    scaling = fixed(temperature, prediction, case.draw(prediction, 1.0, rng))
    reference = case.log_reference(case.points)
    before = case.log_density(prediction, case.points) - reference
    after = case.log_density(scaling.transform(prediction), case.points) - reference
    constants = after - before / temperature
    # Rounding of the two log densities.
    assert np.ptp(constants) <= 1e-13 * (np.abs(after).max() + np.abs(before).max() / temperature)


def fixed(temperature: float, prediction: Any, y: Any) -> TemperatureScaling:
    """Scaling at a given temperature: fitted, then set."""
    scaling = TemperatureScaling().fit(y, prediction)
    scaling.temperature_ = temperature
    return scaling


@pytest.mark.parametrize("temperature", [0.1, 1.0, 2.5])
def test_probabilities_are_powers(temperature):
    y, p, _ = labels_at(1.0, n=50)
    p[3] = [0.0, 0.25, 0.75, 0.0]
    y[3] = 1
    q = fixed(temperature, p, y).transform(p)
    powers = p ** (1 / temperature)
    assert np.allclose(q, powers / powers.sum(axis=1, keepdims=True), rtol=1e-13, atol=0)
    assert np.all(q[3, [0, 3]] == 0)
    assert np.array_equal(q.argmax(axis=1), p.argmax(axis=1))
    assert np.array_equal(q.argsort(axis=1), p.argsort(axis=1))


@family
def test_means_stay(name):
    case = FAMILIES[name]
    rng = np.random.default_rng(2)
    prediction = case.make(5, rng)
    scaled = TemperatureScaling().fit_transform(case.draw(prediction, 3.0, rng), prediction)
    assert type(scaled) is type(prediction)
    assert np.allclose(scaled.expected_value(), prediction.expected_value(), rtol=1e-14, atol=0)


# The highest likelihood.


def literal_loss(y: np.ndarray, logits: np.ndarray, weight: np.ndarray, log_temperature: float) -> float:
    scaled = special.log_softmax(logits / np.exp(log_temperature), axis=1)
    return -np.average(scaled[np.arange(len(y)), y], weights=weight)


@pytest.mark.parametrize(("m", "temperature", "weighted"), [(2, 0.6, False), (5, 2.0, True), (30, 4.0, False)])
def test_highest_likelihood_of_labels(m, temperature, weighted):
    y, p, logits = labels_at(temperature, m=m, seed=m)
    weight = np.random.default_rng(0).exponential(size=len(y)) if weighted else np.ones(len(y))
    scaling = TemperatureScaling().fit(y, p, sample_weight=weight if weighted else None)
    found = optimize.minimize_scalar(
        lambda t: literal_loss(y, logits, weight, t), bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}
    )
    # A minimum is known to the root of the rounding error of its value.
    assert np.log(scaling.temperature_) == pytest.approx(found.x, abs=1e-6)
    assert scaling.criterion_after_ == pytest.approx(found.fun, rel=1e-12)
    assert scaling.criterion_before_ == pytest.approx(literal_loss(y, logits, weight, 0.0), rel=1e-12)
    assert scaling.converged_
    assert scaling.n_iterations_ < 20
    low, high = scaling.confidence_interval_
    assert low < scaling.temperature_ < high
    assert high - low == pytest.approx(2 * 1.96 * scaling.standard_error_, rel=0.1)


def test_as_scikit_learn():
    sklearn = pytest.importorskip("sklearn", minversion="1.8")
    from sklearn import calibration, datasets, frozen, linear_model

    x, y = datasets.load_iris(return_X_y=True)
    x = x[:, :2]
    model = linear_model.LogisticRegression(C=1e3, max_iter=1000).fit(x[::3], y[::3])
    theirs = calibration.CalibratedClassifierCV(frozen.FrozenEstimator(model), method="temperature").fit(x, y)
    logits = model.decision_function(x)
    ours = TemperatureScaling().fit_transform(y, logits, from_logits=True)
    # Theirs stops at an error of some 1e-5 of log(T).
    assert np.allclose(ours, theirs.predict_proba(x), atol=1e-4), sklearn.__version__


@pytest.mark.parametrize("name", some(FAMILIES, "normal", "laplace", "beta"))
def test_highest_likelihood_of_targets(name):
    """Against the literal likelihood: the density to a power, over its integral."""
    case = FAMILIES[name]
    rng = np.random.default_rng(3)
    prediction = case.make(16, rng)
    y = case.draw(prediction, 1.7, rng)
    weight = rng.exponential(size=16)

    def loss(log_temperature: float) -> float:
        q = fixed(np.exp(log_temperature), prediction, y).transform(prediction)
        one_by_one = [case.log_density(q.take(slice(i, i + 1)), y[i : i + 1]) for i in range(16)]
        return -np.average(np.ravel(one_by_one), weights=weight)

    scaling = TemperatureScaling().fit(y, prediction, sample_weight=weight)
    found = optimize.minimize_scalar(loss, bounds=(-1, 2), method="bounded", options={"xatol": 1e-7})
    assert np.log(scaling.temperature_) == pytest.approx(found.x, abs=1e-6)
    assert scaling.criterion_after_ == pytest.approx(found.fun, rel=1e-12)
    assert scaling.criterion_before_ == pytest.approx(loss(0.0), rel=1e-12)


def test_normal_by_hand():
    """T is the mean of the squared standardised residuals 1, 4, 4 and 9, and has the standard error of a mean."""
    scaling = TemperatureScaling().fit([1.0, -2.0, 4.0, 3.0], Normal([0.0] * 4, [1.0, 1.0, 2.0, 1.0]))
    assert scaling.temperature_ == 4.5
    assert scaling.standard_error_ == pytest.approx(np.std([1, 4, 4, 9], ddof=1) / 2, rel=1e-14)
    assert scaling.n_iterations_ == 0
    vectors = TemperatureScaling().fit([[1.0, -2.0], [4.0, 3.0]], Normal(np.zeros((2, 2)), [[1.0, 1.0], [2.0, 1.0]]))
    assert vectors.temperature_ == 4.5


# Each has the probability 1e-5 to be exceeded by a normal variable.
STANDARD_ERRORS = 4.4


@family
@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_known_temperature(name, temperature):
    case = FAMILIES[name]
    rng = np.random.default_rng(4)
    prediction = case.make(2000, rng)
    scaling = TemperatureScaling().fit(case.draw(prediction, temperature, rng), prediction)
    error = scaling.standard_error_ / scaling.temperature_
    # The Fisher information of log(T) for each sample: d / 2 of normal distributions, 1 of Laplace's.
    information = {"laplace": 1.0}.get(name, prediction.n_dims / 2)
    if name in ("normal", "normal vectors", "covariances", "laplace"):
        assert error == pytest.approx(1 / np.sqrt(2000 * information), rel=0.15)
    assert abs(np.log(scaling.temperature_ / temperature)) < STANDARD_ERRORS * error


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_known_temperature_of_labels(temperature):
    y, p, logits = labels_at(temperature, n=3000, seed=5)
    scaling = TemperatureScaling().fit(y, p)
    q = special.softmax(logits / temperature, axis=1)
    variance = np.sum(q * logits**2, axis=1) - np.sum(q * logits, axis=1) ** 2  # of the derivative by 1 / T
    fisher_error = temperature / np.sqrt(variance.sum())
    assert scaling.standard_error_ / scaling.temperature_ == pytest.approx(fisher_error, rel=0.15)
    assert abs(np.log(scaling.temperature_ / temperature)) < STANDARD_ERRORS * fisher_error


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "normal" else pytest.mark.grid) for name in FAMILIES]
)
def test_interval_covers_one_for_calibrated_predictions(name):
    case = FAMILIES[name]
    rng = np.random.default_rng(6)
    covered = []
    times = 80
    for _ in range(times):
        prediction = case.make(200, rng)
        low, high = TemperatureScaling().fit(case.draw(prediction, 1.0, rng), prediction).confidence_interval_
        covered.append(low <= 1 <= high)
    low, high = binomial_bounds(times, 0.95)
    # The standard error is estimated from 200 samples with heavy-tailed squares, hence 1.5 % more.
    assert low - 0.015 <= np.mean(covered) <= high


def test_interval_covers_one_for_calibrated_labels():
    covered = []
    for seed in range(60):
        y, p, _ = labels_at(1.0, n=200, m=3, seed=seed, scale=1.5)
        low, high = TemperatureScaling(confidence_level=0.9).fit(y, p).confidence_interval_
        covered.append(low <= 1 <= high)
    low, high = binomial_bounds(60, 0.9)
    assert low - 0.015 <= np.mean(covered) <= high


def test_weights_count_samples():
    y, p, _ = labels_at(2.0)
    times = np.random.default_rng(0).integers(0, 3, len(y))
    weighted = TemperatureScaling().fit(y, p, sample_weight=times)
    repeated = TemperatureScaling().fit(np.repeat(y, times), np.repeat(p, times, axis=0))
    assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-10)
    assert weighted.criterion_after_ == pytest.approx(repeated.criterion_after_, rel=1e-12)
    scaled = TemperatureScaling().fit(y, p, sample_weight=1e-3 * times)
    assert scaled.standard_error_ == pytest.approx(weighted.standard_error_, rel=1e-9)
    assert scaled.confidence_interval_ == pytest.approx(weighted.confidence_interval_, rel=1e-8)
    # A label of probability 0 that has no weight does not matter.
    impossible = np.concatenate([p, [[1.0, 0.0, 0.0, 0.0]]])
    left_out = TemperatureScaling().fit(np.append(y, 2), impossible, sample_weight=np.append(times, 0))
    assert left_out.temperature_ == pytest.approx(weighted.temperature_, rel=1e-12)


def test_interval_without_an_upper_limit():
    """Labels that hardly depend on the predictions: infinite temperatures are not excluded."""
    # Five of nine labels: (0.9 / 0.1)^(1 / T) = 5 / 4 at T = log(9) / log(5 / 4), and 1 is well within noise.
    scaling = TemperatureScaling().fit([1] * 5 + [0] * 4, [0.9] * 9)
    assert scaling.temperature_ == pytest.approx(np.log(9) / np.log(1.25), rel=1e-12)
    assert scaling.confidence_interval_.high == np.inf
    assert 0 < scaling.confidence_interval_.low < scaling.temperature_


# The lowest SKCE.


def literal_skce(y: np.ndarray, p: np.ndarray, bandwidth: float, log_temperature: float) -> float:
    powers = p ** np.exp(-log_temperature)
    e = np.eye(p.shape[1])[y] - powers / powers.sum(axis=1, keepdims=True)
    return float(np.mean(np.exp(-cdist(p, p) / bandwidth) * (e @ e.T)))


def test_lowest_skce():
    y, p, logits = labels_at(2.0, n=150, m=3)
    bandwidth = float(np.median(cdist(p, p)[np.triu_indices(150, 1)]))
    scaling = TemperatureScaling(criterion="skce").fit(y, p)
    found = optimize.minimize_scalar(
        lambda t: literal_skce(y, p, bandwidth, t), bounds=(-1, 3), method="bounded", options={"xatol": 1e-8}
    )
    assert np.log(scaling.temperature_) == pytest.approx(found.x, abs=1e-5)
    assert scaling.criterion_after_ == pytest.approx(found.fun, rel=1e-8)
    assert scaling.criterion_before_ == pytest.approx(kcalib.skce(y, p, estimator="biased"), rel=1e-12)
    assert scaling.kernel_ == f"Exponential(bandwidth={bandwidth:.6g})"
    given = TemperatureScaling(criterion="skce", kernel=Exponential(bandwidth=bandwidth)).fit(
        y, logits, from_logits=True
    )
    assert given.temperature_ == pytest.approx(scaling.temperature_, rel=1e-6)


@pytest.mark.parametrize("m", [2, 3, 10])
def test_skce_finds_a_known_temperature(m):
    y, p, _ = labels_at(2.0, n=600, m=m, seed=m)
    scaling = TemperatureScaling(criterion="skce").fit(y, p)
    error = scaling.standard_error_ / scaling.temperature_
    assert 0.01 < error < 0.2
    assert abs(np.log(scaling.temperature_ / 2.0)) < STANDARD_ERRORS * error


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.grid] if n in ("power exponential", "dirichlet") else []) for n in FAMILIES],
)
def test_skce_finds_a_known_temperature_of_targets(name):
    case = FAMILIES[name]
    rng = np.random.default_rng(8)
    exact = name in ("normal", "normal vectors", "covariances", "laplace")
    prediction = case.make(200 if exact else 60, rng)
    y = case.draw(prediction, 2.0, rng)
    # Few draws, for a short time.
    kernels = {} if exact else {"kernel": Exponential(metric="euclidean"), "target_kernel": Draws(n_draws=16)}
    scaling = TemperatureScaling(criterion="skce", **kernels).fit(y, prediction)
    error = scaling.standard_error_ / scaling.temperature_
    assert 0.01 < error < 0.5
    assert abs(np.log(scaling.temperature_ / 2.0)) < STANDARD_ERRORS * error


def test_skce_of_given_kernels():
    case = FAMILIES["normal"]
    rng = np.random.default_rng(8)
    prediction = case.make(50, rng)
    y = case.draw(prediction, 2.0, rng)
    kernel, target_kernel = Exponential(bandwidth=1.0, metric="wasserstein"), Gaussian(bandwidth=1.0)
    scaling = TemperatureScaling(criterion="skce", kernel=kernel, target_kernel=target_kernel).fit(y, prediction)
    assert scaling.kernel_ == "Exponential(bandwidth=1, metric='wasserstein')"
    assert scaling.target_kernel_ == "Gaussian(bandwidth=1)"
    expected = kcalib.skce(y, prediction, kernel=kernel, target_kernel=target_kernel, estimator="biased")
    assert scaling.criterion_before_ == pytest.approx(expected, rel=1e-12)


def test_weights_count_samples_in_the_skce():
    """The criterion is the biased estimate, which has pairs of a sample with itself."""
    rng = np.random.default_rng(1)
    times = rng.integers(0, 3, 80)
    y, p, _ = labels_at(2.0, n=80)
    case = FAMILIES["normal"]
    prediction = case.make(80, rng)
    target = case.draw(prediction, 2.0, rng)
    rows = np.repeat(np.arange(80), times)
    for values, predicted, written_out, given in (
        (y, p, p[rows], {}),
        (target, prediction, prediction.take(rows), {"target_kernel": Gaussian(bandwidth=1.0)}),
    ):
        scaling = TemperatureScaling(criterion="skce", kernel=Exponential(bandwidth=0.5), **given)
        weighted = scaling.clone().fit(values, predicted, sample_weight=times)
        repeated = scaling.clone().fit(values[rows], written_out)
        assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-5)
        assert weighted.criterion_after_ == pytest.approx(repeated.criterion_after_, rel=1e-8)
        assert weighted.standard_error_ is None


def test_skce_does_not_run_away():
    """Balanced classes, where uniform predictions are calibrated: a kernel that sees scaled predictions ends there."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        logits = 3 * rng.normal(size=(150, 3))
        y = draw_labels(special.softmax(logits / 2, axis=1), rng)
        y[np.argsort(y, kind="stable")] = np.sort(y)
        temperature = TemperatureScaling(criterion="skce").fit(y, logits, from_logits=True).temperature_
        assert 1 < temperature < 4


@pytest.mark.slow
def test_skce_interval_covers_the_temperature():
    covered = []
    for seed in range(300):
        y, p, _ = labels_at(1.5, n=200, m=3, seed=seed)
        low, high = TemperatureScaling(criterion="skce").fit(y, p).confidence_interval_
        covered.append(low <= 1.5 <= high)
    low, high = binomial_bounds(300, 0.95)
    assert low - 0.015 <= np.mean(covered) <= high


# Extremes.


def test_all_labels_the_most_probable():
    p = np.array([[0.6, 0.4], [0.3, 0.7], [0.8, 0.2]])
    for criterion in ("likelihood", "skce"):
        with pytest.warns(TemperatureBoundWarning, match=r"up to the bound T = 0\.01, the fitted temperature"):
            scaling = TemperatureScaling(criterion=criterion).fit([0, 1, 0], p)
        assert scaling.temperature_ == 0.01
        assert not scaling.converged_
        assert scaling.standard_error_ is None
        assert scaling.confidence_interval_ is None
        assert np.all(scaling.transform(p)[[0, 1, 2], [0, 1, 0]] > 1 - 1e-15)


def test_all_labels_the_least_probable():
    with pytest.warns(TemperatureBoundWarning, match="up to the bound T = 50"):
        scaling = TemperatureScaling(bounds=(0.5, 50)).fit([1, 0], [[0.6, 0.4], [0.3, 0.7]])
    assert scaling.temperature_ == 50


def test_bounds_of_a_closed_form():
    prediction = Normal([0.0, 0.0], [1.0, 1.0])
    with pytest.warns(TemperatureBoundWarning, match="up to the bound T = 10"):
        assert TemperatureScaling(bounds=(0.1, 10)).fit([4.0, 5.0], prediction).temperature_ == 10
    assert TemperatureScaling().fit([1e4, 1e4], prediction).temperature_ == pytest.approx(1e8, rel=1e-14)
    with pytest.raises(ValueError, match="`y_true` equals the centres of all predicted distributions"):
        TemperatureScaling().fit([0.0, 0.0], prediction)
    with pytest.warns(TemperatureBoundWarning):
        assert TemperatureScaling(bounds=(0.1, 10)).fit([0.0, 0.0], prediction).temperature_ == 0.1


def test_predictions_that_say_nothing():
    uniform = np.array([[0.25] * 4, [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    for criterion in ("likelihood", "skce"):
        kernel = None if criterion == "likelihood" else Exponential(bandwidth=1.0)
        with pytest.warns(
            TemperatureBoundWarning, match="the same at all temperatures, and the fitted temperature is 1"
        ):
            scaling = TemperatureScaling(criterion=criterion, kernel=kernel).fit([0, 1, 2], uniform)
        assert scaling.temperature_ == 1
        assert np.array_equal(scaling.transform(uniform), uniform)


def test_label_of_probability_zero():
    y, p, _ = labels_at(2.0, n=50)
    p[7] = np.eye(4)[(y[7] + 1) % 4]
    found = r"`y_true\[7\]` is class \w+, whose predicted probability is 0 \(1 of 50"
    with pytest.raises(ValueError, match=found + r".*pass floor=1e-7"):
        TemperatureScaling(floor=None).fit(y, p)
    zeros = TemperatureScaling(criterion="skce", floor=None).fit(y, p)
    assert zeros.floor_ is None and (zeros.transform(p)[7] == 0).sum() == 3
    with pytest.warns(ProbabilityFloorWarning, match=found):
        assert (TemperatureScaling(criterion="skce").fit(y, p).transform(p) > 0).all()
    raised = np.maximum(p, 1e-5)
    raised /= raised.sum(axis=1, keepdims=True)
    with pytest.warns(ProbabilityFloorWarning, match=found + r".*raised to floor=1e-05"):
        scaling = TemperatureScaling(floor=1e-5).fit(y, p)
    expected = TemperatureScaling(floor=1e-5).fit(y, raised)
    assert (scaling.floor_, expected.floor_) == (1e-5, None)
    assert scaling.temperature_ == pytest.approx(expected.temperature_, rel=1e-12)
    powers = raised ** (1 / scaling.temperature_)
    assert np.allclose(scaling.transform(p), powers / powers.sum(axis=1, keepdims=True), rtol=1e-13)
    with np.errstate(divide="ignore"), pytest.warns(ProbabilityFloorWarning):
        of_logits = TemperatureScaling(floor=1e-5).fit(y, np.log(p) + 3, from_logits=True)
    assert of_logits.temperature_ == pytest.approx(scaling.temperature_, rel=1e-12)
    named = np.roll(["green", "red", "blue", "white"], y[7])
    with pytest.warns(ProbabilityFloorWarning, match="is class green,"):
        TemperatureScaling().fit(named[y], p, classes=named)
    weights = np.where(np.arange(50) == 7, 0.0, 1.0)  # a label without weight needs no likelihood
    assert TemperatureScaling(floor=None).fit(y, p, sample_weight=weights).converged_


def test_probabilities_stay_as_they_are_where_every_label_is_possible():
    """Of a network that is nearly sure some are below the floor, and zeros of other classes stay zeros."""
    y, p, _ = labels_at(2.0, n=50)
    p[3] = np.array([1e-12, 1 - 1e-12, 0.0, 0.0])[(np.arange(4) - y[3]) % 4]
    scaling = TemperatureScaling().fit(y, p)
    assert scaling.floor_ is None and (scaling.transform(p)[3] == 0).sum() == 2
    assert scaling.temperature_ == TemperatureScaling(floor=None).fit(y, p).temperature_


@pytest.mark.parametrize("criterion", ["likelihood", "skce"])
def test_a_bound_is_always_said(criterion):
    """The same line warns again for other data, as Python's filter shows a message of a line once."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for seed in range(3):
            y = np.random.default_rng(seed).integers(2, size=60)
            p = np.where(y == 1, 0.1, 0.9) + np.linspace(0, 0.05, 60)  # wrong: the flatter, the better
            scaling = TemperatureScaling(criterion=criterion).fit(y, p)
            assert scaling.temperature_ == 100.0 and not scaling.converged_
            said.append(len(caught))
    assert said == [1, 2, 3] and all(one.category is TemperatureBoundWarning for one in caught)


def test_a_probability_above_one_by_rounding():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=200)
    y = (rng.uniform(size=200) < p).astype(int)
    y[0], p[0] = 1, 1 + 1e-7
    scaling, expected = (TemperatureScaling().fit(y, one) for one in (p, np.minimum(p, 1)))
    assert scaling.temperature_ == expected.temperature_ < 2 and scaling.converged_


def test_logits_far_apart():
    """Their softmax is one-hot in floating point, but they are not."""
    y, _, logits = labels_at(1.0)
    scaling = TemperatureScaling(bounds=(1.0, 1e6)).fit(y, 1e4 * logits, from_logits=True)
    reference = TemperatureScaling().fit(y, logits, from_logits=True)
    assert scaling.temperature_ == pytest.approx(1e4 * reference.temperature_, rel=1e-10)
    q = scaling.transform(1e4 * logits, from_logits=True)
    assert np.allclose(q, reference.transform(logits, from_logits=True), rtol=1e-10)
    infinite = np.where(logits < -3, -np.inf, logits)
    infinite[np.arange(len(y)), y] = logits[np.arange(len(y)), y]
    assert np.isfinite(TemperatureScaling().fit(y, infinite, from_logits=True).temperature_)


@pytest.mark.parametrize("size", [1e-2, 1e4, 1e10])
def test_concentrations_of_all_sizes(size):
    """Large ones, where log Gamma(alpha) has lost all digits that the likelihood needs."""
    rng = np.random.default_rng(0)
    alpha = size * rng.uniform(1, 5, (1000, 3))
    # With so large a shape the Gamma law is normal.
    gammas = rng.gamma(alpha / 2) if size < 1e6 else alpha / 2 + np.sqrt(alpha / 2) * rng.normal(size=alpha.shape)
    gammas = np.maximum(gammas, 1e-250)
    scaling = TemperatureScaling().fit(gammas / gammas.sum(axis=1, keepdims=True), Dirichlet(alpha))
    error = scaling.standard_error_ / scaling.temperature_
    assert error < 0.05
    assert abs(np.log(scaling.temperature_ / 2.0)) < STANDARD_ERRORS * error


def test_derivatives_of_log_gamma():
    x = np.array([1e-15, 1e-3, 1.0, 7.0, 29.9, 30.1, 1e3, 1e8])
    found = _log_gamma(x)
    with mpmath.workdps(40):
        for i, of in enumerate(map(mpmath.mpf, x)):
            value = mpmath.loggamma(of) - of * mpmath.log(of) + of
            slope = of * (mpmath.digamma(of) - mpmath.log(of))
            curvature = of * of * mpmath.polygamma(1, of) - of
            # Below 30 differences of terms of up to 30 log(30), with 16 digits.
            assert [a[i] for a in found] == pytest.approx([float(value), float(slope), float(curvature)], abs=3e-14)


def test_targets_at_the_end_of_the_support():
    for y in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"`y_true\[1\]` has a share of 0 or 1, .* use criterion='skce'"):
            TemperatureScaling().fit([0.5, y, 0.3], Beta([1.0, 2.0, 3.0], [1.0, 2.0, 1.0]))
    with pytest.raises(ValueError, match=r"`y_true\[0\]` has a share of 0 or 1"):
        TemperatureScaling().fit([[0.5, 0.5, 0.0]], Dirichlet([[1.0, 2.0, 3.0]]))
    far = PowerExponential([0.0, 0.0, 0.0], 1.0, 100.0)
    with pytest.raises(ValueError, match=r"`y_true\[1\]` is so far from the predicted mean that its likelihood is 0"):
        TemperatureScaling().fit([0.5, 1e3, 0.7], far)
    left_out = TemperatureScaling().fit([0.5, 1e3, 1.01], far, sample_weight=[1.0, 0.0, 1.0])
    assert left_out.temperature_ == pytest.approx(100 * (0.5**200 + 1.01**200) / 2, rel=1e-12)


def test_few_samples():
    one = TemperatureScaling().fit([2.0], Normal([0.0], [1.0]))
    assert (one.temperature_, one.standard_error_, one.confidence_interval_) == (4.0, None, None)
    # One label of the two of each prediction: q = 1/2 has the highest likelihood, where T is infinite.
    with pytest.warns(TemperatureBoundWarning, match="T = 100"):
        TemperatureScaling().fit([0, 1], [0.8, 0.8])
    # Three of four: (0.9 / 0.1)^(1 / T) = 3 at T = 2.
    assert TemperatureScaling().fit([1, 1, 1, 0], [0.9] * 4).temperature_ == pytest.approx(2.0, rel=1e-12)


# Input, output, and the manner of scikit-learn.


def test_array_libraries(xp: Library):
    y, p, _ = labels_at(2.0, n=60)
    scaling = TemperatureScaling().fit(xp.asarray(y), xp.asarray(p))
    reference = TemperatureScaling().fit(y, p)
    assert scaling.temperature_ == pytest.approx(reference.temperature_, rel=1e-9)
    q = scaling.transform(xp.asarray(p))
    if xp.name == "dask":
        assert isinstance(q, np.ndarray)
    else:
        assert type(q) is type(xp.asarray(p))
    # JAX makes float32 arrays by default.
    assert kcalib.skce(xp.asarray(y), q) == pytest.approx(kcalib.skce(y, reference.transform(p)), rel=1e-4)
    if xp.name not in ("jax", "dask"):
        assert q.dtype == xp.asarray(p).dtype
    lowest = TemperatureScaling(criterion="skce").fit(xp.asarray(y), xp.asarray(p))
    assert lowest.temperature_ == pytest.approx(TemperatureScaling(criterion="skce").fit(y, p).temperature_, rel=1e-5)


def test_floating_point_types():
    y, p, _ = labels_at(2.0)
    scaling = TemperatureScaling().fit(y, p.astype(np.float32))
    assert scaling.temperature_ == pytest.approx(TemperatureScaling().fit(y, p).temperature_, rel=1e-5)
    assert scaling.transform(p.astype(np.float32)).dtype == np.float32
    assert scaling.transform(p.tolist()).dtype == np.float64
    assert scaling.transform(np.eye(4, dtype=int)).tolist() == np.eye(4).tolist()


def test_frames_and_names():
    pandas = pytest.importorskip("pandas")
    y, p, _ = labels_at(2.0)
    names = np.array(["cat", "dog", "eel", "fox"])
    scaling = TemperatureScaling().fit(pandas.Series(names[y]), pandas.DataFrame(p, columns=names))
    assert scaling.temperature_ == TemperatureScaling().fit(y, p).temperature_
    assert np.array_equal(scaling.transform(pandas.DataFrame(p, columns=names)), scaling.transform(p))
    other = TemperatureScaling().fit(names[y], p[:, ::-1], classes=names[::-1])
    assert other.temperature_ == pytest.approx(scaling.temperature_, rel=1e-12)


def test_other_predictions_than_fitted():
    y, p, _ = labels_at(2.0)
    scaling = TemperatureScaling().fit(y, p)
    with pytest.raises(
        ValueError, match="holds probabilities of 2 classes, but .* fitted to probabilities of 4 classes"
    ):
        scaling.transform([[0.2, 0.8]])
    with pytest.raises(ValueError, match="holds Normal distributions, but"):
        scaling.transform(Normal([0.0], [1.0]))
    with pytest.raises(ValueError, match="`from_logits` is for arrays"):
        scaling.transform(Normal([0.0], [1.0]), from_logits=True)


@pytest.mark.parametrize("criterion", ["likelihood", "skce"])
def test_families_that_are_not_closed(criterion):
    with pytest.raises(TypeError, match="`y_pred` is Poisson, expected class probabilities, .* not closed under"):
        TemperatureScaling(criterion=criterion).fit([1, 2], Poisson([0.5, 3.0]))


def test_categorical():
    y, p, _ = labels_at(2.0)
    names = np.array(["owl", "cat", "dog", "fox"])
    prediction = Categorical(p, classes=names)
    scaling = TemperatureScaling().fit(names[y], prediction)
    assert scaling.temperature_ == TemperatureScaling().fit(y, p).temperature_
    scaled = scaling.transform(prediction)
    assert scaled.classes == prediction.classes
    assert np.array_equal(scaled.probabilities, scaling.transform(p))
    assert TemperatureScaling().fit(names[y], Categorical(p), classes=names).temperature_ == scaling.temperature_
    with pytest.raises(ValueError, match="`classes` is given twice"):
        TemperatureScaling().fit(names[y], prediction, classes=names)
    with pytest.raises(ValueError, match="`from_logits` is for arrays"):
        TemperatureScaling().fit(names[y], prediction, from_logits=True)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"criterion": "brier"}, ValueError, "`criterion` is 'brier', expected one of 'likelihood', 'skce'"),
        ({"bounds": (1.0, 0.5)}, ValueError, r"`bounds` is \(1.0, 0.5\), .*positive and finite"),
        ({"bounds": (0.0, 1.0)}, ValueError, "positive and finite"),
        ({"bounds": (float("nan"), 1.0)}, ValueError, "positive and finite"),
        ({"bounds": 3.0}, TypeError, "`bounds` is 3.0, expected two temperatures"),
        ({"bounds": (1.0, 2.0, 3.0)}, TypeError, "expected two temperatures"),
        ({"confidence_level": 95}, ValueError, "`confidence_level` is 95, expected a number between 0 and 1"),
        ({"confidence_level": "high"}, ValueError, "`confidence_level` is 'high'"),
        ({"floor": 0.5}, ValueError, "`floor` is 0.5, expected a number from 1e-300 to 0.1"),
        ({"floor": "low"}, TypeError, "`floor` is 'low', expected a number"),
        ({"kernel": Gaussian()}, ValueError, "`kernel` is for criterion='skce', not for 'likelihood'"),
        ({"target_kernel": "delta"}, ValueError, "`target_kernel` is for criterion='skce'"),
    ],
)
def test_parameters_out_of_range(parameters, error, message):
    with pytest.raises(error, match=message):
        TemperatureScaling(**parameters).fit([0, 1], [0.2, 0.7])


def test_input_out_of_range():
    scaling = TemperatureScaling().fit([1, 1, 1, 0], [0.9] * 4)
    with pytest.raises(ValueError, match=r"`y_pred\[1\]` is 1.2, expected a probability"):
        scaling.transform([0.5, 1.2])
    with pytest.raises(ValueError, match=r"`y_pred\[1, 0\]` is nan"):
        scaling.transform([[0.5, 0.5], [float("nan"), 0.5]])
    with pytest.raises(ValueError, match="`y_true` has 1 labels"):
        TemperatureScaling().fit([1], [0.5, 0.6])
    with pytest.raises(ValueError, match="`y_true` has shape"):
        TemperatureScaling().fit([1.0], Normal([0.0, 1.0], [1.0, 1.0]))
