"""Distribution objects of SciPy, PyTorch, NumPyro and TensorFlow Probability become those of kcalib."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import scipy.stats

import kcalib
from kcalib.distributions import (
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Gamma,
    Laplace,
    LogNormal,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    PowerExponential,
    StudentT,
    as_distribution,
)

MEAN, SCALE = np.array([0.0, -3.0, 250.0]), np.array([1.0, 0.01, 40.0])
SHAPE = np.array([0.3, 1.0, 7.0])
A, B = np.array([0.05, 2.0, 3000.0]), np.array([0.4, 5.0, 70.0])
RATE, DISPERSION = np.array([0.03, 4.0, 900.0]), np.array([2.0, 0.3, 1e-3])
COV = np.array([[[2.0, 0.9], [0.9, 1.0]], [[1e-4, 0.0], [0.0, 3.0]], [[5.0, -4.0], [-4.0, 5.0]]])
VECTORS = np.array([[0.0, 1.0], [2.0, -2.0], [0.5, 0.25]])
WEIGHTS = np.array([[0.2, 0.8, 0.0], [0.5, 0.25, 0.25], [0.1, 0.9, 0.0]])
PROBABILITIES = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


P = np.array([1e-9, 0.01, 0.2, 0.5, 0.77, 0.999])


def unlike(make: Callable[[], Any], error: type, message: str) -> Any:
    return pytest.param(make, error, message, id=message[:50])


def same(found: Distribution, expected: Distribution) -> None:
    assert type(found) is type(expected) and (found.n, found.event_shape) == (expected.n, expected.event_shape)
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "members":
            assert len(one) == len(other)
            for pair in zip(one, other):
                same(*pair)
        elif other is None:
            assert one is None
        else:
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)  # float32 in some libraries


SCIPY = {
    "norm": (scipy.stats.norm(MEAN, 2.0), Normal(MEAN, 2.0)),
    "norm_keywords": (scipy.stats.norm(scale=SCALE), Normal(0.0, SCALE)),
    "norm_one": (scipy.stats.norm(1.0, 2.0), Normal([1.0], [2.0])),
    "norm_vectors": (scipy.stats.norm(VECTORS, 1.0), Normal(VECTORS, 1.0)),
    "laplace": (scipy.stats.laplace(MEAN, SCALE), Laplace(MEAN, SCALE)),
    "laplace_column": (scipy.stats.laplace(MEAN[:, None], 1.0), Laplace(MEAN, 1.0)),
    "gennorm": (scipy.stats.gennorm(2 * SHAPE, MEAN, SCALE * 2 ** (0.5 / SHAPE)), PowerExponential(MEAN, SCALE, SHAPE)),
    "poisson": (scipy.stats.poisson(RATE), Poisson(RATE)),
    "nbinom": (scipy.stats.nbinom(1 / DISPERSION, 1 / (1 + DISPERSION * RATE)), NegativeBinomial(RATE, DISPERSION)),
    "t": (scipy.stats.t(SHAPE + 2, MEAN, SCALE), StudentT(SHAPE + 2, MEAN, SCALE)),
    "lognorm": (scipy.stats.lognorm(SHAPE / 2, scale=SCALE), LogNormal(np.log(SCALE), SHAPE / 2)),
    "gamma": (scipy.stats.gamma(SHAPE, scale=SCALE), Gamma(SHAPE, SCALE)),
    "list of norm": ([scipy.stats.norm(m, s) for m, s in zip(MEAN, SCALE)], Normal(MEAN, SCALE)),
    "beta": (scipy.stats.beta(A, 2.0), Beta(A, 2.0)),
    "multivariate_normal": (
        scipy.stats.multivariate_normal(VECTORS[0], COV[0]), MultivariateNormal(VECTORS[:1], COV[:1])
    ),
    "dirichlet": (scipy.stats.dirichlet([1.0, 2.0]), Dirichlet([[1.0, 2.0]])),
}  # fmt: skip


@pytest.mark.parametrize("given, expected", SCIPY.values(), ids=SCIPY)
def test_distributions_of_scipy(given, expected):
    same(as_distribution(given), expected)
    assert as_distribution(expected) is expected


@pytest.mark.skipif(not hasattr(scipy.stats, "Normal"), reason="SciPy before 1.15")
def test_new_distributions_of_scipy():
    same(as_distribution(scipy.stats.Normal(mu=MEAN, sigma=SCALE)), Normal(MEAN, SCALE))


def test_distributions_of_torch():
    torch = pytest.importorskip("torch")
    t, D = torch.tensor, torch.distributions
    mean, scale, vectors, cov = t(MEAN), t(SCALE), t(VECTORS), t(COV)
    rate, dispersion, a, b, p = t(RATE), t(DISPERSION), t(A), t(B), t(PROBABILITIES)
    alpha = t(RATE[:, None] + A)
    weights = t(WEIGHTS)
    parts = torch.stack([mean, mean + 1, mean + 2], dim=1)
    cases = [
        (D.Normal(mean.requires_grad_(), 2.0), Normal(MEAN, 2.0)),
        (D.Normal(0.0, 1.0), Normal([0.0], [1.0])),
        (D.Independent(D.Normal(vectors, 1.0), 1), Normal(VECTORS, 1.0)),
        (D.Independent(D.Normal(vectors[0], 1.0), 1), Normal(VECTORS[:1], 1.0)),
        (D.Independent(D.Laplace(mean[:, None], 1.0), 1), Laplace(MEAN, 1.0)),
        (D.Independent(D.Laplace(mean, 1.0), 0), Laplace(MEAN, 1.0)),
        (D.MultivariateNormal(vectors, cov), MultivariateNormal(VECTORS, COV)),
        (D.MultivariateNormal(vectors, scale_tril=torch.linalg.cholesky(cov)), MultivariateNormal(VECTORS, COV)),
        (D.StudentT(t(SHAPE) + 2, mean, scale), StudentT(SHAPE + 2, MEAN, SCALE)),
        (D.LogNormal(-scale / 2, scale / 10), LogNormal(-SCALE / 2, SCALE / 10)),
        (D.Gamma(a, b), Gamma(A, 1 / B)),
        ([D.Laplace(m, 1.0) for m in mean], Laplace(MEAN, 1.0)),
        (D.Laplace(mean, scale), Laplace(MEAN, SCALE)),
        (D.Poisson(rate), Poisson(RATE)),
        (D.NegativeBinomial(1 / dispersion, logits=torch.log(dispersion * rate)), NegativeBinomial(RATE, DISPERSION)),
        (D.Categorical(probs=p), Categorical(PROBABILITIES)),
        (D.Beta(a, b), Beta(A, B)),
        (D.Dirichlet(alpha), Dirichlet(RATE[:, None] + A)),
        (
            D.MixtureSameFamily(D.Categorical(probs=weights), D.Normal(parts, 1.5)),
            Mixture(WEIGHTS, [Normal(MEAN + k, 1.5) for k in range(3)]),
        ),
        (
            D.MixtureSameFamily(
                D.Categorical(probs=weights[0]), D.Independent(D.Normal(torch.stack([vectors] * 3, dim=1), 1.5), 1)
            ),
            Mixture(WEIGHTS[0], [Normal(VECTORS, 1.5)] * 3),
        ),
        (
            D.MixtureSameFamily(
                D.Categorical(probs=weights), D.MultivariateNormal(torch.stack([vectors] * 3, dim=1), cov[0])
            ),
            Mixture(WEIGHTS, [MultivariateNormal(VECTORS, COV[0])] * 3),
        ),
        (
            D.MixtureSameFamily(D.Categorical(probs=weights[0]), D.Laplace(mean[:3], 1.0)),
            Mixture(WEIGHTS[0], [Laplace([m], 1.0) for m in MEAN]),
        ),
    ]  # fmt: skip
    for given, expected in cases:
        same(as_distribution(given), expected)
    negative_binomial = as_distribution(D.NegativeBinomial(3.0, probs=t([0.2, 0.4])))
    np.testing.assert_allclose(negative_binomial.expected_value()[:, 0], [0.75, 2.0], rtol=1e-6)


class Law:
    """An object with functions alone, 1 + gamma laws: for columns (n, 1), as skpro's, where the shape is a column."""

    def __init__(self, shape=None, scale=1.0):
        self.shape, self.scale = shape, scale

    def cdf(self, x):
        return scipy.stats.gamma.cdf(x, self.shape, 1, self.scale)

    def icdf(self, p):
        if self.shape is None:
            raise NotImplementedError
        return scipy.stats.gamma.ppf(p, self.shape, 1, self.scale)

    def log_prob(self, x):
        return scipy.stats.gamma.logpdf(x, self.shape, 1, self.scale)


