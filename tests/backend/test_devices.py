"""Arrays on GPUs from the user's call to the kernels, and what is said when it cannot be."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from typing import Any

import emulated_cupy
import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib import _input
from kcalib._backend import arrays, devices, faults
from kcalib._backend.cuda import Program
from kcalib._backend.memory import available_memory_on_gpu, check_memory

KERNEL = kcalib.kernels.Exponential(bandwidth=0.5)


@pytest.fixture
def cupy(emulation: Any) -> Any:
    """The emulation alone, which has two GPUs, and whatever drivers and faults are asked for."""
    return emulation


@pytest.fixture(params=["torch", "jax"])
def tensor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``tensor(values, gpu)``: one of PyTorch or JAX that says it is on a GPU."""
    stand_ins = pytest.importorskip("cuda_stand_ins")
    stand_ins.returned(monkeypatch)
    return {"torch": stand_ins.CudaTensor, "jax": stand_ins.CudaJaxArray}[request.param].of


@pytest.fixture
def torch_tensor() -> Any:
    return pytest.importorskip("cuda_stand_ins").CudaTensor.of


class TestOtherLibraries:
    @pytest.mark.parametrize("gpu", [0, 1])
    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"])
    def test_tensors_become_cupy_arrays_without_a_copy(self, cupy, tensor, dtype, gpu):
        values = tensor(np.arange(6).reshape(2, 3).astype(dtype), gpu)
        array = arrays.as_array(values, "y_pred")
        assert isinstance(array, cupy.ndarray) and array.device.id == gpu and array.dtype == dtype
        assert array._a.ctypes.data == values.on_host().ctypes.data
        assert cupy.cuda.Device().id == 0

    def test_results_are_those_of_cupy_arrays(self, cupy, tensor):
        y, p = softmax_problem(40, 3, seed=1)
        with emulated_cupy.stays_on_device(at_most=9):
            found = kcalib.skce(tensor(y), tensor(p), kernel=KERNEL, sample_weight=tensor(np.ones(40)))
        weight = cupy.asarray(np.ones(40))
        assert found == kcalib.skce(cupy.asarray(y), cupy.asarray(p), kernel=KERNEL, sample_weight=weight)
        assert found == pytest.approx(kcalib.skce(y, p, kernel=KERNEL), rel=1e-12)

    def test_arrays_go_back_without_a_copy(self, cupy, tensor):
        original = tensor(np.zeros(3), 1)
        with cupy.cuda.Device(1):
            result = cupy.asarray([[1.0, 2.0], [3.0, 4.0]])
            back = arrays.to_original_library(result, original)
            assert type(back) is type(original)
            assert back.__dlpack_device__() == (2, 1)
            assert back.on_host().tolist() == [[1, 2], [3, 4]]
            if type(back).__name__ == "CudaTensor":  # the other stand-in copies
                assert back.on_host().ctypes.data == result._a.ctypes.data
            assert arrays.to_original_library(result.T, original).on_host().tolist() == [[1, 3], [2, 4]]
            assert arrays.to_original_library(result, result) is result

    def test_bfloat16_becomes_float32_in_its_library(self, cupy, tensor):
        y, p = softmax_problem(30, 3)
        half = tensor(p).astype("bfloat16") if hasattr(tensor(p), "astype") else tensor(p).bfloat16()
        data = _input.labels.prepare(y, half)
        assert isinstance(data.probabilities, cupy.ndarray)
        assert data.input_epsilon == 2.0**-7
        np.testing.assert_allclose(data.probabilities.get(), p, rtol=2.0**-8)

    @pytest.mark.filterwarnings("ignore::kcalib.GradientWarning")
    def test_gradients_and_lazy_views_are_resolved(self, cupy, torch_tensor):
        y, p = softmax_problem(30, 3)
        expected = kcalib.skce(y, p, kernel=KERNEL)
        wanted = torch_tensor(p).requires_grad_()
        assert kcalib.skce(y, wanted, kernel=KERNEL) == pytest.approx(expected, rel=1e-12)
        lazy = torch_tensor(-1j * p).conj().imag
        assert lazy.is_neg()
        assert kcalib.skce(y, lazy, kernel=KERNEL) == pytest.approx(expected, rel=1e-12)

    def test_empty_tensors_are_refused_like_others(self, cupy, tensor):
        with pytest.raises(ValueError, match="^`y_pred` is empty, expected at least one prediction"):
            kcalib.skce(tensor(np.zeros(0)), tensor(np.zeros((0, 3))))

    def test_jax_arrays_on_several_gpus_are_refused(self, cupy):
        array = pytest.importorskip("cuda_stand_ins").CudaJaxArray.of(np.eye(2), 0, 1)
        with pytest.raises(
            ValueError, match=r"^`y_pred` lies on 2 GPUs, kcalib computes on one; pass jax.device_put\("
        ):
            kcalib.skce([0, 1], array)

    def test_lists_of_tensors_are_refused(self, cupy, torch_tensor):
        with pytest.raises(TypeError, match=r"^`y_pred` is list, .*stack these there, such as by torch\.stack"):
            kcalib.skce([0, 1], [torch_tensor([0.5, 0.5]), torch_tensor([0.5, 0.5])])

    def test_amd_gpus_are_left_to_the_generic_backend(self, cupy, torch_tensor, monkeypatch):
        monkeypatch.setattr(sys.modules["torch"].version, "hip", "6.4")
        values = torch_tensor(np.eye(2))
        assert not arrays.on_nvidia_gpu(values)
        monkeypatch.setattr(type(values), "__dlpack_device__", lambda self: (10, 0))
        assert arrays.library(arrays.as_array(values, "y_pred")) == "torch"

    def test_pinned_memory_is_the_host(self, monkeypatch):
        torch = pytest.importorskip("torch")
        tensor = torch.eye(2)
        monkeypatch.setattr(torch.Tensor, "__dlpack_device__", lambda self: (3, 0))
        assert type(arrays.as_array(tensor, "y_pred")) is np.ndarray


