"""Quantiles that look calibrated, and a model that is not: Widmann et al. 2021, appendix A.1.

    python docs/scripts/w21_least_squares.py [--seeds 1000] [--output docs/_static] > docs/w21_least_squares.txt

Y = sin(pi X) + |1 + X| e with e ~ N(0, 0.15^2) and X ~ U[-1, 1]. A line with errors of one variance is fitted to 100
pairs by least squares and judged on 50 others. `probabilities` are what the curve of quantile calibration is drawn
from: those that the model gave to targets no larger than the observed ones, uniform if quantiles are calibrated.

Prints how many of the seeds the curve is rejected for, by the Kolmogorov-Smirnov test that its probabilities are
uniform, and how many the model, by tests of the SKCE. Draws w21_least_squares.png for seed 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

import kcalib
from kcalib.distributions import Normal
from kcalib.kernels import Exponential, Gaussian

LEVEL = 0.05
NOISE = 0.15
KERNELS = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}  # the Euclidean metric is W2
TESTS = {
    "SKCE, bootstrap": kcalib.methods.Bootstrap(n_resamples=999),
    "SKCE, exact": kcalib.methods.Exact(n_resamples=999),
    "SKCE, spectrum": kcalib.methods.Spectrum(reference="residuals"),
}
CURVE = "curve, Kolmogorov-Smirnov"


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-1, 1, size=n)
    return x, np.sin(np.pi * x) + np.abs(1 + x) * rng.normal(0, NOISE, size=n)


def line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """Intercept and slope by least squares, and the standard deviation of the residuals."""
    features = np.column_stack([np.ones_like(x), x])
    coefficients = np.linalg.lstsq(features, y, rcond=None)[0]
    residuals = y - features @ coefficients
    return coefficients, float(np.sqrt(residuals @ residuals / (len(y) - 2)))


def problem(seed: int, n: int = 50) -> tuple[np.ndarray, Normal]:
    """Targets for validation, and what the model predicts for them."""
    rng = np.random.default_rng(seed)
    coefficients, deviation = line(*draw(100, rng))
    x, y = draw(n, rng)
    return y, Normal(coefficients[0] + coefficients[1] * x, np.full(n, deviation))


def probabilities(y: np.ndarray, prediction: Normal) -> np.ndarray:
    return prediction.cdf(y)


def pvalues(seed: int, tests: dict[str, Any] = TESTS) -> dict[str, float]:
    y, prediction = problem(seed)
    found = {CURVE: float(scipy.stats.kstest(probabilities(y, prediction), "uniform").pvalue)}
    for name, method in tests.items():
        found[name] = kcalib.calibration_test(y, prediction, **KERNELS, method=method, seed=seed).pvalue
    return found


def table(seeds: int) -> str:
    rows = [pvalues(seed) for seed in range(seeds)]
    lines = [f"{seeds} seeds, level {LEVEL}".ljust(32) + "rejected".rjust(10) + "median p".rjust(10)]
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        lines.append(name.ljust(32) + f"{np.mean(values < LEVEL):10.3f}{np.median(values):10.3f}")
    shown = kcalib.calibration_test(*problem(0), **KERNELS, method=kcalib.methods.Bootstrap(n_resamples=99_999), seed=0)
    lines += ["", f"seed 0: curve p = {rows[0][CURVE]:.2f}, SKCE p = {shown.pvalue:.4f} (bootstrap, 99999 resamples)"]
    return "\n".join(lines)


def figure(seed: int = 0):
    """The paper's figures 4 and 5."""
    from matplotlib.figure import Figure

    rng = np.random.default_rng(seed)
    x, y = draw(100, rng)
    coefficients, deviation = line(x, y)
    shown = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = shown.subplots(1, 2)
    grid = np.linspace(-1, 1, 201)
    bands = (
        ("data", "#009E73", np.sin(np.pi * grid), np.abs(1 + grid) * NOISE),
        ("model", "#56B4E9", coefficients[0] + coefficients[1] * grid, np.full_like(grid, deviation)),
    )
    for name, colour, mean, std in bands:
        left.plot(grid, mean, color=colour, label=f"{name}: mean and 95 %")
        left.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.25, linewidth=0)
    left.plot(x, y, ".", color="#D55E00", markersize=4, label="training data")
    left.set(xlabel="x", ylabel="y", xticks=[-1, -0.5, 0, 0.5, 1])
    left.legend(fontsize=8, frameon=False)
    targets, prediction = problem(seed)
    reached = np.sort(probabilities(targets, prediction))
    band = scipy.stats.kstwo.isf(LEVEL, len(reached))
    right.plot([0, 1], [0, 1], color="#009E73", label="calibrated quantiles")
    right.fill_between([0, 1], [-band, 1 - band], [band, 1 + band], color="0.9", label="95 % of calibrated curves")
    steps = np.concatenate([[0.0], reached, [1.0]])
    right.step(steps, np.append(np.arange(len(reached) + 1) / len(reached), 1.0), where="post", color="#D55E00",
               label="model, 50 validation targets")  # fmt: skip
    right.set(xlabel="quantile level", ylabel="cumulative probability", xlim=(0, 1), ylim=(0, 1))
    right.legend(fontsize=8, frameon=False, loc="lower right")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--output", type=Path, help="folder for the figure; none is drawn without")
    given = parser.parse_args()
    print(table(given.seeds))
    if given.output is not None:
        figure().savefig(given.output / "w21_least_squares.png", dpi=90)


if __name__ == "__main__":
    main()
