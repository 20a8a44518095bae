r"""Lenses: notions of calibration, as maps of labels and predictions to another problem.

A model is calibrated if :math:`P(Y = k \mid p) = p_k` for all classes. A lens asks for less: it maps labels :math:`y`
and predictions :math:`p` to those of another classification problem, the *induced* one, and asks whether that is
calibrated. Every estimator and test of this package takes one as ``lens=``, and then computes what it would for the
labels and predictions of the induced problem.

================ =========================================== ==========================================
lens             predictions :math:`p'`                      label :math:`y'`
================ =========================================== ==========================================
`Canonical`      :math:`p`                                   :math:`y`
`TopLabel`       :math:`(1 - c, c)`, :math:`c = \max_k p_k`  is the predicted class right?
`Confidence`     :math:`(1 - c, c)`, c as given              was the prediction right, as given?
`ClassWise` (j)  :math:`(1 - p_j, p_j)`                      is it class j?
`TopK` (k)       the k largest, and the sum of the rest      place of the class among them, or k
`Groups`         sums within groups of classes               the group
`Buckets`        sums within random groups of very many      the group
================ =========================================== ==========================================

A calibrated model is calibrated through every lens; a model that is calibrated through one need not be through
another.

Whatever is said in terms of classes refers to the induced problem: a matrix or kernel for `target_kernel`, test
locations of `kcalib.ucme` and the CME test, labels in results. Only `classes` names the columns of `y_pred`. The
induced classes are numbered from 0.

Of two classes, as of more, the predicted one is the more probable: its confidence is :math:`\max(p, 1 - p)`. `TopLabel`
and `Confidence` leave the classes "wrong" and "right", and their confidence is that of "right", below 1/2, too:
accuracy is the share of what is right, and over-confident is what is right less often than it says. Results say in
``confidence_from`` which it was.

Probabilities are added up: :math:`1 - c` above is the sum of the others, which keeps the digits that a difference loses
where :math:`c` is near 1. An induced problem of two classes is a problem on a line, where kernels take O(n log n)
(see `kcalib.skce`), if its probabilities sum to 1. Rows of a softmax in float32 do so only within
1e-7. So the two are divided by their sum, unless it is 1 within 2.2e-16. Rows of more classes keep their sums.

All lenses are immutable, compare by value, and can be hashed and pickled. Time O(n m), of `TopK` O(n m log m); memory
O(n) times the number of induced classes.
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

STRIP, DEVICE_STRIP = 2**18, 2**24  # probabilities that are mapped at once
ROUNDING = 2.0**-52  # two probabilities that sum to 1 within this are left as they are


class Lens:
    """Base class of the lenses."""

    is_scalar: ClassVar[bool] = False  # whether it looks at one probability, of which the other is the complement
    has_confidence: ClassVar[bool] = False  # whether the induced classes are "wrong" and "right"

    def induced(self, data: Data) -> Data:
        """The checked data seen through the lens; `_input.labels` calls it, so that what follows knows of no lens."""
        self._check(data.m)
        strips = [self._induce(*strip) for strip in _strips(data)]
        labels, probabilities = (data.xp.concat(parts) for parts in zip(*strips, strict=True))
        if probabilities.shape[1] == 2:
            probabilities = _on_the_line(data.xp, probabilities)
        return dataclasses.replace(data, labels=labels, given=probabilities, classes=None, lens=self, losses=None)

    def induced_of_sparse(self, labels: np.ndarray, rows: SparseRows) -> LabelsAndPredictions:
        """Return labels and probabilities, which are dense, of the problem that checked sparse rows induce."""
        self._check(rows.n_classes)
        step, strips = max(1, STRIP // rows.ids.shape[1]), []
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            strips.append(self._induce_sparse(labels[part], rows[part], begin))
        induced, probabilities = (np.concatenate(parts) for parts in zip(*strips, strict=True))
        return induced, _on_the_line(np, probabilities) if probabilities.shape[1] == 2 else probabilities

    def names_of_sparse(self, rows: SparseRows) -> tuple[Any, ...] | None:
        """Return the names of the classes that sparse rows induce; None for their numbers."""
        return None

    def _induce_sparse(self, labels: np.ndarray, rows: SparseRows, first: int) -> LabelsAndPredictions:
        """Return the same of some rows, of which the first has this number."""
        raise ValueError(
            f"`lens` is {self}, which needs the probabilities of all {rows.n_classes} classes, but `y_pred` is "
            "SparseProbabilities; pass lens=kcalib.lenses.Buckets(), TopLabel() or TopK(k) to functions that have it, "
            "and dense rows to others"
        )

    def check_columns(self, n_columns: int, name: str) -> None:
        """Raise if the lens is not one for predictions, called `name`, that came in so many columns."""

    def confidence_from(self, m: int) -> str:
        """Say what the confidence in a prediction of `m` induced classes is."""
        if self.has_confidence:
            return "as given" if isinstance(self, Confidence) else "largest probability"
        return "max(p, 1 - p)" if m == 2 else "largest probability"

    def _check(self, m: int) -> None:
        """Raise if the lens is not one for `m` classes."""

    def _induce(self, labels: Array, p: Array) -> LabelsAndPredictions:
        """Return labels and probabilities of the induced problem, of some samples; labels are int64."""
        raise TypeError(f"{type(self).__name__} sees nothing by itself; pass one such as kcalib.lenses.TopLabel()")


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

    Of classes tied for the highest probability the first is the predicted one. The label is 1 if it is right, 0 if not;
    the predictions are :math:`(\sum_{k \ne \hat y} p_k, c)`.

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
    r"""Confidences in predictions as they are given, and which predictions were right.

    .. math:: P(\text{right} \mid c) = c

    `y_true` says of each prediction whether it was right (1 or true) or wrong (0 or false), and `y_pred` is one column
    of confidences, shape (n,) or (n, 1): what evaluations of language models, detectors and judges write. No
    confidence is turned round, so that one of 0.2 stays 0.2. With ``classes=`` labels may be others: the one for wrong,
    then the one for right. In `kcalib.compare` models may be right about different samples: pass a mapping of names to
    labels, too.

    Recalibrators take such pairs without a lens, as they take any binary problem.

    Raises
    ------
    ValueError
        If `y_pred` has several columns, or `y_true` is text without `classes` (when they are seen).

    Examples
    --------
    20 of 100 right at 0.4, and 40 of 100 at 0.6: the gap is 0.2 at both, and the model over-confident.

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
    r"""The probability of one class, against all others.

    .. math:: P(Y = j \mid p_j) = p_j

    The label is 1 for class j, 0 for the others; the predictions are :math:`(\sum_{k \ne j} p_k, p_j)`.

    Parameters
    ----------
    index : int
        The column of class j in the predictions, 0..m-1.

    Raises
    ------
    TypeError, ValueError
        If `index` is no integer, or out of range (above m-1: when predictions are seen).

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
    r"""The k largest probabilities, and at which place among them the true class is.

    With :math:`p_{(0)} \ge p_{(1)} \ge \dots` the probabilities in descending order, of equal ones that of the first
    column first, and R the place of the true class in this order,

    .. math:: P(R = r \mid p') = p_{(r)} \quad \text{for } r < k, \qquad
              p' = \Bigl( p_{(0)}, \dots, p_{(k-1)}, \sum_{r \ge k} p_{(r)} \Bigr) .

    The label is R, or k if the class is not among the k most probable ones. There are k + 1 induced classes.

    ``TopK(1)`` asks what `TopLabel` asks. Its columns are the other way round, the confidence first, and label 0 is
    "right": the values of `kcalib.skce` and of scores are the same.

    Parameters
    ----------
    k : int
        Places, 1..m-1. With m - 1 the predictions are only sorted.

    Raises
    ------
    TypeError, ValueError
        If `k` is no integer, or out of range (above m-1: when predictions are seen).

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
        The columns of the classes of each group, or the number of each class's group, 0, 1, ... Every class is in
        exactly one group, and there are at least 2. Stored as the former, with sorted columns.

    Raises
    ------
    TypeError, ValueError
        If `groups` is neither, or holds something other than integers; if a group is empty, or a class is in no group,
        in two, or (when predictions are seen) none of theirs.

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
    r"""The sums of probabilities within random groups of classes, of which there are very many, such as tokens.

    A hash of the class's number says which bucket it is in, the same for all data. `kcalib.SparseProbabilities` that
    have a rest have a last column for it: of which classes it consists differs from row to row, and so labels that a
    row does not keep are the rest's. With no more classes than buckets each class is a bucket by itself, and nothing is
    lost.

    A calibrated model is calibrated for buckets, too, so that tests have their level. As residuals :math:`e` sum to 0,
    inner products of their sums are :math:`(1 - 1/B) \langle e, e' \rangle` on average over hashes, with a variance of
    at most :math:`2 |e|^2 |e'|^2 / B`: random signs would change neither. The error of one class is diluted by others.

    Parameters
    ----------
    n_buckets : int
        Buckets B, at least 2.

    Raises
    ------
    TypeError, ValueError
        If `n_buckets` is no such integer.

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
    """The classes that sparse rows keep, by their places, and the rest: what scores are of."""

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
    """Yield labels and probabilities of some samples at a time, so that temporary arrays of a lens stay small."""
    step = max(1, (DEVICE_STRIP if arrays.is_cuda(data.probabilities) else STRIP) // data.m)
    for begin in range(0, data.n, step):
        end = min(begin + step, data.n)
        yield data.labels[begin:end], data.probabilities[begin:end, :]


def _on_the_line(xp: Any, pairs: Array) -> Array:
    """Return pairs of probabilities divided by their sums, unless these are 1 within rounding."""
    total = xp.sum(pairs, axis=1, keepdims=True)
    return pairs / xp.where(xp.abs(total - 1) <= ROUNDING, xp.ones_like(total), total)


def _one_against_others(labels: Array, p: Array, chosen: Array) -> LabelsAndPredictions:
    """Binary problem: is the class `chosen`, shape (n,), the label? Column 1 is its probability, column 0 the others'.

    The others' probabilities are added up, since 1 - p has lost the digits of a confidence near 1.
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
    """Return sums within groups of classes; the rest of a row is that of the only group that it does not keep whole."""
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
    """Return the sums of what each row has of its classes, by the number of their group, shape (rows, n_groups)."""
    places = np.where(rows.ids >= 0, number[rows.ids], 0) + n_groups * np.arange(len(rows))[:, None]
    sums = np.bincount(places.ravel(), np.ravel(values), minlength=n_groups * len(rows))
    return sums.reshape(len(rows), n_groups)


def _partition(groups: Any) -> tuple[tuple[int, ...], ...]:
    """Return the sorted classes of each group, checked."""
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
    """Return the classes of each group, from the number of each class's group."""
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
