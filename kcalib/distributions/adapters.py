"""Distributions of other libraries as those of kcalib: `as_distribution`.

They are known by the names of their classes and modules and read by their parameters, so none of the libraries is
imported here. Parameters are broadcast as those libraries do, then the family checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib.distributions._distribution import Distribution
from kcalib.distributions.beta import Beta
from kcalib.distributions.categorical import Categorical
from kcalib.distributions.dirichlet import Dirichlet
from kcalib.distributions.laplace import Laplace
from kcalib.distributions.mixture import Mixture
from kcalib.distributions.multivariate_normal import MultivariateNormal
from kcalib.distributions.negative_binomial import NegativeBinomial
from kcalib.distributions.normal import Normal
from kcalib.distributions.poisson import Poisson
from kcalib.distributions.power_exponential import PowerExponential

__all__ = ["as_distribution"]


@on_their_gpu
def as_distribution(predictions: Any) -> Distribution:
    """A distribution object of another library as one of kcalib's, by its parameters.

    Of these libraries:

    - SciPy's frozen ``norm``, ``laplace``, ``gennorm``, ``poisson``, ``nbinom``, ``beta`` (with loc 0, and scale 1 for
      beta), ``multivariate_normal``, ``dirichlet``, and its newer ``Normal``;
    - ``torch.distributions``, NumPyro and TensorFlow Probability: normal, multivariate normal, Laplace, Poisson,
      negative binomial, categorical, Beta and Dirichlet distributions, ``Independent`` normal ones, and
      ``MixtureSameFamily`` of normal, multivariate normal and Laplace ones.

    Parameters
    ----------
    predictions : object
        With a batch shape of (n,), or () for one prediction. Normal distributions of batch shape (n, d) are vectors of
        independent entries, as those in ``Independent`` are.

    Returns
    -------
    Distribution
        `predictions` itself if it is one already. Gradients do not pass.

    Raises
    ------
    TypeError
        For other objects; the message has the ways to make a `Distribution` of them.
    ValueError
        If the parameters are not those of a distribution that kcalib has, as of a shifted Poisson distribution.

    Examples
    --------
    >>> import scipy.stats
    >>> from kcalib.distributions import as_distribution
    >>> as_distribution(scipy.stats.norm([0.0, 1.0], 2.0)).std.tolist()
    [2.0, 2.0]
    """
    if isinstance(predictions, Distribution):
        return predictions
    if _key(predictions) in _MIXTURES:
        return _mixture(predictions)
    return _parameters(predictions).distribution()


@dataclass(frozen=True)
class _Parameters:
    """Parameters of a family; each has the batch shape, then so many dimensions of an event."""

    build: Callable[..., Distribution]
    arrays: dict[str, Array]
    event_dims: dict[str, int]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        name, array = next(iter(self.arrays.items()))
        return tuple(array.shape[: array.ndim - self.event_dims[name]])

    def distribution(self) -> Distribution:
        arrays, batch = self.arrays, self.batch_shape
        if batch == ():
            arrays = {name: array[None, ...] for name, array in arrays.items()}
        elif len(batch) == 2 and batch[1] == 1 and self.build is not Normal:
            arrays = {name: array[:, 0, ...] for name, array in arrays.items()}
        elif len(batch) > 1 and not (self.build is Normal and len(batch) == 2 and self.event_dims["mean"] == 0):
            raise ValueError(
                f"`predictions` has the batch shape {batch}, expected (n,): a distribution for each sample; "
                "take one entry at a time"
            )
        return self.build(**arrays)

    def of_component(self, k: int) -> _Parameters:
        """With position k of the last dimension of the batch."""
        at = (*(slice(None),) * (len(self.batch_shape) - 1), k, ...)
        return replace(self, arrays={name: array[at] for name, array in self.arrays.items()})


def _broadcast(build: Callable[..., Distribution], event_dims: int = 0, **values: Any) -> _Parameters:
    """Parameters of the same shape, whose last dimensions are those of events."""
    given = {name: arrays.as_array(value, name) for name, value in values.items()}
    reference = max(given.values(), key=lambda array: (not arrays.is_host(array), array.ndim))
    xp = arrays.namespace(reference)
    shared = xp.broadcast_arrays(*(arrays.asarray_like(array, reference) for array in given.values()))
    return _Parameters(build, dict(zip(given, shared, strict=True)), dict.fromkeys(given, event_dims))


def _covariances(mean: Any, cov: Any) -> _Parameters:
    mean, cov = arrays.as_array(mean, "mean"), arrays.as_array(cov, "cov")
    cov = arrays.asarray_like(cov, mean)
    d, xp = mean.shape[-1], arrays.namespace(mean)
    batch = np.broadcast_shapes(tuple(mean.shape[:-1]), tuple(cov.shape[:-2]))
    given = {"mean": xp.broadcast_to(mean, (*batch, d)), "cov": xp.broadcast_to(cov, (*batch, d, d))}
    return _Parameters(MultivariateNormal, given, {"mean": 1, "cov": 2})


# SciPy


def _of_frozen(frozen: Any) -> _Parameters:
    """The parameters of a frozen univariate distribution of scipy.stats."""
    name = frozen.dist.name
    shapes, loc, scale = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
    if name in ("poisson", "nbinom", "beta") and (np.any(np.asarray(loc) != 0) or np.any(np.asarray(scale) != 1)):
        raise ValueError(
            f"`predictions` is scipy.stats.{name} with loc={loc} and scale={scale}, expected loc=0 and scale=1; "
            "shift and scale the targets instead"
        )
    if name == "norm":
        return _broadcast(Normal, mean=loc, std=scale)
    if name == "laplace":
        return _broadcast(Laplace, loc=loc, scale=scale)
    if name == "gennorm":  # exp(-|z|^beta) is exp(-|z / 2^(-1 / beta)|^beta / 2)
        beta = np.asarray(shapes[0], dtype=np.float64)
        return _broadcast(PowerExponential, loc=loc, scale=scale * 2 ** (-1 / beta), shape=beta / 2)
    if name == "poisson":
        return _broadcast(Poisson, rate=shapes[0])
    if name == "nbinom":
        return _broadcast(NegativeBinomial.from_number_and_probability, n=shapes[0], p=shapes[1])
    if name == "beta":
        return _broadcast(Beta, a=shapes[0], b=shapes[1])
    raise _unknown(f"scipy.stats.{name}")


# torch.distributions, NumPyro and TensorFlow Probability (TFP)


def _normal(d: Any) -> _Parameters:
    return _broadcast(Normal, mean=d.loc, std=d.scale)


def _laplace(d: Any) -> _Parameters:
    return _broadcast(Laplace, loc=d.loc, scale=d.scale)


def _poisson(d: Any) -> _Parameters:
    rate = d.rate if d.rate is not None else _exponentials(d.log_rate, "log_rate")
    return _broadcast(Poisson, rate=rate)


def _exponentials(value: Any, name: str) -> Array:
    array = arrays.where_computed(arrays.as_array(value, name), np.float64)
    return arrays.namespace(array).exp(array)


def _negative_binomial(d: Any) -> _Parameters:
    """Counts of successes of odds exp(logits) before `total_count` failures."""
    count = arrays.where_computed(arrays.as_array(d.total_count, "total_count"), np.float64)
    if getattr(d, "logits", None) is not None:
        odds = _exponentials(d.logits, "logits")
    else:
        probs = arrays.where_computed(arrays.as_array(d.probs, "probs"), np.float64)
        odds = probs / (1 - probs)
    return _broadcast(NegativeBinomial, mean=count * odds, dispersion=1 / count)


def _gamma_poisson(d: Any) -> _Parameters:
    """NumPyro's: Poisson with a Gamma(concentration, rate) distributed rate."""
    concentration, rate = (
        arrays.where_computed(arrays.as_array(getattr(d, name), name), np.float64) for name in ("concentration", "rate")
    )
    return _broadcast(NegativeBinomial, mean=concentration / rate, dispersion=1 / concentration)


