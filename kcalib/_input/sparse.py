"""`SparseProbabilities`: probabilities of some of many classes, such as the tokens of a language model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import check_integer
from kcalib._input.checks import reject
from kcalib._input.digits import sum_tolerance

STRIP = 2**18  # entries that are checked at once
LEAST_REST = 1e-6  # smaller values of 1 - sum are rounding errors
SUM_TOLERANCE = 1e-5  # for a softmax of float32 logits


class SparseProbabilities:
    """Probabilities of some of very many classes, such as the 20 most probable tokens.

    All other classes are one further outcome, the *rest*. Which classes a row keeps must not depend on its label: if a
    server adds the observed token to the 20 most probable ones, drop entries beyond rank 20 first.

    Functions of class probabilities take it as `y_pred`, with labels 0 to n_classes - 1. With `kcalib.lenses.TopLabel`,
    `kcalib.lenses.TopK`, `kcalib.lenses.ClassWise` and `kcalib.lenses.Groups` results are those of dense rows.
    `kcalib.evaluate` and `kcalib.calibration_test` use `kcalib.lenses.Buckets` by default; scores use the kept classes
    and the rest as one outcome.

    Parameters
    ----------
    ids : array_like of int, shape (n, k), or sparse array of SciPy, shape (n, n_classes)
        The distinct classes that each row keeps, in any order; -1 fills rows with fewer than k. A sparse array replaces
        the first three arguments; its stored entries are kept.
    probabilities : array_like, shape (n, k)
        The probabilities of the classes, ignored for -1. For logarithms pass ``np.exp(logprobs)``.
    n_classes : int
        The number of all classes, at least 2: the size of the vocabulary.
    rest : float or array_like, shape (n,), optional
        The probability of all other classes. Default: 1 minus the sum of the row, but at least 1e-6 if classes are
        missing, as smaller differences are rounding errors. With 0 the other classes are impossible, as in sparse
        arrays that leave out zeros.

    Attributes
    ----------
    ids, probabilities, rest : array
        Arrays of O(n k) memory; `ids` and `probabilities` are not copied if they are NumPy arrays.
    n_classes : int
        As passed.

    Raises
    ------
    TypeError, ValueError
        If a row keeps no class or a class twice; if an entry is not a class or a probability; if the sum of a row
        exceeds 1 by more than 1e-5, or with `rest` differs from 1 by more.

    Examples
    --------
    Two tokens per row of a vocabulary of 50,000:

    >>> import math, kcalib
    >>> p = kcalib.SparseProbabilities([[17, 4], [4, 9]], [[0.7, 0.2], [0.5, 0.25]], 50_000)
    >>> p.rest.round(6).tolist()
    [0.1, 0.25]
    >>> round(kcalib.top_label_ece([17, 9], p), 6)
    0.4
    >>> round(kcalib.log_loss([17, 123], p), 6) == round(-0.5 * math.log(0.7 * 0.25), 6)
    True
    """

    def __init__(self, ids: Any, probabilities: Any = None, n_classes: Any = None, rest: Any = None) -> None:
        if hasattr(ids, "tocsr"):
            ids, probabilities, n_classes = _pad_rows(ids.tocsr())
        self.n_classes = check_integer("n_classes", n_classes, 2, 2**31 - 1)
        self.ids = arrays.to_host(arrays.as_array(ids, "ids"))
        p = arrays.to_host(arrays.as_array(probabilities, "probabilities"))
        if self.ids.dtype.kind not in "iu" or p.dtype.kind not in "iuf":
            raise TypeError(
                f"`ids` has dtype {self.ids.dtype} and `probabilities` {p.dtype}, expected integers and floating point "
                "numbers"
            )
        if p.ndim != 2 or not p.size or self.ids.shape != p.shape:
            raise ValueError(
                f"`ids` has shape {self.ids.shape} and `probabilities` {p.shape}, expected (n, k) for both; fill "
                "shorter rows with id -1"
            )
        is_class = self.ids >= 0
        reject(
            self.ids,
            (self.ids < -1) | (self.ids >= self.n_classes),
            lambda at, x: f"`ids{at}` is {x}, expected a class 0..{self.n_classes - 1}, or -1 for none",
        )
        self.probabilities = p if is_class.all() and p.dtype.kind == "f" else np.where(is_class, p, 0.0)
        reject(
            self.probabilities,
            ~((self.probabilities >= 0) & (self.probabilities <= 1 + SUM_TOLERANCE)),
            lambda at, x: f"`probabilities{at}` is {x}, expected a probability; for logarithms pass np.exp(logprobs)",
        )
        for begin in range(0, len(p), step := max(1, STRIP // p.shape[1])):
            self._check_distinct(begin, self.ids[begin : begin + step])
        sums = np.sum(self.probabilities, axis=1, dtype=np.float64)
        n_kept = np.sum(is_class, axis=1)
        reject(n_kept, n_kept == 0, lambda at, x: f"`ids{at}` has no class, expected at least one; drop the row")
        is_whole = n_kept == self.n_classes
        if rest is None:
            self.rest = np.where(is_whole, 0.0, np.maximum(1 - sums, LEAST_REST))
            wrong, expected = np.maximum(sums - 1, is_whole * (1 - sums)), "at most 1"
        else:
            given = arrays.to_host(arrays.as_array(rest, "rest"))
            if given.dtype.kind not in "iuf" or given.shape not in ((), (len(p),)):
                raise ValueError(
                    f"`rest` has dtype {given.dtype} and shape {given.shape}, expected a number, or ({len(p)},) numbers"
                )
            self.rest = np.array(np.broadcast_to(given, (len(p),)), dtype=np.float64)
            reject(
                self.rest,
                ~((self.rest >= 0) & (self.rest <= 1)),
                lambda at, x: f"`rest{at}` is {x}, expected the probability of all other classes",
            )
            sums += self.rest
            wrong, expected = np.abs(sums - 1), "1, with `rest`,"
        self.has_rest = bool(np.any(self.rest > 0))  # whether any row has one; kept when rows are selected
        tolerance = max(SUM_TOLERANCE, sum_tolerance(p.shape[1], float(np.finfo(self.probabilities.dtype).eps)))
        reject(
            sums,
            ~(wrong <= tolerance),
            lambda at, x: (
                f"`probabilities{at}` sums to {x:.9g}, expected {expected} within {tolerance:.2g}; normalise the row"
            ),
        )

    def _check_distinct(self, begin: int, ids: np.ndarray) -> None:
        ordered = np.sort(ids, axis=1)
        twice = np.argwhere((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0))
        if twice.size:
            row, place = twice[0].tolist()
            raise ValueError(
                f"`ids[{begin + row}]` has the class {ordered[row, place]} twice, expected each class once; add up "
                "its probabilities"
            )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("SparseProbabilities lack most classes, but this function needs dense probabilities")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of samples and classes, as of dense rows."""
        return len(self), self.n_classes

    def __getitem__(self, rows: Any) -> SparseProbabilities:
        """Return some of the rows: a slice, a number, or an array of numbers or booleans."""
        some, rows = copy.copy(self), rows if isinstance(rows, slice) else np.atleast_1d(np.arange(len(self))[rows])
        some.ids, some.probabilities, some.rest = self.ids[rows], self.probabilities[rows], self.rest[rows]
        return some

    def __repr__(self) -> str:
        return f"SparseProbabilities({len(self)} samples, {self.ids.shape[1]} of {self.n_classes} classes a row)"


def _pad_rows(matrix: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Return columns and values of a sparse matrix by row, padded by -1 and 0, and the number of columns."""
    lengths = np.diff(matrix.indptr)
    is_class = np.arange(max(1, np.max(lengths, initial=0))) < lengths[:, None]
    ids, probabilities = np.full(is_class.shape, -1, np.int64), np.zeros(is_class.shape, matrix.data.dtype)
    ids[is_class], probabilities[is_class] = matrix.indices, matrix.data
    return ids, probabilities, int(matrix.shape[1])
