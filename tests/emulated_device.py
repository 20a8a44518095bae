"""A `Device` of the cuda operator on the CPU: the same text, compiled as C++ behind cuda_emulation.h."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from kcalib._operators.cuda import THREADS

HEADER = Path(__file__).with_name("cuda_emulation.h")
FOLDER = tempfile.TemporaryDirectory(prefix="kcalib-emulated-")


@functools.cache
def library(source: str, options: tuple[str, ...]) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "the emulation needs a C++ compiler, as the build does"
    functions = re.findall(r'extern "C" __global__ void (\w+)', source)
    text = f'#include "{HEADER}"\n{source}\n' + "".join(f"EMULATED({name})\n" for name in functions)
    stem = Path(FOLDER.name) / hashlib.sha256("\0".join((text, *options)).encode()).hexdigest()[:16]
    stem.with_suffix(".cpp").write_text(text)
    definitions = [option for option in options if option.startswith("-D")]
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-Wall", "-Wno-unknown-pragmas"]
    quiet = ["-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Werror"]
    output = str(stem.with_suffix(".so"))
    command = [compiler, *flags, *quiet, *definitions, "-o", output, str(stem.with_suffix(".cpp"))]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[:4000]
    return ctypes.CDLL(output)


class EmulatedDevice:
    """NumPy arrays; thread blocks one after the other."""

    xp = np

    def __init__(self) -> None:
        self.launched: list[tuple[tuple[str, ...], str]] = []

    def launch(self, source, options, name, grid, arguments) -> None:
        self.launched.append((options, name))
        kept, pointers = [], []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                assert argument.flags.c_contiguous
                value: object = ctypes.c_void_p(argument.ctypes.data if argument.size else 0)
            elif isinstance(argument, np.uintp):
                value = ctypes.c_void_p(int(argument))
            elif isinstance(argument, np.float64):
                value = ctypes.c_double(argument)
            else:
                assert isinstance(argument, (np.int64, np.uint64)), type(argument)
                value = ctypes.c_ulonglong(int(argument) % 2**64)
            kept.append(value)
            pointers.append(ctypes.addressof(value))
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        getattr(library(source, options), f"emulated_{name}")(*grid, THREADS, array)
