"""Arrays that another thread or process changes during a call: numbers may be wrong then, memory is not touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import emulated_cupy
import numpy as np
import pytest
from libraries import library

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.random import cumulative_sums, draw_label_batches, draw_labels
from kcalib._input.labels import prepare
from kcalib.bandwidth import _median_on_a_line

ODD = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 0.25, 0.5, 1.0])
STRESS = Path(__file__).parents[1] / "support" / "changing_arrays.py"


@pytest.mark.parametrize("name", ["numpy", "torch", "cupy-emulated"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float64"])
def test_labels_are_copied(name: str, dtype: str) -> None:
    convert = library(name).asarray
    with emulated_cupy.installed():
        labels = convert(np.array([0, 1, 0, 1], dtype))
        data = prepare(labels, convert(np.full((4, 2), 0.5)))
        labels[:] = 2**30
        assert arrays.to_host(data.labels).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("memory", ["shared", "mapped", "read-only"])
def test_labels_in_memory_of_others_are_copied(memory: str, tmp_path: Path) -> None:
    if memory == "mapped":
        labels = np.memmap(tmp_path / "labels", np.int64, "w+", shape=(4,))
    else:
        labels = np.zeros(8, np.int64)[::2] if memory == "shared" else np.zeros(4, np.int64)
    seen = labels.view()
    seen.flags.writeable = memory == "shared"
    data = prepare(seen, np.full((4, 2), 0.5))
    labels[:] = 2**40
    assert data.labels.tolist() == [0, 0, 0, 0]


def odd_rows(n: int, m: int) -> np.ndarray:
    """Rows that were checked, and are anything by now."""
    return np.random.default_rng(n).choice(ODD, (n, m))


@pytest.mark.parametrize("n", [1, 2, 70, 5000])
def test_values_that_are_anything_are_not_followed_out_of_their_array(n: int) -> None:
    labels = np.random.default_rng(1).integers(0, 2, n)
    for m in (2, 7, 13):
        p = odd_rows(n, m)
        _, correct = _native.top_labels(p, labels, 1)
        assert set(correct) <= {0.0, 1.0}
        group, weight, gap = _native.median_variance_cells(p, labels, 50, 1, "cityblock", 1)
        assert sorted(set(group)) == list(range(len(weight))) and gap.shape == weight.shape
        group, weight, gap = _native.uniform_cells(p, labels, None, 10, "euclidean", 1)
        assert sorted(set(group)) == list(range(len(weight))) and gap.shape == weight.shape
        assert _native.uniform_bins(p, labels, None, 10, 1)[1].sum() == n * m
    options = _native.RunOptions(1)
    points = odd_rows(n, 2)
    for block in {n, min(n, 7), 1}:
        positions, places, *_ = _native.line_order(points, labels, block, options)
        assert sorted(positions) == list(range(n)) and np.isfinite(places).all()
        assert all(positions // block == np.arange(n) // block)
    for given in (points, points[:, 1].copy()):
        sizes = _native.line_residuals(given, labels, options)[0]
        assert np.isinf(sizes).sum() == 2 and not np.isnan(sizes).any()
    assert _native.completed(points[:, 0].copy(), 1).shape == (n, 2)
    if n > 2:
        with np.errstate(over="ignore"):
            assert _median_on_a_line(points, "euclidean", 1)[0] > 0


@pytest.mark.parametrize("m", [2, 7, 300])
def test_labels_drawn_from_rows_that_are_anything_are_classes(m: int) -> None:
    p = odd_rows(300, m)
    p[:3] = np.zeros(m), -np.ones(m), np.eye(m)[0] - 1  # whose sums no number is below, or none but the last
    with np.errstate(all="ignore"):
        cumulative = cumulative_sums(p)
        drawn = [draw_labels(cumulative, np.full(300, u)) for u in (0.0, 0.5, 1 - 2.0**-53)]
        drawn += list(draw_label_batches(p, 20, 0, at_once=16, threads=1))
    for labels in drawn:
        assert labels.min() >= 0 and labels.max() < m


@pytest.mark.slow
def test_calls_while_another_process_writes(tmp_path: Path) -> None:
    """Without the copies and checks, a segmentation fault within two seconds."""
    command = [sys.executable, "-P", str(STRESS), str(tmp_path), "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 20
