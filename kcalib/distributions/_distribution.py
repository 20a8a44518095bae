"""Base classes of predicted distributions.

A `Distribution` holds n distributions of one family, one for each sample, as arrays of parameters. kcalib needs little
of them: mixture `components` for which a target kernel has closed forms, or draws (`sample`, `quasi_sample`); and
points whose distances are distances between the distributions (`parameters`, `wasserstein_points`).

A family of kcalib is a dataclass of arrays that derives from `Family`, and from `Density` and `Univariate` if it has
these. It sets its arrays by `_set`, and defines `expected_value`, `standard_deviation`, and those of `_log_density`,
`_cdf` and `_inverse_cdf` that exist; draws use the last one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self, cast

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array, kind_of
from kcalib._backend.devices import methods_on_their_gpu, on_their_gpu
from kcalib._backend.memory import check_memory
from kcalib._backend.special import to_device_of
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import (
    broadcast_parameters,
    check_numbers,
    check_probabilities,
    check_size,
    check_support,
    check_targets,
    drop_column_axis,
    read_only,
    real_array,
)

__all__ = ["Components", "Distribution"]

CELLS = 128  # cells of quantile functions in approximate Wasserstein distances
_MOMENT_DRAWS = 1024
_BLOCK = 2**21  # numbers drawn at a time
_SOBOL_BITS = 30  # of scipy.stats.qmc.Sobol's points


class Distribution:
    """Base class of predicted distributions of one family, one for each of n samples.

    A custom distribution derives from this class and defines `n`, `event_shape`, `take` and `sample`; the defaults of
    the other methods use draws. Families with closed forms also have methods ``log_density(y)``, ``cdf(y)`` and
    ``quantile(probability)``. Single numbers may have positive probability, for example 0 in a rain forecast:
    `cdf_left` reveals them. If the arrays of a distribution are on an NVIDIA GPU, kcalib makes it the current device
    when calling methods.

    The families of kcalib hold NumPy arrays for parameters on the CPU, without a copy if possible, and leave arrays on
    other devices there.

    Attributes
    ----------
    support : {"real", "count", "class", "unit", "simplex"}
        The possible targets: real numbers, counts 0, 1, 2, ..., classes, numbers from 0 to 1, or probability vectors.

    Examples
    --------
    Uniform distributions, as a minimal example:

    >>> import numpy as np
    >>> import kcalib
    >>> from kcalib.distributions import Distribution
    >>> class Uniform(Distribution):
    ...     def __init__(self, low, high):
    ...         self.low, self.high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    ...
    ...     @property
    ...     def n(self):
    ...         return len(self.low)
    ...
    ...     @property
    ...     def event_shape(self):
    ...         return ()
    ...
    ...     def take(self, rows):
    ...         return Uniform(self.low[rows], self.high[rows])
    ...
    ...     def sample(self, size, *, seed=0):
    ...         u = np.random.default_rng(seed).uniform(size=(self.n, size))
    ...         return self.low[:, None] + (self.high - self.low)[:, None] * u
    >>> predictions = Uniform([0.0, 1.0, 2.0], [1.0, 3.0, 6.0])
    >>> predictions.sample(5).shape
    (3, 5)
    >>> predictions.expected_value().round(1).tolist()
    [[0.5], [2.0], [4.0]]
    """

    support: ClassVar[str] = "real"
    # Number of uniform numbers for a draw, in families whose draws are functions of these.
    _n_uniforms: int | None = None

    @property
    def n(self) -> int:
        """Return the number of samples."""
        raise NotImplementedError(f"{type(self).__name__} has no `n`; a distribution of your own defines it")

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Return the shape of a target: () for numbers, (d,) for vectors."""
        raise NotImplementedError(f"{type(self).__name__} has no `event_shape`; a distribution of your own defines it")

    @property
    def n_dims(self) -> int:
        """Return the number d of entries of a target; 1 for numbers."""
        return self.event_shape[0] if self.event_shape else 1

    def take(self, rows: Any) -> Distribution:
        """Return the distributions of some samples.

        Parameters
        ----------
        rows : slice or array of int
            The samples; an array of positions may repeat them.

        Returns
        -------
        Distribution
            Distributions of the same family.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `take`; a distribution of your own defines it")

    def sample(self, size: int, *, seed: int = 0) -> Array:
        """Draw independent samples.

        Parameters
        ----------
        size : int
            Number of draws from each distribution.
        seed : int
            The draws are a deterministic function of the parameters and the seed.

        Returns
        -------
        array, shape (n, size) or (n, size, d)
            In the library of the parameters.

        Raises
        ------
        NotImplementedError
            For `NegativeBinomial` and `Beta` on a GPU; use `quasi_sample`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `sample`; a distribution of your own defines it")

    @on_their_gpu
    def quasi_sample(self, size: int, *, seed: int = 0) -> Array:
        """Draw for averages: randomised quasi Monte Carlo points if the family has them, else `sample`.

        The points are a scrambled Sobol set (scipy.stats.qmc) with a separate digital shift for each distribution,
        mapped by quantile functions and linear maps. Every point has the predicted distribution, so averages are
        unbiased, and draws from different distributions are independent. Averages of smooth functions over a power of
        two of draws have far smaller errors than over independent draws. All families of kcalib except `Categorical`
        have such points.

        Parameters
        ----------
        size : int
            Number of draws from each distribution; best a power of two.
        seed : int
            The draws are a deterministic function of the parameters and the seed.

        Returns
        -------
        array, shape (n, size) or (n, size, d)
            In the library of the parameters.

        Raises
        ------
        MemoryError
            If they do not fit in memory; computing them takes 24 n size d bytes.
        """
        if self._n_uniforms is None:
            return self.sample(size, seed=seed)
        return self._draw_from(sobol_points(self.n, check_size(size), self._n_uniforms, seed))

    def _draw_from(self, uniforms: Array) -> Array:
        """Return draws, shape (n, size, *event_shape), from uniforms of shape (n, size, `_n_uniforms`)."""
        raise NotImplementedError

    @on_their_gpu
    def cdf_left(self, y: Any) -> Array:
        """Return P(Z < y), which is smaller than `cdf` if y has positive probability.

        The default, for continuous and discrete families with ``cdf``, is its value at the next smaller number.

        Parameters
        ----------
        y : array_like, shape (n,) or (n, k)
            A number, or k of them, for each sample.

        Returns
        -------
        array, shape of `y`
            In the library of ``cdf(y)``.
        """
        prediction: Any = self
        y = real_array(y, "y")
        numbers = arrays.to_compute_device(y)
        xp = arrays.namespace(numbers)
        if self.support == "count":
            below = xp.ceil(numbers) - 1
        else:  # the library may flush smaller numbers to 0
            next_smaller = xp.nextafter(numbers, xp.full_like(numbers, -np.inf))
            below = xp.minimum(next_smaller, numbers - float(np.finfo(np.dtype(str(numbers.dtype))).tiny))
        if self.support == "real":
            return prediction.cdf(arrays.like(below, y, y.dtype))
        lower = prediction.cdf(arrays.like(xp.maximum(below, xp.zeros_like(below)), y, y.dtype))
        return arrays.namespace(lower).where(arrays.asarray_like(below < 0, lower), 0.0, lower)

    def components(self) -> Components | None:
        """Return the distributions as mixtures with closed forms for target kernels, or None."""
        return None

    def parameters(self) -> Array | None:
        """Return parameters, shape (n, p), with meaningful Euclidean and cityblock distances, or None."""
        return None

    def wasserstein_points(self) -> Array | None:
        """Return points, shape (n, p), whose Euclidean distance is the 2-Wasserstein distance, or None."""
        return None

    @on_their_gpu
    def expected_value(self) -> Array:
        """Return expected values, shape (n, d).

        Without a closed form it is the average of 1024 draws of `quasi_sample`.

        Returns
        -------
        array, shape (n, d)
            In the library of the parameters.
        """
        return self._moments()[0]

    @on_their_gpu
    def standard_deviation(self) -> Array:
        """Return standard deviations of the entries, shape (n, d).

        Without a closed form it is computed from 1024 draws of `quasi_sample`.

        Returns
        -------
        array, shape (n, d)
            In the library of the parameters.
        """
        return self._moments()[1]

    def _moments(self) -> tuple[Array, Array]:
        means, deviations = [], []
        for rows in row_blocks(self.n, _MOMENT_DRAWS * self.n_dims):
            part = self.take(rows)
            draws = part.quasi_sample(_MOMENT_DRAWS)
            xp = arrays.namespace(draws)
            draws = xp.reshape(xp.astype(draws, xp.float64), (part.n, _MOMENT_DRAWS, self.n_dims))
            means.append(xp.mean(draws, axis=1))
            deviations.append(xp.std(draws, axis=1))
        return xp.concat(means, axis=0), xp.concat(deviations, axis=0)

    def _with(self, **fields: Any) -> Self:
        """Return a copy with some fields replaced, without checks."""
        new = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(new, name, value)
        return new


