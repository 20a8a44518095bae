r"""Kernels on predictions.

A kernel is a function of the distance between two predictions, or their inner product. Kernels can be added,
multiplied, and scaled by positive numbers: ``Linear() + Gaussian(bandwidth=0.4)`` is equation 8 of the CKCE paper.
With ``bandwidth=None`` the bandwidth is the median distance of the predictions (`kcalib.bandwidth`), and results report
it.

With :math:`d` the distance between two predictions in the kernel's metric and :math:`\nu` its bandwidth:

======================== ==========================================================
`Exponential`            :math:`e^{-d/\nu}` (Laplacian kernel)
`Gaussian`               :math:`e^{-d^2/(2\nu^2)}`
`GammaExponential`       :math:`e^{-(d/\nu)^\gamma}`, :math:`0 < \gamma \le 2`
`Matern` (3/2)           :math:`(1 + r) e^{-r}`, :math:`r = \sqrt{3}\, d/\nu`
`Matern` (5/2)           :math:`(1 + r + r^2/3) e^{-r}`, :math:`r = \sqrt{5}\, d/\nu`
`RationalQuadratic`      :math:`(1 + d^2/(2\alpha\nu^2))^{-\alpha}`
`GammaRationalQuadratic` :math:`(1 + (d/\nu)^\gamma/\alpha)^{-\alpha}`, :math:`0 < \gamma \le 2`
`Cosine`                 :math:`\cos(\pi d/\nu)`, positive definite on a line only
`Linear`                 :math:`\langle p, q \rangle`
======================== ==========================================================

Class probabilities have the metrics of vectors, "euclidean", "cityblock" and "total_variation". Predicted distributions
(`kcalib.distributions`) have these:

======================== ====================================================================================
``"euclidean"``          distance between parameters (also ``"cityblock"``), for families that have some
``"wasserstein"``        2-Wasserstein distance: a Euclidean distance of points for numbers and independent entries, a
                         table of distances for full covariances and mixtures
``"mmd"``, `MMD`         maximum mean discrepancy with a Gaussian kernel on targets
`MixtureWasserstein`     transport between the components of two mixtures
======================== ====================================================================================
"""

# `_packing` turns kernels into the normal form that backends read.

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Self

from kcalib._backend.options import as_float
from kcalib._pairs.problem import Factor, Metric, Term
from kcalib._pairs.profiles import PROFILES, kernel_supremum

__all__ = [
    "MMD",
    "Cosine",
    "Exponential",
    "GammaExponential",
    "GammaRationalQuadratic",
    "Gaussian",
    "Kernel",
    "Linear",
    "Matern",
    "MixtureWasserstein",
    "Product",
    "RadialKernel",
    "RationalQuadratic",
    "Scaled",
    "Sum",
]

VECTOR_METRICS = ("euclidean", "cityblock", "total_variation")
SMALLEST = 1e-15  # of bandwidth and scale; distances of probabilities below this are rounding
LARGEST = 1e15


@dataclass(frozen=True)
class MMD:
    r"""Maximum mean discrepancy between two predicted distributions, a metric of kernels such as `Exponential`.

    .. math:: d(P, Q)^2 = \mathbb{E}\, l(Z, Z') - 2\, \mathbb{E}\, l(Z, W) + \mathbb{E}\, l(W, W'), \quad
              l(y, y') = e^{-|y - y'|^2 / (2 \beta^2)}

    with independent Z, Z' from P and W, W' from Q. It is the distance in a Hilbert space, so every radial kernel with
    this metric is positive definite. It has a closed form for normal distributions, their mixtures, samples, and counts
    up to 20,000. For others it is computed from 64 draws from each prediction, with seed 0.

    Parameters
    ----------
    bandwidth : float, optional
        Length scale :math:`\beta > 0` in units of the targets. None (the default): the bandwidth of the default target
        kernel, the median distance between single draws from all predictions.

    Examples
    --------
    N(0, 1) and N(1, 1): d^2 = 2 (1 - exp(-1/6)) / sqrt(3), and with targets 0 the estimate is k(P, Q) = exp(-d^2 / 2)
    times the inner product of the residuals.

    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> from kcalib.kernels import Gaussian, MMD
    >>> options = {"target_kernel": Gaussian(bandwidth=1.0)}
    >>> P = Normal([0.0, 1.0], [1.0, 1.0])
    >>> k = Gaussian(bandwidth=1.0, metric=MMD(bandwidth=1.0))
    >>> far = Gaussian(bandwidth=1e9)
    >>> round(kcalib.skce([0.0, 0.0], P, kernel=k, **options) / kcalib.skce([0.0, 0.0], P, kernel=far, **options), 6)
    0.915181
    """

    bandwidth: float | None = None

    def __post_init__(self) -> None:
        if self.bandwidth is not None:
            object.__setattr__(self, "bandwidth", _in_range("bandwidth", self.bandwidth, "pass None for the default"))

    def __str__(self) -> str:
        return "MMD()" if self.bandwidth is None else f"MMD(bandwidth={self.bandwidth:.6g})"


