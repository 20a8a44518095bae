"""From what users pass to checked arrays: every check on labels and predictions, every message.

Each public metric calls `prepare` once and gets a `Classification`; nothing behind it
checks again. `_arrays` says which arrays come to the host; the checks themselves run
wherever the array lives.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _arrays
from kcalib._arrays import Array

DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class Classification:
    """Checked labels and predictions, in one array library on one device."""

    labels: Array  # int64, values 0..m-1, shape: (n,)
    probabilities: Array  # float64 or float32, shape: (n, m)
    sample_weight: Array | None  # float64, shape: (n,)
    classes: tuple[Any, ...] | None  # the labels as the user wrote them; None for 0..m-1
    input_epsilon: float  # machine epsilon of the dtype the predictions came in

    @property
    def n(self) -> int:
        return int(self.probabilities.shape[0])

    @property
    def m(self) -> int:
        return int(self.probabilities.shape[1])

    @property
    def xp(self) -> Any:
        return _arrays.namespace(self.probabilities)

    def permuted(self, seed: int) -> Classification:
        """The samples in the order of ``numpy.random.default_rng(seed).permutation(n)``."""
        order = _arrays.like(np.random.default_rng(seed).permutation(self.n), self.probabilities)
        take = self.xp.take
        return Classification(
            take(self.labels, order, axis=0),
            take(self.probabilities, order, axis=0),
            None if self.sample_weight is None else take(self.sample_weight, order, axis=0),
            self.classes,
            self.input_epsilon,
        )


def prepare(
    y_true: Any,
    y_pred: Any,
    *,
    classes: Any = None,
    from_logits: bool = False,
    sample_weight: Any = None,
    dtype: Any = None,
) -> Classification:
    """Check and normalise the arguments that all metrics share.

    Parameters
    ----------
    y_true : array_like, shape (n,), (n, 1) or one-hot (n, m)
        Labels: integers 0..m-1, booleans, or whatever `classes` lists.
    y_pred : array_like, shape (n, m), or (n,) or (n, 1) for binary problems
        Probabilities of the classes, or of the second class; logits if `from_logits`.
    classes : array_like of length m, optional
        The label of each column of `y_pred`. Default: 0..m-1; for strings and booleans the
        sorted distinct labels.
    from_logits : bool
        Apply a softmax (binary (n,): a sigmoid) to `y_pred`.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights.
    dtype : {"float64", "float32"}, optional
        Arithmetic of the pairwise sweep; float64 by default.

    Raises
    ------
    TypeError
        If an argument is not numeric or of a type that is never meant.
    ValueError
        If a value, a shape or a length is wrong; the message names it and the remedy.
    """
    target = _dtype_name(dtype)
    true = _arrays.as_array(y_true, "y_true")
    pred = _arrays.as_array(y_pred, "y_pred")
    _check_swapped(true, pred)
    pred = _check_pred_type(pred)
    epsilon = _epsilon(pred)
    probabilities = _probabilities(pred, bool(from_logits), target, epsilon)
    n, m = (int(size) for size in probabilities.shape)

    true = _check_true_shape(true, n, m)
    labels, names = _labels(true, m, classes)
    xp = _arrays.namespace(probabilities)
    if _arrays.is_host(probabilities) and not _arrays.is_host(labels):
        labels = _arrays.to_host(labels)
    if _arrays.is_host(labels):
        labels = _arrays.like(labels.astype(np.int64), probabilities)
    else:
        if _arrays.library(labels) != _arrays.library(probabilities) or (
            _arrays.device(labels) != _arrays.device(probabilities)
        ):
            raise ValueError(
                f"`y_true` is a {_arrays.library(labels)} array on {_arrays.device(labels)}, `y_pred` a "
                f"{_arrays.library(probabilities)} array on {_arrays.device(probabilities)}; bring both to one device"
            )
        labels = xp.astype(labels, xp.int64)
    weights = None if sample_weight is None else _weights(sample_weight, n, probabilities)
    return Classification(labels, probabilities, weights, names, epsilon)


def check_integer(name: str, value: Any, low: int, high: int | None = None, hint: str = "") -> int:
    """`value` as an int in [low, high]."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` is {value!r}, expected an integer") from None
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` is {value!r}, expected an integer")
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"`{name}` is {number}, expected an integer {bounds}{hint}")
    return number


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{name}` is {value!r}, expected one of {', '.join(map(repr, choices))}")
    return value


def _dtype_name(dtype: Any) -> str:
    if dtype is None:
        return "float64"
    try:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    except TypeError:
        name = str(dtype).rpartition(".")[2]  # torch.float32
    if name not in DTYPES:
        raise ValueError(f"`dtype` is {dtype!r}, expected 'float64' or 'float32'")
    return name


