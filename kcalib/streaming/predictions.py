"""`PredictionSample`: a common kernel for independent states, from a sample of all their predictions."""

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

    Rows whose numbers have the smallest hashes are kept. Samples of parts of the data therefore merge to the sample of
    all data, in any order. Rows are numbered as in a `CalibrationState`.

    Parameters
    ----------
    n_classes : int
        Columns of `y_pred`, from 2 to 2**20.
    size : int
        Number of rows to keep, at least 2.
    lens : Lens, optional
        The lens of the states.
    from_logits : bool
        Apply softmax to `y_pred`.
    seed : int
        Seed of the hashes.
    part : int
        Where row numbers start, from 0 to 2**23 - 1.

    Raises
    ------
    TypeError, ValueError
        If an option is invalid.

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
        self._columns: tuple[Any, ...] = ()  # names in the first frame
        self._sample = RowSample.empty(size, seed, no_rows(induced_row(self._n_classes, self._lens).m))

    @property
    def n_samples(self) -> int:
        """The number of rows so far."""
        return len(self._row_set)

    def update(self, y_pred: Any, *, first_row: int | None = None) -> PredictionSample:
        """Add a batch of predictions. An error leaves the sample unchanged.

        Parameters
        ----------
        y_pred : array_like, shape (n, n_classes)
            As in `kcalib.skce`. An empty batch adds nothing.
        first_row : int, optional
            As in `CalibrationState.update`.

        Returns
        -------
        PredictionSample
            The sample itself.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for predictions; if one of the rows was added already.
        """
        pred, columns = arrays.as_array(y_pred, "y_pred"), column_names(y_pred, self._n_classes)
        if pred.ndim in (1, 2) and pred.shape[0] == 0 and pred.shape[1:] in ((), (self._n_classes,)):
            return self  # an empty batch
        labels = np.zeros(pred.shape[0] if pred.ndim else 1, dtype=np.int64)
        data = prepare(labels, pred, from_logits=self._from_logits)
        if data.m != self._n_classes:
            raise ValueError(f"`y_pred` has {data.m} classes, expected n_classes={self._n_classes}")
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
        """Add the rows of another sample with the same options, except `part`. An error leaves both samples unchanged.

        Parameters
        ----------
        other : PredictionSample
            A sample of other rows, which is not changed.

        Returns
        -------
        PredictionSample
            The sample itself.

        Raises
        ------
        TypeError, ValueError
            If `other` is not a `PredictionSample`; if an option differs, or if a row is in both.
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
        """Return a kernel whose missing bandwidths are the median distance of the sampled predictions.

        Parameters
        ----------
        kernel : Kernel, optional
            As in `kcalib.skce`; default exponential.

        Returns
        -------
        Kernel
            A kernel for states. Time O(size^2).

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for its kernel; if there are fewer than two predictions, or only identical ones.
        """
        rows = self._sample.rows
        kernel = check_kernel(kernel, rows.predictions.shape[1])
        try:
            return resolve([rows.predictions], kernel, None, elsewhere=True)[0]
        except NoLengthScaleError as error:
            remedy = "add more predictions, or make states with a bandwidth, such as kernel=Exponential(bandwidth=1.0)"
            raise NoLengthScaleError(error.n, remedy) from None