def _on_gpu_1(cupy, *arrays):
    with cupy.cuda.Device(1):
        return [cupy.asarray(array) for array in arrays]


@devices.on_their_gpu
def current(y_true=None, y_pred=None, *, sample_weight=None, kernel=None):
    """The current GPU inside."""
    return emulated_cupy.Device().id


class Fitted:
    """As kcalib's objects, which its functions look into."""

    def __init__(self, **arrays):
        self.__dict__.update(arrays)

    @devices.on_their_gpu
    def predict(self, y_true=None, y_pred=None):
        return emulated_cupy.Device().id


Fitted.__module__ = "kcalib.tests"


class TestCurrentGPU:
    def test_it_is_that_of_the_arguments_and_comes_back(self, cupy, tensor):
        (there,) = _on_gpu_1(cupy, np.eye(2))
        for argument in (there, tensor(np.eye(2), 1)):
            assert current(None, argument) == current(y_pred=argument) == 1
            assert current([0, 1], argument, sample_weight=[1.0, 1.0]) == 1
            assert current(None, {"a": argument}) == current(None, [argument]) == 1
            assert Fitted(fields={"x": [argument]}).predict() == 1
            assert current(None, Fitted(mean=argument)) == 1
        assert current([0], [1.0]) == current(np.zeros(2), tensor(np.eye(2), 0)) == 0
        assert cupy.cuda.Device().id == 0
        with cupy.cuda.Device(1):
            assert current(np.zeros(2), np.eye(2)) == 1
            assert current(None, tensor(np.eye(2), 0)) == 0
            assert cupy.cuda.Device().id == 1

    def test_it_comes_back_after_an_error(self, cupy):
        (there,) = _on_gpu_1(cupy, np.eye(2))

        @devices.on_their_gpu
        def failing(y_pred):
            assert cupy.cuda.Device().id == 1
            raise ValueError("`y_pred` is wrong")

        with pytest.raises(ValueError, match="^`y_pred` is wrong$") as caught:
            failing(there)
        assert cupy.cuda.Device().id == 0 and caught.value.__cause__ is None

    def test_two_gpus_are_one_error(self, cupy, tensor):
        (there,) = _on_gpu_1(cupy, np.eye(2))
        with pytest.raises(ValueError, match=r"^`y_true` is on GPU 0, `y_pred` on GPU 1; bring them to one GPU, such"):
            current(tensor(np.zeros(2), 0), there)
        message = (
            r"^`sample_weight` is on GPU 1, `y_pred` on GPU 0; .* such as by cupy\.asarray\(sample_weight\) inside"
        )
        with pytest.raises(ValueError, match=message):
            current(None, tensor(np.eye(2)), sample_weight=there)
        with pytest.raises(ValueError, match=r"^`y_pred\['b'\]` is on GPU 1, `y_pred\['a'\]` on GPU 0"):
            current(None, {"a": tensor(np.eye(2)), "b": there})
        with pytest.raises(ValueError, match=r"^this Fitted is on GPU 1, `y_pred` on GPU 0"):
            Fitted(_points=there).predict(y_pred=tensor(np.eye(2)))
        with pytest.raises(ValueError, match=r"^`y_pred\.std` is on GPU 1, `y_pred\.mean` on GPU 0"):
            current(None, Fitted(mean=tensor(np.eye(2)), std=there))

    def test_remedies_are_in_the_words_of_the_library(self, cupy):
        stand_ins = pytest.importorskip("cuda_stand_ins")
        tensor, array = stand_ins.CudaTensor.of(np.eye(2), 1), stand_ins.CudaJaxArray.of(np.eye(2), 1)
        with pytest.raises(ValueError, match=r"such as by y_true\.to\('cuda:0'\)$"):
            current(tensor, cupy.eye(2))
        with pytest.raises(ValueError, match=r"such as by jax\.device_put\(y_true, y_pred\.device\)$"):
            current(array, cupy.eye(2))

    @pytest.mark.parametrize("y_pred", [np.eye(2), [[1.0, 0.0], [0.0, 1.0]]], ids=["numpy", "list"])
    def test_predictions_on_the_host_beside_others_on_a_gpu_are_refused(self, cupy, tensor, y_pred):
        message = (
            r"^`y_true` is on GPU 0, but `y_pred` is not; bring both to one place: cupy\.asarray\(y_pred\) computes"
        )
        with pytest.raises(ValueError, match=message):
            current(tensor([0, 1]), y_pred)
        assert Fitted(points=tensor([0, 1], 1)).predict(None, y_pred) == 1  # whoever is fitted says what to do

    def test_models_on_two_devices_are_refused(self, cupy):
        y, p = softmax_problem(20, 3)
        (there,) = _on_gpu_1(cupy, p)
        with pytest.raises(
            ValueError, match=r"^`y_preds\['b'\]` is on GPU 1, `y_preds\['a'\]` on GPU 0; bring them to one"
        ):
            kcalib.compare(y, {"a": cupy.asarray(p), "b": there})
        with pytest.raises(
            ValueError, match=r"^`y_preds\['a'\]` is on GPU 1, but `y_preds\['b'\]` is not; bring both to one"
        ):
            kcalib.compare(y, {"a": there, "b": p})

    def test_distributions_of_arrays_on_two_devices_are_refused(self, cupy):
        (there,) = _on_gpu_1(cupy, np.ones(3))
        with pytest.raises(
            ValueError, match="^`std` is on GPU 1, `mean` on GPU 0; bring them to one GPU, such as by cupy"
        ):
            kcalib.distributions.Normal(cupy.zeros(3), there)
        normal = kcalib.distributions.Normal(np.zeros(3), np.ones(3))
        with pytest.raises(ValueError, match="bring them to one place"):
            kcalib.crps(there, normal)

    def test_numpy_calls_are_passed_on(self, cupy):
        labels, p = np.array([0, 1]), np.eye(2)
        assert devices._run not in _called(lambda: current(labels, p, kernel=KERNEL))
        assert devices._run in _called(lambda: current(labels, cupy.asarray(p)))