class Family(Distribution):
    """Base class of families that are frozen dataclasses of arrays, or None, with a row for each sample.

    Constructors and public methods run on the GPU of the arrays.
    """

    _event_axis: ClassVar[int] = 1  # first axis of the shape of a target in the first array

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        methods_on_their_gpu(cls)

    def _set(self, **parameters: Array) -> None:
        """Set parameters of predictions of numbers, shape (n,); a single number is repeated."""
        self._set_fields(**broadcast_parameters(**{name: drop_column_axis(x) for name, x in parameters.items()}))
        array, name = self._first, self._names()[0]
        if array.ndim != 1:
            raise ValueError(
                f"`{name}` has shape {tuple(array.shape)}, expected (n,): these are predictions of numbers"
            )

    def _set_fields(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _names(self) -> list[str]:
        return [field.name for field in dataclasses.fields(cast(Any, self)) if getattr(self, field.name) is not None]

    @property
    def _first(self) -> Array:
        return getattr(self, self._names()[0])

    @property
    def _n_uniforms(self) -> int:  # type: ignore[override]
        return self.n_dims

    @property
    def n(self) -> int:
        return int(self._first.shape[0])

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self._first.shape[self._event_axis :])

    @on_their_gpu
    def take(self, rows: Any) -> Self:
        return self._with(**{name: take_rows(getattr(self, name), rows) for name in self._names()})

    @on_their_gpu
    def parameters(self) -> Array | None:
        """Return means and standard deviations side by side."""
        return arrays.namespace(self._first).concat([self.expected_value(), self.standard_deviation()], axis=1)

    @on_their_gpu
    def sample(self, size: int, *, seed: int = 0) -> Array:
        uniforms = np.random.default_rng(seed).uniform(size=(self.n, check_size(size), self._n_uniforms))
        return self._draw_from(clip_to_open(uniforms))

    def _draw_from(self, uniforms: Array) -> Array:
        return self._like(self._inverse_cdf(to_device_of(uniforms, self._first)[:, :, 0]))

    def _inverse_cdf(self, p: Array) -> Array:
        """Return quantiles, shape (n, m), of probabilities, shape (1, m) or (n, m)."""
        raise NotImplementedError

    def _like(self, values: Array) -> Array:
        """Return computed values in the library and dtype of the parameters."""
        return arrays.like(values, self._first, dtype=self._first.dtype)

    def _columns(self, y: Array) -> tuple[Array, ...]:
        """Return parameters of shape (n,) or (n, 1), to broadcast with numbers y of shape (n,) or (n, k)."""
        flat = (arrays.to_compute_device(getattr(self, name)).reshape(-1) for name in self._names())
        return tuple(column[:, None] if y.ndim == 2 else column for column in flat)


