"""Every array library gives the numbers that NumPy gives, as plain floats, by the backend it should go to."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from libraries import Library, MakeProblem, library

import kcalib
from kcalib import _input
from kcalib._backend import arrays

METRICS = {
    "unbiased": kcalib.skce,
    "biased": lambda y, p: kcalib.skce(y, p, estimator="biased"),
    "block": lambda y, p: kcalib.skce(y, p, estimator=kcalib.methods.BlockEstimator(block_size=7)),
    "brier_score": kcalib.brier_score,
    "log_loss": kcalib.log_loss,
    "top_label_ece": kcalib.top_label_ece,
}
HOW_AND_WHEN = ("backend", "backend_reason", "threads", "seconds")


def numbers(result: Any) -> dict[str, Any]:
    """The fields of a result, without those on how it was computed, in one level."""
    flat: dict[str, Any] = {}
    for key, value in dataclasses.asdict(result).items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return {key: value for key, value in flat.items() if key.rpartition(".")[2] not in HOW_AND_WHEN}


def same(reference: Any, backend: str) -> Any:
    """Equal to the last bit on the host; up to the order of sums elsewhere."""
    if backend == "cpu":
        return reference
    if isinstance(reference, dict):
        return {key: same(value, backend) for key, value in reference.items()}
    if isinstance(reference, tuple) and reference and isinstance(reference[0], dict):  # blocks of a test
        return tuple(same(entry, backend) for entry in reference)
    if isinstance(reference, tuple) and reference and isinstance(reference[0], float):  # of draws, which are in float32
        return pytest.approx(reference, abs=1e-6 * max(map(abs, reference)))
    return pytest.approx(reference, rel=1e-12, abs=1e-15) if isinstance(reference, float) else reference


@pytest.mark.parametrize("dtype", ["float64", "float32"])
class TestEveryLibrary:
    """Float32 predictions are the same values in float64."""

    @pytest.mark.parametrize("metric", METRICS)
    def test_metric_is_the_float_that_numpy_gives(
        self, xp: Library, dtype: str, metric: str, make_problem: MakeProblem
    ) -> None:
        y, p = make_problem(61, 4)
        p = p.astype(dtype)
        value = METRICS[metric](xp.asarray(y), xp.asarray(p))
        assert type(value) is float
        assert value == same(METRICS[metric](y, p.astype(np.float64)), xp.backend)

    def test_a_result_names_the_backend_and_has_plain_fields(
        self, xp: Library, dtype: str, make_problem: MakeProblem
    ) -> None:
        y, p = make_problem(61, 4)
        p = p.astype(dtype)
        result = kcalib.skce.result(xp.asarray(y), xp.asarray(p))
        assert result.backend == xp.backend
        assert result.dtype == "float64"
        assert numbers(result) == same(numbers(kcalib.skce.result(y, p.astype(np.float64))), xp.backend)
        json.dumps(dataclasses.asdict(result))

    def test_calibration_test_and_evaluation_are_those_of_numpy(
        self, xp: Library, dtype: str, make_problem: MakeProblem
    ) -> None:
        y, p = make_problem(61, 4)
        p = p.astype(dtype)
        for function in (kcalib.calibration_test, kcalib.evaluate):
            options = {"method": kcalib.methods.Adaptive(39), "seed": 3}
            result = function(xp.asarray(y), xp.asarray(p), **options)
            assert numbers(result) == same(numbers(function(y, p.astype(np.float64), **options)), xp.backend)
            assert (result if isinstance(result, kcalib.CalibrationTestResult) else result.skce).backend == xp.backend
            json.dumps(dataclasses.asdict(result))


@pytest.mark.grid
def test_sweep_in_float32_is_near_float64(xp: Library, make_problem: MakeProblem) -> None:
    y, p = make_problem(61, 4)
    result = kcalib.skce.result(xp.asarray(y), xp.asarray(p), dtype="float32")
    assert result.dtype == "float32"
    assert type(result.value) is float
    assert result.value == pytest.approx(kcalib.skce(y, p), abs=1e-6)
    assert result.value != kcalib.skce(y, p)


def test_binary_probabilities_and_logits_are_those_of_numpy(xp: Library, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 2)
    second = p[:, 1]
    logits = np.log(second / (1 - second))
    expected = same(kcalib.skce(y, np.stack((1 - second, second), axis=1)), xp.backend)
    assert kcalib.skce(xp.asarray(y), xp.asarray(second)) == expected
    assert kcalib.skce(xp.asarray(y), xp.asarray(second[:, None])) == expected
    value = kcalib.skce(xp.asarray(y), xp.asarray(logits), from_logits=True)
    assert value == pytest.approx(kcalib.skce(y, p), rel=1e-10)
    value = kcalib.skce(xp.asarray(y), xp.asarray(np.log(p)), from_logits=True)
    assert value == pytest.approx(kcalib.skce(y, p), rel=1e-10)


@pytest.mark.parametrize("function", [kcalib.skce, kcalib.brier_score, kcalib.log_loss, kcalib.top_label_ece])
def test_weights_of_every_library_count(xp: Library, make_problem: MakeProblem, function: Any) -> None:
    y, p = make_problem()
    w = np.random.default_rng(1).uniform(size=len(y))
    expected = same(function(y, p, sample_weight=w), xp.backend)
    assert expected != function(y, p)
    for weight in (xp.asarray(w), w, w.tolist()):
        assert function(xp.asarray(y), xp.asarray(p), sample_weight=weight) == expected
    if not xp.on_gpu:
        assert function(y, p, sample_weight=xp.asarray(w)) == same(function(y, p, sample_weight=w), "cpu")


def test_labels_follow_the_predictions_across_libraries(xp: Library, make_problem: MakeProblem) -> None:
    y, p = make_problem()
    expected = kcalib.skce(y, p)
    names = np.array(["a", "b", "c"])
    for labels in (y, y.tolist(), y.astype(float), np.eye(3)[y]):
        assert kcalib.skce(labels, xp.asarray(p)) == same(expected, xp.backend)
    for labels in map(xp.asarray, (np.eye(3)[y], np.eye(3, dtype=int)[y], np.eye(3)[y] == 1, y[:, None])):
        assert kcalib.skce(labels, xp.asarray(p)) == same(expected, xp.backend)
    assert kcalib.skce(names[y], xp.asarray(p)) == same(expected, xp.backend)
    assert kcalib.skce(xp.asarray(y + 5), xp.asarray(p), classes=[5, 6, 7]) == same(expected, xp.backend)
    if xp.on_gpu:
        with pytest.raises(ValueError, match="bring them to one place|bring both to one place"):
            kcalib.skce(xp.asarray(y), p)
        return
    # Predictions on the host are computed there, wherever else the labels are.
    assert kcalib.skce(xp.asarray(y), p) == expected
    assert kcalib.skce(xp.asarray(y == 1), p[:, :2] / p[:, :2].sum(axis=1, keepdims=True)) == kcalib.skce(
        y == 1, p[:, :2] / p[:, :2].sum(axis=1, keepdims=True)
    )


@pytest.mark.parametrize("other", ["array_api_strict-device1", "torch"])
def test_labels_of_another_library_are_moved(xp: Library, other: str, make_problem: MakeProblem) -> None:
    y, p = make_problem()
    labels, weights = library(other).asarray(y), library(other).asarray(np.ones(len(y)))
    value = kcalib.skce(labels, xp.asarray(p), sample_weight=weights)
    assert value == same(kcalib.skce(y, p, sample_weight=np.ones(len(y))), xp.backend)


def test_labels_of_another_device_are_moved(make_problem: MakeProblem) -> None:
    strict = pytest.importorskip("array_api_strict")
    y, p = make_problem()
    first, second = strict.Device("device1"), strict.Device("device2")
    labels, weights = strict.asarray(y, device=second), strict.asarray(np.ones(len(y)), device=second)
    value = kcalib.skce(labels, strict.asarray(p, device=first), sample_weight=weights)
    assert value == pytest.approx(kcalib.skce(y, p, sample_weight=np.ones(len(y))), rel=1e-12)


def test_target_kernel_of_every_library(xp: Library, make_problem: MakeProblem) -> None:
    y, p = make_problem()
    matrix = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 3.0]])
    value = kcalib.skce(xp.asarray(y), xp.asarray(p), target_kernel=xp.asarray(matrix))
    assert value == same(kcalib.skce(y, p, target_kernel=matrix), xp.backend)


def test_bad_values_are_found_where_the_array_is(xp: Library, make_problem: MakeProblem) -> None:
    y, p = make_problem(20)
    p[17, 1] = np.nan
    with pytest.raises(ValueError, match=r"^`y_pred\[17, 1\]` is nan, expected a finite probability"):
        kcalib.skce(xp.asarray(y), xp.asarray(p))
    p[17] = 0.31
    with pytest.raises(ValueError, match=r"^`y_pred\[17\]` sums to 0.93, expected 1 within 0.015; normalise"):
        kcalib.skce(xp.asarray(y), xp.asarray(p))
    p[17] = [0, 0, 1]
    y[3] = 3
    with pytest.raises(ValueError, match=r"^`y_true\[3\]` is 3, expected a label 0..2"):
        kcalib.skce(xp.asarray(y), xp.asarray(p))
    with pytest.raises(ValueError, match=r"^`y_true\[3\]` is 3, expected one of classes=\[0, 1, 2\]"):
        kcalib.skce(xp.asarray(y), xp.asarray(p), classes=[0, 1, 2])
    y[3] = 1
    with pytest.raises(ValueError, match=r"^`sample_weight\[2\]` is -1, expected a finite weight"):
        kcalib.skce(xp.asarray(y), xp.asarray(p), sample_weight=xp.asarray(np.where(np.arange(20) == 2, -1.0, 1.0)))
    with pytest.raises(ValueError, match="the arguments are swapped"):
        kcalib.skce(xp.asarray(p), xp.asarray(y))
    with pytest.raises(TypeError, match="`y_pred` is complex"):
        kcalib.skce(xp.asarray(y), xp.asarray(p + 0j))
    with pytest.raises(TypeError, match=r"`y_pred` has dtype .*bool and looks like predicted labels"):
        kcalib.skce(xp.asarray(y), xp.asarray(y == 1))


@pytest.mark.parametrize("name", ["numpy", "array_api_strict", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_cpu_arrays_cross_without_a_copy(name: str, dtype: str) -> None:
    array = library(name).asarray(np.eye(3), dtype)
    crossed = arrays.as_array(array, "y_pred")
    assert type(crossed) is np.ndarray
    assert crossed.dtype == dtype
    assert crossed.ctypes.data == address(array)


@pytest.mark.parametrize("name", ["numpy", "array_api_strict", "torch", "jax"])
def test_float64_predictions_reach_the_sweep_without_a_copy(name: str, make_problem: MakeProblem) -> None:
    y, p = make_problem()
    array = library(name).asarray(p)
    assert _input.labels.prepare(y, array).probabilities.ctypes.data == address(array)


def address(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if hasattr(array, "unsafe_buffer_pointer"):
        return int(array.unsafe_buffer_pointer())
    return int(np.from_dlpack(array).ctypes.data)


# NumPy's own variety.


@pytest.mark.parametrize("label_dtype", ["int8", "uint8", "int16", "int32", "uint64", "float32", "float64"])
def test_labels_of_every_numeric_dtype(label_dtype: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    assert kcalib.skce(y.astype(label_dtype), p) == kcalib.skce(y, p)


def test_more_classes_than_the_label_dtype_counts(make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 300)
    y %= 100
    assert kcalib.skce(y.astype(np.uint8), p) == kcalib.skce(y, p)
    device = library("array_api_strict-device1")
    assert kcalib.brier_score(device.asarray(y.astype(np.uint8)), device.asarray(p)) == pytest.approx(
        kcalib.brier_score(y, p), rel=1e-12
    )


def test_scalars_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^`y_pred` has shape \(\), expected \(n, m\) probabilities"):
        kcalib.skce([1], np.float64(0.3))
    with pytest.raises(ValueError, match=r"^`y_true` has shape \(\), expected \(n,\) labels"):
        kcalib.skce(1, [0.3])


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="^`y_pred` is not a rectangular array: .*; give every row the same length$"):
        kcalib.skce([0, 1], [[0.3, 0.7], [1.0]])


def test_masked_entries_are_refused(make_problem: MakeProblem) -> None:
    y, p = make_problem(5)
    mask = np.zeros(p.shape, dtype=bool)
    mask[3, 1] = True
    with pytest.raises(ValueError, match=r"^`y_pred\[3, 1\]` is masked, expected a value; drop or fill such entries"):
        kcalib.skce(y, np.ma.masked_array(p, mask))
    with pytest.raises(ValueError, match=r"^`y_true\[3\]` is masked"):
        kcalib.skce(np.ma.masked_array(y, mask[:, 1]), p)


@pytest.mark.parametrize("value", [{"a": 1}, {0.5}, iter([0.5]), object(), lambda: 0])
def test_what_is_no_array_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^`y_pred` is .* \(.*\), expected an array or a list$"):
        kcalib.skce([0, 1], value)


# Half precision.


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("numpy", "float16"), ("torch", "float16"), ("torch", "bfloat16"), ("jax", "float16"), ("jax", "bfloat16")],
)
@pytest.mark.parametrize("m", [2, 100])
@pytest.mark.parametrize("on_host", [True, False])
def test_half_precision_probabilities_pass_with_their_rounding(
    name: str, dtype: str, m: int, on_host: bool, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, p = make_problem(50, m)
    array = library(name).asarray(p)
    half = array.to(getattr(pytest.importorskip("torch"), dtype)) if name == "torch" else array.astype(dtype)
    exact = np.asarray(half.double() if name == "torch" else half).astype(np.float64)
    assert np.abs(exact.sum(axis=1) - 1).max() > 1e-5
    if not on_host:
        monkeypatch.setattr(arrays, "_on_cpu", lambda value: False)
    with pytest.importorskip("jax").enable_x64(True):
        data = _input.labels.prepare(y, half)
        assert np.array_equal(arrays.to_host(data.probabilities), exact)
        assert data.input_epsilon == {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
        with pytest.raises(ValueError, match=r"sums to 0\.\d+, expected 1 within 0\.0(039|31)"):
            _input.labels.prepare(y, half * 0.9)


# PyTorch.


@pytest.mark.filterwarnings("ignore::kcalib.GradientWarning")
def test_torch_tensors_that_require_grad_are_detached(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    y, p = make_problem()
    tensor = torch.tensor(p, requires_grad=True)
    expected = kcalib.skce(y, p)
    assert kcalib.skce(torch.tensor(y), tensor) == expected
    assert kcalib.skce(torch.tensor(y), tensor * 1) == expected
    assert kcalib.skce(torch.tensor(y), torch.nn.Parameter(tensor)) == expected
    monkeypatch.setattr(arrays, "_on_cpu", lambda value: False)
    assert not _input.labels.prepare(y, tensor).probabilities.requires_grad


def test_torch_views_that_negate_or_conjugate_lazily_are_resolved(make_problem: MakeProblem) -> None:
    torch = pytest.importorskip("torch")
    y, p = make_problem()
    lazy = torch.imag(torch.conj(torch.tensor(-1j * p)))
    assert lazy.is_neg()
    assert kcalib.skce(y, lazy) == kcalib.skce(y, p)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_sparse_tensors_are_refused(layout: str, make_problem: MakeProblem) -> None:
    torch = pytest.importorskip("torch")
    y, p = make_problem()
    with pytest.raises(TypeError, match=r"^`y_pred` is sparse, expected a dense tensor; pass `y_pred.to_dense\(\)`$"):
        kcalib.skce(y, getattr(torch.tensor(p), layout)())


# JAX.


def test_traced_jax_arrays_are_refused(make_problem: MakeProblem) -> None:
    jax = pytest.importorskip("jax")
    y, p = make_problem()
    p32 = p.astype(np.float32)
    message = "^`y_pred` is a traced JAX array, expected a concrete one; call kcalib outside jit and grad"
    for transform in (jax.jit, jax.grad):
        with pytest.raises(TypeError, match=message):
            transform(lambda q: kcalib.skce(y, q))(p32)


def test_jax_arrays_on_several_devices_cross(make_problem: MakeProblem) -> None:
    jax = pytest.importorskip("jax")
    if len(jax.devices("cpu")) < 2:
        pytest.skip("one CPU device only: XLA_FLAGS was set by someone else")
    y, p = make_problem()
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    sharded = jax.device_put(library("jax").asarray(p), sharding)
    assert len(sharded.devices()) == 2
    assert kcalib.skce(y, sharded) == kcalib.skce(y, p)


def test_jax_sparse_is_refused(make_problem: MakeProblem) -> None:
    sparse = pytest.importorskip("jax.experimental.sparse")
    y, p = make_problem()
    with pytest.raises(TypeError, match=r"^`y_pred` is sparse, expected a dense array; pass `y_pred.todense\(\)`$"):
        kcalib.skce(y, sparse.BCOO.fromdense(p.astype(np.float32)))


def test_jax_without_float64_on_a_device_is_refused(make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(arrays, "_on_cpu", lambda value: False)
    y, p = make_problem()
    with (
        pytest.warns(UserWarning, match="float64"),
        pytest.raises(TypeError, match=r"jax turned float64 into float32; enable 64-bit .*'jax_enable_x64', True"),
    ):
        kcalib.skce(y, jax.numpy.asarray(p.astype(np.float32)))


# Off the host: PyTorch and JAX as if their CPU were a device that NumPy cannot read.


@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_tensors_off_the_host_stay_there(
    name: str, dtype: str, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, p = make_problem(16, 3)
    w = np.random.default_rng(1).uniform(size=16)
    asarray = library(name).asarray
    p = p.astype(dtype)
    exact = p.astype(np.float64)
    metrics = (kcalib.skce, kcalib.log_loss, kcalib.top_label_ece)
    expected = [metric(y, exact, sample_weight=w) for metric in metrics]
    test = kcalib.calibration_test(y, exact, seed=0)
    monkeypatch.setattr(arrays, "_on_cpu", lambda value: False)
    with pytest.importorskip("jax").enable_x64(True):
        for metric, number in zip(metrics, expected, strict=True):
            value = metric(y.tolist(), asarray(p), sample_weight=w)
            assert type(value) is float
            assert value == same(number, "array-api")
        result = kcalib.calibration_test(asarray(y), asarray(p), seed=0)
    assert result.backend == "array-api"
    assert numbers(result) == same(numbers(test), "array-api")


def test_device_arrays_are_refused_by_the_openmp_backend(make_problem: MakeProblem) -> None:
    y, p = make_problem()
    device = library("array_api_strict-device1")
    with pytest.raises(ValueError, match="^backend='cpu' needs arrays in host memory, `y_pred` is on .*device1"):
        kcalib.skce(y, device.asarray(p), backend="cpu")


@pytest.mark.parametrize("estimator", ["unbiased", "biased", "block", "linear"])
def test_generic_backend_agrees_with_openmp_on_numpy_arrays(estimator: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(200, 5)
    generic = kcalib.skce.result(y, p, estimator=estimator, backend="array-api")
    openmp = kcalib.skce.result(y, p, estimator=estimator, backend="cpu")
    assert (generic.backend, openmp.backend) == ("array-api", "cpu")
    assert generic.value == pytest.approx(openmp.value, rel=1e-12)
    assert generic.standard_error == pytest.approx(openmp.standard_error, rel=1e-12)


# Dask.


def test_dask_graphs_are_computed_once(make_problem: MakeProblem) -> None:
    da = pytest.importorskip("dask.array")
    y, p = make_problem()
    calls: list[str] = []

    def count(block: np.ndarray, what: str) -> np.ndarray:
        calls.append(what)
        return block

    labels = da.from_array(y, chunks=-1).map_blocks(count, "y", dtype=y.dtype, meta=y[:0])
    predictions = da.from_array(p, chunks=-1).map_blocks(count, "p", dtype=p.dtype, meta=p[:0])
    result = kcalib.evaluate(labels, predictions)
    assert sorted(calls) == ["p", "y"]
    assert numbers(result) == numbers(kcalib.evaluate(y, p))


def test_dask_frames_are_computed(make_problem: MakeProblem) -> None:
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    y, p = make_problem()
    frame = dd.from_pandas(pd.DataFrame(p, columns=["a", "b", "c"]), npartitions=2)
    assert kcalib.skce(dd.from_pandas(pd.Series(y), npartitions=2), frame) == kcalib.skce(y, p)


# Sparse matrices.


@pytest.mark.parametrize("kind", ["csr_matrix", "coo_array"])
def test_scipy_sparse_is_refused(kind: str, make_problem: MakeProblem) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    y, p = make_problem()
    with pytest.raises(TypeError, match=r"^`y_pred` is sparse, expected a dense array; pass `y_pred.todense\(\)`$"):
        kcalib.skce(y, getattr(scipy_sparse, kind)(p))
    assert kcalib.skce(y, getattr(scipy_sparse, kind)(p).todense()) == kcalib.skce(y, p)


# Frames.


@pytest.mark.parametrize("dtype", ["float64", "Float64", "float64[pyarrow]", "object"])
def test_pandas_frames_of_predictions(dtype: str, make_problem: MakeProblem) -> None:
    pd = pytest.importorskip("pandas")
    y, p = make_problem()
    frame = pd.DataFrame(p).astype(dtype)
    weight = pd.Series(np.arange(len(y)) + 1.0).astype(dtype)
    expected = kcalib.skce(y, p, sample_weight=np.arange(len(y)) + 1.0)
    assert kcalib.skce(pd.Series(y), frame, sample_weight=weight) == expected


@pytest.mark.parametrize(
    "dtype", ["int64", "Int64", "Int8", "float64", "Float64", "int64[pyarrow]", "category", "object"]
)
def test_pandas_series_of_integer_labels(dtype: str, make_problem: MakeProblem) -> None:
    pd = pytest.importorskip("pandas")
    y, p = make_problem()
    assert kcalib.skce(pd.Series(y).astype(dtype), p) == kcalib.skce(y, p)
    assert kcalib.skce(pd.DataFrame({"label": pd.Series(y).astype(dtype)}), p) == kcalib.skce(y, p)


@pytest.mark.parametrize("dtype", ["str", "string", "category", "object", "string[pyarrow]", "bool", "boolean"])
def test_pandas_series_of_strings_and_booleans(dtype: str, make_problem: MakeProblem) -> None:
    pd = pytest.importorskip("pandas")
    classes = [False, True] if dtype.startswith("bool") else ["cat", "dog", "eel"]
    y, p = make_problem(60, len(classes))
    labels = pd.Series(np.array(classes)[y]).astype(dtype)
    assert kcalib.skce(labels, p) == kcalib.skce(y, p)
    if len(classes) == 3:
        reversed_columns = kcalib.skce(labels, p[:, ::-1], classes=pd.Index(classes[::-1]))
        assert reversed_columns == pytest.approx(kcalib.skce(y, p))


def test_missing_values_in_pandas_are_refused() -> None:
    pd = pytest.importorskip("pandas")
    p = [[0.2, 0.8], [0.5, 0.5], [0.1, 0.9]]
    for labels in (
        pd.Series(["a", None, "b"]),
        pd.Series(["a", None, "b"], dtype="category"),
        pd.Series(["a", None, "b"], dtype="string"),
        pd.Series([True, None, False], dtype="boolean"),
        pd.Series([0, None, 1], dtype=object),
    ):
        with pytest.raises(ValueError, match=r"^`y_true\[1\]` is missing \(.*\), expected a value; drop or fill"):
            kcalib.skce(labels, p)
    for labels in (pd.Series([0, None, 1], dtype="Int64"), pd.Series([0, None, 1]), pd.Series([0, np.nan, 1])):
        with pytest.raises(ValueError, match=r"^`y_true\[1\]` is (nan, expected a class label|missing)"):
            kcalib.skce(labels, p)
    frame = pd.DataFrame(p)
    frame.iloc[2, 1] = None
    for dtype in ("float64", "Float64", "float64[pyarrow]", "object"):
        with pytest.raises(ValueError, match=r"^`y_pred\[2, 1\]` is (nan, expected a finite|missing)"):
            kcalib.skce([0, 1, 0], frame.astype(dtype))


def test_polars_series_and_frames(make_problem: MakeProblem) -> None:
    pl = pytest.importorskip("polars")
    y, p = make_problem()
    names = np.array(["cat", "dog", "eel"])[y]
    frame = pl.DataFrame(p, schema=["a", "b", "c"])
    expected = kcalib.skce(y, p)
    for labels in (
        pl.Series(y),
        pl.Series(y).cast(pl.UInt8),
        pl.DataFrame({"label": y}),
        pl.Series(names),
        pl.Series(names).cast(pl.Categorical),
        pl.Series(names).cast(pl.Enum(["cat", "dog", "eel"])),  # in the order of the columns
    ):
        assert kcalib.skce(labels, frame) == expected
    assert kcalib.skce(y, pl.Series(p.tolist(), dtype=pl.Array(pl.Float64, 3))) == expected
    assert kcalib.skce(y, frame.cast(pl.Float32)) == kcalib.skce(y, p.astype(np.float32))
    assert kcalib.skce(y, frame, sample_weight=pl.Series(np.ones(60))) == kcalib.skce(y, p, sample_weight=np.ones(60))


def test_polars_input_that_cannot_be_meant_is_refused(make_problem: MakeProblem) -> None:
    pl = pytest.importorskip("polars")
    y, p = make_problem(3)
    frame = pl.DataFrame(p, schema=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"^`y_true\[1\]` is missing \(None\)"):
        kcalib.skce(pl.Series(["a", None, "b"]), frame)
    with pytest.raises(ValueError, match=r"^`y_true\[1\]` is nan"):
        kcalib.skce(pl.Series([0, None, 1]), frame)
    with pytest.raises(ValueError, match=r"^`y_pred\[0, 1\]` is nan"):
        kcalib.skce(y, frame.with_columns(b=pl.Series([None, 0.5, 0.5])))
    with pytest.raises(TypeError, match=r"^`y_pred\[0\]` is array\(.* \(ndarray\) in an array of dtype object.*stack"):
        kcalib.skce(y, pl.Series(p.tolist()))


def test_pyarrow_arrays_and_tables(make_problem: MakeProblem) -> None:
    pa = pytest.importorskip("pyarrow")
    y, p = make_problem()
    names = np.array(["cat", "dog", "eel"])[y]
    table = pa.table({name: p[:, k] for k, name in enumerate("abc")})
    for labels in (pa.array(y), pa.chunked_array([y[:20], y[20:]]), pa.array(names)):
        assert kcalib.skce(labels, table) == kcalib.skce(y, p)
    with pytest.raises(ValueError, match=r"^`y_true\[1\]` is missing \(None\)"):
        kcalib.skce(pa.array(["a", None, "b"]), p[:3])


def test_tensors_in_a_list_that_require_gradients() -> None:
    class Tensor(list):
        def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    with pytest.raises(TypeError, match=r"`y_pred` is list, .*grad\.; pass torch\.cat\(y_pred\)\.detach\(\)"):
        arrays.as_array([Tensor([0.5]), Tensor([0.5])], "y_pred")
