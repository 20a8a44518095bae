r"""Notions of calibration ("lenses"), as maps to another classification problem.

A model is calibrated if :math:`P(Y = k \mid p) = p_k` for all classes. A lens maps labels :math:`y` and predictions
:math:`p` to another classification problem, the *induced problem*, and asks whether the induced predictions are
calibrated. All estimators and tests accept a lens as ``lens=``, and return the result of the induced problem.

================ =========================================== ==========================================
lens             predictions :math:`p'`                      label :math:`y'`
================ =========================================== ==========================================
`Canonical`      :math:`p`                                   :math:`y`
`TopLabel`       :math:`(1 - c, c)`, :math:`c = \max_k p_k`  is the predicted class right?
`Confidence`     :math:`(1 - c, c)`, c as given              was the prediction right, as given?
`ClassWise` (j)  :math:`(1 - p_j, p_j)`                      is it class j?
`TopK` (k)       the k largest, and the sum of the rest      place of the class among them, or k
`Groups`         sums within groups of classes               the group
`Buckets`        sums within random groups of many classes   the group
================ =========================================== ==========================================

A calibrated model is calibrated through every lens. A model can be calibrated through one lens, but not through
another.

With a lens, everything that refers to classes refers to the induced ones, which are numbered from 0: a matrix or kernel
as `target_kernel`, test locations of `kcalib.ucme` and of the CME test, labels in results. Only `classes` still names
the columns of `y_pred`.

The predicted class is the most probable one. With two classes its confidence is :math:`\max(p, 1 - p)`. `TopLabel` and
`Confidence` have the induced classes "wrong" and "right"; their confidence is the probability of "right", even below
1/2. ``confidence_from`` of results says which confidence was used.

:math:`1 - c` is computed as the sum of the other probabilities, which is more accurate if :math:`c` is near 1. Induced
problems with two classes are problems on a line, where kernels take time O(n log n) (see `kcalib.skce`) if
probabilities sum to 1. A softmax in float32 does so to 1e-7 only, so the two probabilities are divided by their sum,
unless it is 1 within 2.2e-16. With more classes, rows are not normalized.

Lenses are immutable, compare by value, and can be hashed and pickled. They take time O(n m) (`TopK`: O(n m log m)), and
memory O(n) times the number of induced classes.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import OptionError, check_integer
from kcalib._backend.random import hash_numbers

__all__ = ["Buckets", "Canonical", "ClassWise", "Confidence", "Groups", "Lens", "TopK", "TopLabel"]

Data = TypeVar("Data", bound=Any)  # _input.labels.Classification
SparseRows = Any  # _input.sparse.SparseProbabilities
LabelsAndPredictions = tuple[Array, Array]  # labels, shape (n,), and probabilities, shape (n, m)

STRIP, DEVICE_STRIP = 2**18, 2**24  # probabilities that are mapped at a time
ROUNDING = 2.0**-52  # two probabilities that sum to 1 within this are not normalized


class Lens:
    """Base class of lenses."""

    is_scalar: ClassVar[bool] = False  # whether the induced predictions are one probability and its complement
    has_confidence: ClassVar[bool] = False  # whether the induced classes are "wrong" and "right"

    def induced(self, data: Data) -> Data:
        """Return the data of the induced problem; `_input.labels` calls this, so later code needs no lens."""
        self._check(data.m)
        strips = [self._induce(*strip) for strip in _strips(data)]
        labels, probabilities = (data.xp.concat(parts) for parts in zip(*strips, strict=True))
        if probabilities.shape[1] == 2:
            probabilities = _on_the_line(data.xp, probabilities)
        return dataclasses.replace(data, labels=labels, given=probabilities, classes=None, lens=self, losses=None)

    def induced_of_sparse(self, labels: np.ndarray, rows: SparseRows) -> LabelsAndPredictions:
        """Return labels and dense probabilities of the induced problem of checked sparse rows."""
        self._check(rows.n_classes)
        step, strips = max(1, STRIP // rows.ids.shape[1]), []
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            strips.append(self._induce_sparse(labels[part], rows[part], begin))
        induced, probabilities = (np.concatenate(parts) for parts in zip(*strips, strict=True))
        return induced, _on_the_line(np, probabilities) if probabilities.shape[1] == 2 else probabilities

    def names_of_sparse(self, rows: SparseRows) -> tuple[Any, ...] | None:
        """Return the names of the classes that sparse rows induce; None for numbers."""
        return None

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        """Map sparse rows; `first` is the number of the first row, for error messages."""
        raise ValueError(
            f"`lens` is {self}, which needs the probabilities of all {rows.n_classes} classes, but `y_pred` is "
            "SparseProbabilities; pass lens=kcalib.lenses.Buckets(), TopLabel() or TopK(k) to functions that have it, "
            "and dense rows to others"
        )

    def check_columns(self, n_columns: int, name: str) -> None:
        """Raise if the lens does not accept predictions with this number of columns; `name` is their argument."""

    def confidence_from(self, m: int) -> str:
        """Return what the confidence in a prediction of `m` induced classes is, in words."""
        if self.has_confidence:
            return "as given" if isinstance(self, Confidence) else "largest probability"
        return "max(p, 1 - p)" if m == 2 else "largest probability"

    def _check(self, m: int) -> None:
        """Raise if the lens does not accept `m` classes."""

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        """Map labels and probabilities; induced labels are int64."""
        raise TypeError(f"{type(self).__name__} is a base class; pass one such as kcalib.lenses.TopLabel()")


@dataclass(frozen=True)
class Canonical(Lens):
    r"""The whole vector of predictions: the strongest notion, and the default.

    .. math:: P(Y = k \mid p) = p_k \quad \text{for all } k

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 2, 1], [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.4, 0.1]]
    >>> kcalib.skce(y, p, lens=kcalib.lenses.Canonical()) == kcalib.skce(y, p)
    True
    """

    def induced(self, data: Data) -> Data:
        return data


CANONICAL = Canonical()


@dataclass(frozen=True)
class TopLabel(Lens):
    r"""The confidence in the predicted class, and whether that class is right.

    .. math:: P(Y = \hat y \mid c) = c, \qquad c = \max_k p_k, \quad \hat y = \arg\max_k p_k

    The first of several most probable classes is the predicted one. The label is 1 if it is right, else 0; the
    predictions are :math:`(\sum_{k \ne \hat y} p_k, c)`.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 2, 1], [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.4, 0.1]]
    >>> right, confidence = [1, 1, 0], [0.7, 0.6, 0.5]
    >>> value = kcalib.brier_score(y, p, lens=kcalib.lenses.TopLabel())
    >>> abs(value - kcalib.brier_score(right, confidence)) < 1e-15
    True
    """

    is_scalar: ClassVar[bool] = True
    has_confidence: ClassVar[bool] = True

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        xp = arrays.namespace(p)
        return _one_against_others(labels, p, xp.astype(xp.argmax(p, axis=1), xp.int64))

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        labels, p = TopK(1)._induce_sparse(labels, rows, first)
        return 1 - labels, p[:, ::-1]


@dataclass(frozen=True)
class Confidence(Lens):
    r"""Given confidences in predictions, and whether the predictions were right.

    .. math:: P(\text{right} \mid c) = c

    `y_true` says whether each prediction was right (1 or true) or wrong (0 or false). `y_pred` has one column of
    confidences, shape (n,) or (n, 1), as evaluations of language models, detectors and judges report them. A confidence
    of 0.2 stays 0.2; it does not become 0.8. Other labels need ``classes=[wrong, right]``. If models in
    `kcalib.compare` are right about different samples, pass a mapping of model names to labels.

    Recalibrators accept such pairs without a lens, as a binary problem.

    Raises
    ------
    ValueError
        When used: if `y_pred` has several columns, or `y_true` holds strings and `classes` is not given.

    Examples
    --------
    Of 100 predictions with confidence 0.4, 20 are right; of 100 with 0.6, 40 are right. Both gaps are 0.2:

    >>> import numpy as np, kcalib
    >>> confidence, right = np.repeat([0.4, 0.6], 100), np.arange(200) % 100 < np.repeat([20, 40], 100)
    >>> result = kcalib.evaluate(right, confidence, lens=kcalib.lenses.Confidence())
    >>> round(result.top_label_ece, 6), result.accuracy, result.verdict.partition(":")[0]
    (0.2, 0.3, 'miscalibrated, over-confident')
    """

    is_scalar: ClassVar[bool] = True
    has_confidence: ClassVar[bool] = True

    def check_columns(self, n_columns: int, name: str) -> None:
        if n_columns > 1:
            raise ValueError(
                f"`{name}` has {n_columns} columns, expected one of confidences for lens=Confidence(); of "
                "probabilities of classes lens=kcalib.lenses.TopLabel() takes the largest"
            )

    def _check(self, m: int) -> None:
        self.check_columns(m if m > 2 else 1, "y_pred")

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        return labels, p


@dataclass(frozen=True)
class ClassWise(Lens):
    r"""The probability of one class against all others.

    .. math:: P(Y = j \mid p_j) = p_j

    The label is 1 for class j, 0 for the others; the predictions are :math:`(\sum_{k \ne j} p_k, p_j)`.

    Parameters
    ----------
    index : int
        The column of class j in the predictions, 0..m-1.

    Raises
    ------
    TypeError, ValueError
        If `index` is no integer, or negative; when used, if it is above m-1.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 2, 1], [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.4, 0.1]]
    >>> value = kcalib.brier_score(y, p, lens=kcalib.lenses.ClassWise(1))
    >>> abs(value - kcalib.brier_score([0, 0, 1], [0.2, 0.3, 0.4])) < 1e-15
    True
    """

    index: int

    is_scalar: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", check_integer("index", self.index, 0, None, ": the column of a class"))

    def _check(self, m: int) -> None:
        check_integer("index", self.index, 0, m - 1, ": the column of a class of `y_pred`")

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        return _one_against_others(labels, p, arrays.namespace(p).full_like(labels, self.index))

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        return _add_groups(labels, rows, np.arange(rows.n_classes) == self.index, 2, first, f"class {self.index}")


@dataclass(frozen=True)
class TopK(Lens):
    r"""The k largest probabilities, and the rank of the true class.

    Let :math:`p_{(0)} \ge p_{(1)} \ge \dots` be the probabilities in descending order, equal ones in the order of
    columns, and R the rank of the true class, from 0. Calibration is

    .. math:: P(R = r \mid p') = p_{(r)} \quad \text{for } r < k, \qquad
              p' = \Bigl( p_{(0)}, \dots, p_{(k-1)}, \sum_{r \ge k} p_{(r)} \Bigr) .

    The label is R, or k if the true class is not among the k most probable ones. There are k + 1 induced classes.

    ``TopK(1)`` has the classes of `TopLabel` in reverse order: label 0 is "right". `kcalib.skce` and scores have the
    same values.

    Parameters
    ----------
    k : int
        Number of probabilities, 1..m-1. With m - 1 predictions are only sorted.

    Raises
    ------
    TypeError, ValueError
        If `k` is no integer, or below 1; when used, if it is above m-1.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 3, 1], [[0.6, 0.2, 0.1, 0.1], [0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]
    >>> induced = [[0.6, 0.2, 0.2], [0.4, 0.3, 0.3], [0.25, 0.25, 0.5]]
    >>> value = kcalib.brier_score(y, p, lens=kcalib.lenses.TopK(2))
    >>> abs(value - kcalib.brier_score([0, 1, 1], induced)) < 1e-15
    True
    """

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_integer("k", self.k, 1))

    def _check(self, m: int) -> None:
        check_integer("k", self.k, 1, m - 1, f": `y_pred` has {m} classes, and at least one must be among the rest")

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        xp, rest = arrays.namespace(p), p.shape[1] - self.k
        columns = xp.arange(p.shape[1], device=arrays.device(p))[None, :]
        label_probability = xp.take_along_axis(p, labels[:, None], axis=1)
        before = (p > label_probability) | ((p == label_probability) & (columns < labels[:, None]))
        place = xp.sum(xp.astype(before, xp.int64), axis=1)
        ascending = xp.sort(p, axis=1)
        top, remainder = xp.flip(ascending[:, rest:], axis=1), xp.sum(ascending[:, :rest], axis=1)
        return (
            xp.where(place < self.k, place, xp.full_like(place, self.k)),
            xp.concat((top, remainder[:, None]), axis=1),
        )

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        is_class = rows.ids >= 0
        short = np.flatnonzero((np.sum(is_class, axis=1) < self.k) & (rows.rest > 0))
        if short.size:
            raise ValueError(
                f"`y_pred[{first + short[0]}]` keeps {int(np.sum(is_class[short[0]]))} classes, lens={self} looks at "
                f"{self.k}; pass a smaller k, or y_pred[(y_pred.ids >= 0).sum(axis=1) >= {self.k}]"
            )
        p = np.asarray(rows.probabilities, dtype=np.float64)
        order = np.lexsort((rows.ids, ~is_class, -p), axis=1)
        top, others = np.split(np.take_along_axis(p, order, axis=1), [self.k], axis=1)
        is_label = np.take_along_axis(rows.ids, order, axis=1)[:, : self.k] == labels[:, None]
        top = np.pad(top, ((0, 0), (0, self.k - top.shape[1])))
        place = np.where(np.any(is_label, axis=1), np.argmax(is_label, axis=1), self.k)
        return place, np.column_stack([top, np.sum(others, axis=1) + rows.rest])


@dataclass(frozen=True)
class Groups(Lens):
    r"""The probabilities of groups of classes, and the group of the label.

    .. math:: P(Y \in G_g \mid p') = p'_g \quad \text{for all } g, \qquad p'_g = \sum_{k \in G_g} p_k

    The label is the number g of its group.

    Parameters
    ----------
    groups : sequence of sequences of int, or array_like of int, shape (m,)
        The columns of the classes in each group, or the group number of each class, 0, 1, ... Every class is in exactly
        one group, and there are at least 2 groups. Stored in the first form, with sorted columns.

    Raises
    ------
    TypeError, ValueError
        If `groups` has neither form, or does not hold integers; if a group is empty, or a class is in no group or in
        two; when used, if the classes are not those of the predictions.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.lenses import Groups
    >>> animals = Groups([[0, 1], [2, 3]])
    >>> animals == Groups([0, 0, 1, 1])
    True
    >>> y, p = [0, 3, 1], [[0.6, 0.2, 0.1, 0.1], [0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]
    >>> value = kcalib.brier_score(y, p, lens=animals)
    >>> abs(value - kcalib.brier_score([0, 1, 0], [[0.8, 0.2], [0.5, 0.5], [0.5, 0.5]])) < 1e-15
    True
    """

    groups: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _partition(self.groups))

    def _check(self, m: int) -> None:
        named = sum(map(len, self.groups))
        if named < m:
            raise OptionError(
                "groups",
                f"has the classes 0..{named - 1}, `y_pred` 0..{m - 1}: class {named} is in none of the groups; "
                "put every class into exactly one",
            )
        if named > m:
            raise OptionError(
                "groups",
                f"has the classes 0..{named - 1}, `y_pred` 0..{m - 1}: there is no class {m}; leave out what is no "
                "column of `y_pred`",
            )

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        xp = arrays.namespace(p)
        columns = [arrays.like(members, labels, dtype=labels.dtype) for members in self.groups]
        sums = [xp.sum(xp.take(p, members, axis=1), axis=1) for members in columns]
        return xp.take(arrays.like(self._number(), labels), labels, axis=0), xp.stack(sums, axis=1)

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        return _add_groups(labels, rows, self._number(), len(self.groups), first, "the groups")

    def _number(self) -> np.ndarray:
        """Return the group of each class."""
        return np.repeat(np.arange(len(self.groups)), [*map(len, self.groups)])[np.argsort(np.concatenate(self.groups))]


@dataclass(frozen=True)
class Buckets(Lens):
    r"""The sums of probabilities within random groups of classes, for very many classes such as tokens.

    A hash of the class number decides the bucket, the same for all data. With no more classes than buckets, each
    class is a bucket. The rest of `kcalib.SparseProbabilities` is one more induced class; labels that a row does not
    keep belong to it.

    A calibrated model is calibrated for buckets, so tests keep their level. Inner products of bucket sums of residuals
    :math:`e` are :math:`(1 - 1/B) \langle e, e' \rangle` on average over hashes, with a variance of at most
    :math:`2 |e|^2 |e'|^2 / B`. Random signs would change neither, because residuals sum to 0. An error in one class is
    diluted by the other classes of its bucket.

    Parameters
    ----------
    n_buckets : int
        Number of buckets B, 2..32768.

    Raises
    ------
    TypeError, ValueError
        If `n_buckets` is no integer in this range.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [17, 123], kcalib.SparseProbabilities([[17, 4], [4, 9]], [[0.7, 0.2], [0.5, 0.25]], 50_000)
    >>> kcalib.calibration_test(y, p, lens=kcalib.lenses.Buckets(32)).n_classes
    33
    """

    n_buckets: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_buckets", check_integer("n_buckets", self.n_buckets, 2, 2**15))

    def names_of_sparse(self, rows: SparseRows) -> tuple[Any, ...] | None:
        if not rows.has_rest:
            return None
        name, count = ("bucket ", self.n_buckets) if rows.n_classes > self.n_buckets else ("", rows.n_classes)
        return (*(f"{name}{b}" for b in range(count)), "rest")

    def _number(self, m: int) -> np.ndarray:
        """Return the bucket of each class."""
        if m <= self.n_buckets:
            return np.arange(m)
        return (hash_numbers(np.arange(m), 0) % np.uint64(self.n_buckets)).astype(np.int64)

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        number = self._number(int(p.shape[1]))
        if len(number) <= self.n_buckets:
            return labels, p
        members = arrays.like(number[:, None] == np.arange(self.n_buckets), p, dtype=p.dtype)
        return arrays.namespace(p).take(arrays.like(number, labels), labels, axis=0), p @ members

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        number, b = self._number(rows.n_classes), min(self.n_buckets, rows.n_classes)
        sums = _sum_groups(rows, number, b, rows.probabilities)
        if not rows.has_rest:
            return number[labels], sums
        is_kept = np.any(rows.ids == labels[:, None], axis=1)
        return np.where(is_kept, number[labels], b), np.column_stack([sums, rows.rest])


@dataclass(frozen=True)
class _Kept(Canonical):
    """The classes that each sparse row keeps, by their place in the row, and the rest; scores use it."""

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        k = rows.ids.shape[1]
        if rows.n_classes <= k:
            return Buckets(k)._induce_sparse(labels, rows, first)
        is_label = rows.ids == labels[:, None]
        place = np.where(np.any(is_label, axis=1), np.argmax(is_label, axis=1), k)
        return place, np.column_stack([rows.probabilities, rows.rest])

    def __str__(self) -> str:
        return str(CANONICAL)


KEPT = _Kept()


def _strips(data: Any) -> Iterator[LabelsAndPredictions]:
    """Yield labels and probabilities of some samples at a time, so that temporary arrays stay small."""
    step = max(1, (DEVICE_STRIP if arrays.is_cuda(data.probabilities) else STRIP) // data.m)
    for begin in range(0, data.n, step):
        end = min(begin + step, data.n)
        yield data.labels[begin:end], data.probabilities[begin:end, :]


def _on_the_line(xp: Any, pairs: Array) -> Array:
    """Divide pairs of probabilities by their sums, unless these are 1 within rounding."""
    total = xp.sum(pairs, axis=1, keepdims=True)
    return pairs / xp.where(xp.abs(total - 1) <= ROUNDING, xp.ones_like(total), total)


def _one_against_others(labels: Array, p: Array, chosen: Array) -> LabelsAndPredictions:
    """Return the binary problem "is the label `chosen`, shape (n,)?"; column 1 is the probability of yes.

    The other probabilities are added up, because 1 - p has lost digits if p is near 1.
    """
    xp = arrays.namespace(p)
    columns = xp.arange(p.shape[1], device=arrays.device(p))
    zero = xp.zeros((), dtype=p.dtype, device=arrays.device(p))
    complement = xp.sum(xp.where(chosen[:, None] == columns[None, :], zero, p), axis=1)
    confidence = xp.take_along_axis(p, chosen[:, None], axis=1)[:, 0]
    return xp.astype(chosen == labels, xp.int64), xp.stack((complement, confidence), axis=1)


def _add_groups(
    labels: np.ndarray, rows: SparseRows, number: np.ndarray, n_groups: int, first: int, name: str
) -> LabelsAndPredictions:
    """Return sums within groups of classes; a row's rest belongs to the only group that the row does not keep whole."""
    number = number.astype(np.int64)
    sums = _sum_groups(rows, number, n_groups, rows.probabilities)
    is_partial = _sum_groups(rows, number, n_groups, rows.ids >= 0) < np.bincount(number, minlength=n_groups)
    unknown = np.flatnonzero((np.sum(is_partial, axis=1) > 1) & (rows.rest > 0))
    if unknown.size:
        at = first + unknown[0]
        raise ValueError(
            f"`y_pred[{at}]` does not keep all that {name} need: its rest, {rows.rest[unknown[0]]:.3g}, may be in "
            "several groups; take the rows that keep these classes, or pass rest=0 where what is not kept is impossible"
        )
    sums[np.arange(len(sums)), np.argmax(is_partial, axis=1)] += rows.rest
    return number[labels], sums


def _sum_groups(rows: SparseRows, number: np.ndarray, n_groups: int, values: np.ndarray) -> np.ndarray:
    """Return the sums of `values` of each row by group, shape (rows, n_groups)."""
    places = np.where(rows.ids >= 0, number[rows.ids], 0) + n_groups * np.arange(len(rows))[:, None]
    sums = np.bincount(places.ravel(), np.ravel(values), minlength=n_groups * len(rows))
    return sums.reshape(len(rows), n_groups)


def _partition(groups: Any) -> tuple[tuple[int, ...], ...]:
    """Check `groups`; return the sorted classes of each group."""
    groups = _to_list(groups)
    if not isinstance(groups, Sequence) or isinstance(groups, str):
        raise TypeError(
            f"`groups` is {groups!r}, expected a sequence of sequences of columns, or one group number for each class"
        )
    entries = [_to_list(entry) for entry in groups]
    if entries and not any(map(_is_collection, entries)):
        entries = _by_number(entries)
    if len(entries) < 2:
        raise ValueError("`groups` has fewer than 2 groups, and one alone has probability 1; pass at least 2")
    owner: dict[int, int] = {}
    for g, entry in enumerate(entries):
        if not _is_collection(entry):
            raise TypeError(f"`groups[{g}]` is {entry!r}, expected a sequence of columns, as other groups are")
        if not entry:
            raise ValueError(f"`groups[{g}]` is empty, expected at least one class; leave the group out")
        for i, column in enumerate(entry):
            c = check_integer(f"groups[{g}][{i}]", column, 0, None, ": the column of a class")
            if c in owner:
                where = f"in `groups[{owner[c]}]` and" if owner[c] != g else "twice in"
                raise ValueError(f"class {c} is {where} `groups[{g}]`; put every class into exactly one group")
            owner[c] = g
    missing = next(c for c in range(len(owner) + 1) if c not in owner)
    if missing < len(owner):
        raise ValueError(f"class {missing} is in none of the `groups`; put every class into exactly one group")
    return tuple(tuple(sorted(map(operator.index, entry))) for entry in entries)


def _by_number(numbers: Sequence[Any]) -> list[list[int]]:
    """Return the classes of each group from the group number of each class."""
    numbers = [check_integer(f"groups[{c}]", number, 0, None, ": a group number") for c, number in enumerate(numbers)]
    present = set(numbers)
    missing = next(g for g in range(len(present) + 1) if g not in present)
    if missing < len(present):
        raise ValueError(f"no class has the group number {missing} in `groups`; number the groups from 0 without gaps")
    return [[c for c, number in enumerate(numbers) if number == g] for g in range(len(present))]


def _is_collection(value: Any) -> bool:
    return isinstance(value, (Sequence, Set)) and not isinstance(value, str)


def _to_list(values: Any) -> Any:
    """Return arrays as lists, and other values unchanged."""
    return values.tolist() if hasattr(values, "tolist") else values