@dataclass(frozen=True)
class MixtureWasserstein:
    r"""Transport distance between the components of two mixtures, a metric of kernels such as `Exponential`.

    .. math:: d(P, Q) = \Bigl(\min_{\gamma} \sum_{kl} \gamma_{kl}\, W_2(P_k, Q_l)^s\Bigr)^{1/s}

    over couplings :math:`\gamma` of the weights. In general it is not the distance in a Hilbert space, so kernels with
    this metric may be indefinite (`kcalib.IndefiniteKernelWarning`). For counts (up to 20,000) with order 2 it equals
    ``metric="wasserstein"``, and kernels are positive definite. It needs a table of n^2 numbers.

    Parameters
    ----------
    order : float
        The exponent s, at least 1.

    Examples
    --------
    >>> from kcalib.kernels import Exponential, MixtureWasserstein
    >>> print(Exponential(metric=MixtureWasserstein(order=1)))
    Exponential(bandwidth=None, metric=MixtureWasserstein(order=1))
    """

    order: float = 2

    def __post_init__(self) -> None:
        order = _in_range("order", self.order, "the order of the distance is at least 1", low=1.0)
        object.__setattr__(self, "order", order)

    def __str__(self) -> str:
        return f"MixtureWasserstein(order={self.order:g})"


KernelMetric = str | MMD | MixtureWasserstein


class Kernel:
    """Base class of kernels, which can be added, multiplied, and scaled by positive numbers.

    Kernels are immutable, compare by value, and can be hashed and pickled.

    Examples
    --------
    >>> from kcalib.kernels import Exponential, Gaussian
    >>> print(0.5 * (Exponential(bandwidth=0.1) + Exponential(bandwidth=1.0)))
    0.5 * (Exponential(bandwidth=0.1) + Exponential(bandwidth=1))
    >>> print(Exponential(metric="cityblock") * Gaussian())
    Exponential(bandwidth=None, metric='cityblock') * Gaussian(bandwidth=None)
    """

    def __add__(self, other: Kernel) -> Sum:
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum(self, other)

    def __mul__(self, other: Kernel | float) -> Product | Scaled:
        if isinstance(other, Kernel):
            return Product(self, other)
        if isinstance(other, Real) and not isinstance(other, bool):
            return Scaled(as_float(other), self)
        return NotImplemented

    def __rmul__(self, other: float) -> Product | Scaled:
        return self * other

    def open_metrics(self) -> tuple[Any, ...]:
        """Return the metrics of radial kernels whose bandwidth is None, without duplicates."""
        return tuple(dict.fromkeys(factor.metric for factor in self.factors() if factor.bandwidth is None))

    def resolve(self, bandwidths: Mapping[Any, float]) -> Kernel:
        """Return this kernel with every bandwidth of None replaced by the one in `bandwidths` for its metric."""

        def resolved(kernel: RadialKernel) -> RadialKernel:
            if kernel.bandwidth is not None:
                return kernel
            return dataclasses.replace(kernel, bandwidth=bandwidths[kernel.metric])

        return self.mapped(resolved)

    @property
    def bound(self) -> float | None:
        """Return the supremum of :math:`|k(p, q)|` over class probabilities; None if it is unbounded.

        It is 1 for radial kernels with any bandwidth and metric, and for inner products of probabilities.
        """
        euclidean = self.mapped(lambda kernel: dataclasses.replace(kernel, bandwidth=1.0, metric="euclidean"))
        return kernel_supremum(euclidean.terms(), has_bounded_points=True)

    def mapped(self, change: Callable[[RadialKernel], RadialKernel]) -> Kernel:
        """Return this kernel with `change` applied to every radial kernel in it."""
        raise _no_kernel(self)

    def terms(self) -> tuple[Term, ...]:
        """Return the normal form: terms whose sum is the kernel. All bandwidths must be numbers."""
        raise _no_kernel(self)

    def factors(self) -> tuple[RadialKernel, ...]:
        """Return the radial kernels in this kernel."""
        raise _no_kernel(self)


