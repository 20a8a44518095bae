r"""Tables of distances between predicted distributions: Wasserstein ones, of mixtures too, and MMD.

    wasserstein_distance   of a `Distribution`, for users
    mmd_distance           the same, under a Gaussian kernel
    wasserstein_table      of mixture `Components`: where there are no points whose Euclidean distance it is, for the
                           metric "table" of `_pairs.problem.PairProblem`

A table takes n^2 numbers. Components are compared by differences of points, or by `bures`; mixtures by `transport`
between their components, many pairs at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_memory
from kcalib._backend.special import beside_computed
from kcalib._backend.threads import resolve_threads, terminal_progress
from kcalib._input.checks import reject
from kcalib._pairs import mixtures
from kcalib._pairs.problem import Components, Mixtures
from kcalib.distributions._distribution import Distribution
from kcalib.distributions.bures import covariance_roots, squared_distances
from kcalib.distributions.transport import Way, cheapest, line_costs, way
from kcalib.kernels import Gaussian

__all__ = ["mmd_distance", "wasserstein_distance", "wasserstein_table"]

BLOCK, SEARCH_BLOCK = 2**15, 2**18  # numbers in the largest arrays of one block of pairs
DEVICE_BLOCK = 2**24
EQUAL = 1e-13  # weights that differ by less are equal: so little mass hardly costs
PSD = 1e-10  # a covariance's eigenvalues may be negative by that share of the largest: rounding
Block = Callable[[], int]  # does its part and returns the number of pairs in it


@on_their_gpu
def wasserstein_distance(
    prediction: Distribution,
    other: Distribution | None = None,
    *,
    order: float = 2.0,
    max_memory: float | None = None,
    threads: int | None = None,
) -> Array:
    r"""Wasserstein distances between predicted distributions.

    Between two normal, two Laplace, or two other distributions that are one component each it is the 2-Wasserstein
    distance :math:`W_2`. Between mixtures it is the distance of [2]_ and [3]_ (equation D.2 of [1]_, with
    :math:`W_2` between components), the cheapest way to move the components' weights:

    .. math:: \mathrm{MW}_s(P, P') = \Bigl(\min_w \sum_{kl} w_{kl} W_2(P_k, P'_l)^s\Bigr)^{1/s}

    over the couplings w of the weights of P and of P'. Between samples, whose components are points, that is the
    Wasserstein distance of order s, under the Euclidean distance. That of counts is by 128 quantiles.

    Parameters
    ----------
    prediction : Distribution
        Predicted distributions, n of them.
    other : Distribution, optional
        Others of the same kind, n' of them; by default the predictions themselves.
    order : float
        The s above, at least 1; 2 for distributions without components. Of one component each the distance is the same
        for every s.
    max_memory : float, optional
        Bytes that the table may take. Default: what the machine has available.
    threads : int, optional
        Threads, at least 1. Default: OMP_NUM_THREADS, at most the CPUs this process may use.

    Returns
    -------
    array, shape (n, n'), float64
        NumPy's; CuPy's for predictions on a GPU.
        Distances: 0 for equal distributions. Between similar normal distributions the error is about 1e-15 of their
        scale, and 1e-8 if covariances are singular.

    Raises
    ------
    TypeError
        If a prediction is not a `Distribution`, or these have neither components nor points.
    ValueError
        If the distributions are of different kinds or sizes, or an option is out of range.
    NotImplementedError
        For mixtures of several components, or samples of unequal weights, on a GPU.
    MemoryError
        If the table takes more memory than is allowed.

    See Also
    --------
    mmd_distance : A distance of all mixtures of normals that makes positive definite kernels.

    Notes
    -----
    For s up to 2 :math:`\mathrm{MW}_s` is an upper bound of the mixtures' :math:`W_s`, which have no closed form: it
    moves components as wholes. The two agree for samples, and for one component each if s = 2.

    Kernels :math:`\exp(-\lambda W_2^\nu)`, :math:`0 < \nu \le 2`, are positive definite for normal distributions of
    independent entries (or commuting covariances), for Laplace distributions, for counts and for samples of numbers; of
    the latter :math:`\exp(-\lambda W_1^\nu)` for :math:`\nu \le 1`. They need not be for normal distributions with full
    covariances, nor those of :math:`\mathrm{MW}_s` for mixtures and for samples of vectors: theorem D.1 of [1]_ does
    not hold in general. With an indefinite kernel an estimate may be negative, or zero although a model is not
    calibrated. ``docs/scripts/indefinite_kernels.py`` prints smallest eigenvalues.

    Time: n n' times (half of it without `other`) what a pair takes, for K and L components in d dimensions
    :math:`O(K L d)`, or :math:`O(K L d^3)` for full covariances, and the search of the coupling: :math:`O(K^3)` for
    equal weights and as many components, more for others, :math:`O(K \log K)` for samples of numbers. Couplings of
    more than 32 components with weights that are not equal are solved to 1e-8 of the largest cost, others to rounding.
    Memory beside the table: a few megabytes.

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
    points, components = _points(prediction, other), prediction.components()
    if points is not None and (order == 2 or (components is not None and components.weights.shape[1] == 1)):
        return _euclidean_table(*points, max_memory, threads)
    if points is not None and components is None:
        raise ValueError(f"`order` is {order}, expected 2: of {type(prediction).__name__} there is no other distance")
    components = _needed_components("prediction", prediction)
    others = None if other is None else _needed_components("other", other)
    return wasserstein_table(components, others, order=order, max_memory=max_memory, threads=threads)


@on_their_gpu
def mmd_distance(
    prediction: Distribution, other: Distribution | None = None, *, bandwidth: float, max_memory: float | None = None
) -> Array:
    r"""MMD distances between predicted distributions, under a Gaussian kernel.

    .. math:: \mathrm{MMD}^2(P, P') = E\, l(Z_1, Z_2) - 2 E\, l(Z, Z') + E\, l(Z'_1, Z'_2),
              \quad l(y, y') = \exp(-|y - y'|^2 / (2\,\mathrm{bandwidth}^2))

    of independent Z of P and Z' of P'. It is the distance between the distributions' means in the kernel's Hilbert
    space, so :math:`\exp(-\lambda \mathrm{MMD}^\nu)`, :math:`0 < \nu \le 2`, is positive definite.

    Parameters
    ----------
    prediction : Distribution
        Predicted distributions, n of them: normal ones, samples, or mixtures of these.
    other : Distribution, optional
        Others of the same kind, n' of them; by default the predictions themselves.
    bandwidth : float
        Of the Gaussian kernel, positive.
    max_memory : float, optional
        Bytes that the table may take. Default: what the machine has available.

    Returns
    -------
    array, shape (n, n'), float64
        NumPy's; CuPy's for predictions on a GPU.
        Distances, at most the square root of 2: 0 for equal distributions, with an error of up to 1e-8 for others.

    Raises
    ------
    TypeError
        If a prediction is not a `Distribution`, or these have no closed form under a Gaussian kernel.
    ValueError
        If the distributions are of different kinds or sizes, or an option is out of range.
    MemoryError
        If the table takes more memory than is allowed.

    See Also
    --------
    wasserstein_distance : Wasserstein distances.

    Notes
    -----
    Time O(n n' K L d) for K and L components in d dimensions, :math:`d^3` instead of d for full covariances; beside the
    table memory for a block of rows.

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
    if isinstance(bandwidth, (bool, np.bool_)) or not isinstance(bandwidth, Real):
        raise TypeError(f"`bandwidth` is {bandwidth!r}, expected a positive number")
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"`bandwidth` is {bandwidth}, expected a positive, finite number")
    others = None if other is None else _needed_components("other", other)
    sides = _sides(_needed_components("prediction", prediction), others)
    terms = Gaussian(bandwidth=float(bandwidth)).terms()
    scale = mixtures.closed_form(sides[0].family, terms, sides[0].locations.shape[2])
    if scale is None:
        raise TypeError(
            f"`prediction` is {type(prediction).__name__}, for which the Gaussian kernel has no closed form; "
            "take `Samples` of it"
        )
    n, n_others = (int(side.weights.shape[0]) for side in (sides[0], sides[-1]))
    _check_table(n, n_others, max_memory, sides[0].locations, copies=2)
    count = max(int(side.weights.shape[1]) for side in sides)
    sides = [mixtures.padded(side, count) for side in sides]
    family, d = sides[0].family, int(sides[0].locations.shape[2])
    described = Mixtures(family, d, count, len(scale), terms if family == "atoms" else ())
    rows = [mixtures.point_columns(side, scale) for side in sides]
    squares = arrays.where_computed(mixtures.squared_mmd(described, rows[0], arrays.beside(rows[-1], rows[0])))
    return arrays.namespace(squares).sqrt(squares)


def wasserstein_table(
    components: Components,
    other: Components | None = None,
    *,
    order: float = 2.0,
    max_memory: float | None = None,
    threads: int | None = None,
) -> Array:
    """As `wasserstein_distance`, of mixtures: W_2 of single components, MW_order of others; shape (n, n')."""
    sides = [_Mixtures.of(side, components.locations) for side in _sides(components, other)]
    _check_table(sides[0].n, sides[-1].n, max_memory, sides[0].points)
    if not arrays.is_host(sides[0].points):
        return _device_table(sides[0], sides[-1], order)
    table = np.zeros((sides[0].n, sides[-1].n))
    left, right = sides[0].groups(), None if other is None else sides[1].groups()
    jobs = [_Job(table, g, h, order, other is None) for a, g in enumerate(left) for h in (right or left[a:])]
    total, done = sum(job.n_pairs for job in jobs), 0
    with terminal_progress() as progress:
        for job in jobs:
            for n_pairs in _run(job.blocks(), job.threads(threads)):
                done += n_pairs
                if progress is not None:
                    progress(done / total)
    return table


def _check_distribution(name: str, value: Any) -> None:
    if not isinstance(value, Distribution):
        raise TypeError(f"`{name}` is {type(value).__name__}, expected a distribution of `kcalib.distributions`")


def _check_order(order: Any) -> float:
    if isinstance(order, (bool, np.bool_)) or not isinstance(order, Real):
        raise TypeError(f"`order` is {order!r}, expected a number of at least 1")
    number = float(order)
    if not 1 <= number < math.inf:
        raise ValueError(f"`order` is {order}, expected a finite number of at least 1; below it is no distance")
    return number


def _check_table(n: int, n_others: int, max_memory: Any, beside: Array, copies: int = 1) -> None:
    check_memory(
        copies * 8 * n * n_others,
        max_memory,
        f"distances between {n} and {n_others} predictions",
        "take fewer predictions, or a metric whose distances are not stored",
        beside,
    )


def _needed_components(name: str, distribution: Distribution) -> Components:
    components = distribution.components()
    if components is None:
        raise TypeError(
            f"`{name}` is {type(distribution).__name__}, which has no components that this distance is made of; take "
            "`Samples` of it"
        )
    return components


def _sides(components: Components, other: Components | None) -> list[Components]:
    """Both in one family, and alike in dimension."""
    if other is None:
        return [components]
    if components.locations.shape[2] != other.locations.shape[2]:
        raise ValueError(
            f"`other` has distributions in {other.locations.shape[2]} dimensions, expected "
            f"{components.locations.shape[2]}, as `prediction`"
        )
    families = (components.family, other.family)
    if set(families) == {"normal", "normal_full"}:
        return [_full(components), _full(other)]
    if families[0] != families[1]:
        raise ValueError(
            f"`other` has components of the family {other.family!r}, expected {components.family!r}, as `prediction`; "
            "take `Samples` of both"
        )
    return [components, other]


def _full(components: Components) -> Components:
    """Normals of independent entries with full covariances."""
    if components.family != "normal":
        return components
    assert components.scales is not None
    xp, d = arrays.namespace(components.scales), components.locations.shape[2]
    identity = arrays.like(np.eye(d), components.scales, dtype=components.scales.dtype)
    covariances = xp.expand_dims(components.scales, axis=-1) * identity
    return Components("normal_full", components.weights, components.locations, covariances)


def _points(prediction: Distribution, other: Distribution | None) -> tuple[Any, Any] | None:
    """Points of both whose Euclidean distance is W_2, if they lie in one space."""
    points = prediction.wasserstein_points()
    if points is None or other is None:
        return None if points is None else (points, points)
    others = other.wasserstein_points() if type(other) is type(prediction) else None
    return None if others is None or others.shape[1] != points.shape[1] else (points, others)


def _euclidean_table(points: Any, others: Any, max_memory: Any, threads: int | None) -> Array:
    left = arrays.where_computed(points, np.float64)
    right = arrays.where_computed(beside_computed(others, left), np.float64)
    _check_table(len(left), len(right), max_memory, left)
    if not arrays.is_host(left):
        xp = arrays.namespace(left)
        norms = partial(xp.linalg.norm, axis=2)
        size = len(left), len(right), left.shape[1]
        return _in_rows(*size, xp, lambda rows: norms(left[rows, None, :] - right[None, :, :]))
    table = np.empty((len(left), len(right)))
    step = max(1, BLOCK // len(right))

    def block(begin: int) -> int:
        rows = slice(begin, begin + step)
        scipy.spatial.distance.cdist(left[rows], right, out=table[rows])
        return len(table[rows])

    blocks = (partial(block, begin) for begin in range(0, len(left), step))
    done = 0
    with terminal_progress() as progress:
        for n_rows in _run(blocks, resolve_threads(threads)):
            done += n_rows
            if progress is not None:
                progress(done / len(left))
    return table


def _in_rows(n: int, n_others: int, width: int, xp: Any, distances: Callable[[slice], Array]) -> Array:
    """A table on a device, some rows at a time; `distances` takes arrays of rows x n_others x width numbers."""
    table, step = xp.empty((n, n_others)), max(1, DEVICE_BLOCK // (n_others * width))
    for begin in range(0, n, step):
        rows = slice(begin, min(begin + step, n))
        table[rows] = distances(rows)
    return table


def _device_table(left: _Mixtures, right: _Mixtures, order: float) -> Array:
    """What has closed forms: single components, and as many points of equal weights on a line."""
    xp, K = arrays.namespace(left.points), left.weights.shape[1]
    alike = right.weights.shape[1] == K
    equal = alike and all(bool(xp.all(xp.abs(side.weights * K - 1) <= EQUAL)) for side in (left, right))
    if equal and left.on_a_line:
        x, y = (xp.sort(side.points[:, :, 0], axis=1) for side in (left, right))

        def between_lines(rows: slice) -> Array:
            gaps = xp.abs(x[rows, None, :] - y[None, :, :])
            largest = xp.max(gaps, axis=2)
            scale = xp.where(largest > 0, largest, 1.0)
            return scale * xp.mean((gaps / scale[:, :, None]) ** order, axis=2) ** (1 / order)

        return _in_rows(left.n, right.n, K, xp, between_lines)
    if not (alike and K == 1):
        arrays.check_not_cuda(left.points, "optimal transport between mixtures of several components")

    def between_components(rows: slice) -> Array:
        squares = xp.sum((left.points[rows, None, 0, :] - right.points[None, :, 0, :]) ** 2, axis=2)
        if left.roots is not None and right.roots is not None:
            squares += squared_distances(left.roots[rows, None, 0], right.roots[None, :, 0])
        return xp.sqrt(squares)

    width = left.points.shape[2] ** (1 if left.roots is None else 2)
    return _in_rows(left.n, right.n, width, xp, between_components)


def _run(blocks: Iterator[Block], threads: int) -> Iterator[int]:
    """Do the blocks, some at a time: an interrupt comes through between them."""
    if threads == 1:
        for block in blocks:
            yield block()
        return
    with ThreadPoolExecutor(threads) as pool:
        while wave := list(itertools.islice(blocks, 2 * threads)):
            yield sum(pool.map(lambda block: block(), wave))


@dataclass(frozen=True)
class _Group:
    """Mixtures of equally many components of positive weight (on a line, unless weights are equal: up to so many)."""

    rows: np.ndarray  # their numbers, shape: (n,)
    weights: np.ndarray  # shape: (n, K)
    equal_weights: bool
    points: np.ndarray  # whose Euclidean distances are those of components or, with roots, of their means: (n, K, p)
    roots: np.ndarray | None  # of covariances, shape: (n, K, d, d)
    on_a_line: bool  # atoms, in ascending order

    @property
    def n_components(self) -> int:
        return self.weights.shape[1]


@dataclass(frozen=True)
class _Mixtures:
    """Checked components in the form of a group; on the host, or CuPy arrays."""

    weights: Array
    points: Array
    roots: Array | None
    on_a_line: bool

    @classmethod
    def of(cls, components: Components, reference: Array) -> _Mixtures:
        """Beside the reference."""

        def checked(name: str) -> Array:
            array = arrays.where_computed(beside_computed(getattr(components, name), reference), np.float64)
            reject(
                array,
                ~arrays.namespace(array).isfinite(array),
                lambda at, x: f"`{name}{at}` of components is {x}, expected it finite",
            )
            return array

        weights, locations = checked("weights"), checked("locations")
        xp = arrays.namespace(weights)
        reject(weights, weights < 0, lambda at, x: f"`weights{at}` of components is {x}, expected at least 0")
        sums = xp.sum(weights, axis=1)
        reject(
            sums,
            xp.abs(sums - 1) > 1e-6,
            lambda at, x: f"`weights{at}` of components sum to {x}, expected 1; divide them by their sum",
        )
        weights = weights / sums[:, None]
        if components.family == "atoms":
            return cls(weights, locations, None, locations.shape[2] == 1)
        scales = checked("scales")
        if components.family == "normal_full":
            return cls(weights, locations, _roots(scales), False)
        reject(scales, scales < 0, lambda at, x: f"`scales{at}` of components is {x}, expected at least 0")
        spread = xp.sqrt(scales) if components.family == "normal" else math.sqrt(2) * scales
        return cls(weights, xp.concat([locations, spread], axis=2), None, False)

    @property
    def n(self) -> int:
        return len(self.weights)

    def groups(self) -> list[_Group]:
        absent, K = self.weights == 0, self.weights.shape[1]
        counts = K - np.count_nonzero(absent, axis=1)
        equal = np.max(np.abs(self.weights * counts[:, None] - 1) * ~absent, axis=1) <= EQUAL
        order = np.argsort(absent, axis=1, kind="stable")
        if self.on_a_line:
            order = np.lexsort((self.points[:, :, 0], absent), axis=1)
            counts[~equal] = K  # what has no weight does no harm there
        found = []
        for count, is_equal in sorted(set(zip(counts.tolist(), equal.tolist(), strict=True))):
            rows = np.flatnonzero((counts == count) & (equal == is_equal))
            at = (rows[:, None], order[rows, :count])
            weights, points = self.weights[at], self.points[at]
            if self.on_a_line:
                highest = np.max(np.where(weights > 0, points[:, :, 0], -np.inf), axis=1)
                points = np.where(weights > 0, points[:, :, 0], highest[:, None])[:, :, None]
            roots = None if self.roots is None else self.roots[at]
            found.append(_Group(rows, weights, is_equal, points, roots, self.on_a_line))
        return found


def _roots(covariances: Array) -> Array:
    xp = arrays.namespace(covariances)
    symmetric = (covariances + xp.swapaxes(covariances, -1, -2)) / 2
    values = xp.linalg.eigvalsh(symmetric)
    lowest = values[..., 0]
    reject(
        lowest,
        lowest < -PSD * xp.abs(values[..., -1]),
        lambda at, x: f"`scales{at}` of components has the eigenvalue {x:.6g}, expected a positive semidefinite matrix",
    )
    return covariance_roots(symmetric)


@dataclass(frozen=True)
class _Job:
    """The distances between the mixtures of two groups."""

    table: np.ndarray
    left: _Group
    right: _Group
    order: float
    symmetric: bool  # both groups are of one side: every pair once

    @property
    def n_pairs(self) -> int:
        n = len(self.left.rows)
        return n * (n - 1) // 2 if self._same else n * len(self.right.rows)

    @property
    def _same(self) -> bool:
        return self.symmetric and self.left is self.right

    @property
    def _equal_weights(self) -> bool:
        return (
            self.left.equal_weights and self.right.equal_weights and self.left.n_components == self.right.n_components
        )

    @property
    def _way(self) -> Way | None:
        if self.left.on_a_line:
            return None
        return way(self.left.n_components, self.right.n_components, self._equal_weights)

    def threads(self, threads: int | None) -> int:
        count = resolve_threads(threads)
        return 1 if self._way == "assignments" else count  # these hold the interpreter's lock

    def blocks(self) -> Iterator[Block]:
        K, L, d = self.left.n_components, self.right.n_components, self.left.points.shape[2]
        width = K + L if self.left.on_a_line else K * L * (1 if self.left.roots is None else d * d)
        # Shortest paths take many small steps, for all pairs side by side.
        step = max(1, (SEARCH_BLOCK if self._way == "shortest_paths" else BLOCK) // width)
        for begin in range(0, self.n_pairs, step):
            yield partial(self._fill, begin, min(begin + step, self.n_pairs))

    def _fill(self, begin: int, end: int) -> int:
        n, numbers = len(self.left.rows), np.arange(begin, end)
        if self._same:  # i with the 1st after it, then with the 2nd, ...: round a circle
            i = numbers % n
            j = (i + 1 + numbers // n) % n
        else:
            i, j = np.divmod(numbers, len(self.right.rows))
        distances = self._distances(i, j)
        rows, columns = self.left.rows[i], self.right.rows[j]
        self.table[rows, columns] = distances
        if self.symmetric:
            self.table[columns, rows] = distances
        return end - begin

    def _distances(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        left, right = self.left, self.right
        w, v = left.weights[i], right.weights[j]
        if left.on_a_line:
            x, y = left.points[i, :, 0], right.points[j, :, 0]
            largest = np.maximum(np.abs(x[:, -1] - y[:, 0]), np.abs(y[:, -1] - x[:, 0]))
            scale = np.where(largest > 0, largest, 1.0)
            x, y = x / scale[:, None], y / scale[:, None]
            if self._equal_weights:
                costs = np.mean(np.abs(x - y) ** self.order, axis=1)
            else:
                costs = line_costs(x, w, y, v, self.order)
            return scale * costs ** (1 / self.order)
        distances = _between_components(left, right, i, j)
        if distances.shape[1:] == (1, 1):
            return distances[:, 0, 0]
        largest = np.max(distances, axis=(1, 2))
        scale = np.where(largest > 0, largest, 1.0)
        costs = (distances / scale[:, None, None]) ** self.order
        return scale * cheapest(costs, w, v, self._equal_weights) ** (1 / self.order)


def _between_components(left: _Group, right: _Group, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """W_2 between the components of pairs of mixtures, shape (P, K, L)."""
    x, y = left.points[i], right.points[j]
    squares = np.zeros((len(i), left.n_components, right.n_components))
    for a, b in zip(np.moveaxis(x, 2, 0), np.moveaxis(y, 2, 0), strict=True):
        squares += (a[:, :, None] - b[:, None, :]) ** 2
    if left.roots is not None and right.roots is not None:
        squares += squared_distances(left.roots[i][:, :, None], right.roots[j][:, None])
    return np.sqrt(squares)