GAMMA = Gamma(SHAPE, SCALE)
EXTERNAL = {
    "frozen": lambda: scipy.stats.gamma(SHAPE, 1, SCALE),
    "new": lambda: scipy.stats.make_distribution(scipy.stats.gamma)(a=SHAPE) * SCALE + 1,
    "list": lambda: [scipy.stats.gamma(a, loc=1, scale=s) for a, s in zip(SHAPE, SCALE)],
    "list of several families": lambda: [Law(SHAPE[0], SCALE[0]), *EXTERNAL["list"]()[1:]],
    "functions": lambda: Law(SHAPE, SCALE),
    "columns": lambda: Law(SHAPE[:, None], SCALE[:, None]),
}


@pytest.mark.parametrize("name", EXTERNAL)
def test_objects_with_functions(name):
    """Laws of 1 + Z beside those of Z, which have closed forms; rows in any order, some twice."""
    if name == "new" and not hasattr(scipy.stats, "make_distribution"):
        pytest.skip("SciPy before 1.15")
    predictions, y = EXTERNAL[name](), np.array([0.2, 1e-3, 300.0])
    d, rows = as_distribution(predictions), [2, 0, 0, 1]
    assert (d.n, d.event_shape, d.support) == (3, (), "real")
    np.testing.assert_allclose(kcalib.pit_values(y + 1, predictions), GAMMA.cdf(y), rtol=1e-12)
    np.testing.assert_allclose(
        d.take(rows).cdf(np.stack([y[rows], y[rows] + 1]).T)[:, 1], GAMMA.cdf(y)[rows], rtol=1e-12
    )
    np.testing.assert_allclose(d.take(rows).quantile(P) - 1, GAMMA.quantile(P)[rows], rtol=1e-9, atol=1e-15)
    assert kcalib.crps(y + 1, predictions) == pytest.approx(kcalib.crps(y, GAMMA), rel=1e-7)
    log_scores = d.take(rows).log_density(y[rows] + 1) if hasattr(d, "log_density") else None
    expected = GAMMA.log_density(y)[rows]
    if name == "list of several families":
        assert log_scores is None
    else:
        np.testing.assert_allclose(log_scores, expected, rtol=1e-9)
    if name in ("frozen", "list", "new"):
        np.testing.assert_allclose(d.take(rows).expected_value(), 1 + GAMMA.expected_value()[rows])
        np.testing.assert_allclose(d.take(rows).standard_deviation(), GAMMA.standard_deviation()[rows])
    np.testing.assert_array_equal(d.sample(3, seed=5), d._draw_from(np.random.default_rng(5).uniform(size=(3, 3, 1))))
    assert name != "columns" or math.isfinite(kcalib.skce(y + 1, predictions))


