"""Share of calibrated sets in clusters that the default test rejects at .05, for events of a probability p.

    python docs/scripts/cluster_levels.py --sets 400 > docs/cluster_levels_table.txt

Each cluster has a rate of its own, drawn from a beta law of mean p, so that labels of a cluster have the intraclass
correlation .3; predictions are p for all. "refused" are sets for which there are too few clusters for events so rare.
"""

from __future__ import annotations

import argparse
import multiprocessing

import numpy as np

import kcalib

CORRELATION = 0.3
SIZES = (5, 20, 100)


def pvalue(job: tuple[int, float, int, int]) -> float | None:
    """Return the p-value of a set; None where the test is refused."""
    n_clusters, p, size, number = job
    rng = np.random.default_rng([number, n_clusters, round(1000 * p), size])
    total = 1 / CORRELATION - 1
    rates = rng.beta(total * p, total * (1 - p), size=n_clusters).repeat(size)
    y, clusters = rng.uniform(size=len(rates)) < rates, np.arange(n_clusters).repeat(size)
    try:
        return kcalib.calibration_test(y, np.full(len(y), p), clusters=clusters, seed=number, threads=1).pvalue
    except ValueError as error:
        if "too few for predictions with such rare events" not in str(error):
            raise
        return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=400)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    print(f"Share of calibrated sets rejected at .05, of {arguments.sets}; intraclass correlation {CORRELATION}\n")
    print("clusters     p" + "".join(f"{f'size {size}':>12}" for size in SIZES))
    with multiprocessing.Pool(arguments.processes) as pool:
        for n_clusters in (30, 200):
            for p in (0.5, 0.2, 0.1, 0.05, 0.02):
                cells = []
                for size in SIZES:
                    jobs = [(n_clusters, p, size, number) for number in range(arguments.sets)]
                    values = pool.map(pvalue, jobs, chunksize=4)
                    known = [value for value in values if value is not None]
                    cells.append(f"{np.mean(np.array(known) <= 0.05):.3f}" if known else "refused")
                print(f"{n_clusters:>8}  {p:>4}" + "".join(f"{cell:>12}" for cell in cells), flush=True)
