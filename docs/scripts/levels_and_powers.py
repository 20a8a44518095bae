"""How often tests of calibration reject: calibrated sets of predictions that are hard (levels), and others (powers).

    python docs/scripts/levels_and_powers.py levels --journal levels.jsonl > docs/levels_table.txt
    python docs/scripts/levels_and_powers.py powers --journal powers.jsonl > docs/powers_table.txt

levels: laws of predictions from tests/support/hard_laws.py, labels drawn from the predictions, every method of
`kcalib.calibration_test` in its default form but for the number of draws (`--resamples`). The network's law needs the
variable KCALIB_DATA. powers: ten prediction sets of 3000 samples, three alternatives each, so strong that the mean of
the statistic over all pairs is `STRENGTH` of its standard deviations under calibration: the number is found on the true
probabilities, not on labels.

A set is drawn by a seed of its own, so that neither `--processes` nor `--methods` changes it. Each chunk of sets
becomes a line of the journal when it is done; what is there already is not computed again. `--show` computes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from threadpoolctl import threadpool_limits

import kcalib

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from hard_laws import LAWS, dirichlet, drawn_labels, skewed, tied

ALPHAS = (0.01, 0.05, 0.1)
RISK = 1e-3  # that a share leaves its bounds
CHUNK = 25  # sets
N = 3000
STRENGTH = 2.2

CLASSES = (
    "Adaptive", "Exact", "Features", "Spectrum", "Pearson", "Gamma", "Multiplier", "Bootstrap", "Block", "Linear",
    "CME", "DistributionFree", "Consistency",
)  # fmt: skip
METHODS: dict[str, Any] = {name: getattr(kcalib.methods, name)() for name in CLASSES if hasattr(kcalib.methods, name)}


# -- alternatives: the true probabilities of predictions p, of a strength in 0..1 -----------------------


def temperature(p: np.ndarray, strength: float) -> np.ndarray:
    """Over-confident: the truth is flatter."""
    q = p ** (1 - strength)
    return q / q.sum(axis=1, keepdims=True)


def swapped(p: np.ndarray, strength: float) -> np.ndarray:
    """Two classes are taken for each other in a share of the cases."""
    q = p.copy()
    q[:, 0] = (1 - strength) * p[:, 0] + strength * p[:, 1]
    q[:, 1] = (1 - strength) * p[:, 1] + strength * p[:, 0]
    return q


def narrow_band(p: np.ndarray, strength: float) -> np.ndarray:
    """Where the confidence is between its fourth and sixth tenth, the top class gives to the others."""
    top = p.max(axis=1)
    low, high = np.quantile(top, (0.4, 0.6))
    inside = (top >= low) & (top <= high)
    even = (1 - np.eye(p.shape[1])[p.argmax(axis=1)]) / (p.shape[1] - 1)
    return np.where(inside[:, None], (1 - strength) * p + strength * even, p)


ALTERNATIVES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "temperature": temperature,
    "two classes swapped": swapped,
    "a narrow band": narrow_band,
}


def logits(m: int, scale: float) -> Callable[[int, np.random.Generator], np.ndarray]:
    def draw(n: int, rng: np.random.Generator) -> np.ndarray:
        z = scale * rng.normal(size=(n, m))
        p = np.exp(z - z.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    return draw


PREDICTIONS = {
    "Dir(.5), m = 2": dirichlet(2, 0.5),
    "Dir(.3), m = 3": dirichlet(3, 0.3),
    "Dir(1), m = 3": dirichlet(3, 1.0),
    "Dir(.1), m = 10": dirichlet(10, 0.1),
    "Dir(.3), m = 10": dirichlet(10, 0.3),
    "Dir(1), m = 10": dirichlet(10, 1.0),
    "logits, m = 10": logits(10, 3.0),
    "logits, m = 30": logits(30, 2.0),
    "skewed, m = 20": skewed(20),
    "20 distinct rows, m = 5": tied,
}


@functools.cache
def strength(alternative: str, predictions: str, n: int = N, rows: int = 600) -> float:
    """At which the statistic's mean is `STRENGTH` standard deviations, or as near as the alternative comes."""
    p = PREDICTIONS[predictions](rows, np.random.default_rng(1))
    distances = np.sqrt(np.maximum(0, (p**2).sum(1)[:, None] + (p**2).sum(1) - 2 * p @ p.T))
    off = ~np.eye(rows, dtype=bool)
    k = np.where(off, np.exp(-distances / np.median(distances[off])), 0)
    square = p * p
    traces = p @ p.T - square @ p.T - p @ square.T + (p @ p.T) ** 2
    spread = np.sqrt(2 * (k**2 * traces).sum())

    def ratio(s: float) -> float:
        error = ALTERNATIVES[alternative](p, s) - p
        return float(np.einsum("ij,ia,ja->", k, error, error, optimize=True) / spread * n / rows)

    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < STRENGTH else (low, middle)
    return high


