"""Array libraries: the only file that imports array_api_compat.

Arrays on the CPU become NumPy arrays for the compiled core, without a copy if their library allows it. Arrays on NVIDIA
GPUs become CuPy arrays without a copy; by DLPack the current stream of CuPy waits for pending work of PyTorch or JAX.
Arrays on other devices, such as AMD GPUs and TPUs, stay as they are. `_input.labels` calls it for everything that a
user passes.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

from kcalib._backend.faults import import_cupy

Array = Any

# DLPack's numbers of devices: memory of the host, also pinned for CUDA or ROCm; of NVIDIA GPUs, also managed.
_DLPACK_HOST, _DLPACK_CUDA = (1, 3, 11), (2, 13)
_CUPY_FLOATS = ("float16", "float32", "float64")


def as_array(value: Any, name: str) -> Array:
    """Return numbers or strings as an aligned NumPy array, a CuPy array from an NVIDIA GPU, or else `value` itself."""
    if type(value) is np.ndarray and value.dtype.kind in "biufcU":  # the usual case
        return value if value.flags.aligned else value.copy()
    value = compute_lazy(value)
    if library(value) == "xarray" and hasattr(value, "dims") and hasattr(value, "data"):
        value = compute_lazy(value.data)  # of a DataArray, in whichever library it is
    elif library(value) == "pyarrow":
        value = _with_rows(value, name)
    if hasattr(value, "todense"):
        raise TypeError(f"`{name}` is sparse, expected a dense array; pass `{name}.todense()`")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        index = np.argwhere(np.ma.getmaskarray(value))[0]
        raise ValueError(f"`{name}{subscript(index)}` is masked, expected a value; drop or fill such entries first")
    if array_api_compat.is_torch_array(value):
        _check_not_sparse(value, name)
        if value.device.type == "meta":
            raise ValueError(f"`{name}` is on the device 'meta', whose tensors have no values; pass one with values")
        value = value.detach().resolve_conj().resolve_neg()
    elif array_api_compat.is_jax_array(value):
        _check_not_traced(value, name)
    if not isinstance(value, (np.ndarray, np.generic)) and array_api_compat.is_array_api_obj(value):
        if not _on_cpu(value):
            return _to_cupy(value, name) if on_nvidia_gpu(value) else value
        value = to_host(value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}` is not a rectangular array: {error}; give every row the same length") from None
    except (TypeError, RuntimeError) as error:  # arrays on GPUs, or tensors in a list that require gradients
        remedy = "convert it first"
        if "requires grad" in str(error):
            remedy = f"pass torch.cat({name}).detach()"
        elif isinstance(value, (list, tuple)):
            remedy = "for a list of arrays on a GPU stack these there, such as by torch.stack or cupy.stack"
        elif library(value) == "xarray":
            remedy = f'pass one of its variables, such as {name}["{next(iter(value), "p")}"]'
        raise TypeError(
            f"`{name}` is {type(value).__name__}, which cannot be read as an array: {error}; {remedy}"
        ) from None
    if array.dtype.kind in "OT":  # NumPy's variable-width strings (T) cannot be searched among others (U)
        return _without_objects(array.astype(object, copy=False), value, name)
    return _without_bfloat16(array if array.flags.aligned else array.copy())


def compute_lazy(value: Any) -> Any:
    """Compute lazy data: a Dask array as an array of its chunks' library, a LazyFrame of polars."""
    if type(value) is np.ndarray or value is None:
        return value
    name = library(value)
    if name == "dask":
        return value.compute()
    return value.collect() if name == "polars" and type(value).__name__ == "LazyFrame" else value


def _with_rows(value: Any, name: str) -> Any:
    """Return an Arrow array of lists of equal size as a 2-d array; other values unchanged."""
    size = getattr(getattr(value, "type", None), "list_size", None)
    if size is None:
        return value
    if value.null_count:
        first = value.is_null().to_pylist().index(True)
        raise ValueError(f"`{name}[{first}]` is missing (None), expected a row; drop or fill such rows first")
    flat = value.combine_chunks().flatten() if hasattr(value, "chunks") else value.flatten()
    return np.asarray(flat).reshape(len(value), size)


def _on_cpu(value: Array) -> bool:
    if library(value) == "array_api_strict":  # simulates devices, which are all the CPU for DLPack
        return "CPU" in str(value.device)
    if library(value) == "jax":  # may be on several devices, which DLPack refuses
        return all(device.platform == "cpu" for device in value.devices())
    return bool(value.__dlpack_device__()[0] in _DLPACK_HOST)


