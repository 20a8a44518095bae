"""Make the regression examples that ship with kcalib.

Plain scikit-learn regressors on the bundled diabetes data (``sklearn.datasets.load_diabetes``: 442 patients, 10
features, disease progression after a year). Every sample is predicted by a model that has not seen it: out-of-fold in a
shuffled 10-fold cross-validation with a fixed seed. ``BayesianRidge`` predicts normal distributions by itself; the
trees of a ``RandomForestRegressor`` are taken as samples of a predicted distribution.

Data: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least Angle Regression", Annals of Statistics 32 (2004).
scikit-learn bundles them.

Run (some seconds; needs scikit-learn):

    python docs/scripts/make_demo_forecasts.py

It writes ``kcalib/data/diabetes_bayesian_ridge.npz`` with the arrays ``y`` (442,) uint16, ``mean`` and ``std`` (442,)
float32, and ``kcalib/data/diabetes_forest.npz`` with ``y`` and ``samples`` (442, 50) uint16, samples in the data set's
order.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import KFold
from threadpoolctl import threadpool_limits

SEED = 0
TREES = 50
DATA_DIR = Path(__file__).resolve().parents[2] / "kcalib" / "data"


def predict(x, y):
    """Out-of-fold means and standard deviations of the one, and samples of the other."""
    mean, std, samples = np.empty(len(y)), np.empty(len(y)), np.empty((len(y), TREES))
    for train, test in KFold(n_splits=10, shuffle=True, random_state=SEED).split(x):
        mean[test], std[test] = BayesianRidge().fit(x[train], y[train]).predict(x[test], return_std=True)
        forest = RandomForestRegressor(TREES, random_state=SEED).fit(x[train], y[train])
        samples[test] = np.stack([tree.predict(x[test]) for tree in forest.estimators_], axis=1)
    return mean, std, samples


def main():
    x, y = load_diabetes(return_X_y=True)
    targets = y.astype(np.uint16)
    assert np.array_equal(targets, y)
    # One BLAS thread: the order of summation must not depend on the core count.
    with threadpool_limits(limits=1):
        mean, std, samples = predict(x, y)
    whole = np.rint(samples).astype(np.uint16)  # leaves of one patient, mostly: whole numbers
    print(f"samples that are no whole numbers: {np.mean(whole != samples):.4f}")
    for name, arrays in (
        ("bayesian_ridge", {"mean": mean.astype(np.float32), "std": std.astype(np.float32)}),
        ("forest", {"samples": whole}),
    ):
        path = DATA_DIR / f"diabetes_{name}.npz"
        np.savez_compressed(path, y=targets, **arrays)
        print(f"{path.name:32s} {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
