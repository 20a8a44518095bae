"""Kernels on NVIDIA GPUs: sources of src/cuda, compiled by NVRTC and launched.

The source is the shared headers and a .cu file after definitions for the required variant. CuPy caches the result on
disk, this module in memory. Launches use the current stream of the current device, which `_backend.arrays` has set.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Some constants of the headers are unused (177), and there are pragmas of other compilers (161).
# That functions are for the device unless they say otherwise CuPy asks for; an option must not be given twice.
OPTIONS = ("--std=c++17", "-diag-suppress=177,161")
THREADS = 256  # of a block


@dataclass(frozen=True)
class Program:
    """Files under src, concatenated, with definitions: a unit of compilation by NVRTC.

    Its functions run in blocks of `threads` threads, KCALIB_THREADS in the source.
    """

    files: tuple[str, ...]
    options: tuple[str, ...]
    threads: int = THREADS

    @property
    def source(self) -> str:
        return _source(self.files)

    @property
    def every_option(self) -> tuple[str, ...]:
        """Return the options for the compiler."""
        return (*OPTIONS, *define(THREADS=self.threads), *self.options)

    def blocks(self, count: int) -> int:
        """Return the number of blocks with at least `count` threads in total."""
        return -(-count // self.threads)

    def launch(self, name: str, grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        """Launch function `name` on a grid of blocks; None is a null pointer, a `struct` is passed by value."""
        import cupy

        module = _module(self.source, self.every_option, int(cupy.cuda.Device().id))
        filled = tuple(np.uintp(0) if argument is None else argument for argument in arguments)
        module.get_function(name)(grid, (self.threads,), filled)


def define(**numbers: int) -> tuple[str, ...]:
    """Return options that define numbers, such as KCALIB_TILE for TILE, which are thus written once."""
    return tuple(f"-DKCALIB_{name}={number}" for name, number in numbers.items())


def struct(layout: np.dtype, values: Mapping[str, Any]) -> np.ndarray:
    """Return a struct for passing by value: CuPy passes the bytes of a NumPy array with one element.

    `values` has for every field of `layout` a CuPy array (a pointer to it), None (a null pointer), a number, or the
    values of the fields of a struct.
    """
    filled = np.zeros((), dtype=layout)
    _fill(filled, values)
    return filled


def layout_check(name: str, layout: np.dtype) -> str:
    """Return a C++ expression for whether struct `name` in the source has the layout `layout`.

    The sizes of struct and fields and the order of fields must agree: then offsets agree. (NVRTC has no offsetof.
    `Instance<S>::of` in the source is a constant of type S.)
    """
    fields = layout.names or ()
    sizes = [f"sizeof({name}::{field})=={layout[field].itemsize}" for field in fields]
    addresses = [f"(const void*)&Instance<{name}>::of.{field}" for field in fields]
    order = [f"{before}<{behind}" for before, behind in itertools.pairwise(addresses)]
    return "&&".join([f"sizeof({name})=={layout.itemsize}", *sizes, *order])


def _fill(filled: Any, values: Mapping[str, Any]) -> None:
    if set(values) != set(filled.dtype.names):
        raise TypeError(f"the struct has the fields {filled.dtype.names}, not {tuple(values)}")
    for field, value in values.items():
        if isinstance(value, Mapping):
            _fill(filled[field], value)
        elif value is not None:
            filled[field] = value if isinstance(value, (int, np.integer)) else value.data.ptr


@functools.cache
def _module(source: str, options: tuple[str, ...], device: int) -> Any:
    import cupy

    return cupy.RawModule(code=source, options=options)


@functools.cache
def _source(files: tuple[str, ...]) -> str:
    """Return the concatenated files under src."""
    folder = importlib.resources.files("kcalib") / "_src"
    parts = []
    for file in files:
        text = (folder / file).read_text(encoding="utf-8")
        text = re.sub(r'^#(pragma once|include "[^"]*")$', "", text, flags=re.MULTILINE)
        parts.append(f'#line 1 "{file}"\n{text}\n')
    return "".join(parts)


def tensor_float() -> bool:
    """Return whether CuPy is set to round factors of float32 products to TF32."""
    return os.environ.get("CUPY_TF32", "0") not in ("", "0")
