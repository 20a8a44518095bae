"""The compiled exp and square root: units in the last place against mpmath, on every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest
from problems import instruction_sets

from kcalib._operators.openmp import OpenMPOperator
from kcalib._problem import Factor, PairProblem, Side, Term

mpmath = pytest.importorskip("mpmath")


def values(profile: str, metric: str, x: np.ndarray, level: str) -> np.ndarray:
    """profile(x) for x >= 0: the pairs of 0 with x on a line, in x's dtype."""
    points = np.concatenate(([0], x)).astype(x.dtype)[:, None]
    problem = PairProblem(Side(points, np.ones_like(points)), None, (Term(1.0, (Factor(profile, metric),)),))
    return OpenMPOperator(problem, level=level).tile(slice(0, 1), slice(1, None))[0]


def ulps(found: np.ndarray, exact: list, dtype: type) -> float:
    """Largest error in units in the last place of the exact value."""
    epsilon = float(np.finfo(dtype).eps)
    worst = 0.0
    for a, b in zip(found, exact, strict=True):
        ulp = mpmath.mpf(2) ** math.floor(mpmath.log(b, 2)) * epsilon
        worst = max(worst, float(abs(mpmath.mpf(float(a)) - b) / ulp))
    return worst


@pytest.mark.parametrize("level", instruction_sets())
@pytest.mark.parametrize(("dtype", "highest"), [(np.float64, 707.0), (np.float32, 86.0)])
def test_exp_is_right_to_1_5_ulp(level, dtype, highest):
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.uniform(0, highest, 3000), rng.uniform(0, 1, 2000), 10.0 ** rng.uniform(-18, 0, 500), [0.0]]
    )
    # Around odd multiples of ln(2)/2, where the reduced argument is largest.
    edges = (2 * np.arange(100) + 1) * math.log(2) / 2
    x = np.concatenate([x, edges, np.nextafter(edges, 0), np.nextafter(edges, 1e3)]).astype(dtype)
    x = x[x <= highest]
    with mpmath.workdps(40):
        exact = [mpmath.exp(-mpmath.mpf(float(v))) for v in x]
        assert ulps(values("exponential", "cityblock", x, level), exact, dtype) <= 1.5


@pytest.mark.parametrize("level", instruction_sets())
@pytest.mark.parametrize(("dtype", "bits", "lowest"), [(np.float64, 26, -160), (np.float32, 11, -18)])
def test_square_root_is_right_to_an_ulp(level, dtype, bits, lowest):
    # x^2 is exact for x of half the digits: its root is x.
    rng = np.random.default_rng(0)
    mantissa = rng.integers(2 ** (bits - 1), 2**bits, 20_000).astype(np.float64)
    x = np.ldexp(mantissa, rng.integers(lowest, 20, len(mantissa)) - bits).astype(dtype)
    found = values("identity", "euclidean", x, level)
    assert np.max(np.abs(found - x.astype(np.float64)) / np.spacing(x).astype(np.float64)) <= 1.0
    assert values("identity", "euclidean", np.zeros(1, dtype), level)[0] == 0.0


@pytest.mark.parametrize("level", instruction_sets())
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exp_of_far_points_is_tiny_and_no_denormal(level, dtype):
    found = values("exponential", "cityblock", np.array([800.0, 1e10, 1e30], dtype), level)
    assert (found > 0).all() and (found >= float(np.finfo(dtype).tiny)).all() and (found < 1e-37).all()
