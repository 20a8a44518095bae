"""`as_distribution`: convert distributions of other libraries.

Classes are recognised by the names of their class and module, and read by their parameters, so none of the libraries is
imported here. Parameters are broadcast as in those libraries, and then checked by the family. Other objects with a
distribution function and its inverse become an `ExternalDistribution`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib.distributions._distribution import Distribution
from kcalib.distributions.beta import Beta, Dirichlet
from kcalib.distributions.categorical import Categorical
from kcalib.distributions.counts import NegativeBinomial, Poisson
from kcalib.distributions.external import ExternalDistribution, has_functions
from kcalib.distributions.laplace import Laplace
from kcalib.distributions.mixture import Mixture
from kcalib.distributions.multivariate_normal import MultivariateNormal
from kcalib.distributions.normal import Normal
from kcalib.distributions.positive import Gamma, LogNormal
from kcalib.distributions.power_exponential import PowerExponential
from kcalib.distributions.student_t import StudentT

__all__ = ["as_distribution"]


@on_their_gpu
def as_distribution(predictions: Any) -> Distribution:
    """Convert distribution objects of another library.

    By their parameters, with closed forms and support for GPUs:

    - SciPy's frozen ``norm``, ``t``, ``lognorm``, ``gamma``, ``laplace``, ``gennorm``, ``poisson``, ``nbinom``,
      ``beta`` (with loc 0, except for ``norm``, ``t``, ``laplace`` and ``gennorm``, and scale 1 for ``beta``),
      ``multivariate_normal``, ``dirichlet``, and its newer ``Normal``;
    - ``torch.distributions``, NumPyro and TensorFlow Probability: normal, multivariate normal, Student's t, log-normal,
      gamma, Laplace, Poisson, negative binomial, categorical, Beta and Dirichlet distributions, ``Independent`` normal
      distributions, and ``MixtureSameFamily`` of normal, multivariate normal and Laplace distributions.

    By their functions: objects with vectorised methods ``cdf`` and ``ppf`` or ``icdf``, such as other distributions of
    numbers in these libraries and in skpro. Their quantiles show whether they are counts and have a density.

    Parameters
    ----------
    predictions : object or list of objects
        Batch shape (n,), or () for one prediction; or a list with one object for each sample. Normal distributions of
        batch shape (n, d) are vectors of independent entries, as in ``Independent``.

    Returns
    -------
    Distribution
        `predictions` itself if it is already a `Distribution`. Gradients are not kept.

    Raises
    ------
    TypeError, ValueError
        For other objects, with ways to make a `Distribution` in the message; if parameters are out of range, or if the
        batch shape is wrong.

    Examples
    --------
    >>> import scipy.stats
    >>> from kcalib.distributions import as_distribution
    >>> as_distribution(scipy.stats.norm([0.0, 1.0], 2.0)).std.tolist()
    [2.0, 2.0]
    """
    if isinstance(predictions, (list, tuple)) and predictions:
        return _join(predictions)
    if isinstance(predictions, Distribution):
        return predictions
    if _key(predictions) in _MIXTURES:
        return _read_mixture(predictions)
    parameters = _read_known(predictions)
    if parameters is not None:
        return parameters.distribution()
    if has_functions(predictions):
        return ExternalDistribution([predictions])
    raise _unknown(predictions)


# Modules of other libraries whose distribution objects are predictions.
_MODULES = ("scipy.stats", "torch.distributions", "numpyro.distributions", "tensorflow_probability")


def is_external(predictions: Any) -> bool:
    """Return whether these are distribution objects of another library, or a list of them."""
    if isinstance(predictions, (list, tuple)):
        return bool(predictions) and is_external(predictions[0])
    if isinstance(predictions, (np.ndarray, Distribution)):
        return False
    return type(predictions).__module__.startswith(_MODULES) or has_functions(predictions)


def _join(predictions: Sequence[Any]) -> Distribution:
    """Return the distributions of a list, one for each sample, in one family if possible."""
    parts = [_read_known(d) for d in predictions]
    if any(part is None or part.build is not parts[0].build for part in parts):  # type: ignore[union-attr]
        for i, d in enumerate(predictions):
            if not has_functions(d):
                raise _unknown(d, f"[{i}]")
        return ExternalDistribution(predictions)
    joined: list[Any] = [part.distribution() for part in parts if part is not None]
    for i, part in enumerate(joined):
        if part.n != 1 or part.event_shape != joined[0].event_shape:
            raise ValueError(
                f"`predictions[{i}]` is of {part.n} predictions of shape {part.event_shape}, expected one of shape "
                f"{joined[0].event_shape}: a list has a distribution for each sample"
            )
    xp = arrays.namespace(joined[0]._first)
    return joined[0]._with(
        **{name: xp.concat([getattr(part, name) for part in joined], axis=0) for name in joined[0]._names()}
    )


@dataclass(frozen=True)
class _Parameters:
    """Parameters of a family; each has the batch shape, followed by the event dimensions."""

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

    def take_component(self, k: int) -> _Parameters:
        """Return the parameters at position k of the last batch dimension."""
        at = (*(slice(None),) * (len(self.batch_shape) - 1), k, ...)
        return replace(self, arrays={name: array[at] for name, array in self.arrays.items()})


def _broadcast(build: Callable[..., Distribution], event_dims: int = 0, **values: Any) -> _Parameters:
    """Return parameters of a common shape whose last dimensions are event dimensions."""
    parameters = {name: arrays.as_array(value, name) for name, value in values.items()}
    reference = max(parameters.values(), key=lambda array: (not arrays.is_host(array), array.ndim))
    xp = arrays.namespace(reference)
    shared = xp.broadcast_arrays(*(arrays.asarray_like(array, reference) for array in parameters.values()))
    return _Parameters(build, dict(zip(parameters, shared, strict=True)), dict.fromkeys(parameters, event_dims))


def _covariances(mean: Any, cov: Any) -> _Parameters:
    mean, cov = arrays.as_array(mean, "mean"), arrays.as_array(cov, "cov")
    cov = arrays.asarray_like(cov, mean)
    d, xp = mean.shape[-1], arrays.namespace(mean)
    batch = np.broadcast_shapes(tuple(mean.shape[:-1]), tuple(cov.shape[:-2]))
    shared = {"mean": xp.broadcast_to(mean, (*batch, d)), "cov": xp.broadcast_to(cov, (*batch, d, d))}
    return _Parameters(MultivariateNormal, shared, {"mean": 1, "cov": 2})


def _read_frozen(frozen: Any) -> _Parameters | None:
    """Return the parameters of a frozen univariate distribution of scipy.stats, or None without a family."""
    name = frozen.dist.name
    shapes, loc, scale = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
    if name in ("poisson", "nbinom", "beta", "lognorm", "gamma") and np.any(np.asarray(loc) != 0):
        return None
    if (name == "beta" and np.any(np.asarray(scale) != 1)) or (name == "t" and np.any(np.asarray(shapes[0]) <= 1)):
        return None
    match name:
        case "norm":
            return _broadcast(Normal, mean=loc, std=scale)
        case "t":
            return _broadcast(StudentT, df=shapes[0], loc=loc, scale=scale)
        case "lognorm":
            return _broadcast(LogNormal, mean_log=np.log(scale), std_log=shapes[0])
        case "gamma":
            return _broadcast(Gamma, shape=shapes[0], scale=scale)
        case "laplace":
            return _broadcast(Laplace, loc=loc, scale=scale)
        case "gennorm":  # exp(-|z|^beta) is exp(-|z / 2^(-1 / beta)|^beta / 2)
            beta = np.asarray(shapes[0], dtype=np.float64)
            return _broadcast(PowerExponential, loc=loc, scale=scale * 2 ** (-1 / beta), shape=beta / 2)
        case "poisson":
            return _broadcast(Poisson, rate=shapes[0])
        case "nbinom":
            return _broadcast(NegativeBinomial.from_number_and_probability, n=shapes[0], p=shapes[1])
        case "beta":
            return _broadcast(Beta, a=shapes[0], b=shapes[1])
    return None


def _float64(d: Any, name: str) -> Array:
    return arrays.to_compute_device(arrays.as_array(getattr(d, name), name), np.float64)


def _exponential(d: Any, name: str) -> Array:
    array = _float64(d, name)
    return arrays.namespace(array).exp(array)


def _read_poisson(d: Any) -> _Parameters:
    return _broadcast(Poisson, rate=d.rate if d.rate is not None else _exponential(d, "log_rate"))


def _read_gamma(d: Any) -> _Parameters:
    rate = _float64(d, "rate") if d.rate is not None else _exponential(d, "log_rate")
    return _broadcast(Gamma, shape=_float64(d, "concentration"), scale=1 / rate)


def _read_negative_binomial(d: Any) -> _Parameters:
    """Return the parameters of counts of successes with odds exp(logits) before `total_count` failures."""
    count = _float64(d, "total_count")
    if getattr(d, "logits", None) is not None:
        odds = _exponential(d, "logits")
    else:
        probs = _float64(d, "probs")
        odds = probs / (1 - probs)
    return _broadcast(NegativeBinomial, mean=count * odds, dispersion=1 / count)


def _read_gamma_poisson(d: Any) -> _Parameters:
    """Return the parameters of NumPyro's Poisson with a rate distributed as Gamma(concentration, rate)."""
    concentration = _float64(d, "concentration")
    return _broadcast(NegativeBinomial, mean=concentration / _float64(d, "rate"), dispersion=1 / concentration)


