"""Estimators and tests of the SKCE of normal predictions, where the truth is known: Widmann et al. 2021, appendix A.2.

    python docs/scripts/w21_estimators.py --save w21.npz > docs/w21_estimators.txt
    python docs/scripts/w21_estimators.py --load w21.npz --figures docs/_static

Predictions N(c 1_d, 0.1^2 I), c ~ U(0, 1). Targets of the calibrated model are drawn from them; those of the
uncalibrated one from N((0.1, c, ..., c), 0.1^2 I), whatever c is. The kernel is exp(-W2(p, p')) exp(-|y - y'|^2 / 2),
so that the true SKCE is a double integral over c and c' (`truth`); the paper takes a mean of estimates, which
`--check` prints beside it.

Estimators: biased, and unbiased over blocks of 2, of sqrt(n) and of n (all pairs). Tests at the level 0.05: blocks of 2
and of sqrt(n), bootstrap, and the CME test with ten locations, whose targets are near 0 and predictions in the unit
cube; and three that the paper does not have, the CME test with another reference, the exact test and the spectrum.
Blocks and spectrum are in their published forms, whose laws come from the residuals at hand; blocks by Student's law.
Times are those of one thread, the smallest of all data sets. Each data set has a seed of its own. The figures need
matplotlib (the extra `plot`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import multiprocessing
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import kcalib
from kcalib.distributions import Normal
from kcalib.kernels import Exponential, Gaussian

MODELS = ("calibrated", "uncalibrated")
SIZES = (4, 16, 64, 256, 1024)
DIMENSIONS = (1, 10)
DEVIATION, SHIFTED, LEVEL = 0.1, 0.1, 0.05
N_LOCATIONS = 10
KERNELS = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}  # the Euclidean metric is W2
ESTIMATORS = {
    "biased": {"estimator": "biased"},
    "unbiased, B = 2": {"estimator": "linear"},
    "unbiased, B = sqrt(n)": {"estimator": "block"},
    "unbiased, B = n": {"estimator": "unbiased"},
}
TESTS = {
    "B = 2": kcalib.methods.Linear(variance="sample"),
    "B = sqrt(n)": kcalib.methods.Block(variance="sample"),
    "bootstrap": kcalib.methods.Bootstrap(n_resamples=999),
    "CME, chi-square law": kcalib.methods.CME(reference="chi2"),
    "CME, conditional": kcalib.methods.CME(reference="conditional"),
    "exact": kcalib.methods.Exact(n_resamples=99),
    "spectrum": kcalib.methods.Spectrum(reference="residuals"),
}
# Hotelling's statistic needs more samples than locations; what the others cost where they are left out is seconds.
SIZES_OF = {"CME, chi-square law": (N_LOCATIONS + 1, math.inf), "CME, conditional": (64, math.inf), "exact": (0, 64)}


def truth(d: int) -> float:
    """The SKCE of the uncalibrated model, to rounding.

    With v = 1 + 2 0.1^2 the kernel's mean over independent targets of means m and m' is
    v^(-d/2) exp(-|m - m'|^2 / (2 v)). Means differ by c - c' in all entries but the first.
    """
    v = 1 + 2 * DEVIATION**2
    nodes, weights = np.polynomial.legendre.leggauss(60)
    # c' < c, where the integrand is smooth, and twice that.
    c = (nodes[:, None] + 1) / 2
    other = c * (nodes[None, :] + 1) / 2
    area = 2 * c * np.outer(weights, weights) / 4

    def mean_kernel(difference: np.ndarray) -> np.ndarray:
        return np.exp(-(difference**2) / (2 * v))

    first = 1 - mean_kernel(c - SHIFTED) - mean_kernel(SHIFTED - other) + mean_kernel(c - other)
    between = np.exp(-math.sqrt(d) * (c - other)) * mean_kernel(c - other) ** (d - 1)
    return float(v ** (-d / 2) * np.sum(area * between * first))


def data_set(model: str, n: int, d: int, seed: int) -> tuple[np.ndarray, Normal]:
    rng = np.random.default_rng([MODELS.index(model), n, d, seed])
    mean = np.repeat(rng.uniform(size=(n, 1)), d, axis=1)
    centre = mean.copy()
    if model == "uncalibrated":
        centre[:, 0] = SHIFTED
    return rng.normal(centre, DEVIATION), Normal(mean, np.full((n, d), DEVIATION))


def locations(d: int, seed: int) -> dict[str, object]:
    """The ten test locations of the CME test."""
    rng = np.random.default_rng([d, seed])
    mean = rng.uniform(size=(N_LOCATIONS, d))
    targets = rng.normal(0, DEVIATION, size=(N_LOCATIONS, d))
    return {"locations": (targets, Normal(mean, np.full((N_LOCATIONS, d), DEVIATION)))}


def estimate(name: str, y: np.ndarray, prediction: Normal) -> float:
    return kcalib.skce(y, prediction, **KERNELS, **ESTIMATORS[name], threads=1)


def pvalue(name: str, y: np.ndarray, prediction: Normal, seed: int) -> float:
    """nan outside the sizes that the test is done for."""
    method, n = TESTS[name], len(y)
    low, high = SIZES_OF.get(name, (0, math.inf))
    if not low <= n <= high:
        return math.nan
    if name == "B = sqrt(n)":
        method = dataclasses.replace(method, block_size=max(2, math.isqrt(n)))
    if name.startswith("CME"):
        method = dataclasses.replace(method, **locations(prediction.n_dims, seed))
    own_seed = seed if name in ("bootstrap", "exact") else None
    return kcalib.calibration_test(y, prediction, method=method, seed=own_seed, **KERNELS, threads=1).pvalue


def of_one_seed(seed: int) -> np.ndarray:
    """Values of estimators and p-values, and seconds: shape (2, models, d, n, estimators and tests)."""
    found = np.empty((2, len(MODELS), len(DIMENSIONS), len(SIZES), len(ESTIMATORS) + len(TESTS)))
    with threadpool_limits(limits=1):
        for (i, model), (j, d), (k, n) in itertools.product(*map(enumerate, (MODELS, DIMENSIONS, SIZES))):
            y, prediction = data_set(model, n, d, seed)
            for m, name in enumerate((*ESTIMATORS, *TESTS)):
                start = time.perf_counter()
                of = estimate(name, y, prediction) if name in ESTIMATORS else pvalue(name, y, prediction, seed)
                found[:, i, j, k, m] = of, time.perf_counter() - start
    return found


def measured(count: int, processes: int) -> dict[str, np.ndarray]:
    """`of_one_seed`, with the data sets as the last dimension."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        values, seconds = np.stack(pool.map(of_one_seed, range(count), chunksize=5), axis=-1)
    return {"values": values, "seconds": seconds}


def cells(found: dict[str, np.ndarray], model: str, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean absolute error and variance of estimators, test errors, and smallest times: each a row for each name."""
    values = found["values"][MODELS.index(model), DIMENSIONS.index(d)].transpose(1, 0, 2)
    seconds = found["seconds"][MODELS.index(model), DIMENSIONS.index(d)].transpose(1, 0, 2).min(axis=2)
    estimates, pvalues = values[: len(ESTIMATORS)], values[len(ESTIMATORS) :]
    true = truth(d) if model == "uncalibrated" else 0.0
    # p-values of draws are multiples of 1 / (R + 1) but for rounding.
    rejected = (pvalues <= LEVEL * (1 + 1e-9)).mean(axis=2)
    errors = np.where(np.isnan(pvalues).any(axis=2), np.nan, rejected if model == "calibrated" else 1 - rejected)
    return np.abs(estimates - true).mean(axis=2), estimates.var(axis=2, ddof=1), errors, seconds


def table(found: dict[str, np.ndarray]) -> str:
    count = found["values"].shape[-1]
    bootstrap, exact = (TESTS[name].n_resamples for name in ("bootstrap", "exact"))
    lines = [f"{count} data sets each; {bootstrap} resamples (bootstrap), {exact} draws (exact); . not computed"]

    def block(title: str, names: tuple[str, ...], rows: np.ndarray, form: str) -> None:
        lines.append("")
        lines.append(title.ljust(34) + "".join(f"n = {n}".rjust(11) for n in SIZES))
        for name, row in zip(names, rows, strict=True):
            lines.append(name.ljust(34) + "".join(("." if np.isnan(x) else format(x, form)).rjust(11) for x in row))

    for d in DIMENSIONS:
        for model in MODELS:
            error, variance, test_error, _ = cells(found, model, d)
            true = f", SKCE = {truth(d):.6f}" if model == "uncalibrated" else ", SKCE = 0"
            lines += ["", f"d = {d}, {model} model{true}"]
            block("mean absolute error", tuple(ESTIMATORS), error, ".2e")
            block("variance", tuple(ESTIMATORS), variance, ".2e")
            kind = "type I error" if model == "calibrated" else "type II error"
            block(f"{kind} at {LEVEL}", tuple(TESTS), test_error, ".3f")
    return "\n".join(lines)


# -- figures -----------------------------------------------------------------------------------------

COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#000000")


def estimators_figure(found: dict[str, np.ndarray]):
    """The paper's figures 6 to 9."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(4, 3, sharex="col")
    for row, (model, d) in zip(axes, [(model, d) for model in MODELS for d in DIMENSIONS], strict=True):
        error, variance, _, seconds = cells(found, model, d)
        milliseconds = 1e3 * seconds[: len(ESTIMATORS)]
        for name, colour, e, v, s in zip(ESTIMATORS, COLOURS, error, variance, milliseconds, strict=False):
            row[0].loglog(SIZES, e, marker="o", markersize=4, color=colour, label=name)
            row[1].loglog(SIZES, v, marker="o", markersize=4, color=colour)
            row[2].loglog(s, e, marker="o", markersize=4, color=colour)
        row[0].set_ylabel(f"{model}, d = {d}")
    for cell, title in zip(axes[0], ("mean absolute error", "variance", "mean absolute error"), strict=True):
        cell.set_title(title, fontsize=11)
    for cell, label in zip(axes[-1], ("samples", "samples", "time of an estimate / ms"), strict=True):
        cell.set_xlabel(label)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def tests_figure(found: dict[str, np.ndarray]):
    """The paper's figures 10 and 11, over samples and over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 4, sharey=True)
    for row, over in zip(axes, ("samples", "time of a test / ms"), strict=True):
        for cell, (d, model) in zip(row, [(d, model) for d in DIMENSIONS for model in MODELS], strict=True):
            _, _, errors, seconds = cells(found, model, d)
            for name, colour, e, s in zip(TESTS, COLOURS, errors, 1e3 * seconds[len(ESTIMATORS) :], strict=True):
                shown = ~np.isnan(e)
                x = np.array(SIZES) if over == "samples" else s
                cell.semilogx(x[shown], e[shown], marker="o", markersize=4, color=colour, label=name)
            if model == "calibrated":
                cell.axhline(LEVEL, color="black", linestyle="--", linewidth=1)
            kind = "type I error" if model == "calibrated" else "type II error"
            if over == "samples":
                cell.set_title(f"d = {d}: {kind}", fontsize=11)
            cell.set_xlabel(over)
    figure.legend(*axes[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False)
    return figure


def check(count: int = 100, n: int = 1000) -> str:
    """The paper's way to the truth: the mean of estimates of other data sets."""
    lines = [f"SKCE of the uncalibrated model; mean of {count} estimates of {n} samples"]
    for d in DIMENSIONS:
        values = [estimate("unbiased, B = n", *data_set("uncalibrated", n, d, 10**6 + seed)) for seed in range(count)]
        error = np.std(values, ddof=1) / math.sqrt(count)
        lines.append(f"d = {d}: quadrature {truth(d):.6f}, mean {np.mean(values):.6f}, standard error {error:.6f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-sets", type=int, default=500)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="print the true SKCE and a mean of estimates, and stop")
    parser.add_argument("--save", type=Path, metavar="NPZ", help="values, p-values and times")
    parser.add_argument("--load", type=Path, metavar="NPZ", help="instead of computing them")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="draw w21_estimators.png and w21_tests.png there")
    given = parser.parse_args()
    if given.check:
        print(check())
        return
    if given.load:
        with np.load(given.load) as arrays:
            found = dict(arrays)
    else:
        found = measured(given.data_sets, given.processes)
    if given.save:
        np.savez_compressed(given.save, **found)
    print(table(found))
    if given.figures:
        estimators_figure(found).savefig(given.figures / "w21_estimators.png", dpi=80)
        tests_figure(found).savefig(given.figures / "w21_tests.png", dpi=80)


if __name__ == "__main__":
    main()
