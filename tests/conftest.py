"""Fixtures: array libraries, and classification problems with known truth."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import emulated_cupy
import numpy as np
import pytest
from grid import mark_cases
from libraries import GPU_LIBRARIES, LIBRARIES, Library, MakeProblem, library

# Before JAX starts: a second CPU device, to have arrays that lie on several.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")


MOST_PROCESSES = 8  # of `pytest -n auto`: each takes some 1 GB


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("runs one after the other")
    group.addoption("--note-passed", metavar="FILE", help="write the names of tests that pass to this file")
    group.addoption(
        "--but-passed", metavar="FILE", help="leave out the tests in this file, but for those of what is imported when"
    )


class PassedTests:
    """Notes the names of tests that pass, in the process that the others report to."""

    def __init__(self, path: str) -> None:
        self.path, self.names = Path(path), []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when == "call":
            self.names.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text("".join(f"{name}\n" for name in self.names))


# What these claim depends on the libraries that are installed.
OF_IMPORTS = ("tests/test_codebase.py", "tests/backend/test_arrays.py", "tests/backend/test_devices.py")


def without_passed(items: list[pytest.Item], path: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Items that are left, and those that are not."""
    passed = {name for name in Path(path).read_text().splitlines() if not name.startswith(OF_IMPORTS)}
    return [item for item in items if item.nodeid not in passed], [item for item in items if item.nodeid in passed]


def pytest_configure(config: pytest.Config) -> None:
    # JAX, once any test has imported it, warns at every later fork of the process.
    config.addinivalue_line("filterwarnings", r"ignore:os\.fork\(\) was called.*JAX is multithreaded:RuntimeWarning")
    if getattr(config.option, "numprocesses", None):  # this process starts others by pytest-xdist
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        config.add_cleanup(share_emulated_kernels().cleanup)
    if (path := config.getoption("note_passed")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(PassedTests(path))


def share_emulated_kernels() -> tempfile.TemporaryDirectory:
    """A folder in which all processes find the emulated kernels that one has compiled."""
    folder = tempfile.TemporaryDirectory(prefix="kcalib-emulated-")
    os.environ["KCALIB_EMULATED_KERNELS"] = folder.name
    return folder


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return min(
        MOST_PROCESSES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


LEFT_OUT = pytest.StashKey[int]()
LONG_RUN = 2000  # tests


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """To look for garbage among millions of objects that stay takes a third of the time of collecting tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before `-m` chooses, and after it
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Tests of backends "cuda" and "...-cuda", with the real CuPy, need a GPU like those that are marked.

    Where there is none they are left out together, with one line: there are thousands, and to skip one takes 5 ms.
    """
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if any(str(parameters.get(name)).rpartition("-")[2] == "cuda" for name in ("backend", "level")):
            item.add_marker(pytest.mark.gpu)
    if len(items) >= LONG_RUN:
        mark_cases(items)
    if path := config.getoption("but_passed"):
        items[:], others = without_passed(items, path)
        config.hook.pytest_deselected(items=others)
    yield
    needing = [item for item in items if item.get_closest_marker("gpu") is not None]
    if needing and why_no_gpu() is not None:
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]
        config.stash[LEFT_OUT] = len(needing)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of pytest-xdist has collected the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


SESSION = pytest.StashKey[pytest.Session]()
SEEN = pytest.StashKey[int]()
TESTS_IN_A_LETTER = 20  # that pass or are skipped, in a long run


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[SESSION], session.config.stash[SEEN] = session, 0


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """No letter for most of the tests of a long run that are as they should be: the output fits a screen."""
    as_it_should_be = (report.passed and report.when == "call") or (report.skipped and not hasattr(report, "wasxfail"))
    if not as_it_should_be or config.stash[SESSION].testscollected < LONG_RUN:
        return None
    config.stash[SEEN] += 1
    return (report.outcome, "", report.outcome.upper()) if config.stash[SEEN] % TESTS_IN_A_LETTER else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests were skipped for which reason, in a line each."""
    # As strings, "Skipped: reason", also from processes of pytest-xdist.
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    counts = collections.Counter(short_reason(reason) for reason in reasons)
    if left_out := terminalreporter.config.stash.get(LEFT_OUT, 0):
        counts[f"{why_no_gpu()}: left out"] = left_out
    if counts:
        terminalreporter.section("skipped, by reason")
    for reason, count in counts.most_common():
        terminalreporter.line(f"{count:6}  {reason}")


def short_reason(reason: str) -> str:
    """One text for all ways in which a library is missing."""
    reason = reason.removeprefix("Skipped: ")
    missing = re.match(r"could not import '([^'.]+)[^']*'", reason)
    return f"{missing[1]} is not installed" if missing else reason


@functools.cache
def why_no_gpu() -> str | None:
    """Why nothing can be computed on a GPU here; None if it can be."""
    try:
        import cupy

        return None if cupy.cuda.runtime.getDeviceCount() else "no GPU"
    except ImportError:
        return "cupy is not installed"
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