def _read_categorical(d: Any) -> _Parameters:
    probs = d.probs if getattr(d, "probs", None) is not None else d.probs_parameter()
    return _broadcast(Categorical, 1, probabilities=probs)


def _read_independent(d: Any) -> _Parameters:
    base = getattr(d, "base_dist", None)  # TFP: distribution
    parameters = _read(d.distribution if base is None else base)
    count = int(d.reinterpreted_batch_ndims)
    if count == 0:
        return parameters
    if count == 1 and parameters.build is Normal and parameters.event_dims["mean"] == 0:
        return replace(parameters, event_dims={"mean": 1, "std": 1})
    if count == 1 and parameters.batch_shape[-1:] == (1,):
        return parameters.take_component(0)
    raise ValueError(
        f"`predictions` has {count} dimension(s) of shape {parameters.batch_shape[-count:]} of independent entries in "
        "each event, expected one dimension of normal distributions; predict vectors by Normal or by draws: Samples"
    )


def _read_mixture(d: Any) -> Distribution:
    mixing, component = _MIXTURES[_key(d)]
    weights = _read(getattr(d, mixing)).arrays["probabilities"]
    parameters = _read(getattr(d, component))
    if parameters.batch_shape == ():
        raise ValueError("the components of `predictions` have the batch shape (), expected (n, K) or (K,)")
    n_components = parameters.batch_shape[-1]
    if weights.ndim == 2 and weights.shape[0] == 1:
        weights = weights[0, :]
    return Mixture(weights, [parameters.take_component(k).distribution() for k in range(n_components)])


