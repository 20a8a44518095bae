"""Laws of calibrated predictions on which tests of calibration go wrong: confident, rare, skewed, tied, few, real.

`LAWS` has them by name; a law draws predictions, `calibrated` adds labels drawn from these. The tests of levels and
docs/scripts/levels_and_powers.py take them from here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = os.environ.get("KCALIB_DATA")
LOGITS = "cifar10_resnet110_kull2019.npz"

Predictions = Callable[[int, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Law:
    """`draw(n, rng)` makes n predictions; `n` is the number of samples of a set unless another is asked for."""

    n: int
    draw: Predictions

    def calibrated(self, rng: np.random.Generator, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Labels, shape (n,), drawn from predictions, shape (n, m)."""
        p = self.draw(self.n if n is None else n, rng)
        return drawn_labels(p, rng), p


def drawn_labels(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One label from each row; a class of probability 0 is never drawn."""
    cumulative = np.cumsum(p, axis=1)
    u = rng.uniform(size=(len(p), 1)) * cumulative[:, -1:]
    return (cumulative <= u).sum(axis=1)


def dirichlet(m: int, concentration: float) -> Predictions:
    return lambda n, rng: rng.dirichlet(np.full(m, concentration), size=n)


def saturated(low: float, high: float, m: int = 10) -> Predictions:
    """1 - (m - 1) e for a random class and e for the others, e in 10^U(low, high): what confident networks say."""

    def draw(n: int, rng: np.random.Generator) -> np.ndarray:
        e = 10 ** rng.uniform(low, high, size=n)
        p = np.repeat(e[:, None], m, axis=1)
        p[np.arange(n), rng.integers(m, size=n)] = 1 - (m - 1) * e
        return p

    return draw


def rare(n: int, rng: np.random.Generator) -> np.ndarray:
    """Two classes, of which one is seen in a sample of a thousand."""
    event = rng.beta(0.1, 100.0, size=n)
    return np.stack([1 - event, event], axis=1)


def skewed(m: int) -> Predictions:
    """Classes of which most are rare: base rates 1 / k^1.5."""
    rates = np.arange(1, m + 1) ** -1.5
    return lambda n, rng: rng.dirichlet(10 * rates / rates.sum(), size=n)


def tied(n: int, rng: np.random.Generator) -> np.ndarray:
    """20 distinct predictions of 5 classes."""
    return rng.dirichlet(np.full(5, 0.5), size=20)[rng.integers(20, size=n)]


def mixed(n: int, rng: np.random.Generator) -> np.ndarray:
    """Four of five rows one-hot, the others uncertain; at least one row is."""
    p = rng.dirichlet(np.full(5, 1.0), size=n)
    certain = rng.uniform(size=n) < 0.8
    certain[0] = False
    p[certain] = np.eye(5)[rng.integers(5, size=certain.sum())]
    return p


@functools.cache
def _network() -> np.ndarray:
    """Probabilities of a ResNet-110 on the test images of CIFAR-10, shape (10000, 10)."""
    assert FOLDER is not None
    with np.load(Path(FOLDER) / LOGITS) as file:
        logits = file["logits"].astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def network(n: int, rng: np.random.Generator) -> np.ndarray:
    """Predictions of a real network, drawn with replacement."""
    p = _network()
    return p[rng.integers(len(p), size=n)]


LAWS = {
    "Dir(.1), m = 2": Law(200, dirichlet(2, 0.1)),
    "Dir(.1), m = 10": Law(200, dirichlet(10, 0.1)),
    "Dir(.1), m = 100": Law(60, dirichlet(100, 0.1)),
    "Dir(1), m = 2": Law(200, dirichlet(2, 1.0)),
    "Dir(1), m = 10": Law(200, dirichlet(10, 1.0)),
    "Dir(1), m = 100": Law(60, dirichlet(100, 1.0)),
    "saturated, 1e-8..1e-6": Law(200, saturated(-8, -6)),
    "saturated, 1e-8..1e-4": Law(200, saturated(-8, -4)),
    "saturated, 1e-6..1e-3": Law(200, saturated(-6, -3)),
    "rare, Beta(.1, 100)": Law(200, rare),
    "skewed, m = 100": Law(60, skewed(100)),
    "20 distinct rows": Law(200, tied),
    "one-hot and uncertain": Law(200, mixed),
    "n = 20": Law(20, dirichlet(5, 0.3)),
}
# The network's predictions are not part of the repository: the variable KCALIB_DATA names their folder.
if FOLDER and (Path(FOLDER) / LOGITS).exists():
    LAWS["CIFAR-10, ResNet-110"] = Law(150, network)
