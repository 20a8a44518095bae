"""Solve optimal transport between few points, for many pairs of weight vectors at once.

`cheapest` finds for each of P pairs the minimum of sum_kl c_kl x_kl over couplings x >= 0 with row sums w and column
sums v. The method depends on the weights:

    K = 1 or L = 1           the only coupling
    K = 2 or L = 2           a fractional knapsack
    equal weights, K = L     an assignment
    up to `SEARCHED` weights shortest paths, certified by a lower bound
    more                     linear programmes

If one of the last two methods fails, the other one is tried. On a line, `line_costs` couples quantiles without a
search. Costs are in [0, 1].
"""

from __future__ import annotations

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array

SEARCHED = 32  # size up to which shortest paths are faster than linear programmes
NO_MASS = 1e-15  # smaller weights are rounding errors of sums
GAP = 1e-12  # between the computed cost and the lower bound, relative to the largest cost
TOLERANCE = 1e-10  # of linear programmes, the smallest that HiGHS allows
PROGRAMME_SIZE = 2**14  # variables of one linear programme


def cheapest(costs: np.ndarray, weights: np.ndarray, other_weights: np.ndarray, equal_weights: bool) -> np.ndarray:
    """Return least costs, shape (P,), of `costs` of shape (P, K, L), for weights of shapes (P, K) and (P, L).

    Rows of weights sum to 1; `equal_weights`: K = L and all weights are 1 / K.
    """
    _, K, L = costs.shape
    if min(K, L) == 1:
        return np.einsum("pkl,pk,pl->p", costs, weights, other_weights)
    if K == 2:
        return _knapsack(costs, weights, other_weights)
    if L == 2:
        return _knapsack(np.swapaxes(costs, 1, 2), other_weights, weights)
    if equal_weights:
        solve = scipy.optimize.linear_sum_assignment
        return np.array([pair[solve(pair)].sum() for pair in costs]) / K
    solvers = [_shortest_paths, _linear_programmes]
    first, second = solvers if max(K, L) <= SEARCHED else solvers[::-1]
    least = first(costs, weights, other_weights)
    missing = np.isnan(least)
    if np.any(missing):
        least[missing] = second(costs[missing], weights[missing], other_weights[missing])
    if np.any(np.isnan(least)):
        raise RuntimeError("optimal transport between components was not solved; please report these weights")
    return least


def _knapsack(costs: np.ndarray, weights: np.ndarray, other_weights: np.ndarray) -> np.ndarray:
    """Return least costs for K = 2: the first row takes its most advantageous columns, up to its weight."""
    gains = costs[:, 0] - costs[:, 1]
    order = np.argsort(gains, axis=1, kind="stable")
    sorted_weights = np.take_along_axis(other_weights, order, axis=1)
    start = np.cumsum(sorted_weights, axis=1) - sorted_weights
    amounts = np.clip(weights[:, :1] - start, 0.0, sorted_weights)
    # Sum the costs of the two rows separately, as the gains may nearly cancel.
    first, second = (np.take_along_axis(costs[:, k], order, axis=1) for k in (0, 1))
    return np.sum(amounts * first + (sorted_weights - amounts) * second, axis=1)


def line_costs(points: Array, weights: Array, other_points: Array, other_weights: Array, order: float) -> Array:
    """Return least costs |x - y|^order between points on a line, shape (P,), for NumPy or CuPy arrays.

    `points` and `weights` have shape (P, K), `other_points` and `other_weights` (P, L); the points are ascending.
    """
    xp, K = arrays.namespace(points), points.shape[1]
    levels, other_levels = xp.cumsum(weights, axis=1), xp.cumsum(other_weights, axis=1)
    levels[:, -1] = other_levels[:, -1] = 1.0
    ends = xp.concatenate([levels, other_levels], axis=1)
    ranks = xp.argsort(ends, axis=1, stable=True)
    ends = xp.take_along_axis(ends, ranks, axis=1)
    ends[:, 1:] -= ends[:, :-1].copy()  # lengths between them
    # The number of ends of either side below a merged end is the index of the next point of that side.
    place = xp.cumsum(ranks < K, axis=1) - (ranks < K)
    other_place = xp.cumsum(ranks >= K, axis=1) - (ranks >= K)
    x = xp.take_along_axis(points, xp.minimum(place, K - 1), axis=1)
    y = xp.take_along_axis(other_points, xp.minimum(other_place, other_points.shape[1] - 1), axis=1)
    return xp.sum(ends * xp.abs(x - y) ** order, axis=1)


