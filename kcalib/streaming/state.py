"""`CalibrationState`: the calibration of class probabilities that come in batches."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import SEED
from kcalib._input.classes import SORTED_LABELS, Classes
from kcalib._input.frames import categories_of, check_variables, column_names
from kcalib._input.labels import Classification, Names, prepare
from kcalib._input.sparse import SparseProbabilities
from kcalib.estimators.binning import N_BINS
from kcalib.kernels import Kernel
from kcalib.lenses import Buckets, Canonical, Lens
from kcalib.streaming._accumulator import Batch
from kcalib.streaming._classes.accumulator import ClassAccumulator
from kcalib.streaming._classes.results import Results
from kcalib.streaming._classes.totals import BinTotals, Totals
from kcalib.streaming._options import N_COLUMNS, StateOptions, in_order
from kcalib.streaming._row_sums.rows import first_number
from kcalib.streaming._state import ModelState, checked_weights
from kcalib.target_kernels import TargetKernel

__all__ = ["CalibrationState"]


class CalibrationState(Results, ModelState):
    r"""Calibration of class probabilities that come in batches, from sums that can be merged.

    A state holds sums over samples, not the samples: sums of scores, of bins, and of random features :math:`\varphi` of
    the kernel with the residuals :math:`e_i = \text{onehot}(y_i) - p_i`,

    .. math:: S = \sum_i \varphi(p_i) \otimes e_i

    from which the SKCE follows. Sums are exact: for a given bandwidth every bit is the same for any split into batches,
    any order of merging, and any number of threads. Batches may be arrays of NumPy, PyTorch, JAX, CuPy and all other
    libraries that `kcalib.skce` takes; they are copied to the host.

    Rows are numbered, and a row can be added only once. A state counts its rows from ``part * 2**40`` on. Independent
    processes need different parts, or set the number of a batch by `first_row`. Rows are added in blocks of consecutive
    numbers: of 128 rows without draws, 4096 with draws, and 512 if labels are drawn but the kernels have no sums of
    them. The rows of an incomplete block are kept.

    Parameters
    ----------
    n_classes : int
        Columns of `y_pred`, from 2 to 2**20; 2 if predictions are probabilities of the second of two classes. For
        `kcalib.SparseProbabilities`, the number of buckets of classes (`kcalib.lenses.Buckets`) plus one for the rest.
    kernel : Kernel, optional
        As in `kcalib.skce`. A missing bandwidth is set to the median distance of the first 2000 rows, which are held
        until then (1 if they are identical). States to be merged need the same kernel.
    target_kernel : optional
        As in `kcalib.skce`.
    n_columns : int
        Number of random features, a multiple of 16.
    n_bins : int
        Bins of equal width (a, b] of every probability and of the confidence of the top label.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`. All sums are those of the induced problem.
    n_resamples : int, optional
        Draws of all labels from the predictions, for the null distribution of the adaptive test. They are the draws of
        the test in memory if rows are numbered from 0 on. With 0 only the SKCE is tested. Default: 199; if the sums of
        the kernels would take more than 64 MB, labels are drawn for the other blocks only, and for more than 10,000
        classes not at all.
    classes : array_like of length m, optional
        The label of each column. Default: the column names or label categories of the first batch, else 0..m-1. Columns
        of later batches are reordered by name. `options` holds the classes.
    from_logits : bool
        Apply softmax to `y_pred`.
    seed : int
        Seed of the features, the draws and the sample of rows, from 0 to 2**63 - 1.
    part : int
        Where row numbers start, from 0 to 2**23 - 1.
    threads : int, optional
        Maximum number of threads.
    clusters : bool
        Whether samples come in clusters, within which they may depend on each other. The test is then the test of
        `kcalib.calibration_test` with `clusters`, with `n_resamples` sign flips, and no number has a standard error.
        Bands of reliability diagrams still assume independent samples. The state holds the number and the weight of
        each cluster, 24 bytes, and the sums of each flip instead of the draws.

    Raises
    ------
    TypeError, ValueError
        If an option is invalid, or if the kernel has no random features (see `kcalib.skce`).

    Notes
    -----
    Memory: O(n_columns m) for the sums, of 16 bytes each, times 1 + 1.25 `n_resamples`; 8 bytes for each draw and each
    of the 2**11 to 2**15 cells in which labels are counted; at most 4096 samples and the open blocks. Time:
    O(n_columns m) for each row, and O(n_columns n_resamples) more with draws.

    Examples
    --------
    >>> import numpy as np
    >>> import kcalib
    >>> from kcalib.kernels import Exponential
    >>> p = np.random.default_rng(0).dirichlet(np.ones(3), size=1000)
    >>> y = np.arange(1000) % 3
    >>> options = {"kernel": Exponential(0.3), "n_resamples": 0}
    >>> first = kcalib.streaming.CalibrationState(3, **options).update(y[:700], p[:700])
    >>> second = kcalib.streaming.CalibrationState(3, **options, part=1).update(y[700:], p[700:])
    >>> both = first + second
    >>> both.n_samples, both.rows == ((0, 700), (2**40, 2**40 + 300))
    (1000, True)
    """

    _kind: ClassVar[str] = "calibration"
    _ACCUMULATOR = ClassAccumulator
    _OPTIONS = StateOptions
    _accumulator: ClassAccumulator

    def __init__(
        self,
        n_classes: int,
        *,
        kernel: Kernel | None = None,
        target_kernel: TargetKernel = None,
        n_columns: int = N_COLUMNS,
        n_bins: int = N_BINS,
        lens: Lens | None = None,
        n_resamples: int | None = None,
        classes: Any = None,
        from_logits: bool = False,
        seed: int = SEED,
        part: int = 0,
        threads: int | None = None,
        clusters: bool = False,
    ) -> None:
        options = StateOptions.checked(
            n_classes=n_classes,
            classes=classes,
            from_logits=from_logits,
            lens=lens,
            kernel=kernel,
            target_kernel=target_kernel,
            n_columns=n_columns,
            n_bins=n_bins,
            n_resamples=n_resamples,
            seed=seed,
            part=part,
            clusters=clusters,
        )
        self._start(options, threads)

    @property
    def options(self) -> StateOptions:
        """The options of the state."""
        return self._accumulator.options

    @property
    def kernel(self) -> Kernel | None:
        """The kernel with its bandwidths; None while they are unknown."""
        kernel = self.options.kernel
        return None if kernel.open_metrics() else kernel

    @on_their_gpu
    def update(
        self,
        y_true: Any,
        y_pred: Any,
        sample_weight: Any = None,
        *,
        clusters: Any = None,
        first_row: int | None = None,
    ) -> CalibrationState:
        """Add a batch of samples. An error or an interrupt leaves the state unchanged.

        Parameters
        ----------
        y_true, y_pred
            As in `kcalib.skce`, with the `n_classes`, `classes` and `from_logits` of the state. An empty batch adds
            nothing.
        sample_weight : array_like, shape (n,), optional
            Weights from 0 to 2**18, with a root mean square of at least 1e-6 over all rows. There are no draws of
            labels for weighted samples. Default 1.
        clusters : array_like, shape (n,), optional
            The cluster of each sample, numbers or strings, as in `kcalib.calibration_test`. Required if the state was
            made with ``clusters=True``. A cluster may be spread over several batches and states.
        first_row : int, optional
            Number of the first row of the batch, counted from the start of the part. Default: the next number of the
            part.

        Returns
        -------
        CalibrationState
            The state itself.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce`; if the state has one of the rows already; if weights are too large for exact sums.
        """
        return self._add(self._batch(y_true, y_pred, sample_weight, first_row, clusters))

    def _batch(
        self,
        y_true: Any,
        y_pred: Any,
        sample_weight: Any = None,
        first_row: int | None = None,
        clusters: Any = None,
        classes: tuple[Any, ...] | None = None,
    ) -> Batch:
        """Return the checked and numbered samples, with columns in the order of the state or of `classes`."""
        options = self.options if self.options.classes is not None else replace(self.options, classes=classes)
        batch = _checked(y_pred, y_true, sample_weight, options, self._threads)
        if (
            self.options.classes is None
            and self.n_samples
            and batch.classes not in (None, tuple(range(options.n_classes)))
        ):
            raise ValueError(
                f"`y_pred` has the classes {Classes(batch.classes or ())}, but the state was saved by an earlier "
                "version, without classes; make the state again"
            )
        first = first_number(self._accumulator.row_set, self.options.part, first_row, batch.n)
        check_variables(y_true, y_pred, clusters=clusters)
        return batch._replace(first=first, clusters=self._number_clusters(clusters, batch.n))

    def _with_kernel_of_rows(self) -> CalibrationState:
        """Return a copy whose missing bandwidths are computed from the rows so far."""
        return self._with(
            self._accumulator.flush(self._threads).fix_bandwidths(self._threads, elsewhere=True), self._threads
        )

    def _with_kernel_of(self, other: CalibrationState) -> CalibrationState:
        """Return a copy with the bandwidths of another state, if only that state knows them."""
        theirs = other._accumulator
        if other.kernel is None:
            return self.copy()
        mine = self._accumulator.flush(self._threads)
        return self._with(mine.with_kernel(other.kernel, theirs.bandwidth_rows, self._threads), self._threads)

    def _add_some(self, batch: Batch, rows: np.ndarray) -> CalibrationState:
        """Add some of the samples, with row numbers of this state."""
        first = first_number(self._accumulator.row_set, self.options.part, None, len(rows))
        return self._add(batch.map_arrays(lambda part: part[rows], first))

    def __repr__(self) -> str:
        options = self.options
        classes = "not known" if options.classes is None else str(Classes(options.classes))
        return (
            f"CalibrationState(n_classes={options.n_classes}, kernel={options.kernel}): {self.n_samples} samples"
            + f", classes {classes}" * (self.n_samples > 0)
        )

    def _totals(self) -> Totals:
        return self._accumulator.totals(self._threads)

    def _bin_totals(self) -> BinTotals:
        return self._accumulator.bin_totals(self._threads)


NAMES = Names(from_logits="from_logits=True (an option of the state)")


@singledispatch
def _checked(y_pred: Any, y_true: Any, sample_weight: Any, options: StateOptions, threads: int | None) -> Batch:
    """Return a checked batch whose first row number is 0."""
    if threads is not None and not arrays.is_host(arrays.as_array(y_pred, "y_pred")):
        threads = None  # they apply on the host only
    if _is_empty(y_true, y_pred, sample_weight, options.n_classes):
        none = np.empty(0, np.int64)
        return Batch(0, none, np.empty((0, options.n_classes)), np.empty(0), 2.0**-52, none)
    data = in_order(_prepared(y_true, y_pred, options, threads), options.classes)
    return _batch_of(data, checked_weights(sample_weight, data.n, data.reference), data.input_epsilon)


@_checked.register
def _(y_pred: Classification, y_true: Any, sample_weight: Any, options: StateOptions, threads: int | None) -> Batch:
    """Return the batch of a chunk of a `Source`, which is checked already."""
    if options.from_logits:
        raise ValueError("`from_logits` is True for the state, but a source has its own; pass it to the source only")
    _check_columns(y_pred.m, options)
    data = y_pred
    is_named = data.classes is not None and data.classes.is_known
    if not (is_named or options.classes in (None, data.class_names)):
        data = _prepared(y_true, y_pred.probabilities, options, threads)  # arrays without names
    return _batch_of(in_order(data, options.classes), np.ones(data.n), y_pred.input_epsilon)


@_checked.register
def _(y_pred: SparseProbabilities, y_true: Any, sample_weight: Any, options: StateOptions, _: int | None) -> Batch:
    """Return the batch of sparse rows: buckets of classes and the rest are the classes of the state."""
    if not isinstance(options.lens, Canonical):
        raise TypeError(
            f"`y_pred` is SparseProbabilities, but the state has the lens {options.lens}; make a state without a lens"
        )
    n_buckets = options.n_classes - y_pred.has_rest
    data = prepare(y_true, y_pred, from_logits=options.from_logits, lens=Buckets(n_buckets), names=NAMES)
    if data.m != options.n_classes:
        raise ValueError(
            f"`y_pred` has {y_pred.n_classes} classes{' and a rest' * y_pred.has_rest}, but the state has "
            f"n_classes={options.n_classes}; make it with n_classes={data.m}, or less for buckets"
        )
    return _batch_of(
        in_order(data, options.classes), checked_weights(sample_weight, data.n, data.reference), data.input_epsilon
    )


def _batch_of(data: Classification, weights: Array, epsilon: float) -> Batch:
    p = data.xp.astype(data.probabilities, data.xp.float64, copy=False)
    no_clusters = np.zeros(data.n, dtype=np.int64)
    return Batch(0, data.labels, p, weights, epsilon, no_clusters, data.class_names).to_host()


def _prepared(y_true: Any, y_pred: Any, options: StateOptions, threads: int | None) -> Classification:
    """Check samples; error messages have the remedies of states."""
    m = _columns(y_pred)
    options.lens.check_columns(m or 1, "y_pred")
    if m is None or m == options.n_classes:
        check = functools.partial(
            prepare, y_true, y_pred, from_logits=options.from_logits, threads=threads, names=NAMES
        )
        numbers = tuple(range(options.n_classes))
        columns = column_names(y_pred, options.n_classes)
        if options.classes is not None and (columns not in ((), numbers) or categories_of(y_true) is not None):
            with suppress(ValueError, TypeError):
                data = check()
                if data.classes is not None and data.classes.is_known:
                    return data  # its columns may be in another order
        try:
            data = check(classes=None if options.classes == numbers else options.classes)
        except ValueError as error:
            if "pass classes=" not in str(error):
                raise
            raise ValueError(str(error).replace("pass classes=", "make the state with classes=")) from None
        m = data.m
    _check_columns(m, options)
    if data.classes is not None and data.classes.origin == SORTED_LABELS:
        raise ValueError(
            f"`y_true` holds the labels {data.classes}, but a batch does not show the class of each column; "
            "make the state with classes="
        )
    return data


def _columns(y_pred: Any) -> int | None:
    """Return the number of columns of 2-d predictions; None for others, which `prepare` checks."""
    shape: tuple[int, ...] = getattr(y_pred, "shape", ())
    return int(shape[1]) if len(shape) == 2 and shape[1] > 1 else None


def _is_empty(y_true: Any, y_pred: Any, sample_weight: Any, n_classes: int) -> bool:
    """Return whether a batch has no samples, as after a filter; other shapes are refused later."""
    try:
        if len(y_pred):
            return False
    except TypeError:  # not array-like: refused later
        return False
    batch = {"y_pred": y_pred, "y_true": y_true, "sample_weight": sample_weight}
    shapes = {name: arrays.as_array(value, name).shape for name, value in batch.items() if value is not None}
    pred = shapes["y_pred"]
    if len(pred) not in (1, 2) or (len(pred) == 2 and pred[1] != n_classes):
        return False
    return all(len(shape) in (1, 2) and shape[0] == 0 for shape in shapes.values())


def _check_columns(m: int, options: StateOptions) -> None:
    if m != options.n_classes:
        raise ValueError(
            f"`y_pred` has {m} classes, but the state has n_classes={options.n_classes}; pass the probability of "
            "every class"
        )
