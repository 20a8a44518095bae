"""States as files: what comes back, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import kcalib
from kcalib import target_kernels
from kcalib.distributions import Normal
from kcalib.kernels import (
    Cosine,
    Exponential,
    GammaExponential,
    GammaRationalQuadratic,
    Gaussian,
    Linear,
    Matern,
    RationalQuadratic,
)
from kcalib.lenses import Canonical, ClassWise, Groups, TopK, TopLabel
from kcalib.streaming import CalibrationState, ForecastState
from kcalib.streaming._files.format import Content, pack_content, unpack

KERNELS = [
    None,
    Exponential(1 / 3, metric="cityblock"),
    Exponential(metric="total_variation") + 0.1 * Linear(),
    GammaExponential(0.3, gamma=0.7) * Linear(),
    Matern(0.3, nu=2.5),
    RationalQuadratic(0.4, alpha=0.3),
    2 * GammaRationalQuadratic(0.2, alpha=3, gamma=0.9),
]


def problem(n=300, m=4):
    rng = np.random.default_rng(0)
    return rng.integers(m, size=n), rng.dirichlet(np.ones(m), size=n)


def returned(state, tmp_path):
    """By every way."""
    path = tmp_path / "a.kcalib"
    state.save(path)
    found = [
        CalibrationState.load(path),
        kcalib.streaming.load(path),
        CalibrationState.from_bytes(state.to_bytes()),
        pickle.loads(pickle.dumps(state)),
    ]
    assert path.read_bytes() == state.to_bytes()
    return found


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_kernels_come_back(kernel, tmp_path):
    y, p = problem()
    options = {"kernel": kernel, "n_columns": 32, "n_resamples": 3}
    whole = CalibrationState(4, **options).update(y, p)
    part = CalibrationState(4, **options).update(y[:130], p[:130])
    for found in returned(part, tmp_path):
        assert found == part and found.options == part.options and found.kernel == part.kernel
        assert found.update(y[130:], p[130:]) == whole
    assert found.calibration_test().pvalue == whole.calibration_test().pvalue


@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"lens": Canonical()},
        {"lens": TopLabel(), "kernel": Cosine(0.5)},
        {"lens": ClassWise(2)},
        {"lens": TopK(2)},
        {"lens": Groups([[0, 3], [1, 2]])},
        {"target_kernel": np.eye(4) + 0.1},
        {"target_kernel": Gaussian(1.0)},
        {"target_kernel": "delta", "from_logits": True, "part": 7, "seed": 2**63 - 1},
        {"classes": [1.5, 2.5, 3.0, 0.1]},
        {"classes": ["a", "b", "c", "d"], "n_bins": 3, "n_resamples": 0},
    ],
    ids=str,
)
def test_options_come_back(options, tmp_path):
    y, p = problem(150)
    y = np.array(options["classes"])[y] if "classes" in options else y
    p = np.log(p) if options.get("from_logits") else p
    state = CalibrationState(4, **{"n_columns": 32, "n_resamples": 2} | options).update(y, p)
    for found in returned(state, tmp_path):
        assert found == state and found.options == state.options
    assert found.result() is not None


def test_a_state_without_rows_comes_back(tmp_path):
    for found in returned(CalibrationState(3), tmp_path):
        assert found.n_samples == 0 and found == CalibrationState(3)


def test_equal_states_have_equal_bytes():
    y, p = problem()
    options = {"kernel": Exponential(0.3), "n_columns": 32, "n_resamples": 3}
    whole = CalibrationState(4, **options).update(y, p)
    by_one = CalibrationState(4, **options)
    for i in np.random.default_rng(1).permutation(300):
        by_one.update(y[i : i + 1], p[i : i + 1], first_row=i)
    assert by_one.to_bytes() == whole.to_bytes()
    assert whole != CalibrationState(4, **options) and whole != 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(whole)


def changed(state, **changes):
    """The file of another content, with the right checksum."""
    content = unpack(state.to_bytes(), "it")
    for name, change in changes.items():
        content = content._replace(**{name: change(getattr(content, name))})
    return pack_content(Content(*content))


def test_what_later_versions_may_add():
    y, p = problem()
    state = CalibrationState(4, kernel=Exponential(0.3), n_columns=32).update(y, p)
    data = changed(
        state,
        options=lambda options: options | {"unheard_of": (1, 2)},
        arrays=lambda arrays: arrays | {"unheard_of": np.zeros(3)},
    )
    assert CalibrationState.from_bytes(data) == state


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("kind", lambda kind: "diary", "holds a state of the kind 'diary', expected 'calibration'"),
        ("options", lambda options: {}, "`data` is not as kcalib writes a state: there is no 'n_classes'"),
        ("arrays", lambda arrays: {}, r"`data` is not as kcalib writes a state: the arrays \[.*\] are missing"),
        (
            "arrays",
            lambda arrays: arrays | {"cells_low": np.zeros(3)},
            "the array 'cells_low' has dtype float64",
        ),
    ],
)
def test_contents_that_make_no_sense(name, change, message):
    y, p = problem()
    state = CalibrationState(4, kernel=Exponential(0.3), n_columns=32).update(y, p)
    with pytest.raises(ValueError, match=message):
        CalibrationState.from_bytes(changed(state, **{name: change}))


def test_what_is_no_state(tmp_path):
    with pytest.raises(TypeError, match="`data` is a str, expected bytes"):
        CalibrationState.from_bytes("a")
    with pytest.raises(FileNotFoundError):
        CalibrationState.load(tmp_path / "none")
    path = tmp_path / "diary.kcalib"
    path.write_bytes(changed(CalibrationState(3), kind=lambda kind: "diary"))
    with pytest.raises(ValueError, match=r"diary\.kcalib holds a state of the kind 'diary', which this version"):
        kcalib.streaming.load(path)


def test_kernels_of_users_are_not_saved(tmp_path):
    class Mine(Exponential):
        pass

    state = CalibrationState(3, kernel=Mine(0.3))
    with pytest.raises(TypeError, match="`kernel` is .*, which is none of kcalib's, so that a file cannot say"):
        state.save(tmp_path / "a.kcalib")
    assert not list(tmp_path.iterdir())


def test_target_kernels_of_distributions_are_refused():
    with pytest.raises(ValueError, match="which is for predicted distributions"):
        CalibrationState(3, target_kernel=target_kernels.Draws())


@pytest.mark.parametrize("weight", [1e-30, 1e-24, 1e-13, 1e-12, 1e-6, 1e5])
def test_weights_of_any_size_are_read_again(weight):
    """Squares of small weights are cut to nothing in sums, which is no reason to refuse the state."""
    state = CalibrationState(2, n_columns=16).update([0, 1, 1], [0.2, 0.7, 0.4], [weight, 0, weight])
    forecasts = ForecastState(n_columns=16).update([0.1, 0.3], Normal([0.0, 0.0], [1.0, 1.0]), [weight, weight])
    for one in (state, forecasts):
        assert type(one).from_bytes(one.to_bytes()) == one