def test_counts_and_atoms_of_objects_with_functions():
    y, law = np.array([0.0, 3.0, 5.0]), scipy.stats.binom(5, 0.3)
    expected = np.mean([np.sum((law.cdf(np.arange(5)) - (np.arange(5) >= t)) ** 2) for t in y])
    objects = [scipy.stats.binom(np.full(3, 5), 0.3)]
    if hasattr(scipy.stats, "Binomial"):  # whose cdf interpolates between counts
        objects.append(scipy.stats.Binomial(n=np.full(3, 5), p=0.3))
    for predictions in objects:
        assert as_distribution(predictions).support == "count"
        assert kcalib.crps(y, predictions) == pytest.approx(expected, rel=1e-10)
        assert kcalib.log_score(y, predictions) == pytest.approx(-np.mean(law.logpmf(y)), rel=1e-12)
        below = law.cdf(y - 1)
        assert ((below < kcalib.pit_values(y, predictions)) & (kcalib.pit_values(y, predictions) < law.cdf(y))).all()
    with pytest.raises(ValueError, match=r"`y_true\[0\]` is 0.5, expected a count"):
        kcalib.crps(y + 0.5, objects[0])

    class Rain:
        """Dry with probability 0.3, else exponential."""

        def cdf(self, x):
            return np.where(x < 0, 0.0, 1 - 0.7 * np.exp(-np.maximum(x, 0.0)))

        def ppf(self, p):
            return np.maximum(0.0, -np.log((1 - p) / 0.7)) + 0 * np.zeros(3)

    pit = kcalib.pit_values([0.0, 0.0, 1.0], Rain(), seed=1)
    assert (pit[:2] < 0.3).all() and pit[0] != pit[1] and pit[2] == pytest.approx(1 - 0.7 * math.exp(-1))
    # Dry: the integral of (0.7 exp(-x))^2.
    assert kcalib.crps(np.zeros(3), Rain()) == pytest.approx(0.49 / 2, rel=1e-7)
    with pytest.raises(ValueError, match="has no density"):
        kcalib.log_score(np.zeros(3), Rain())


