"""Calibration errors by kernel ridge regression: a path of 18 regularizations, decomposition, fits and risks included.

Beside what the literal formulas need first, an eigendecomposition of the dense kernel matrix (NumPy's). For top-label
confidences that is extrapolated from fewer samples, by the cube of the number.
"""

import numpy as np

from .common import PAUSE, alternated, cached_predictions, limited_blas, require

CLASSES = 10
LINE = 25_000  # samples
VALIDATION = 2000
FUNCTIONS = ("KKR", "UKKR")


class Path:
    """18 functions of one training set, and their risks on another."""

    def __init__(self, name, n, lens=None):
        try:
            import kcalib.regression
        except ImportError:
            raise NotImplementedError("this version has no kcalib.regression") from None
        kcalib = require("regression.KKR", "lenses.TopLabel")
        lens = getattr(kcalib.lenses, lens)() if lens else None
        self.function = getattr(kcalib.regression, name)(lens=lens)
        make = self.function._problem
        labels, p = cached_predictions(n + VALIDATION, CLASSES)
        self.train = make(labels[:n], p[:n], None, False)
        self.validation = make(labels[n:], p[n:], None, False)
        grid = type(self.function)().regularization_grid(n)
        self.settings = [{"regularization": value} for value in grid]
        self.points = p[:n]

    def run(self):
        return [trial.risk for trial in self.function._try_settings(self.settings, self.train, self.validation)]

    def kernel_matrix(self):
        squares = np.sum(self.points**2, axis=1)
        return np.exp(-0.5 * np.maximum(squares[:, None] + squares - 2 * self.points @ self.points.T, 0))


def dense_over_line(name, n, n_dense, threads):
    """Time of the eigendecomposition at `n`, extrapolated, over that of the path for confidences."""
    import scipy.linalg  # noqa: F401  # its BLAS must be there before it is limited

    path, matrix = Path(name, n, "TopLabel"), Path(name, n_dense).kernel_matrix()
    with limited_blas(threads):
        times = alternated([path.run, lambda: np.linalg.eigh(matrix)], threads, 3, warm=False, pause=PAUSE)
    return float(np.median(times[:, 1] / times[:, 0])) * (n / n_dense) ** 3


def simplex_over_dense(n, threads, rounds=1):
    """Time of the path for all classes, by function, over that of the eigendecomposition."""
    import scipy.linalg  # noqa: F401

    paths = [Path(name, n) for name in FUNCTIONS]
    matrix = paths[0].kernel_matrix()
    with limited_blas(threads):
        functions = [lambda: np.linalg.eigh(matrix), *(path.run for path in paths)]
        times = alternated(functions, threads, rounds, warm=False, pause=PAUSE)
    return np.median(times[:, 1:] / times[:, :1], axis=0).tolist()
