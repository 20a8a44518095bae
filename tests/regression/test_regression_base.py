"""What all calibration-error estimation functions share: the risk, evaluation, parameters, array libraries."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from libraries import Library, MakeProblem

from kcalib._backend import arrays
from kcalib.kernels import Gaussian
from kcalib.lenses import ClassWise, Lens, TopLabel
from kcalib.regression import KKR, UKKR, BinnedCalibration, DirichletKDE, TemperatureCalibration
from kcalib.regression._function import CalibrationFunction, Problem, null_risk_of, risk_of


class Given(CalibrationFunction):
    """phi(p) = p A with a given core."""

    def __init__(self, core: np.ndarray | None = None, lens: Lens | None = None) -> None:
        self.core, self.lens = core, lens

    def _fit(self, problem: Problem) -> None:
        pass

    def _features(self, problem: Problem) -> np.ndarray:
        return problem.simplex

    def _core(self) -> np.ndarray | None:
        return self.core


def drawn(n: int, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, m, size=n), rng.dirichlet(np.ones(m), size=n)


def literal_risk(residuals: np.ndarray, h: np.ndarray) -> float:
    n = len(residuals)
    return math.fsum(
        (float(residuals[i] @ residuals[j]) - h[i, j]) ** 2 for i in range(n) for j in range(n) if i != j
    ) / (n * (n - 1))


@pytest.mark.parametrize("with_core", [False, True])
def test_risk_is_the_literal_mean_over_pairs(with_core):
    y, p = drawn(40, 3, 1)
    core = np.array([[1.0, 0.5, -0.2], [0.5, -2.0, 0.1], [-0.2, 0.1, 0.3]]) if with_core else None
    function = Given(core).fit(y, p)
    h = function.h(p)
    assert np.allclose(h, p @ (np.eye(3) if core is None else core) @ p.T, rtol=1e-14)
    residuals = np.eye(3)[y] - p
    assert function.risk(y, p) == pytest.approx(literal_risk(residuals, h), rel=1e-12)
    assert function.squared_error(p) == pytest.approx(np.mean(np.diag(h)), rel=1e-12)
    assert null_risk_of(residuals) == pytest.approx(literal_risk(residuals, np.zeros((40, 40))), rel=1e-12)


def test_risk_by_hand():
    """Two samples, residuals (0.5) and (-0.5), h = 0.25: ((-0.25) - 0.25)^2 twice over two."""
    assert risk_of(np.array([[0.5], [-0.5]]), np.array([[0.5], [0.5]]), None) == 0.25


def test_scalar_lenses_make_one_dimension():
    y, p = np.array([0, 2]), np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
    top = Given(lens=TopLabel())._problem(y, p, None, False)
    assert np.allclose(top.points, [[0.7], [0.6]], rtol=1e-15)
    assert np.allclose(top.residuals, [[0.3], [-0.6]], rtol=1e-15)
    third = Given(lens=ClassWise(2))._problem(y, p, None, False)
    assert np.allclose(third.points, [[0.1], [0.3]], rtol=1e-15)
    assert np.allclose(third.residuals, [[-0.1], [0.7]], rtol=1e-15)
    with pytest.raises(ValueError, match=r"`index` is 3"):
        Given(lens=ClassWise(3)).fit(y, p)
    with pytest.raises(TypeError, match="expected a lens"):
        Given(lens="top").fit(y, p)


def test_confidence_near_one_keeps_its_complement():
    p = np.array([[1e-20, 1.0 - 1e-16], [0.5, 0.5]])
    problem = Given(lens=TopLabel())._problem(np.array([1, 0]), p, None, False)
    assert problem.residuals[0, 0] == 1e-20


def test_evaluation_of_other_classes_is_an_error():
    function = Given().fit(*drawn(5, 3, 0))
    with pytest.raises(ValueError, match="2 classes, Given was fitted to 3"):
        function.squared_error(np.array([[0.5, 0.5]]))
    with pytest.raises(ValueError, match="at least 2 samples"):
        function.risk(*drawn(1, 3, 0))


FUNCTIONS = {
    "BinnedCalibration(n_bins=7)": BinnedCalibration(7),
    "TemperatureCalibration()": TemperatureCalibration(),
    "DirichletKDE(bandwidth=0.1, orientation='query', threads=2)": DirichletKDE(0.1, orientation="query", threads=2),
    **{
        f"{kind.__name__}(regularization=0.001, kernel={kernel!r}, lens=TopLabel(), max_memory=1000000000.0)": kind(
            1e-3, kernel=kernel, lens=TopLabel(), max_memory=1e9
        )
        for kind in (KKR, UKKR)
        for kernel in [Gaussian(bandwidth=0.2)]
    },
}


@pytest.mark.parametrize("name", FUNCTIONS, ids=lambda name: name.partition("(")[0])
def test_parameters_clone_and_pickle(name, make_problem: MakeProblem):
    function = FUNCTIONS[name]
    assert repr(function) == name
    y, p = make_problem(30, 3)
    fitted = function.clone()
    assert fitted.fit(y, p) is fitted and fitted.get_params() == function.get_params()
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).h(p), fitted.h(p))
    for copy in (fitted.clone(), fitted.set_params(lens=fitted.lens)):
        with pytest.raises(ValueError, match=f"this {type(function).__name__} is not fitted; call fit"):
            copy.h(p)
    with pytest.raises(ValueError, match="has no parameter 'scale'; it has "):
        function.set_params(scale=1)
    base = pytest.importorskip("sklearn.base")
    assert base.clone(function).get_params() == function.get_params()


@pytest.mark.parametrize("name", FUNCTIONS, ids=lambda name: name.partition("(")[0])
def test_every_array_library(xp: Library, name, make_problem: MakeProblem):
    function = FUNCTIONS[name].clone()
    if hasattr(function, "threads"):
        function.set_params(threads=None)
    y, p = make_problem(40, 3)
    expected = function.clone().fit(y, p)
    found = function.fit(xp.asarray(y), xp.asarray(p))
    error = found.squared_error(xp.asarray(p))
    # Temperatures are searched to 1e-6; on a GPU sums are made in another order.
    assert type(error) is float and error == pytest.approx(expected.squared_error(p), rel=1e-6, abs=1e-12)
    assert np.allclose(arrays.to_host(found.h(xp.asarray(p))), expected.h(p), rtol=1e-6, atol=1e-12)
    assert found.risk(xp.asarray(y), xp.asarray(p)) == pytest.approx(expected.risk(y, p), rel=1e-8)
