"""`CalibrationState`: the calibration of class probabilities that come in batches, from sums."""

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
from kcalib._input.frames import categories_of, column_names
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
    r"""What is known of the calibration of a model from all batches so far.

    A state holds sums over samples, not the samples: of scores, of bins, and of random features :math:`\varphi` of the
    kernel with the residuals :math:`e_i = \text{onehot}(y_i) - p_i`,

    .. math:: S = \sum_i \varphi(p_i) \otimes e_i

    from which the SKCE follows. Sums are added exactly: with a given bandwidth they have the same bits for any batches
    of the same rows, any order of merging, and any number of threads. Batches are of NumPy, PyTorch, JAX, CuPy and
    whatever else `kcalib.skce` takes. They come to the host.

    Rows have numbers. A state counts them as they come, from ``part * 2**40`` on; processes that know nothing of each
    other take different parts, or say with `first_row` where a batch is. A row that comes twice is refused. Rows are
    added up in blocks of consecutive numbers, of 128 rows without draws, 4096 with, and 512 where labels are drawn but
    the kernels have no sums of them; those of a block that is not complete yet are kept as they are.

    Parameters
    ----------
    n_classes : int
        Columns of `y_pred`, from 2 to 2**20; 2 where predictions are the probabilities of the second of two classes. Of
        `kcalib.SparseProbabilities` the buckets that their classes are added up in (`kcalib.lenses.Buckets`), and one
        more for the rest.
    kernel : Kernel, optional
        As in `kcalib.skce`. A bandwidth that is not given is the median distance of the first 2000 rows, which are held
        until then (1 if they are identical); states that are merged have one kernel: see `kernel` below.
    target_kernel : optional
        As in `kcalib.skce`.
    n_columns : int
        Columns of random features, a multiple of 16.
    n_bins : int
        Bins of equal width (a, b] of every probability and of the top label's confidence.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; all sums are of the problem that it induces.
    n_resamples : int, optional
        Draws of all labels from the predictions, for the law of the adaptive test: those of arrays in memory, where
        rows come from number 0 on. 0 for none, and a test of the SKCE alone. Default: 199; where the kernels' sums of
        these would take more than 64 MB, labels are drawn for the other blocks alone, and for more than
        10,000 classes not at all.
    classes : array_like of length m, optional
        The label of each column. Default: what the first batch says, by names of columns or categories of labels, and
        else 0..m-1. Later batches are put in this order by name; `options` has it.
    from_logits : bool
        Apply a softmax to `y_pred`.
    seed : int
        Decides the features, the draws and the sample of rows; from 0 to 2**63 - 1.
    part : int
        Where row numbers start, from 0 to 2**23 - 1.
    threads : int, optional
        At most so many.
    clusters : bool
        Whether samples come in clusters, which depend on each other in an unknown way: the test is then that of
        `kcalib.calibration_test` with `clusters`, of `n_resamples` flips of signs, and no number has a standard error.
        Bands of reliability diagrams are those of independent samples. The state holds the number and the weight of
        each cluster, 24 bytes, and in place of draws the sums of each flip.

    Raises
    ------
    TypeError, ValueError
        If an option is not as above, or if the kernel has no random features (see `kcalib.skce`).

    Notes
    -----
    Memory O(n_columns m) for the sums, 16 bytes each, 1.25 times `n_resamples` and once more; 8 bytes for each draw and
    each of the cells that labels are counted in, 2**11 to 2**15 of all classes; of samples at most 4096 and those of
    open blocks. Time O(n_columns m) a row, and with draws O(n_columns n_resamples) more.

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
        """The kernel with its bandwidths; None until these are known."""
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
        """Add a batch of samples; an error or an interrupt leaves the state as it was.

        Parameters
        ----------
        y_true, y_pred
            As in `kcalib.skce`, with the `n_classes`, `classes` and `from_logits` of the state. Of no samples, too: an
            empty batch adds nothing.
        sample_weight : array_like, shape (n,), optional
            Weights from 0 to 2**18, in all of a root mean square of at least 1e-6; there are no draws of labels of
            weighted samples. Default 1.
        clusters : array_like, shape (n,), optional
            The cluster of each sample, numbers or strings, as in `kcalib.calibration_test`: for a state that was made
            with ``clusters=True``, which needs them. The samples of a cluster may be in several batches and states.
        first_row : int, optional
            The rows are those from this number on, counted from the start of the part. Default: after the last one of
            the part so far.

        Returns
        -------
        CalibrationState
            The state itself.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for its arguments; if a row is in the state already; if weights are too large for exact
            sums.
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
        """Return the samples, checked, numbered, and with their columns in the order of the state or of `classes`."""
        options = self.options if self.options.classes is not None else replace(self.options, classes=classes)
        batch = _checked(y_pred, y_true, sample_weight, options, self._threads)
        if (
            self.options.classes is None
            and self.n_samples
            and batch.classes not in (None, tuple(range(options.n_classes)))
        ):
            raise ValueError(
                f"`y_pred` has the classes {Classes(batch.classes or ())}, and the state does not know its own: an "
                "earlier version wrote its file; make the state again"
            )
        first = first_number(self._accumulator.row_set, self.options.part, first_row, batch.n)
        return batch._replace(first=first, clusters=self._number_clusters(clusters, batch.n))

    def _with_kernel_of_rows(self) -> CalibrationState:
        """A copy whose bandwidths are those of the rows so far, where none are known yet."""
        return self._with(
            self._accumulator.flush(self._threads).fix_bandwidths(self._threads, elsewhere=True), self._threads
        )

    def _with_kernel_of(self, other: CalibrationState) -> CalibrationState:
        """A copy with the bandwidths of another state, where that knows them and this one does not."""
        theirs = other._accumulator
        if other.kernel is None:
            return self.copy()
        mine = self._accumulator.flush(self._threads)
        return self._with(mine.with_kernel(other.kernel, theirs.bandwidth_rows, self._threads), self._threads)

    def _add_some(self, batch: Batch, rows: np.ndarray) -> CalibrationState:
        """Some of the samples, with numbers of this state."""
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
    """Samples without numbers, for which the batch's first is 0."""
    if threads is not None and not arrays.is_host(arrays.as_array(y_pred, "y_pred")):
        threads = None  # those are for what is done on the host
    if _is_empty(y_true, y_pred, sample_weight, options.n_classes):
        none = np.empty(0, np.int64)
        return Batch(0, none, np.empty((0, options.n_classes)), np.empty(0), 2.0**-52, none)
    data = in_order(_prepared(y_true, y_pred, options, threads), options.classes)
    return _batch_of(data, checked_weights(sample_weight, data.n, data.reference), data.input_epsilon)


