"""Public functions on adversarial arrays: what comes back is finite, or an error in a sentence; what must agree does.

    python -P tests/support/campaign.py CASES SEED

A case is a few choices (of sizes, predictions, labels, weights, containers, one thing that is wrong) and a function of
`CALLS`; a property in `PROPERTIES` says what must hold for it. `tests/test_properties.py` draws few of them by
hypothesis, always the same; here they are as many as CASES says. A case that breaks its property is shrunk and raises.

Errors are of the types `CLEAR` (and their subclasses), have a text of one line, and no warning of NumPy's comes before.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # as pytest has it

import hypothesis
import numpy as np
import oracle
from hypothesis import strategies as st
from problems import saturated_predictions

import kcalib
from kcalib import distributions as D
from kcalib import lenses, methods, regression
from kcalib.kernels import Exponential, Gaussian
from kcalib.recalibration import TemperatureScaling
from kcalib.streaming import CalibrationState, ComparisonState, ForecastState, GroupedState

CLEAR = (TypeError, ValueError, MemoryError)
KERNEL = Exponential(bandwidth=0.5)
BANDWIDTH = 0.05  # of kernel densities

# --- Predictions: functions of a generator, n and m, of probabilities whose rows sum to 1.


def _rows(p: np.ndarray) -> np.ndarray:
    return p / p.sum(axis=1, keepdims=True)


def _soft(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return rng.dirichlet(np.ones(m), size=n)


def _one_hot(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return np.eye(m)[rng.integers(m, size=n)]


def _rounded(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    counts = rng.multinomial(10, np.full(m, 1 / m), size=n)
    return counts / 10


def _tied(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return _soft(rng, 3, m)[rng.integers(3, size=n)]


def _identical(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return np.tile(_soft(rng, 1, m), (n, 1))


def _uniform(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return np.full((n, m), 1 / m)


def _rare(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return _rows(np.concatenate([np.ones((n, 1)), rng.beta(0.1, 100, size=(n, m - 1))], axis=1))


def _tiny(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return _rows(10.0 ** rng.uniform(-320, 0, size=(n, m)) + np.eye(m)[rng.integers(m, size=n)])


PREDICTIONS = {f.__name__[1:]: f for f in (_soft, _one_hot, _rounded, _tied, _identical, _uniform, _rare, _tiny)}
PREDICTIONS["saturated"] = saturated_predictions
WRONG_PROBABILITIES = (
    np.nan, np.inf, -np.inf, -1e-3, 1 + 1e-3, 1 + 1e-7, 2.0, 1e160, 1e300, -1e-300, -0.0, 5e-324, 1e-310,
)  # fmt: skip
NAMES = np.array(["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"])

# Containers of the same numbers: what a call says must not depend on which one it is.


def _offset(a: np.ndarray) -> np.ndarray:
    """At an address that is no multiple of the size of a number."""
    return np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape)


def _strided(a: np.ndarray) -> np.ndarray:
    wide = np.zeros((2 * len(a), *a.shape[1:]), a.dtype)
    wide[::2] = a
    return wide[::2]


def _read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


SAME: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda a: a,
    "Fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": lambda a: a[::-1].copy()[::-1],
    "read-only": _read_only,
    "unaligned": _offset,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "list": lambda a: a.tolist(),
    "tuple": lambda a: tuple(map(tuple, a.tolist())) if a.ndim > 1 else tuple(a.tolist()),
    "longdouble": lambda a: a.astype(np.longdouble) if a.dtype.kind == "f" else a.astype(np.int16),
    "masked, nothing is": lambda a: np.ma.masked_array(a, mask=np.zeros(a.shape, bool)),
    "memoryview": lambda a: memoryview(np.ascontiguousarray(a)),
    "objects": lambda a: a.astype(object),
}
# Containers that are to be refused, or read, as they like.
ODD: dict[str, Callable[[np.ndarray], Any]] = {
    "strings": lambda a: a.astype(str),
    "bytes": lambda a: a.astype("S"),
    "complex": lambda a: a.astype(complex),
    "masked": lambda a: np.ma.masked_array(a, mask=np.arange(a.size).reshape(a.shape) == 0),
    "transposed": lambda a: a.T,
    "a dimension more": lambda a: a[None],
    "float16": lambda a: a.astype(np.float16),
    "datetime": lambda a: np.zeros(a.shape, "M8[s]"),
    "None": lambda a: None,
    "a number": lambda a: 0.5,
    "text": lambda a: "0.5",
    "dict": lambda a: {"p": a},
    "set": lambda a: set(a.ravel().tolist()),
    "ragged": lambda a: [*a.tolist(), [0.5]],
    "generator": lambda a: (x for x in a),
    "structured": lambda a: np.zeros(len(a), [("p", "f8"), ("q", "f8")]),
    "class": lambda a: np.ndarray,
    "objects and None": lambda a: np.where(np.arange(a.size).reshape(a.shape) == 0, None, a.astype(object)),
}
LABELS: dict[str, Callable[[np.ndarray], Any]] = {
    **SAME,
    **ODD,
    "int8": lambda y: y.astype(np.int8),
    "uint64": lambda y: y.astype(np.uint64),
    "floats": lambda y: y.astype(float),
    "column": lambda y: y[:, None],
    "booleans": lambda y: y.astype(bool),
    "names": lambda y: NAMES[y % len(NAMES)],
    "beyond": lambda y: y + 7,
    "negative": lambda y: y - 1,
    "halves": lambda y: y + 0.5,
    "huge": lambda y: y + 2**62,
    "huge, unsigned": lambda y: y.astype(np.uint64) + np.uint64(2**63),
    "NaN": lambda y: np.where(np.arange(len(y)) == 0, np.nan, y),
    "one more": lambda y: np.append(y, 0),
    "one fewer": lambda y: y[:-1],
}
WEIGHTS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "none": lambda rng, n: None,
    "ones": lambda rng, n: np.ones(n),
    "uniform": lambda rng, n: rng.uniform(size=n),
    "some zero": lambda rng, n: rng.integers(2, size=n).astype(float),
    "zeros": lambda rng, n: np.zeros(n),
    "whole numbers": lambda rng, n: rng.integers(1, 5, size=n),
    "float32": lambda rng, n: rng.uniform(size=n).astype(np.float32),
    "unaligned": lambda rng, n: _offset(rng.uniform(size=n)),
    "of many sizes": lambda rng, n: 10.0 ** rng.uniform(-150, 150, size=n),
    "tiny": lambda rng, n: np.full(n, 5e-324),
    "huge": lambda rng, n: np.full(n, 1e308),
    "negative": lambda rng, n: rng.normal(size=n),
    "NaN": lambda rng, n: np.full(n, np.nan),
    "infinite": lambda rng, n: np.full(n, np.inf),
    "one more": lambda rng, n: np.ones(n + 1),
    "strings": lambda rng, n: np.full(n, "1"),
    "booleans": lambda rng, n: rng.integers(2, size=n).astype(bool),
    "masked": lambda rng, n: np.ma.masked_array(np.ones(n), mask=np.arange(n) == 0),
    "matrix": lambda rng, n: np.ones((n, 2)),
}

# --- The calls: of labels, predictions and options that are shared.


SMALL = {"n_columns": 16, "n_bins": 4, "kernel": KERNEL}  # of states


def _classes_of(p: Any) -> int:
    return np.shape(p)[1] if np.ndim(p) == 2 else 2


def _state(y: Any, p: Any, **options: Any) -> Any:
    state = CalibrationState(_classes_of(p), n_resamples=2, threads=options.pop("threads", None), **SMALL)
    state.update(y, p, **options)
    return state.calibration_test() if state.n_samples > 1 else state.scores()


def _paired_state(y: Any, p: Any, **options: Any) -> Any:
    state = ComparisonState(_classes_of(p), models=("a", "b"), n_resamples=0, **SMALL)
    return state.update(y, {"a": p, "b": p}, **options).result("brier_score")


def _grouped_state(y: Any, p: Any, **options: Any) -> Any:
    state = GroupedState(_classes_of(p), n_resamples=0, **SMALL)
    state.update(y, p, group=["one"] * len(np.asarray(y)), **options)
    return state.groups["one"].scores() if state.n_samples else state.n_samples


def _fitted(function: Any) -> Callable[..., Any]:
    def call(y: Any, p: Any, **options: Any) -> Any:
        fitted = function.fit(y, p, **options)
        given = {name: value for name, value in options.items() if name == "from_logits"}
        return fitted.h(p, **given), fitted.squared_error(p, **given)

    return call


def _quick(method: Any, **more: Any) -> Callable[..., Any]:
    return lambda y, p, **o: kcalib.calibration_test(y, p, method=method, seed=0, **more, **o)


def _scaling(y: Any, p: Any, **options: Any) -> Any:
    scaling = TemperatureScaling().fit(y, p, **options)
    return scaling.temperature_, scaling.transform(p)


WEIGHTED = {  # functions that take `sample_weight`
    "skce": lambda y, p, **o: kcalib.skce.result(y, p, **o),
    "skce, biased": lambda y, p, **o: kcalib.skce(y, p, estimator="biased", kernel=Gaussian(0.3), **o),
    "top_label_ece": lambda y, p, **o: kcalib.top_label_ece.result(y, p, **o),
    "top_label_ece, equal mass": lambda y, p, **o: kcalib.top_label_ece(y, p, binning="equal_mass", n_bins=3, **o),
    "class_wise_ece": lambda y, p, **o: kcalib.class_wise_ece.result(y, p, norm="l2", **o),
    "canonical_ece": lambda y, p, **o: kcalib.canonical_ece(y, p, n_bins=3, **o),
    "canonical_ece, median variance": lambda y, p, **o: kcalib.canonical_ece(y, p, binning="median_variance", **o),
    "mmce": lambda y, p, **o: kcalib.mmce.result(y, p, **o),
    "brier_score": kcalib.brier_score,
    "log_loss": kcalib.log_loss,
    "brier_decomposition": kcalib.brier_decomposition,
    "reliability": lambda y, p, **o: kcalib.reliability(y, p, **o),
}
UNWEIGHTED = {
    "skce, block": lambda y, p, **o: kcalib.skce(y, p, estimator="block", kernel=KERNEL, **o),
    "skce, linear": lambda y, p, **o: kcalib.skce(y, p, estimator="linear", kernel=KERNEL, **o),
    "skce, features": lambda y, p, **o: kcalib.skce(
        y, p, estimator=kcalib.methods.FeatureEstimator(n_columns=16, seed=0), kernel=KERNEL, **o
    ),
    "skce, top label": lambda y, p, **o: kcalib.skce(y, p, lens=lenses.TopLabel(), **o),
    "ckce": lambda y, p, **o: kcalib.ckce.result(y, p, **o),
    "jkce": lambda y, p, **o: kcalib.jkce.result(y, p, **o),
    "ucme": lambda y, p, **o: kcalib.ucme.result(y, p, locations=3, **o),
    "debiased_ece": lambda y, p, **o: kcalib.debiased_ece(y, p, n_bins=3, **o),
    "kde_calibration_error": lambda y, p, **o: kcalib.kde_calibration_error.result(y, p, bandwidth=BANDWIDTH, **o),
    "test, exact": _quick(methods.Exact(n_resamples=19), kernel=KERNEL),
    "test, gamma": _quick("gamma"),
    "test, spectrum": _quick("spectrum", kernel=KERNEL),
    "test, block": _quick(methods.Block(block_size=4)),
    "test, features": _quick(methods.Features(n_columns=16, n_resamples=19)),
    "test, cme": _quick(methods.CME(locations=2, n_resamples=19)),
    "test, distribution free": _quick("distribution_free"),
    "evaluate": lambda y, p, **o: kcalib.evaluate(y, p, method="gamma", **o),
    "compare": lambda y, p, **o: kcalib.compare(y, {"a": p, "b": p}, metric="brier_score", **o),
    "compare, skce": lambda y, p, **o: kcalib.compare(
        y, {"a": p, "b": p}, metric=kcalib.methods.SKCE(kernel=KERNEL), **o
    ),
    "state": _state,
    "state, paired": _paired_state,
    "state, groups": _grouped_state,
    "squared_calibration_error": lambda y, p, **o: kcalib.squared_calibration_error(
        y, p, **{"lens": lenses.TopLabel(), "estimators": [regression.BinnedCalibration(3)], "n_folds": 2, **o}
    ),
    "KKR": _fitted(regression.KKR(0.1, kernel=KERNEL)),
    "UKKR": _fitted(regression.UKKR(0.1, kernel=KERNEL)),
    "BinnedCalibration": _fitted(regression.BinnedCalibration(3)),
    "DirichletKDE": _fitted(regression.DirichletKDE(0.1)),
    "smallest_eigenvalue": lambda y, p, **o: kcalib.smallest_eigenvalue(p, KERNEL, **o),
}
SCALING = {"temperature scaling": _scaling}
CALLS: dict[str, Callable[..., Any]] = {**WEIGHTED, **UNWEIGHTED, **SCALING}
# Estimates that no order of the samples changes, and those that no order of the classes changes either.
OF_ANY_ORDER = (
    "skce", "skce, biased", "top_label_ece", "class_wise_ece", "canonical_ece", "mmce", "brier_score", "log_loss",
    "ckce", "jkce", "kde_calibration_error", "skce, top label", "test, gamma",
)  # fmt: skip
OF_ANY_CLASSES = (
    "skce", "skce, biased", "class_wise_ece", "brier_score", "log_loss", "ckce", "jkce", "kde_calibration_error",
)  # fmt: skip
# Their log losses end where the dtype of the predictions does.
OF_THE_EPSILON = ("log_loss", "evaluate", "state", "state, groups")
WITH_THREADS = (
    "skce", "skce, biased", "skce, block", "skce, features", "ckce", "jkce", "ucme", "test, exact", "test, gamma",
    "test, features", "class_wise_ece", "mmce", "canonical_ece", "kde_calibration_error", "state",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is asked, as a few choices from which all arrays follow."""

    call: str
    seed: int
    n: int
    m: int
    prediction: str
    binary: bool = False  # m = 2: the probability of the second class alone
    labels: str = "array"
    container: str = "array"
    weights: str = "none"
    float32: bool = False
    wrong: float | None = None  # in the place of one number
    logits: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and probabilities, with nothing wrong but `wrong`."""
        rng = np.random.default_rng(self.seed)
        p = PREDICTIONS[self.prediction](rng, self.n, self.m)
        y = rng.integers(self.m, size=self.n)
        if self.float32:
            p = p.astype(np.float32)
        if self.binary and self.m == 2:
            p = p[:, 1].copy()
        if self.logits:
            with np.errstate(divide="ignore"):
                p = np.log(p)
        if self.wrong is not None and p.size:
            with np.errstate(over="ignore"):
                p.flat[self.seed % p.size] = self.wrong
        return y, p

    def ask(self, y: Any, p: Any, **more: Any) -> Any:
        options = {**dict(self.options), **more}
        if self.logits:
            options["from_logits"] = True
        if self.weights != "none":
            options["sample_weight"] = WEIGHTS[self.weights](np.random.default_rng(self.seed), self.n)
        return CALLS[self.call](y, p, **options)


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call does: "finite" and its numbers, or the name of the clear error and its text."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("error")
        for category in (UserWarning, FutureWarning):  # of kcalib, and of libraries that say what is odd
            warnings.simplefilter("ignore", category)
        try:
            found = call()
        except CLEAR as error:
            found = error
    if not isinstance(found, CLEAR):
        return "finite", found
    assert len(str(found)) > 10 and "\n" not in str(found).strip(), f"no sentence: {found!r}"
    return next(kind.__name__ for kind in CLEAR if isinstance(found, kind)), str(found)


MAY_BE_INFINITE = {"low", "high", "statistic", "log_pvalue", "bin_edges", "edges", "lower", "upper"}


def numbers(found: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in a result, with the names of their fields."""
    if isinstance(found, (bool, str, type(None), np.bool_)):
        return
    if isinstance(found, (int, float, np.number)):
        yield name, float(found)
    elif isinstance(found, np.ndarray):
        if found.dtype.kind in "biuf":
            yield from ((name, float(x)) for x in found.ravel())
    elif dataclasses.is_dataclass(found) and not isinstance(found, type):
        for field in dataclasses.fields(found):
            yield from numbers(getattr(found, field.name), field.name)
    elif hasattr(found, "_asdict"):
        yield from numbers(found._asdict(), name)
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from numbers(value, str(key))
    elif isinstance(found, (list, tuple)):
        for value in found:
            yield from numbers(value, name)


