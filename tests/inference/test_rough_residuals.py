"""Rounded products with H of the residuals: p-values beside those of all eigenvalues of the stored matrix."""

from __future__ import annotations

import numpy as np
import pytest
from problems import draw_labels

from kcalib import _native
from kcalib._input.labels import prepare
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib.estimators.skce import PairOptions
from kcalib.inference.eigenvalues import full_spectrum, of_residuals
from kcalib.inference.spectrum import limit_law
from kcalib.inference.task import Task
from kcalib.kernels import Exponential

LEVELS = "x86-64-v4-vnni", "x86-64-v4-amx"
bytes_only = pytest.mark.skipif(_native.Sweep(1).level not in LEVELS, reason="this machine has no products of bytes")


@pytest.fixture
def rounded(monkeypatch) -> list[bool]:
    """Of each product that was asked for in bytes, whether it was one."""
    asked: list[bool] = []
    rough, single = CpuBackend.rough_products, CpuBackend.products_off_diagonal

    def in_bytes(self, *args, **options):
        asked.append(True)
        return rough(self, *args, **options)

    def in_float32(self, vectors):
        asked[-1:] = [False] * len(asked[-1:])
        return single(self, vectors)

    monkeypatch.setattr(CpuBackend, "rough_products", in_bytes)
    monkeypatch.setattr(CpuBackend, "products_off_diagonal", in_float32)
    return asked


def task_of(p: np.ndarray, bandwidth: float) -> Task:
    labels = draw_labels(p, np.random.default_rng(1))
    return Task(prepare(labels, p), PairOptions(Exponential(bandwidth=bandwidth)))


@bytes_only
@pytest.mark.parametrize("name", ["equal", "two", "diffuse", "onehot", "rare class", "many classes"])
@pytest.mark.parametrize("by_moments", [False, True])
def test_far_tails_of_residuals(name, by_moments, rounded):
    """Also of equal entries, which rounded to the nearest would all be off by the same; and of the moments' sweep."""
    n, m, rng = 1200, 4, np.random.default_rng(0)
    p = {
        "equal": np.tile([0.1, 0.2, 0.3, 0.4], (n, 1)),
        "two": np.array([[0.9, 0.05, 0.03, 0.02], [0.2, 0.25, 0.25, 0.3]])[rng.integers(2, size=n)],
        "diffuse": rng.dirichlet(np.ones(m), size=n),
        "onehot": 0.4 * np.eye(m)[rng.integers(m, size=n)] + 0.15,
        "rare class": rng.dirichlet([5, 5, 5, 0.05], size=n),
        "many classes": rng.dirichlet(np.ones(10), size=n),
    }[name]
    task, kept = task_of(p, 1.5), _native.RoughEntries()
    law = full_spectrum(of_residuals(task.backend, task.moments, n, 0.0)).law()
    if by_moments:
        task.backend.moments_and_rough_entries(kept)
    tails = []
    for deviations in (-1, 0.5, 2, 5, 10, 30):
        statistic = deviations * law.var**0.5
        hidden = of_residuals(task.backend, task.moments, n, statistic, kept if by_moments else None)
        settled = limit_law(hidden, statistic)
        tails.append(law.logsf(statistic + law.mean))
        assert settled.logsf(statistic + settled.mean) == pytest.approx(tails[-1], abs=0.01)
        assert deviations > 2 or (rounded and all(rounded))
    assert tails[-1] < -25


@bytes_only
def test_roundings_need_enough_terms(rounded):
    """Of a narrow kernel eigenvalues are sums of few entries; in the far tail log p changes by more."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(5), size=700)
    used = []
    for bandwidth in (1.0, 0.02):
        task = task_of(p, bandwidth)
        for deviations in (1, 30):
            rounded.clear()
            deviation = (2 * task.moments.sum_of_squares) ** 0.5 / (task.n - 1)
            found = of_residuals(task.backend, task.moments, task.n, deviations * deviation)
            products = found.product(rng.standard_normal((task.n, 16)))
            assert products.shape == (task.n, 16)
            used.append(bool(rounded))
    assert used == [True, False, False, False]


def test_no_residuals_are_not_rounded():
    task = task_of(np.eye(3)[np.arange(300) % 3], 0.5)
    found = of_residuals(task.backend, task.moments, 300, 0.0)
    assert found.squares == 0
    assert not found.product(np.ones((300, 16))).any()
