"""Share of sets that the default test of calibration rejects, beside simple tests that each see one kind of error.

    python docs/scripts/alternatives.py --sizes 300 3000 --sets 400 > docs/alternatives_table.txt

Laws, sizes and seeds are fixed: rows are Dir(.3, .., .3) with 10 classes (A to D), Dir(10 r / sum r), r_c = c^-1.5, of
20 classes (E), two classes with a uniform probability on [.02, .98] (F), softmax of normal logits times 6 (S), and
Dir(1, 1, 1) (K and L, errors that only a kernel sees). Errors are of order n^-1/2; "0" and "1" are the rows of A and S
with labels drawn from them. The simple tests are blocks of the adaptive test by themselves, by the rank among the same
draws: the score of the temperature, the shares of classes (bias), bins of each class and of the largest probability.
"SKCE" is the test of the SKCE by all pairs, or by random features.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator

import numpy as np
import scipy.stats

import kcalib

LEVEL = 0.05
RISK = 1e-3  # of the binomial allowance
BLOCKS = ("temperature", "bias", "classes", "top label")
MANY = 12_000  # samples from which the SKCE is that of random features


def rows(letter: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n predictions."""
    if letter in "ABCD0":
        return rng.dirichlet(np.full(10, 0.3), size=n)
    if letter == "E":
        r = np.arange(1, 21) ** -1.5
        return rng.dirichlet(10 * r / r.sum(), size=n)
    if letter == "F":
        u = rng.uniform(0.02, 0.98, size=n)
        return np.stack([1 - u, u], axis=1)
    if letter in "S1":
        logits = 6 * rng.normal(size=(n, 10))
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)
    return rng.dirichlet(np.ones(3), size=n)


def truth(letter: str, p: np.ndarray) -> np.ndarray:
    """Return the probabilities that labels are drawn from."""
    c = len(p) ** -0.5
    q = p.copy()
    if letter in "AS":
        q = p ** (1 - 6 * c)
    elif letter == "B":
        q = (1 - c) * p
        q[:, 0] += c
    elif letter == "C":
        q[:, 0], q[:, 1] = (1 - 5 * c) * p[:, 0] + 5 * c * p[:, 1], (1 - 5 * c) * p[:, 1] + 5 * c * p[:, 0]
    elif letter == "D":
        group = p.argmax(axis=1) == 0
        q[group] = (1 - min(8 * c, 1)) * p[group] + min(8 * c, 1) / p.shape[1]
    elif letter == "E":
        q[:, 9:] *= 1 + 10 * c
    elif letter == "F":
        u = p[:, 1]
        q[:, 1] += np.minimum(3 * c, np.minimum(u, 1 - u)) * np.sin(12 * np.pi * u)
        q[:, 0] = 1 - q[:, 1]
    elif letter in "KL":
        size = {"K": 4, "L": 6}[letter] * c
        moved = np.minimum(size, np.minimum(p[:, 1], p[:, 2])) * np.sign(p[:, 0] - 1 / 3) * np.sign(p[:, 1] - 1 / 3)
        q[:, 1] += moved
        q[:, 2] -= moved
    return q / q.sum(axis=1, keepdims=True)


def sample(letter: str, n: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and predictions of a set."""
    rng = np.random.default_rng([number, n, ord(letter)])
    p = rows(letter, n, rng)
    return (truth(letter, p).cumsum(axis=1)[:, :-1] <= rng.uniform(size=(n, 1))).sum(axis=1), p


def pvalues(job: tuple[str, int, int]) -> dict[str, float]:
    """Return the p-value of each test of a set."""
    letter, n, number = job
    y, p = sample(letter, n, number)
    result = kcalib.calibration_test(y, p, method="adaptive", seed=number, threads=1)
    method = "features" if n * p.shape[1] > 10 * MANY else kcalib.methods.Exact(199)
    return {
        "adaptive": result.pvalue,
        **{block.name: block.pvalue for block in result.blocks or () if block.name in BLOCKS},
        "SKCE": kcalib.calibration_test(y, p, method=method, seed=number, threads=1).pvalue,
        "CME": kcalib.calibration_test(y, p, method="cme", seed=number, threads=1).pvalue,
    }


def table(letters: str, sizes: list[int], n_sets: int, processes: int) -> Iterator[str]:
    """Yield the lines of the table."""
    names = ("adaptive", *BLOCKS, "SKCE", "CME")
    yield f"Share of sets rejected at {LEVEL}; {n_sets} sets, {n_sets // 4} from n = 30,000 on"
    yield ""
    yield "law       n" + "".join(f"{name:>13}" for name in names) + "      of best  least"
    with multiprocessing.Pool(processes) as pool:
        for n in sizes:
            count = n_sets if n < 30_000 else n_sets // 4
            for letter in letters:
                sets = pool.map(pvalues, [(letter, n, number) for number in range(count)], chunksize=1)
                shares = {name: float(np.mean([result[name] <= LEVEL for result in sets])) for name in names}
                best = max(share for name, share in shares.items() if name != "adaptive")
                if letter in "01":
                    bar = float(scipy.stats.binom.isf(RISK, count, LEVEL)) / count
                    verdict = f"{'':>13}{bar:>7.3f}" + ("" if shares["adaptive"] <= bar else "  TOO MANY")
                else:
                    wanted = 0.6 if letter == "E" else 0.7 if letter in "KL" else 0.8
                    anchor = shares["SKCE"] if letter in "KL" else best
                    bar = float(scipy.stats.binom.ppf(RISK, count, wanted * anchor)) / count
                    verdict = f"{shares['adaptive'] / anchor:>13.2f}{bar:>7.2f}"
                    verdict += "" if shares["adaptive"] >= bar else "  TOO FEW"
                yield f"{letter:<4}{n:>7}" + "".join(f"{shares[name]:>13.3f}" for name in names) + verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letters", default="ABCDEFSKL01")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 3000, 30_000])
    parser.add_argument("--sets", type=int, default=400)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    for line in table(arguments.letters, arguments.sizes, arguments.sets, arguments.processes):
        print(line, flush=True)
    sys.exit(0)