def assert_finite(found: Any, infinite: bool = False, undefined: bool = False) -> None:
    for name, x in numbers(found):
        assert not math.isnan(x) or undefined, f"`{name}` is nan"
        assert not math.isinf(x) or name in MAY_BE_INFINITE or infinite, f"`{name}` is {x}"
        if name == "pvalue":
            assert 0 <= x <= 1, x


def value_of(found: Any) -> float:
    """The number that a result is about."""
    for name in ("value", "estimate", "statistic"):
        if hasattr(found, name):
            return float(getattr(found, name))
    return float(found)


def told(found: Any) -> list[tuple[str, float]]:
    """The numbers of a result but those that say how long it took, and with what."""
    return [(name, x) for name, x in numbers(found) if name not in ("seconds", "threads") and not math.isnan(x)]


# --- Properties: each returns the outcome that is counted.


def finite_or_clear(case: Case) -> str:
    """Whatever comes: numbers, or an error in a sentence; and the arrays are as they were."""
    y, p = case.data()
    with np.errstate(all="ignore"):
        y, p = LABELS[case.labels](y), {**SAME, **ODD}[case.container](p)
    before = [np.array(a, copy=True) if isinstance(a, np.ndarray) else None for a in (y, p)]
    kind, found = outcome(lambda: case.ask(y, p))
    if kind == "finite":
        assert_finite(found, undefined=case.call == "reliability")  # bins without samples
    for array, copy in zip((y, p), before, strict=True):
        assert copy is None or np.asarray(array).tobytes() == copy.tobytes(), "an array was changed"
    return kind


