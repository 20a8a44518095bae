"""Fixtures: array libraries, and classification problems with known truth."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import emulated_cupy
import numpy as np
import pytest
from libraries import GPU_LIBRARIES, LIBRARIES, Library, MakeProblem, library

# Before JAX starts: a second CPU device, to have arrays that lie on several.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")


def pytest_configure(config: pytest.Config) -> None:
    # JAX, once any test has imported it, warns at every later fork of the process.
    config.addinivalue_line("filterwarnings", r"ignore:os\.fork\(\) was called.*JAX is multithreaded:RuntimeWarning")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of operators "cuda" and "...-cuda", with the real CuPy, need a GPU like those that are marked."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if any(str(parameters.get(name)).rpartition("-")[2] == "cuda" for name in ("operator", "level")):
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()) is not None:
        pytest.skip(reason)


@functools.cache
def why_no_gpu() -> str | None:
    """Why nothing can be computed on a GPU here; None if it can be."""
    try:
        import cupy

        return None if cupy.cuda.runtime.getDeviceCount() else "no GPU"
    except ImportError:
        return "CuPy is not installed"
    except RuntimeError as error:  # of the driver
        return f"no GPU: {error}"


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.gpu] if name in GPU_LIBRARIES else []) for name in LIBRARIES]
)
def xp(request: pytest.FixtureRequest) -> Iterator[Library]:
    """Each array library in turn."""
    with emulated_cupy.installed() if request.param == "cupy-emulated" else contextlib.nullcontext():
        yield library(request.param)


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.gpu)])
def cupy(request: pytest.FixtureRequest) -> Iterator[Any]:
    """CuPy, as `emulated_cupy` has it; where there is a GPU the real one, too."""
    if request.param == "emulated":
        with emulated_cupy.installed() as module:
            yield module
    else:
        yield pytest.importorskip("cupy")


@pytest.fixture
def emulation() -> Iterator[Any]:
    """CuPy as `emulated_cupy` has it, for what only the emulation can do: devices and drivers as one likes."""
    with emulated_cupy.installed() as module:
        yield module


@pytest.fixture(scope="session")
def make_problem() -> MakeProblem:
    """``make_problem(n, m, seed, scale) -> (y, P)``: a calibrated classifier.

    P is the softmax of Gaussian logits of standard deviation `scale`, y is drawn from P.
    """

    def make(n: int = 60, m: int = 3, seed: int = 0, scale: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        powers = np.exp(scale * rng.standard_normal((n, m)))
        p = powers / powers.sum(axis=1, keepdims=True)
        y = np.minimum((rng.uniform(size=(n, 1)) > np.cumsum(p, axis=1)).sum(axis=1), m - 1)
        return y, p

    return make