def test_objects_of_torch_with_functions():
    torch = pytest.importorskip("torch")
    law = torch.distributions.Weibull(torch.ones(3), torch.full((3,), 1.5))
    y, exact = np.array([0.2, 1.0, 3.0]), scipy.stats.weibull_min(np.full(3, 1.5))
    assert kcalib.crps(y, law) == pytest.approx(kcalib.crps(y, exact), rel=1e-6)
    assert kcalib.log_score(y, law) == pytest.approx(kcalib.log_score(y, exact), rel=1e-6)
    beyond = np.array([-1.0, 0.0, 0.5])  # of which the object refuses the first two
    assert kcalib.crps(beyond, law) == pytest.approx(kcalib.crps(beyond, exact), rel=1e-6)
    assert kcalib.pit_values(beyond, law)[:2].tolist() == [0.0, 0.0] and kcalib.log_score(beyond, law) == math.inf


class Fake:
    """Attributes alone."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def fake(module: str, name: str, **attributes: Any) -> Any:
    """An object of a class of this module and name. NumPyro and TensorFlow Probability need not be installed."""
    return type(name, (Fake,), {"__module__": module})(**attributes)


NUMPYRO, TFP = "numpyro.distributions.continuous", "tensorflow_probability.python.distributions.any"
JAX_TFP = "tensorflow_probability.substrates.jax.distributions.any"


def numpyro_and_tfp() -> list[tuple[Any, Distribution]]:
    base = fake(TFP, "Normal", loc=VECTORS, scale=1.0)
    categorical = fake(TFP, "Categorical", probs=None, probs_parameter=lambda: WEIGHTS)
    parts = np.stack([MEAN, MEAN + 1, MEAN + 2], axis=1)
    weights = fake("numpyro.distributions.discrete", "CategoricalProbs", probs=WEIGHTS)
    components = fake(NUMPYRO, "Normal", loc=parts, scale=np.ones((1, 1)))
    mixed = Mixture(WEIGHTS, [Normal(MEAN + k, 1.0) for k in range(3)])
    return [
        (fake(NUMPYRO, "Normal", loc=MEAN, scale=np.ones(1)), Normal(MEAN, 1.0)),
        (fake(NUMPYRO, "MultivariateNormal", loc=VECTORS, covariance_matrix=COV), MultivariateNormal(VECTORS, COV)),
        (
            fake(NUMPYRO, "Independent", base_dist=fake(NUMPYRO, "Normal", loc=VECTORS, scale=np.ones((1, 1))),
                 reinterpreted_batch_ndims=1),
            Normal(VECTORS, 1.0),
        ),
        (
            fake("numpyro.distributions.conjugate", "NegativeBinomial2", concentration=1 / DISPERSION,
                 rate=1 / (DISPERSION * RATE)),
            NegativeBinomial(RATE, DISPERSION),
        ),
        (
            fake("numpyro.distributions.mixtures", "MixtureSameFamily", mixing_distribution=weights,
                 component_distribution=components),
            mixed,
        ),
        (fake(NUMPYRO, "StudentT", df=SHAPE + 2, loc=MEAN, scale=SCALE), StudentT(SHAPE + 2, MEAN, SCALE)),
        (fake(NUMPYRO, "LogNormal", loc=np.log(SCALE), scale=SHAPE / 2), LogNormal(np.log(SCALE), SHAPE / 2)),
        (fake(TFP, "Gamma", concentration=A, rate=None, log_rate=np.log(B)), Gamma(A, 1 / B)),
        (fake(TFP, "Laplace", loc=MEAN, scale=1.0), Laplace(MEAN, 1.0)),
        (fake(JAX_TFP, "Poisson", rate=None, log_rate=np.log(RATE)), Poisson(RATE)),
        (fake(TFP, "Independent", distribution=base, reinterpreted_batch_ndims=np.int32(1)), Normal(VECTORS, 1.0)),
        (
            fake(TFP, "MultivariateNormalTriL", mean=lambda: VECTORS, covariance=lambda: COV[0]),
            MultivariateNormal(VECTORS, COV[0]),
        ),
        (
            fake(TFP, "MultivariateNormalDiag", mean=lambda: VECTORS, stddev=lambda: np.ones(2)),
            Normal(VECTORS, 1.0),
        ),
        (categorical, Categorical(WEIGHTS)),
        (
            fake(TFP, "NegativeBinomial", total_count=3.0, logits=None, probs=np.array([0.2, 0.4])),
            NegativeBinomial([0.75, 2.0], 1 / 3),
        ),
        (
            fake(TFP, "MixtureSameFamily", mixture_distribution=categorical,
                 components_distribution=fake(TFP, "Normal", loc=parts, scale=1.0)),
            mixed,
        ),
        (fake(TFP, "Beta", concentration1=A, concentration0=B), Beta(A, B)),
        (fake(TFP, "Dirichlet", concentration=VECTORS**2 + 1), Dirichlet(VECTORS**2 + 1)),
    ]  # fmt: skip


@pytest.mark.parametrize("given, expected", numpyro_and_tfp(), ids=lambda d: type(d).__name__)
def test_distributions_of_numpyro_and_tensorflow_probability_by_name(given, expected):
    same(as_distribution(given), expected)


@pytest.mark.parametrize(
    "make, error, message",
    [
        unlike(lambda: object(), TypeError, "`predictions` is builtins.object, expected one of kcalib.distr"),
        unlike(lambda: [object()], TypeError, r"`predictions\[0\]` is builtins.object, expected one of kcalib.d"),
        unlike(lambda: Law(), TypeError, "test_adapters.Law, whose quantile function is not implemented; pass draws"),
        unlike(lambda: Law(np.full((2, 2), 0.5)), ValueError, r"has the batch shape \(2, 2\), expected \(n,\): a dis"),
        unlike(lambda: [Law(0.0), Law(np.ones(2))], ValueError, r"`predictions\[1\]` has the batch shape \(2,\), ex"),
        unlike(lambda: Law(np.array([1, np.nan])), ValueError, r"quantile of the predictions\[1, 0\] is nan at 1e-06"),
        unlike(lambda: [scipy.stats.norm([0.0, 1.0])], ValueError, r"`predictions\[0\]` is of 2 predictions of shap"),
        unlike(lambda: scipy.stats.norm, TypeError, r"`predictions` is scipy.stats._continuous_distns.norm_gen"),
        unlike(lambda: fake(TFP, "Gumbel"), TypeError, "Gumbel, expected .* for others pass draws by .*Samples"),
        unlike(lambda: scipy.stats.norm([0.0], [-1.0]), ValueError, r"`std\[0\]` is -1, expected a positive"),
        unlike(lambda: scipy.stats.poisson(VECTORS**2 + 1), ValueError, r"the batch shape \(3, 2\), expected \(n,\)"),
        unlike(
            lambda: fake(NUMPYRO, "Independent", base_dist=fake(NUMPYRO, "Laplace", loc=VECTORS, scale=1.0),
                         reinterpreted_batch_ndims=1),
            ValueError,
            r"has 1 dimension\(s\) of shape \(2,\) of independent entries in each event, expected one dimension of",
        ),
        unlike(
            lambda: fake(TFP, "MixtureSameFamily", mixture_distribution=fake(TFP, "Categorical", probs=np.ones(1)),
                         components_distribution=fake(TFP, "Poisson", rate=np.ones((4, 1)))),
            TypeError,
            r"`components\[0\]` is of type Poisson, expected Normal, MultivariateNormal, Laplace",
        ),
    ],
)  # fmt: skip
def test_distributions_that_cannot_be_taken(make, error, message):
    given = make()
    with pytest.raises(error, match=message):
        as_distribution(given)