def same_for_every_container(case: Case) -> str:
    """The same numbers in another container: the same bits, or no answer at all."""
    y, p = case.data()
    kind, found = outcome(lambda: case.ask(y, p))
    other, again = outcome(lambda: case.ask(LABELS[case.labels](y), SAME[case.container](p)))
    if kind != "finite":
        assert other != "finite", f"an answer where an array has none: {found}"
        return kind
    if other == "finite" and not (case.container == "longdouble" and case.call in OF_THE_EPSILON):
        assert told(found) == told(again)
    return other


def _near(one: Any, other: Any, scale: float = 1.0, accuracy: float = 1e-9) -> None:
    one, other = value_of(one), value_of(other)
    assert abs(one - other) <= accuracy * max(scale, abs(one)), (one, other)


def any_order_of_samples(case: Case) -> str:
    y, p = case.data()
    order = np.random.default_rng(case.seed + 1).permutation(case.n)
    kind, found = outcome(lambda: case.ask(y, p))
    other, again = outcome(lambda: case.ask(y[order], p[order]))
    assert kind == other, (kind, other, found, again)
    if kind == "finite":
        # A root of what rounding leaves of 0.
        _near(found, again, 1e-3, 1e-4 if case.call == "mmce" else 1e-8)
    return kind


def any_order_of_classes(case: Case) -> str:
    y, p = case.data()
    order = np.random.default_rng(case.seed + 1).permutation(case.m)
    place = np.argsort(order)
    # A bandwidth that comes from differences of 1e-12 has the digits that the other column leaves of them.
    more = {"kernel": KERNEL} if case.call in ("skce", "ckce", "jkce") else {}
    kind, found = outcome(lambda: case.ask(y, p, **more))
    other, again = outcome(lambda: case.ask(place[y], p[:, order], **more))
    assert kind == other, (kind, other, found, again)
    if kind == "finite":
        _near(found, again, 1e-3, 1e-8)
    return kind