def _called(call):
    """Functions of `_backend.devices` that a call runs."""
    found, codes = set(), {f.__code__: f for f in vars(devices).values() if hasattr(f, "__code__")}
    sys.setprofile(lambda frame, event, _: found.add(codes.get(frame.f_code)) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def _failing(error):
    @devices.on_their_gpu
    def call(y_pred):
        import cupy

        held = cupy.zeros(1000)
        assert held is not None
        raise error

    return call


class TestFaults:
    def test_too_little_memory(self, cupy):
        p = cupy.eye(3)
        used, freed = emulated_cupy.used_bytes(0), emulated_cupy.pools_freed

        @devices.on_their_gpu
        def call(y_pred):
            held = cupy.zeros(2**16)
            return held, cupy.zeros(2**20)

        with emulated_cupy.memory_limit(used + 2**20):
            message = (
                r"^GPU 0 has too little memory: 8 MiB more were needed, 0\.5 MiB of 1\S* MiB were free; free what "
                r"other arrays take \(PyTorch: torch\.cuda\.empty_cache\(\); JAX: .*\), pass fewer samples, or "
            )
            with pytest.raises(MemoryError, match=message) as caught:
                call(p)
            # Nothing is kept, though the error is.
            assert caught.value.__cause__ is not None and emulated_cupy.used_bytes(0) == used
            assert emulated_cupy.pools_freed == freed + 1

    @pytest.mark.parametrize(
        ("kind", "text", "found", "message"),
        [
            (
                "CUDARuntimeError",
                "cudaErrorMemoryAllocation: out of memory",
                MemoryError,
                "too little memory: an alloc",
            ),
            (
                "CUDARuntimeError",
                "cudaErrorIllegalAddress: an illegal memory access was encountered",
                RuntimeError,
                r"^GPU 0 \(emulated GPU\) failed: cudaErrorIllegalAddress: .*; Python must be started anew",
            ),
            (
                "CUDARuntimeError",
                "cudaErrorNoDevice: no CUDA-capable device",
                RuntimeError,
                "^CuPy sees no GPU .* nvidia",
            ),
            (
                "CUDARuntimeError",
                "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
                RuntimeError,
                r"^CuPy 14.2.0 is for CUDA 13.0, the driver of this machine for 12.4; .* 'kcalib\[cuda12\]'",
            ),
            (
                "DynamicLibNotFoundError",
                'Failure finding "libnvrtc.so.13 or libnvrtc.so.12": No such file: libnvrtc.so.13',
                ImportError,
                r"^CuPy 14.2.0 does not find a library .*libnvrtc\.so\.13.*pip install 'kcalib\[cuda13\]' ",
            ),
            (
                "CUDARuntimeError",
                "cudaErrorNoKernelImageForDevice: no kernel image is available for execution on the device",
                RuntimeError,
                r"^CuPy 14.2.0 has no code for GPU 0 \(emulated GPU\); .* pip install --upgrade",
            ),
            (
                "ImportError",
                'Failure finding "libcublasLt.so.13 or libcublasLt.so.12": No such file: libcublasLt.so.13',
                ImportError,
                "^CuPy 14.2.0 does not find a library of the CUDA version that it is for",
            ),
        ],
    )
    def test_one_sentence_each(self, cupy, kind, text, found, message):
        known = {
            "RuntimeError": RuntimeError,
            "ImportError": ImportError,
            "CUDARuntimeError": emulated_cupy.CUDARuntimeError,
        }
        other = type(kind, (RuntimeError,), {"__module__": "cupy_backends.cuda.libs.cusolver"})
        with emulated_cupy.properties(driver=12040), pytest.raises(found, match=message) as caught:
            _failing(known.get(kind, other)(text))(cupy.eye(2))
        assert type(caught.value) is found and "\n" not in str(caught.value)
        # Once said, it is not said again by a function around it.
        with pytest.raises(found) as again:
            _failing(caught.value)(cupy.eye(2))
        assert again.value is caught.value

    def test_no_driver(self, cupy):
        error = emulated_cupy.CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        with (
            emulated_cupy.properties(driver=0),
            pytest.raises(RuntimeError, match="^CuPy finds no NVIDIA driver on this machine; install one"),
        ):
            _failing(error)(cupy.eye(2))

    def test_errors_of_others_are_left_alone(self, cupy):
        for error in (RuntimeError("something else"), ValueError("`y_pred` is bad"), np.linalg.LinAlgError("singular")):
            with pytest.raises(type(error)) as caught:
                _failing(error)(cupy.eye(2))
            assert caught.value is error

    def test_a_kernel_that_does_not_compile(self, cupy, monkeypatch):
        monkeypatch.setattr(Program, "source", property(lambda self: '#line 1 "kcalib.cu"\nextern "C" nonsense;\n'))

        @devices.on_their_gpu
        def call(y_pred):
            Program((), ("-DKCALIB_REAL=double",)).launch("kcalib_sums", (1, 1), ())

        message = (
            r"^a kernel of kcalib does not compile for GPU 0 \(emulated GPU\) of compute capability 9\.0 with CuPy "
            r"14\.2\.0 and CUDA 13\.0: kcalib\.cu:1.*error.* "
            r"\(options -DKCALIB_THREADS=256 -DKCALIB_REAL=double\); report this message"
        )
        with pytest.raises(RuntimeError, match=message):
            call(cupy.eye(2))

    def test_a_kernel_of_cupy_that_does_not_compile(self, cupy):
        error = emulated_cupy.CompileException("cuda_fp16.h: catastrophic error: cannot open source file", "", "", ())
        with pytest.raises(
            RuntimeError, match=r"^CuPy 14\.2\.0 cannot compile a kernel of its own \(cuda_fp16\.h: cat"
        ):
            _failing(error)(cupy.eye(2))

    @pytest.mark.parametrize(
        ("properties", "message"),
        [
            ({"compute_capability": "61"}, r"has compute capability 6\.1, kcalib needs 7\.0 \(Volta\) or newer; bring"),
            ({"compute_capability": "70"}, r"has compute capability 7\.0, for which CUDA 13 no longer .*\[cuda12\]'$"),
            (
                {"is_hip": True},
                "^this CuPy is for AMD GPUs, kcalib's kernels are for NVIDIA GPUs; pass PyTorch tensors",
            ),
        ],
    )
    def test_gpus_that_are_not_supported(self, cupy, properties, message):
        faults.check_gpu.cache_clear()
        with emulated_cupy.properties(**properties), pytest.raises(RuntimeError, match=message):
            current(None, cupy.eye(2))
        with emulated_cupy.properties(compute_capability="70", runtime=12060):
            assert current(None, cupy.eye(2)) == 0
        faults.check_gpu.cache_clear()


class NoCuPy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "cupy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_without_cupy(library, monkeypatch):
    stand_ins = pytest.importorskip("cuda_stand_ins")
    tensor = (stand_ins.CudaTensor if library == "torch" else stand_ins.CudaJaxArray).of(np.eye(2))
    # As if it were not installed; array_api_compat takes None in sys.modules for the module.
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoCuPy, *sys.meta_path])
    remedy = r"pass y_pred\.cpu\(\)" if library == "torch" else "bring .* to the CPU"
    message = (
        r"^`y_pred` is on cuda:0, for which kcalib needs CuPy; pip install 'kcalib\[cuda13\]' "
        r"\(older drivers and GPUs: 'kcalib\[cuda12\]'\)"
    )
    for call in (lambda: current([0, 1], tensor), lambda: arrays.as_array(tensor, "y_pred")):
        with pytest.raises(ImportError, match=f"{message}, or {remedy}"):
            call()


