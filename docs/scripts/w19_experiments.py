"""Levels and powers of calibration tests, and estimates, in the experiments of Widmann et al. 2019, section 7.

    python docs/scripts/w19_experiments.py --save w19.npz > docs/w19_table.txt
    python docs/scripts/w19_experiments.py --load w19.npz --figures docs/_static

Predictions p ~ Dir(0.1, ..., 0.1); labels of M1: from p, so that the model is calibrated; M2: half of them from p, half
of them class 1; M3: uniform. n = 250 samples, m = 10 classes; exponential kernel, total variation distance, median
heuristic. Each data set is drawn by a seed of its own, so that `--processes` changes nothing. The figures need
matplotlib (the extra `plot`). The paper's ECE is that of the whole prediction, by total variation; here it is that of
the top label. Powers are from fewer data sets than levels: most are 1, and far tails take seconds.

`run` computes p-values or estimates of all data sets of a model, `w19_table` and `figures` show them. Levels on other
laws: levels_and_powers.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from threadpoolctl import threadpool_limits

import kcalib

MODELS = ("M1", "M2", "M3")
ALPHAS = (0.01, 0.05, 0.1)
RISK = 1e-4  # that a share leaves its bounds
KERNEL = kcalib.kernels.Exponential(metric="total_variation")
ESTIMATES = ("ECE (top label)", "SKCE, biased", "SKCE, unbiased", "SKCE, linear")

ALL_PAIRS = {
    "exact": kcalib.methods.Exact(),
    "spectrum": kcalib.methods.Spectrum(),
    "multiplier, Rademacher": kcalib.methods.Multiplier(),
    "multiplier, Gaussian": kcalib.methods.Multiplier(multipliers="gaussian"),
    "Pearson curve": kcalib.methods.Pearson(),
    "gamma law": kcalib.methods.Gamma(),
    "bootstrap": kcalib.methods.Bootstrap(),
}
CME = {
    "CME, conditional": kcalib.methods.CME(reference="conditional"),
    "CME, F law": kcalib.methods.CME(reference="F"),
}
W19_TESTS = {
    **ALL_PAIRS,
    "spectrum, 20 eigenvalues": kcalib.methods.Spectrum(n_eigenvalues=20),
    "spectrum of residuals": kcalib.methods.Spectrum(reference="residuals"),
    "block": kcalib.methods.Block(),
    "block, sample variance": kcalib.methods.Block(variance="sample"),
    "block, second moment": kcalib.methods.Block(variance="second_moment"),
    "linear": kcalib.methods.Linear(),
    "linear, sample variance": kcalib.methods.Linear(variance="sample"),
    "linear, second moment": kcalib.methods.Linear(variance="second_moment"),
    **CME,
    "distribution-free, unbiased": kcalib.methods.DistributionFree(),
    "distribution-free, biased": kcalib.methods.DistributionFree(estimator="biased"),
    "distribution-free, linear": kcalib.methods.DistributionFree(estimator="linear"),
    "consistency, ECE": kcalib.methods.Consistency(),
    "consistency, ECE, labels": kcalib.methods.Consistency(resample_predictions=False),
}
RESAMPLING = (kcalib.methods.Exact, kcalib.methods.Multiplier, kcalib.methods.Bootstrap, kcalib.methods.Consistency)
RANDOM = (*RESAMPLING, kcalib.methods.CME, str)


# -- data sets and what is computed of them -------------------------------------------------------


def data_set(model: str, n: int, m: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([MODELS.index(model), n, m, *seed])
    p = rng.dirichlet(np.full(m, 0.1), size=n)
    drawn = np.minimum((np.cumsum(p, axis=1) < rng.uniform(size=(n, 1))).sum(axis=1), m - 1)
    if model == "M2":
        return np.where(rng.uniform(size=n) < 0.5, drawn, 0), p
    return (drawn if model == "M1" else rng.integers(m, size=n)), p


def pvalue(method: Any, y: np.ndarray, p: np.ndarray, n_resamples: int, seed: int) -> float:
    kernel = None if isinstance(method, kcalib.methods.Consistency) else KERNEL
    own_seed = seed if isinstance(method, RANDOM) else None
    if isinstance(method, RESAMPLING):
        method = dataclasses.replace(method, n_resamples=n_resamples)
    return kcalib.calibration_test(y, p, method=method, kernel=kernel, seed=own_seed, threads=1).pvalue


def estimates(y: np.ndarray, p: np.ndarray) -> list[float]:
    skces = [kcalib.skce(y, p, kernel=KERNEL, estimator=e, threads=1) for e in ("biased", "unbiased", "linear")]
    return [kcalib.top_label_ece(y, p), *skces]


def pvalues_of(i: int, *, model: str, n: int, m: int, tests: dict, n_resamples: int, seed: int) -> list[float]:
    y, p = data_set(model, n, m, (seed, i))
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        # Consistency resampling warns that it rejects too often, which is what is measured here.
        warnings.simplefilter("ignore", UserWarning)
        return [pvalue(method, y, p, n_resamples, i) for method in tests.values()]


def estimates_of(i: int, *, model: str, n: int, m: int, seed: int) -> list[float]:
    return estimates(*data_set(model, n, m, (seed, i)))


def run(values: Callable[..., list[float]], count: int, processes: int, **options) -> np.ndarray:
    """Rows of p-values or of estimates, shape (rows, count)."""
    one = functools.partial(values, **options)
    if processes == 1:
        return np.array([one(i) for i in range(count)]).T
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return np.array(pool.map(one, range(count), chunksize=10)).T


# -- tables ------------------------------------------------------------------------------------------


def shares(pvalues: np.ndarray) -> list[float]:
    """The share of p-values at most alpha; those of resampling are multiples of 1 / (R + 1) but for rounding."""
    return [float(np.mean(pvalues <= alpha * (1 + 1e-9))) for alpha in ALPHAS]


def binomial_bounds(count: int, p: float) -> tuple[float, float]:
    law = scipy.stats.binom(count, p)
    return law.ppf(RISK / 2) / count, law.isf(RISK / 2) / count


def clopper_pearson(share: float, count: int) -> tuple[float, float]:
    interval = scipy.stats.binomtest(round(share * count), count).proportion_ci(1 - RISK)
    return interval.low, interval.high


def errors(pvalues: np.ndarray) -> list[str]:
    """Type I errors; + and - where they are above or below the binomial bounds."""
    cells = []
    for share, alpha in zip(shares(pvalues), ALPHAS, strict=True):
        low, high = binomial_bounds(len(pvalues), alpha)
        cells.append(f"{share:.4f}" + ("+" if share > high else "-" if share < low else " "))
    return cells


def bounds_line(count: int) -> str:
    return "".join("{:.4f} .. {:.4f}".format(*binomial_bounds(count, a)).rjust(26) for a in ALPHAS)


def w19_table(pvalues: dict[str, np.ndarray], names: list[str], n_resamples: int) -> str:
    counts = {model: values.shape[1] for model, values in pvalues.items()}
    lines = [
        ", ".join(f"{model}: {count}" for model, count in counts.items())
        + f" data sets of 250 samples and 10 classes; {n_resamples} resamples",
        f"M1: bounds of a binomial share of mean alpha, at a risk of {RISK:g}; + rejects too often, - too rarely",
        f"M2, M3: bounds of the power, at a risk of {RISK:g}",
    ]
    for model in MODELS:
        title = f"{model}, type I error" if model == "M1" else f"{model}, power"
        lines += ["", title.ljust(28) + "".join(f"alpha = {a}".rjust(26) for a in ALPHAS)]
        if model == "M1":
            lines += ["binomial bounds".ljust(28) + bounds_line(counts[model])]
        for name, values in zip(names, pvalues[model], strict=True):
            if model == "M1":
                cells = errors(values)
            else:
                cells = [
                    "{:.4f} ({:.3f} .. {:.3f})".format(s, *clopper_pearson(s, counts[model])) for s in shares(values)
                ]
            lines.append((name.ljust(28) + "".join(cell.rjust(26) for cell in cells)).rstrip())
    return "\n".join(lines)


# -- figures -----------------------------------------------------------------------------------------


def estimates_figure(found: dict[str, np.ndarray]):
    """The paper's figure 1: distributions of estimates, their means, and the true values."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.2), layout="constrained")
    axes = figure.subplots(len(MODELS), len(ESTIMATES))
    for row, model in enumerate(MODELS):
        truth = [true_ece(model)] + [0.0 if model == "M1" else found[model][2].mean()] * 3
        for column, (name, values) in enumerate(zip(ESTIMATES, found[model], strict=True)):
            cell = axes[row, column]
            cell.hist(values, bins=40, color="#56B4E9")
            cell.axvline(values.mean(), color="#0072B2", label="mean")
            cell.axvline(truth[column], color="#D55E00", linestyle="--", label="true value")
            cell.set_yticks([])
            cell.ticklabel_format(axis="x", scilimits=(-2, 3))
            cell.locator_params(axis="x", nbins=5)
            if row == 0:
                cell.set_title(name, fontsize=11)
            if column == 0:
                cell.set_ylabel(model)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def true_ece(model: str) -> float:
    """The top label has confidence c. P(correct) is c (M1), (c + 0.1) / 2 (M2: by symmetry), 0.1 (M3)."""
    confidence = np.random.default_rng(0).dirichlet(np.full(10, 0.1), size=10**6).max(axis=1).mean()
    return {"M1": 0.0, "M2": (confidence - 0.1) / 2, "M3": confidence - 0.1}[model]


