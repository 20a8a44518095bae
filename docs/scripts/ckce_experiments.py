"""The experiments of the CKCE paper on synthetic data, sections 5.2 and 5.3, with figures.

    python docs/scripts/ckce_experiments.py [--trials 20] [--samples 1000] [--locations 25] [--output docs/_static]

Inputs are normal of deviation 0.25 around a location, on [-1, 1]; P(Y = 1 | x) = sigmoid(x), and the model predicts
sigmoid(5 x). Draws ckce_covariate_shift.png (one trial) and ckce_kernels.png (the mean of all trials), and prints, for
each curve, its largest by its smallest value, mean over trials and of the mean curve, and the mean at location 0 by
that at 0.5 and -0.5.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import kcalib
from kcalib.kernels import Gaussian, Linear

KERNELS = {"linear + Gaussian": None, "linear": Linear(), "Gaussian": Gaussian()}


def problem(n: int, location: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predicted probabilities of class 1."""
    rng = np.random.default_rng(seed)
    x = np.empty(0)
    while len(x) < n:
        drawn = rng.normal(location, 0.25, size=4 * n)
        x = np.concatenate([x, drawn[np.abs(drawn) <= 1]])
    x = x[:n]
    return (rng.uniform(size=n) < 1 / (1 + np.exp(-x))).astype(int), 1 / (1 + np.exp(-5 * x))


def curves(n: int, locations: np.ndarray, trials: int) -> dict[str, np.ndarray]:
    """Each measure at each location, shape (trials, locations)."""
    measures = {f"CKCE, {name}": lambda y, p, k=kernel: kcalib.ckce(y, p, kernel=k) for name, kernel in KERNELS.items()}
    measures |= {"JKCE": kcalib.jkce, "ECE": lambda y, p: kcalib.top_label_ece(y, p)}
    values = {name: np.empty((trials, len(locations))) for name in measures}
    for trial in range(trials):
        for place, location in enumerate(locations):
            y, p = problem(n, location, trial * len(locations) + place)
            for name, measure in measures.items():
                values[name][trial, place] = measure(y, p)
    return values


def print_numbers(values: dict[str, np.ndarray], locations: np.ndarray) -> None:
    middle = np.abs(locations) < 0.1
    sides = np.abs(np.abs(locations) - 0.5) < 0.1
    print(f"{'':24s}{'largest / smallest':>20s}{'of the mean curve':>20s}{'at 0 / at 0.5':>16s}")
    for name, table in values.items():
        mean = table.mean(axis=0)
        spread = np.mean(table.max(axis=1) / table.min(axis=1))
        dip = mean[middle].mean() / mean[sides].mean()
        print(f"{name:24s}{spread:20.2f}{mean.max() / mean.min():20.2f}{dip:16.2f}")


def draw(values: dict[str, np.ndarray], locations: np.ndarray, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "ckce_covariate_shift.png": {"CKCE": "CKCE, linear + Gaussian", "JKCE": "JKCE", "ECE": "ECE"},
        "ckce_kernels.png": {name: f"CKCE, {name}" for name in KERNELS},
    }
    for file, lines in panels.items():
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        for label, key in lines.items():
            curve = values[key][0] if "shift" in file else values[key].mean(axis=0)
            axes.plot(locations, curve, marker="o", markersize=3, label=label)
        axes.set(xlabel="location of the inputs", ylabel="calibration error", ylim=(0, None))
        axes.legend()
        figure.savefig(folder / file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--locations", type=int, default=25)
    parser.add_argument("--output", type=Path, help="folder for the figures; none are drawn without")
    options = parser.parse_args()
    locations = np.linspace(-1, 1, options.locations)
    values = curves(options.samples, locations, options.trials)
    print_numbers(values, locations)
    if options.output is not None:
        draw(values, locations, options.output)


if __name__ == "__main__":
    main()