def any_number_of_threads(case: Case) -> str:
    y, p = case.data()
    kind, found = outcome(lambda: case.ask(y, p, threads=1))
    other, again = outcome(lambda: case.ask(y, p, threads=3))
    assert kind == other
    if kind == "finite":
        assert told(found) == told(again)
    return kind


def float32_is_what_it_holds(case: Case) -> str:
    """Predictions in float32 are those numbers; sums of rows may be off by as much as float32 has it.

    Kernel densities have exponents <p / b, -log q>, with normalisers that change by log(1 / b + m) / b for each unit
    of p: where a row is off by a share, so are they, and by twice that the ratio of two weights.
    """
    case = dataclasses.replace(case, float32=True)
    y, p = case.data()
    wide = _rows(p.astype(float))
    accuracy = 1e-5
    if case.call == "kde_calibration_error":
        off = float(np.abs(p.sum(axis=1, dtype=float) - 1).max(initial=0.0))
        information = -math.log(max(float(p.min(initial=1.0)), 2.0**-1022))
        accuracy += 4 * off * (information + math.log(1 / BANDWIDTH + case.m) + 2) / BANDWIDTH
    kind, found = outcome(lambda: case.ask(y, p))
    other, again = outcome(lambda: case.ask(y, wide))
    if kind == other == "finite" and case.call in ("skce, biased", "brier_score", "mmce", "kde_calibration_error"):
        _near(found, again, 1.0, accuracy)
    return kind