_Reader = Callable[[Any], _Parameters | None]
_SCIPY: dict[str, _Reader] = {
    "rv_continuous_frozen": _read_frozen,
    "rv_discrete_frozen": _read_frozen,
    "multivariate_normal_frozen": lambda d: _covariances(d.mean, d.cov),
    "dirichlet_frozen": lambda d: _broadcast(Dirichlet, 1, alpha=d.alpha),
    "Normal": lambda d: _broadcast(Normal, mean=d.mu, std=d.sigma),
}
_ALL: dict[str, _Reader] = {
    "Normal": lambda d: _broadcast(Normal, mean=d.loc, std=d.scale),
    "Laplace": lambda d: _broadcast(Laplace, loc=d.loc, scale=d.scale),
    "StudentT": lambda d: _broadcast(StudentT, df=d.df, loc=d.loc, scale=d.scale),
    "LogNormal": lambda d: _broadcast(LogNormal, mean_log=d.loc, std_log=d.scale),
    "Gamma": _read_gamma,
    "Poisson": _read_poisson,
    "Beta": lambda d: _broadcast(Beta, a=d.concentration1, b=d.concentration0),
    "Dirichlet": lambda d: _broadcast(Dirichlet, 1, alpha=d.concentration),
    "Independent": _read_independent,
}
_TORCH = _ALL | {
    "Categorical": _read_categorical,
    "NegativeBinomial": _read_negative_binomial,
    **dict.fromkeys(
        ("MultivariateNormal", "LowRankMultivariateNormal"), lambda d: _covariances(d.loc, d.covariance_matrix)
    ),
}
_NUMPYRO = _ALL | {
    **{name: _TORCH[name] for name in ("MultivariateNormal", "LowRankMultivariateNormal")},
    **dict.fromkeys(("CategoricalProbs", "CategoricalLogits"), _read_categorical),
    **dict.fromkeys(
        ("GammaPoisson", "NegativeBinomial2", "NegativeBinomialProbs", "NegativeBinomialLogits"), _read_gamma_poisson
    ),
}
_TFP = _ALL | {
    "Categorical": _read_categorical,
    "NegativeBinomial": _read_negative_binomial,
    "MultivariateNormalDiag": lambda d: _broadcast(Normal, 1, mean=d.mean(), std=d.stddev()),
    **dict.fromkeys(
        ("MultivariateNormalTriL", "MultivariateNormalFullCovariance", "MultivariateNormalLinearOperator"),
        lambda d: _covariances(d.mean(), d.covariance()),
    ),
}
_READERS = {"scipy": _SCIPY, "torch": _TORCH, "numpyro": _NUMPYRO, "tensorflow_probability": _TFP}

