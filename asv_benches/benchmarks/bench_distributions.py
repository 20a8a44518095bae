"""Predictions that are distributions: the engine's sweep beside NumPy, the machine's limit, and single components.

Normal predictions, a Gaussian target kernel and the exponential kernel on Wasserstein points (means and standard
deviations). A pair takes four exps for the target factor (both observed, one of each, none), one for the kernel, a
root and an inverse root. Of multiplications and multiply-adds it takes per dimension two for the distance of points,
one for two observations, two for an observation and a component, twice, and four for two components. The limit is the
time in which nothing but these runs, each at the rate that the machine reaches on it alone.
In one dimension the engine adds the kernel's exponent to the others, and takes four exps: its fraction may exceed 1.

The NumPy versions compute the same total in strips of rows: as one writes it, with arrays (rows, n, d), and with care,
with arrays that stay in the cache, in place, dimension by dimension, of the pairs i < j alone.
"""

from functools import cache

import numpy as np

from .bench_limits import Probe
from .common import DTYPES, ROUNDS, SEED, THREADS, alternated, backend_of, require, total_of

N = 10_000
DIMENSIONS = (1, 10)
COMPONENTS = (2, 4)
FAMILIES = ("normal", "normal_full", "laplace", "atoms")
RATE = 0.3  # of the kernel on predictions
ROWS, ROWS_IN_CACHE = 64, 16  # of a strip


class Normals:
    """Parameters of n predictions, targets drawn from them, length scales 1."""

    def __init__(self, n, d):
        rng = np.random.default_rng([SEED, n, d])
        self.mean, self.variance = rng.normal(size=(n, d)), rng.uniform(0.2, 1.5, (n, d))
        self.y = self.mean + np.sqrt(self.variance) * rng.normal(size=(n, d))
        self.points = np.concatenate([self.mean, np.sqrt(self.variance)], axis=1)


cached_normals = cache(Normals)


def problem_of(family, n, d, k, dtype="float64"):
    """A pair problem of mixtures of k components, all alike (`kcalib._pairs.problem.Mixtures` has the columns)."""
    kcalib = require("_pairs.problem.Mixtures", "_native.FAMILIES")
    problem, data = kcalib._pairs.problem, cached_normals(n, d)
    ones = np.ones((n, 1))
    if family == "normal":
        h = 0.5 + 2 * data.variance
        i = 1 / (h + 0.5)
        component = [np.sqrt(i.prod(axis=1, keepdims=True)) / k, data.mean, h, i]
    elif family == "normal_full":
        sums, (rows, columns) = 1 + 2 * data.variance, np.tril_indices(d)
        h, i = ((x[:, :, None] * np.eye(d))[:, rows, columns] for x in (sums - 0.5, 1 / np.sqrt(sums)))
        component = [1 / np.sqrt(sums.prod(axis=1, keepdims=True)) / k, data.mean, h, i]
    else:
        component = [data.mean, data.variance] if family == "laplace" else [data.mean]
    features = [ones, ones, data.y, *[ones / k, *component] * k]
    gaussian = problem.Term(1.0, (problem.Factor("gaussian", "euclidean", 1.0),))
    mixtures = problem.Mixtures(family, d, k, 1, (gaussian,) if family == "atoms" else ())
    side = problem.Side(data.points.astype(dtype), np.concatenate(features, axis=1).astype(dtype))
    kernel = problem.Term(1.0, (problem.Factor("exponential", "euclidean", RATE),))
    return problem.PairProblem(side, None, (kernel,), mixtures)


def engine(problem, threads):
    """A function that sums the entries."""
    return total_of(backend_of("cpu", problem, threads))


def numpy_broadcast(data, rows=ROWS):
    """The total over i != j, as one writes it."""
    n, total = len(data.y), 0.0
    for begin in range(0, n, rows):
        r = slice(begin, begin + rows)

        def apart(a, b, variance):
            return np.exp(-np.sum((a - b) ** 2 / variance, axis=2)) / np.sqrt(np.prod(variance, axis=2))

        y, z = data.y[r, None], data.y[None]
        m, q = data.mean[r, None], data.mean[None]
        v, w = 2 * data.variance[r, None], 2 * data.variance[None]
        factor = (
            np.exp(-np.sum((y - z) ** 2, axis=2)) - apart(m, z, 1 + v) - apart(y, q, 1 + w) + apart(m, q, 1 + v + w)
        )
        distance = np.sqrt(np.sum((data.points[r, None] - data.points[None]) ** 2, axis=2))
        h = np.exp(-RATE * distance) * factor
        total += h.sum() - np.trace(h[:, begin : begin + rows])
    return total