class Density(Family):
    """Base class of families with a density, or with probabilities of counts."""

    def log_density(self, y: Any) -> Array:
        """Return the logarithm of the density, or of the probability of counts, at one target for each sample.

        Parameters
        ----------
        y : array_like, shape (n,) or (n, d)
            Targets.

        Returns
        -------
        array, shape (n,)
            In the library of the parameters.

        Raises
        ------
        ValueError
            If a target is not finite or outside of the support, or if the shape is wrong.
        """
        y = arrays.to_compute_device(check_targets(y, self._first, self.n, self.event_shape))
        check_support(y, self.support)
        return self._like(self._log_density(y))

    def _log_density(self, y: Array) -> Array:
        """Return log densities, shape (n,), at checked targets, shape (n, *event_shape)."""
        raise NotImplementedError


class Univariate(Family):
    """Base class of families of numbers with a distribution function."""

    def cdf(self, y: Any) -> Array:
        """Return P(Z <= y).

        Parameters
        ----------
        y : array_like, shape (n,) or (n, k)
            One number, or k numbers, for each sample.

        Returns
        -------
        array, shape of `y`
            A NumPy array; a CuPy array if the parameters are on an NVIDIA GPU.

        Raises
        ------
        ValueError
            If a number is not finite, if the shape is wrong, or for predictions of vectors.
        """
        return self._cdf(check_numbers(y, self._first, self.n, self.event_shape))

    def cdf_left(self, y: Any) -> Array:
        return self._cdf_left(check_numbers(y, self._first, self.n, self.event_shape))

    def quantile(self, probability: Any) -> Array:
        """Return the smallest numbers whose `cdf` is at least the probabilities.

        Parameters
        ----------
        probability : float or array_like, shape (m,)
            Probabilities above 0 and below 1.

        Returns
        -------
        array, shape (n, m)
            A NumPy array; a CuPy array if the parameters are on an NVIDIA GPU.

        Raises
        ------
        ValueError
            If a probability is out of range, or for predictions of vectors.
        """
        return self._quantile(check_probabilities(probability, self._first, self.event_shape))

    def _cdf(self, y: Array) -> Array:
        """Return P(Z <= y) for checked numbers, shape (n,) or (n, k)."""
        return self._tails(y)[0]

    def _cdf_left(self, y: Array) -> Array:
        """Return P(Z < y) for checked numbers; the default is for continuous distributions."""
        return self._cdf(y)

    def _tails(self, y: Array) -> tuple[Array, Array]:
        """Return P(Z <= y) and P(Z > y), both with small relative errors, for families of components of mixtures."""
        raise NotImplementedError

    def _quantile(self, p: Array) -> Array:
        """Return quantiles, shape (n, m), of checked probabilities, shape (1, m)."""
        return self._inverse_cdf(p)


