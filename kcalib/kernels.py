r"""Kernels on predictions.

A kernel object says what is computed: a profile, a metric on the probability simplex, a
bandwidth. Kernels add, multiply and scale: ``Linear() + Gaussian(bandwidth=0.4)`` is
equation 8 of the CKCE paper. ``bandwidth=None`` stands for the median heuristic, resolved
from the data by `kcalib.bandwidth`; results report the kernel that was used.

With :math:`d` the distance of two predictions in the kernel's metric and :math:`\nu` its
bandwidth:

===================== ==========================================================
`Exponential`         :math:`e^{-d/\nu}` (Laplacian kernel)
`Gaussian`            :math:`e^{-d^2/(2\nu^2)}`
`GammaExponential`    :math:`e^{-(d/\nu)^\gamma}`, :math:`0 < \gamma \le 2`
`Matern` (3/2)        :math:`(1 + r) e^{-r}`, :math:`r = \sqrt{3}\, d/\nu`
`Matern` (5/2)        :math:`(1 + r + r^2/3) e^{-r}`, :math:`r = \sqrt{5}\, d/\nu`
`RationalQuadratic`   :math:`(1 + d^2/(2\alpha\nu^2))^{-\alpha}`
`Linear`              :math:`\langle p, q \rangle`
===================== ==========================================================

`_packing` turns these objects into the normal form that operators read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from kcalib._problem import Factor, Metric, Profile, Term

__all__ = [
    "Exponential",
    "Gaussian",
    "GammaExponential",
    "Kernel",
    "Linear",
    "Matern",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Sum",
]

METRICS = ("euclidean", "cityblock", "total_variation")


class Kernel:
    """Base class of all kernels: sums, products and scalings."""

    def __add__(self, other: Kernel) -> Sum:
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum(self, other)

    def __mul__(self, other: Kernel | float) -> Product | Scaled:
        if isinstance(other, Kernel):
            return Product(self, other)
        if isinstance(other, Real) and not isinstance(other, bool):
            return Scaled(float(other), self)
        return NotImplemented

    def __rmul__(self, other: float) -> Product | Scaled:
        return self * other

    def resolve(self, median_distance: Callable[[str], float]) -> Kernel:
        """This kernel with every bandwidth that is None replaced by ``median_distance(metric)``."""
        raise NotImplementedError

    def terms(self) -> tuple[Term, ...]:
        """Normal form: the kernel is the sum of these terms. All bandwidths must be numbers."""
        raise NotImplementedError

    def factors(self) -> tuple[RadialKernel, ...]:
        """The radial kernels that this kernel is made of."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sum(Kernel):
    """The sum of two kernels, written ``left + right``."""

    left: Kernel
    right: Kernel

    def resolve(self, median_distance: Callable[[str], float]) -> Sum:
        return Sum(self.left.resolve(median_distance), self.right.resolve(median_distance))

    def terms(self) -> tuple[Term, ...]:
        return self.left.terms() + self.right.terms()

    def factors(self) -> tuple[RadialKernel, ...]:
        return self.left.factors() + self.right.factors()

    def __str__(self) -> str:
        return f"{self.left} + {self.right}"


@dataclass(frozen=True)
class Product(Kernel):
    """The product of two kernels, written ``left * right``."""

    left: Kernel
    right: Kernel

    def resolve(self, median_distance: Callable[[str], float]) -> Product:
        return Product(self.left.resolve(median_distance), self.right.resolve(median_distance))

    def terms(self) -> tuple[Term, ...]:
        return tuple(
            Term(a.coefficient * b.coefficient, a.factors + b.factors)
            for a in self.left.terms()
            for b in self.right.terms()
        )

    def factors(self) -> tuple[RadialKernel, ...]:
        return self.left.factors() + self.right.factors()

    def __str__(self) -> str:
        return " * ".join(f"({k})" if isinstance(k, Sum) else str(k) for k in (self.left, self.right))


@dataclass(frozen=True)
class Scaled(Kernel):
    """A kernel times a positive number, written ``2.0 * kernel``."""

    scale: float
    kernel: Kernel

    def __post_init__(self) -> None:
        _check_positive("scale", self.scale, "a kernel stays positive definite under positive scalings only")

    def resolve(self, median_distance: Callable[[str], float]) -> Scaled:
        return Scaled(self.scale, self.kernel.resolve(median_distance))

    def terms(self) -> tuple[Term, ...]:
        return tuple(Term(self.scale * t.coefficient, t.factors) for t in self.kernel.terms())

    def factors(self) -> tuple[RadialKernel, ...]:
        return self.kernel.factors()

    def __str__(self) -> str:
        return f"{self.scale:g} * " + (f"({self.kernel})" if isinstance(self.kernel, Sum) else str(self.kernel))


@dataclass(frozen=True)
class Linear(Kernel):
    """The inner product of two predictions."""

    def resolve(self, median_distance: Callable[[str], float]) -> Linear:
        return self

    def terms(self) -> tuple[Term, ...]:
        return (Term(1.0, (Factor("identity", "dot"),)),)

    def factors(self) -> tuple[RadialKernel, ...]:
        return ()

    def __str__(self) -> str:
        return "Linear()"