def in_extended_precision(case: Case) -> str:
    """Against definitions in extended precision."""
    y, p = case.data()
    n = len(y)
    long = p.astype(np.longdouble)
    e = np.eye(case.m, dtype=np.longdouble)[y] - long
    assert float(kcalib.brier_score(y, p, scale_by_half=False)) == _about(np.mean(np.sum(e**2, axis=1)))
    if (p[np.arange(n), y] > 1e-15).all():
        assert kcalib.log_loss(y, p) == _about(np.mean(-np.log(long[np.arange(n), y])), 1e-14)
    h = oracle.h_matrix(KERNEL, y, p)
    scale = float(np.mean(np.abs(h))) + 1e-7  # and the oracle adds up numbers of size 1
    assert abs(kcalib.skce(y, p, kernel=KERNEL, estimator="biased") - oracle.biased(h)) <= 1e-11 * scale
    if n > 1:
        found = kcalib.skce(y, p, kernel=KERNEL)
        assert abs(found - oracle.unbiased(h)) <= 1e-11 * n / (n - 1) * scale
    top = p.argmax(axis=1)
    place = np.clip(np.ceil(p.max(axis=1) * 5).astype(int) - 1, 0, 4)  # bins of (a, b]
    hit, sure = (top == y).astype(np.longdouble), long[np.arange(n), top]
    if not np.isclose(p.max(axis=1) * 5, np.round(p.max(axis=1) * 5)).any():
        gaps = [abs(np.sum((hit - sure)[place == b])) for b in range(5)]
        assert abs(kcalib.top_label_ece(y, p, n_bins=5) - float(sum(gaps) / n)) <= 1e-13
    return "finite"