def test_a_cupy_that_cannot_be_imported(tmp_path, monkeypatch):
    stand_ins = pytest.importorskip("cuda_stand_ins")
    folder = tmp_path / "cupy"
    folder.mkdir()
    text = "\n=====\nFailed to import CuPy.\n\nOriginal error:\n  ImportError: libcudart.so.12: cannot open it\n====="
    (folder / "__init__.py").write_text(f"raise ImportError({text!r})")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        ImportError, match=r"which cannot be imported \(ImportError: libcudart\.so\.12: cannot open it\); "
    ):
        current([0, 1], stand_ins.CudaTensor.of(np.eye(2)))


def test_memory_of_the_gpu_is_asked_where_the_array_is(cupy):
    with cupy.cuda.Device(1):
        array = cupy.zeros(4)
    with emulated_cupy.memory_limit(2**20 + emulated_cupy.used_bytes(1), device=1):
        assert available_memory_on_gpu(array.device) == 2**20
        check_memory(2**20, None, "tables", "make them smaller", array)
        with pytest.raises(MemoryError, match=r"tables take 2 MiB of memory on GPU 1, 1 MiB are available; make them"):
            check_memory(2**21, None, "tables", "make them smaller", array)
        with pytest.raises(MemoryError, match=r"on GPU 1, 0.5 MiB are allowed by `max_memory`"):
            check_memory(2**20, 2**19, "tables", "make them smaller", array)
        assert cupy.cuda.Device().id == 0


