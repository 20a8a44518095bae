"""Temperature scaling of classifiers and of a regression: calibration errors before and after, on other samples.

    python docs/scripts/recalibration_demo.py --figure docs/_static/recalibration.png > docs/recalibration_table.txt

Every set of predictions is split in halves at random (seed 0): the temperature is fitted to one, by the likelihood and
by the SKCE, and all numbers are of the other. Classifiers: those of `kcalib demo`, and the files in the folder that the
variable KCALIB_DATA names, if it is set (the SKCE is fitted to 2000 samples at most). Regression: means and standard
deviations over the trees of a random forest on the diabetes data of scikit-learn. The figure needs matplotlib.

SKCE: the unbiased estimate x 1e4 and its standard error, all with the bandwidths of the predictions before. p: of
`kcalib.calibration_test` of the scaled predictions, for what one temperature cannot repair.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import scipy

import kcalib
from kcalib.bandwidth import median_distance
from kcalib.distributions import Normal
from kcalib.kernels import Exponential, Gaussian
from kcalib.recalibration import TemperatureScaling

MODELS = ("logistic", "mlp", "forest", "forest_temperature", "gaussian_nb", "multinomial_nb")
MOST_PAIRS = 2000
TREES, TRAIN = 200, 142


@dataclass(frozen=True)
class Row:
    name: str
    criterion: str  # "before", "likelihood" or "skce"
    temperature: float
    standard_error: float
    skce: kcalib.SKCEResult
    accuracy: float  # of a regression: root of the mean squared error
    loss: float  # mean negative log-likelihood
    p_value: float | None

    def __str__(self) -> str:
        shown = f"{self.name:32} {self.criterion:10} "
        shown += " " * 15 if self.criterion == "before" else f"{self.temperature:7.3f} {self.standard_error:7.3f}"
        shown += f" {1e4 * self.skce.value:9.2f} {1e4 * (self.skce.standard_error or 0):7.2f}"
        shown += f" {self.accuracy:9.4f} {self.loss:8.4f}"
        return shown if self.p_value is None else f"{shown} {self.p_value:8.2g}"


def halves(n: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(n)
    return order[: n // 2], order[n // 2 :]


def classifier_rows(name: str, y: np.ndarray, p: np.ndarray, *, from_logits: bool = False) -> list[Row]:
    """Before, and fitted by both criteria."""
    fit, rest = halves(len(y))
    before = scipy.special.softmax(p[rest].astype(np.float64), axis=1) if from_logits else p[rest]
    kernel = Exponential(bandwidth=median_distance(before).value)

    def row(criterion: str, q: np.ndarray, scaling: Any) -> Row:
        value = kcalib.skce.result(y[rest], q, kernel=kernel)
        accuracy, loss = float(np.mean(q.argmax(axis=1) == y[rest])), kcalib.log_loss(y[rest], q)
        if scaling is None:
            return Row(name, criterion, 1.0, 0.0, value, accuracy, loss, None)
        p_value = kcalib.calibration_test(y[rest], q, kernel=kernel, seed=0).pvalue
        return Row(name, criterion, scaling.temperature_, scaling.standard_error_, value, accuracy, loss, p_value)

    rows = [row("before", before, None)]
    for criterion, samples in (("likelihood", fit), ("skce", fit[:MOST_PAIRS])):
        scaling = TemperatureScaling(criterion=criterion).fit(y[samples], p[samples], from_logits=from_logits)
        rows.append(row(criterion, scaling.transform(p[rest], from_logits=from_logits), scaling))
    return rows


def digits() -> list[list[Row]]:
    found = []
    for model in MODELS:
        with (
            resources.as_file(resources.files("kcalib") / "data" / f"digits_{model}.npz") as path,
            np.load(path) as data,
        ):
            found.append(classifier_rows(f"digits_{model}", data["labels"], data["probs"]))
    return found


def others(folder: str) -> list[list[Row]]:
    found = []
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path) as data:
            if "logits" in data or "probs" in data:
                logits = "logits" in data
                y = data["labels"].astype(np.int64)
                found.append(classifier_rows(path.stem, y, data["logits" if logits else "probs"], from_logits=logits))
    return found


def regression() -> tuple[list[Row], np.ndarray, list[Normal]]:
    """Before, and fitted by both criteria; the targets and the three predictions of the other half."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import RandomForestRegressor

    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, held_out = order[:TRAIN], order[TRAIN:]
    forest = RandomForestRegressor(TREES, min_samples_leaf=5, random_state=0).fit(x[train], y[train])
    trees = np.stack([tree.predict(x[held_out]) for tree in forest.estimators_])
    y, predicted = y[held_out], Normal(trees.mean(axis=0), trees.std(axis=0))
    fit, rest = halves(len(y))
    before = predicted.take(rest)
    described = kcalib.skce.result(y[rest], before)
    kernel, target_kernel = (_with_bandwidth(k) for k in (described.kernel, described.target_kernel))

    def row(criterion: str, q: Normal, scaling: Any) -> Row:
        value = kcalib.skce.result(y[rest], q, kernel=kernel, target_kernel=target_kernel)
        error = float(np.sqrt(np.mean((y[rest] - q.mean) ** 2)))
        temperature, its_error = (1.0, 0.0) if scaling is None else (scaling.temperature_, scaling.standard_error_)
        loss = -float(np.mean(q.log_density(y[rest])))
        return Row("diabetes, forest of trees", criterion, temperature, its_error, value, error, loss, None)

    rows, predictions = [row("before", before, None)], [before]
    for criterion in ("likelihood", "skce"):
        scaling = TemperatureScaling(criterion=criterion).fit(y[fit], predicted.take(fit))
        predictions.append(scaling.transform(before))
        rows.append(row(criterion, predictions[-1], scaling))
    return rows, y[rest], predictions