def _no_kernel(kernel: Kernel) -> TypeError:
    return TypeError(
        f"{type(kernel).__name__} has no formula; pass a kernel such as "
        "kcalib.kernels.Exponential(), or sums, products and scalings of those in kcalib.kernels"
    )


@dataclass(frozen=True)
class _Pair(Kernel):
    """Base class of sums and products of two kernels."""

    left: Kernel
    right: Kernel

    def mapped(self, change: Callable[[RadialKernel], RadialKernel]) -> Self:
        return type(self)(self.left.mapped(change), self.right.mapped(change))

    def factors(self) -> tuple[RadialKernel, ...]:
        return self.left.factors() + self.right.factors()


@dataclass(frozen=True)
class Sum(_Pair):
    r"""The sum of two kernels, written ``left + right``.

    .. math:: k(p, q) = k_1(p, q) + k_2(p, q)

    Parameters
    ----------
    left, right : Kernel
        The summands.

    Examples
    --------
    >>> from kcalib.kernels import Exponential, Linear
    >>> Linear() + Exponential()
    Sum(left=Linear(), right=Exponential(bandwidth=None, metric='euclidean'))
    """

    def terms(self) -> tuple[Term, ...]:
        return self.left.terms() + self.right.terms()

    def __str__(self) -> str:
        return f"{self.left} + {self.right}"


@dataclass(frozen=True)
class Product(_Pair):
    r"""The product of two kernels, written ``left * right``.

    .. math:: k(p, q) = k_1(p, q)\, k_2(p, q)

    Parameters
    ----------
    left, right : Kernel
        The factors.

    Examples
    --------
    >>> from kcalib.kernels import Exponential, Linear
    >>> Linear() * Exponential()
    Product(left=Linear(), right=Exponential(bandwidth=None, metric='euclidean'))
    """

    def terms(self) -> tuple[Term, ...]:
        return tuple(
            Term(a.coefficient * b.coefficient, a.factors + b.factors)
            for a in self.left.terms()
            for b in self.right.terms()
        )

    def __str__(self) -> str:
        return " * ".join(f"({k})" if isinstance(k, Sum) else str(k) for k in (self.left, self.right))


@dataclass(frozen=True)
class Scaled(Kernel):
    r"""A kernel times a positive number, written ``scale * kernel``.

    .. math:: k(p, q) = c\, k_1(p, q)

    Parameters
    ----------
    scale : float
        The number :math:`c > 0`.
    kernel : Kernel
        The kernel :math:`k_1`.

    Examples
    --------
    >>> from kcalib.kernels import Exponential
    >>> 2 * Exponential()
    Scaled(scale=2.0, kernel=Exponential(bandwidth=None, metric='euclidean'))
    """

    scale: float
    kernel: Kernel

    def __post_init__(self) -> None:
        remedy = "a kernel stays positive definite under positive scalings only"
        object.__setattr__(self, "scale", _in_range("scale", self.scale, remedy))

    def mapped(self, change: Callable[[RadialKernel], RadialKernel]) -> Scaled:
        return Scaled(self.scale, self.kernel.mapped(change))

    def terms(self) -> tuple[Term, ...]:
        return tuple(Term(self.scale * t.coefficient, t.factors) for t in self.kernel.terms())

    def factors(self) -> tuple[RadialKernel, ...]:
        return self.kernel.factors()

    def __str__(self) -> str:
        return f"{self.scale:g} * " + (f"({self.kernel})" if isinstance(self.kernel, Sum) else str(self.kernel))


@dataclass(frozen=True)
class Linear(Kernel):
    r"""The linear kernel: the inner product of two predictions.

    .. math:: k(p, q) = \langle p, q \rangle

    Not characteristic: some miscalibrated models have an SKCE of 0 under it. Add it to another kernel.

    Examples
    --------
    Equation 8 of the CKCE paper, and an SKCE of two samples with <p, q> = 0.44:

    >>> import kcalib
    >>> from kcalib.kernels import Gaussian, Linear
    >>> print(Linear() + Gaussian(bandwidth=0.4))
    Linear() + Gaussian(bandwidth=0.4)
    >>> value = kcalib.skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=Linear())
    >>> round(value / -0.16, 6)
    0.44
    """

    def mapped(self, change: Callable[[RadialKernel], RadialKernel]) -> Linear:
        return self

    def terms(self) -> tuple[Term, ...]:
        return (Term(1.0, (Factor("identity", "dot"),)),)

    def factors(self) -> tuple[RadialKernel, ...]:
        return ()

    def __str__(self) -> str:
        return "Linear()"


@dataclass(frozen=True)
class RadialKernel(Kernel):
    r"""Base class of radial kernels, which are functions of the distance between two predictions.

    Parameters
    ----------
    bandwidth : float, optional
        Length scale :math:`\nu > 0` in units of the metric. None (the default): the median distance of the predictions
        (`kcalib.bandwidth.median_distance`).
    metric : {"euclidean", "cityblock", "total_variation", "wasserstein", "mmd"}, MMD or MixtureWasserstein
        Distance d between two predictions. "total_variation" is half of "cityblock". "wasserstein", "mmd", ``MMD`` and
        ``MixtureWasserstein`` are for predicted distributions, whose "euclidean" distance is between parameters.
    """

    bandwidth: float | None = None
    metric: KernelMetric = "euclidean"

    profile: ClassVar[str]  # its row in src/include/kcalib/profiles.h

    def __post_init__(self) -> None:
        if not hasattr(type(self), "profile"):
            raise _no_kernel(self)
        if self.bandwidth is not None:
            bandwidth = _in_range("bandwidth", self.bandwidth, "pass None for the median heuristic")
            object.__setattr__(self, "bandwidth", bandwidth)
        if self.metric == "mmd":
            object.__setattr__(self, "metric", MMD())
        metrics = (*VECTOR_METRICS, "wasserstein")
        if not (isinstance(self.metric, (MMD, MixtureWasserstein)) or self.metric in metrics):
            names = ", ".join(map(repr, (*metrics, "mmd")))
            raise ValueError(f"`metric` is {self.metric!r}, expected one of {names}, or MMD(), or MixtureWasserstein()")

    def mapped(self, change: Callable[[RadialKernel], RadialKernel]) -> RadialKernel:
        return change(self)

    def terms(self) -> tuple[Term, ...]:
        assert self.bandwidth is not None
        if self.metric not in VECTOR_METRICS:
            raise ValueError(
                f"{self} has a metric between predicted distributions (kcalib.distributions), but these are vectors; "
                "use metric='euclidean'"
            )
        unit = 0.5 if self.metric == "total_variation" else 1.0
        metric: Metric = "euclidean" if self.metric == "euclidean" else "cityblock"
        scale = self._scale(self.bandwidth) * (unit**2 if PROFILES[self.profile].of_square else unit)
        return (Term(1.0, (Factor(self.profile, metric, scale, *self._shapes()),)),)

    def factors(self) -> tuple[RadialKernel, ...]:
        return (self,)

    def is_positive_definite(self) -> bool:
        """Return whether the kernel is known to be positive definite in every dimension."""
        everywhere = PROFILES[self.profile].positive_definite == "EVERYWHERE"
        return everywhere and (self.metric == "euclidean" or isinstance(self.metric, MMD))

    def why_indefinite(self) -> str:
        """Return why the kernel is not known to be positive definite."""
        if PROFILES[self.profile].positive_definite == "ON_A_LINE":
            return f"{type(self).__name__} is positive definite on a line only"
        definite_kernels = "Exponential, and GammaExponential and GammaRationalQuadratic with gamma <= 1,"
        return f"with this metric only {definite_kernels} are known to be positive definite"

    def _scale(self, bandwidth: float) -> float:
        return 1.0 / bandwidth

    def _shapes(self) -> tuple[float, ...]:
        return ()

    def __str__(self) -> str:
        arguments = [
            f"{f.name}={_format(getattr(self, f.name))}"
            for f in dataclasses.fields(self)
            if f.name == "bandwidth" or getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"


@dataclass(frozen=True)
class Exponential(RadialKernel):
    r"""The exponential (Laplacian) kernel, the default kernel.

    .. math:: k(p, q) = e^{-d/\nu}

    Positive definite with every metric of vectors, and with "mmd".

    Parameters
    ----------
    bandwidth, metric
        Length scale :math:`\nu` and distance d, as in `RadialKernel`.

    Examples
    --------
    For two samples with d = 0.4 sqrt(2) and <e_1, e_2> = -0.16 the estimate is -0.16 k(p, q):

    >>> from kcalib import kernels, skce
    >>> round(skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=kernels.Exponential(bandwidth=1.0)) / -0.16, 6)
    0.567971
    """

    profile: ClassVar[str] = "exponential"

    def is_positive_definite(self) -> bool:
        return self.metric in VECTOR_METRICS or isinstance(self.metric, MMD)


@dataclass(frozen=True)
class Gaussian(RadialKernel):
    r"""The Gaussian (squared exponential) kernel.

    .. math:: k(p, q) = e^{-d^2/(2\nu^2)}

    With three or more classes it is known to be positive definite for the Euclidean metric only.

    Parameters
    ----------
    bandwidth, metric
        Length scale :math:`\nu` and distance d, as in `RadialKernel`.

    Examples
    --------
    For two samples with d = 0.4 sqrt(2) and <e_1, e_2> = -0.16 the estimate is -0.16 k(p, q):

    >>> from kcalib import kernels, skce
    >>> round(skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=kernels.Gaussian(bandwidth=1.0)) / -0.16, 6)
    0.852144
    """

    profile: ClassVar[str] = "gaussian"

    def _scale(self, bandwidth: float) -> float:
        return 0.5 / bandwidth**2


@dataclass(frozen=True)
class GammaExponential(RadialKernel):
    r"""The gamma-exponential kernel.

    .. math:: k(p, q) = e^{-(d/\nu)^\gamma}

    Positive definite with the Euclidean metric and "mmd", and with every metric of vectors for
    :math:`\gamma \le 1`.

    Parameters
    ----------
    bandwidth, metric
        Length scale :math:`\nu` and distance d, as in `RadialKernel`.
    gamma : float
        Exponent, in (0, 2]; 1 is `Exponential`.

    Examples
    --------
    For two samples with d = 0.4 sqrt(2) and <e_1, e_2> = -0.16 the estimate is -0.16 k(p, q):

    >>> from kcalib import kernels, skce
    >>> k = kernels.GammaExponential(bandwidth=1.0, gamma=1.5)
    >>> round(skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=k) / -0.16, 6)
    0.653467
    """

    gamma: float = 1.0
    profile: ClassVar[str] = "gamma_exponential"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "gamma", _gamma(self.gamma))

    def is_positive_definite(self) -> bool:
        return super().is_positive_definite() or (self.gamma <= 1 and self.metric in VECTOR_METRICS)

    def _shapes(self) -> tuple[float, ...]:
        return (self.gamma,)


