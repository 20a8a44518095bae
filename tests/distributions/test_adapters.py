"""Distribution objects of SciPy, PyTorch, NumPyro and TensorFlow Probability become those of kcalib."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import scipy.stats

from kcalib.distributions import (
    Beta,
    Categorical,
    Dirichlet,
    Distribution,
    Laplace,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    PowerExponential,
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
        unlike(lambda: scipy.stats.gamma(2.0), TypeError, "`predictions` is scipy.stats.gamma, expected one of"),
        unlike(lambda: scipy.stats.norm, TypeError, r"`predictions` is scipy.stats._continuous_distns.norm_gen"),
        unlike(lambda: fake(TFP, "Gumbel"), TypeError, "Gumbel, expected .* for others pass draws by .*Samples"),
        unlike(lambda: scipy.stats.poisson(2.0, loc=1), ValueError, "scipy.stats.poisson with loc=1 and scale=1, exp"),
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
