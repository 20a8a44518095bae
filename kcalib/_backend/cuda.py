"""Kernels on NVIDIA GPUs: the text of src/cuda, compiled by NVRTC for a device and launched there.

What is compiled is the text of the shared headers and of a .cu file behind definitions of the wanted combination. CuPy
keeps the result on disk, and this module in memory. Launches go to the current stream of the current device, where
`_backend.arrays` has seen to it that the arrays are. Called by `_pairs.backends.cuda` and whoever else has a .cu file.
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

# Not all of the headers' constants are used in every combination (177), and they have pragmas of other compilers (161).
# That functions are for the device unless they say otherwise CuPy asks for; an option must not be given twice.
OPTIONS = ("--std=c++17", "-diag-suppress=177,161")
THREADS = 256  # of a block


@dataclass(frozen=True)
class Program:
    """Files under src, one behind the other, with definitions: what NVRTC compiles at once.

    Its functions run in blocks of `threads` threads, a number that the text reads as KCALIB_THREADS.
    """

    files: tuple[str, ...]
    options: tuple[str, ...]
    threads: int = THREADS

    @property
    def source(self) -> str:
        return _source(self.files)

    @property
    def every_option(self) -> tuple[str, ...]:
        """What is passed to the compiler."""
        return (*OPTIONS, *define(THREADS=self.threads), *self.options)

    def blocks(self, count: int) -> int:
        """How many blocks have at least `count` threads."""
        return -(-count // self.threads)

    def launch(self, name: str, grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        """Run function `name` on a grid of blocks; None is a null pointer, a `struct` is passed by value."""
        import cupy

        module = _module(self.source, self.every_option, int(cupy.cuda.Device().id))
        filled = tuple(np.uintp(0) if argument is None else argument for argument in arguments)
        module.get_function(name)(grid, (self.threads,), filled)


def define(**numbers: int) -> tuple[str, ...]:
    """Options of the compiler that define numbers, so that they are written down once: KCALIB_TILE for TILE."""
    return tuple(f"-DKCALIB_{name}={number}" for name, number in numbers.items())


def struct(layout: np.dtype, values: Mapping[str, Any]) -> np.ndarray:
    """A struct that a launch passes by value: CuPy takes a NumPy array of one element as the bytes of an argument.

    `values` has for every field of `layout` a CuPy array (a pointer to it), None (a null pointer), a number, or, for
    a field that is a struct, what its fields are.
    """
    filled = np.zeros((), dtype=layout)
    _fill(filled, values)
    return filled


def layout_check(name: str, layout: np.dtype) -> str:
    """Whether struct `name` of the compiled text is laid out as `layout`, as an expression of C++.

    It has to be as large, and its fields have to be as large and in this order: then they are at the same offsets.
    (NVRTC has no offsetof. `Instance<S>::of` in the text is a constant of type S.)
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
    """The text of files under src, pasted one behind the other."""
    folder = importlib.resources.files("kcalib") / "_src"
    parts = []
    for file in files:
        text = (folder / file).read_text(encoding="utf-8")
        text = re.sub(r'^#(pragma once|include "[^"]*")$', "", text, flags=re.MULTILINE)
        parts.append(f'#line 1 "{file}"\n{text}\n')
    return "".join(parts)


def tensor_float() -> bool:
    """Whether CuPy is told to round factors of float32 products to the 3 digits of TF32."""
    return os.environ.get("CUPY_TF32", "0") not in ("", "0")