@dataclass(frozen=True)
class RadialKernel(Kernel):
    """A function of the distance between two predictions.

    Parameters
    ----------
    bandwidth : float, optional
        Length scale, > 0, in units of the metric. None (the default): the median of the
        pairwise distances of the predictions.
    metric : {"euclidean", "cityblock", "total_variation"}
        Distance on the simplex; total variation is half of cityblock.
    """

    bandwidth: float | None = None
    metric: str = "euclidean"

    # What the profile takes: a distance, or its square.
    squares_distance: ClassVar[bool] = False
    profile: ClassVar[Profile]

    def __post_init__(self) -> None:
        if self.bandwidth is not None:
            _check_positive("bandwidth", self.bandwidth, "pass None for the median heuristic")
        if self.metric not in METRICS:
            raise ValueError(f"`metric` is {self.metric!r}, expected one of {', '.join(map(repr, METRICS))}")

    def resolve(self, median_distance: Callable[[str], float]) -> RadialKernel:
        if self.bandwidth is not None:
            return self
        return dataclasses.replace(self, bandwidth=median_distance(self.metric))

    def terms(self) -> tuple[Term, ...]:
        assert self.bandwidth is not None
        unit = 0.5 if self.metric == "total_variation" else 1.0
        metric: Metric = "euclidean" if self.metric == "euclidean" else "cityblock"
        scale = self._scale(self.bandwidth) * (unit**2 if self.squares_distance else unit)
        return (Term(1.0, (Factor(self.profile, metric, scale, self._shape()),)),)

    def factors(self) -> tuple[RadialKernel, ...]:
        return (self,)

    def is_positive_definite(self) -> bool:
        """Whether the kernel is known to be positive definite in every dimension."""
        return self.metric == "euclidean"

    def _scale(self, bandwidth: float) -> float:
        return 1.0 / bandwidth

    def _shape(self) -> float:
        return 0.0

    def __str__(self) -> str:
        shown = [
            f"{f.name}={getattr(self, f.name):.6g}"
            if isinstance(getattr(self, f.name), float)
            else f"{f.name}={getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)
            if f.name == "bandwidth" or getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True)
class Exponential(RadialKernel):
    __doc__ = "exp(-d / bandwidth), the Laplacian kernel.\n" + (RadialKernel.__doc__ or "").partition("\n")[2]

    profile: ClassVar[Profile] = "exponential"

    def is_positive_definite(self) -> bool:
        return True


@dataclass(frozen=True)
class Gaussian(RadialKernel):
    __doc__ = "exp(-d^2 / (2 bandwidth^2)).\n" + (RadialKernel.__doc__ or "").partition("\n")[2]

    profile: ClassVar[Profile] = "gaussian"
    squares_distance: ClassVar[bool] = True

    def _scale(self, bandwidth: float) -> float:
        return 0.5 / bandwidth**2


@dataclass(frozen=True)
class GammaExponential(RadialKernel):
    __doc__ = (
        "exp(-(d / bandwidth)^gamma).\n"
        + (RadialKernel.__doc__ or "").partition("\n")[2].rstrip()
        + "\n    gamma : float\n        Exponent, in (0, 2]; 1 is `Exponential`.\n    "
    )

    gamma: float = 1.0
    profile: ClassVar[Profile] = "gamma_exponential"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("gamma", self.gamma)
        if self.gamma > 2:
            raise ValueError(f"`gamma` is {self.gamma}, expected 0 < gamma <= 2: beyond 2 this is not a kernel")

    def is_positive_definite(self) -> bool:
        return self.metric == "euclidean" or self.gamma <= 1

    def _shape(self) -> float:
        return float(self.gamma)


@dataclass(frozen=True)
class Matern(RadialKernel):
    __doc__ = (
        "The Matern kernel of smoothness 3/2 or 5/2.\n"
        + (RadialKernel.__doc__ or "").partition("\n")[2].rstrip()
        + "\n    nu : {1.5, 2.5}\n        Smoothness; 1/2 is `Exponential`.\n    "
    )

    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (1.5, 2.5):
            raise ValueError(f"`nu` is {self.nu}, expected 1.5 or 2.5; for 0.5 use Exponential")

    @property
    def profile(self) -> Profile:  # type: ignore[override]
        return "matern_3_2" if self.nu == 1.5 else "matern_5_2"

    def _scale(self, bandwidth: float) -> float:
        return math.sqrt(2 * self.nu) / bandwidth


@dataclass(frozen=True)
class RationalQuadratic(RadialKernel):
    __doc__ = (
        "(1 + d^2 / (2 alpha bandwidth^2))^-alpha.\n"
        + (RadialKernel.__doc__ or "").partition("\n")[2].rstrip()
        + "\n    alpha : float\n        Exponent, > 0; towards infinity this is `Gaussian`.\n    "
    )

    alpha: float = 1.0
    profile: ClassVar[Profile] = "rational_quadratic"
    squares_distance: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("alpha", self.alpha)

    def _scale(self, bandwidth: float) -> float:
        return 0.5 / (self.alpha * bandwidth**2)

    def _shape(self) -> float:
        return float(self.alpha)


def _check_positive(name: str, value: float, remedy: str = "") -> None:
    ending = f"; {remedy}" if remedy else ""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` is {value!r}, expected a positive number{ending}")
    if not (float(value) > 0 and math.isfinite(value)):
        raise ValueError(f"`{name}` is {value}, expected a positive finite number{ending}")
