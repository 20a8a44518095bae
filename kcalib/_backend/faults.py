"""Errors on GPUs, each in one sentence with a remedy: no CuPy, the wrong one, no memory, a broken kernel.

`explain_error` recognises errors of CuPy, the driver and the compiler by names and texts, since CuPy may not be
importable. `arrays` uses it when it needs CuPy, `devices` around every public function.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

_LIBRARIES = r"(?:lib|cuda)?(nvrtc|cudart|cublasLt|cublas|cusolver|cusparse|curand|cufft|nvJitLink)\w*[.\w-]*"


def import_cupy(location: str, remedy: str) -> Any:
    """Import CuPy for an array of another library; arguments are like "`y_pred` is on cuda:0", "pass y_pred.cpu()"."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise
        raise ImportError(
            f"{location}, for which kcalib needs CuPy; pip install 'kcalib[cuda13]' (older drivers and GPUs: "
            f"'kcalib[cuda12]'), or {remedy}",
            name="cupy",
        ) from None
    except ImportError as error:
        raise ImportError(
            f"{location}, for which kcalib needs CuPy, which cannot be imported ({_tell(error)}); "
            "pip uninstall all packages called cupy, then pip install 'kcalib[cuda13]' (older drivers and GPUs: "
            f"'kcalib[cuda12]'), or {remedy}",
            name="cupy",
        ) from error
    return cupy


@functools.cache
def check_gpu(gpu: int) -> None:
    """Refuse a GPU that the kernels do not support."""
    import cupy

    if cupy.cuda.runtime.is_hip:
        raise RuntimeError(
            "this CuPy is for AMD GPUs, kcalib's kernels are for NVIDIA GPUs; pass PyTorch tensors, which need no "
            "CuPy there, or bring the arrays to the CPU, such as by cupy.asnumpy(y_pred)"
        )
    capability = int(cupy.cuda.Device(gpu).compute_capability)
    if capability < 70:
        raise RuntimeError(
            f"{describe_gpu(gpu)} has compute capability {capability / 10}, kcalib needs 7.0 (Volta) or newer; "
            "bring the arrays to the CPU, such as by cupy.asnumpy(y_pred) or y_pred.cpu()"
        )
    if capability < 75 and cupy.cuda.runtime.runtimeGetVersion() >= 13000:
        raise RuntimeError(
            f"{describe_gpu(gpu)} has compute capability {capability / 10}, for which CUDA 13 no longer compiles; "
            "pip uninstall cupy-cuda13x, then pip install 'kcalib[cuda12]'"
        )


def explain_error(error: Exception, gpu: int) -> Exception | None:
    """Return an error to raise instead of one of CuPy, CUDA libraries or the compiler; None for other errors."""
    kind, text = type(error), str(error)
    name, origin = kind.__name__, kind.__module__.partition(".")[0]
    if origin not in ("cupy", "cupy_backends", "cuda", "builtins") or getattr(error, "name", "") == "cupy":
        return None  # the second is an error of this file
    missing = re.search(_LIBRARIES, text) and re.search(r"fail|cannot open|not find|No such file", text, re.IGNORECASE)
    loading = isinstance(error, (ImportError, OSError, RuntimeError)) or "nvrtc-builtins" in text
    if missing and loading and name != "CUDARuntimeError":
        return ImportError(
            f"CuPy {_cupy_version()} does not find a library of the CUDA version that it is for ({_tell(error)}); "
            "pip uninstall all packages called cupy, then pip install 'kcalib[cuda13]' (older drivers and GPUs: "
            "'kcalib[cuda12]')",
            name="cupy",
        )
    if origin == "builtins":
        return None
    if name == "OutOfMemoryError" or re.search(
        r"cudaErrorMemoryAllocation|ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY", text
    ):
        return _out_of_memory(text, gpu)
    if name == "CompileException":
        return _not_compiled(error, gpu)
    if "InsufficientDriver" in text or "UNSUPPORTED_PTX_VERSION" in text or "UnsupportedPtxVersion" in text:
        driver = _version("driverGetVersion")
        if not driver:
            return RuntimeError(
                "CuPy finds no NVIDIA driver on this machine; install one and see whether nvidia-smi lists the GPU, or "
                "pass arrays on the CPU"
            )
        return RuntimeError(
            f"CuPy {_cupy_version()} is for CUDA {_version('runtimeGetVersion')}, the driver of this machine for "
            f"{driver}; update the driver, or pip uninstall all packages called cupy, then pip install "
            "'kcalib[cuda12]', or pass arrays on the CPU"
        )
    if "NoKernelImageForDevice" in text or "NO_BINARY_FOR_GPU" in text:
        return RuntimeError(
            f"CuPy {_cupy_version()} has no code for {describe_gpu(gpu)}; pip uninstall all packages called cupy, "
            "then pip install --upgrade 'kcalib[cuda13]' (older GPUs: 'kcalib[cuda12]'), or pass arrays on the CPU"
        )
    if "cudaErrorNoDevice" in text or "NO_DEVICE" in text:
        return RuntimeError(
            "CuPy sees no GPU (cudaErrorNoDevice); see whether nvidia-smi lists one and whether CUDA_VISIBLE_DEVICES "
            "hides it, or pass arrays on the CPU"
        )
    if name in ("CUDARuntimeError", "CUDADriverError"):
        return RuntimeError(
            f"{describe_gpu(gpu)} failed: {_tell(error)}; Python must be started anew, as nothing more can be "
            f"computed there; if it happens again with CUDA_LAUNCH_BLOCKING=1 in the environment, report this message"
        )
    return None


