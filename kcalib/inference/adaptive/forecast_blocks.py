r"""The blocks of the adaptive test for predicted distributions of numbers, from their PIT values.

Given the predictions of a calibrated model the PIT values are independent and uniform, so that the laws of the sums are
known, but for samples (whose PIT values are those of ranks) and where targets are rounded to numbers that the law tells
apart: there are no bounds then. Vectors have no PIT values: the kernels alone see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._input.forecasts import Forecasts
from kcalib.estimators.forecasts.quantile_calibration import pit_at
from kcalib.estimators.forecasts.quantities import samples_of
from kcalib.inference.adaptive.blocks import FEW_DRAWS, Block, binomial_tail, kernel_blocks, null_blocks
from kcalib.inference.task import Task

N_BINS = 10
COVERAGES = (0.9, 0.99)  # of central intervals
FLOOR = 1e-15  # of PIT values, for their normal scores


@null_blocks.register
def _(
    data: Forecasts, task: Task, n_draws: int | None, n_columns: int | None, seed: int
) -> tuple[list[Block], dict[str, Any]]:
    n_draws = n_draws or FEW_DRAWS
    kernels, estimate = kernel_blocks(task, n_draws, n_columns, seed)
    return ([] if data.prediction.event_shape else _pit_blocks(data, n_draws, seed)) + kernels, estimate


def _pit_blocks(data: Forecasts, n_draws: int, seed: int) -> list[Block]:
    n = data.n
    rows = []
    is_uniform = samples_of(data) is None
    for draw in range(-1, n_draws):
        # Draw -1 are the observed targets; each has numbers of its own for what counts and samples are randomised with.
        uniform = np.random.Generator(np.random.Philox(key=np.array([seed, 2**63 + draw + 1], dtype=np.uint64)))
        targets = data if draw < 0 else data.draw(seed, draw)
        pit = np.clip(arrays.to_host(pit_at(targets, uniform.uniform(size=n))), FLOOR, 1 - FLOOR)
        # A drawn value at the floor is none of a uniform law's; that it is looked for in draws alone keeps the level.
        is_uniform &= draw < 0 or bool(np.all((pit > FLOOR) & (pit < 1 - FLOOR)))
        scores = scipy.special.ndtri(pit)
        in_bins = np.bincount(np.minimum((pit * N_BINS).astype(int), N_BINS - 1), minlength=N_BINS)
        n_outside = [np.sum(np.abs(pit - 0.5) > coverage / 2) for coverage in COVERAGES]
        rows.append(np.concatenate([[np.sum(scores), np.sum(scores**2)], in_bins, n_outside]))
    biases, squares, counts, outside = np.split(np.array(rows), [1, 2, 2 + N_BINS], axis=1)
    bias, spread = biases[:, 0], squares[:, 0] - n
    histogram, tails = counts - n / N_BINS, outside - n * (1 - np.array(COVERAGES))
    tail_variances = n * np.array(COVERAGES) * (1 - np.array(COVERAGES))

    def says_histogram() -> str:
        b = int(np.argmax(np.abs(histogram[0])))
        return f"too {'many' if histogram[0, b] > 0 else 'few'} targets in tenth {b + 1} of the predictions"

    def says_tails() -> str:
        k = int(np.argmax(tails[0] ** 2 / tail_variances))
        return f"intervals of {COVERAGES[k]:.0%} hold too {'few' if tails[0, k] > 0 else 'many'} targets"

    def count_bound(residuals: np.ndarray, shares: list[float]) -> Callable[[], float]:
        def bound() -> float:
            bounds = [
                binomial_tail(np.full(n, share), np.full(n, 1 - share), x)
                for share, x in zip(shares, residuals, strict=True)
            ]
            return math.log(2 * len(shares)) + min(bounds)

        return bound

    def spread_bound() -> float:
        law = scipy.stats.chi2(n)
        return math.log(2) + min(float(law.logsf(n + spread[0])), float(law.logcdf(n + spread[0])))

    blocks = [
        Block(
            "bias",
            bias**2 / n,
            lambda: "predictions too high" if bias[0] < 0 else "predictions too low",
            lambda: math.log(2) + float(scipy.special.log_ndtr(-abs(bias[0]) / math.sqrt(n))),
        ),
        Block(
            "dispersion",
            spread**2 / (2 * n),
            lambda: "over-confident" if spread[0] > 0 else "under-confident",
            spread_bound,
        ),
        Block(
            "PIT histogram",
            np.sum(histogram**2, axis=1) / (n / N_BINS),
            says_histogram,
            count_bound(histogram[0], [1 / N_BINS] * N_BINS),
        ),
        Block(
            "tails",
            np.sum(tails**2 / tail_variances, axis=1),
            says_tails,
            count_bound(tails[0], [1 - coverage for coverage in COVERAGES]),
        ),
    ]
    return blocks if is_uniform else [replace(block, log_bound=lambda: 0.0) for block in blocks]
