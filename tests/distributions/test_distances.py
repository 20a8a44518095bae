"""Distances between predicted distributions against literal formulas, linear programmes and cases by hand."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import kcalib
import kcalib.distributions
from kcalib.distributions import (
    Components,
    Laplace,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
    mmd_distance,
    wasserstein_distance,
)
from kcalib.distributions._distances import tables, transport
from kcalib.distributions._distances.mixtures import wasserstein_table
from kcalib.kernels import MMD, Exponential, Gaussian, MixtureWasserstein


def random_covariances(n, d, rng):
    roots = rng.standard_normal((n, d, d))
    return roots @ np.swapaxes(roots, 1, 2)


def random_components(family, n, K, d, rng, equal=False):
    weights = np.full((n, K), 1 / K) if equal else rng.dirichlet(np.ones(K), size=n)
    scales = {
        "normal": rng.gamma(2.0, size=(n, K, d)),
        "normal_full": random_covariances(n * K, d, rng).reshape(n, K, d, d),
        "laplace": rng.gamma(2.0, size=(n, K, 1)),
        "atoms": None,
    }[family]
    return Components(family, weights, rng.standard_normal((n, K, d)), scales)


def centred_normals(covariances):
    """N(0, S) for each S, singular ones among them, which `MultivariateNormal` does not take."""
    n, d, _ = covariances.shape
    return Components("normal_full", np.ones((n, 1)), np.zeros((n, 1, d)), covariances[:, None])


def exact_bures(S, T):
    """tr S + tr T - 2 tr (S^1/2 T S^1/2)^1/2, root of it, with 60 digits."""
    with mpmath.workdps(60):
        S, T = mpmath.matrix(S.tolist()), mpmath.matrix(T.tolist())
        values, vectors = mpmath.eigsy(S)
        root = vectors * mpmath.diag([mpmath.sqrt(max(value, 0)) for value in values]) * vectors.T
        between = mpmath.eigsy(root * T * root, eigvals_only=True)
        traces = sum(S[i, i] + T[i, i] for i in range(S.rows))
        return float(mpmath.sqrt(max(traces - 2 * sum(mpmath.sqrt(max(v, 0)) for v in between), 0)))


def between_components(family, a, b):
    """W_2 of two components (location, scale), by the formulas of the papers."""
    squares = np.sum((a[0] - b[0]) ** 2)
    if family == "normal":
        squares += np.sum((np.sqrt(a[1]) - np.sqrt(b[1])) ** 2)
    elif family == "laplace":
        squares += 2 * np.sum((a[1] - b[1]) ** 2)
    elif family == "normal_full":
        root = scipy.linalg.sqrtm(a[1]).real
        squares += np.trace(a[1] + b[1] - 2 * scipy.linalg.sqrtm(root @ b[1] @ root).real)
    return math.sqrt(max(squares, 0.0))


def literal_transport(costs, weights, others):
    """The least cost by one linear programme, constraint by constraint."""
    K, L = costs.shape
    rows = [[1.0 if k == row else 0.0 for k in range(K) for _ in range(L)] for row in range(K)]
    columns = [[1.0 if k == column else 0.0 for _ in range(K) for k in range(L)] for column in range(L)]
    found = scipy.optimize.linprog(costs.ravel(), A_eq=rows + columns, b_eq=[*weights, *others])
    assert found.status == 0
    return max(found.fun, 0.0)


def literal_distance(left, i, right, j, order):
    def component(side, row, k):
        return side.locations[row, k], None if side.scales is None else side.scales[row, k]

    costs = np.array(
        [
            [
                between_components(left.family, component(left, i, k), component(right, j, m)) ** order
                for m in range(right.weights.shape[1])
            ]
            for k in range(left.weights.shape[1])
        ]
    )
    return literal_transport(costs, left.weights[i], right.weights[j]) ** (1 / order)


class TestNormals:
    def test_by_hand(self):
        """N(0, [[2, 1], [1, 2]]), whose eigenvalues are 1 and 3, and N(m, I): |m|^2 + 4 + 2 - 2 (1 + sqrt 3)."""
        prediction = MultivariateNormal([[0.0, 0.0], [3.0, 4.0]], [[[2.0, 1.0], [1.0, 2.0]], np.eye(2)])
        expected = math.sqrt(25 + 4 - 2 * math.sqrt(3))
        assert wasserstein_distance(prediction) == pytest.approx(np.array([[0, expected], [expected, 0]]), rel=1e-15)

    @pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
    def test_against_many_digits(self, d):
        """Well-conditioned covariances, equal up to 1e-9 and up to 1e-13 among them: to rounding."""
        rng = np.random.default_rng(d)
        S = random_covariances(6, d, rng) + 0.1 * np.eye(d)
        S[3], S[4] = S[2] * (1 + 1e-9), S[2] + 1e-13 * np.eye(d)
        table = wasserstein_table(centred_normals(S))
        scale = math.sqrt(max(np.trace(one) for one in S))
        for i, j in itertools.combinations(range(6), 2):
            # Rounding of the roots; to it the condition of a root adds a factor, sqrt(trace / smallest eigenvalue).
            assert table[i, j] == pytest.approx(exact_bures(S[i], S[j]), rel=1e-12, abs=1e-14 * scale)
        assert table[2, 3] < 1e-8 < table[2, 1]

    @pytest.mark.parametrize("d", [2, 3, 4, 5])
    def test_singular(self, d):
        """A zero eigenvalue is known up to 1e-16, and its root up to 1e-8."""
        rng = np.random.default_rng(10 + d)
        x, y = rng.standard_normal((2, d))
        S = np.array([np.outer(x, x), np.outer(y, y), np.outer(x, x) + np.outer(y, y), np.zeros((d, d)), np.eye(d)])
        S = np.concatenate([S, S * (1 + 1e-7)])
        table = wasserstein_table(centred_normals(S))
        for i, j in itertools.combinations(range(len(S)), 2):
            assert table[i, j] == pytest.approx(exact_bures(S[i], S[j]), abs=1e-7)
        # Covariances have rank 1: |x|^2 + |y|^2 - 2 |x.y|.
        assert table[0, 1] ** 2 == pytest.approx(x @ x + y @ y - 2 * abs(x @ y), abs=1e-7)

    @pytest.mark.parametrize("d", [1, 2, 3, 10])
    def test_equal_ones(self, d):
        S = np.repeat(random_covariances(3, d, np.random.default_rng(d)), 2, axis=0)
        table = wasserstein_table(centred_normals(S))
        assert np.array_equal(table == 0, np.kron(np.eye(3), np.ones((2, 2))) > 0)

    @pytest.mark.parametrize("d", [2, 3, 6])
    def test_commuting(self, d):
        """Covariances with the same eigenvectors: differences of the roots of eigenvalues."""
        rng = np.random.default_rng(d)
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
        mean, values = rng.standard_normal((8, d)), rng.gamma(1.0, size=(8, d)) + 0.01
        prediction = MultivariateNormal(mean, (basis * values[:, None, :]) @ basis.T)
        points = np.concatenate([mean, np.sqrt(values)], axis=1)
        expected = np.linalg.norm(points[:, None] - points[None], axis=2)
        assert wasserstein_distance(prediction) == pytest.approx(expected, rel=1e-12, abs=1e-14)
        diagonal = Normal(mean @ basis, np.sqrt(values))
        assert wasserstein_distance(diagonal) == pytest.approx(expected, rel=1e-14, abs=1e-15)

    def test_other(self):
        rng = np.random.default_rng(3)
        mean, std = rng.standard_normal((7, 3)), rng.gamma(2.0, size=(7, 3))
        full = MultivariateNormal(mean, random_covariances(7, 3, rng))
        table = wasserstein_distance(full)
        assert wasserstein_distance(full.take(slice(0, 3)), full.take(slice(3, 7))) == pytest.approx(
            table[:3, 3:], rel=1e-13
        )
        # One side has independent entries, the other full covariances.
        as_full = MultivariateNormal(mean, std[:, :, None] ** 2 * np.eye(3))
        expected = wasserstein_distance(as_full, full)
        assert wasserstein_distance(Normal(mean, std), full) == pytest.approx(expected, rel=1e-13)
        assert wasserstein_distance(full, Normal(mean, std)) == pytest.approx(expected.T, rel=1e-12)


class TestMixtures:
    @pytest.mark.parametrize("family", ["normal", "normal_full", "laplace", "atoms"])
    @pytest.mark.parametrize(
        "K, L",
        [
            *((1, 1), (1, 3), (2, 2), (2, 5), (4, 4)),
            *(pytest.param(*sizes, marks=pytest.mark.grid) for sizes in ((4, 2), (3, 3), (3, 5), (6, 6))),
        ],
    )
    @pytest.mark.parametrize("order", [1, 2])
    def test_against_linear_programmes(self, family, K, L, order):
        d = 1 if family == "laplace" else 2
        rng = np.random.default_rng([K, L, order])
        left, right = (random_components(family, 3, count, d, rng) for count in (K, L))
        table = wasserstein_table(left, right, order=order)
        expected = [[literal_distance(left, i, right, j, order) for j in range(3)] for i in range(3)]
        # HiGHS solves to 1e-7, and its vertices are exact to rounding.
        assert table == pytest.approx(np.array(expected), rel=1e-9)

    @pytest.mark.parametrize("family", ["normal", "normal_full", "laplace", "atoms"])
    @pytest.mark.parametrize("K, order", [(2, 3.5), (3, 1), (4, 2), (6, 3.5)])
    def test_assignments(self, family, K, order):
        d = 1 if family == "laplace" else 3
        components = random_components(family, 4, K, d, np.random.default_rng(K), equal=True)
        table = wasserstein_table(components, order=order)
        for i, j in itertools.combinations(range(4), 2):
            expected = literal_distance(components, i, components, j, order)
            assert table[i, j] == table[j, i] == pytest.approx(expected, rel=1e-9)

    def test_by_hand(self):
        """Points 0 and 1, of weights 1/4 and 3/4, beside 0 and 3: 1/4 goes from 1 to 0, and 1/2 from 1 to 3."""
        left = Samples([[[0.0, 0.0], [1.0, 0.0]]], weights=[[0.25, 0.75]])
        right = Samples([[[0.0, 0.0], [3.0, 0.0]]])
        assert wasserstein_distance(left, right, order=1)[0, 0] == pytest.approx(0.25 + 0.5 * 2, rel=1e-15)
        assert wasserstein_distance(left, right)[0, 0] == pytest.approx(math.sqrt(0.25 + 0.5 * 4), rel=1e-15)
        line = [Samples(one.samples[:, :, 0], weights=one.weights) for one in (left, right)]
        assert wasserstein_distance(*line)[0, 0] == pytest.approx(math.sqrt(2.25), rel=1e-15)

    def test_weights_of_zero(self):
        """Components of weight 0 change nothing, wherever they are and however many."""
        rng = np.random.default_rng(1)
        for family, d in (("normal", 2), ("atoms", 1), ("atoms", 3)):
            components = random_components(family, 6, 5, d, rng)
            weights = components.weights.copy()
            weights[1, 2] = weights[2, [0, 4]] = weights[3, [1, 2, 3, 4]] = 0
            weights[4] = [0, 0.5, 0, 0.5, 0]
            weights /= weights.sum(axis=1, keepdims=True)
            scales = components.scales
            table = wasserstein_table(Components(family, weights, components.locations, scales))
            for i, j in itertools.combinations(range(6), 2):
                kept = [weights[row] > 0 for row in (i, j)]
                one, other = (
                    Components(
                        family,
                        weights[row : row + 1, keep],
                        components.locations[row : row + 1, keep],
                        None if scales is None else scales[row : row + 1, keep],
                    )
                    for row, keep in zip((i, j), kept, strict=True)
                )
                assert table[i, j] == pytest.approx(literal_distance(one, 0, other, 0, 2), rel=1e-9)

    def test_order_of_components(self):
        """The same mixtures with components in another order, or split in two, have distance 0 up to rounding."""
        rng = np.random.default_rng(4)
        for equal, d in itertools.product((True, False), (1, 3)):
            one = random_components("atoms", 5, 4, d, rng, equal)
            turned = Components("atoms", one.weights[:, ::-1], one.locations[:, ::-1], None)
            split = Components(
                "atoms", np.repeat(one.weights / 2, 2, axis=1), np.repeat(one.locations, 2, axis=1), None
            )
            for order in (1, 2):
                # A mass of 1e-16 may move: root of it if the order is 2.
                bound = 1e-14 if order == 1 else 1e-7
                assert np.max(np.diag(wasserstein_table(one, turned, order=order))) <= bound
                assert np.max(np.diag(wasserstein_table(one, split, order=order))) <= bound
            assert np.all(np.diag(wasserstein_table(one, one)) == 0)

    def test_numbers_with_weights_of_zero(self):
        """Sides whose numbers of values differ from row to row, some of equal weights."""
        rng = np.random.default_rng(7)
        values, weights = rng.standard_normal((6, 9)), rng.dirichlet(np.ones(9), size=6)
        weights[rng.random((6, 9)) < 0.4] = 0
        weights[4:] = weights[4:] > 0
        weights /= weights.sum(axis=1, keepdims=True)
        for order in (1, 2):
            table = wasserstein_distance(Samples(values, weights=weights), order=order)
            for i, j in itertools.combinations(range(6), 2):
                costs = np.abs(values[i][:, None] - values[j]) ** order
                expected = literal_transport(costs, weights[i], weights[j]) ** (1 / order)
                assert table[i, j] == pytest.approx(expected, rel=1e-9)

    def test_numbers_of_equal_weights(self):
        """By the sorted values; through the points of `Samples`, the components, and weights that are given."""
        rng = np.random.default_rng(6)
        values = rng.standard_normal((5, 8))
        ordered = np.sort(values, axis=1)
        for order in (1, 2, 3):
            expected = np.mean(np.abs(ordered[:, None] - ordered[None]) ** order, axis=2) ** (1 / order)
            for prediction in (Samples(values), Samples(values, weights=np.full((5, 8), 1 / 8))):
                assert wasserstein_distance(prediction, order=order) == pytest.approx(expected, rel=1e-14, abs=1e-15)

    @pytest.mark.parametrize("order", [1, 2])
    @pytest.mark.parametrize("equal", [True, False])
    @pytest.mark.parametrize(
        "family, d, K", [("normal", 3, 4), ("normal_full", 2, 2), ("atoms", 1, 4), ("atoms", 3, 5)]
    )
    def test_is_a_metric(self, family, d, K, equal, order):
        table = wasserstein_table(random_components(family, 12, K, d, np.random.default_rng(K), equal), order=order)
        assert np.array_equal(table, table.T)
        assert np.array_equal(table == 0, np.eye(12, dtype=bool))
        assert np.all(table[:, None, :] <= table[:, :, None] + table[None, :, :] + 1e-12)

    def test_laplace(self):
        prediction = Laplace([0.0, 1.0], [1.0, 3.0])
        assert wasserstein_distance(prediction)[0, 1] == pytest.approx(math.sqrt(1 + 2 * 4), rel=1e-15)
        assert wasserstein_distance(Mixture([1.0], [prediction]))[0, 1] == pytest.approx(3, rel=1e-15)

    def test_extreme_scales(self):
        rng = np.random.default_rng(2)
        components = random_components("atoms", 4, 3, 2, rng)
        table = wasserstein_table(components, order=3)
        for factor in (1e-150, 1e15):
            scaled = Components("atoms", components.weights, components.locations * factor, None)
            assert wasserstein_table(scaled, order=3) == pytest.approx(factor * table, rel=1e-12)
        assert wasserstein_table(components, order=200) == pytest.approx(
            wasserstein_table(components, order=150), rel=0.1
        )


class TestTransport:
    """The ways to the cheapest coupling against each other."""

    def problem(self, P, K, L, seed=0, ties=False):
        rng = np.random.default_rng([seed, P, K, L])
        costs = rng.random((P, K, L))
        if ties:  # few different costs and weights: degenerate programmes
            costs = np.round(3 * costs) / 3
            weights, others = (rng.multinomial(12, np.ones(n) / n, size=P) + 1.0 for n in (K, L))
            weights, others = (w / w.sum(axis=1, keepdims=True) for w in (weights, others))
        else:
            weights, others = (rng.dirichlet(np.full(n, 0.5), size=P) + 1e-12 for n in (K, L))
            weights, others = (w / w.sum(axis=1, keepdims=True) for w in (weights, others))
        return costs, weights, others

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("P, K, L", [(200, 3, 3), (200, 3, 8), (50, 9, 4), (20, 10, 10), (1, 4, 4)])
    def test_shortest_paths(self, P, K, L, ties):
        costs, weights, others = self.problem(P, K, L, ties=ties)
        paths = transport._shortest_paths(costs, weights, others)
        assert paths == pytest.approx(transport._linear_programmes(costs, weights, others), abs=1e-9)

    @pytest.mark.parametrize("K, L", [(2, 2), (2, 7), (6, 2), (34, 33)])
    def test_all_solvers_agree(self, K, L):
        """Knapsacks, and large ones by linear programmes, against shortest paths."""
        costs, weights, others = self.problem(200 if K < 9 else 2, K, L)
        least = transport.cheapest(costs, weights, others, False)
        assert least == pytest.approx(transport._shortest_paths(costs, weights, others), abs=1e-14 if K < 9 else 1e-9)

    @pytest.mark.parametrize("K", [4, 34])
    @pytest.mark.parametrize("solver", ["_shortest_paths", "_linear_programmes"])
    def test_what_one_solver_misses_the_other_solves(self, monkeypatch, solver, K):
        costs, weights, others = self.problem(4, K, K + 1)
        expected = transport.cheapest(costs, weights, others, False)
        first = np.where(np.arange(4) % 2, np.nan, expected)
        monkeypatch.setattr(transport, solver, lambda c, *_: first if len(c) == 4 else pytest.fail("asked again"))
        assert transport.cheapest(costs, weights, others, False) == pytest.approx(expected, abs=1e-8)

    def test_tiny_weights_and_costs(self):
        """Weights below rounding and costs far below the largest."""
        rng = np.random.default_rng(0)
        for K, L in ((3, 4), (6, 6), (9, 5)):
            costs = rng.random((60, K, L)) ** 20
            weights, others = (rng.dirichlet(np.ones(n), size=60) ** 5 + 1e-17 for n in (K, L))
            weights, others = (w / w.sum(axis=1, keepdims=True) for w in (weights, others))
            before = costs.copy(), weights.copy(), others.copy()
            found = transport._shortest_paths(costs, weights, others)
            assert not np.any(np.isnan(found))
            assert found == pytest.approx(transport._linear_programmes(costs, weights, others), abs=1e-7)
            assert all(np.array_equal(a, b) for a, b in zip(before, (costs, weights, others), strict=True))

    @pytest.mark.parametrize("K", [4, 34])
    def test_a_failure_is_said(self, K):
        costs, weights, others = self.problem(1, K, K + 1)
        with pytest.raises(RuntimeError, match="optimal transport between components was not solved"):
            transport.cheapest(costs, weights / 2, others, False)


class TestMMD:
    def test_by_hand(self):
        """f(P, P') = (1 + s^2 + s'^2)^(-1/2) exp(-(m - m')^2 / (2 (1 + s^2 + s'^2)))."""
        found = mmd_distance(Normal([0.0, 3.0], [1.0, 5.0]), bandwidth=1.0)
        expected = math.sqrt(1 / math.sqrt(3) + 1 / math.sqrt(51) - 2 / math.sqrt(27) * math.exp(-9 / 54))
        assert found == pytest.approx(np.array([[0, expected], [expected, 0]]), rel=1e-14)

    def test_atoms_literally(self):
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((3, 4, 2)), rng.standard_normal((2, 5, 2))
        w = rng.dirichlet(np.ones(4), size=3)

        def mean(a, p, b, q):
            return sum(
                p[k] * q[m] * math.exp(-np.sum((a[k] - b[m]) ** 2) / (2 * 0.7**2))
                for k in range(len(p))
                for m in range(len(q))
            )

        v = np.full(5, 0.2)
        expected = [
            [
                math.sqrt(mean(x[i], w[i], x[i], w[i]) + mean(y[j], v, y[j], v) - 2 * mean(x[i], w[i], y[j], v))
                for j in range(2)
            ]
            for i in range(3)
        ]
        assert mmd_distance(Samples(x, weights=w), Samples(y), bandwidth=0.7) == pytest.approx(
            np.array(expected), rel=1e-12
        )

    def test_mixtures_and_full_covariances_agree(self):
        rng = np.random.default_rng(1)
        mean, std = rng.standard_normal((5, 2)), rng.gamma(2.0, size=(5, 2))
        normal = Normal(mean, std)
        expected = mmd_distance(normal, bandwidth=0.8)
        full = MultivariateNormal(mean, std[:, :, None] ** 2 * np.eye(2))
        for prediction in (full, Mixture([0.4, 0.6], [normal, normal]), Mixture([1.0], [full])):
            # Roots of differences of numbers up to 1.
            assert mmd_distance(prediction, bandwidth=0.8) == pytest.approx(expected, rel=1e-12, abs=1e-7)
            assert mmd_distance(normal, full, bandwidth=0.8) == pytest.approx(expected, rel=1e-12, abs=1e-7)

    def test_other(self):
        rng = np.random.default_rng(2)
        prediction = Samples(rng.standard_normal((6, 3)))
        table = mmd_distance(prediction, bandwidth=1.0)
        part = mmd_distance(prediction.take(slice(0, 2)), prediction.take(slice(2, 6)), bandwidth=1.0)
        assert part == pytest.approx(table[:2, 2:], rel=1e-12)


class TestOptions:
    @pytest.mark.parametrize("kind", ["euclidean", "bures", "assignment", "general", "line"])
    def test_threads_do_not_change_bits(self, kind, monkeypatch):
        monkeypatch.setattr(tables, "BLOCK", 2**9)  # several blocks
        rng = np.random.default_rng(0)
        prediction = {
            "euclidean": lambda: Normal(rng.standard_normal(60), rng.gamma(2.0, size=60)),
            "bures": lambda: MultivariateNormal(rng.standard_normal((40, 3)), random_covariances(40, 3, rng)),
            "assignment": lambda: Samples(rng.standard_normal((40, 4, 2))),
            "general": lambda: Samples(rng.standard_normal((40, 4, 2)), weights=rng.dirichlet(np.ones(4), size=40)),
            "line": lambda: Samples(rng.standard_normal((40, 7)), weights=rng.dirichlet(np.ones(7), size=40)),
        }[kind]()
        one, three = (wasserstein_distance(prediction, threads=threads) for threads in (1, 3))
        assert np.array_equal(one, three)
        monkeypatch.undo()
        assert wasserstein_distance(prediction) == pytest.approx(one, rel=1e-14, abs=1e-15)

    def test_progress(self, monkeypatch):
        shares = []

        class Bar:
            def __enter__(self):
                return shares.append

            def __exit__(self, *_):
                return None

        monkeypatch.setattr(tables, "TerminalProgress", Bar)
        monkeypatch.setattr(tables, "BLOCK", 2**6)
        prediction = Samples(np.random.default_rng(0).standard_normal((30, 4, 2)))
        wasserstein_distance(prediction)
        wasserstein_distance(Normal(np.arange(30.0), np.ones(30)))
        assert shares.count(1.0) == 2 and shares == sorted(shares[: shares.index(1.0)]) + shares[shares.index(1.0) :]

    def test_one_prediction(self):
        assert wasserstein_distance(Samples([[[0.0, 1.0], [2.0, 3.0]]])).tolist() == [[0.0]]
        assert mmd_distance(Normal([1.0], [1.0]), bandwidth=1.0).tolist() == [[0.0]]

    @pytest.mark.parametrize(
        "arguments, options, error, message",
        [
            (([0.0, 1.0],), {}, TypeError, "`prediction` is list, expected a distribution"),
            ((Normal([0.0], [1.0]), [0.0]), {}, TypeError, "`other` is list, expected a distribution"),
            ((Normal([0.0], [1.0]),), {"order": 0.5}, ValueError, "`order` is 0.5, expected a finite number"),
            ((Poisson([1e8]),), {"order": 1}, ValueError, "`order` is 1.0, expected 2, the only order for Poisson"),
            ((Poisson([1.0]), Normal([0.0], [1.0])), {}, TypeError, "`prediction` is Poisson, which has no components"),
            ((Normal([0.0], [1.0]), Poisson([1.0])), {}, TypeError, "`other` is Poisson, which has no components"),
            ((Normal([0.0], [1.0]),), {"order": math.nan}, ValueError, "`order` is nan"),
            ((Normal([0.0], [1.0]),), {"order": True}, TypeError, "`order` is True"),
            ((Normal([0.0], [1.0]),), {"order": "2"}, TypeError, "`order` is '2'"),
            ((Normal([0.0], [1.0]),), {"threads": 0}, ValueError, "`threads` is 0"),
            ((Samples([[0.0, 1.0]]),), {"threads": 0, "order": 1}, ValueError, "`threads` is 0"),
            ((Normal([0.0], [1.0]),), {"max_memory": -1}, ValueError, "`max_memory` is -1"),
            ((Normal([0.0], [1.0]), Normal([[0.0, 1.0]], [[1.0, 1.0]])), {}, ValueError, "`other` has distributions"),
            ((Normal([0.0], [1.0]), Laplace([0.0], [1.0])), {}, ValueError, "`other` has components of the family"),
        ],
    )  # fmt: skip
    def test_bad_input(self, arguments, options, error, message):
        with pytest.raises(error, match=message):
            wasserstein_distance(*arguments, **options)

    @pytest.mark.parametrize(
        "prediction, bandwidth, error, message",
        [
            (Normal([0.0], [1.0]), 0.0, ValueError, "`bandwidth` is 0.0"),
            (Normal([0.0], [1.0]), math.inf, ValueError, "`bandwidth` is inf"),
            (Normal([0.0], [1.0]), "median", TypeError, "`bandwidth` is 'median'"),
            (Laplace([0.0], [1.0]), 1.0, TypeError, "`prediction` is Laplace, for which the Gaussian kernel has no"),
            ("normal", 1.0, TypeError, "`prediction` is str"),
        ],
    )
    def test_bad_input_of_mmd(self, prediction, bandwidth, error, message):
        with pytest.raises(error, match=message):
            mmd_distance(prediction, bandwidth=bandwidth)

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"weights": np.array([[0.5, 0.6]])}, r"`weights\[0\]` of components sum to 1.1"),
            ({"weights": np.array([[-0.5, 1.5]])}, r"`weights\[0, 0\]` of components is -0.5"),
            ({"locations": np.array([[[0.0, np.nan], [1.0, 1.0]]])}, r"`locations\[0, 0, 1\]` of components is nan"),
            ({"scales": np.array([[np.eye(2), -np.eye(2)]])}, r"`scales\[0, 1\]` of components has the eigenvalue -1"),
        ],
    )
    def test_components_of_own_distributions_are_checked(self, change, message):
        fields = {
            "weights": np.array([[0.5, 0.5]]),
            "locations": np.zeros((1, 2, 2)),
            "scales": np.array([[np.eye(2), np.eye(2)]]),
        }
        with pytest.raises(ValueError, match=message):
            wasserstein_table(Components("normal_full", **(fields | change)))

    def test_distributions_without_components(self):
        class Own(kcalib.distributions.Distribution):
            n, event_shape = 2, ()

        for function in (wasserstein_distance, lambda p: mmd_distance(p, bandwidth=1.0)):
            with pytest.raises(TypeError, match="`prediction` is Own, which has no components"):
                function(Own())

    def test_memory(self):
        prediction = Normal(np.zeros(100), np.ones(100))
        message = "distances between 100 and 100 predictions take 0.0763 MiB of memory"
        with pytest.raises(MemoryError, match=message):
            wasserstein_distance(prediction, max_memory=79_999)
        with pytest.raises(MemoryError, match="allowed by `max_memory`; take fewer"):
            wasserstein_distance(Samples(np.zeros((100, 2, 2))), max_memory=79_999)
        with pytest.raises(MemoryError, match="distances between 100 and 100 predictions take 0.153 MiB"):
            mmd_distance(prediction, bandwidth=1.0, max_memory=159_999)
        assert wasserstein_distance(prediction, max_memory=80_000).shape == (100, 100)


@pytest.mark.parametrize("library", ["torch", "jax.numpy", "array_api_strict"])
def test_array_libraries(library):
    xp = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    mean, cov = rng.standard_normal((4, 2)), random_covariances(4, 2, rng)
    table = wasserstein_distance(MultivariateNormal(mean, cov))
    found = wasserstein_distance(MultivariateNormal(xp.asarray(mean.tolist()), xp.asarray(cov.tolist())))
    assert isinstance(found, np.ndarray) and found.dtype == np.float64
    # JAX rounds to float32.
    assert found == pytest.approx(table, rel=1e-4, abs=1e-3)


def literal_count_distance(first: np.ndarray, second: np.ndarray, order: float) -> float:
    """The quantile functions' distance, from distribution functions up to where there is nothing left."""
    ends = np.unique(np.concatenate([first, second, [0.0, 1.0]]))
    middle = (ends[1:] + ends[:-1]) / 2
    gaps = np.searchsorted(first, middle) - np.searchsorted(second, middle)
    return math.fsum(np.diff(ends) * np.abs(gaps.astype(float)) ** order) ** (1 / order)


