"""The module that stands for CuPy: as strict as the real one, and with no function that this one lacks."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import emulated_cupy
import numpy as np
import pytest

# Names of modules that are not there, and keywords that functions do not have. What cannot be imported without CUDA's
# libraries is looked up in the text.
REAL = """
import ast, importlib, inspect, json, pathlib, sys
import cupy

wanted, keywords = json.load(sys.stdin)
missing = []
for name, attributes in wanted.items():
    if name == "cupy.ndarray":
        found = set(dir(cupy.ndarray))
    elif not name.startswith("cupyx"):
        found = set(dir(importlib.import_module(name)))
    else:
        file = pathlib.Path(cupy.__file__).parent.parent.joinpath(*name.split("."), "__init__.py")
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imported = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
        found = {alias.asname or alias.name for alias in imported} | {other.stem for other in file.parent.iterdir()}
    missing += [f"{name}.{attribute}" for attribute in attributes if attribute not in found]
for name, used in keywords.items():
    try:
        place = cupy
        if name.startswith("xp."):
            place = importlib.import_module("array_api_compat.cupy")
        for part in name.split(".")[1:]:
            if name.startswith("xp.") and not hasattr(place, part):
                missing.append(name)
            place = getattr(place, part)
        parameters = inspect.signature(place).parameters
    except (AttributeError, ImportError, TypeError, ValueError):  # compiled, or not there without CUDA's libraries
        continue
    if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
        missing += [f"{name}({keyword}=)" for keyword in used if keyword not in parameters]
print(json.dumps(missing))
"""


def names_of_the_emulation() -> dict[str, list[str]]:
    """Public names by module."""
    names = {
        name: [attribute for attribute in vars(module) if not attribute.startswith("_")]
        for name, module in emulated_cupy._modules().items()
    }
    own = [name for name in vars(emulated_cupy.ndarray) if not name.startswith("_")]
    return names | {"cupy.ndarray": sorted({*own, *emulated_cupy.METHODS})}


def keywords_in_use() -> dict[str, list[str]]:
    """Keywords with which kcalib calls CuPy's functions, by function; "xp." for those of the array API's namespace."""
    found: dict[str, set[str]] = {}
    for path in (Path(__file__).parents[2] / "kcalib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = re.sub(r"^(self\._|self\.|data\.)xp\.", "xp.", ast.unparse(node.func))
                if re.fullmatch(r"(xp|cupyx?)(\.\w+)+", name):
                    found.setdefault(name, set()).update(k.arg for k in node.keywords if k.arg is not None)
    return {name: sorted(keywords) for name, keywords in found.items()}


@pytest.mark.grid
def test_the_real_one_has_every_name():
    found = subprocess.run(
        [sys.executable, "-P", "-c", REAL],
        input=json.dumps([names_of_the_emulation(), keywords_in_use()]),
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named 'cupy'" in found.stderr:
        pytest.skip("cupy is not installed")
    assert json.loads(found.stdout or "null") == [], found.stderr


@pytest.fixture
def cupy(emulation):
    return emulation


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
