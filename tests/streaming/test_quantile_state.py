"""States of forecasts by quantiles: the numbers of samples in memory, by bins of known probability."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

import kcalib
from kcalib.distributions import Quantiles
from kcalib.streaming import ForecastState, load

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def problem(n=1100, levels=LEVELS):
    rng = np.random.default_rng(0)
    mean = rng.normal(size=n)
    return mean + rng.normal(size=n), Quantiles(levels, mean[:, None] + 0.7 * scipy.stats.norm.ppf(levels))


def filled(y, predictions, step, **options):
    state = ForecastState(n_columns=64, **options)
    for begin in range(0, len(y), step):
        rows = slice(begin, min(begin + step, len(y)))
        state = state.update(y[rows], predictions.take(rows))
    return state


def test_results_are_those_of_samples_in_memory(tmp_path):
    y, predictions = problem()
    state = filled(y, predictions, 400)
    state.save(tmp_path / "state.npz")
    result, whole = load(tmp_path / "state.npz").result(), kcalib.evaluate(y, predictions, method="spectrum")
    assert result.skce == filled(y, predictions, 1100).result().skce
    for name in ("rmse", "crps", "pinball_loss", "interval_coverage", "interval_width", "pit_mean"):
        assert getattr(result, name) == pytest.approx(getattr(whole, name), rel=1e-12), name
    assert result.skce.target_kernel == "delta"
    assert result.skce.value == pytest.approx(whole.skce.value, rel=0.1)
    assert result.skce.null_standard_error == pytest.approx(whole.skce.null_standard_error, rel=0.1)
    assert result.miscalibrated
    curve = state.quantile_calibration()
    np.testing.assert_array_equal(curve.coverage, kcalib.quantile_calibration(y, predictions).coverage)


@pytest.mark.parametrize("options", [{"n_resamples": 49}, {"clusters": True}])
def test_tests_with_draws_and_clusters(options):
    y, predictions = problem(600, np.array([0.1, 0.9]))
    state = ForecastState(n_columns=32, **options)
    state = state.update(y, predictions, **({"clusters": np.arange(600) // 2} if "clusters" in options else {}))
    assert state.calibration_test().pvalue < 0.05
    assert state.result().interval_coverage is None


def test_other_levels_are_refused():
    y, predictions = problem(100)
    state = filled(y, predictions, 100)
    with pytest.raises(
        ValueError, match="^`y_pred` is Quantiles at the levels 0.5, but the state is of Quantiles at the"
    ):
        state.update([0.0], Quantiles([0.5], [[0.0]]))
