"""Compute the unnormalized calibration mean embedding (UCME): calibration errors at a few test locations.

It needs the row sums of a rectangular pair problem, test locations against samples. `kcalib.inference.cme` tests
whether the same differences are 0.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.options import SEED, check_integer, check_seed
from kcalib._input import labels as label_checks
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts, prepare
from kcalib._input.labels import Classification, Names
from kcalib._packing import Packed
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.reductions import Moments, sweep_one
from kcalib.estimators.skce import PairOptions, describe
from kcalib.estimators.with_result import with_result
from kcalib.kernels import Kernel
from kcalib.lenses import Canonical, Lens
from kcalib.results import UCMEResult
from kcalib.target_kernels import TargetKernel

__all__ = ["ucme"]

DEFAULT_LOCATIONS = 10
MAX_LOCATIONS = 100_000
NAMES = Names("locations[0]", "locations[1]")


@with_result
def ucme(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    locations: int | tuple[Any, Any] = DEFAULT_LOCATIONS,
    seed: int | None = SEED,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    threads: int | None = None,
    backend: Any = None,
) -> float | UCMEResult:
    r"""Compute the unnormalized calibration mean embedding (UCME) statistic.

    It is the mean, over J test locations, of the squared difference between the observed and the expected mean kernel
    value. It takes time linear in the number of samples, but uses J locations only. With a characteristic analytic
    kernel (`kcalib.kernels.Gaussian`) it tends, with probability 1, to 0 for calibrated models only. Its bias is
    positive, of order 1/n: compare models only with the same n and the same given locations.

    Parameters
    ----------
    y_true, y_pred, kernel, target_kernel, classes, from_logits, lens, dtype, threads, backend
        As in `kcalib.skce`; sources need workers as `backend`. The default bandwidth is that of `y_pred`.
    locations : int or pair of array_like
        Number J of random test locations, 1 to 100,000. Or given locations, chosen without looking at `y_true`: a pair
        of labels, shape (J,) or (J, m), and predictions, shape (J, m) or (J,), or a distribution of the same family as
        `y_pred`. With a lens they are classes 0, 1, ... and probabilities of the induced problem.
    seed : int, optional
        Seed of random locations. None draws one, which the result reports.

    Returns
    -------
    float
        The statistic, at least 0. ``ucme.result`` returns a `UCMEResult` with the difference at each location, the
        locations and the kernel.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`, also for given locations. Also if locations have another number of classes than `y_pred` (with
        a lens, than the induced problem); if they are given with a lens and `from_logits`, or with `seed`; if a number
        is out of range.

    Warns
    -----
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite.

    See Also
    --------
    kcalib.skce : Calibration error without test locations, in quadratic time.

    Notes
    -----
    With test locations :math:`T_j = (p_{T_j}, y_{T_j})` the statistic is [1]_ (appendix C.2)

    .. math:: \widehat{\mathrm{UCME}}^2 = \frac1J \sum_{j=1}^J \Bigl( \frac1n \sum_{i=1}^n
              k(T_j, (p_i, y_i)) - \mathbb{E}_{Z \sim p_i} k(T_j, (p_i, Z)) \Bigr)^2 .

    For k M the summand is :math:`k(p_{T_j}, p_i)\, (M e_i)_{y_{T_j}}` with residuals :math:`e_i`: time O(J n m),
    memory O((n + J) m).

    Random locations are the predictions of J samples, with labels drawn from them. They do not depend on `y_true`, so
    the differences of a calibrated model have mean 0.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.

    Examples
    --------
    One location and one sample: (exp(-d) (1 - 0.8))^2 with d = 0.3 sqrt(2).

    >>> import kcalib
    >>> from kcalib.kernels import Exponential
    >>> value = kcalib.ucme([0], [[0.8, 0.2]], kernel=Exponential(bandwidth=1.0), locations=([0], [[0.5, 0.5]]))
    >>> round(value, 6)
    0.017122
    >>> kcalib.ucme.result([0, 1, 1], [0.2, 0.6, 0.9], locations=4).n_locations
    4

    Prediction N(0, 1), target 0, and location (N(0, 1), 0): (1 - 1 / sqrt(2))^2.

    >>> from kcalib.distributions import Normal
    >>> from kcalib.kernels import Gaussian
    >>> where = ([0.0], Normal([0.0], [1.0]))
    >>> options = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}
    >>> round(kcalib.ucme([0.0], Normal([0.0], [1.0]), locations=where, **options), 6)
    0.085786
    """
    start = time.perf_counter()
    options = PairOptions(kernel, target_kernel, backend, threads)
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, dtype=dtype, threads=threads)
    test_locations = locations_for(data, locations, seed, from_logits)
    differences, packed, pair_backend = differences_at(data, options, test_locations)
    value = mean_square(differences)
    if not needs_result:
        return value
    return UCMEResult(
        value=value,
        differences=tuple(differences.tolist()),
        **test_locations.describe(),
        n_samples=data.n,
        **describe(data, packed, pair_backend),
        dtype=data.dtype,
        threads=pair_backend.threads,
        seconds=time.perf_counter() - start,
    )


class Differences(NamedTuple):
    """Observed minus expected mean kernel value at each location, shape (J,), and how it was computed."""

    values: np.ndarray
    packed: Packed
    backend: Backend


@dataclass(frozen=True)
class Locations:
    """Test locations and their seed."""

    data: Data
    seed: int | None  # None: given locations

    def describe(self) -> dict[str, Any]:
        """Return the fields of a result that describe the locations."""
        labels, predictions = self.data.listed()
        return {
            "n_locations": self.data.n,
            "test_predictions": predictions,
            "test_labels": labels,
            "seed": self.seed,
        }


def locations_for(data: Data, locations: Any, seed: int | None, from_logits: bool = False) -> Locations:
    """Return the given test locations, checked, or random ones."""
    check_locations(locations)
    if not isinstance(locations, tuple):
        seed = check_seed(seed)
        return Locations(_random(data, locations, seed), seed)
    if seed is not None and seed != SEED:
        raise ValueError(f"`seed` is {seed!r}, but `locations` are given; leave one of the two out")
    labels, predictions = locations
    return Locations(_check_locations(data, labels, predictions, from_logits), None)


def check_locations(locations: Any) -> None:
    """Raise if `locations` is neither a number nor a pair of labels and predictions."""
    if not isinstance(locations, tuple):
        check_integer("locations", locations, 1, MAX_LOCATIONS)
    elif len(locations) != 2:
        raise ValueError(f"`locations` has {len(locations)} entries, expected a pair of labels and predictions")


def _random(data: Data, count: int, seed: int) -> Data:
    """Return predictions of random samples with labels drawn from them."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(data.n, count, replace=count > data.n)
    return data.take(arrays.like(rows, data.reference)).draw_by(rng)


@singledispatch
def _check_locations(data: Data, labels: Any, predictions: Any, from_logits: bool) -> Data:
    """Return checked locations, in the array library and on the device of the data."""
    raise NotImplementedError(type(data))


@_check_locations.register(Forecasts)
def _given_targets(data: Forecasts, labels: Any, predictions: Any, from_logits: bool) -> Data:
    locations = prepare(labels, predictions, from_logits=from_logits, dtype=data.dtype, names=NAMES)
    if locations.target_size != data.target_size:
        prediction_name = locations.describe()["prediction"] or locations.noun
        raise ValueError(
            f"`locations` have predictions {prediction_name}, but `y_pred` is {type(data.prediction).__name__} for "
            f"targets of dimension {data.n_dims}; expected distributions of the same family"
        )
    return locations


@_check_locations.register(Classification)
def _given_labels(data: Classification, labels: Any, predictions: Any, from_logits: bool) -> Data:
    shape = arrays.as_array(predictions, NAMES.y_pred).shape
    columns = 2 if len(shape) == 1 or tuple(shape[1:]) == (1,) else int(shape[1]) if len(shape) == 2 else None
    lens_note = "" if data.lens == Canonical() else f" through {data.lens}"
    if columns is not None and columns != data.m:
        raise ValueError(
            f"`locations[1]` has {columns} classes, `y_pred` has {data.m}{lens_note}; expected the same classes"
        )
    if lens_note and from_logits:
        raise ValueError(
            f"`locations` are given with from_logits=True, but{lens_note} they are probabilities; "
            "pass probabilities for `y_pred`, too"
        )
    locations = label_checks.prepare(
        labels, predictions, classes=data.classes, from_logits=from_logits, dtype=data.dtype, names=NAMES
    )
    probabilities, labels = (
        arrays.asarray_like(a, data.probabilities) for a in (locations.probabilities, locations.labels)
    )
    probabilities = data.xp.astype(probabilities, data.probabilities.dtype, copy=False)
    return dataclasses.replace(data, labels=labels, given=probabilities, sample_weight=None, losses=None)


def mean_square(differences: np.ndarray) -> float:
    """Return the statistic from the differences at the locations."""
    return float(np.mean(differences * differences))


def differences_at(data: Data, options: PairOptions, locations: Locations) -> Differences:
    """Return the differences at the locations."""
    packed = _packing.pack_locations(
        data, locations.data, options.kernel, options.target_kernel, threads=options.threads
    )
    backend = options.backend_for(packed.problem)
    return Differences(mean_differences(backend), packed, backend)


def mean_differences(backend: Backend) -> np.ndarray:
    """Return row means of H, locations against samples."""
    sums = sweep_one(backend, Moments()).row_sums
    return arrays.to_host(sums).astype(np.float64) / backend.problem.columns.points.shape[0]
