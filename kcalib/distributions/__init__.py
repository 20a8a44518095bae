"""Predictions that are distributions: families of predicted distributions, as arrays of parameters.

For each family: the target kernels with exact expectations (other families use quasi Monte Carlo draws), and the
distance of the default kernel on predictions.

====================================== =============== ========================= =========================
family                                 targets         exact for target kernels  default distance
====================================== =============== ========================= =========================
`Normal`                               numbers,        Gaussian                  Wasserstein
                                       vectors
`MultivariateNormal`                   vectors         Gaussian                  MMD
`Laplace`                              numbers         Exponential               Wasserstein
`Mixture`, `Ensemble`                  of components   of components             MMD
`Quantiles`                            numbers         bins                      Wasserstein
`Samples`                              numbers         any                       Wasserstein;
                                                                                 MMD for unequal weights
`Samples`                              vectors         any                       MMD
`Poisson`, `NegativeBinomial`          counts          any (up to 1e-15 of the   Wasserstein
                                                       mass)
`Categorical`                          classes         any                       that of class
                                                                                 probabilities
`PowerExponential`                     numbers         none                      MMD
`Beta`                                 numbers from    none                      MMD
                                       0 to 1
`StudentT`, `LogNormal`, `Gamma`       numbers         none                      MMD
`Dirichlet`                            probability     none                      MMD
                                       vectors
`Censored`, `Truncated`,               numbers,        none                      Wasserstein
`ZeroInflated`                         counts
====================================== =============== ========================= =========================

`Distribution` says what a family needs, and how to write your own. `as_distribution` converts distribution objects of
SciPy, PyTorch, NumPyro and TensorFlow Probability, and objects with methods `cdf` and `ppf` or `icdf`.
`wasserstein_distance` and `mmd_distance` compute tables of distances between predictions.
"""

from kcalib._pairs.problem import Components
from kcalib.distributions._distribution import Distribution
from kcalib.distributions.adapters import as_distribution
from kcalib.distributions.beta import Beta, Dirichlet
from kcalib.distributions.categorical import Categorical
from kcalib.distributions.counts import NegativeBinomial, Poisson
from kcalib.distributions.distances import mmd_distance, wasserstein_distance
from kcalib.distributions.laplace import Laplace
from kcalib.distributions.mixture import Ensemble, Mixture
from kcalib.distributions.multivariate_normal import MultivariateNormal
from kcalib.distributions.normal import Normal
from kcalib.distributions.positive import Gamma, LogNormal
from kcalib.distributions.power_exponential import PowerExponential
from kcalib.distributions.quantiles import Quantiles
from kcalib.distributions.samples import Samples
from kcalib.distributions.student_t import StudentT
from kcalib.distributions.wrappers import Censored, Truncated, ZeroInflated

__all__ = [
    "Beta",
    "Categorical",
    "Censored",
    "Components",
    "Dirichlet",
    "Distribution",
    "Ensemble",
    "Gamma",
    "Laplace",
    "LogNormal",
    "Mixture",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "Poisson",
    "PowerExponential",
    "Quantiles",
    "Samples",
    "StudentT",
    "Truncated",
    "ZeroInflated",
    "as_distribution",
    "mmd_distance",
    "wasserstein_distance",
]
