"""Random weights and labels that depend on seed, replicate and row only.

A replicate of a statistic weighs every row by a random number: how often it is drawn (bootstrap), or a multiplier of
mean 0 (multiplier bootstrap). The compiled core computes the weights (src/include/kcalib/resampling.h). Any range of
replicates can be computed separately and in any order, bit for bit the same on every machine.

Labels are drawn from predictions by NumPy's Philox generator, which is counter-based too; on a GPU src/cuda/philox.cu
computes the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.threads import run_options

# The enum WeightKind of src/include/kcalib/resampling.h.
KINDS = {"multinomial": 0, "rademacher": 1, "gaussian": 2}


@dataclass(frozen=True)
class Weights:
    """Weights of `n` rows in `n_replicates` replicates.

    Parameters
    ----------
    kind : {"multinomial", "rademacher", "gaussian"}
        Counts of `n` draws with replacement (mean 1, each replicate sums to `n`); 1 or -1; standard normal.
    n : int
        Number of rows, at most 2**40.
    n_replicates : int
        Number of replicates, at most 2**32.
    seed : int
        From 0 to 2**64 - 1.
    first : int
        Number of the first replicate.
    """

    kind: str
    n: int
    n_replicates: int
    seed: int
    first: int = 0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, tuple(KINDS))
        for name, low, high in (
            ("n", 1, 2**40),
            ("n_replicates", 0, 2**32),
            ("seed", 0, 2**64 - 1),
            ("first", 0, 2**32),
        ):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), low, high))

    def values(self, begin: int = 0, end: int | None = None, dtype: Any = "float64", threads: Any = None) -> np.ndarray:
        """Return the weights of replicates [begin, end), shape (n, end - begin); float32 weights are rounded."""
        end = check_integer("end", self.n_replicates if end is None else end, 0, self.n_replicates)
        begin = check_integer("begin", begin, 0, end)
        out = np.empty((self.n, end - begin), dtype=check_choice("dtype", dtype, ("float64", "float32")))
        if out.size:
            with run_options(threads) as options:
                _native.fill_weights(KINDS[self.kind], self.seed, self.first + begin, out, options)
        return out

    def part(self, begin: int, end: int) -> Weights:
        """Return the weights of replicates [begin, end)."""
        return replace(self, n_replicates=end - begin, first=self.first + begin)

    def products(self, vector: np.ndarray, threads: Any = None) -> np.ndarray:
        """Return ``vector @ values()`` for counts ("multinomial"), which are drawn but not stored."""
        out = np.empty(self.n_replicates)
        if out.size:
            with run_options(threads) as options:
                _native.count_products(
                    self.seed, self.first, np.ascontiguousarray(vector, dtype=np.float64), out, options
                )
        return out


def make_weights(
    reference: Array, weights: Weights, begin: int = 0, end: int | None = None, *, threads: Any = None
) -> Array:
    """Return `weights.values(begin, end)` in float64, as a CuPy array if `reference` is one."""
    end = weights.n_replicates if end is None else end
    if arrays.is_cuda(reference):
        return draw_on_device(weights, begin, end, end - begin, "float64")
    return weights.values(begin, end, threads=threads)


def batches(
    reference: Array, weights: Weights, n_bytes: int, *, threads: Any = None
) -> Iterator[tuple[int, int, Array]]:
    """Yield (begin, end, weights of these replicates), each of at most about `n_bytes`."""
    step = max(1, n_bytes // (8 * weights.n))
    for begin in range(0, weights.n_replicates, step):
        end = min(begin + step, weights.n_replicates)
        yield begin, end, make_weights(reference, weights, begin, end, threads=threads)


def draw_on_device(weights: Weights, begin: int, end: int, width: int, dtype: str, rows: int | None = None) -> Array:
    """Return weights of replicates [begin, end) on the current device, shape (n, width); further columns are zero.

    With `rows` >= n the shape is (rows, width), and further rows are zero.
    """
    import cupy

    n, first, count = weights.n, np.int64(weights.first + begin), np.int64(end - begin)
    program = weights_program(dtype)
    panel = cupy.empty((n if rows is None else rows, width), dtype=dtype)
    panel[n:] = 0
    if width == 0:
        return panel
    seed, sizes = np.uint64(weights.seed), (np.int64(n), np.int64(width))
    grid = program.blocks(n * width), 1
    if weights.kind == "multinomial":
        counts = cupy.zeros((n, width), dtype=cupy.uint32)
        program.launch("kcalib_draws", grid, (seed, first, count, *sizes, counts))
        program.launch("kcalib_as_reals", grid, (counts, np.int64(counts.size), panel))
    else:
        arguments = (np.int64(KINDS[weights.kind]), seed, first, count, *sizes, panel)
        program.launch("kcalib_multipliers", grid, arguments)
    return panel


def weights_program(dtype: str) -> Program:
    # Without fused products the bits are those of the compiled core.
    options = ("-fmad=false", f"-DKCALIB_REAL={'float' if dtype == 'float32' else 'double'}")
    return Program(("include/kcalib/math.h", "include/kcalib/resampling.h", "cuda/weights.cu"), options)


class RandomNumbers:
    """Consecutive numbers of NumPy's `generator`, as NumPy or CuPy arrays like `reference`."""

    def __init__(self, generator: np.random.Generator, reference: Array) -> None:
        self._generator = generator
        self._reference = reference
        self._counted = arrays.is_cuda(reference) and isinstance(generator.bit_generator, np.random.Philox)
        if self._counted:
            state: Any = generator.bit_generator.state
            counter, self._key = state["state"]["counter"], state["state"]["key"]
            assert not counter[1:].any()
            # Words come four at a time; the counter belongs to the block in the buffer.
            self._position = 4 * int(counter[0]) + int(state["buffer_pos"]) - 4
            self._half_left = bool(state["has_uint32"])

    def uniform(self, count: int) -> Array:
        """Return ``generator.random(count)``."""
        if not self._counted:
            return self._to_device(self._generator.random(count))
        import cupy

        out = cupy.empty(count, dtype=cupy.float64)
        self._launch("kcalib_uniforms", count, np.int64(count), out)
        self._position += count
        return out

    def integers(self, high: int, count: int) -> Array:
        """Return ``generator.integers(high, size=count)``, for `high` from 1 to 2**32 - 1."""
        if not self._counted:
            return self._to_device(self._generator.integers(high, size=count))
        import cupy

        assert not self._half_left
        if high == 1:  # uses no numbers
            return cupy.zeros(count, dtype=cupy.int64)
        refused = count * ((2**32 - high) % high) / 2**32  # expected number of rejected half words
        size = count + math.ceil(refused + 10 * math.sqrt(refused)) + 32
        while True:
            numbers = cupy.empty(size, dtype=cupy.int64)
            self._launch("kcalib_integers", size, np.int64(size), np.uint64(high), numbers)
            number = cupy.cumsum(numbers >= 0, dtype=cupy.int64)
            n_half_words = int(cupy.searchsorted(number, cupy.asarray([count]))[0]) + 1 if count else 0
            if n_half_words <= size:
                break
            size *= 2
        self._position += (n_half_words + 1) // 2
        self._half_left = n_half_words % 2 == 1
        numbers = numbers[:n_half_words]
        return numbers[numbers >= 0]

    def _to_device(self, numbers: np.ndarray) -> Array:
        return arrays.like(numbers, self._reference) if arrays.is_cuda(self._reference) else numbers

    def _launch(self, name: str, count: int, *arguments: Any) -> None:
        _launch(name, count, (*(np.uint64(k) for k in self._key), np.int64(self._position), *arguments))


