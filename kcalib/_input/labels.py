"""From labels and class probabilities to a checked `Classification`.

Each public metric calls `prepare` once; nothing after it checks again. Values on the host are checked by one compiled
pass (`_native`), which only says whether all are valid. For other arrays, and to find an invalid value and report it,
checks run in the library of the array.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import OptionError
from kcalib._backend.random import RandomNumbers, cumulative_sums, draw_labels, replicate_numbers
from kcalib._backend.threads import threads_for
from kcalib._backend.warnings import GradientWarning, warn
from kcalib._input.checks import dtype_name, is_column, reject, weights_of
from kcalib._input.classes import POSITION, SORTED_LABELS, Classes, check_names, choose_classes, match_one_hot
from kcalib._input.data import Data
from kcalib._input.digits import shown_tolerances, sum_tolerance
from kcalib._input.frames import categories_of, check_dimensions, check_rows, column_names
from kcalib._input.logits import losses_of_logits, softmax, warn_of_probabilities
from kcalib._input.sparse import SparseProbabilities
from kcalib.lenses import CANONICAL, Confidence, Lens


class Names(NamedTuple):
    """What the caller names the two arrays and the option for logits, for messages."""

    y_true: str = "y_true"
    y_pred: str = "y_pred"
    from_logits: str = "from_logits=True"
    pred_first: bool = False  # the order of torchmetrics

    @property
    def order(self) -> str:
        """The order of the arguments, for messages about swapped ones."""
        if self.pred_first:
            return f"({self.y_pred}, {self.y_true})"
        return f"({self.y_true}, {self.y_pred}), as in scikit-learn"


NAMES = Names()


@dataclass(frozen=True)
class Classification(Data):
    """Checked labels and class probabilities."""

    # Arrays on the host are C-contiguous, for compiled code.
    labels: Array  # int64, values 0..m-1, shape: (n,)
    # The predictions without a copy, shape (n, m): float64, or float32 if they and the arithmetic are float32. On the
    # host also shape (n,), float64, for the second of two classes.
    given: Array
    sample_weight: Array | None  # float64, shape: (n,)
    classes: Classes | None  # classes of the columns; None for 0..m-1, as in problems that a lens induces
    input_epsilon: float  # machine epsilon of the dtype of the input; for logits the smallest normal number
    dtype: str = "float64"  # the pairwise arithmetic is in it
    lens: Lens = CANONICAL  # that induced the problem
    losses: Array | None = None  # for logits -log softmax of each label, also if the softmax is 0; shape: (n,)
    threads: int | None = None  # for widening a column to rows

    noun = "class probabilities"
    has_classes = True

    @cached_property
    def probabilities(self) -> Array:
        """The predictions as rows, shape (n, m): float64, or float32 if the library has no other."""
        if self.given.ndim == 1:
            return _native.completed(self.given, threads_for(self.given.size, self.threads))
        return np.asarray(self.given, dtype=np.float64) if arrays.is_host(self.given) else self.given

    @property
    def xp(self) -> Any:
        return arrays.namespace(self.given)

    @property
    def n(self) -> int:
        return int(self.given.shape[0])

    @property
    def m(self) -> int:
        """The number of classes."""
        predictions = self.given
        return 2 if predictions.ndim == 1 else int(predictions.shape[1])

    @property
    def class_names(self) -> tuple[Any, ...]:
        """The classes in the order of the columns, 0..m-1 without names."""
        return tuple(range(self.m)) if self.classes is None else self.classes.names

    @property
    def positive_class(self) -> Any:
        """The second of two classes, the class of a single column; None otherwise and with a lens."""
        return self.class_names[1] if self.m == 2 and self.lens == CANONICAL else None

    @property
    def target_size(self) -> str:
        return f"{self.m} classes"

    @property
    def confidence_from(self) -> str:
        """A description of the confidence of `predicted`."""
        return self.lens.confidence_from(self.m)

    @property
    def reference(self) -> Array:
        return self.probabilities

    @property
    def predicted(self) -> Array:
        """The predicted class of each sample, shape (n,): the first most probable one, or "right"."""
        xp, p = self.xp, self.probabilities
        if self.lens.has_confidence:
            return xp.ones_like(self.labels)
        return xp.astype(xp.argmax(p, axis=1), xp.int64, copy=False)

    def take(self, rows: Array) -> Classification:
        take = self.xp.take
        return dataclasses.replace(
            self,
            labels=take(self.labels, rows, axis=0),
            given=take(self.probabilities, rows, axis=0),
            sample_weight=None if self.sample_weight is None else take(self.sample_weight, rows, axis=0),
            losses=None if self.losses is None else take(self.losses, rows, axis=0),
        )

    def with_targets(self, targets: Array) -> Classification:
        """Return the same predictions with other labels, integers 0..m-1, shape (n,)."""
        labels = arrays.asarray_like(targets, self.labels)
        return dataclasses.replace(self, labels=self.xp.astype(labels, self.labels.dtype, copy=False), losses=None)

    @cached_property
    def cumulative(self) -> Array:
        """Cumulative sums of the probabilities, shape (n, m), float64, on the host unless they are on a GPU."""
        return cumulative_sums(self.probabilities)

    def draw(self, seed: int, replicate: int) -> Classification:
        return self.with_targets(draw_labels(self.cumulative, self.uniforms(seed, replicate)[1]))

    def draw_by(self, generator: np.random.Generator) -> Classification:
        numbers = RandomNumbers(generator, self.reference)
        return self.with_targets(draw_labels(self.cumulative, numbers.uniform(self.n)))

    def redraw(self, seed: int, replicate: int) -> tuple[Array, Classification]:
        rows, uniform = self.uniforms(seed, replicate, redraw=True)
        assert rows is not None
        labels = draw_labels(self.cumulative, uniform, rows)
        rows = arrays.asarray_like(rows, self.reference)
        return rows, self.take(rows).with_targets(labels)

    def uniforms(self, seed: int, replicate: int, *, redraw: bool = False) -> tuple[Array | None, Array]:
        """Return the samples that `redraw` takes (None: all in order) and the uniform numbers for labels.

        Both have shape (n,), and are NumPy or CuPy arrays.
        """
        numbers = replicate_numbers(seed, replicate, self.reference)
        rows = numbers.integers(self.n, self.n) if redraw else None
        return rows, numbers.uniform(self.n)

    def as_given(self) -> tuple[Any, Any]:
        return self.labels, self.probabilities

    def listed(self) -> tuple[tuple[Any, ...], tuple[tuple[float, ...], ...]]:
        names = self.class_names
        return tuple(names[label] for label in arrays.to_host(self.labels).tolist()), tuple(
            map(tuple, arrays.to_host(self.probabilities).tolist())
        )

    def mismatch(self, other: Classification, name: str) -> str | None:
        if (self.n, self.m) != (other.n, other.m):
            return (
                f"{self.size}, but {name} has {other.n} and {other.m}; models are compared on the same samples in "
                "the same order"
            )
        if self.lens == other.lens == Confidence():
            return None  # each model has its own labels: was it right?
        classes, expected = self.class_names, other.class_names
        if classes != expected:
            return (
                f"the columns are the classes {list(classes)}, but those of {name} {list(expected)}; "
                "write the same columns in the same order"
            )
        labels, other_labels = arrays.to_host(self.labels), arrays.to_host(other.labels)
        differing = np.flatnonzero(labels != other_labels)
        if not differing.size:
            return None
        i = int(differing[0])
        return (
            f"the label of sample {i} (counted from 0) is {classes[labels[i]]}, but in {name} "
            f"{classes[other_labels[i]]} ({differing.size} labels differ); models are compared on the same samples "
            "in the same order"
        )

    def in_order_of(self, other: Data) -> Classification:
        names = getattr(other, "class_names", ())
        return self.in_order(Classes(names, "columns")) if len(names) == self.m else self

    def in_order(self, classes: Classes) -> Classification:
        """Return the data with columns in the order of `classes`, by name; a ValueError if the names differ."""
        if self.class_names == classes.names:
            return self
        places = Classes(self.class_names).permutation_of(classes)
        if places == tuple(range(self.m)):  # only spelled differently
            return dataclasses.replace(self, classes=classes)
        columns = arrays.like(np.argsort(places), self.reference)
        return dataclasses.replace(
            self,
            labels=self.xp.take(arrays.like(np.array(places), self.reference), self.labels, axis=0),
            given=self.xp.take(self.probabilities, columns, axis=1),
            classes=classes,
        )

    def describe(self) -> dict[str, Any]:
        return {
            "n_classes": self.m,
            "positive_class": self.positive_class,
            "prediction": None,
            "lens": str(self.lens),
        }


def prepare(
    y_true: Any,
    y_pred: Any,
    *,
    classes: Any = None,
    from_logits: bool = False,
    sample_weight: Any = None,
    dtype: Any = None,
    threads: Any = None,
    lens: Any = None,
    names: Names = NAMES,
    columns: tuple[Any, ...] | None = None,
    sparse_lens: Lens | None = None,
) -> Classification:
    """Check the arguments that all metrics share (see `kcalib.skce`), and return the problem that the lens induces.

    Messages use `names` for the two arrays. `columns` replaces the column names of `y_pred`. For `SparseProbabilities`,
    `sparse_lens` is the default lens.
    """
    target = dtype_name(dtype)
    if not (lens is None or isinstance(lens, Lens)):
        raise TypeError(f"`lens` is {lens!r}, expected a lens such as kcalib.lenses.TopLabel()")
    if isinstance(y_pred, SparseProbabilities):
        for name, value in {"classes": classes, "from_logits": from_logits or None}.items():
            if value is not None:
                raise OptionError(name, "is given, but SparseProbabilities have numbers of classes; leave it out")
        return _prepare_sparse(y_true, y_pred, sample_weight, target, threads, lens or sparse_lens or CANONICAL, names)
    if type(y_pred).__module__.startswith("kcalib.distributions."):
        raise TypeError(
            f"`{names.y_pred}` is {type(y_pred).__name__}, expected an array of class probabilities; for predicted "
            "distributions use kcalib.evaluate, kcalib.calibration_test or scores such as kcalib.crps"
        )
    lens = CANONICAL if lens is None else lens
    y_true, y_pred, sample_weight = map(arrays.compute_lazy, (y_true, y_pred, sample_weight))
    check_dimensions(y_true, y_pred, names[:2])
    true = arrays.as_array(y_true, names.y_true)
    pred = arrays.as_array(y_pred, names.y_pred)
    if getattr(y_pred, "requires_grad", None) is True:
        warn(
            f"`{names.y_pred}` requires gradients, but none are tracked: results are plain numbers. Train with a loss "
            f"of the framework, such as its cross-entropy, and measure {names.y_pred}.detach()",
            GradientWarning,
        )
    arrays.check_no_threads(pred, threads)
    _check_swapped(true, pred, names)
    _check_pred_type(pred, names)
    lens.check_columns(1 if pred.ndim < 2 else int(pred.shape[1]), names.y_pred)
    if lens == Confidence() and classes is None and arrays.kind_of(true) == "U":
        raise ValueError(
            f"`{names.y_true}` is text, expected 0 or 1, or booleans (was each prediction right?); pass classes="
            "[label for wrong, label for right]"
        )
    _check_single_label(true, pred, names)
    _check_transposed(true, pred, names)
    if classes is None and arrays.kind_of(true) == "f" and is_column(true) and pred.ndim in (1, 2):
        _check_whole_labels(true, pred, names)
    epsilon = _epsilon(y_pred, pred)
    if not isinstance(from_logits, (bool, np.bool_)):
        raise TypeError(f"`from_logits` is {from_logits!r}, expected True or False")
    # float32 rows and single columns are not widened if the sweep can read them.
    widen = sample_weight is not None or bool(from_logits)
    probabilities = _probabilities(pred, bool(from_logits), target, epsilon, threads, names, widen, y_pred)
    n, m = int(probabilities.shape[0]), 2 if probabilities.ndim == 1 else int(probabilities.shape[1])
    if columns is None:  # a column of confidences is not named after a class
        columns = () if lens == Confidence() else column_names(y_pred, m)
    check_rows(y_true, y_pred, sample_weight, names[:2])
    labels, called = _labels(true, y_true, columns, n, m, classes, threads, names)
    labels = arrays.asarray_like(labels, probabilities)
    if arrays.is_host(labels):
        labels = arrays.as_compact(labels, np.int64)
    else:
        xp = arrays.namespace(probabilities)
        labels = xp.astype(labels, xp.int64, copy=False)
    losses = None
    if from_logits:
        epsilon = float(arrays.namespace(probabilities).finfo(probabilities.dtype).smallest_normal)
        losses = losses_of_logits(pred, labels, probabilities, epsilon)
    weights = None if sample_weight is None else weights_of(sample_weight, n, probabilities)
    data = Classification(labels, probabilities, weights, called, epsilon, target, losses=losses, threads=threads)
    return lens.induced(data)


def _prepare_sparse(
    y_true: Any, rows: SparseProbabilities, sample_weight: Any, dtype: str, threads: Any, lens: Lens, names: Names
) -> Classification:
    """Return the problem that a lens induces for sparse rows."""
    true = arrays.to_host(arrays.as_array(arrays.compute_lazy(y_true), names.y_true))
    if true.dtype.kind not in "iu" or true.shape != (len(rows),):
        raise ValueError(
            f"`{names.y_true}` has dtype {true.dtype} and shape {true.shape}, expected integers of shape "
            f"({len(rows)},): the numbers of the classes"
        )
    labels = _integer_labels(true, rows.n_classes, threads, names)
    labels, probabilities = lens.induced_of_sparse(labels, rows)
    called, epsilon = lens.names_of_sparse(rows), float(np.finfo(rows.probabilities.dtype).eps)
    weights = None if sample_weight is None else weights_of(sample_weight, len(rows), probabilities)
    classes = None if called is None else Classes(called)
    return Classification(labels, probabilities, weights, classes, epsilon, dtype, lens, threads=threads)


def _epsilon(y_pred: Any, pred: Array) -> float:
    """Return the machine epsilon of the dtype of the predictions; of float64 for integers."""
    if arrays.is_host(pred) and pred.dtype == np.float64:
        return _FLOAT64_EPSILON
    if "bfloat16" in str(getattr(y_pred, "dtype", "")):  # on the CPU `pred` is float32 now
        return 2.0**-7
    xp = arrays.namespace(pred)
    return float(xp.finfo(pred.dtype if arrays.kind_of(pred) == "f" else xp.float64).eps)


def _check_swapped(true: Array, pred: Array, names: Names) -> None:
    """Refuse arguments that are obviously swapped."""
    if arrays.kind_of(true) != "f" or arrays.kind_of(pred) not in "iubU" or not is_column(pred):
        return
    if is_column(true):
        swapped = bool(arrays.namespace(true).any((true > 0) & (true < 1)))
    else:
        swapped = true.ndim == 2 and not _is_one_hot(true)
    if swapped:
        raise ValueError(
            f"`{names.y_true}` looks like probabilities and `{names.y_pred}` like labels: the arguments are swapped; "
            f"the order is {names.order}"
        )


def _check_single_label(true: Array, pred: Array, names: Names) -> None:
    """Refuse labels with several or no classes per sample."""
    if (
        true.ndim != 2
        or is_column(true)
        or tuple(true.shape) != tuple(pred.shape)
        or arrays.kind_of(true) not in "biuf"
    ):
        return
    if _is_one_hot(true) or not bool(arrays.namespace(true).all((true == 0) | (true == 1))):
        return
    raise ValueError(
        f"`{names.y_true}` has shape {tuple(true.shape)} but its rows are not one-hot (a single 1, zeros elsewhere); "
        "if samples have several labels, pass multilabel=True to kcalib.evaluate"
    )


def _check_transposed(true: Array, pred: Array, names: Names) -> None:
    """Refuse predictions with a column for each label."""
    if pred.ndim == 2 and true.ndim and pred.shape[0] < pred.shape[1] == true.shape[0]:
        raise ValueError(
            f"`{names.y_pred}` has shape {tuple(pred.shape)} and `{names.y_true}` {true.shape[0]} labels, expected a "
            f"row for each label; pass {names.y_pred}.T"
        )


def _check_pred_type(pred: Array, names: Names) -> None:
    kind = arrays.kind_of(pred)
    if kind == "c":
        raise TypeError(
            f"`{names.y_pred}` is complex, expected real probabilities; pass {names.y_pred}.real if that is "
            "what you mean"
        )
    if kind == "U":
        raise TypeError(f"`{names.y_pred}` holds strings, expected probabilities; pass the output of predict_proba")
    if kind == "b" or (kind in "iu" and is_column(pred) and pred.shape[0] > 0):
        raise TypeError(
            f"`{names.y_pred}` has dtype {pred.dtype} and looks like predicted labels, expected probabilities; "
            f"pass the output of predict_proba, or {names.y_pred}.astype(float) if 0 and 1 are meant as probabilities"
        )
    if kind not in "iuf":
        raise TypeError(f"`{names.y_pred}` has dtype {pred.dtype}, expected floating point numbers")


def _probabilities(
    pred: Array, from_logits: bool, target: str, epsilon: float, threads: Any, names: Names, widen: bool, frame: Any
) -> Array:
    if pred.ndim not in (1, 2):
        raise ValueError(
            f"`{names.y_pred}` has shape {tuple(pred.shape)}, expected (n, m) probabilities, or (n,) for a "
            "binary problem"
        )
    if pred.shape[0] == 0:
        raise ValueError(f"`{names.y_pred}` is empty, expected at least one prediction")
    if pred.ndim == 2 and pred.shape[1] == 0:
        raise ValueError(f"`{names.y_pred}` has shape {tuple(pred.shape)}, expected at least one column")
    xp = arrays.namespace(pred)
    if from_logits:
        logits = arrays.cast(xp, pred, "float64", or_else=target)
        pred = softmax(xp, logits, names.y_pred)
        warn_of_probabilities(xp, logits, names.y_pred, names.from_logits)
    binary = is_column(pred)
    tolerance = sum_tolerance(2 if binary else pred.shape[1], epsilon)
    if arrays.is_host(pred):
        pred = arrays.as_compact(pred, np.float32 if pred.dtype == np.float32 else np.float64)
        widen = widen or (pred.dtype == np.float32 and target != "float32")
        checked = _native.distributions(pred, tolerance, threads_for(pred.size, threads), widen)
        if checked is not None:
            return checked
    pred = arrays.cast(xp, pred, "float64", or_else=target)
    # Two passes without temporaries; NaN fails, too. Only then find the invalid value.
    if not (float(xp.min(pred)) >= 0 and float(xp.max(pred)) <= 1):
        reject(
            pred,
            ~xp.isfinite(pred),
            lambda at, x: f"`{names.y_pred}{at}` is {x}, expected a finite probability; drop or repair such rows first",
        )
        reject(
            pred,
            (pred < -tolerance) | (pred > 1 + tolerance),
            lambda at, x: (
                f"`{names.y_pred}{at}` is {x}, expected a probability between 0 and 1; "
                + (_extra_column(pred, frame) or _remedy_of_range(xp, pred, names))
            ),
        )
        pred = xp.clip(pred, 0.0, 1.0)  # rounding errors, such as those of 1 - p
    if binary:
        second = xp.reshape(pred, (-1,))
        return xp.stack((1 - second, second), axis=1)
    sums = xp.sum(pred, axis=1)
    off = xp.nonzero(xp.abs(sums - 1) > tolerance)[0]
    if off.shape[0]:
        gaps = arrays.to_host(xp.abs(xp.take(sums, off, axis=0) - 1))
        tolerances = np.maximum(tolerance, shown_tolerances(arrays.to_host(xp.take(pred, off, axis=0))))
        if np.any(gaps > tolerances):
            worst = int(np.argmax(gaps > tolerances))
            i = int(off[worst])
            expected = f"1 within {tolerances[worst]:.2g}".replace("e-0", "e-")
            remedy = _extra_column(pred, frame) or (
                f"normalise the rows, or pass logits with {names.from_logits}"
                if float(sums[i])
                else "drop such rows first"
            )
            raise ValueError(f"`{names.y_pred}[{i}]` sums to {float(sums[i]):.9g}, expected {expected}; {remedy}")
    return pred


def _extra_column(pred: Array, frame: Any) -> str:
    """Return the remedy if all columns of a frame but one are probabilities of all classes; else an empty text."""
    columns = column_names(frame, 0 if pred.ndim == 1 else int(pred.shape[1]))
    for k, name in enumerate(columns if len(columns) > 2 else ()):
        others = np.delete(arrays.to_host(pred), k, axis=1)
        if np.min(others) >= 0 and np.max(np.abs(np.sum(others, axis=1) - 1)) < 1e-3:
            return f"drop column {name!r}, since the others are the probabilities of all classes"
    return ""


def _remedy_of_range(xp: Any, pred: Array, names: Names) -> str:
    """Return the remedy for numbers that are no probabilities."""
    percentages = "divide percentages by 100" if _are_percentages(xp, pred) else ""
    if is_column(pred) and bool(xp.all(xp.floor(pred) == pred)):
        return ", ".join(filter(None, ("pass the output of predict_proba instead of predicted labels", percentages)))
    return percentages or f"for logits pass {names.from_logits}, for rounding errors clip to [0, 1]"


def _are_percentages(xp: Any, values: Array) -> bool:
    """Return whether values are percentages: rows that sum to 100, or a column from 0 to 100."""
    if not (float(xp.min(values)) >= 0 and 2 < float(xp.max(values)) <= 101):
        return False
    return is_column(values) or float(xp.max(xp.abs(xp.sum(values, axis=1) - 100))) <= 1


_FLOAT64_EPSILON = 2.0**-52


def _labels(
    true: Array, y_true: Any, columns: tuple[Any, ...], n: int, m: int, classes: Any, threads: Any, names: Names
) -> tuple[Array, Classes]:
    """Return labels as positions 0..m-1 of the classes, and the classes."""
    kind = arrays.kind_of(true)
    if kind == "c":
        raise TypeError(f"`{names.y_true}` is complex, expected class labels")
    if kind not in "biufU":
        raise TypeError(f"`{names.y_true}` has dtype {true.dtype}, expected integers, booleans or strings")
    if true.ndim not in (1, 2):
        raise ValueError(f"`{names.y_true}` has shape {tuple(true.shape)}, expected (n,) labels or one-hot rows (n, m)")
    if true.shape[0] != n:
        raise ValueError(
            f"`{names.y_true}` has {true.shape[0]} labels, `{names.y_pred}` {n} predictions; "
            "pass one label for every prediction"
        )
    xp = arrays.namespace(true)
    called = classes if isinstance(classes, Classes) else None
    if classes is not None and called is None:
        called = Classes(tuple(_class_names(classes, m, names).tolist()))
    if not is_column(true):
        labels, one_hot = _one_hot_labels(true, m, names), column_names(y_true, m)
        if called is None:
            called, places = match_one_hot(one_hot, columns, m, names[:2])
            return arrays.asarray_like(np.asarray(places), labels)[labels], called
        check_names(one_hot, called, names.y_true)
        check_names(columns, called, names.y_pred)
        return labels, called
    true = xp.reshape(true, (-1,))
    if called is not None:
        if called.is_known:
            check_names(columns, called, names.y_pred)
    elif kind == "U" or columns or categories_of(y_true) is not None:
        distinct = np.unique(arrays.to_host(true))
        called = choose_classes(distinct, m, columns, categories_of(y_true), names[:2])
        if called.origin == SORTED_LABELS and len(called.names) != m:
            count, remedy = len(called.names), "pass classes= with the label of each column"
            if count > m:
                remedy = "drop the samples of other labels, or pass the probability of every class"
            raise ValueError(
                f"`{names.y_true}` holds {count} distinct strings, `{names.y_pred}` has {m} classes; {remedy}"
            )
    if called is not None and called.origin != POSITION:
        if not arrays.is_cuda(true):
            true = arrays.to_host(true)
        return _positions(true, np.asarray(called.names), names, called.origin), called
    if kind == "b" and m != 2:
        raise ValueError(
            f"`{names.y_true}` is boolean, `{names.y_pred}` has {m} classes; pass integers 0..{m - 1}, such as those "
            f"of {names.y_true}.astype(int)"
        )
    return _integer_labels(true, m, threads, names), Classes.by_position(m)


def _class_names(classes: Any, m: int, names: Names) -> np.ndarray:
    called = arrays.to_host(arrays.as_array(classes, "classes"))
    if called.shape != (m,):
        raise ValueError(
            f"`classes` has shape {called.shape}, expected ({m},): the label of each column of `{names.y_pred}`"
        )
    if len(np.unique(called)) != m:
        raise ValueError(f"`classes` is {called.tolist()}, expected distinct labels")
    return called


def _one_hot_labels(true: Array, m: int, names: Names) -> Array:
    if true.shape[1] != m:
        raise ValueError(
            f"`{names.y_true}` has {true.shape[1]} columns, `{names.y_pred}` has {m} classes; "
            "one-hot labels need m columns"
        )
    if not _is_one_hot(true):
        raise ValueError(
            f"`{names.y_true}` has shape {tuple(true.shape)} but its rows are not one-hot (a single 1, zeros "
            "elsewhere); pass labels of shape (n,); if these are probabilities, the arguments are swapped"
        )
    xp = arrays.namespace(true)
    return xp.argmax(xp.astype(true, xp.int8), axis=1)


def _is_one_hot(array: Array) -> bool:
    xp = arrays.namespace(array)
    if arrays.kind_of(array) == "b":
        array = xp.astype(array, xp.int8)
    ones = array == 1
    return bool(xp.all(ones | (array == 0))) and bool(xp.all(xp.sum(xp.astype(ones, xp.int64), axis=1) == 1))


def _positions(true: Array, called: np.ndarray, names: Names, origin: str) -> Array:
    """Return the positions of the labels in `called`."""
    if (called.dtype.kind == "U") != (arrays.kind_of(true) == "U"):
        raise TypeError(
            f"`classes` holds {called.dtype} and `{names.y_true}` {true.dtype}, expected labels of one type; write "
            f"both as {'numbers, or both as strings' if arrays.is_host(true) else 'numbers'}"
        )
    order = np.argsort(called)
    xp, ordered, values = arrays.namespace(true), called[order], true
    if not arrays.is_host(true):  # search and comparison need one type
        common = np.float64 if "f" in (called.dtype.kind, arrays.kind_of(true)) else np.int64
        order, ordered = arrays.like(order, true), arrays.like(ordered, true, dtype=common)
        values = xp.astype(true, common)
    place = xp.minimum(xp.searchsorted(ordered, values), len(called) - 1)
    positions = order[place]
    rule = f"{called.tolist()}, the {'names of the columns' if origin == 'columns' else origin}; correct the label"
    if origin == "classes=":
        rule = f"classes={called.tolist()}; correct the label or `classes`"
    reject(
        true,
        ordered[place] != values,
        lambda at, x: f"`{names.y_true}{at}` is {x!r}, expected one of {rule}",
    )
    return positions


def _check_whole_labels(true: Array, pred: Array, names: Names) -> None:
    """Refuse labels that are not whole numbers, before probabilities are checked."""
    xp, m = arrays.namespace(true), 2 if is_column(pred) else int(pred.shape[1])
    reject(
        true,
        ~xp.isfinite(true),
        lambda at, x: f"`{names.y_true}{at}` is {x}, expected a class label; drop such rows first",
    )
    reject(
        true,
        xp.floor(true) != true,
        lambda at, x: (
            f"`{names.y_true}{at}` is {x}, expected a class label 0..{m - 1}; if these are probabilities, "
            f"the arguments are swapped: the order is {names.order}; for regression pass predicted distributions, "
            f"kcalib.distributions.Normal(mean, std), or Samples({names.y_pred}) for draws of shape (n, S)"
        ),
    )


def _integer_labels(true: Array, m: int, threads: Any, names: Names) -> Array:
    """Check labels 0..m-1, and copy them as int64: they are indices, and the caller's array may change."""
    remedy = f"pass classes= with the label of each of the {m} columns of `{names.y_pred}`"
    if (arrays.is_host(true) or arrays.is_cuda(true)) and true.dtype == np.uint64:
        beyond = true > np.uint64(2**63 - 1)
        reject(true, beyond, lambda at, x: f"`{names.y_true}{at}` is {x}, expected a label 0..{m - 1}; {remedy}")
    if arrays.is_host(true) and true.dtype.itemsize <= 8:  # long double is not exact
        exact = np.float64 if true.dtype.kind == "f" else np.int32 if true.dtype == np.int32 else np.int64
        true = arrays.as_compact(true, exact)
        checked = _native.classes(true, m, threads_for(true.size, threads))
        if checked is not None:
            return checked
    xp = arrays.namespace(true)
    true = xp.asarray(true, copy=True)
    if arrays.kind_of(true) != "f":
        true = xp.astype(true, xp.int64, copy=False)
    lowest, highest = int(xp.min(true)), int(xp.max(true))
    n_distinct = int(xp.unique_values(true).shape[0])
    if n_distinct > m:
        remedy = (
            f"there are {n_distinct} different labels for {m} classes: drop samples without a label first, or pass the "
            "probability of every class"
        )
    elif lowest == 1 and highest == m:
        remedy = f"the labels look like 1..{m}: subtract 1, or pass classes=range(1, {m + 1})"
    elif lowest == -1 and highest == 1 and m == 2:  # without a 0
        remedy = "for labels -1 and 1 pass classes=[-1, 1]"
    reject(
        true,
        (true < 0) | (true >= m),
        lambda at, x: f"`{names.y_true}{at}` is {x:.0f}, expected a label 0..{m - 1}; {remedy}",
    )
    return xp.astype(true, xp.int64, copy=False)
