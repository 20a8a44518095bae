"""Ten neural networks that overfit, and their ensemble: Widmann et al. 2021, appendix A.3.

    python docs/scripts/w21_friedman.py [--output docs/_static] > docs/w21_friedman.txt

Y = 10 sin(pi X_1 X_2) + 20 (X_3 - 0.5)^2 + 10 X_4 + 5 X_5 + e with X uniform in the ten-dimensional cube and
e ~ N(0, 1) (Friedman 1): 100 training samples and 50 to test. Networks with hidden layers of 200 and 50 ReLU units are
trained for 5000 iterations by Adam, on all samples at once and without regularisation; they predict normal
distributions whose variance is the mean squared error on the training samples at that iteration. The ensemble is the
mixture of the ten.

Prints all measures at some iterations, and draws w21_friedman.png. Needs scikit-learn. Its weights start as in the
paper (Glorot), its offsets small instead of 0. The kernel of the ensemble is that of the networks, with the Wasserstein
distance of mixtures in place of that of normals; it is not known to be positive definite, and the values say so: the
biased SKCE can be below 0.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import kcalib
from kcalib.distributions import Distribution, Ensemble, Normal
from kcalib.kernels import Exponential, Gaussian

N_TRAIN, N_TEST, N_NETWORKS = 100, 50, 10
ITERATIONS = np.unique(np.geomspace(10, 5000, 36).round().astype(int))
MEASURES = ("MSE", "NLL", "pinball loss", "SKCE, unbiased", "SKCE, biased", "p-value")
KERNELS = {
    "kernel": Exponential(bandwidth=1.0, metric="wasserstein"),
    "target_kernel": Gaussian(bandwidth=1.0),
}


def problem(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(size=(n, 10))
    mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, mean + rng.normal(size=n)


def means(x: np.ndarray, y: np.ndarray, points: np.ndarray, seed: int, iterations: np.ndarray) -> np.ndarray:
    """What a network predicts at some points after some iterations, shape (iterations, points)."""
    from sklearn.neural_network import MLPRegressor

    network = MLPRegressor(hidden_layer_sizes=(200, 50), alpha=0.0, batch_size=len(y), random_state=seed)
    found = []
    for iteration in range(1, iterations[-1] + 1):
        network.partial_fit(x, y)
        if iteration in iterations:
            found.append(network.predict(points))
    return np.array(found)


def measures(y: np.ndarray, prediction: Distribution, mean: np.ndarray, n_resamples: int) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcalib.IndefiniteKernelWarning)
        skces = [kcalib.skce(y, prediction, **KERNELS, estimator=name) for name in ("unbiased", "biased")]
        test = kcalib.calibration_test(
            y, prediction, **KERNELS, method=kcalib.methods.Bootstrap(n_resamples=n_resamples), seed=0
        )
    scores = kcalib.log_score(y, prediction), kcalib.pinball_loss(y, prediction)
    return [float(np.mean((y - mean) ** 2)), *scores, *skces, test.pvalue]


def measured(n_resamples: int, n_networks: int, iterations: np.ndarray) -> np.ndarray:
    """Shape (train and test, iterations, networks and ensemble, measures)."""
    rng = np.random.default_rng(1)
    (x, y), (x_test, y_test) = problem(N_TRAIN, rng), problem(N_TEST, rng)
    all_means = np.array([means(x, y, np.concatenate([x, x_test]), k, iterations) for k in range(n_networks)])
    variances = np.mean((all_means[:, :, :N_TRAIN] - y) ** 2, axis=2)
    found = np.empty((2, len(iterations), n_networks + 1, len(MEASURES)))
    for part, (targets, rows) in enumerate(((y, slice(N_TRAIN)), (y_test, slice(N_TRAIN, None)))):
        for i in range(len(iterations)):
            mean = all_means[:, i, rows]
            members = [Normal(m, np.full(len(m), std)) for m, std in zip(mean, np.sqrt(variances[:, i]), strict=True)]
            for k, member in enumerate(members):
                found[part, i, k] = measures(targets, member, mean[k], n_resamples)
            found[part, i, -1] = measures(targets, Ensemble(members), mean.mean(axis=0), n_resamples)
    return found


def table(found: np.ndarray, iterations: np.ndarray) -> str:
    shown = [int(np.abs(np.log(iterations / at)).argmin()) for at in (10, 100, 300, 1000, 2000, 5000)]
    lines = [f"{found.shape[2] - 1} networks: mean over them; and their ensemble"]
    for part, name in enumerate(("training", "test")):
        lines += ["", f"{name} samples".ljust(24) + "".join(f"{iterations[i]}".rjust(11) for i in shown)]
        for m, measure in enumerate(MEASURES):
            for who, values in (("", found[part, :, :-1, m].mean(axis=1)), (", ensemble", found[part, :, -1, m])):
                lines.append((measure + who).ljust(24) + "".join(f"{values[i]:11.3g}" for i in shown))
    return "\n".join(lines)


def figure(found: np.ndarray, iterations: np.ndarray):
    """The paper's figure 12."""
    from matplotlib.figure import Figure

    shown = Figure(figsize=(10, 5.6), layout="constrained")
    colours = ((("training", "#009E73"), ("training, ensemble", "#D55E00")),
               (("test", "#0072B2"), ("test, ensemble", "#CC79A7")))  # fmt: skip
    axes = shown.subplots(2, 3, sharex=True).ravel()
    for m, (measure, cell) in enumerate(zip(MEASURES, axes, strict=True)):
        for part, ((single, colour), (ensemble, other)) in enumerate(colours):
            values = found[part, :, :-1, m]
            cell.fill_between(iterations, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.2, linewidth=0)
            cell.plot(iterations, values.mean(axis=1), color=colour, label=single)
            cell.plot(iterations, found[part, :, -1, m], color=other, label=ensemble)
        cell.set_title(measure, fontsize=11)
        cell.set_xscale("log")
        if measure in ("MSE", "SKCE, biased"):
            cell.set_yscale("log")
        elif measure == "NLL":
            cell.set_yscale("symlog", linthresh=10)
    for cell in axes[3:]:
        cell.set_xlabel("training iterations")
    shown.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resamples", type=int, default=999)
    parser.add_argument("--output", type=Path, help="folder for the figure; none is drawn without")
    given = parser.parse_args()
    found = measured(given.resamples, N_NETWORKS, ITERATIONS)
    print(table(found, ITERATIONS))
    if given.output is not None:
        figure(found, ITERATIONS).savefig(given.output / "w21_friedman.png", dpi=80)


if __name__ == "__main__":
    main()