PAPER = {
    "consistency, ECE": "C",
    "distribution-free, biased": "D_b",
    "distribution-free, unbiased": "D_uq",
    "distribution-free, linear": "D_ul",
    "bootstrap": "A_uq",
    "linear, sample variance": "A_ul",
}
OURS = {
    name: name for name in ("exact", "spectrum", "gamma law", "block", "CME, conditional", "consistency, ECE, labels")
}
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7")
STYLES = ("-", (0, (5, 1)), (0, (1, 1)), "-.", (0, (4, 2)), "-")


def tests_figure(pvalues: dict[str, np.ndarray], names: list[str]):
    """The paper's figure 2, test error against significance level, and the same for other tests."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), layout="constrained")
    axes = figure.subplots(2, len(MODELS), sharex=True, sharey=True)
    alphas = np.linspace(0, 1, 501)
    for row, shown in enumerate((PAPER, OURS)):
        for cell, model in zip(axes[row], MODELS, strict=True):
            cell.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
            for (name, label), colour, style in zip(shown.items(), COLOURS, STYLES, strict=True):
                values = np.sort(pvalues[model][names.index(name)])
                rejected = np.searchsorted(values, alphas + 1e-9, side="right") / len(values)
                error = rejected if model == "M1" else 1 - rejected
                cell.plot(alphas, error, color=colour, linestyle=style, linewidth=1.6, label=label)
            cell.set_title(f"{model}: type I error" if model == "M1" else f"{model}: type II error", fontsize=11)
        axes[row, 0].set_ylabel("the paper's tests" if row == 0 else "others")
        axes[row, -1].legend(fontsize=9, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.supxlabel("significance level", fontsize=11)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-sets", type=int, default=2000)
    parser.add_argument("--power-data-sets", type=int, default=100, help="of M2 and M3")
    parser.add_argument("--resamples", type=int, default=199)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, metavar="NPZ", help="p-values and estimates")
    parser.add_argument("--load", type=Path, metavar="NPZ", help="instead of computing them")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="draw w19_estimates.png and w19_tests.png there")
    given = parser.parse_args()
    found = load(given.load) if given.load else experiments(given)
    if given.save:
        np.savez_compressed(given.save, **found)
    names = [str(name) for name in found["names"]]
    pvalues = {model: found[model] for model in MODELS}
    print(w19_table(pvalues, names, int(found["n_resamples"])))
    if given.figures:
        values = {model: found[f"{model} estimates"] for model in MODELS}
        estimates_figure(values).savefig(given.figures / "w19_estimates.png", dpi=90)
        tests_figure(pvalues, names).savefig(given.figures / "w19_tests.png", dpi=90)


def experiments(given: argparse.Namespace) -> dict[str, np.ndarray]:
    """For each model rows of p-values by `names`, and rows of estimates."""
    found = {"names": np.array(list(W19_TESTS)), "n_resamples": np.array(given.resamples)}
    for model in MODELS:
        options = {"model": model, "n": 250, "m": 10, "seed": given.seed}
        count = given.data_sets if model == "M1" else given.power_data_sets
        tests = {"tests": W19_TESTS, "n_resamples": given.resamples}
        found[model] = run(pvalues_of, count, given.processes, **options, **tests)
        found[f"{model} estimates"] = run(estimates_of, given.data_sets, given.processes, **options)
    return found


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


if __name__ == "__main__":
    main()