def _kind(array: Array) -> str:
    """One letter like NumPy's dtype.kind, for any library."""
    if _arrays.is_host(array):
        kind = array.dtype.kind
        return "U" if kind in "SUT" else kind
    xp = _arrays.namespace(array)
    for kind, name in (
        ("b", "bool"), ("i", "integral"), ("f", "real floating"), ("c", "complex floating"),
    ):  # fmt: skip
        if xp.isdtype(array.dtype, name):
            return kind
    return "O"


def _epsilon(pred: Array) -> float:
    if _kind(pred) != "f":
        return float(np.finfo(np.float64).eps)
    if _arrays.is_host(pred):
        return float(np.finfo(pred.dtype).eps)
    return float(_arrays.namespace(pred).finfo(pred.dtype).eps)


def _looks_like_labels(array: Array) -> bool:
    return _kind(array) in "iubU" and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1))


def _check_swapped(true: Array, pred: Array) -> None:
    """The order is (y_true, y_pred); say so where the two are plainly the other way round."""
    if _kind(true) != "f" or not _looks_like_labels(pred):
        return
    if true.ndim == 2 and true.shape[1] > 1:
        probable = not _is_one_hot(true)
    else:
        xp = _arrays.namespace(true)
        probable = bool(xp.any((true > 0) & (true < 1)))
    if probable:
        raise ValueError(
            "`y_true` looks like probabilities and `y_pred` like labels: the arguments are swapped; "
            "the order is (y_true, y_pred), as in scikit-learn"
        )


def _check_pred_type(pred: Array) -> Array:
    kind = _kind(pred)
    if kind == "O":
        if _arrays.is_host(pred):
            for index, value in np.ndenumerate(pred):
                if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
                    raise TypeError(
                        f"`y_pred{_at(index)}` is {value!r} ({type(value).__name__}) in an array of dtype object, "
                        "expected numbers; convert it by y_pred.astype(float)"
                    )
            return pred.astype(np.float64)
        raise TypeError(f"`y_pred` has dtype {pred.dtype}, expected floating point numbers")
    if kind == "c":
        raise TypeError("`y_pred` is complex, expected real probabilities; pass y_pred.real if that is what you mean")
    if kind == "U":
        raise TypeError("`y_pred` holds strings, expected probabilities; pass the output of predict_proba")
    if kind == "b" or (kind in "iu" and (pred.ndim == 1 or (pred.ndim == 2 and pred.shape[1] == 1))):
        raise TypeError(
            f"`y_pred` has dtype {pred.dtype} and looks like predicted labels, expected probabilities; pass the output "
            "of predict_proba, or y_pred.astype(float) if 0 and 1 are meant as probabilities"
        )
    if kind not in "iuf":
        raise TypeError(f"`y_pred` has dtype {pred.dtype}, expected floating point numbers")
    return pred


def _probabilities(pred: Array, from_logits: bool, target: str, epsilon: float) -> Array:
    if pred.ndim not in (1, 2):
        raise ValueError(
            f"`y_pred` has shape {tuple(pred.shape)}, expected (n, m) probabilities, or (n,) for a binary problem"
        )
    if pred.shape[0] == 0:
        raise ValueError("`y_pred` is empty, expected at least one prediction")
    if pred.ndim == 2 and pred.shape[1] == 0:
        raise ValueError(f"`y_pred` has shape {tuple(pred.shape)}, expected at least one column")
    xp = _arrays.namespace(pred)
    pred = _cast(xp, pred, "float64")
    if from_logits:
        pred = _softmax(xp, pred)
    binary = pred.ndim == 1 or pred.shape[1] == 1
    _reject(
        pred,
        ~xp.isfinite(pred),
        lambda at, x: f"`y_pred{at}` is {x}, expected a finite probability; drop or repair such rows first",
    )
    _reject(
        pred,
        (pred < 0) | (pred > 1 + 8 * max(epsilon, _FLOAT32_EPSILON)),
        lambda at, x: (
            f"`y_pred{at}` is {x:.9g}, expected a probability between 0 and 1; "
            "for logits pass from_logits=True, for rounding errors clip to [0, 1]"
        ),
    )
    if binary:
        second = xp.reshape(pred, (-1,))
        first = xp.where(second > 1, xp.zeros_like(second), 1 - second)
        pred = xp.stack((first, second), axis=1)
    else:
        tolerance = max(1e-6, 8 * max(epsilon, _FLOAT32_EPSILON) * math.sqrt(pred.shape[1]))
        sums = xp.sum(pred, axis=1)
        _reject(
            sums,
            xp.abs(sums - 1) > tolerance,
            lambda at, x: (
                f"`y_pred{at}` sums to {x:.6g}, expected 1 within {tolerance:.1g}; "
                "normalise the rows, or pass logits with from_logits=True"
            ),
        )
    return _cast(xp, pred, target)