def describe_gpu(gpu: int) -> str:
    """Return a description such as ``GPU 0 (NVIDIA H200)``."""
    try:
        import cupy

        return f"GPU {gpu} ({cupy.cuda.runtime.getDeviceProperties(gpu)['name'].decode()})"
    except Exception:  # the driver may be what has failed
        return f"GPU {gpu}"


def _out_of_memory(text: str, gpu: int) -> MemoryError:
    match = re.search(r"allocating ([\d,]+) bytes", text)
    try:
        import cupy

        with cupy.cuda.Device(gpu) as device:
            free = f", {format_size(device.mem_info[0])} of {format_size(device.mem_info[1])} were free"
    except Exception:  # a failed device does not say
        free = ""
    amount = f"{format_size(int(match[1].replace(',', '')))} more were needed" if match else "an allocation failed"
    return MemoryError(
        f"GPU {gpu} has too little memory: {amount}{free}; free what other arrays take "
        "(PyTorch: torch.cuda.empty_cache(); JAX: XLA_PYTHON_CLIENT_PREALLOCATE=false in the environment), pass fewer "
        "samples, or bring the arrays to the CPU"
    )


def _not_compiled(error: Any, gpu: int) -> RuntimeError:
    message = _first_error(str(error))
    if "kcalib" not in getattr(error, "source", ""):
        return RuntimeError(
            f"CuPy {_cupy_version()} cannot compile a kernel of its own ({message}); CUDA's headers may be missing or "
            "of another version: pip uninstall all packages called cupy, then pip install 'kcalib[cuda13]' (older "
            "drivers and GPUs: 'kcalib[cuda12]')"
        )
    import cupy

    options = " ".join(option for option in error.options if option.startswith("-DKCALIB"))
    return RuntimeError(
        f"a kernel of kcalib does not compile for {describe_gpu(gpu)} of compute capability "
        f"{int(cupy.cuda.Device(gpu).compute_capability) / 10} with CuPy {_cupy_version()} and CUDA "
        f"{_version('runtimeGetVersion')}: {message} (options {options}); report this message, and bring the arrays to "
        "the CPU meanwhile"
    )


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")[:300]


def _tell(error: Exception) -> str:
    """Return the line of a message that says what is wrong; CuPy adds rulers and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =-")]
    telling = [line for line in lines if re.search(r"[A-Z]\w*Error:|lib\w+\.so", line)]
    return ((telling or lines or [type(error).__name__])[0])[:300]


def _cupy_version() -> str:
    return str(getattr(sys.modules.get("cupy"), "__version__", ""))


def _version(function: str) -> str:
    """Return a version such as ``13.2``; an empty text without a driver."""
    try:
        import cupy

        version = int(getattr(cupy.cuda.runtime, function)())
    except Exception:  # asked for in a message about that
        return ""
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def format_size(size: int) -> str:
    """Format a number of bytes."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
