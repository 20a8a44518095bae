"""Kernels on NVIDIA GPUs: the text of src/cuda, compiled by NVRTC for a device and launched there.

What is compiled is the text of the shared headers and of a .cu file behind definitions of the wanted combination. CuPy
keeps the result on disk, and this module in memory. Launches go to the current stream of the current device, where
`_backend.arrays` has seen to it that the arrays are. Called by `_pairs.operators.cuda` and whoever else has a .cu file.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Not all of the headers' constants are used in every combination (177), and they have pragmas of other compilers (161).
# That functions are for the device unless they say otherwise CuPy asks for; an option must not be given twice.
OPTIONS = ("--std=c++17", "-diag-suppress=177,161")


@dataclass(frozen=True)
class Program:
    """Files under src, one behind the other, with definitions: what NVRTC compiles at once."""

    files: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def source(self) -> str:
        return _source(self.files)

    @property
    def every_option(self) -> tuple[str, ...]:
        """What is passed to the compiler."""
        return (*OPTIONS, *self.options)

    def launch(self, name: str, grid: tuple[int, int], threads: int, arguments: Sequence[Any]) -> None:
        """Run function `name` on a grid of blocks of `threads` threads; an argument None is a null pointer."""
        import cupy

        module = _module(self.source, self.every_option, int(cupy.cuda.Device().id))
        filled = tuple(np.uintp(0) if argument is None else argument for argument in arguments)
        module.get_function(name)(grid, (threads,), filled)


@functools.cache
def _module(source: str, options: tuple[str, ...], device: int) -> Any:
    import cupy

    return cupy.RawModule(code=source, options=options)


@functools.cache
def _source(files: tuple[str, ...]) -> str:
    """The text of files under src, pasted one behind the other.

    Includes are left out: CuPy's cache is keyed by the text and would not see that an included file has changed.
    """
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
