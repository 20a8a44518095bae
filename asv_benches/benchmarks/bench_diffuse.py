"""Sweeps over predictions of a thousand classes that are diffuse, peaked, or both, beside each other.

Distances are put together from products, which lose digits where points lie close together: diffuse predictions do,
peaked ones do not, and saturated ones lie on top of each other. What a sweep takes is to be the same.
"""

from functools import cache

import numpy as np

from .common import ROUNDS, SEED, THREADS, alternated, pair_problem, require, total_of

CLASSES = 1000
SCALES = {"peaked": 8.0, "diffuse": 2.0}  # of the logits: mean probability of the first label about .7 and .1
KINDS = ("diffuse", "half saturated, half diffuse")


@cache
def predictions(kind, n):
    """(n, m), and labels drawn from them; a saturated one is 1 - 9 e in one place, e in 10^U(-8, -4)."""
    rng = np.random.default_rng([SEED, n])
    p = SCALES.get(kind, SCALES["diffuse"]) * rng.standard_normal((n, CLASSES))
    p -= p.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    if kind not in SCALES:
        saturated = rng.permutation(n)[: n // 2]
        rest = 9 * 10 ** rng.uniform(-8, -4, (len(saturated), 1))
        p[saturated] *= rest
        p[saturated, rng.integers(CLASSES, size=len(saturated))] += 1 - rest[:, 0]
    labels = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return np.minimum(labels, CLASSES - 1), p


def over_peaked(n, threads, rounds=ROUNDS):
    """{kind: time of a sweep over that of peaked predictions}."""
    backend = require("_pairs.backends.cpu.CpuBackend")._pairs.backends.cpu.CpuBackend
    sweeps = [total_of(backend(pair_problem(*predictions(kind, n)), threads=threads)) for kind in ("peaked", *KINDS)]
    times = alternated(sweeps, threads, rounds)
    return dict(zip(KINDS, np.median(times[:, 1:] / times[:, :1], axis=0).tolist()))


class OverPeaked:
    """Time of a sweep over that of peaked predictions."""

    params = [KINDS, (3000, 10_000), THREADS]
    param_names = ["kind", "n", "threads"]
    unit = "1"

    def setup_cache(self):
        pass

    def track_time_over_peaked(self, kind, n, threads):
        return over_peaked(n, threads)[kind]