_FLOAT32_EPSILON = float(np.finfo(np.float32).eps)


def _softmax(xp: Any, logits: Array) -> Array:
    """Softmax of the rows; for one column the sigmoid. -inf is a logit (probability 0)."""
    _reject(
        logits,
        xp.isnan(logits) | (logits == xp.inf),
        lambda at, x: f"`y_pred{at}` is {x}, expected a logit below infinity; drop or repair such rows first",
    )
    if logits.ndim == 1 or logits.shape[1] == 1:
        small = xp.exp(-xp.abs(logits))
        return xp.where(logits < 0, small / (1 + small), 1 / (1 + small))
    highest = xp.max(logits, axis=1, keepdims=True)
    _reject(
        highest[:, 0],
        highest[:, 0] == -xp.inf,
        lambda at, x: f"`y_pred{at}` has only logits of -inf, expected at least one finite logit a row",
    )
    powers = xp.exp(logits - highest)
    return powers / xp.sum(powers, axis=1, keepdims=True)


def _cast(xp: Any, array: Array, name: str) -> Array:
    dtype = getattr(xp, name)
    if array.dtype == dtype:
        return array
    result = array.astype(dtype) if _arrays.is_host(array) else xp.astype(array, dtype)
    if result.dtype != dtype:
        raise TypeError(
            f"{_arrays.library(array)} turned {name} into {result.dtype}; enable 64-bit floats there "
            "(JAX: jax.config.update('jax_enable_x64', True)) or pass a NumPy array"
        )
    return result


def _check_true_shape(true: Array, n: int, m: int) -> Array:
    """Labels as one axis; one-hot rows become the positions of their ones."""
    if true.ndim == 2 and true.shape[1] == 1:
        true = _arrays.namespace(true).reshape(true, (-1,))
    if true.ndim not in (1, 2):
        raise ValueError(f"`y_true` has shape {tuple(true.shape)}, expected (n,) labels or one-hot rows (n, m)")
    if true.shape[0] != n:
        raise ValueError(
            f"`y_true` has {true.shape[0]} labels, `y_pred` {n} predictions; pass one label for every prediction"
        )
    if true.ndim == 2:
        if true.shape[1] != m:
            raise ValueError(f"`y_true` has {true.shape[1]} columns, `y_pred` has {m} classes; one-hot labels need m columns")
        if _kind(true) not in "biuf":
            raise TypeError(f"`y_true` has shape {tuple(true.shape)} and dtype {true.dtype}, expected one-hot numbers")
        if not _is_one_hot(true):
            raise ValueError(
                f"`y_true` has shape {tuple(true.shape)} but its rows are not one-hot (a single 1, zeros elsewhere); "
                "pass labels of shape (n,)"
            )
        xp = _arrays.namespace(true)
        true = xp.argmax(xp.astype(true, xp.int8) if _kind(true) == "b" else true, axis=1)
    return true


def _is_one_hot(array: Array) -> bool:
    if _kind(array) not in "biuf":
        return False
    xp = _arrays.namespace(array)
    if _kind(array) == "b":
        return bool(xp.all(xp.sum(xp.astype(array, xp.int64), axis=1) == 1))
    return bool(xp.all((array == 0) | (array == 1)) and xp.all(xp.sum(array, axis=1) == 1))