def replicate_numbers(seed: int, replicate: int, reference: Array, first: int = 0) -> RandomNumbers:
    """Return numbers that depend on seed and replicate only, from number `first` on, a multiple of 4."""
    key = np.array([seed, replicate], dtype=np.uint64)
    return RandomNumbers(np.random.Generator(np.random.Philox(key=key).advance(first // 4)), reference)


def cumulative_sums(probabilities: Array) -> Array:
    """Return cumulative sums of the rows, shape (n, m), in float64, on the host unless they are on a GPU."""
    if not arrays.is_cuda(probabilities):
        host = arrays.to_host(probabilities)
        return np.cumsum(host, axis=1, dtype=np.float64, out=np.empty(host.shape))  # always row-major
    xp = arrays.namespace(probabilities)
    p = xp.ascontiguousarray(probabilities, dtype=xp.float64)
    out = xp.empty_like(p)
    n, m = p.shape
    _launch("kcalib_cumulative", n, (p, np.int64(n), np.int64(m), out))
    return out


def draw_labels(cumulative: Array, uniform: Array, rows: Array | None = None) -> Array:
    """Draw labels from rows of probabilities, shape (n,), each by a uniform number in [0, 1).

    `cumulative` holds the cumulative sums of the rows, shape (n, m). Label i uses row `rows[i]`, by default i. A label
    of probability 0 is never drawn.
    """
    if arrays.is_cuda(cumulative):
        return _labels_on_device(cumulative, uniform, rows, 1)[:, 0]
    if rows is not None:
        cumulative = cumulative[rows]
    # Without comparing the last sum: it exceeds all thresholds, unless predictions changed after the check.
    return np.asarray(np.sum(cumulative[:, :-1] <= thresholds(cumulative[:, -1], uniform)[:, None], axis=1))


def thresholds(totals: Array, uniform: Array) -> Array:
    """Return `uniform` times `totals`, always below `totals`."""
    xp = arrays.namespace(totals)
    shares = uniform * totals
    return xp.minimum(shares, xp.nextafter(totals, xp.zeros_like(totals)), out=shares)


def draw_label_batches(
    probabilities: Array, n_draws: int, seed: int, *, at_once: int, threads: Any = None
) -> Iterator[Array]:
    """Yield labels drawn from the rows of `probabilities`, shape (n, draws), `at_once` draws at a time.

    Each label is the inverse of a uniform number of NumPy's Philox generator, draw by draw and sample by sample, so
    that the result does not depend on `at_once`, library or device. Labels are NumPy arrays (int32) or CuPy arrays.
    """
    bits = np.random.Philox(seed)
    cumulative = cumulative_sums(probabilities)
    n = len(cumulative)
    if arrays.is_cuda(cumulative):
        numbers = RandomNumbers(np.random.Generator(bits), cumulative)
        for begin in range(0, n_draws, at_once):
            count = min(at_once, n_draws - begin)
            yield _labels_on_device(cumulative, numbers.uniform(count * n), None, count)
        return
    key = _key(bits)
    for begin in range(0, n_draws, at_once):
        labels = np.empty((n, min(at_once, n_draws - begin)), dtype=np.int32)
        if labels.size:
            with run_options(threads) as options:
                _native.draw_labels(cumulative, *key, begin * n, labels, options)
        yield labels


def draw_replicate_batches(
    cumulative: Array, n_draws: int, seed: int, *, at_once: int, threads: Any = None
) -> Iterator[Array]:
    """Yield the labels of `Classification.draw(seed, r)` for r below `n_draws`, in batches of shape (n, draws)."""
    n = len(cumulative)
    for begin in range(0, n_draws, at_once):
        replicates = range(begin, min(begin + at_once, n_draws))
        if arrays.is_cuda(cumulative):
            xp = arrays.namespace(cumulative)
            draws = [draw_labels(cumulative, replicate_numbers(seed, r, cumulative).uniform(n)) for r in replicates]
            yield xp.stack(draws, axis=1)
            continue
        labels = np.empty((len(replicates), n, 1), dtype=np.int32)
        with run_options(threads) as options:
            for r, column in zip(replicates, labels, strict=True):
                _native.draw_labels(cumulative, seed, r, 0, column, options)
        yield np.ascontiguousarray(labels[:, :, 0].T)


@dataclass(frozen=True, eq=False)
class BinaryDraws:
    """Labels of two classes that are drawn on use (`label_lines` in src/cpu/random/weights.h)."""

    thresholds: np.ndarray  # uint64, shape (n,)
    key: tuple[int, int]  # of NumPy's Philox generator
    n_draws: int

    @classmethod
    def of(cls, probabilities: np.ndarray, n_draws: int, seed: int, *, threads: Any = None) -> BinaryDraws:
        """Return the draws of `draw_label_batches`."""
        with run_options(threads) as options:
            thresholds = _native.label_thresholds(np.ascontiguousarray(probabilities, dtype=np.float64), options)
        return cls(thresholds, _key(np.random.Philox(seed)), n_draws)


def _key(generator: np.random.Philox) -> tuple[int, int]:
    state: Any = generator.state
    first, second = (int(word) for word in state["state"]["key"])
    return first, second


def _labels_on_device(cumulative: Array, uniform: Array, rows: Array | None, draws: int) -> Array:
    """Return labels, shape (n, draws); `uniform` is ordered by draws."""
    xp = arrays.namespace(cumulative)
    n = len(cumulative) if rows is None else len(rows)
    out = xp.empty((n, draws), dtype=xp.int64)
    sizes = (np.int64(n), np.int64(cumulative.shape[1]), np.int64(draws))
    _launch("kcalib_labels", n * draws, (cumulative, rows, uniform, *sizes, out))
    return out


def philox_program() -> Program:
    """Return the program for uniform numbers and labels on a GPU, without fused products, as in NumPy."""
    return Program(("include/kcalib/math.h", "include/kcalib/philox.h", "cuda/philox.cu"), ("-fmad=false",))


def _launch(name: str, count: int, arguments: tuple[Any, ...]) -> None:
    if count:
        program = philox_program()
        program.launch(name, (program.blocks(count), 1), arguments)


def hash_numbers(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Return 64 well mixed bits for each number, by SplitMix64 starting at the seed."""
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + _mix(np.array(seed, dtype=np.uint64))
        return _mix(x)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
