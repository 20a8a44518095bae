"""Which regression model of the diabetes data is calibrated best?

    python docs/scripts/diabetes_regression.py [--output docs/_static] > docs/diabetes_regression.txt

442 patients, ten measurements, and how far their disease progressed in a year (25 to 346), a data set that comes with
scikit-learn. Every model is fitted to one half of the patients and predicts normal distributions for the other half:
linear regression with errors of one variance; the same with a standard deviation that is a line in the predicted mean;
Bayesian ridge regression; a Gaussian process; boosted trees with errors of one variance, that of the patients that they
were fitted to, or that in cross-validation.

Prints scores, quantile calibration, SKCE and the p-value of the test for each of them, and paired comparisons; draws
diabetes_quantiles.png. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import kcalib
from kcalib.distributions import Normal
from kcalib.kernels import Exponential, Gaussian

# The same for all models, so that values can be compared: about the standard deviation of the errors.
KERNELS = {
    "kernel": Exponential(bandwidth=50.0, metric="wasserstein"),
    "target_kernel": Gaussian(bandwidth=50.0),
}


def predictions(seed: int = 0) -> tuple[np.ndarray, dict[str, Normal]]:
    """Targets of the second half of the patients, and what each model predicts for them."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    from sklearn.linear_model import BayesianRidge, LinearRegression
    from sklearn.model_selection import cross_val_predict, train_test_split

    x, y = load_diabetes(return_X_y=True)
    x /= x.std(axis=0)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.5, random_state=seed)
    process = GaussianProcessRegressor(RBF(10.0) + WhiteKernel(1.0), normalize_y=True)
    trees = GradientBoostingRegressor(random_state=seed)
    line = LinearRegression().fit(x, y)
    in_folds = y - cross_val_predict(trees, x, y, cv=10)
    trees.fit(x, y)

    def with_deviation(mean: np.ndarray, deviation: float) -> Normal:
        return Normal(mean, np.full(len(mean), deviation))

    found = {
        "linear": with_deviation(line.predict(x_test), np.std(y - line.predict(x), ddof=x.shape[1] + 1)),
        "linear, growing errors": growing(line.predict(x), y, line.predict(x_test)),
        "Bayesian ridge": Normal(*BayesianRidge().fit(x, y).predict(x_test, return_std=True)),
        "Gaussian process": Normal(*process.fit(x, y).predict(x_test, return_std=True)),
        "trees, fitted errors": with_deviation(trees.predict(x_test), np.std(y - trees.predict(x))),
        "trees, errors in folds": with_deviation(trees.predict(x_test), np.std(in_folds)),
    }
    return y_test, found


def growing(fitted: np.ndarray, y: np.ndarray, mean: np.ndarray) -> Normal:
    """Standard deviations from a line through the absolute errors, whose mean is sqrt(2 / pi) of the deviation."""
    slope, offset = np.polyfit(fitted, np.abs(y - fitted), 1)
    return Normal(mean, np.maximum(offset + slope * mean, 10.0) * np.sqrt(np.pi / 2))


def table(y: np.ndarray, models: dict[str, Normal]) -> str:
    head = ("mean std", "CRPS", "log score", "coverage", "SKCE", "std. error", "p-value")
    lines = [" " * 24 + "".join(name.rjust(12) for name in head)]
    for name, prediction in models.items():
        result = kcalib.skce.result(y, prediction, **KERNELS)
        pvalue = kcalib.calibration_test(y, prediction, **KERNELS, seed=0).pvalue
        inside = np.mean(np.abs(y - prediction.mean) < 1.645 * prediction.std)
        lines.append(
            name.ljust(24)
            + f"{prediction.std.mean():12.1f}{kcalib.crps(y, prediction):12.2f}{kcalib.log_score(y, prediction):12.3f}"
            + f"{inside:12.3f}{result.value:12.2e}{result.standard_error:12.2e}{pvalue:12.2g}"
        )
    return "\n".join([f"{len(y)} patients; coverage: of intervals of 90 %", *lines])


def figure(y: np.ndarray, models: dict[str, Normal]):
    from matplotlib.figure import Figure

    shown = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = shown.subplots()
    for (name, prediction), colour in zip(
        models.items(), ("#009E73", "#000000", "#56B4E9", "#0072B2", "#D55E00", "#E69F00"), strict=True
    ):
        curve = kcalib.quantile_calibration(y, prediction)
        axes.plot(curve.levels, curve.coverage, color=colour, label=name)
    axes.fill_between(curve.levels, *curve.consistency_band, color="0.9", label="band if calibrated")
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1)
    axes.set(xlabel="quantile level", ylabel="share of targets below", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=8, frameon=False)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for the figure; none is drawn without")
    given = parser.parse_args()
    y, models = predictions()
    print(table(y, models))
    print()
    print(kcalib.compare(y, models, metric=kcalib.methods.SKCE(**KERNELS)))
    if given.output is not None:
        figure(y, models).savefig(given.output / "diabetes_quantiles.png", dpi=80)


if __name__ == "__main__":
    main()
