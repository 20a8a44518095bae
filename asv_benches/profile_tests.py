"""Where the time of calibration tests goes, stage by stage: CPU time of one thread, all defaults.

    python asv_benches/profile_tests.py [--rounds 5]

A clock runs for the innermost of the functions below that is being executed; each is replaced by one
that switches the clock. Medians over rounds.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from benchmarks.bench_line import Line
from benchmarks.common import cached_predictions, limited_blas

import kcalib
from kcalib import _packing
from kcalib._backend import random
from kcalib._packing import features as packing_features
from kcalib._packing import labels as packing_labels
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib.inference import calibration_test, exact, spectrum
from kcalib.laws import ChiSquareMixture

# Owner of a function, its name, its stage.
STAGES = [
    (calibration_test, "prepare", "input checks"),
    (_packing, "pack", "packing"),
    (packing_labels, "median_of_points", "median heuristic"),
    *((backend, "sweep", "sweeps over all pairs") for backend in (CpuBackend, SortedBackend)),
    (random.Weights, "values", "random weights"),
    (exact, "drawn_labels", "drawn labels"),
    (packing_features.LabelFeatures, "drawn_totals", "features of drawn labels"),
    (spectrum, "leading_spectrum", "algebra of blocks"),
    (ChiSquareMixture, "logsf", "law"),
]
OTHER = "other"
TESTS = {  # name: samples, classes, method
    "spectrum": (5000, 10, "spectrum"),
    "bootstrap": (5000, 10, "bootstrap"),
    "exact": (250, 10, "exact"),
    "auto": (1_000_000, 2, "auto"),
    "auto ": (20_000, 2, "auto"),
}


class Clock:
    """CPU time of each stage."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.running = [OTHER]
        self.start = time.thread_time()

    def switch(self) -> None:
        now = time.thread_time()
        self.seconds[self.running[-1]] += now - self.start
        self.start = now

    def call(self, stage: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.switch()
        self.running.append(stage)
        try:
            result = function(*args, **options)
        finally:
            self.switch()
            self.running.pop()
        return self.each(stage, result) if inspect.isgenerator(result) else result

    def each(self, stage: str, values: Iterator[Any]) -> Iterator[Any]:
        while (value := self.call(stage, next, values, None)) is not None:
            yield value


def profile(n: int, m: int, method: str) -> Counter[str]:
    labels, p = (lambda line: (line.labels, line.p))(Line(n)) if m == 2 else cached_predictions(n, m)
    clock = Clock()
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in STAGES]
    for (owner, name, function), (_, _, stage) in zip(kept, STAGES, strict=True):

        def timed(*args: Any, _stage: str = stage, _function: Any = function, **options: Any) -> Any:
            return clock.call(_stage, _function, *args, **options)

        setattr(owner, name, timed)
    try:
        kcalib.calibration_test(labels, p, method=method, seed=0, threads=1)
        clock.switch()
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)
    return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    columns = []
    for name, case in TESTS.items():
        with limited_blas(1):
            profile(*case)
            found = [profile(*case) for _ in range(rounds)]
        median = {stage: 1e3 * float(np.median([f[stage] for f in found])) for stage in {*found[0]}}
        columns.append((f"{name.strip()}, n = {case[0]}, m = {case[1]}", median))
    print(f"{'milliseconds':22}" + "".join(f"{title:>28}" for title, _ in columns))
    for stage in [*dict.fromkeys(stage for _, _, stage in STAGES), OTHER]:
        cells = (f"{v[stage]:.1f} ({v[stage] / sum(v.values()):4.0%})" if stage in v else "" for _, v in columns)
        print((f"{stage:22}" + "".join(f"{cell:>28}" for cell in cells)).rstrip())
    print(f"{'sum':22}" + "".join(f"{sum(v.values()):20.1f}        " for _, v in columns).rstrip())


if __name__ == "__main__":
    main()