@dataclass(frozen=True)
class _About:
    expected: float
    accuracy: float

    def __eq__(self, found: object) -> bool:
        return abs(float(found) - self.expected) <= self.accuracy * abs(self.expected) + 1e-300  # type: ignore[arg-type]


def _about(expected: Any, accuracy: float = 1e-13) -> _About:
    return _About(float(expected), accuracy)


def in_any_pieces(case: Case) -> str:
    """States: any chunks, any order of merging, the same bits; and what is in memory has the same scores."""
    y, p = case.data()
    w = WEIGHTS[case.weights](np.random.default_rng(case.seed), case.n)
    rng = np.random.default_rng(case.seed)

    def new(part: int) -> CalibrationState:
        return CalibrationState(case.m, n_resamples=3, part=part, **SMALL)

    def rows(begin: int, end: int) -> tuple[Any, ...]:
        return y[begin:end], p[begin:end], None if w is None else w[begin:end]

    whole = new(0)
    kind, _ = outcome(lambda: whole.update(y, p, w))
    if kind != "finite":
        return kind
    pieces, cut = new(0), 0
    while cut < case.n:
        step = int(rng.integers(1, case.n + 1))
        pieces.update(*rows(cut, cut + step))
        cut += step
    assert pieces.to_bytes() == whole.to_bytes()
    half = case.n // 2
    one, other = new(0), new(1)
    if half:
        one.update(*rows(0, half))
    other.update(*rows(half, case.n))
    assert (one + other).to_bytes() == (other + one).to_bytes()
    assert CalibrationState.from_bytes(whole.to_bytes()).to_bytes() == whole.to_bytes()
    kind, expected = outcome(lambda: kcalib.brier_score(y, p, sample_weight=w))
    other, scores = outcome(whole.scores)
    if kind == other == "finite":  # of terms in units of 2^-80
        mean = 1.0 if w is None else float(np.mean(w, dtype=float))
        assert abs(scores.brier_score.value - expected) <= 1e-12 * expected + 2.0**-79 * (1 + 1 / mean)
    if other == "finite":
        assert_finite(scores)
    return other


DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "normal": lambda a, b: D.Normal(a, b),
    "laplace": lambda a, b: D.Laplace(a, b),
    "poisson": lambda a, b: D.Poisson(b),
    "negative binomial": lambda a, b: D.NegativeBinomial(b, np.abs(a) + 0.1),
    "student t": lambda a, b: D.StudentT(1 + b, a, b),
    "gamma": lambda a, b: D.Gamma(b, np.abs(a) + 0.1),
    "beta": lambda a, b: D.Beta(b, np.abs(a) + 0.1),
    "quantiles": lambda a, b: D.Quantiles([0.1, 0.5, 0.9], np.stack([a - b, a, a + b], axis=1)),
    "samples": lambda a, b: D.Samples(np.stack([a, a + b, a - b], axis=1)),
    "mixture": lambda a, b: D.Mixture([0.25, 0.75], [D.Normal(a, b), D.Normal(b, b)]),
    "power exponential": lambda a, b: D.PowerExponential(a, b, np.full(np.shape(a), 1.5)),
}
OF_DISTRIBUTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "crps": kcalib.crps,
    "log_score": kcalib.log_score,
    "pinball_loss": lambda y, q: kcalib.pinball_loss(y, q, levels=(0.1, 0.5, 0.9)),
    "pit_values": kcalib.pit_values,
    "quantile_calibration": kcalib.quantile_calibration,
    "skce": lambda y, q: kcalib.skce(y, q, kernel=Exponential(metric="mmd"), target_kernel=Gaussian(1.0)),
    "skce, features": lambda y, q: kcalib.skce(y, q, estimator=kcalib.methods.FeatureEstimator(n_columns=16, seed=0)),
    "state": lambda y, q: ForecastState(n_columns=16, n_bins=3).update(y, q).quantile_calibration(),
    "test": lambda y, q: kcalib.calibration_test(y, q, method="gamma"),
}
QUICK = ("crps", "log_score", "pinball_loss", "pit_values", "quantile_calibration")  # others take 100 times as long
SCALES = (1.0, 1.0, 1e-3, 1e3, 1e-12, 1e12, 1e-150, 1e150, 0.0)
WRONG_PARAMETERS = (None, None, None, np.nan, np.inf, -1.0, 0.0, 1e308, 5e-324)


def of_distributions(case: Case) -> str:
    """Predicted distributions of any location and scale, with one parameter or target that is wrong."""
    rng = np.random.default_rng(case.seed)
    options = dict(case.options)
    location = rng.normal(size=case.n) * options["location"]
    scale = np.abs(rng.normal(size=case.n)) * options["scale"]
    y = location + scale * rng.normal(size=case.n)
    if case.labels in ("poisson", "negative binomial"):
        y = np.round(np.abs(y))
    if case.labels == "beta":
        y = rng.uniform(size=case.n)
    if case.wrong is not None and case.n:
        (location, scale, y)[case.seed % 3][case.seed % case.n] = case.wrong

    kind, found = outcome(lambda: OF_DISTRIBUTIONS[case.call](y, DISTRIBUTIONS[case.labels](location, scale)))
    if kind == "finite":
        assert_finite(found, infinite=case.call == "log_score")  # densities are where a target is on the border
    return kind


# --- How cases are drawn.

SIZES = (1, 2, 3, 4, 5, 8, 20, 50)
COMMON = {"seed": st.integers(0, 2**32 - 1), "n": st.sampled_from(SIZES), "m": st.sampled_from((2, 3, 5, 10))}
VALID = COMMON | {"prediction": st.sampled_from(sorted(PREDICTIONS))}


def _with_weights(case: Case, weights: str) -> Case:
    return dataclasses.replace(case, weights=weights) if case.call in WEIGHTED else case