def _two(p: Any) -> dict[str, Any]:
    """Predictions of two models."""
    if isinstance(p, np.ndarray):
        return {"a": p, "b": 0.9 * p + 0.1 / 3}
    with p.device:
        return {"a": p, "b": 0.9 * p + 0.1 / 3}


# Calls of everything public that takes arrays, by name: with labels and probabilities, or targets and predictions.
QUICK = kcalib.methods.Adaptive(9, 16)
CLASSIFICATION = {
    "brier_decomposition": kcalib.brier_decomposition,
    "brier_score": kcalib.brier_score,
    "squared_calibration_error": lambda y, p: kcalib.squared_calibration_error(y, p, n_folds=2),
    "calibration_test": lambda y, p: kcalib.calibration_test(y, p, kernel=KERNEL, method=QUICK, seed=0),
    "worst_groups": lambda y, p: kcalib.worst_groups(
        y, p, {"half": np.arange(40) // 20}, min_size=5, n_resamples=9, seed=0
    ),
    "canonical_ece": kcalib.canonical_ece,
    "ckce": lambda y, p: kcalib.ckce(y, p, kernel=KERNEL, regularization=0.1),
    "class_wise_ece": kcalib.class_wise_ece,
    "compare": lambda y, p: kcalib.compare(y, _two(p), metric=kcalib.methods.SKCE(kernel=KERNEL)),
    "cumulative_calibration_error": lambda y, p: kcalib.cumulative_calibration_error(y, p, n_resamples=9),
    "debiased_ece": kcalib.debiased_ece,
    "evaluate": lambda y, p: kcalib.evaluate(y, p, kernel=KERNEL, method=QUICK, seed=0),
    **{
        name: functools.partial(getattr(kcalib, name), lens=kcalib.lenses.ClassWise(0))
        for name in (
            "hosmer_lemeshow_test",
            "integrated_calibration_index",
            "logistic_recalibration",
            "observed_expected_ratio",
            "spiegelhalter_test",
        )
    },
    "jkce": lambda y, p: kcalib.jkce(y, p, kernel=KERNEL),
    "kde_calibration_error": lambda y, p: kcalib.kde_calibration_error(y, p, bandwidth=0.1),
    "log_loss": kcalib.log_loss,
    "mmce": kcalib.mmce,
    "reliability": kcalib.reliability,
    "reliability, smooth": lambda y, p: kcalib.reliability(y, p, binning="smooth", n_bins=5),
    "score_samples": lambda y, p: kcalib.score_samples(y, p, "log_loss"),
    "skce": lambda y, p: kcalib.skce.result(y, p, kernel=KERNEL),
    "smooth_ece": kcalib.smooth_ece,
    "smallest_eigenvalue": lambda y, p: kcalib.smallest_eigenvalue(p, KERNEL),
    "top_label_ece": kcalib.top_label_ece,
    "ucme": lambda y, p: kcalib.ucme(y, p, kernel=KERNEL, locations=3, seed=0),
    "bandwidth.median_distance": lambda y, p: kcalib.bandwidth.median_distance(p),
    "recalibration.TemperatureScaling": lambda y, p: kcalib.recalibration.TemperatureScaling().fit(y, p).transform(p),
    "regression.KKR": lambda y, p: kcalib.regression.KKR(kernel=KERNEL).fit(y, p).squared_error(p),
    "regression.UKKR": lambda y, p: kcalib.regression.UKKR(kernel=KERNEL).fit(y, p).h(p),
    "solvers.solve": lambda y, p: kcalib.solvers.solve(kcalib.solvers.kernel_operator(p, KERNEL), p, 0.1).values,
}
TARGET_KERNEL = kcalib.kernels.Gaussian(bandwidth=1.0)
FORECASTS = {
    "crps": kcalib.crps,
    "log_score": kcalib.log_score,
    "pinball_loss": kcalib.pinball_loss,
    **{name: getattr(kcalib, name) for name in ("dawid_sebastiani_score", "ence", "miscalibration_area", "sharpness")},
    "pit_values": kcalib.pit_values,
    **{name: getattr(kcalib, name) for name in ("interval_score", "quantile_scores", "weighted_interval_score")},
    "quantile_calibration": kcalib.quantile_calibration,
    "evaluate": kcalib.evaluate,
    "skce": lambda y, q: kcalib.skce(y, q, kernel=KERNEL, target_kernel=TARGET_KERNEL),
    "distributions.wasserstein_distance": lambda y, q: kcalib.distributions.wasserstein_distance(q),
    "distributions.mmd_distance": lambda y, q: kcalib.distributions.mmd_distance(q, bandwidth=1.0),
}


def _memory(arguments: Any) -> list[bytes]:
    """What the arrays among arguments hold."""
    arrays = [a for x in arguments for a in ([x] if isinstance(x, emulated_cupy.ndarray) else vars(x).values())]
    found = [a._a.tobytes() for a in arrays if isinstance(a, emulated_cupy.ndarray)]
    assert found
    return found


# Ranges of parameters, by family.
FAMILIES = {
    "Normal": [(-1.0, 2.0), (0.5, 2.0)],
    "Laplace": [(-1.0, 2.0), (0.5, 2.0)],
    "PowerExponential": [(-1.0, 2.0), (0.5, 2.0), (1.0, 3.0)],
    "StudentT": [(3.0, 9.0), (-1.0, 2.0), (0.5, 2.0)],
    "LogNormal": [(-1.0, 2.0), (0.5, 2.0)],
    "Gamma": [(0.5, 3.0), (0.7, 2.0)],
    "Poisson": [(0.5, 9.0)],
    "NegativeBinomial": [(0.5, 9.0), (0.1, 1.0)],
    "Beta": [(0.5, 3.0), (0.7, 2.0)],
}


def _with_marks(calls: dict[str, Any]) -> list[Any]:
    """Names of calls; those that have many kernels compiled are slow here."""
    slow = {"squared_calibration_error", "evaluate"} if calls is FORECASTS else {"squared_calibration_error"}
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in calls]


