"""Make the predictions that ``kcalib demo`` ships.

Plain scikit-learn classifiers on the bundled handwritten digits
(``sklearn.datasets.load_digits``: 1797 images of 8 x 8 pixels, 10 classes).
Every sample is predicted by a model that has not seen it: out-of-fold in a
stratified, shuffled 10-fold cross-validation with a fixed seed. The classifiers'
own probabilities are stored as they are; only the rounding of the row sums is
removed, in double precision, before the cast to float32.

Data: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits",
UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49,
licensed CC BY 4.0. scikit-learn bundles its test part.

Run (about a minute; needs scikit-learn >= 1.8):

    python docs/scripts/make_demo_predictions.py

It writes ``kcalib/data/digits_<model>.npz`` with the arrays ``probs``
(1797, 10) float32 and ``labels`` (1797,) uint8, samples in the data set's order.
"""

from pathlib import Path

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from threadpoolctl import threadpool_limits

SEED = 0
DATA_DIR = Path(__file__).resolve().parents[2] / "kcalib" / "data"


def models():
    """The classifiers by file name; the pixels are counts from 0 to 16."""
    # 128 trees: shares of votes k/128 are exact in float32, so that no rounding
    # moves a confidence across the edge of an ECE bin.
    forest = RandomForestClassifier(n_estimators=128, random_state=SEED)
    return {
        # Well calibrated.
        "logistic": make_pipeline(MinMaxScaler(), LogisticRegression(C=10, max_iter=3000)),
        "mlp": make_pipeline(
            MinMaxScaler(),
            MLPClassifier(hidden_layer_sizes=(64,), max_iter=500, random_state=SEED),
        ),
        "forest_temperature": CalibratedClassifierCV(forest, method="temperature", cv=5, ensemble=False),
        # Over-confident: take pixels that are far from independent for independent.
        "gaussian_nb": GaussianNB(),
        "multinomial_nb": MultinomialNB(),
        # Under-confident: averages the votes of decorrelated trees.
        "forest": forest,
    }


def predict(model, x, y):
    """Out-of-fold class probabilities as float32 rows that sum to 1."""
    folds = StratifiedKFold(n_splits=10, shuffle=True, random_state=SEED)
    probs = cross_val_predict(model, x, y, cv=folds, method="predict_proba")
    probs = np.asarray(probs, dtype=np.float64)
    probs /= probs.sum(axis=1, keepdims=True)
    return probs.astype(np.float32)


def main():
    x, y = load_digits(return_X_y=True)
    labels = y.astype(np.uint8)
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    # One BLAS thread: the order of summation must not depend on the core count.
    with threadpool_limits(limits=1):
        for name, model in models().items():
            probs = predict(model, x, y)
            assert probs.shape == (len(y), 10) and probs.min() >= 0
            assert np.abs(probs.sum(axis=1, dtype=np.float64) - 1).max() < 1e-6
            path = DATA_DIR / f"digits_{name}.npz"
            np.savez_compressed(path, probs=probs, labels=labels)
            accuracy = np.mean(probs.argmax(axis=1) == y)
            print(
                f"{path.name:32s} accuracy {accuracy:.4f}  "
                f"mean confidence {probs.max(axis=1).mean():.4f}  "
                f"{path.stat().st_size / 1000:.0f} kB"
            )


if __name__ == "__main__":
    main()