@dataclass(frozen=True)
class Matern(RadialKernel):
    r"""The Matern kernel of smoothness 3/2 or 5/2.

    .. math:: k(p, q) = \begin{cases}
            (1 + r)\, e^{-r}, \quad r = \sqrt{3}\, d/\nu & (\text{smoothness } 3/2) \\
            (1 + r + r^2/3)\, e^{-r}, \quad r = \sqrt{5}\, d/\nu & (\text{smoothness } 5/2)
        \end{cases}

    With three or more classes it is known to be positive definite for the Euclidean metric only.

    Parameters
    ----------
    bandwidth, metric
        Length scale :math:`\nu` and distance d, as in `RadialKernel`.
    nu : {1.5, 2.5}
        Smoothness; 1/2 is `Exponential`.

    Examples
    --------
    For two samples with d = 0.4 sqrt(2) and <e_1, e_2> = -0.16 the estimate is -0.16 k(p, q):

    >>> from kcalib import kernels, skce
    >>> round(skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=kernels.Matern(bandwidth=1.0, nu=2.5)) / -0.16, 6)
    0.789845
    """

    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (1.5, 2.5):
            raise ValueError(f"`nu` is {self.nu}, expected 1.5 or 2.5; for 0.5 use Exponential")

    @property
    def profile(self) -> str:  # type: ignore[override]
        return "matern_3_2" if self.nu == 1.5 else "matern_5_2"

    def _scale(self, bandwidth: float) -> float:
        return math.sqrt(2 * self.nu) / bandwidth


