"""Array libraries that the tests run over, and how their arrays are made."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import emulated_cupy
import numpy as np
import pytest

MakeProblem = Callable[..., tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Library:
    """An array library and a device of it."""

    name: str
    backend: str  # the backend that its arrays go to
    convert: Callable[[np.ndarray], Any]

    @property
    def on_host(self) -> bool:
        """Whether kcalib computes with NumPy arrays."""
        return self.backend == "cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether its arrays are on an NVIDIA GPU, which nothing is copied off."""
        return self.backend == "cuda"

    def asarray(self, values: Any, dtype: Any = None) -> Any:
        """`values` as an array of the library, on the device, of the same dtype."""
        return self.convert(np.array(values, dtype=dtype))


GPU_LIBRARIES = ("cupy", "torch-cuda", "jax-cuda")


# NumPy cannot read arrays on the fake device of array-api-strict, which stands for whatever is no NVIDIA GPU.
DEVICE_LIBRARIES = ("array_api_strict-device1", "cupy-emulated", *GPU_LIBRARIES)


LIBRARIES = ("numpy", "array_api_strict", "torch", "jax", "dask", *DEVICE_LIBRARIES)


def library(name: str) -> Library:
    """The array library called `name`; skips the test where it, or its device, is absent.

    "cupy-emulated" is for what is done inside `emulated_cupy.installed()`.
    """
    if name == "cupy-emulated":
        return Library(name, "cuda", emulated_cupy.asarray)
    module = importlib.import_module(_installed(name.partition("-")[0]))
    backend = "cuda" if name in GPU_LIBRARIES else "array-api" if name in DEVICE_LIBRARIES else "cpu"
    if name in ("jax", "jax-cuda", "dask"):
        convert = _dask_array if name == "dask" else functools.partial(_jax_array, platform=name.partition("-")[2])
        return Library(name, backend, convert)
    options = {}
    if name == "array_api_strict-device1":
        options["device"] = module.Device("device1")
    elif name == "torch-cuda":
        if not module.cuda.is_available():
            pytest.skip("no GPU")
        options["device"] = "cuda"
    return Library(name, backend, functools.partial(module.asarray, **options))


def _installed(package: str) -> str:
    """Its name; skips where it is not there, found once in a process: an import that fails takes 10 ms."""
    if not is_installed(package):
        pytest.skip(f"could not import '{package}'")
    return package


@functools.cache
def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _jax_array(values: np.ndarray, platform: str = "") -> Any:
    import jax

    try:
        device = jax.devices(platform or "cpu")[0]
    except RuntimeError:
        pytest.skip(f"JAX has no device for {platform}")
    with jax.enable_x64(True):
        return jax.numpy.asarray(values, device=device)


def _dask_array(values: np.ndarray) -> Any:
    import dask.array

    return dask.array.from_array(values, chunks=-1 if values.ndim == 0 else max(1, len(values) // 3))
