"""Venn-Abers predictors: two isotonic regressions for each prediction, and a probability between their values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_integer
from kcalib.distributions import Categorical
from kcalib.recalibration._recalibrator import ClassSamples, OneVsRest, columns_of, restore_order, unwrap_categorical
from kcalib.recalibration.isotonic import Points, points_of

__all__ = ["VennAbers"]


class Values(NamedTuple):
    """Values of isotonic regression after adding one sample at each point."""

    place: np.ndarray  # ascending, shape: (k,)
    lower: np.ndarray  # if it is not of the class, shape: (k,)
    upper: np.ndarray  # if it is of the class, shape: (k,)


class VennAbers(OneVsRest):
    r"""Venn-Abers calibration: isotonic regression that includes the prediction itself, with either label.

    For a new prediction with the score s, :math:`p_0` is the value at s of the isotonic regression of the samples and
    (s, 0), and :math:`p_1` the same with (s, 1). One of the two is perfectly calibrated for every distribution of the
    samples, as long as they are exchangeable with the new one [1]_. The probability is

    .. math:: q = \frac{p_1}{1 - p_0 + p_1} ,

    which has the lowest regret in log loss. With more than two classes, each class has its own bounds against all
    others, and each row of q is divided by its sum; the guarantee holds for each binary problem.

    Parameters
    ----------
    n_folds : int, optional
        By default (None) all samples are used at once (inductive). Otherwise the number of random folds, from 2 to the
        number of samples: a predictor for each fold, combined by the geometric means of :math:`p_1` and :math:`1 - p_0`
        [2]_. The cross Venn-Abers predictor of the paper also retrains the model for each fold, which needs the model.
    seed : int
        Seed of the folds.

    Attributes
    ----------
    values_ : list of list of tuple
        For each class (for two classes the second only) and each fold: the distinct predictions, and :math:`p_0` and
        :math:`p_1` at them.
    n_samples_, family_
        As in `Recalibrator`.

    See Also
    --------
    IsotonicCalibration : One regression.

    Notes
    -----
    The weight of the new sample is the mean weight of the samples. Probabilities are never 0 or 1. All values are
    precomputed, in time O(m n log n) and memory O(m n) [2]_; a prediction takes O(m log n). With few samples, and
    labels that the predictions separate, bounds are wide: see `bounds`. Arrays on NVIDIA GPUs are refused
    (NotImplementedError).

    References
    ----------
    .. [1] V. Vovk, I. Petej. Venn-Abers predictors. UAI 2014.
    .. [2] V. Vovk, I. Petej, V. Fedorova. Large-scale probabilistic predictors with and without guarantees of validity.
       NeurIPS 2015.

    Examples
    --------
    >>> from kcalib.recalibration import VennAbers
    >>> venn = VennAbers().fit([0, 0, 1, 0, 1, 1], [0.1, 0.2, 0.3, 0.6, 0.7, 0.9])
    >>> lower, upper = venn.bounds([0.25, 0.95])
    >>> lower[:, 1].round(3).tolist(), upper[:, 1].round(3).tolist()
    ([0.0, 0.667], [0.667, 1.0])
    >>> venn.transform([0.25, 0.95]).round(3).tolist()
    [0.4, 0.75]
    """

    def __init__(self, *, n_folds: int | None = None, seed: int = 0) -> None:
        self.n_folds = n_folds
        self.seed = seed

    def _check_parameters(self) -> None:
        if self.n_folds is not None:
            check_integer("n_folds", self.n_folds, 2)
        check_integer("seed", self.seed, 0)

    @on_their_gpu
    def bounds(self, y_pred: Any, *, from_logits: bool = False) -> tuple[Any, Any]:
        """Return the lower and the upper probability of each class.

        Parameters
        ----------
        y_pred : array_like, shape (n, m), or (n,) for binary problems, or Categorical
            Predictions of the kind that was fitted.
        from_logits : bool
            Whether `y_pred` holds logits.

        Returns
        -------
        tuple of two ndarray, shape (n, m)
            :math:`p_0` and :math:`p_1`, not normalized; with folds from their geometric means.

        Raises
        ------
        TypeError, ValueError
            As `transform`.
        """
        self._check_fitted()
        y_pred = arrays.compute_lazy(y_pred)
        names = None
        if isinstance(y_pred, Categorical):
            y_pred, names = unwrap_categorical(y_pred, None, from_logits)
        _, samples, places = self._prepare_unlabelled(y_pred, from_logits, names)
        misses, hits = self._means(samples, columns_of(samples.m))
        if samples.m == 2:
            misses, hits = np.concatenate([hits, misses], axis=1), np.concatenate([misses, hits], axis=1)
        return restore_order(1 - misses, places), restore_order(hits, places)

    def _fit_columns(self, samples: ClassSamples, columns: list[int]) -> None:
        folds = [np.arange(samples.n)]
        if self.n_folds is not None:
            if self.n_folds > samples.n:
                raise ValueError(
                    f"`n_folds` is {self.n_folds}, but there are {samples.n} samples with a weight; pass fewer, or None"
                )
            order = np.random.default_rng(self.seed).permutation(samples.n)
            folds = np.array_split(order, self.n_folds)
        self.values_ = [
            [
                values_of(points_of(samples.probabilities[rows, k], samples.labels[rows] == k, samples.weight[rows]))
                for rows in folds
            ]
            for k in columns
        ]

    def _means(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return geometric means over the folds of 1 - p_0 and p_1, shape (n, columns)."""
        logs = np.zeros((2, samples.n, len(columns)))
        for j, (k, folds) in enumerate(zip(columns, self.values_, strict=True)):
            for values in folds:
                lower, upper = at(samples.probabilities[:, k], values)
                logs[:, :, j] += np.log([1 - lower, upper])
            logs[:, :, j] /= len(folds)
        misses, hits = np.exp(logs)
        return misses, hits

    def _hits_and_misses(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
        misses, hits = self._means(samples, columns)
        return hits / (hits + misses), misses / (hits + misses)


def at(predicted: np.ndarray, values: Values) -> tuple[np.ndarray, np.ndarray]:
    """Return p_0 and p_1 of predictions, shape (n,); between two points the lower and the upper of their values."""
    below = np.searchsorted(values.place, predicted, side="right") - 1
    above = np.searchsorted(values.place, predicted, side="left")
    lower = np.where(below >= 0, values.lower[np.maximum(below, 0)], 0.0)
    last = len(values.place) - 1
    upper = np.where(above <= last, values.upper[np.minimum(above, last)], 1.0)
    return lower, upper


def values_of(points: Points) -> Values:
    """Return the values of one more sample at each point, with the weight 1."""
    weight, misses = (np.ascontiguousarray(values[::-1]) for values in (points.weight, points.weight - points.hits))
    lower = 1 - _native.isotonic_with_hit(weight, misses)[::-1]
    upper = _native.isotonic_with_hit(points.weight, points.hits)
    return Values(points.place, np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0))
