"""Array libraries: the only file that imports array_api_compat.

Arrays on the CPU, of whichever library, become NumPy arrays here (through DLPack without
a copy where the library allows it), because that is what the compiled core reads. Arrays
on other devices stay what and where they are. Called by `_inputs` for everything a user
passes in.
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

Array = Any

_DLPACK_CPU = 1


def as_array(value: Any, name: str) -> Array:
    """`value` as a NumPy array, or unchanged if it is an array on another device.

    Raises
    ------
    TypeError
        If it is a sparse matrix, a traced JAX array, or not array-like at all.
    ValueError
        If it is a ragged list or has masked or missing entries.
    """
    module = type(value).__module__.partition(".")[0]
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            index = tuple(int(i) for i in np.argwhere(np.ma.getmaskarray(value))[0])
            raise ValueError(f"`{name}{_subscript(index)}` is masked, expected a value; drop or fill such rows first")
        return np.asarray(value.data)
    if isinstance(value, np.ndarray):
        return value
    if module == "scipy" and hasattr(value, "toarray"):
        raise TypeError(f"`{name}` is a sparse matrix, expected a dense array; pass `{name}.toarray()`")
    if module in ("pandas", "polars"):
        return _from_frame(value, name)
    if module == "torch":
        return _from_torch(value, name)
    if module in ("jax", "jaxlib"):
        return _from_jax(value, name)
    if array_api_compat.is_dask_array(value):
        return np.asarray(value.compute())
    if hasattr(value, "__dlpack_device__"):
        return np.from_dlpack(value) if value.__dlpack_device__()[0] == _DLPACK_CPU else value
    if array_api_compat.is_array_api_obj(value):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}` is not a rectangular array: {error}; give every row the same length") from None
    if array.dtype == object and array.ndim == 0:
        raise TypeError(f"`{name}` is {type(value).__name__}, expected an array or a list of numbers")
    return array


def _from_frame(value: Any, name: str) -> np.ndarray:
    array = np.asarray(value.to_numpy())
    if array.dtype == object:
        missing = [i for i, x in np.ndenumerate(array) if x is None or x != x or type(x).__name__ == "NAType"]
        if missing:
            raise ValueError(f"`{name}{_subscript(missing[0])}` is missing, expected a value; drop such rows first")
    return array


def _from_torch(value: Any, name: str) -> Array:
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"`{name}` is {type(value)}, expected a tensor")
    if value.layout != torch.strided:
        raise TypeError(f"`{name}` is a sparse tensor, expected a dense one; pass `{name}.to_dense()`")
    value = value.detach()
    if value.dtype == torch.bfloat16:  # no NumPy dtype; exact in float32
        value = value.float()
    return value.resolve_conj().resolve_neg().numpy() if value.device.type == "cpu" else value


def _from_jax(value: Any, name: str) -> Array:
    import jax

    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"`{name}` is a traced JAX array, expected a concrete one; call kcalib outside jit and grad")
    if not isinstance(value, jax.Array):
        raise TypeError(f"`{name}` is {type(value)}, expected an array")
    if any(device.platform != "cpu" for device in value.devices()):
        return value
    return np.asarray(value.astype("float32") if value.dtype == "bfloat16" else value)


def is_host(array: Array) -> bool:
    """Whether `as_array` brought the array to NumPy."""
    return isinstance(array, np.ndarray)


def namespace(*arrays: Array) -> Any:
    """The array API namespace of arrays of one library."""
    return array_api_compat.array_namespace(*arrays)


def device(array: Array) -> Any:
    return array_api_compat.device(array)


def to_host(array: Array) -> np.ndarray:
    """A NumPy copy of an array on any device (for O(n) results and small inputs)."""
    if isinstance(array, np.ndarray):
        return array
    if array_api_compat.is_cupy_array(array):
        return np.asarray(array.get())
    if array_api_compat.is_torch_array(array):
        return np.asarray(array.detach().cpu().numpy())
    if array_api_compat.is_jax_array(array):
        return np.asarray(array)
    try:
        return np.from_dlpack(array, device="cpu")
    except (BufferError, ValueError, TypeError, RuntimeError):
        xp = namespace(array)
        return np.from_dlpack(xp.asarray(array, device=xp.Device("CPU_DEVICE"))) if hasattr(xp, "Device") else np.asarray(array)


def like(values: Any, reference: Array, dtype: Any = None) -> Array:
    """Host `values` as an array of the reference's library on its device."""
    if is_host(reference):
        return np.asarray(values, dtype=dtype)
    return namespace(reference).asarray(values, dtype=dtype, device=device(reference))


def library(array: Array) -> str:
    """Name of the array's library, for messages and results."""
    return type(array).__module__.partition(".")[0]


def describe_device(array: Array) -> str:
    return "cpu" if is_host(array) else str(device(array))


def _subscript(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"
