"""The test that members of an ensemble and the target are exchangeable, by ranks of the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import OptionError, check_integer
from kcalib._input.forecasts import Forecasts
from kcalib.distributions import Samples
from kcalib.estimators.forecasts.quantile_calibration import pit_at, pit_uniforms
from kcalib.inference.adaptive.blocks import FEW_DRAWS
from kcalib.inference.adaptive.forecast_blocks import DRAWS_AT_ONCE, N_BINS, pit_blocks, sum_pit_values
from kcalib.inference.adaptive.method import rank_blocks
from kcalib.inference.quadratic import MAX_RESAMPLES
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult

STREAM = 0x52414E4B  # added to the seed: draws use other random numbers than ties


@dataclass(frozen=True)
class Ranks(CalibrationMethod):
    r"""Test whether targets and ensemble members are exchangeable, by the ranks of the targets among the members.

    For ``kcalib.distributions.Samples`` of numbers with equal weights; the number of members may differ between
    predictions. An ensemble of S draws from the distribution of the target is calibrated in this sense. The other
    methods test the empirical distribution of the members, which claims that the target equals one of them, and reject
    such an ensemble.

    Parameters
    ----------
    n_resamples : int
        Number R of draws, at least 1.

    Notes
    -----
    The verification rank is the number of members below the target, with ties in random order [1]_. It is uniform on 0
    to S if target and members are exchangeable; with u uniform, (rank + u) / (S + 1) is uniform on (0, 1), whatever S
    and the ties. The statistic has the blocks of `kcalib.methods.Adaptive` for numbers except the kernels: location,
    dispersion, a histogram in tenths, and both tails of these values. Its null distribution is exact, from R sets of
    uniform numbers that are treated like the observed values. ``result.estimate`` is the total variation distance
    between the shares of ranks in tenths and uniform ones. Time O(n (S + R)). Ranks do not detect errors that cancel
    between predictions.

    References
    ----------
    .. [1] T. M. Hamill. Interpretation of rank histograms for verifying ensemble forecasts. Monthly Weather Review
       129, 2001.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> from kcalib.distributions import Samples
    >>> values = np.random.default_rng(0).normal(size=(500, 6))
    >>> kcalib.calibration_test(values[:, 0], Samples(values[:, 1:]), method="ranks", seed=0).pvalue > 0.05
    True
    >>> kcalib.calibration_test(2 * values[:, 0], Samples(values[:, 1:]), method="ranks", seed=0).finding
    'over-confident'
    """

    n_resamples: int = FEW_DRAWS

    name: ClassVar[str] = "ranks"

    def __post_init__(self) -> None:
        check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        data, n = cast(Forecasts, task.data), task.n
        prediction = getattr(data, "prediction", None)
        if not isinstance(prediction, Samples) or data.n_dims != 1:
            what = data.noun if prediction is None else type(prediction).__name__
            raise OptionError("method", f"is 'ranks', which is for Samples of numbers, not for {what}; use 'adaptive'")
        if not prediction.counts_alike:
            raise OptionError("method", "is 'ranks', which is for Samples of equal weight; use 'adaptive'")
        pit = arrays.to_host(pit_at(data, pit_uniforms(seed, np.arange(n))))
        generator, weights = np.random.default_rng((STREAM, seed)), np.ones(n)
        sums, step = [sum_pit_values(pit[None, :], weights)], max(1, DRAWS_AT_ONCE // n)
        for first in range(0, self.n_resamples, step):
            size = min(step, self.n_resamples - first), n
            sums.append(sum_pit_values(generator.uniform(size=size), weights))
        blocks = pit_blocks(np.concatenate(sums), n, n, has_law=True)
        shares = sums[0][0, 2 : 2 + N_BINS] / n
        return task.result(
            method=self.name,
            estimate=float(np.sum(np.abs(shares - 1 / N_BINS)) / 2),
            estimator="total variation distance of ranks in tenths from uniform ones",
            seed=seed,
            **rank_blocks(blocks, None, "draws of the ranks from their uniform law"),
        )