def on_nvidia_gpu(value: Array) -> bool:
    """Return whether CuPy can read an array of any library."""
    name = library(value)
    if name == "torch":
        import torch

        return bool(value.is_cuda) and torch.version.hip is None  # tensors on AMD GPUs are "cuda", too
    if name == "jax":
        return any(device.platform in ("gpu", "cuda") for device in value.devices()) and not any(
            "rocm" in str(device.client.platform_version) for device in value.devices()
        )
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] in _DLPACK_CUDA


def gpu_of(value: Array) -> int | None:
    """Return the number of the NVIDIA GPU of an array of any library; None elsewhere, and if it is on several GPUs."""
    if is_cuda(value):
        return int(value.device.id)
    if not on_nvidia_gpu(value) or (library(value) == "jax" and len(value.devices()) > 1):
        return None
    return int(value.__dlpack_device__()[1])


def _to_cupy(value: Array, name: str) -> Array:
    """Return an array on an NVIDIA GPU as a CuPy array with the same memory."""
    if is_cuda(value):
        return value
    if library(value) == "jax":
        _check_on_one_gpu(value, name)
    where = str(device(value))
    remedy = f"pass {name}.cpu()" if library(value) == "torch" else f"bring `{name}` to the CPU"
    cupy = import_cupy(f"`{name}` is on {where}", remedy)
    dtype = str(value.dtype).removeprefix("torch.")
    if "float" in dtype and dtype not in _CUPY_FLOATS:  # bfloat16 and smaller ones, which are exact in float32
        value = value.float() if library(value) == "torch" else value.astype("float32")
    try:
        return cupy.from_dlpack(value)
    except (TypeError, BufferError, NotImplementedError) as error:
        raise TypeError(
            f"`{name}` of dtype {dtype} on {where} cannot be passed to CuPy: {error}; convert it to float64, float32 "
            "or an integer type"
        ) from error


def _check_on_one_gpu(value: Any, name: str) -> None:
    gpus = value.devices()
    if len(gpus) > 1:
        raise ValueError(
            f"`{name}` lies on {len(gpus)} GPUs, kcalib computes on one; pass jax.device_put({name}, jax.devices()[0])"
        )


def _check_not_sparse(value: Any, name: str) -> None:
    import torch

    if value.layout != torch.strided:
        raise TypeError(f"`{name}` is sparse, expected a dense tensor; pass `{name}.to_dense()`")


def _check_not_traced(value: Any, name: str) -> None:
    import jax

    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"`{name}` is a traced JAX array, expected a concrete one; call kcalib outside jit and grad, "
            "or from jit by array_api_extra.lazy_apply"
        )


def _without_objects(array: np.ndarray, value: Any, name: str) -> np.ndarray:
    """Convert an object array of only strings or only numbers."""
    if array.ndim == 0:
        raise TypeError(f"`{name}` is {_describe_value(value)}, expected an array or a list")
    for index, entry in np.ndenumerate(array):
        if (
            entry is None
            or type(entry).__name__ in ("NAType", "NaTType")
            or (isinstance(entry, float) and math.isnan(entry))
        ):
            raise ValueError(
                f"`{name}{subscript(index)}` is missing ({entry}), expected a value; drop or fill such entries first"
            )
        if not isinstance(entry, (str, bool, int, float, np.number, np.bool_)):
            raise TypeError(
                f"`{name}{subscript(index)}` is {_describe_value(entry)} in an array of dtype object, "
                "expected a number or a string; convert the array first, such as by astype(float) or numpy.stack"
            )
        if isinstance(entry, str) != isinstance(array.flat[0], str):
            raise TypeError(
                f"`{name}{subscript(index)}` is {_describe_value(entry)}, but other entries are "
                f"{'numbers' if isinstance(entry, str) else 'strings'}; expected entries of one type"
            )
    return np.asarray(array.tolist())


def _describe_value(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 50 else text[:50] + '...'} ({type(value).__name__})"


def is_host(array: Array) -> bool:
    """Return whether `as_array` returned a NumPy array."""
    return isinstance(array, np.ndarray)


def is_cuda(array: Array) -> bool:
    """Return whether it is a CuPy array, as `as_array` returns for arrays on NVIDIA GPUs."""
    return type(array) is not np.ndarray and bool(array_api_compat.is_cupy_array(array))


def check_not_cuda(array: Array, computation: str) -> None:
    """Refuse an array on a GPU for a computation that needs the host; it is not moved silently."""
    if is_cuda(array):
        raise NotImplementedError(
            f"{computation} cannot be computed on a GPU ({describe_device(array)}); bring the arrays to the CPU first, "
            "such as by cupy.asnumpy(y_pred) or y_pred.cpu()"
        )


