"""The way of an array, observed: which functions of kcalib a call goes through, and where it turns back.

    python -P tests/support/way.py [name]       all ways, or one of them

A frame is a call of a Python function of the package; a turn back is one that a lower layer makes to a higher one
(`layers.LAYERS`), a callback say. The wrappers of public functions (`WRAPPERS`) do not count. Compiled code has no
frames: what is printed ends where `_native` begins.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent))  # as pytest has it

import emulated_cupy
import numpy as np
from layers import layer
from problems import softmax_problem

import kcalib
from kcalib.distributions import Normal

FOLDER = Path(kcalib.__file__).parent
# They look for a GPU, and for workers.
WRAPPERS = {
    ("_backend.devices", "on_their_gpu.<locals>.call"),
    ("_backend.devices", "_run"),
    ("parallel.argument", "in_parallel.<locals>.call"),
}


class Step(NamedTuple):
    depth: int
    module: str  # without "kcalib."
    function: str
    caller: str | None  # module of the nearest frame of the package that it was called from


def steps_of(call: Callable[[], Any]) -> list[Step]:
    """Every call of a function of the package, in order."""
    found: list[Step] = []
    depths: dict[FrameType, int] = {}

    def look(frame: FrameType, event: str, argument: object) -> None:
        module = _module(frame)
        if event == "return":
            depths.pop(frame, None)
        if event != "call" or module is None or frame.f_code.co_name in ("<listcomp>", "<genexpr>", "<lambda>"):
            return
        if (module, frame.f_code.co_qualname) in WRAPPERS:
            return
        above = frame.f_back
        while above is not None and above not in depths:
            above = above.f_back
        depths[frame] = 0 if above is None else depths[above] + 1
        found.append(Step(depths[frame], module, frame.f_code.co_qualname, None if above is None else _module(above)))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def turns_back(steps: list[Step]) -> list[Step]:
    return [step for step in steps if step.caller is not None and layer(step.module) > layer(step.caller)]


def _module(frame: FrameType) -> str | None:
    file = Path(frame.f_code.co_filename)
    if FOLDER not in file.parents:
        return None
    return ".".join(file.relative_to(FOLDER).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def _skce() -> None:
    kcalib.skce(*softmax_problem(300, 5))


def _ckce() -> None:
    kcalib.ckce(*softmax_problem(300, 5), method="cg")


def _spectrum() -> None:
    kcalib.calibration_test(*softmax_problem(300, 5), method="spectrum")


def _normal() -> None:
    rng = np.random.default_rng(0)
    mean = rng.normal(size=300)
    kcalib.skce(mean + rng.normal(size=300), Normal(mean, np.ones(300)))


def _cupy() -> None:
    y, p = softmax_problem(100, 5)
    kcalib.skce(emulated_cupy.asarray(y), emulated_cupy.asarray(p))


def _source() -> None:
    y, p = softmax_problem(300, 5)
    samples = kcalib.streaming.source((y, p))
    kcalib.skce(samples, estimator="block", block_size=10)
    kcalib.calibration_test(samples)
    kcalib.compare({"a": samples, "b": kcalib.streaming.source((y, p[:, ::-1]))}, metric="brier_score")


WAYS: dict[str, Callable[[], None]] = {
    "skce": _skce, "ckce by conjugate gradients": _ckce, "spectrum test": _spectrum,
    "normal predictions": _normal, "CuPy arrays": _cupy,
    "a source": _source,
}  # fmt: skip


@contextlib.contextmanager
def prepared(name: str) -> Iterator[Callable[[], None]]:
    """The call, made once before: what a first call imports or compiles is not on its way."""
    with emulated_cupy.installed() if name == "CuPy arrays" else contextlib.nullcontext():
        WAYS[name]()
        yield WAYS[name]


def main() -> None:
    for name in sys.argv[1:] or WAYS:
        with prepared(name) as call:
            steps = steps_of(call)
        functions = len({(step.module, step.function) for step in steps})
        print(f"{name}: {len(steps)} frames, {functions} functions, {len(turns_back(steps))} turns back")
        seen: set[tuple[str, str]] = set()
        for step in steps:
            if (step.module, step.function) not in seen:
                print(f"  {'  ' * step.depth}{step.module}: {step.function}")
                seen.add((step.module, step.function))
        for step in turns_back(steps):
            print(f"  turns back: {step.caller} calls {step.module}: {step.function}")


if __name__ == "__main__":
    main()
