"""Predictions that are distributions: families of predicted distributions, as arrays of parameters."""

from kcalib.distributions._distribution import Components, Distribution
from kcalib.distributions.categorical import Categorical
from kcalib.distributions.distances import mmd_distance, wasserstein_distance
from kcalib.distributions.laplace import Laplace
from kcalib.distributions.mixture import Ensemble, Mixture
from kcalib.distributions.multivariate_normal import MultivariateNormal
from kcalib.distributions.negative_binomial import NegativeBinomial
from kcalib.distributions.normal import Normal
from kcalib.distributions.poisson import Poisson
from kcalib.distributions.samples import Samples

__all__ = [
    "Categorical",
    "Components",
    "Distribution",
    "Ensemble",
    "Laplace",
    "Mixture",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "Poisson",
    "Samples",
    "mmd_distance",
    "wasserstein_distance",
]