def to_compute_device(array: Array, dtype: Any = None) -> Array:
    """Return CuPy arrays unchanged and others as host arrays, in a dtype of NumPy if given."""
    if is_cuda(array):
        return array if dtype is None else namespace(array).astype(array, dtype, copy=False)
    array = to_host(array)
    return array if dtype is None else np.ascontiguousarray(array, dtype=dtype)


def check_no_threads(array: Array, threads: Any) -> None:
    """Refuse a number of threads for an array on a GPU."""
    if threads is not None and is_cuda(array):
        raise ValueError(f"`threads` has no effect on arrays on {describe_device(array)}; leave it out")


def as_compact(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return `array` C-contiguous and aligned in `dtype`, without a copy if possible."""
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, dtype, ["C", "A"])


def namespace(array: Array) -> Any:
    """Return the array API namespace of the library of an array."""
    if type(array) is np.ndarray:
        return np  # nearly the standard; the wrapper is slow to import and call
    return array_api_compat.array_namespace(array)


def device(array: Array) -> Any:
    return array_api_compat.device(array)


def to_host(array: Array) -> np.ndarray:
    """Return an array on any device as a NumPy array, without a copy from the CPU if its library allows it."""
    if type(array) is np.ndarray and array.dtype.kind in "biufcU":  # the usual case
        return array
    if array_api_compat.is_cupy_array(array):
        return np.asarray(array.get())
    if array_api_compat.is_torch_array(array):
        tensor = array.detach().cpu()
        # NumPy has no bfloat16; it is exact in float32.
        return np.asarray((tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy())
    if isinstance(array, np.ndarray) or array_api_compat.is_jax_array(array):
        return _without_bfloat16(np.asarray(array))
    return np.from_dlpack(array)


def _without_bfloat16(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def like(values: Any, reference: Array, dtype: Any = None) -> Array:
    """Return host `values` as an array of the library and on the device of `reference`."""
    if is_host(reference):
        return np.asarray(values, dtype=dtype)
    return namespace(reference).asarray(values, dtype=dtype, device=device(reference))


def to_original_library(array: Array, original: Any) -> Array:
    """Return `array`, computed from ``as_array(original)``, in the library of `original` (or NumPy)."""
    name = library(original)
    if is_cuda(array):
        if name == "torch":
            import torch

            return torch.from_dlpack(array)
        if name == "jax":
            import cupy
            import jax

            return jax.dlpack.from_dlpack(cupy.ascontiguousarray(array))  # JAX needs C order
        return array
    if not is_host(array) or not array_api_compat.is_array_api_obj(original) or name in ("numpy", "dask"):
        return array
    return like(array, original)


def asarray_like(array: Array, reference: Array) -> Array:
    """Return `array`, of any library and device, in the library and on the device of `reference`."""
    if is_host(array) and is_host(reference):
        return array
    if library(array) == library(reference) and device(array) == device(reference):
        return array
    if is_cuda(array):
        raise ValueError(
            f"one array is on {describe_device(array)}, another one on {describe_device(reference)}; "
            "bring them to one place, such as by cupy.asarray inside `with cupy.cuda.Device(0):`, or by cupy.asnumpy"
        )
    return like(to_host(array), reference)


def library(array: Array) -> str:
    """Return the name of the library of an array, for messages and results."""
    module = type(array).__module__.partition(".")[0]
    if module != "torch" and array_api_compat.is_torch_array(array):  # a subclass from another library
        return "torch"
    return "jax" if module == "jaxlib" else module


def describe_device(array: Array) -> str:
    if is_cuda(array):
        return f"GPU {array.device.id}"
    return "cpu" if is_host(array) else str(device(array))


def subscript(index: Any) -> str:
    """Return the index for messages, ``[2, 3]``; an empty text for a scalar."""
    return f"[{', '.join(str(int(i)) for i in index)}]" if len(index) else ""


def kind_of(array: Array) -> str:
    """Return a letter like dtype.kind of NumPy for any library."""
    if is_host(array):
        return str(array.dtype.kind)
    xp = namespace(array)
    kinds = {"b": "bool", "i": "integral", "f": "real floating", "c": "complex floating"}
    return next((kind for kind, name in kinds.items() if xp.isdtype(array.dtype, name)), "V")


def cast(xp: Any, array: Array, name: str, or_else: str | None = None) -> Array:
    """Return `array` in dtype `name`, or in `or_else` if the library lacks it."""
    dtype = getattr(xp, name)
    if array.dtype == dtype:
        return array
    result = xp.astype(array, dtype)
    if result.dtype not in (dtype, getattr(xp, or_else or name)):
        raise TypeError(
            f"{library(array)} turned {name} into {result.dtype}; enable 64-bit floats there "
            "(JAX: jax.config.update('jax_enable_x64', True)), pass dtype='float32', or pass a NumPy array"
        )
    return result