class TestCounts:
    """Distances of counts are sums over the counts."""

    @pytest.mark.parametrize("order", [1, 2, 3.5])
    def test_wasserstein_distances_are_finite_sums(self, order: float) -> None:
        rates, dispersion = np.array([1e-9, 1e-3, 0.3, 1.2, 3.4, 20.0, 150.0]), 0.7
        k = np.arange(3000)
        sides = {
            "poisson": (Poisson(rates), [scipy.stats.poisson.cdf(k, r) for r in rates]),
            "negative binomial": (
                NegativeBinomial(rates, dispersion),
                [scipy.stats.nbinom.cdf(k, 1 / dispersion, 1 / (1 + dispersion * r)) for r in rates],
            ),
        }
        for left, left_cdf in sides.values():
            for right, right_cdf in sides.values():
                expected = [[literal_count_distance(a, b, order) for b in right_cdf] for a in left_cdf]
                # What is less than 1e-13 of the probability counts for nothing; large gaps have high powers.
                found = wasserstein_distance(left, right, order=order)
                assert found**order == pytest.approx(np.array(expected) ** order, rel=1e-8, abs=1e-10)
            assert np.all(np.diag(wasserstein_distance(left, order=order)) == 0)

    def test_the_distance_of_means_is_that_of_order_one_for_ordered_laws(self) -> None:
        assert wasserstein_distance(Poisson([1.2, 3.4]), order=1)[0, 1] == pytest.approx(2.2, rel=1e-13)

    def test_counts_beyond_the_table_have_quantiles(self) -> None:
        far = wasserstein_distance(Poisson([1e8, 1.0002e8]))[0, 1]
        assert far == pytest.approx(2e4, rel=1e-3)
        with pytest.raises(ValueError, match="`order` is 3.0, expected 2, the only order for Poisson"):
            wasserstein_distance(Poisson([1e8, 2e8]), order=3)

    @pytest.mark.parametrize("bandwidth", [0.3, 1.0, 20.0])
    def test_mmd_of_kernels_is_a_finite_sum(self, bandwidth: float) -> None:
        rates = np.array([0.01, 1.2, 3.4, 30.0])
        counts = np.arange(200.0)
        gram = np.exp(-((counts[:, None] - counts) ** 2) / (2 * bandwidth**2))
        table = np.array([scipy.stats.poisson.pmf(counts, r) for r in rates])
        squares = np.array([[(a - b) @ gram @ (a - b) for b in table] for a in table])
        y = np.array([0.0, 2.0, 2.0, 40.0])
        found = kcalib.skce(
            y,
            Poisson(rates),
            kernel=Gaussian(bandwidth=0.5, metric=MMD(bandwidth=bandwidth)),
            target_kernel=Gaussian(bandwidth=2.0),
            estimator="biased",
        )
        target = np.exp(-((counts[:, None] - counts) ** 2) / 8)
        features = np.eye(200)[y.astype(int)] - table
        expected = np.mean(np.exp(-np.maximum(squares, 0) / (2 * 0.5**2)) * (features @ target @ features.T))
        assert found == pytest.approx(expected, rel=1e-10)

    def test_skce_with_exact_wasserstein_distances(self) -> None:
        """By name: a table of distances, without a warning: they are those of quantile functions in a Hilbert space."""
        rng = np.random.default_rng(0)
        rates = rng.gamma(2, 2, 30) + 1e-3
        prediction, y = Poisson(rates), rng.poisson(1.3 * rates)
        options = {"target_kernel": Gaussian(bandwidth=2.0)}
        kernel = Exponential(bandwidth=1.0, metric=MixtureWasserstein(2))
        found = kcalib.skce(y, prediction, kernel=kernel, **options)
        counts = np.arange(120.0)
        features = np.eye(120)[y] - scipy.stats.poisson.pmf(counts, rates[:, None])
        weights = np.exp(-wasserstein_distance(prediction))
        factors = weights * (features @ np.exp(-((counts[:, None] - counts) ** 2) / 8) @ features.T)
        np.fill_diagonal(factors, 0)
        assert found == pytest.approx(factors.sum() / (30 * 29), rel=1e-9)
        by_default = kcalib.skce(y, prediction, kernel=Exponential(bandwidth=1.0, metric="wasserstein"), **options)
        assert by_default == pytest.approx(found, rel=1e-11)

    @pytest.mark.parametrize("kind", ["counts", "samples"])
    def test_locations_out_of_reach_of_the_features_are_refused(self, kind: str) -> None:
        rng = np.random.default_rng(0)
        if kind == "counts":
            make, near, far = Poisson, [1.0, 3.0], [1.0, 300.0]
            prediction, y = Poisson(rng.uniform(1, 4, 40)), rng.poisson(2, 40)
        else:
            draws = rng.normal(size=(40, 64))
            make, near, far = Samples, draws[:2], draws[:2] + np.array([[0.0], [300.0]])
            prediction, y = Samples(draws), rng.normal(size=40)
        options = {"kernel": Exponential(bandwidth=0.5, metric=MMD(1.0)), "target_kernel": Gaussian(bandwidth=2.0)}
        assert kcalib.ucme(y, prediction, locations=([1.0, 2.0], make(near)), **options) >= 0
        with pytest.raises(ValueError, match="of `locations` have probability where no prediction of `y_pred` has"):
            kcalib.ucme(y, prediction, locations=([1.0, 2.0], make(far)), **options)
