"""The base of all predicted distributions, and the closed forms that they can offer.

A `Distribution` holds n distributions of one family, one for each sample, as arrays of parameters. What
kcalib needs of them is little: mixture `components` that a target kernel has closed forms for, or draws
(`sample`); and points whose distances are those of the distributions (`parameters`, `wasserstein_points`).
`kcalib._forecasts` takes targets and a distribution as input, `kcalib._packing` asks for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._problem import Family

__all__ = ["Components", "Distribution"]


@dataclass(frozen=True)
class Components:
    """The distributions as mixtures of K components of one family."""

    family: Family
    weights: Array  # shape: (n, K); rows sum to 1
    locations: Array  # means, or atoms, shape: (n, K, d)
    # normal: variances (n, K, d); normal_full: covariances (n, K, d, d); laplace: scales (n, K, 1); atoms: None
    scales: Array | None


class Distribution:
    """n predicted distributions of one family; base class of all in `kcalib.distributions`.

    A distribution of your own derives from this class and defines `n`, `event_shape`, `take` and `sample`; the
    rest has defaults that work with samples.
    """

    support: ClassVar[str] = "real"  # "real", "count" or "class"

    @property
    def n(self) -> int:
        """Number of samples."""
        raise NotImplementedError

    @property
    def event_shape(self) -> tuple[int, ...]:
        """() for distributions of numbers, (d,) for those of vectors."""
        raise NotImplementedError

    @property
    def n_dims(self) -> int:
        """d; 1 for numbers."""
        return self.event_shape[0] if self.event_shape else 1

    def take(self, rows: Any) -> Distribution:
        """Those of some samples: a slice, or an integer array."""
        raise NotImplementedError

    def sample(self, size: int, *, seed: int = 0) -> Array:
        """Independent draws, shape (n, size, *event_shape), a pure function of the seed."""
        raise NotImplementedError

    def components(self) -> Components | None:
        """The distributions as mixtures that target kernels have closed forms for; None: there are none."""
        return None

    def parameters(self) -> Array | None:
        """Parameters, shape (n, p), whose Euclidean and cityblock distances make sense; None: there are none."""
        return None

    def wasserstein_points(self) -> Array | None:
        """Points, shape (n, p), whose Euclidean distance is the 2-Wasserstein distance; None: there are none."""
        return None


def take_rows(array: Array, rows: Any) -> Array:
    """`array[rows]` along the first axis, for a slice or an integer array, in any array library."""
    if isinstance(rows, slice):
        return array[rows, ...]
    return _arrays.namespace(array).take(array, rows, axis=0)