@_checked.register
def _(y_pred: Classification, y_true: Any, sample_weight: Any, options: StateOptions, threads: int | None) -> Batch:
    """From a source of ours, which has checked it."""
    if options.from_logits:
        raise ValueError("`from_logits` is True of the state, but a source has its own; pass it to the source alone")
    _check_columns(y_pred.m, options)
    data = y_pred
    is_named = data.classes is not None and data.classes.is_known
    if not (is_named or options.classes in (None, data.class_names)):
        data = _prepared(y_true, y_pred.probabilities, options, threads)  # of arrays without names
    return _batch_of(in_order(data, options.classes), np.ones(data.n), y_pred.input_epsilon)


@_checked.register
def _(y_pred: SparseProbabilities, y_true: Any, sample_weight: Any, options: StateOptions, _: int | None) -> Batch:
    """Buckets of classes and the rest, which are the classes of the state."""
    if not isinstance(options.lens, Canonical):
        raise TypeError(
            f"`y_pred` is SparseProbabilities, which states take without a lens, but this one has {options.lens}; make "
            "one without"
        )
    n_buckets = options.n_classes - y_pred.has_rest
    data = prepare(y_true, y_pred, from_logits=options.from_logits, lens=Buckets(n_buckets), names=NAMES)
    if data.m != options.n_classes:
        raise ValueError(
            f"`y_pred` has {y_pred.n_classes} classes{' and a rest' * y_pred.has_rest}, but the state is of "
            f"n_classes={options.n_classes}; make a state of {data.m}, or of fewer, for buckets"
        )
    return _batch_of(
        in_order(data, options.classes), checked_weights(sample_weight, data.n, data.reference), data.input_epsilon
    )


def _batch_of(data: Classification, weights: Array, epsilon: float) -> Batch:
    p = data.xp.astype(data.probabilities, data.xp.float64, copy=False)
    no_clusters = np.zeros(data.n, dtype=np.int64)
    return Batch(0, data.labels, p, weights, epsilon, no_clusters, data.class_names).to_host()


def _prepared(y_true: Any, y_pred: Any, options: StateOptions, threads: int | None) -> Classification:
    """Checked, with what can be done about a fault where there is a state."""
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
                    return data  # whose columns may have another order
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
            f"`y_true` holds the labels {data.classes}, and which column is which a batch alone does not say; "
            "make the state with classes="
        )
    return data


def _columns(y_pred: Any) -> int | None:
    """Of predictions of several columns; None of others, about which `prepare` has more to say."""
    shape: tuple[int, ...] = getattr(y_pred, "shape", ())
    return int(shape[1]) if len(shape) == 2 and shape[1] > 1 else None


def _is_empty(y_true: Any, y_pred: Any, sample_weight: Any, n_classes: int) -> bool:
    """Whether a batch has no samples, such as a filter leaves at times; of other shapes it is refused."""
    try:
        if len(y_pred):
            return False
    except TypeError:  # nothing of which there are several, which is refused elsewhere
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
            f"`y_pred` has {m} classes, but the state is of n_classes={options.n_classes}; pass the probability of "
            "every class"
        )
