"""Public functions for Wasserstein and MMD distances between predicted distributions."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import as_float, check_positive
from kcalib._pairs import mixtures
from kcalib._pairs.problem import Components, Mixtures
from kcalib.distributions._distances.mixtures import match_components, wasserstein_table
from kcalib.distributions._distances.tables import check_table, euclidean_table
from kcalib.distributions._distribution import Distribution
from kcalib.distributions.counts import Counts
from kcalib.kernels import Gaussian

__all__ = ["mmd_distance", "wasserstein_distance"]


@on_their_gpu
def wasserstein_distance(
    prediction: Distribution,
    other: Distribution | None = None,
    *,
    order: float = 2.0,
    max_memory: float | None = None,
    threads: int | None = None,
) -> Array:
    r"""Compute Wasserstein distances between predicted distributions.

    Between distributions of one component each, such as two normal or two Laplace distributions, it is the
    2-Wasserstein distance :math:`W_2`. Between mixtures it is the distance of [2]_ and [3]_ (equation D.2 of [1]_, with
    :math:`W_2` between components), the lowest cost of transporting the weights of the components:

    .. math:: \mathrm{MW}_s(P, P') = \Bigl(\min_w \sum_{kl} w_{kl} W_2(P_k, P'_l)^s\Bigr)^{1/s}

    over the couplings w of the weights of P and P'. Between samples, whose components are points, it is the Wasserstein
    distance of order s under the Euclidean distance. Between counts it is the same distance, by sums over all counts
    with probability above 1e-15; beyond 20,000, 128 quantiles approximate it.

    Parameters
    ----------
    prediction : Distribution
        Predicted distributions, n of them.
    other : Distribution, optional
        Further n' distributions of the same kind; by default the predictions themselves.
    order : float
        The order s, at least 1; 2 for distributions without components. With one component each the distance is the
        same for every s.
    max_memory : float, optional
        Bytes that the table may take. Default: available memory.
    threads : int, optional
        Threads, at least 1. Default: OMP_NUM_THREADS, at most the CPUs this process may use.

    Returns
    -------
    array, shape (n, n'), float64
        Distances, 0 for equal distributions; a NumPy array, or a CuPy array for predictions on a GPU. Between similar
        normal distributions the error is about 1e-15 of their scale, and 1e-8 if covariances are singular.

    Raises
    ------
    TypeError, ValueError
        If a prediction is not a `Distribution`, or has neither components nor points; if the distributions are of
        different kinds or sizes, or an option is out of range.
    NotImplementedError
        For mixtures of several components, or samples of vectors with unequal weights, on a GPU.
    MemoryError
        If the table takes more memory than available or allowed.

    See Also
    --------
    mmd_distance : A distance with positive definite kernels for mixtures of normal distributions.

    Notes
    -----
    For s up to 2 :math:`\mathrm{MW}_s` is an upper bound of the :math:`W_s` of mixtures, which have no closed form: it
    moves components as a whole. The two agree for samples, and for one component each if s = 2.

    Kernels of :math:`W_2` are positive definite if the distances are distances between points. For normal distributions
    with full covariances, mixtures, and samples of vectors they may be indefinite: an estimate may then be negative, or
    zero for a miscalibrated model. The user guide says more in "Formulas of intervals and tests".

    Time: n n' pairs (half of it without `other`); a pair of K and L components in d dimensions takes :math:`O(K L d)`,
    or :math:`O(K L d^3)` for full covariances, plus the search of the coupling: :math:`O(K^3)` for equal numbers of
    components with equal weights, more for others, :math:`O(K \log K)` for samples of numbers. Couplings of more than
    32 components with unequal weights are accurate to 1e-8 of the largest cost, others to rounding. Memory besides the
    table: a few megabytes.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah, Calibration tests beyond classification, ICLR 2021, appendix D.3.
    .. [2] J. Delon, A. Desolneux, A Wasserstein-type distance in the space of Gaussian mixture models, SIAM Journal on
       Imaging Sciences 13, 2020.
    .. [3] Y. Chen, T. T. Georgiou, A. Tannenbaum, Optimal transport for Gaussian mixture models, IEEE Access 7, 2019.

    Examples
    --------
    >>> from kcalib.distributions import Normal, wasserstein_distance
    >>> wasserstein_distance(Normal([0.0, 3.0], [1.0, 5.0]))
    array([[0., 5.],
           [5., 0.]])
    """
    _check_distribution("prediction", prediction)
    if other is not None:
        _check_distribution("other", other)
    order = _check_order(order)
    sides = [side for side in (prediction, other) if side is not None]
    atoms = [side._atoms() for side in sides if isinstance(side, Counts)]
    if len(atoms) == len(sides) and all(side is not None for side in atoms):  # counts have finite sums
        return wasserstein_table(*atoms, order=order, max_memory=max_memory, threads=threads)  # type: ignore[arg-type]
    points, components = _wasserstein_points(prediction, other), prediction.components()
    if points is not None and (order == 2 or (components is not None and components.weights.shape[1] == 1)):
        return euclidean_table(*points, max_memory, threads)
    if points is not None and components is None:
        raise ValueError(f"`order` is {order}, expected 2, the only order for {type(prediction).__name__}")
    components = _check_components("prediction", prediction)
    other_components = None if other is None else _check_components("other", other)
    return wasserstein_table(components, other_components, order=order, max_memory=max_memory, threads=threads)


@on_their_gpu
def mmd_distance(
    prediction: Distribution, other: Distribution | None = None, *, bandwidth: float, max_memory: float | None = None
) -> Array:
    r"""Compute MMD distances between predicted distributions, under a Gaussian kernel.

    .. math:: \mathrm{MMD}^2(P, P') = E\, l(Z_1, Z_2) - 2 E\, l(Z, Z') + E\, l(Z'_1, Z'_2),
              \quad l(y, y') = \exp(-|y - y'|^2 / (2\,\mathrm{bandwidth}^2))

    for independent Z of P and Z' of P'. It is the distance between the mean embeddings of the distributions in the
    Hilbert space of the kernel, so :math:`\exp(-\lambda \mathrm{MMD}^\nu)`, :math:`0 < \nu \le 2`, is positive
    definite.

    Parameters
    ----------
    prediction : Distribution
        Predicted distributions, n of them: normal distributions, samples, or mixtures of these.
    other : Distribution, optional
        Further n' distributions of the same kind; by default the predictions themselves.
    bandwidth : float
        Positive bandwidth of the Gaussian kernel.
    max_memory : float, optional
        Bytes that the table may take. Default: available memory.

    Returns
    -------
    array, shape (n, n'), float64
        Distances, at most the square root of 2: 0 for equal distributions, with an error of up to 1e-8 for others. A
        NumPy array, or a CuPy array for predictions on a GPU.

    Raises
    ------
    TypeError, ValueError
        If a prediction is not a `Distribution`, or has no closed form under a Gaussian kernel; if the distributions are
        of different kinds or sizes, or an option is out of range.
    MemoryError
        If the table takes more memory than available or allowed.

    See Also
    --------
    wasserstein_distance : Wasserstein distances.

    Notes
    -----
    Time O(n n' K L d) for K and L components in d dimensions, with :math:`d^3` instead of d for full covariances;
    memory for the table and a block of rows.

    References
    ----------
    .. [1] A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schoelkopf, A. Smola, A kernel two-sample test, Journal of
       Machine Learning Research 13, 2012.

    Examples
    --------
    >>> from kcalib.distributions import Normal, mmd_distance
    >>> mmd_distance(Normal([0.0, 3.0], [1.0, 5.0]), bandwidth=1.0).round(4)
    array([[0.    , 0.6258],
           [0.6258, 0.    ]])
    """
    _check_distribution("prediction", prediction)
    if other is not None:
        _check_distribution("other", other)
    bandwidth = check_positive("bandwidth", bandwidth)
    other_components = None if other is None else _check_components("other", other)
    sides = match_components(_check_components("prediction", prediction), other_components)
    terms = Gaussian(bandwidth=bandwidth).terms()
    scale = mixtures.closed_form(sides[0].family, terms, sides[0].locations.shape[2])
    if scale is None:
        raise TypeError(
            f"`prediction` is {type(prediction).__name__}, for which the Gaussian kernel has no closed form; "
            "take `Samples` of it"
        )
    n, n_others = (int(side.weights.shape[0]) for side in (sides[0], sides[-1]))
    check_table(n, n_others, max_memory, sides[0].locations, copies=2)
    count = max(int(side.weights.shape[1]) for side in sides)
    sides = [mixtures.padded(side, count) for side in sides]
    family, d = sides[0].family, int(sides[0].locations.shape[2])
    space = Mixtures(family, d, count, len(scale), terms if family == "atoms" else ())
    rows = [mixtures.point_columns(side, scale) for side in sides]
    squares = arrays.to_compute_device(mixtures.squared_mmd(space, rows[0], arrays.asarray_like(rows[-1], rows[0])))
    return arrays.namespace(squares).sqrt(squares)


def _check_distribution(name: str, value: Any) -> None:
    if not isinstance(value, Distribution):
        raise TypeError(f"`{name}` is {type(value).__name__}, expected a distribution of `kcalib.distributions`")


def _check_order(order: Any) -> float:
    if isinstance(order, (bool, np.bool_)) or not isinstance(order, Real):
        raise TypeError(f"`order` is {order!r}, expected a number of at least 1")
    number = as_float(order)
    if not 1 <= number < math.inf:
        raise ValueError(f"`order` is {order}, expected a finite number of at least 1; below it is no distance")
    return number


def _check_components(name: str, distribution: Distribution) -> Components:
    components = distribution.components()
    if components is None:
        raise TypeError(
            f"`{name}` is {type(distribution).__name__}, which has no components that this distance is made of; take "
            "`Samples` of it"
        )
    return components


def _wasserstein_points(prediction: Distribution, other: Distribution | None) -> tuple[Any, Any] | None:
    """Return points of both whose Euclidean distance is W_2, if they lie in one space; a None if there are none."""
    if any(getattr(side, "weights", None) is not None for side in (prediction, other)):
        return None  # points of samples with missing members are approximate
    points = prediction.wasserstein_points()
    if points is None or other is None:
        return None if points is None else (points, None)
    other_points = other.wasserstein_points() if type(other) is type(prediction) else None
    return None if other_points is None or other_points.shape[1] != points.shape[1] else (points, other_points)