def _categorical(d: Any) -> _Parameters:
    probs = d.probs if getattr(d, "probs", None) is not None else d.probs_parameter()
    return _broadcast(Categorical, 1, probabilities=probs)


def _beta(d: Any) -> _Parameters:
    return _broadcast(Beta, a=d.concentration1, b=d.concentration0)


def _dirichlet(d: Any) -> _Parameters:
    return _broadcast(Dirichlet, 1, alpha=d.concentration)


def _multivariate_normal(d: Any) -> _Parameters:
    return _covariances(d.loc, d.covariance_matrix)


def _independent(d: Any) -> _Parameters:
    base = getattr(d, "base_dist", None)  # TFP: distribution
    parameters = _parameters(d.distribution if base is None else base)
    count = int(d.reinterpreted_batch_ndims)
    if count == 0:
        return parameters
    if count == 1 and parameters.build is Normal and parameters.event_dims["mean"] == 0:
        return replace(parameters, event_dims={"mean": 1, "std": 1})
    if count == 1 and parameters.batch_shape[-1:] == (1,):
        return parameters.of_component(0)
    raise ValueError(
        f"`predictions` has {count} dimension(s) of shape {parameters.batch_shape[-count:]} of independent entries in "
        "each event, expected one dimension of normal distributions; predict vectors by Normal or by draws: Samples"
    )