def _with_bandwidth(described: str) -> Exponential | Gaussian:
    """A kernel as results show it."""
    kernels = {"Exponential": Exponential, "Gaussian": Gaussian}
    name, _, rest = described.partition("(bandwidth=")
    return kernels[name](bandwidth=float(rest.rstrip(")").partition(",")[0]))


def draw(path: str, classifiers: list[list[Row]], y: np.ndarray, predictions: list[Normal]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for k, (label, colour) in enumerate((("before", "0.55"), ("likelihood", "C0"), ("skce", "C1"))):
        rows = [found[k] for found in classifiers]
        places = np.arange(len(rows)) + 0.25 * (k - 1)
        bars = [2 * (row.skce.standard_error or 0) for row in rows]
        left.errorbar(places, [row.skce.value for row in rows], bars, fmt="o", color=colour, capsize=3, label=label)
    left.axhline(0, color="black", lw=0.8)
    left.set_yscale("symlog", linthresh=1e-3)
    names = [found[0].name.removeprefix("digits_").replace("_", "\n") for found in classifiers]
    left.set_xticks(np.arange(len(names)), names)
    left.set_ylabel("SKCE on the other half, two standard errors")
    left.legend()
    nominal = np.linspace(0, 1, 101)
    for prediction, label, colour in zip(
        predictions, ("before", "likelihood", "skce"), ("0.55", "C0", "C1"), strict=True
    ):
        levels = prediction.cdf(y)
        right.plot(nominal, [np.mean(levels <= level) for level in nominal], color=colour, label=label)
    right.plot([0, 1], [0, 1], color="black", lw=0.8)
    right.set_xlabel("predicted quantile")
    right.set_ylabel("share of targets below it")
    right.legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", metavar="PATH", help="draw the demo's classifiers and the regression")
    arguments = parser.parse_args()
    head = f"{'':32} {'':10} {'T':>7} {'error':>7} {'SKCE x1e4':>9} {'error':>7} {'{}':>9} {'loss':>8}"
    print(f"{head} {'p':>8}".replace(f"{'{}':>9}", f"{'accuracy':>9}"))
    classifiers = digits()
    folder = os.environ.get("KCALIB_DATA")
    for rows in classifiers + (others(folder) if folder else []):
        print(*rows, sep="\n")
    rows, y, predictions = regression()
    print(head.replace(f"{'{}':>9}", f"{'RMSE':>9}"))
    print(*rows, sep="\n")
    if arguments.figure:
        draw(arguments.figure, classifiers, y, predictions)


if __name__ == "__main__":
    main()
