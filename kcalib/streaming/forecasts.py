"""`ForecastState`: the calibration of predicted distributions that come in batches, from sums."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import SEED
from kcalib._input.forecasts import as_forecast, prepare_forecasts
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
    r"""What is known of the calibration of a model that predicts distributions, from all batches so far.

    A state holds sums over samples, not the samples: of scores, of PIT values in bins, and of random features
    :math:`\varphi` of the kernel on predictions :math:`P_i` with random features :math:`\psi` of the target kernel,
    less their expectations under the prediction, which are characteristic functions:

    .. math:: S = \sum_i \varphi(P_i) \otimes \left( \psi(y_i) - \mathrm{E}_{Z \sim P_i} \psi(Z) \right)

    from which the SKCE follows. As those of a `CalibrationState` the sums have the same bits for any batches of the
    same rows, any order of merging, and any number of threads, with given bandwidths; rows are numbered in the same
    way.

    The distributions are ``Normal``, ``MultivariateNormal``, ``Laplace``, ``StudentT``, ``LogNormal``, ``Gamma``,
    ``Poisson``, ``NegativeBinomial``, ``Quantiles``, or ``Samples`` of numbers with equal weights: those whose
    characteristic functions and distances have closed forms; and ``Censored``, ``Truncated`` and ``ZeroInflated`` ones
    of numbers by ``Normal``, ``Laplace``, ``Gamma``, ``Poisson`` or ``NegativeBinomial``, for which some 160 quantiles
    stand, to about 1e-7. A state is of one family, and of one dimension, number of samples, or set of levels; the first
    batch says of which. Arrays on a GPU come to the host.

    Parameters
    ----------
    kernel : Kernel, optional
        On predictions, as in `kcalib.skce`: with Wasserstein distances, the default, or of parameters. One of
        parameters has to be given for ``MultivariateNormal``. A bandwidth that is not given is the median distance of
        the first 2000 rows, which are held until then, and their standard deviation if these are identical (1 for
        metric="mmd"); states that are merged have one kernel: see `kernel` below.
    target_kernel : optional
        On targets, as in `kcalib.skce`, without ``Draws``. A bandwidth that is not given is the median distance of one
        draw from each of the first 2000 predictions.
    n_columns : int
        Columns of random features, a multiple of 16. Of the target kernel there are a quarter as many, of numbers an
        eighth, and 64 at least.
    n_bins : int
        Bins of equal width of PIT values, for the histogram.
    n_resamples : int
        Draws of all targets from the predictions for the kernels' blocks of the adaptive test. A draw takes about a
        quarter of the time of all other sums, and as much memory as these. Default: none; the kernel's p-value is then
        by the law of many samples, and counts a fifth. PIT values of numbers have so many draws in any case, or 199.
    seed : int
        Decides the features, the draws, the sample of rows, and the randomisation of PIT values;
        from 0 to 2**63 - 1.
    part : int
        Where row numbers start, from 0 to 2**23 - 1.
    threads : int, optional
        At most so many.
    clusters : bool
        As of `CalibrationState`: the test is then of `n_resamples` flips of the clusters' signs, or 199.
    fair : bool
        For ``Samples`` of at least two members: the CRPS is the fair one, as in `kcalib.crps`.

    Raises
    ------
    TypeError, ValueError
        If an option is not as above.

    See Also
    --------
    CalibrationState : Of class probabilities.

    Notes
    -----
    Memory of the sums 16 bytes for each of the `n_columns` times the columns of the target kernel, 256 KB by default,
    `n_resamples` + 1 times; of samples at most 1024, those of open blocks of 1024 rows, and at first 2000. Scores of
    blocks are added exactly, whatever the units of the targets; a log score may be infinite, as in memory. Coverage of
    intervals and the quantile calibration error are those of all samples: PIT values are counted up to each of the
    levels that they are of.

    The test of predicted numbers is the adaptive one; with draws of the kernels' blocks it is that of
    `kcalib.calibration_test` with ``kcalib.methods.Adaptive(n_resamples, n_columns)`` and the same kernels and seed,
    where rows are numbered from 0 on. Vectors have no PIT values, and the test of the kernel. The user guide has the
    details in "Formulas of intervals and tests".

    Phases of features are products of frequencies and values: where targets are a million bandwidths from 0, they have
    ten digits. Subtract a constant from targets and predictions then.

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
        """The kernel on predictions with its bandwidths; None until these are known."""
        return self.options.kernel if self.options.has_bandwidths else None

    @property
    def target_kernel(self) -> Kernel | MahalanobisGaussian | None:
        """The kernel on targets with its bandwidths; None until these are known."""
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
        """Add a batch of samples; an error or an interrupt leaves the state as it was.

        Parameters
        ----------
        y_true : array_like, shape (n,) or (n, d)
            Targets.
        y_pred : Distribution
            Predicted distributions of the family of the state, see `kcalib.distributions`; of no samples, too, which
            add nothing.
        sample_weight : array_like, shape (n,), optional
            Weights from 0 to 2**18, in all of a root mean square of at least 1e-6; there are no draws of targets of
            weighted samples. Default 1.
        clusters : array_like, shape (n,), optional
            As of `CalibrationState.update`.
        first_row : int, optional
            The rows are those from this number on, counted from the start of the part. Default: after the last one of
            the part so far.

        Returns
        -------
        ForecastState
            The state itself.

        Raises
        ------
        TypeError
            If `y_pred` is no distribution of numbers or vectors, or for arguments of other types.
        ValueError
            As `kcalib.skce` for its arguments; if the distributions are of a family that a state cannot add up, or of
            another one than those before; if a row is in the state already; if weights are too large for exact sums.
        MemoryError
            If there is no memory for the sums of all draws.
        """
        return self._add_of_family(*self._batch(y_true, y_pred, sample_weight, first_row, clusters))

    def _batch(
        self, y_true: Any, y_pred: Any, sample_weight: Any, first_row: int | None, clusters: Any
    ) -> tuple[Batch, Family]:
        """The samples, checked, and the family of their distributions."""
        prediction = as_forecast(y_true, y_pred)
        if not isinstance(prediction, Distribution) or isinstance(prediction, Categorical):
            raise TypeError(
                f"`y_pred` is {type(y_pred).__name__}, expected predicted distributions of numbers or vectors, such as "
                "kcalib.distributions.Normal(mean, std); class probabilities are for a CalibrationState"
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
    """Whether a batch has no samples, such as a filter leaves at times; of other lengths it is refused."""
    batch = {"y_true": y_true} if sample_weight is None else {"y_true": y_true, "sample_weight": sample_weight}
    return prediction.n == 0 and all(arrays.as_array(value, name).shape[:1] == (0,) for name, value in batch.items())