def _mixture(d: Any) -> Distribution:
    mixing, component = _MIXTURES[_key(d)]
    weights = _parameters(getattr(d, mixing)).arrays["probabilities"]
    parameters = _parameters(getattr(d, component))
    if parameters.batch_shape == ():
        raise ValueError("the components of `predictions` have the batch shape (), expected (n, K) or (K,)")
    n_components = parameters.batch_shape[-1]
    if weights.ndim == 2 and weights.shape[0] == 1:
        weights = weights[0, :]
    return Mixture(weights, [parameters.of_component(k).distribution() for k in range(n_components)])


_READERS: dict[tuple[str, str], Callable[[Any], _Parameters]] = {
    ("scipy", "rv_continuous_frozen"): _of_frozen,
    ("scipy", "rv_discrete_frozen"): _of_frozen,
    ("scipy", "multivariate_normal_frozen"): lambda d: _covariances(d.mean, d.cov),
    ("scipy", "dirichlet_frozen"): lambda d: _broadcast(Dirichlet, 1, alpha=d.alpha),
    ("scipy", "Normal"): lambda d: _broadcast(Normal, mean=d.mu, std=d.sigma),
    ("torch", "Categorical"): _categorical,
    ("numpyro", "CategoricalProbs"): _categorical,
    ("numpyro", "CategoricalLogits"): _categorical,
    ("tensorflow_probability", "Categorical"): _categorical,
    ("torch", "NegativeBinomial"): _negative_binomial,
    ("tensorflow_probability", "NegativeBinomial"): _negative_binomial,
    ("torch", "MultivariateNormal"): _multivariate_normal,
    ("numpyro", "MultivariateNormal"): _multivariate_normal,
    ("torch", "LowRankMultivariateNormal"): _multivariate_normal,
    ("numpyro", "LowRankMultivariateNormal"): _multivariate_normal,
    ("tensorflow_probability", "MultivariateNormalDiag"): lambda d: _broadcast(
        Normal, 1, mean=d.mean(), std=d.stddev()
    ),
}
for _library in ("torch", "numpyro", "tensorflow_probability"):
    for _name, _reader in (
        ("Normal", _normal),
        ("Laplace", _laplace),
        ("Poisson", _poisson),
        ("Beta", _beta),
        ("Dirichlet", _dirichlet),
        ("Independent", _independent),
    ):
        _READERS[_library, _name] = _reader
for _name in ("GammaPoisson", "NegativeBinomial2", "NegativeBinomialProbs", "NegativeBinomialLogits"):
    _READERS["numpyro", _name] = _gamma_poisson
for _name in ("MultivariateNormalTriL", "MultivariateNormalFullCovariance", "MultivariateNormalLinearOperator"):
    _READERS["tensorflow_probability", _name] = lambda d: _covariances(d.mean(), d.covariance())

# The names of the attributes that hold the weights and the components.
_MIXTURES = {
    ("torch", "MixtureSameFamily"): ("mixture_distribution", "component_distribution"),
    ("numpyro", "MixtureSameFamily"): ("mixing_distribution", "component_distribution"),
    ("tensorflow_probability", "MixtureSameFamily"): ("mixture_distribution", "components_distribution"),
}
_LIBRARIES = {library for library, _ in _READERS}


def _key(d: Any) -> tuple[str, str]:
    """Library and name of the class; for a class that a user derived, those of the library's class."""
    for cls in type(d).__mro__:
        library = cls.__module__.partition(".")[0]
        if library in _LIBRARIES:
            return library, cls.__name__
    return "", ""


def _parameters(d: Any) -> _Parameters:
    reader = _READERS.get(_key(d))
    if reader is None:
        raise _unknown(f"{type(d).__module__}.{type(d).__qualname__}")
    return reader(d)


def _unknown(what: str) -> TypeError:
    return TypeError(
        f"`predictions` is {what}, expected one of kcalib.distributions, or a normal, multivariate normal, Laplace, "
        "Poisson, negative binomial, categorical, Beta or Dirichlet distribution of scipy.stats (frozen), "
        "torch.distributions, NumPyro or TensorFlow Probability, or a MixtureSameFamily; for others pass draws by "
        "kcalib.distributions.Samples, or derive a class from kcalib.distributions.Distribution"
    )
