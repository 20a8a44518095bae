"""Arrays on GPUs from the user's call to the kernels, and what is said when it cannot be."""

from __future__ import annotations

import sys
from typing import Any

import emulated_cupy
import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib import _arrays, _inputs
from kcalib._memory import available_memory_on_gpu, check_memory

KERNEL = kcalib.kernels.Exponential(bandwidth=0.5)


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
        array = _arrays.as_array(values, "y_pred")
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
            back = _arrays.restored(result, original)
            assert type(back) is type(original)
            assert back.__dlpack_device__() == (2, 1)
            assert back.on_host().tolist() == [[1, 2], [3, 4]]
            if type(back).__name__ == "CudaTensor":  # the other stand-in copies
                assert back.on_host().ctypes.data == result._a.ctypes.data
            assert _arrays.restored(result.T, original).on_host().tolist() == [[1, 3], [2, 4]]
            assert _arrays.restored(result, result) is result

    def test_bfloat16_becomes_float32_in_its_library(self, cupy, tensor):
        y, p = softmax_problem(30, 3)
        half = tensor(p).astype("bfloat16") if hasattr(tensor(p), "astype") else tensor(p).bfloat16()
        data = _inputs.prepare(y, half)
        assert isinstance(data.probabilities, cupy.ndarray)
        assert data.input_epsilon == 2.0**-7
        np.testing.assert_allclose(data.probabilities.get(), p, rtol=2.0**-8)

    def test_gradients_and_lazy_views_are_resolved(self, cupy, torch_tensor):
        y, p = softmax_problem(30, 3)
        expected = kcalib.skce(y, p)
        wanted = torch_tensor(p).requires_grad_()
        assert kcalib.skce(y, wanted) == pytest.approx(expected, rel=1e-12)
        lazy = torch_tensor(-1j * p).conj().imag
        assert lazy.is_neg()
        assert kcalib.skce(y, lazy) == pytest.approx(expected, rel=1e-12)

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

    def test_amd_gpus_are_left_to_the_generic_operator(self, cupy, torch_tensor, monkeypatch):
        monkeypatch.setattr(sys.modules["torch"].version, "hip", "6.4")
        values = torch_tensor(np.eye(2))
        assert not _arrays.on_nvidia_gpu(values)
        monkeypatch.setattr(type(values), "__dlpack_device__", lambda self: (10, 0))
        assert _arrays.library(_arrays.as_array(values, "y_pred")) == "torch"

    def test_pinned_memory_is_the_host(self, monkeypatch):
        torch = pytest.importorskip("torch")
        tensor = torch.eye(2)
        monkeypatch.setattr(torch.Tensor, "__dlpack_device__", lambda self: (3, 0))
        assert type(_arrays.as_array(tensor, "y_pred")) is np.ndarray


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
