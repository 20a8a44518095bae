"""The compiled passes over the samples do what NumPy does: the same bits, the same refusals, the same messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import pytest

from kcalib import _input, _native, _packing

WIDTHS = [1, 2, 3, 7, 8, 9, 17, 1000]
SIZES = [1, 5, 300_000]  # values: one row or few, and several parts for several threads
THREADS = [1, 2, 3]


def rows(m: int, values: int, dtype: Any = np.float64) -> np.ndarray:
    """Distributions; for m = 1 probabilities of the second class."""
    n = max(1, values // m)
    p = np.random.default_rng(m).exponential(size=(n, max(m, 2)))
    return (p / p.sum(axis=1, keepdims=True))[:, :m].astype(dtype)


def labels_for(p: np.ndarray) -> np.ndarray:
    return np.random.default_rng(1).integers(0, max(2, p.shape[-1] if p.ndim == 2 else 2), len(p))


def outcome(y: Any, p: Any, **options: Any) -> tuple[Any, ...]:
    """What `prepare` returns, to the bit, or what it says."""
    try:
        data = _input.labels.prepare(y, p, **options)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    assert data.probabilities.dtype == np.float64 and data.labels.dtype == np.int64
    assert data.probabilities.flags.c_contiguous and data.labels.flags.c_contiguous
    return data.probabilities.shape, data.probabilities.tobytes(), data.labels.tobytes()


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, ...]]:
    """`outcome` where the compiled passes never say yes, so that the checks of the array library run."""

    def run(y: Any, p: Any, **options: Any) -> tuple[Any, ...]:
        with monkeypatch.context() as patch:
            patch.setattr(_native, "distributions", lambda *_: None)
            patch.setattr(_native, "classes", lambda *_: None)
            return outcome(y, p, **options)

    return run


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("values", SIZES)
@pytest.mark.parametrize("m", WIDTHS)
def test_good_rows_need_one_pass_and_come_out_the_same(
    m: int, values: int, dtype: Any, by_numpy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = rows(m, values, dtype)
    y = labels_for(p)
    expected = by_numpy(y, p)
    assert expected[0] == (len(p), max(m, 2))

    def unexpected(*_: Any, **__: Any) -> None:
        raise AssertionError("good values went the way of bad ones")

    monkeypatch.setattr(_input.labels, "reject", unexpected)
    for threads in THREADS:
        assert outcome(y, p, threads=threads) == expected
    if m > 1 and dtype == np.float64:
        assert _input.labels.prepare(y, p).probabilities is p
        assert not np.shares_memory(_input.labels.prepare(y, p).labels, y)  # indices are copied


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("values", SIZES[1:])
@pytest.mark.parametrize("m", [1, 3, *(pytest.param(m, marks=pytest.mark.grid) for m in (2, 9)), 1000])
@pytest.mark.parametrize(
    "value",
    [
        *(np.nan, -0.0, -0.25, 5e-324, 1 + 1e-5, 1e300),
        *(
            pytest.param(value, marks=pytest.mark.grid)
            for value in (np.inf, -np.inf, -1e-30, -5e-324, 1e-310, 1.0, 1.5)
        ),
    ],
)
def test_one_odd_value_has_the_same_consequence(value: float, m: int, values: int, dtype: Any, by_numpy: Any) -> None:
    y = labels_for(rows(m, values))
    for place in {0, len(y) * m // 2, len(y) * m - 1}:
        p = rows(m, values, dtype)
        with np.errstate(over="ignore"):
            p.flat[place] = value
        if m > 1 and abs(value) <= 1:  # the row sums to 1 all the same
            i, k = divmod(place, m)
            p[i, (k + 1) % m] += 1 - p[i].sum(dtype=float)
        assert outcome(y, p, threads=2) == by_numpy(y, p)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("m", WIDTHS)
def test_the_tolerance_has_the_same_edge(m: int, dtype: Any, by_numpy: Any) -> None:
    tolerance = max(1e-6, 2**-22 * math.sqrt(max(m, 2)), 4 * float(np.finfo(dtype).eps))
    seen = set()
    for share in (0.9, 1 - 1e-6, *(1 + k * 2.0**-30 for k in range(-4, 5)), 1 + 1e-6, 1.1):
        for sign in (-1, 1):
            p = rows(m, 5, dtype)
            p[-1] = 0
            p[-1, -1] = 1 + sign * share * tolerance
            result = outcome([0] * len(p), p)
            assert result == by_numpy([0] * len(p), p)
            seen.add(isinstance(result[0], type))
    assert seen == {True, False}


def test_a_sum_within_rounding_of_the_tolerance_is_left_to_the_array_library() -> None:
    p = np.array([[1.0 + 1e-6 - 1e-15, 0.0, 0.0]])
    assert _native.distributions(p, 1e-6, 1) is None
    assert outcome([0], p)[0] == (1, 3)


@pytest.mark.parametrize("m", [1, 2, 3, 9])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.longdouble, ">f8", ">f4"])
def test_any_layout_gives_the_same(m: int, dtype: Any, by_numpy: Any) -> None:
    p = rows(m, 60, np.float32).astype(dtype)
    y = labels_for(p)
    expected = outcome(y, p)
    assert expected == by_numpy(y, p)
    wide = np.zeros((2 * len(p), 3 * m), p.dtype)
    wide[::2, ::3] = p
    misaligned = np.frombuffer(b"\0" + p.tobytes(), p.dtype, p.size, 1).reshape(p.shape)
    readonly = p.copy()
    readonly.flags.writeable = False
    for other in (wide[::2, ::3], np.asfortranarray(p), p[::-1].copy()[::-1], misaligned, readonly):
        assert outcome(y, other) == by_numpy(y, other) == expected
        if m == 1:
            assert outcome(y, other[:, 0]) == expected
    constant = np.broadcast_to(p[:1], p.shape)
    assert outcome(y, constant) == by_numpy(y, constant) == outcome(y, constant.copy())


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", ">i4", "u4", "i8", ">i8", "u8", "f2", "f4", "f8", ">f8"])
def test_labels_of_any_type_and_layout(dtype: str, m: int, by_numpy: Any) -> None:
    p = rows(m, 600_000 if (dtype, m) == ("i8", 3) else 600)
    y = labels_for(p)
    expected = outcome(y, p)
    wide = np.zeros((len(y), 2), dtype)
    wide[:, 0] = y
    packed = y.astype(dtype)
    misaligned = np.frombuffer(b"\0" + packed.tobytes(), dtype, len(y), 1)
    for labels in (packed, packed[:, None], wide[:, 0], misaligned):
        assert outcome(labels, p) == by_numpy(labels, p) == expected
    for place in (0, len(y) // 2, len(y) - 1):
        for bad in (m, 100, *([] if "u" in dtype else [-1])):
            labels = packed.copy()
            labels[place] = bad
            result = outcome(labels, p)
            assert result == by_numpy(labels, p)
            assert result[0] is ValueError and f"`y_true[{place}]` is {bad}" in result[1]


def test_the_largest_integers_are_no_labels(by_numpy: Any) -> None:
    for labels in (np.array([2**64 - 1, 0], np.uint64), np.array([2**63 - 1, 0]), np.array([-(2**63), 0])):
        assert outcome(labels, [[0.5, 0.5]] * 2) == by_numpy(labels, [[0.5, 0.5]] * 2)
        assert outcome(labels, [[0.5, 0.5]] * 2)[0] is ValueError


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g"])
def test_labels_that_are_floats(dtype: str, by_numpy: Any) -> None:
    p = rows(3, 600_000 if dtype == "f8" else 600)
    for value in (-0.0, 0.0, 2.0, 3.0, -1.0, 0.5, 1 + np.finfo(dtype).eps, np.nan, np.inf, -np.inf, 6e4, 5e-8):
        for place in (0, len(p) - 1):
            labels = labels_for(p).astype(dtype)
            labels[place] = value
            result = outcome(labels, p)
            assert result == by_numpy(labels, p)
            assert (result[0] is ValueError) == (value not in (0, 2))


@pytest.mark.parametrize("shape", [(0,), (0, 1), (0, 3), (3, 0), (0, 0), (), (1, 1, 1)])
def test_shapes_without_values_never_reach_the_passes(shape: tuple[int, ...], by_numpy: Any) -> None:
    result = outcome(np.zeros(shape[:1], int), np.ones(shape))
    assert result == by_numpy(np.zeros(shape[:1], int), np.ones(shape))
    assert result[0] is ValueError


@pytest.mark.parametrize("m", [1, 3, 17])
def test_arrays_of_another_library_on_a_device_come_out_the_same(m: int) -> None:
    p = rows(m, 600)
    y = labels_for(p)
    host = _input.labels.prepare(y, p)
    device = array_api_strict.Device("device1")
    there = _input.labels.prepare(
        array_api_strict.asarray(y, device=device), array_api_strict.asarray(p, device=device)
    )
    assert type(there.probabilities) is not np.ndarray
    assert np.asarray(there.probabilities._array).tobytes() == host.probabilities.tobytes()
    assert np.asarray(there.labels._array).tobytes() == host.labels.tobytes()


@pytest.mark.parametrize("values", SIZES)
@pytest.mark.parametrize("m", WIDTHS)
def test_residuals_are_exact_and_rounded_last(m: int, values: int) -> None:
    p = rows(m, values)
    p.flat[0], p.flat[-1] = -0.0, 0.0
    y = np.random.default_rng(1).integers(0, m, len(p))
    data = _input.labels.Classification(y, p, None, None, 2.0**-52)
    e = -p
    e[np.arange(len(p)), y] += 1
    for threads in THREADS:
        points, features = _packing.points_and_residuals(data, threads=threads)
        assert points is p and features.tobytes() == e.tobytes()
        points, features = _packing.points_and_residuals(data, "float32", threads=threads)
        assert points.tobytes() == p.astype(np.float32).tobytes()
        assert features.tobytes() == e.astype(np.float32).tobytes()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("values", SIZES)
@pytest.mark.parametrize("m", WIDTHS)
def test_square_norms(m: int, values: int, dtype: Any) -> None:
    v = rows(m, values, dtype) - dtype(0.5)
    norms = _native.square_norms(v, 1)
    assert norms[0] == pytest.approx(math.fsum(float(x) ** 2 for x in v[0]), rel=1e-15)
    np.testing.assert_allclose(norms, (v.astype(float) ** 2).sum(axis=1), rtol=1e-14)
    for threads in THREADS:
        assert _native.square_norms(v, threads).tobytes() == norms.tobytes()


@pytest.mark.parametrize("m", [1, 2, 8, 9, 31, 32, 33, 40, 100])
def test_the_predicted_class_is_the_first_of_the_largest(m: int) -> None:
    rng = np.random.default_rng(m)
    p, y = rng.integers(0, 4, (2000, m)) / 4, rng.integers(0, m, 2000)
    confidence, correct = _native.top_labels(p, y, 2)
    assert confidence.tolist() == p.max(axis=1).tolist()
    assert correct.tolist() == (p.argmax(axis=1) == y).tolist()
    assert m == 1 or 0 < correct.sum() < 2000


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers, a byte off."""
    room = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as they are": lambda a: a,
    "reversed": lambda a: a[::-1],
    "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "column by column": np.asfortranarray,
    "unaligned": unaligned,
    "other bytes": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "half the size": lambda a: a.astype(np.float32 if a.dtype.kind == "f" else np.int32),
    "read only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "a class of its own": lambda a: a.view(type("Own", (np.ndarray,), {})),
    "twice the number": lambda a: np.concatenate([a, a]),
    "none": lambda a: a[:0],
    "one more dimension": lambda a: a[..., None],
}


@pytest.mark.parametrize("of_labels", WAYS)
@pytest.mark.parametrize("of_rows", WAYS)
def test_arrays_of_any_layout_give_the_same_data_and_messages(of_labels, of_rows, by_numpy):
    good = rows(7, 70)
    wrong = {"sums": good * 1.01, "sign": good - 0.2, "nan": np.where(good > good.max() - 1e-9, np.nan, good)}
    for p in (good, *wrong.values()):
        for y in (labels_for(p), labels_for(p) + 1, labels_for(p) - 1):
            given = WAYS[of_labels](y), WAYS[of_rows](p)
            assert outcome(*given) == by_numpy(*given)


def test_tolerance_of_the_usual_arrays_is_that_of_others():
    p = rows(1000, 3000)
    for off in (0.9e-5, 1.1e-5, 2e-5):  # 2^-22 times the root of 1000 is 7.5e-6
        shifted = p.copy()
        shifted[1, 0] += off
        assert outcome(labels_for(p), shifted)[0] is outcome(labels_for(p), np.asfortranarray(shifted))[0] is ValueError
    shifted = p.copy()
    shifted[1, 0] += 5e-6
    assert outcome(labels_for(p), shifted) == outcome(labels_for(p), np.asfortranarray(shifted))