@dataclass(frozen=True)
class RationalQuadratic(RadialKernel):
    r"""The rational quadratic kernel.

    .. math:: k(p, q) = \left(1 + \frac{d^2}{2 \alpha \nu^2}\right)^{-\alpha}

    With three or more classes it is known to be positive definite for the Euclidean metric only.

    Parameters
    ----------
    bandwidth, metric
        Length scale :math:`\nu` and distance d, as in `RadialKernel`.
    alpha : float
        Exponent, > 0; towards infinity the kernel becomes `Gaussian`.

    Examples
    --------
    For two samples with d = 0.4 sqrt(2) and <e_1, e_2> = -0.16 the estimate is -0.16 k(p, q):

    >>> from kcalib import kernels, skce
    >>> k = kernels.RationalQuadratic(bandwidth=1.0, alpha=2.0)
    >>> round(skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=k) / -0.16, 6)
    0.857339
    """

    alpha: float = 1.0
    profile: ClassVar[str] = "rational_quadratic"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", _in_range("alpha", self.alpha, low=1e-3, high=1e9))

    def _scale(self, bandwidth: float) -> float:
        return 0.5 / (self.alpha * bandwidth**2)

    def _shapes(self) -> tuple[float, ...]:
        return (self.alpha,)


@dataclass(frozen=True)
class GammaRationalQuadratic(RadialKernel):
    r"""The gamma-rational quadratic kernel: a mixture of gamma-exponential kernels over length scales.

    .. math:: k(p, q) = \left(1 + \frac{(d/\nu)^\gamma}{\alpha}\right)^{-\alpha}

    Positive definite with the Euclidean metric and "mmd", and with every metric of vectors for
    :math:`\gamma \le 1`.

    Parameters
    ----------
    bandwidth, metric
        Length scale :math:`\nu` and distance d, as in `RadialKernel`.
    alpha : float
        Exponent, > 0; towards infinity the kernel becomes `GammaExponential`.
    gamma : float
        Exponent of the distance, in (0, 2]; 2 is `RationalQuadratic` with the bandwidth
        :math:`\nu / \sqrt{2}`.

    Examples
    --------
    For two samples with d = 0.4 sqrt(2) and <e_1, e_2> = -0.16 the estimate is -0.16 k(p, q):

    >>> import kcalib
    >>> from kcalib.kernels import GammaRationalQuadratic
    >>> k = GammaRationalQuadratic(bandwidth=1.0, alpha=2.0, gamma=1.5)
    >>> value = kcalib.skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=k)
    >>> round(value / -0.16, 6)
    0.67994
    """

    alpha: float = 1.0
    gamma: float = 1.0
    profile: ClassVar[str] = "gamma_rational_quadratic"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", _in_range("alpha", self.alpha, low=1e-3, high=1e9))
        object.__setattr__(self, "gamma", _gamma(self.gamma))

    def is_positive_definite(self) -> bool:
        return super().is_positive_definite() or (self.gamma <= 1 and self.metric in VECTOR_METRICS)

    def _shapes(self) -> tuple[float, ...]:
        return self.gamma, self.alpha


@dataclass(frozen=True)
class Cosine(RadialKernel):
    r"""The cosine kernel, which is periodic: predictions two bandwidths apart are as similar as equal ones.

    .. math:: k(p, q) = \cos(\pi d/\nu)

    Positive definite on a line only: for two classes, or predictions that are single numbers. Otherwise it comes with
    a `kcalib.IndefiniteKernelWarning`.

    Parameters
    ----------
    bandwidth, metric
        Length scale :math:`\nu` and distance d, as in `RadialKernel`.

    Examples
    --------
    For two samples with d = 0.4 sqrt(2) and <e_1, e_2> = -0.16 the estimate is -0.16 k(p, q):

    >>> from kcalib import kernels, skce
    >>> round(skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=kernels.Cosine(bandwidth=1.0)) / -0.16, 6)
    -0.204895
    """

    profile: ClassVar[str] = "cosine"


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, (MMD, MixtureWasserstein)) else repr(value)


def _gamma(value: float) -> float:
    gamma = _in_range("gamma", value, low=1e-6)
    if gamma > 2:
        raise ValueError(f"`gamma` is {gamma}, expected 0 < gamma <= 2: above 2 it is no kernel")
    return gamma


def _in_range(name: str, value: float, remedy: str = "", low: float = SMALLEST, high: float = LARGEST) -> float:
    """Return `value` as a float in [low, high], where squares and products fit into float32."""
    ending = f"; {remedy}" if remedy else ""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` is {value!r}, expected a positive number{ending}")
    number = as_float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"`{name}` is {value}, expected a positive finite number{ending}")
    if not low <= number <= high:
        raise ValueError(f"`{name}` is {value}, expected a number between {low:g} and {high:g}{ending}")
    return number
