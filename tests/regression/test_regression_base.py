"""What all calibration-error estimation functions share: the risk, evaluation, parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kcalib.lenses import ClassWise, Lens, TopLabel
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


def test_parameters_and_clone():
    function = Given(lens=TopLabel())
    assert function.get_params() == {"core": None, "lens": TopLabel()}
    assert repr(function) == "Given(lens=TopLabel())"
    assert function.set_params(lens=None).lens is None
    with pytest.raises(ValueError, match="has no parameter 'bandwidth'; it has core, lens"):
        function.set_params(bandwidth=1)
    fitted = function.fit(*drawn(5, 3, 0))
    with pytest.raises(ValueError, match="not fitted"):
        fitted.clone().h(np.ones((1, 1)))
    sklearn = pytest.importorskip("sklearn.base")
    assert sklearn.clone(fitted).get_params() == fitted.get_params()


def test_evaluation_of_other_classes_is_an_error():
    function = Given().fit(*drawn(5, 3, 0))
    with pytest.raises(ValueError, match="2 classes, Given was fitted to 3"):
        function.squared_error(np.array([[0.5, 0.5]]))
    with pytest.raises(ValueError, match="at least 2 samples"):
        function.risk(*drawn(1, 3, 0))