def _numbers(result: Any, gpu: int) -> list[float]:
    """Every number in a result, in order; arrays on a GPU must be on this one."""
    if isinstance(result, emulated_cupy.ndarray):
        assert result.device.id == gpu
        return result.get().astype(float).reshape(-1).tolist()
    if isinstance(result, np.ndarray):
        return result.astype(float).reshape(-1).tolist() if result.dtype.kind in "biuf" else []
    if isinstance(result, (bool, int, float, np.number)):
        return [float(result)]
    if isinstance(result, dict):
        return [x for value in result.values() for x in _numbers(value, gpu)]
    if isinstance(result, (list, tuple)):
        return [x for value in result for x in _numbers(value, gpu)]
    if dataclasses.is_dataclass(result):
        names = [f.name for f in dataclasses.fields(result) if f.name not in ("seconds", "threads") and f.repr]
        return [x for name in names for x in _numbers(getattr(result, name), gpu)]
    return []


class TestEveryFunction:
    """On GPU 1 while GPU 0 is the current one: as on the CPU, and GPU 0 is current again."""

    def test_none_is_left_out(self):
        functions = {
            name
            for name in kcalib.__all__
            if callable(getattr(kcalib, name)) and not isinstance(getattr(kcalib, name), type)
        }
        assert functions <= {*CLASSIFICATION, *FORECASTS}

    @pytest.mark.parametrize("name", _with_marks(CLASSIFICATION))
    def test_classification(self, cupy, name):
        y, p = softmax_problem(40, 3, seed=4)
        self._check(cupy, CLASSIFICATION[name], (y, p), _on_gpu_1(cupy, y, p))

    @pytest.mark.parametrize("name", _with_marks(FORECASTS))
    def test_forecasts(self, cupy, name):
        rng = np.random.default_rng(0)
        y, mean, std = rng.normal(size=30), rng.normal(size=30), rng.uniform(0.5, 2, size=30)
        there = _on_gpu_1(cupy, y, mean, std)
        normal = kcalib.distributions.Normal
        self._check(cupy, FORECASTS[name], (y, normal(mean, std)), (there[0], normal(*there[1:])))

    @pytest.mark.parametrize("family", FAMILIES)
    def test_distributions(self, cupy, family):
        arrays = [np.linspace(low, high, 12) for low, high in FAMILIES[family]]
        here, there = (getattr(kcalib.distributions, family)(*a) for a in (arrays, _on_gpu_1(cupy, *arrays)))
        y = np.full(12, 0.5) if here.support in ("real", "unit") else np.arange(12.0)
        calls = {
            "quasi_sample": (4,),
            "sample": (2,),
            "parameters": (),
            "components": (),
            "wasserstein_points": (),
            "expected_value": (),
            "standard_deviation": (),
            "log_density": (y,),
            "cdf": (y,),
            "quantile": (0.3,),
        }
        for method, arguments in calls.items():
            expected = getattr(here.take(slice(2, 9)), method)(
                *(a[2:9] if isinstance(a, np.ndarray) else a for a in arguments)
            )
            try:
                found = getattr(there.take(slice(2, 9)), method)(
                    *(_on_gpu_1(cupy, a[2:9])[0] if isinstance(a, np.ndarray) else a for a in arguments)
                )
            except NotImplementedError:
                if method != "sample":
                    raise
                continue
            assert cupy.cuda.Device().id == 0
            np.testing.assert_allclose(_numbers(found, 1), _numbers(expected, 1), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize(
        ("name", "layout"),
        [
            *itertools.product(["skce", "class_wise_ece"], ["fortran", "strided", "reversed", "shifted"]),
            *[
                ("ckce", "strided"),
                ("calibration_test", "fortran"),
                ("reliability", "shifted"),
                ("brier_score", "reversed"),
            ],
        ],
    )
    def test_layouts(self, cupy, name, layout):
        y, p = softmax_problem(40, 3, seed=4)
        with cupy.cuda.Device(1):
            labels, there = cupy.asarray(y.astype(np.int32)), cupy.asarray(p)
            if layout == "fortran":
                there = cupy.asarray(p.T.copy()).T
            elif layout == "strided":
                labels, there = cupy.repeat(labels, 2)[::2], cupy.repeat(there, 2, axis=1)[:, ::2]
            elif layout == "reversed":
                labels, there = cupy.asarray(y[::-1].copy())[::-1], cupy.asarray(p[::-1].copy())[::-1]
            else:
                there = cupy.concatenate([cupy.zeros(1), there.reshape(-1)])[1:].reshape(40, 3)
        self._check(cupy, CLASSIFICATION[name], (y, p), (labels, there))

    def test_tensors_come_back_in_their_library(self, cupy, tensor):
        y, p = softmax_problem(40, 3, seed=4)
        found = kcalib.recalibration.TemperatureScaling().fit(tensor(y, 1), tensor(p, 1)).transform(tensor(p, 1))
        assert type(found) is type(tensor(p, 1)) and found.__dlpack_device__() == (2, 1)
        expected = kcalib.recalibration.TemperatureScaling().fit(y, p).transform(p)
        np.testing.assert_allclose(found.on_host(), expected, rtol=1e-9)
        assert kcalib.skce(tensor(y, 1), tensor(p, 1), kernel=KERNEL) == pytest.approx(kcalib.skce(y, p, kernel=KERNEL))
        assert cupy.cuda.Device().id == 0

    def _check(self, cupy, call, here, there):
        expected, before = _numbers(call(*here), 1), _memory(there)
        found = _numbers(call(*there), 1)
        assert cupy.cuda.Device().id == 0
        assert _memory(there) == before, "arguments were written to"
        assert len(found) == len(expected) and expected
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def _real_tensors(library: str, gpu: int = 0) -> Any:
    """``convert(values)`` to tensors of the library on a real GPU."""
    cupy = pytest.importorskip("cupy")
    if gpu >= cupy.cuda.runtime.getDeviceCount():
        pytest.skip(f"no GPU {gpu}")
    if library == "cupy":

        def to_cupy(values):
            with cupy.cuda.Device(gpu):
                return cupy.asarray(values)

        return to_cupy
    if library == "torch":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("PyTorch has no CUDA")
        return lambda values: torch.as_tensor(values, device=f"cuda:{gpu}")
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("cuda")[gpu]
    except RuntimeError:
        pytest.skip("JAX has no CUDA")

    def to_jax(values):
        with jax.enable_x64(True):
            return jax.numpy.asarray(values, device=device)

    return to_jax


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
class TestRealGPU:
    @pytest.mark.parametrize("gpu", [0, 1])
    def test_without_a_copy_and_back(self, library, gpu):
        import cupy

        before = cupy.cuda.Device().id
        original = _real_tensors(library, gpu)(np.arange(6.0).reshape(2, 3))
        array = arrays.as_array(original, "y_pred")
        assert isinstance(array, cupy.ndarray) and array.device.id == gpu
        address = {
            "cupy": lambda: original.data.ptr,
            "torch": lambda: original.data_ptr(),
            "jax": lambda: original.unsafe_buffer_pointer(),
        }
        assert array.data.ptr == address[library]()
        with array.device:
            back = arrays.to_original_library(array * 2, original)
        assert type(back) is type(original)
        assert arrays.to_host(back).tolist() == [[0, 2, 4], [6, 8, 10]]
        assert cupy.cuda.Device().id == before

    @pytest.mark.parametrize("gpu", [0, 1])
    def test_calls_agree_with_the_cpu(self, library, gpu):
        convert, (y, p) = _real_tensors(library, gpu), softmax_problem(300, 5, seed=2)
        found = kcalib.calibration_test(convert(y), convert(p), kernel=KERNEL, seed=1)
        expected = kcalib.calibration_test(y, p, kernel=KERNEL, seed=1)
        assert found.statistic == pytest.approx(expected.statistic, rel=1e-11)
        assert found.pvalue == pytest.approx(expected.pvalue, rel=1e-9)

    def test_work_that_is_under_way_is_waited_for(self, library):
        """Predictions are still being made, on a stream of their library's own, when kcalib is called."""
        import cupy

        convert, (y, p) = _real_tensors(library), softmax_problem(300, 5)
        expected = kcalib.skce(y, p, kernel=KERNEL)
        for _ in range(5):
            if library == "jax":
                slow = convert(np.ones((2000, 2000)))
                for _ in range(10):
                    slow = slow @ slow / 2000
                made = convert(p) * slow[0, 0]
            elif library == "torch":
                import torch

                with torch.cuda.stream(torch.cuda.Stream()):
                    slow = convert(np.ones((2000, 2000)))
                    for _ in range(10):
                        slow = slow @ slow / 2000
                    found = kcalib.skce(y, convert(p) * slow[0, 0], kernel=KERNEL)
                assert found == pytest.approx(expected, rel=1e-11)
                continue
            else:
                with cupy.cuda.Stream(non_blocking=True):
                    made = convert(p) * cupy.ones((2000, 2000)).mean()
                    assert kcalib.skce(y, made, kernel=KERNEL) == pytest.approx(expected, rel=1e-11)
                continue
            assert kcalib.skce(y, made, kernel=KERNEL) == pytest.approx(expected, rel=1e-11)

    def test_too_little_memory(self, library):
        import cupy

        convert, (y, p) = _real_tensors(library), softmax_problem(3000, 5)
        labels, predictions = convert(y), convert(p)
        pool = cupy.get_default_memory_pool()
        with (
            emulated_cupy.memory_limit(pool.used_bytes() + 2**16),
            pytest.raises(MemoryError, match=r"^GPU 0 has too lit"),
        ):
            kcalib.skce(labels, predictions, kernel=KERNEL)
        assert kcalib.skce(labels, predictions, kernel=KERNEL) == pytest.approx(
            kcalib.skce(y, p, kernel=KERNEL), rel=1e-11
        )