def _shortest_paths(costs: np.ndarray, weights: np.ndarray, other_weights: np.ndarray) -> np.ndarray:
    """Return least costs; NaN where a cost and the lower bound disagree."""
    totals, bound = _bounds(costs, weights, other_weights)
    return np.where(np.abs(totals - bound) <= GAP, totals, np.nan)


def _bounds(costs: np.ndarray, weights: np.ndarray, other_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return costs of couplings, and lower bounds of the costs of all couplings.

    Successive shortest paths for all pairs in parallel: mass flows from rows with some left to columns with room, along
    shortest paths of the residual graph, until none is left. Lengths are reduced costs c_kl + r_k - s_l >= 0;
    potentials r and s keep them at 0 where mass flows. Pairs are the last axis of all arrays.
    """
    C, supply, demand = (np.array(np.moveaxis(a, 0, -1), order="C") for a in (costs, weights, other_weights))  # copies
    K, L, P = C.shape
    flow, r, s = np.zeros((K, L, P)), np.zeros((K, P)), np.min(C, axis=0)
    _fill_from_nearest(C, supply, demand, flow)
    totals, highest = np.full(P, np.inf), np.zeros((K, P))
    at = np.arange(P)  # the pairs that are still in the arrays
    for _ in range(4 * (K + L)):
        active = (np.max(supply, axis=0) > 0) & (np.max(demand, axis=0) > 0)
        if np.count_nonzero(active) <= 0.75 * len(at):
            is_done = ~active
            totals[at[is_done]] = np.sum(flow[:, :, is_done] * C[:, :, is_done], axis=(0, 1))
            highest[:, at[is_done]] = r[:, is_done]
            at = at[active]
            if not len(at):
                break
            C, supply, demand, flow, r, s = (array[..., active] for array in (C, supply, demand, flow, r, s))
            active = active[active]
        _augment(C, supply, demand, flow, r, s, active)
    prices = np.min(highest[:, None] + np.moveaxis(costs, 0, -1), axis=0)
    bound = np.sum(prices * other_weights.T, axis=0) - np.sum(highest * weights.T, axis=0)
    return totals, bound


def _fill_from_nearest(C: np.ndarray, supply: np.ndarray, demand: np.ndarray, flow: np.ndarray) -> None:
    """Let every column take the mass of its nearest row: optimal for the mass that it moves."""
    nearest, at = np.argmin(C, axis=0), np.arange(C.shape[2])
    for column, row in enumerate(nearest):
        amount = np.minimum(supply[row, at], demand[column])
        flow[row, column, at] = amount
        supply[row, at] = _subtract(supply[row, at], amount)
        demand[column] = _subtract(demand[column], amount)


def _subtract(mass: np.ndarray, amount: np.ndarray) -> np.ndarray:
    rest = mass - amount
    return np.where(rest > NO_MASS, rest, 0.0)


def _augment(
    C: np.ndarray,
    supply: np.ndarray,
    demand: np.ndarray,
    flow: np.ndarray,
    r: np.ndarray,
    s: np.ndarray,
    active: np.ndarray,
) -> None:
    """Find the shortest paths to all columns (Bellman-Ford), and send as much mass along them as possible.

    Not only along the shortest: after adding the lengths to the potentials, all of them have length 0.
    """
    K, L, P = C.shape
    to_row, column_before = np.where(supply > 0, 0.0, np.inf), np.full((K, P), -1)
    to_column, row_before = np.full((L, P), np.inf), np.full((L, P), -1)
    forward = np.maximum(C + r[:, None] - s, 0.0)  # negative by rounding only
    backward = np.swapaxes(np.where(flow > 0, 0.0, np.inf), 0, 1)
    for _ in range(K):
        _shorten(to_column, row_before, to_row, forward)
        if not np.any(_shorten(to_row, column_before, to_column, backward) & active):
            break
    # An unreachable row has no mass, up to rounding.
    to_row = np.where(np.isfinite(to_row), to_row, np.max(to_column, axis=0))
    r += np.where(active, to_row, 0.0)
    s += np.where(active, to_column, 0.0)
    for goal in range(L):
        pairs = np.flatnonzero(active & (demand[goal] > 0))
        if len(pairs):
            _send(goal, pairs, supply, demand, flow, row_before, column_before)


def _send(
    goal: int,
    pairs: np.ndarray,
    supply: np.ndarray,
    demand: np.ndarray,
    flow: np.ndarray,
    row_before: np.ndarray,
    column_before: np.ndarray,
) -> None:
    """Send mass to a column of some pairs along their paths: backward to find the amount, then again to move it."""
    path, amount, column, walking = [], demand[goal, pairs], np.full(len(pairs), goal), np.full(len(pairs), True)
    for _ in supply:  # a path visits no row twice
        row = row_before[column, pairs]
        previous = column_before[row, pairs]
        path.append((walking, row, column, previous))
        starts = previous < 0
        available = np.where(starts, supply[row, pairs], flow[row, previous, pairs])
        amount = np.where(walking, np.minimum(amount, available), amount)
        walking = walking & ~starts
        if not np.any(walking):
            break
        column = np.where(walking, previous, column)
    amount[walking] = 0.0  # no path, by rounding: the bound will disagree
    demand[goal, pairs] = _subtract(demand[goal, pairs], amount)
    for on, row, column, previous in path:
        flow[row, column, pairs] += np.where(on, amount, 0.0)
        first, later = on & (previous < 0), on & (previous >= 0)
        for mass, at in ((supply, (row[first], pairs[first])), (flow, (row[later], previous[later], pairs[later]))):
            mass[at] = _subtract(mass[at], amount[first if mass is supply else later])


def _shorten(distances: np.ndarray, before: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Update distances by way of other nodes, and the predecessors; return whether any improved, shape (P,)."""
    shortened = np.zeros(distances.shape, dtype=bool)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        through = start + length
        nearer = through < distances
        np.copyto(distances, through, where=nearer)
        np.copyto(before, number, where=nearer)
        shortened |= nearer
    return np.any(shortened, axis=0)


def _linear_programmes(costs: np.ndarray, weights: np.ndarray, other_weights: np.ndarray) -> np.ndarray:
    """Return least costs by HiGHS of SciPy, several pairs in one sparse programme; NaN where it fails."""
    sparse = scipy.sparse
    P, K, L = costs.shape
    sums = sparse.vstack(
        [sparse.kron(sparse.eye(K), np.ones((1, L))), sparse.kron(np.ones((1, K)), sparse.eye(L))], format="csr"
    )[:-1]  # the last sum follows from the others; with rounding it could contradict them
    least, step = np.full(P, np.nan), max(1, PROGRAMME_SIZE // (K * L))
    for begin in range(0, P, step):
        c = costs[begin : begin + step]
        totals = np.concatenate([weights[begin : begin + step], other_weights[begin : begin + step, :-1]], axis=1)
        solution = scipy.optimize.linprog(
            c.ravel(),
            A_eq=sparse.kron(sparse.eye(len(c)), sums, format="csr"),
            b_eq=totals.ravel(),
            method="highs-ds",
            options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
        )
        if solution.status == 0:
            coupling = np.maximum(solution.x.reshape(c.shape), 0.0)
            least[begin : begin + step] = np.sum(coupling * c, axis=(1, 2))
    return least
