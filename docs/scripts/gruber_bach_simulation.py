"""Section 5.1 of Gruber and Bach: does the risk find the true calibration error? Their figure 1.

    python docs/scripts/gruber_bach_simulation.py [--trials 100] [--samples 500] [--output docs/_static]

True probabilities P ~ Dir(0.04, ..., 0.04) of 5 classes, labels Y ~ P, and a model that predicts softmax(0.3 log P).
The function h(p, p') = <p - q(p), p' - q(p')>, q(p) = softmax(theta / 0.3 log p), is the truth at theta = 1. Prints,
over the trials, where the risk is lowest; draws gruber_bach_simulation.png, the risk over theta.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from kcalib.regression import TemperatureCalibration

THETAS = np.linspace(0.5, 1.5, 21)


def problem(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and the logits of the predictions."""
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.full(5, 0.04), size=n)
    y = np.minimum((rng.uniform(size=(n, 1)) > true.cumsum(axis=1)).sum(axis=1), 4)
    with np.errstate(divide="ignore"):
        return y, 0.3 * np.log(true)


def risks(n: int, trials: int) -> np.ndarray:
    """Shape (trials, thetas)."""
    table = np.empty((trials, len(THETAS)))
    for trial in range(trials):
        y, logits = problem(n, trial)
        for k, theta in enumerate(THETAS):
            function = TemperatureCalibration(0.3 / theta).fit(y, logits, from_logits=True)
            table[trial, k] = function.risk(y, logits, from_logits=True)
    return table


def fitted(n: int, trials: int) -> np.ndarray:
    """theta of the lowest risk in each trial."""
    data = (problem(n, trial) for trial in range(trials))
    functions = (TemperatureCalibration().fit(y, logits, from_logits=True) for y, logits in data)
    return np.array([0.3 / function.temperature_ for function in functions])


def draw(table: np.ndarray, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    mean, deviation = table.mean(axis=0), table.std(axis=0, ddof=1)
    axes.fill_between(THETAS, mean - deviation, mean + deviation, alpha=0.2, label="standard deviation")
    axes.plot(THETAS, mean, label=f"mean of {len(table)} trials")
    axes.axvline(1.0, color="tab:red", linewidth=1, label="truth")
    axes.set(xlabel=r"$\theta$", ylabel="risk")
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "gruber_bach_simulation.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--output", type=Path, help="folder for the figure; none is drawn without")
    options = parser.parse_args()
    table, thetas = risks(options.samples, options.trials), fitted(options.samples, options.trials)
    print(f"mean risk lowest at theta = {THETAS[table.mean(axis=0).argmin()]:.2f}")
    print(f"theta of the lowest risk of a trial: mean {thetas.mean():.3f}, standard deviation {thetas.std(ddof=1):.3f}")
    if options.output is not None:
        draw(table, options.output)


if __name__ == "__main__":
    main()
