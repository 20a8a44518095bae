"""What the guide says of `jax.jit` and of Dask arrays, as it is written there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState

pytestmark = pytest.mark.grid
PAGE = Path(__file__).parents[2] / "docs/user_guide/integrations/lazy.rst"


def codes():
    """The blocks of code of the page."""
    text = PAGE.read_text()
    return [textwrap.dedent(block) for block in re.findall(r"::\n\n((?:   .*\n|\n)+)", text)]


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.ones(3), size=90)
    return rng.integers(3, size=90), p


@pytest.fixture(scope="module")
def lazy_error():
    names = {"array_api_extra": pytest.importorskip("array_api_extra"), "kcalib": kcalib, "numpy": np}
    exec(codes()[0], names)
    return names["error"]


def test_a_jitted_function_calls_back(samples, lazy_error):
    jax = pytest.importorskip("jax")
    labels, p = samples

    @jax.jit
    def of_logits(labels, logits):
        return 2 * lazy_error(labels, jax.nn.softmax(logits))

    found = of_logits(jax.numpy.asarray(labels), jax.numpy.log(jax.numpy.asarray(p)))
    assert float(found) == pytest.approx(2 * kcalib.skce(labels, p), rel=1e-5)
    with pytest.raises(TypeError, match="traced JAX array, expected a concrete one; .* by array_api_extra.lazy_apply"):
        jax.jit(kcalib.skce)(labels, p)


def test_a_function_of_dask_arrays_stays_lazy(samples, lazy_error):
    dask = pytest.importorskip("dask")
    array = pytest.importorskip("dask.array")
    labels, p = samples
    calls = []
    chunks = array.from_array(p, chunks=(20, 3)).map_blocks(lambda block: calls.append(len(block)) or block, meta=p[:0])
    found = lazy_error(array.from_array(labels, chunks=20), chunks)
    assert isinstance(found, array.Array) and not calls
    with dask.config.set(scheduler="synchronous"):
        assert float(found.compute()) == kcalib.skce(labels, p)
    assert sorted(calls) == [10, 20, 20, 20, 20]


def test_states_of_the_chunks_of_dask_arrays_add_up(samples, capsys):
    dask = pytest.importorskip("dask")
    array = pytest.importorskip("dask.array")
    labels, p = samples
    y, q = array.from_array(labels, chunks=20), array.from_array(p, chunks=(20, 3))
    names = {"dask": dask, "kcalib": kcalib, "Exponential": Exponential, "m": 3, "y": y, "p": q}
    code = codes()[1].strip().replace("dask.delayed(sum)", "found = dask.delayed(sum)")
    with dask.config.set(scheduler="synchronous"):
        exec(code, names)
        assert float(dask.delayed(kcalib.skce)(y, q).compute()) == kcalib.skce(labels, p)
    whole = CalibrationState(3, kernel=Exponential(0.5)).update(labels, p).result()
    assert names["found"].n_samples == 90
    assert names["found"].skce.value == pytest.approx(whole.skce.value, rel=1e-9)
    assert names["found"].top_label_ece == whole.top_label_ece