# The names of the attributes that hold the weights and the components.
_MIXTURES = {
    ("torch", "MixtureSameFamily"): ("mixture_distribution", "component_distribution"),
    ("numpyro", "MixtureSameFamily"): ("mixing_distribution", "component_distribution"),
    ("tensorflow_probability", "MixtureSameFamily"): ("mixture_distribution", "components_distribution"),
}


def _key(d: Any) -> tuple[str, str]:
    """Return library and class name; for a class derived by a user those of the library's class."""
    for cls in type(d).__mro__:
        library = cls.__module__.partition(".")[0]
        if library in _READERS:
            return library, cls.__name__
    return "", ""


def _read_known(d: Any) -> _Parameters | None:
    """Return the parameters of an object with a family in kcalib, or None."""
    library, name = _key(d)
    reader = _READERS.get(library, {}).get(name)
    return None if reader is None else reader(d)


def _read(d: Any) -> _Parameters:
    parameters = _read_known(d)
    if parameters is None:
        raise _unknown(d)
    return parameters


def _unknown(d: Any, subscript: str = "") -> TypeError:
    return TypeError(
        f"`predictions{subscript}` is {type(d).__module__}.{type(d).__qualname__}, expected one of "
        "kcalib.distributions, an object with `cdf` and `ppf` or `icdf`, or a multivariate normal, Student's t, gamma, "
        "Poisson, negative binomial, categorical, Beta or Dirichlet distribution of scipy.stats (frozen), "
        "torch.distributions, NumPyro or TensorFlow Probability, or a MixtureSameFamily; for others pass draws by "
        "kcalib.distributions.Samples, or derive a class from kcalib.distributions.Distribution"
    )
