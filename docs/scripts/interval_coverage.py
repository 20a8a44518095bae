"""How often confidence intervals of the SKCE miss, and tolerances are exceeded by models at their boundary.

    python docs/scripts/interval_coverage.py coverage --sets 2000 > coverage.txt
    python docs/scripts/interval_coverage.py boundary --sets 2000 > boundary.txt

coverage: laws of predictions from tests/support/hard_laws.py, calibrated and with known errors; shares of the sets
whose limits are beyond the true value, whose bound of the error is above the true one, and whose interval leaves out 0
though the one-sided test at its tail does not reject (never). boundary: an error along the leading eigenfunction of the
kernel with exactly the tolerance as its root mean square. "limit" is the share that the lower limit of the SKCE alone
exceeds the truth: without what the bound allows for the eigenvalue.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
import scipy.stats
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from hard_laws import LAWS, Law, rare
from intervals import TRUTHS, Leading, misses


def _away_from_zero(m: int) -> Law:
    return Law(250, lambda n, rng: 0.2 / m + 0.8 * rng.dirichlet(np.full(m, 1.0), size=n))


# Laws, with the tolerance.
BOUNDARIES = {
    "two classes, 0.03": (_away_from_zero(2), 0.03),
    "two classes, 0.08": (_away_from_zero(2), 0.08),
    "ten classes, 0.01": (_away_from_zero(10), 0.01),
    "rare, 0.005": (Law(500, rare), 0.005),
}
LEVELS = (0.01, 0.05, 0.1)


def bound(sets: int, share: float) -> float:
    """What a share exceeds with a probability of 0.001."""
    return float(scipy.stats.binom.isf(1e-3, sets, share)) / sets


def coverage(sets: int, method: str) -> None:
    tail, level = bound(sets, 0.025), bound(sets, 0.05)
    print(f"95 % intervals, {sets} sets each, {method} test; bounds {tail:.3f} for limits, {level:.3f} for the error")
    print(f"\n{'law':<24}{'truth':<22}{'n':>5}{'low':>8}{'high':>8}{'error':>8}{'disagree':>10}")
    for name, law in LAWS.items():
        for truth, of in TRUTHS.items():
            m = misses(law, of, count=sets, method=method, level=0.05)
            print(
                f"{name:<24}{truth:<22}{law.n:5}{m.low:8.3f}{m.high:8.3f}{m.bound:8.3f}{m.disagree:10.3f}", flush=True
            )


def boundary(sets: int, method: str) -> None:
    print(
        f"models at the boundary, {sets} sets each, {method} test; bounds", *(f"{bound(sets, a):.3f}" for a in LEVELS)
    )
    print(
        f"\n{'law, tolerance':<24}{'n':>6}"
        + "".join(f"{f'at {a}':>10}{'limit':>8}" for a in LEVELS)
        + f"{'mean bound':>12}"
    )
    for name, (law, tolerance) in BOUNDARIES.items():
        for n in (law.n, 4 * law.n):
            cells = []
            for level in LEVELS:
                # The lower limit is one-sided at the level if the interval is at twice that.
                exceeded = misses(law, Leading(law, tolerance), count=sets, n=n, method=method, level=level)
                limit = misses(law, Leading(law, tolerance), count=sets, n=n, method=method, level=2 * level)
                cells.append(f"{exceeded.bound:10.3f}{limit.low:8.3f}")
            print(f"{name:<24}{n:6}{''.join(cells)}{limit.mean_bound:12.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("coverage", "boundary"))
    parser.add_argument("--sets", type=int, default=400)
    parser.add_argument("--method", default="gamma")
    given = parser.parse_args()
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (coverage if given.what == "coverage" else boundary)(given.sets, given.method)


if __name__ == "__main__":
    main()
