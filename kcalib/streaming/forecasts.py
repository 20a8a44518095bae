"""`ForecastState`: the calibration of predicted distributions that come in batches."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import SEED
from kcalib._input.forecasts import as_forecast, prepare_forecasts
from kcalib._input.frames import check_variables
from kcalib.distributions import Categorical, Distribution
from kcalib.kernels import Kernel
from kcalib.streaming._accumulator import Batch
from kcalib.streaming._forecasts.accumulator import ForecastAccumulator, ForecastFeatureTotals, ForecastTotals
from kcalib.streaming._forecasts.families import Family
from kcalib.streaming._forecasts.options import ForecastOptions
from kcalib.streaming._forecasts.results import ForecastResults
from kcalib.streaming._options import N_COLUMNS
from kcalib.streaming._row_sums.rows import first_number
from kcalib.streaming._state import ModelState, checked_weights
from kcalib.target_kernels import MahalanobisGaussian, TargetKernel

__all__ = ["ForecastState"]

N_BINS = 20


class ForecastState(ForecastResults, ModelState):
    r"""Calibration of predicted distributions that come in batches, from sums that can be merged.

    A state holds sums over samples, not the samples: sums of scores, of PIT values in bins, and of random features
    :math:`\varphi` of the kernel on predictions :math:`P_i` with random features :math:`\psi` of the target kernel,
    minus their expectations under the prediction, which are characteristic functions:

    .. math:: S = \sum_i \varphi(P_i) \otimes \left( \psi(y_i) - \mathrm{E}_{Z \sim P_i} \psi(Z) \right)

    from which the SKCE follows. As in a `CalibrationState`, with given bandwidths every bit is the same for any split
    into batches, any order of merging, and any number of threads. Rows are numbered in the same way.

    A state takes distributions whose characteristic functions and distances have closed forms: ``Normal``,
    ``MultivariateNormal``, ``Laplace``, ``StudentT``, ``LogNormal``, ``Gamma``, ``Poisson``, ``NegativeBinomial``,
    ``Quantiles``, or ``Samples`` of numbers with equal weights. It also takes ``Censored``, ``Truncated`` and
    ``ZeroInflated`` distributions of ``Normal``, ``Laplace``, ``Gamma``, ``Poisson`` or ``NegativeBinomial`` numbers,
    which are represented by some 160 quantiles, to about 1e-7. The first batch determines the family, and the
    dimension, number of samples, or set of levels. Arrays on a GPU are copied to the host.

    Parameters
    ----------
    kernel : Kernel, optional
        Kernel on predictions, as in `kcalib.skce`: with Wasserstein distances, the default, or on parameters.
        ``MultivariateNormal`` needs a kernel on parameters. A missing bandwidth is set to the median distance of the
        first 2000 rows, which are held until then; if these are identical, to their standard deviation (1 for
        metric="mmd"). States to be merged need the same kernel.
    target_kernel : optional
        Kernel on targets, as in `kcalib.skce`, without ``Draws``. A missing bandwidth is set to the median distance of
        one draw from each of the first 2000 predictions.
    n_columns : int
        Number of random features, a multiple of 16. The target kernel has a quarter as many, for numbers an eighth, and
        at least 64.
    n_bins : int
        Bins of equal width of PIT values, for the histogram.
    n_resamples : int
        Draws of all targets from the predictions for the kernels' blocks of the adaptive test. A draw takes about a
        quarter of the time, and as much memory, as all other sums. Default: none; the p-value of the kernel then comes
        from the law of many samples, and counts a fifth. PIT values of numbers have this many draws in any case, or
        199.
    seed : int
        Seed of the features, the draws, the sample of rows and the randomisation of PIT values, from 0 to 2**63 - 1.
    part : int
        Where row numbers start, from 0 to 2**23 - 1.
    threads : int, optional
        Maximum number of threads.
    clusters : bool
        As in `CalibrationState`; the test uses `n_resamples` sign flips of the clusters, or 199.
    fair : bool
        For ``Samples`` with at least two members: use the fair CRPS, as in `kcalib.crps`.

    Raises
    ------
    TypeError, ValueError
        If an option is invalid.

    See Also
    --------
    CalibrationState : For class probabilities.

    Notes
    -----
    Memory: 16 bytes for each of the `n_columns` times the columns of the target kernel, 256 KB by default, times
    `n_resamples` + 1; at most 1024 samples, the open blocks of 1024 rows, and at first 2000 rows. Scores of blocks are
    added exactly, whatever the units of the targets; a log score may be infinite. Coverage of intervals and the
    quantile calibration error are exact: PIT values are counted up to each level.

    For predicted numbers the test is the adaptive one. With draws of the kernels' blocks it is the test of
    `kcalib.calibration_test` with ``kcalib.methods.Adaptive(n_resamples, n_columns)`` and the same kernels and seed, if
    rows are numbered from 0 on. Vectors have no PIT values, and are tested by the kernel. For details see "Formulas of
    intervals and tests" in the user guide.

    Phases of features are products of frequencies and values. If targets are a million bandwidths away from 0, phases
    have ten digits only: subtract a constant from targets and predictions.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.distributions import Normal
    >>> from kcalib.streaming import ForecastState
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=5000)
    >>> y = mean + rng.normal(size=5000)
    >>> state = ForecastState(n_columns=64)
    >>> for rows in np.split(np.arange(5000), 50):
    ...     state = state.update(y[rows], Normal(mean[rows], np.ones(100)))
    >>> result = state.result()
    >>> result.verdict, round(result.crps, 2), round(result.interval_coverage, 2)
    ('no evidence against calibration', 0.56, 0.9)
    """

    _kind: ClassVar[str] = "forecast"
    _ACCUMULATOR = ForecastAccumulator
    _OPTIONS = ForecastOptions
    _accumulator: ForecastAccumulator

    def __init__(
        self,
        *,
        kernel: Kernel | None = None,
        target_kernel: TargetKernel = None,
        n_columns: int = N_COLUMNS,
        n_bins: int = N_BINS,
        n_resamples: int = 0,
        seed: int = SEED,
        part: int = 0,
        threads: int | None = None,
        clusters: bool = False,
        fair: bool = False,
    ) -> None:
        options = ForecastOptions.checked(
            kernel=kernel,
            target_kernel=target_kernel,
            n_columns=n_columns,
            n_bins=n_bins,
            n_resamples=n_resamples,
            seed=seed,
            part=part,
            clusters=clusters,
            fair=fair,
        )
        self._start(options, threads)

    @property
    def options(self) -> ForecastOptions:
        """The options of the state."""
        return self._accumulator.options

    @property
    def kernel(self) -> Kernel | None:
        """The kernel on predictions with its bandwidths; None while they are unknown."""
        return self.options.kernel if self.options.has_bandwidths else None

    @property
    def target_kernel(self) -> Kernel | MahalanobisGaussian | None:
        """The kernel on targets with its bandwidths; None while they are unknown."""
        target_kernel: Any = self.options.target_kernel
        return target_kernel if self.options.has_bandwidths else None

    @on_their_gpu
    def update(
        self,
        y_true: Any,
        y_pred: Any,
        sample_weight: Any = None,
        *,
        clusters: Any = None,
        first_row: int | None = None,
    ) -> ForecastState:
        """Add a batch of samples. An error or an interrupt leaves the state unchanged.

        Parameters
        ----------
        y_true : array_like, shape (n,) or (n, d)
            Targets.
        y_pred : Distribution
            Predicted distributions of the family of the state, see `kcalib.distributions`. An empty batch adds nothing.
        sample_weight : array_like, shape (n,), optional
            Weights from 0 to 2**18, with a root mean square of at least 1e-6 over all rows. There are no draws of
            targets for weighted samples. Default 1.
        clusters : array_like, shape (n,), optional
            As in `CalibrationState.update`.
        first_row : int, optional
            Number of the first row of the batch, counted from the start of the part. Default: the next number of the
            part.

        Returns
        -------
        ForecastState
            The state itself.

        Raises
        ------
        TypeError
            If `y_pred` is not a distribution of numbers or vectors, or if an argument has a wrong type.
        ValueError
            As `kcalib.skce`; if the family cannot be added up or differs from that of the state; if the state has one
            of the rows already; if weights are too large for exact sums.
        MemoryError
            If there is no memory for the sums of all draws.
        """
        return self._add_of_family(*self._batch(y_true, y_pred, sample_weight, first_row, clusters))

    def _batch(
        self, y_true: Any, y_pred: Any, sample_weight: Any, first_row: int | None, clusters: Any
    ) -> tuple[Batch, Family]:
        """Return the checked samples and the family of their distributions."""
        prediction = as_forecast(y_true, y_pred)
        if not isinstance(prediction, Distribution) or isinstance(prediction, Categorical):
            raise TypeError(
                f"`y_pred` is {type(y_pred).__name__}, expected predicted distributions of numbers or vectors, such as "
                "kcalib.distributions.Normal(mean, std); for class probabilities use a CalibrationState"
            )
        family = Family.of(prediction)
        if _is_empty(y_true, prediction, sample_weight):
            first = first_number(self._accumulator.row_set, self.options.part, first_row, 0)
            none = np.empty((0, prediction.n_dims)), np.empty((0, family.n_columns)), np.empty(0)
            return Batch(first, *none, 0.0, np.empty(0, np.int64)), family
        data = prepare_forecasts(y_true, prediction)
        weights = checked_weights(sample_weight, data.n, data.y)
        first = first_number(self._accumulator.row_set, self.options.part, first_row, data.n)
        y = arrays.to_host(data.y).astype(np.float64, copy=False)
        check_variables(y_true, y_pred, clusters=clusters)
        of_rows = self._number_clusters(clusters, data.n)
        return Batch(first, y, family.columns(prediction), arrays.to_host(weights), 0.0, of_rows), family

    def _add_of_family(self, batch: Batch, family: Family) -> ForecastState:
        before = self._accumulator
        try:
            self._accumulator = before.of_family(family, self._threads)
            return self._add(batch)
        except BaseException:
            self._accumulator = before
            raise

    def __repr__(self) -> str:
        options = self.options
        of = "no family yet" if options.prediction is None else f"{options.family}, kernel={options.kernel}"
        return f"ForecastState({of}): {self.n_samples} samples"

    def _totals(self) -> ForecastFeatureTotals:
        return self._accumulator.totals(self._threads)

    def _score_totals(self) -> ForecastTotals:
        return self._accumulator.score_totals(self._threads)


def _is_empty(y_true: Any, prediction: Distribution, sample_weight: Any) -> bool:
    """Return whether a batch has no samples, as after a filter; other lengths are refused later."""
    batch = {"y_true": y_true} if sample_weight is None else {"y_true": y_true, "sample_weight": sample_weight}
    return prediction.n == 0 and all(arrays.as_array(value, name).shape[:1] == (0,) for name, value in batch.items())
