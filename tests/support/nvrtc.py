"""NVRTC from its PyPI wheel: compiles CUDA text to machine code without a GPU or a driver."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

import pytest


@cache
def library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
    found = sorted(file for folder in folders for file in folder.glob("*/lib/libnvrtc.so.*") if "alt" not in file.name)
    if not found:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    return ctypes.CDLL(str(found[0]))


def cubin(source: str, options: tuple[str, ...], architecture: str) -> bytes:
    """Compile to the machine code of "sm_90", or to the assembly text (PTX) of "compute_90", which takes a quarter.

    Messages of the compiler are an AssertionError.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kcalib.cu", 0, None, None) == 0
    # CuPy adds the last two.
    every = [*options, f"--gpu-architecture={architecture}", "-ftz=true", "--device-as-default-execution-space"]
    array = (ctypes.c_char_p * len(every))(*(option.encode() for option in every))
    failed = nvrtc.nvrtcCompileProgram(program, len(every), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    # That old devices will be dropped is no warning about the text.
    messages = [
        line for line in log.value.decode().splitlines() if line.strip() and "are deprecated and may" not in line
    ]
    assert not failed and not messages, "\n".join(messages)[:4000]
    kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{kind}")(program, code) == 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw
