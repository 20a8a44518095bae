"""Tensors of PyTorch and arrays of JAX that say they are on a GPU, on a machine without one.

Their numbers lie in host memory, and the emulated CuPy reads them there by DLPack, as the real one would on a device.
`returned(monkeypatch)` is how they come back: what the libraries' `from_dlpack` do with arrays of the emulation.
"""

from __future__ import annotations

from typing import Any

import emulated_cupy
import numpy as np
import pytest

jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")


class CudaTensor(torch.Tensor):
    """A tensor on GPU `gpu`."""

    gpu = 0

    @staticmethod
    def of(values: Any, gpu: int = 0, dtype: Any = None) -> CudaTensor:
        tensor = torch.as_tensor(values, dtype=dtype).as_subclass(CudaTensor)
        tensor.gpu = gpu
        return tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(found, CudaTensor) and args and isinstance(args[0], CudaTensor):
            found.gpu = args[0].gpu
        return found

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.gpu)

    def get_device(self) -> int:
        return self.gpu

    def numpy(self, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.gpu

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, copy: Any = None, **kwargs: Any) -> Any:
        assert isinstance(stream, int)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if emulated_cupy.Device().id != self.gpu:
            raise BufferError("Can't export tensors on a different CUDA device index.")
        return self.as_subclass(torch.Tensor).__dlpack__(max_version=max_version)

    def on_host(self) -> np.ndarray:
        return np.from_dlpack(self.detach().as_subclass(torch.Tensor))


class _Client:
    platform_version = "PJRT C API\ncuda 13000"


class _CudaDevice:
    platform, client = "gpu", _Client()

    def __init__(self, gpu: int) -> None:
        self.id = gpu

    def __str__(self) -> str:
        return f"cuda:{self.id}"


class CudaJaxArray(jax.Array):
    """A JAX array on GPUs, `gpus`."""

    def __init__(self, array: Any, gpus: tuple[int, ...] = (0,)) -> None:
        self._array, self._gpus = array, gpus

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    device = property(lambda self: _CudaDevice(self._gpus[0]))

    @staticmethod
    def of(values: Any, *gpus: int) -> CudaJaxArray:
        with jax.enable_x64(True):
            return CudaJaxArray(jax.numpy.asarray(values), gpus or (0,))

    def devices(self) -> set[Any]:
        return {_CudaDevice(gpu) for gpu in self._gpus}

    def astype(self, dtype: Any) -> CudaJaxArray:
        return CudaJaxArray(self._array.astype(dtype), self._gpus)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an array was copied off the GPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        if len(self._gpus) > 1:
            raise BufferError("__dlpack__ only supported for unsharded arrays.")
        return 2, self._gpus[0]

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, copy: Any = None, **kwargs: Any) -> Any:
        assert isinstance(stream, int) and len(self._gpus) == 1
        return self._array.__dlpack__(max_version=max_version)

    def on_host(self) -> np.ndarray:
        return np.asarray(self._array)


CudaJaxArray.__module__ = "jaxlib._jax"


def returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the libraries take arrays of the emulated CuPy."""

    def to_torch(array: Any) -> CudaTensor:
        assert isinstance(array, emulated_cupy.ndarray)
        return CudaTensor.of(torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=1)), array.device.id)

    def to_jax(array: Any) -> CudaJaxArray:
        assert isinstance(array, emulated_cupy.ndarray)
        assert array.flags.c_contiguous
        return CudaJaxArray.of(np.from_dlpack(emulated_cupy._Exported(array.__dlpack__(stream=1))), array.device.id)

    monkeypatch.setattr(torch, "from_dlpack", to_torch)
    monkeypatch.setattr(jax.dlpack, "from_dlpack", to_jax)