def sobol_points(n: int, size: int, n_dims: int, seed: int) -> np.ndarray:
    """Return n sets of `size` points, shape (n, size, n_dims), all above 0 and below 1.

    One scrambled Sobol set (Matousek's linear scrambling) with a digital shift for each distribution. Every point is
    uniform in the cube, so averages over a set are unbiased. The sets of two distributions are independent given the
    scrambling, so averages over pairs of points of two distributions are also unbiased.
    """
    import scipy.stats.qmc  # slower to import than all of kcalib

    check_memory(
        n * size * n_dims * 24, None, f"{size} draws from each of {n} predictions", "take fewer draws, or fewer rows"
    )
    rng = np.random.default_rng(seed)
    points = scipy.stats.qmc.Sobol(n_dims, scramble=True, seed=rng).random_base2((size - 1).bit_length())[:size]
    digits = (points * 2.0**_SOBOL_BITS).astype(np.uint32)
    shifts = rng.integers(2**_SOBOL_BITS, size=(n, 1, n_dims), dtype=np.uint32)
    shifted = (digits[None, :, :] ^ shifts).astype(np.float64)
    shifted += rng.uniform(size=(n, 1, n_dims))  # digits beyond the last one
    shifted *= 2.0**-_SOBOL_BITS
    return clip_to_open(shifted)


def clip_to_open(points: np.ndarray) -> np.ndarray:
    """Clip uniform numbers in place to the open interval (0, 1)."""
    return np.clip(points, 2.0**-64, 1 - 2.0**-53, out=points)


def take_rows(array: Array, rows: Any) -> Array:
    """Return `array[rows]` along the first axis, for a slice or an integer array, in any array library."""
    if isinstance(rows, slice):
        return array[rows, ...]
    rows = arrays.as_array(rows, "rows")
    if kind_of(rows) not in "iu" or rows.ndim != 1:
        raise TypeError(
            f"`rows` has dtype {rows.dtype} and {rows.ndim} dimensions, expected a slice or a row of integers; "
            "for a mask pass numpy.flatnonzero(mask)"
        )
    return read_only(arrays.namespace(array).take(array, arrays.asarray_like(rows, array), axis=0))


def choose(mask: Array, first: Callable[[Any], Array], second: Callable[[Any], Array]) -> Array:
    """Return first(positions) where the mask holds, else second(positions), each evaluated only there."""
    xp = arrays.namespace(mask)
    if xp.all(mask):
        return first(...)
    if not xp.any(mask):
        return second(...)
    yes, no = xp.nonzero(mask), xp.nonzero(~mask)
    values = first(yes)
    result = xp.empty(mask.shape, dtype=values.dtype)
    result[yes], result[no] = values, second(no)
    return result


def row_blocks(n: int, width: int) -> Iterator[slice]:
    """Return slices of rows of `width` numbers, with about equal amounts of numbers."""
    step = max(_BLOCK // width, 1)
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


class QuantileLaw(Density, Univariate):
    """Base class of families of numbers whose distances use some of their quantiles."""

    def wasserstein_points(self) -> Array:
        """Return quantiles at the midpoints of 128 cells of equal probability, over the root of 128.

        Their Euclidean distance approximates the 2-Wasserstein distance, the L2 distance of quantile functions.
        """
        levels = to_device_of((np.arange(CELLS) + 0.5)[None, :] / CELLS, self._first)
        return self._like(self._inverse_cdf(levels) / CELLS**0.5)
