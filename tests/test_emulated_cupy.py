"""The module that stands for CuPy: as strict as the real one, and with no function that this one lacks."""

from __future__ import annotations

import json
import subprocess
import sys

import emulated_cupy
import numpy as np
import pytest

REAL = """
import json, sys, cupy
names = json.load(sys.stdin)
places = {"cupy": cupy, "linalg": cupy.linalg, "methods": cupy.ndarray}
print(json.dumps([name for place in names for name in names[place] if not hasattr(places[place], name)]))
"""


def test_the_real_one_has_every_name():
    names = {
        "cupy": [*emulated_cupy.FUNCTIONS, *emulated_cupy.CREATION, *emulated_cupy.CONSTANTS],
        "linalg": emulated_cupy.LINALG,
        "methods": emulated_cupy.METHODS,
    }
    found = subprocess.run(
        [sys.executable, "-P", "-c", REAL], input=json.dumps(names), capture_output=True, text=True, check=False
    )
    if "No module named 'cupy'" in found.stderr:
        pytest.skip("CuPy is not installed")
    assert json.loads(found.stdout) == [], found.stderr


def test_arrays_do_not_become_numpy_arrays(cupy):
    there, here = cupy.zeros(3), np.zeros(3)
    for operation in (
        lambda: np.asarray(there),
        lambda: np.sum(there),
        lambda: there + here,
        lambda: here + there,
        lambda: cupy.sum(here),
        lambda: there[np.array([0])],
    ):
        with pytest.raises(TypeError):
            operation()
    assert (np.float64(2) * cupy.ones(3)).get().tolist() == [2, 2, 2]


def test_what_leaves_the_device_is_counted(cupy):
    emulated_cupy.transfers.clear()
    array = cupy.ones((2, 3))
    assert float(array.sum()) == 6 and array.get().shape == (2, 3)
    assert emulated_cupy.transfers == [1, 6]


def test_operations_need_their_device(cupy):
    with cupy.cuda.Device(1):
        other = cupy.ones(3)
        assert float(cupy.sum(other)) == 3
    with pytest.raises(ValueError, match="must be same as the current device"):
        cupy.sum(other)


def test_memory_is_limited_and_freed(cupy):
    used = cupy.get_default_memory_pool().used_bytes()
    with emulated_cupy.memory_limit(used + 1000):
        array = cupy.zeros(100)
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.zeros(100)
        del array
        assert cupy.zeros(100).nbytes == 800
    assert cupy.get_default_memory_pool().used_bytes() == used