def _labels(true: Array, m: int, classes: Any) -> tuple[Array, tuple[Any, ...] | None]:
    """Labels as positions 0..m-1 of `classes`."""
    kind = _kind(true)
    if kind == "c":
        raise TypeError("`y_true` is complex, expected class labels")
    if kind == "O":
        true, kind = _uniform_objects(true)
    if kind not in "biufU":
        raise TypeError(f"`y_true` has dtype {true.dtype}, expected integers, booleans or strings")
    if classes is None and kind == "U":
        found = np.unique(true)
        if len(found) != m:
            raise ValueError(
                f"`y_true` holds {len(found)} distinct strings, `y_pred` has {m} classes; "
                "pass classes= with the label of each column"
            )
        classes = found
    if classes is not None:
        return _positions(true, kind, np.asarray(_arrays.to_host(_arrays.as_array(classes, "classes"))), m)

    xp = _arrays.namespace(true)
    if kind == "b":
        if m != 2:
            raise ValueError(f"`y_true` is boolean, `y_pred` has {m} classes; pass integer labels or classes=")
        return xp.astype(true, xp.int64), None
    if kind == "f":
        _reject(
            true,
            ~xp.isfinite(true),
            lambda at, x: f"`y_true{at}` is {x}, expected a class label; drop such rows first",
        )
        _reject(
            true,
            xp.floor(true) != true,
            lambda at, x: (
                f"`y_true{at}` is {x:.6g}, expected a class label 0..{m - 1}; "
                "if these are probabilities, the arguments are swapped: the order is (y_true, y_pred)"
            ),
        )
    lowest, highest = int(xp.min(true)), int(xp.max(true))
    if lowest < 0 or highest >= m:
        remedy = f"pass classes= with the label of each of the {m} columns of `y_pred`"
        if lowest == 1 and highest == m:
            remedy = f"the labels look like 1..{m}: subtract 1, or pass classes=range(1, {m + 1})"
        elif lowest == -1 and highest == 1 and m == 2:
            remedy = "for labels -1 and 1 pass classes=[-1, 1]"
        _reject(
            true,
            (true < 0) | (true >= m),
            lambda at, x: f"`y_true{at}` is {int(x)}, expected a label 0..{m - 1}; {remedy}",
        )
    return true, None


def _uniform_objects(true: Array) -> tuple[np.ndarray, str]:
    """An object array whose entries are all strings, or all integers or booleans."""
    for index, value in np.ndenumerate(true):
        if value is None or value != value:
            raise ValueError(f"`y_true{_at(index)}` is missing, expected a class label; drop such rows first")
        if not isinstance(value, (str, bool, int, np.bool_, np.integer)):
            raise TypeError(
                f"`y_true{_at(index)}` is {value!r} ({type(value).__name__}) in an array of dtype object, "
                "expected strings or integers"
            )
    kinds = {isinstance(value, str) for value in true.flat}
    if len(kinds) > 1:
        raise TypeError("`y_true` mixes strings and numbers, expected labels of one type")
    true = np.asarray(true.tolist())
    return true, "U" if kinds == {True} else true.dtype.kind


def _positions(true: Array, kind: str, names: np.ndarray, m: int) -> tuple[np.ndarray, tuple[Any, ...]]:
    if names.ndim != 1 or len(names) != m:
        raise ValueError(f"`classes` has shape {names.shape}, expected ({m},): the label of each column of `y_pred`")
    if len(np.unique(names)) != m:
        raise ValueError("`classes` names a label twice, expected distinct labels")
    if (names.dtype.kind in "SUTO") != (kind == "U"):
        raise TypeError(f"`classes` holds {names.dtype} and `y_true` {true.dtype}, expected labels of one type")
    host = _arrays.to_host(true)
    order = np.argsort(names)
    found = np.minimum(np.searchsorted(names[order], host), m - 1)
    wrong = names[order][found] != host
    _reject(host, wrong, lambda at, x: f"`y_true{at}` is {x!s}, which is not among classes={names.tolist()}")
    return order[found].astype(np.int64), tuple(names.tolist())


def _weights(sample_weight: Any, n: int, reference: Array) -> Array:
    weights = _arrays.as_array(sample_weight, "sample_weight")
    if _kind(weights) not in "biuf":
        raise TypeError(f"`sample_weight` has dtype {weights.dtype}, expected numbers")
    if tuple(weights.shape) != (n,):
        raise ValueError(f"`sample_weight` has shape {tuple(weights.shape)}, expected ({n},): one weight a sample")
    if _arrays.is_host(weights):
        weights = _arrays.like(weights.astype(np.float64), reference)
    elif _arrays.is_host(reference):
        weights = _arrays.to_host(weights)
    xp = _arrays.namespace(weights, reference)
    weights = _cast(xp, weights, "float64")
    _reject(
        weights,
        ~(xp.isfinite(weights) & (weights >= 0)),
        lambda at, x: f"`sample_weight{at}` is {x}, expected a finite weight >= 0",
    )
    if float(xp.sum(weights)) == 0:
        raise ValueError("`sample_weight` sums to 0, expected at least one positive weight")
    return weights


def _reject(array: Array, bad: Array, message: Any) -> None:
    """Raise for the first entry where `bad` holds."""
    xp = _arrays.namespace(array)
    if not bool(xp.any(bad)):
        return
    flat = int(xp.argmax(xp.astype(xp.reshape(bad, (-1,)), xp.int8)))
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(array.shape)))
    value = array[index]
    raise ValueError(message(_at(index), value if _kind(array) == "U" else float(value)))


def _at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(str(i) for i in index)}]"
