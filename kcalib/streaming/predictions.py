"""`PredictionSample`: a kernel for states that know nothing of each other, from a sample of all their predictions."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.devices import methods_on_their_gpu
from kcalib._backend.options import LARGEST_SEED, SEED, check_integer
from kcalib._input.classes import Classes
from kcalib._input.frames import column_names
from kcalib._input.labels import prepare
from kcalib._packing.labels import check_kernel, resolve
from kcalib.bandwidth import MAX_SAMPLES, NoLengthScaleError
from kcalib.kernels import Kernel
from kcalib.lenses import Canonical, Lens
from kcalib.streaming._options import check_columns_of, induced_row
from kcalib.streaming._row_sums.rows import PARTS, Rows, RowSample, RowSet, first_number, no_rows

__all__ = ["PredictionSample"]


@methods_on_their_gpu
class PredictionSample:
    """A random sample of predictions that come in batches, for the median heuristic over all of them.

    The rows whose numbers have the smallest hashes are kept, so that samples of parts of the data add up to the sample
    of all, in any order. Rows are numbered as those of a `CalibrationState`.

    Parameters
    ----------
    n_classes : int
        Columns of `y_pred`, from 2 to 2**20.
    size : int
        Rows that are kept, at least 2.
    lens : Lens, optional
        That of the states.
    from_logits : bool
        Apply a softmax to `y_pred`.
    seed : int
        Of the hashes.
    part : int
        Where row numbers start, from 0 to 2**23 - 1.

    Raises
    ------
    TypeError, ValueError
        If an option is not as above.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.streaming import PredictionSample
    >>> p = np.random.default_rng(0).dirichlet(np.ones(3), size=1000)
    >>> both = PredictionSample(3).update(p[:400]) + PredictionSample(3, part=1).update(p[400:])
    >>> from kcalib.bandwidth import median_distance
    >>> both.kernel().bandwidth == median_distance(p).value
    True
    """

    def __init__(
        self,
        n_classes: int,
        *,
        size: int = MAX_SAMPLES,
        lens: Lens | None = None,
        from_logits: bool = False,
        seed: int = SEED,
        part: int = 0,
    ) -> None:
        if not (lens is None or isinstance(lens, Lens)):
            raise TypeError(f"`lens` is {lens!r}, expected a lens such as kcalib.lenses.TopLabel()")
        self._lens = Canonical() if lens is None else lens
        self._n_classes = check_columns_of(n_classes)
        self._from_logits = from_logits
        self._part = check_integer("part", part, 0, PARTS - 1)
        seed, size = check_integer("seed", seed, 0, LARGEST_SEED), check_integer("size", size, 2, 2**20)
        self._row_set = RowSet()
        self._columns: tuple[Any, ...] = ()  # names, of the first frame
        self._sample = RowSample.empty(size, seed, no_rows(induced_row(self._n_classes, self._lens).m))

    @property
    def n_samples(self) -> int:
        """The number of rows so far."""
        return len(self._row_set)

    def update(self, y_pred: Any, *, first_row: int | None = None) -> PredictionSample:
        """Add a batch of predictions; an error leaves the sample as it was.

        Parameters
        ----------
        y_pred : array_like, shape (n, n_classes)
            As in `kcalib.skce`; none, too: an empty batch adds nothing.
        first_row : int, optional
            As of `CalibrationState.update`.

        Returns
        -------
        PredictionSample
            The sample itself.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for predictions; if a row is in the sample's rows already.
        """
        pred, columns = arrays.as_array(y_pred, "y_pred"), column_names(y_pred, self._n_classes)
        if pred.ndim in (1, 2) and pred.shape[0] == 0 and pred.shape[1:] in ((), (self._n_classes,)):
            return self  # an empty batch
        labels = np.zeros(pred.shape[0] if pred.ndim else 1, dtype=np.int64)
        data = prepare(labels, pred, from_logits=self._from_logits)
        if data.m != self._n_classes:
            raise ValueError(f"`y_pred` has {data.m} classes, but the sample is of n_classes={self._n_classes}")
        if columns and self._columns:
            data = dataclasses.replace(data, classes=Classes(columns)).in_order(Classes(self._columns))
        first = first_number(self._row_set, self._part, first_row, data.n)
        row_set = self._row_set.add(first, first + data.n)
        p = np.asarray(arrays.to_host(self._lens.induced(data).probabilities), dtype=np.float64)
        rows = Rows(np.arange(first, first + data.n), p, labels, np.ones(data.n), np.zeros_like(labels))
        self._row_set, self._sample = row_set, self._sample.add(rows)
        self._columns = self._columns or columns
        return self

    def merge(self, other: PredictionSample) -> PredictionSample:
        """Add the rows of another sample with the same options, but for `part`; an error leaves both as they were.

        Parameters
        ----------
        other : PredictionSample
            Of other rows; it stays as it is.

        Returns
        -------
        PredictionSample
            The sample itself.

        Raises
        ------
        TypeError, ValueError
            If `other` is no `PredictionSample`; if an option differs, or if a row is in both.
        """
        if not isinstance(other, PredictionSample):
            raise TypeError(f"`other` is {type(other).__name__}, expected a PredictionSample")
        options = (
            ("n_classes", self._n_classes, other._n_classes),
            ("size", self._sample.size, other._sample.size),
            ("lens", self._lens, other._lens),
            ("from_logits", self._from_logits, other._from_logits),
            ("seed", self._sample.seed, other._sample.seed),
            ("columns", self._columns or other._columns, other._columns or self._columns),
        )
        for name, mine, theirs in options:
            if mine != theirs:
                raise ValueError(
                    f"`{name}` is {mine} in one sample and {theirs} in the other; make them with the same options"
                )
        self._row_set, self._sample = self._row_set.union(other._row_set), self._sample.union(other._sample)
        self._columns = self._columns or other._columns
        return self

    def __add__(self, other: PredictionSample) -> PredictionSample:
        if not isinstance(other, PredictionSample):
            return NotImplemented
        return copy.copy(self).merge(other)

    def __radd__(self, other: object) -> PredictionSample:
        return copy.copy(self) if isinstance(other, int) and other == 0 else NotImplemented  # `sum` begins with 0

    def kernel(self, kernel: Kernel | None = None) -> Kernel:
        """A kernel with the median distance of the sampled predictions for bandwidths that it has not.

        Parameters
        ----------
        kernel : Kernel, optional
            As in `kcalib.skce`; default exponential.

        Returns
        -------
        Kernel
            What states are made with. Time O(size^2).

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for its kernel; if there are fewer than two predictions, or identical ones only.
        """
        rows = self._sample.rows
        kernel = check_kernel(kernel, rows.predictions.shape[1])
        try:
            return resolve([rows.predictions], kernel, None, elsewhere=True)[0]
        except NoLengthScaleError as error:
            remedy = "add others by update() or merge(), or make states with kernel=Exponential(bandwidth=1.0)"
            raise NoLengthScaleError(error.n, remedy) from None