ANYTHING = st.builds(
    _with_weights,
    st.builds(
        Case,
        call=st.sampled_from(sorted(CALLS)),
        **{**VALID, "n": st.sampled_from((0, *SIZES))},
        binary=st.booleans(),
        labels=st.one_of(st.just("array"), st.sampled_from(sorted(SAME)), st.sampled_from(sorted(LABELS))),
        container=st.one_of(*[st.sampled_from(sorted(SAME))] * 2, st.sampled_from(sorted({**SAME, **ODD}))),
        float32=st.booleans(),
        wrong=st.one_of(st.none(), st.none(), st.sampled_from(WRONG_PROBABILITIES)),
        logits=st.sampled_from((False, False, False, True)),
        options=st.one_of(
            st.just(()),
            st.sampled_from(
                [
                    *((("n_bins", k),) for k in (0, 1, 2, 3.0, -1, True, 10**9, "x", None)),
                    *((("threads", k),) for k in (0, 1, 2, -1, 1.5, "x", 2**31, 2**70, True)),
                    *((("dtype", k),) for k in ("float32", "float16", np.float32, int, 5)),
                    *(
                        (("classes", k),)
                        for k in ([0, 1], ["a", "b", "c"], [1, 1, 1], 3, "ab", [None] * 2, [0.5, np.nan])
                    ),
                    *((("kernel", k),) for k in (Gaussian(1e-15), Exponential(1e15), "x", 3, kcalib.kernels.Linear())),
                    *(
                        (("lens", k),)
                        for k in (lenses.TopLabel(), lenses.ClassWise(1), lenses.TopK(2), "x", lenses.TopLabel)
                    ),
                    *((("seed", k),) for k in (0, -1, 2**64, 0.5, None, "x")),
                ]
            ),
        ),
    ),
    st.one_of(st.just("none"), st.sampled_from(sorted(WEIGHTS))),
)
FORECASTS = st.builds(
    Case,
    call=st.sampled_from([*sorted(OF_DISTRIBUTIONS), *QUICK * 3]),
    **{**COMMON, "n": st.sampled_from((0, 1, 2, 3, 5, 12)), "m": st.just(2)},
    prediction=st.just("soft"),
    labels=st.sampled_from(sorted(DISTRIBUTIONS)),
    wrong=st.sampled_from(WRONG_PARAMETERS),
    options=st.builds(
        lambda location, scale: (("location", location), ("scale", scale)),
        st.sampled_from(SCALES),
        st.sampled_from(SCALES),
    ),
)


def _valid(calls: Any, **more: Any) -> st.SearchStrategy[Case]:
    return st.builds(Case, call=st.sampled_from(sorted(calls)), **{**VALID, **more})


ROUNDED_TO_FLOATS = st.sampled_from(sorted(set(PREDICTIONS) - {"tiny"}))
OF_STATES = (
    "none", "none", "uniform", "some zero", "whole numbers", "float32", "unaligned", "booleans", "of many sizes",
)  # fmt: skip
NUMBERS = ("int8", "uint64", "floats")  # of labels
# Each with its share of the cases of a campaign.
PROPERTIES: dict[str, tuple[Callable[[Case], str], st.SearchStrategy[Case], int]] = {
    "finite or clear": (finite_or_clear, ANYTHING, 8),
    "of distributions": (of_distributions, FORECASTS, 3),
    "containers": (
        same_for_every_container,
        _valid(CALLS, container=st.sampled_from(sorted(SAME)), labels=st.sampled_from(sorted([*SAME, *NUMBERS]))),
        3,
    ),
    "samples": (any_order_of_samples, _valid(OF_ANY_ORDER), 2),
    # Of two classes the second is the place on a line, in whose digits differences below 1e-16 may lie.
    "classes": (any_order_of_classes, _valid(OF_ANY_CLASSES, prediction=ROUNDED_TO_FLOATS), 2),
    "threads": (any_number_of_threads, _valid(WITH_THREADS), 1),
    "float32": (float32_is_what_it_holds, _valid(CALLS), 1),
    "extended precision": (in_extended_precision, _valid(["skce"], prediction=ROUNDED_TO_FLOATS), 1),
    "pieces": (in_any_pieces, _valid(["state"], weights=st.sampled_from(OF_STATES)), 1),
}  # fmt: skip


def search(name: str, count: int, seed: int | None = None) -> collections.Counter[str]:
    """Outcomes of so many cases of a property; a case that breaks it raises, shrunk. Without a seed always the same."""
    check, cases, _ = PROPERTIES[name]
    outcomes: collections.Counter[str] = collections.Counter()

    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=seed is None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases)
    def body(case: Case) -> None:
        outcomes[check(case)] += 1

    (body if seed is None else hypothesis.seed(seed)(body))()
    return outcomes


def main() -> None:
    cases, seed = int(sys.argv[1]), int(sys.argv[2])
    shares = sum(share for _, _, share in PROPERTIES.values())
    for name, (_, _, share) in PROPERTIES.items():
        outcomes = search(name, cases * share // shares, seed)
        print(f"{name:20}", *(f"{kind} {count:,}" for kind, count in sorted(outcomes.items())), sep="  ", flush=True)


if __name__ == "__main__":
    main()