def numpy_in_cache(data, rows=ROWS_IN_CACHE):
    """The same, twice the total over i < j, with arrays of `rows` rows that are written in place."""
    n, d = data.y.shape
    h = 1 + 2 * data.variance
    inverse, root = 1 / h, 1 / np.sqrt(h.prod(axis=1))
    half = h - 0.5

    def squares(a, b, weight=None):
        total = np.zeros((len(a), len(b)))
        part = np.empty_like(total)
        for k in range(a.shape[1]):
            np.subtract(a[:, k, None], b[None, :, k], out=part)
            part *= part
            if weight is not None:
                part *= weight(k)
            total += part
        return total

    def exp_minus(x):
        np.negative(x, out=x)
        return np.exp(x, out=x)

    total = 0.0
    for begin in range(0, n, rows):
        r, c = slice(begin, min(n, begin + rows)), slice(begin, n)
        factor = exp_minus(squares(data.y[r], data.y[c]))
        part = exp_minus(squares(data.mean[r], data.y[c], lambda k, r=r: inverse[r, k, None]))
        factor -= np.multiply(part, root[r, None], out=part)
        part = exp_minus(squares(data.y[r], data.mean[c], lambda k, c=c: inverse[None, c, k]))
        factor -= np.multiply(part, root[None, c], out=part)
        product, exponent = np.ones_like(part), np.zeros_like(part)
        for k in range(d):
            both = half[r, k, None] + half[None, c, k]
            product *= both
            np.subtract(data.mean[r, k, None], data.mean[None, c, k], out=part)
            part *= part
            part /= both
            exponent += part
        part = exp_minus(exponent)
        part /= np.sqrt(product, out=product)
        factor += part
        distance = squares(data.points[r], data.points[c])
        np.sqrt(distance, out=distance)
        distance *= RATE
        factor *= exp_minus(distance)
        own = r.stop - r.start
        total += 2 * factor[:, own:].sum() + factor[:, :own].sum() - np.trace(factor[:, :own])
    return total


NUMPY = {"broadcast": numpy_broadcast, "in the cache": numpy_in_cache}


def numpy_over_engine(name, n, d, threads, rounds=3, n_numpy=2000):
    """Time of a NumPy version, from n_numpy samples (it grows with their square), over that of the engine."""
    sweep, data = engine(problem_of("normal", n, d, 1), threads), cached_normals(n_numpy, d)
    times = alternated([sweep, lambda: NUMPY[name](data)], threads, rounds)
    return float(np.median(times[:, 1] / times[:, 0])) * (n / n_numpy) ** 2


def fraction_of_limit(n, d, dtype, threads, rounds=ROUNDS):
    """Limit time over measured time of the engine."""
    probes = [Probe(what, dtype, threads) for what in ("exp", "sqrt", "fma")]
    times = alternated([*probes, engine(problem_of("normal", n, d, 1, dtype), threads)], threads, rounds)
    pairs, counts = n * (n - 1) / 2, (5, 2, 11 * d)
    limit = sum(pairs * count / probe.elements * times[:, k] for k, (count, probe) in enumerate(zip(counts, probes)))
    return float(np.median(limit / times[:, -1]))


def mixture_over_single(family, n, d, k, threads, rounds=ROUNDS):
    """Time with k components over that with one."""
    both = [engine(problem_of(family, n, d, count), threads) for count in (1, k)]
    times = alternated(both, threads, rounds)
    return float(np.median(times[:, 1] / times[:, 0]))


class Sweep:
    """Time of one total."""

    params = [FAMILIES, (1, 3), DTYPES, THREADS]
    param_names = ["family", "components", "dtype", "threads"]

    def setup_cache(self):
        pass

    def setup(self, family, components, dtype, threads):
        self.total = engine(problem_of(family, 3000, 1, components, dtype), threads)
        self.total()

    def time_total(self, family, components, dtype, threads):
        self.total()
