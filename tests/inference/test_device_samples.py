"""Weights, clusters and further variables of samples on a GPU: the results of NumPy arrays."""

import numpy as np
import pytest

import kcalib
from kcalib.methods import Adaptive

QUICK = Adaptive(n_resamples=19, n_columns=16)


def make_samples():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=200)
    y = np.minimum((p.cumsum(axis=1) <= rng.uniform(size=(200, 1))).sum(axis=1), 2)
    of_samples = {
        "sample_weight": rng.exponential(size=200),
        "clusters": np.arange(200) // 4,
        "given": rng.normal(size=200),
    }
    return y, p, of_samples


@pytest.mark.parametrize("names", [("sample_weight", "given"), ("clusters", "given"), ("sample_weight", "clusters")])
def test_arrays_on_a_gpu(cupy, names):
    y, p, of_samples = make_samples()
    host = {name: of_samples[name] for name in names}
    device = {name: cupy.asarray(values) for name, values in host.items()}
    expected = kcalib.evaluate(y, p, method=QUICK, **host).test
    result = kcalib.evaluate(cupy.asarray(y), cupy.asarray(p), method=QUICK, **device).test
    assert result.pvalue == expected.pvalue
    for block, other in zip(result.blocks, expected.blocks, strict=True):
        assert block.statistic == pytest.approx(other.statistic, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("metric", ["brier_score", "skce"])
def test_a_comparison_on_a_gpu(cupy, metric):
    y, p, of_samples = make_samples()
    models = {"a": p, "b": p[:, ::-1]}
    host = {name: of_samples[name] for name in ("sample_weight", "clusters")}
    device = {name: cupy.asarray(values) for name, values in host.items()}
    expected = kcalib.compare(y, models, metric=metric, **host).differences[0]
    on_device = {name: cupy.asarray(values) for name, values in models.items()}
    result = kcalib.compare(cupy.asarray(y), on_device, metric=metric, **device).differences[0]
    assert result.difference == pytest.approx(expected.difference, rel=1e-6)
    assert result.standard_error == pytest.approx(expected.standard_error, rel=1e-6)
