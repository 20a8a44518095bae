"""Predictions that are distributions: families of predicted distributions, as arrays of parameters.

What each family has: components, which target kernels have exact expectations for (others stand for themselves by
quasi Monte Carlo draws or, where targets are counts or classes, by all probabilities), and the distance that the
default kernel on predictions takes.

    family               targets   exact with target kernel        default distance        file
    Normal               R, R^d    Gaussian                        Wasserstein             normal.py
    MultivariateNormal   R^d       Gaussian                        MMD                     multivariate_normal.py
    Laplace              R         Exponential                     Wasserstein             laplace.py
    Mixture, Ensemble    R, R^d    that of the components          MMD                     mixture.py
    Samples              R         any radial kernel               Wasserstein, equal weights; else MMD
    Samples              R^d       any radial kernel               MMD                     samples.py
    Poisson              counts    any, to 1e-15 of the mass       Wasserstein, 128 cells  poisson.py
    NegativeBinomial     counts    any, to 1e-15 of the mass       Wasserstein, 128 cells  negative_binomial.py
    Categorical          classes   any: this is classification     as class probabilities  categorical.py
    PowerExponential     R         none                            MMD of draws            power_exponential.py
    Beta                 [0, 1]    none                            MMD of draws            beta.py
    Dirichlet            simplex   none                            MMD of draws            dirichlet.py
    one of your own                none                            MMD of draws            _distribution.py

What is asked of a family, and how to write your own, is in `Distribution`; `as_distribution` (adapters.py) takes the
distribution objects of SciPy, PyTorch, NumPyro and TensorFlow Probability.
"""

from kcalib.distributions._distribution import Components, Distribution
from kcalib.distributions.adapters import as_distribution
from kcalib.distributions.beta import Beta
from kcalib.distributions.categorical import Categorical
from kcalib.distributions.dirichlet import Dirichlet
from kcalib.distributions.laplace import Laplace
from kcalib.distributions.mixture import Ensemble, Mixture
from kcalib.distributions.multivariate_normal import MultivariateNormal
from kcalib.distributions.negative_binomial import NegativeBinomial
from kcalib.distributions.normal import Normal
from kcalib.distributions.poisson import Poisson
from kcalib.distributions.power_exponential import PowerExponential
from kcalib.distributions.samples import Samples

__all__ = [
    "Beta",
    "Categorical",
    "Components",
    "Dirichlet",
    "Distribution",
    "Ensemble",
    "Laplace",
    "Mixture",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "Poisson",
    "PowerExponential",
    "Samples",
    "as_distribution",
]