# -- sets and their p-values ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Job:
    """A chunk of sets and the methods to be tried on them."""

    kind: str  # "levels" or "powers"
    cell: tuple[str, ...]
    n: int
    first: int
    count: int
    methods: tuple[str, ...]
    resamples: int


def data_set(job: Job, i: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([*"/".join((job.kind, *job.cell)).encode(), job.n, i])
    if job.kind == "levels":
        return LAWS[job.cell[0]].calibrated(rng, job.n)
    predictions, alternative = job.cell
    p = PREDICTIONS[predictions](job.n, rng)
    size = strength(alternative, predictions)
    return drawn_labels(ALTERNATIVES[alternative](p, size), rng), p


def with_draws(method: Any, resamples: int) -> Any:
    has_draws = getattr(method, "n_resamples", None) is not None
    return dataclasses.replace(method, n_resamples=resamples) if has_draws else method


def outcome(y: np.ndarray, p: np.ndarray, method: Any, seed: int) -> tuple[float | None, float]:
    """The p-value and the seconds that it took; None where the method fails, which the table says."""
    try:
        result = kcalib.calibration_test(y, p, method=method, seed=seed, threads=1)
    except ValueError as error:
        print(error, file=sys.stderr)
        return None, 0.0
    return float(result.pvalue), result.seconds


def compute(job: Job) -> list[dict[str, Any]]:
    """A record for each method: p-values, and which sets came with a warning that the test may reject too often."""
    pvalues: dict[str, list[float | None]] = {name: [] for name in job.methods}
    warned: dict[str, list[int]] = {name: [] for name in job.methods}
    seconds = dict.fromkeys(job.methods, 0.0)
    for i in range(job.first, job.first + job.count):
        y, p = data_set(job, i)
        for name in job.methods:
            with warnings.catch_warnings(record=True) as caught, threadpool_limits(limits=1):
                warnings.simplefilter("always")
                pvalue, spent = outcome(y, p, with_draws(METHODS[name], job.resamples), i)
            pvalues[name].append(pvalue)
            warned[name].append(int(any(issubclass(w.category, kcalib.AntiConservativeWarning) for w in caught)))
            seconds[name] += spent
    about = {"kind": job.kind, "cell": list(job.cell), "n": job.n, "first": job.first, "resamples": job.resamples}
    return [
        about | {"method": name, "pvalues": pvalues[name], "warned": warned[name], "seconds": seconds[name]}
        for name in job.methods
    ]


def key(kind: str, cell: Any, n: int, method: str) -> tuple:
    return kind, tuple(cell), n, method


class Journal:
    """Records of chunks in a file: what is there is not computed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[tuple, dict[int, dict[str, Any]]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                self.add(json.loads(line))

    def add(self, record: dict[str, Any]) -> None:
        place = key(record["kind"], record["cell"], record["n"], record["method"])
        self.records.setdefault(place, {})[record["first"]] = record

    def save(self, records: list[dict[str, Any]]) -> None:
        with self.path.open("a") as file:
            for record in records:
                self.add(record)
                file.write(json.dumps(record) + "\n")

    def has(self, place: tuple, first: int, count: int) -> bool:
        found = self.records.get(place, {}).get(first)
        return found is not None and len(found["pvalues"]) >= count

    def column(self, place: tuple, name: str) -> np.ndarray:
        chunks = self.records.get(place, {})
        return np.array([value for first in sorted(chunks) for value in chunks[first][name]], dtype=float)


def fill(journal: Journal, cells: list[tuple[str, tuple[str, ...], int, int]], given: argparse.Namespace) -> None:
    """Compute what the journal lacks; `cells` are (kind, cell, n, sets). All cells grow at the same pace."""
    jobs = []
    for kind, cell, n, sets in cells:
        for first in range(0, sets, CHUNK):
            count = min(CHUNK, sets - first)
            missing = tuple(m for m in given.methods if not journal.has(key(kind, cell, n, m), first, count))
            if missing:
                jobs.append(Job(kind, cell, n, first, count, missing, given.resamples))
    jobs.sort(key=lambda job: job.first)
    for records in computed(jobs, given.processes):
        journal.save(records)


def computed(jobs: list[Job], processes: int) -> Iterator[list[dict[str, Any]]]:
    if processes == 1:
        yield from map(compute, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(compute, jobs)


# -- tables -----------------------------------------------------------------------------------------------


def share(pvalues: np.ndarray, alpha: float) -> float:
    """Of p-values at most alpha; those of draws are multiples of 1 / (R + 1) but for rounding."""
    return float(np.mean(pvalues <= alpha * (1 + 1e-9))) if len(pvalues) else float("nan")


def bounds(count: int, p: float) -> tuple[float, float]:
    law = scipy.stats.binom(count, p)
    return law.ppf(RISK / 2) / count, law.isf(RISK / 2) / count


def level_cell(pvalues: np.ndarray, warned: np.ndarray, alpha: float) -> str:
    """A share; + above the bounds, ! so too where no warning was given, - below the bounds."""
    found = share(pvalues, alpha)
    low, high = bounds(len(pvalues), alpha)
    mark = "+" if found > high else "-" if found < low else " "
    silent = pvalues[warned == 0]
    if mark == "+" and len(silent) and share(silent, alpha) > bounds(len(silent), alpha)[1]:
        mark = "!"
    return f"{found:.4f}{mark}"


def levels_table(journal: Journal, laws: list[str], methods: list[str], resamples: int) -> str:
    counts = [len(journal.column(key("levels", (law,), LAWS[law].n, m), "pvalues")) for law in laws for m in methods]
    count = max(counts, default=0)
    sets = f"{count}" if min(counts) == count else f"{min(counts)} to {count}"
    lines = [
        f"Shares of calibrated sets that are rejected at 0.01, 0.05, 0.1; {sets} sets each; {resamples} draws",
        "99.9 % binomial bounds of {} sets: {}".format(
            count, ", ".join("{:.4f} .. {:.4f}".format(*bounds(count, a)) for a in ALPHAS)
        ),
        "+ above the bounds, with an AntiConservativeWarning; ! above the bounds in sets without a warning;",
        "- below the bounds; warned: share of sets that came with the warning",
    ]
    silent: dict[str, int] = dict.fromkeys(methods, 0)
    for law in laws:
        n = LAWS[law].n
        lines += ["", f"{law}; n = {n}".ljust(34) + "".join(f"{a:g}".ljust(10) for a in ALPHAS) + "warned"]
        for name in methods:
            place = key("levels", (law,), n, name)
            pvalues, warned = journal.column(place, "pvalues"), journal.column(place, "warned")
            if not len(pvalues):
                continue
            cells = [level_cell(pvalues, warned, a) for a in ALPHAS]
            silent[name] += sum("!" in cell for cell in cells)
            failed = f"  failed in {np.isnan(pvalues).sum()}" if np.isnan(pvalues).any() else ""
            lines.append(
                ("  " + name).ljust(34) + "".join(c.ljust(10) for c in cells) + f"{warned.mean():.2f}" + failed
            )
    lines += ["", "cells above the bounds without a warning: " + ", ".join(f"{m} {silent[m]}" for m in methods)]
    return "\n".join(lines)


def powers_table(journal: Journal, methods: list[str]) -> str:
    """All pairs' power, and those of other methods as shares of it, on the sets that these have."""
    others = [m for m in methods if m != "Exact"]
    lines = [
        f"Share of sets rejected at 0.05 by all pairs (exact), n = {N}; other methods' powers as shares of it",
        "",
        "predictions".ljust(26) + "alternative".ljust(22) + "sets  all pairs" + "".join(m.rjust(10) for m in others),
    ]
    sums = {name: np.zeros(2) for name in others}
    powers = []
    for predictions in PREDICTIONS:
        for alternative in ALTERNATIVES:
            found = {m: _pvalues(journal, "powers", (predictions, alternative), N, m) for m in methods}
            powers.append(share(found["Exact"], 0.05))
            cells = []
            for name in others:
                count = min(len(found[name]), len(found["Exact"]))
                both = np.array([share(found[m][:count], 0.05) for m in (name, "Exact")])
                sums[name] += both
                cells.append(f"{both[0] / both[1]:10.2f}" if both[1] else "         .")
            count = len(found["Exact"])
            lines.append(f"{predictions:26}{alternative:22}{count:4}{powers[-1]:11.3f}" + "".join(cells))
    shares = "".join(f"{sums[m][0] / sums[m][1]:10.2f}" for m in others)
    lines.append("all".ljust(52) + f"{np.mean(powers):11.3f}" + shares)
    return "\n".join(lines)


def _pvalues(journal: Journal, kind: str, cell: tuple[str, str], n: int, method: str) -> np.ndarray:
    return journal.column(key(kind, cell, n, method), "pvalues")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("levels", "powers"))
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--sets", type=int, help="default: 2000 for levels, 100 for powers")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), help="default: all; for powers four")
    parser.add_argument("--laws", nargs="+", choices=tuple(LAWS), default=list(LAWS))
    parser.add_argument("--resamples", type=int, default=199)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="what the journal has")
    given = parser.parse_args()
    default = {"levels": list(METHODS), "powers": ["Exact", "Adaptive", "Features", "Block"]}
    given.methods = given.methods or [m for m in default[given.kind] if m in METHODS]
    journal = Journal(given.journal)
    cells = {
        "levels": [("levels", (law,), LAWS[law].n, given.sets or 2000) for law in given.laws],
        "powers": [("powers", (p, a), N, given.sets or 100) for p in PREDICTIONS for a in ALTERNATIVES],
    }[given.kind]
    if not given.show:
        fill(journal, cells, given)
    if given.kind == "levels":
        print(levels_table(journal, given.laws, given.methods, given.resamples))
    else:
        print(powers_table(journal, given.methods))


if __name__ == "__main__":
    main()
