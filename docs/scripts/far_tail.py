"""p-values of the exact test below 1 / (1 + R) beside true ones, of laws whose outcomes can all be gone through.

    python docs/scripts/far_tail.py --seeds 40 --draws 10000000 > docs/far_tail_table.txt

Each row is an outcome of a law of tests/support/exact_tails.py with about that tail probability: the median, the 5th
and the 95th percentile of "p-value over truth" over seeds, and what gave the p-values most often. Truth is a sum over
all outcomes, and with --draws of further laws a share of so many draws.
"""

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import kcalib
from kcalib.kernels import Exponential
from kcalib.methods import Exact

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from exact_tails import KNOWN_LAWS, DrawnLaw, KnownLaw, drawn_laws

LEVELS = (1e-3, 1e-4, 1e-5)


def ratios(law: KnownLaw | DrawnLaw, level: float, seeds: int) -> tuple[float, np.ndarray, str]:
    """The true tail, p-values over it, and where they are from."""
    labels, truth = law.at(level)
    found = [
        kcalib.calibration_test(labels, law.p, method=Exact(), kernel=Exponential(bandwidth=law.bandwidth), seed=seed)
        for seed in range(seeds)
    ]
    (source, _), *_ = collections.Counter(one.pvalue_from for one in found).most_common()
    return truth, np.array([one.pvalue for one in found]) / truth, str(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--draws", type=int, default=0)
    given = parser.parse_args()
    seeds = given.seeds
    print(f"p-values of the exact test over true tail probabilities, {seeds} seeds each\n")
    print(f"{'law':<30}{'truth':>10}{'median':>8}{'5 %':>8}{'95 %':>8}  from")
    with threadpool_limits(limits=1):
        laws: dict[str, KnownLaw | DrawnLaw] = {name: KnownLaw.of(*of) for name, of in KNOWN_LAWS.items()}
        laws |= drawn_laws(given.draws) if given.draws else {}
        for name, law in laws.items():
            for level in LEVELS:
                truth, found, source = ratios(law, level, seeds)
                low, middle, high = np.quantile(found, [0.05, 0.5, 0.95])
                print(f"{name:<30}{truth:10.2e}{middle:8.2f}{low:8.2f}{high:8.2f}  {source}", flush=True)


if __name__ == "__main__":
    main()
