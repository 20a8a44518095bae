"""All that a state holds: what changes is replaced, so that nothing is ever half-added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.exact_sums import ExactSums
from kcalib._input.labels import Classification
from kcalib._packing.labels import resolve
from kcalib.kernels import Kernel
from kcalib.lenses import Canonical, Lens
from kcalib.streaming._device import DeviceSums, sums_beside, tally_beside
from kcalib.streaming._options import StateOptions
from kcalib.streaming._rows import OpenRows, Rows, RowSet
from kcalib.streaming._sample import RowSample
from kcalib.streaming._sums import DrawnSums, KernelSums, Machine, block_size
from kcalib.streaming._tally import SCORES, Extremes, Tally, tally_of
from kcalib.streaming._totals import BinTotals, Totals

MOST_WAITING = 2048  # rows of batches that are added together
FIRST_ROWS = 2000  # whose median distance is the bandwidth, where none is given
SAMPLE, DRAWN_SAMPLE = 256, 4096  # rows that are kept, without and with draws of labels
SMALLEST_WEIGHT = 1e-6  # root mean square: squares of smaller ones have too few digits in fixed point
TOO_LARGE = (
    "the sums of `sample_weight` or of its squares are beyond 1e11, which a state cannot add up exactly; divide all "
    "weights by one number, so that their mean is about 1"
)


class Batch(NamedTuple):
    """Checked samples of consecutive numbers, before any lens."""

    first: int
    labels: Array  # int64, shape (n,)
    probabilities: Array  # float64, shape (n, n_classes)
    weights: Array  # float64, shape (n,)
    epsilon: float  # machine epsilon of the dtype that the predictions came in

    @property
    def n(self) -> int:
        return int(self.labels.shape[0])

    def copied(self) -> Batch:
        return Batch(self.first, self.labels.copy(), self.probabilities.copy(), self.weights.copy(), self.epsilon)

    def to_host(self) -> Batch:
        labels, p, weights = map(arrays.to_host, (self.labels, self.probabilities, self.weights))
        return Batch(self.first, labels, p, weights, self.epsilon)

    def taken(self, begin: int, end: int) -> Batch:
        """Rows [begin, end) of the batch, as many as there are."""
        rows = slice(begin, min(end, self.n))
        return Batch(
            self.first + begin, self.labels[rows], self.probabilities[rows, :], self.weights[rows], self.epsilon
        )

    def induced(self, lens: Lens) -> Classification:
        """Seen through the lens, without weights."""
        return lens.induced(Classification(self.labels, self.probabilities, None, None, self.epsilon))


@dataclass(frozen=True, eq=False)
class Contents:
    """Of a state."""

    options: StateOptions
    m: int  # classes of the problem that the lens induces
    seen: RowSet  # those of batches that wait are among them
    waiting: tuple[Batch, ...]  # of one epsilon; none while the kernel is not known
    tally: Tally
    opened: OpenRows
    sample: RowSample
    bandwidth_rows: int  # whose median distance the bandwidth is; 0 where it was given, or is not known
    beside: DeviceSums | None  # of rows on a GPU, beside them
    machine: Machine | None  # None while the kernel is not known: all rows are open
    sums: KernelSums | None

    @classmethod
    def empty(cls, options: StateOptions, threads: int | None) -> Contents:
        m = options.seen_row().m
        known = not options.kernel.open_metrics()
        machine = Machine(options, m, threads) if known else None
        return cls(
            options,
            m,
            RowSet(),
            (),
            Tally.empty(m, options.n_bins),
            OpenRows(block_size(options), {}),
            RowSample.empty(DRAWN_SAMPLE if options.n_resamples else SAMPLE, options.seed, m),
            0,
            None,
            machine,
            None if machine is None else machine.zeros(),
        )

    def plus(self, batch: Batch, threads: int | None) -> Contents:
        """With a batch; a small one waits for others, with which it takes less time."""
        if self.tally.is_full:
            raise ValueError(TOO_LARGE)
        seen = self.seen.plus(batch.first, batch.first + batch.n)
        if not arrays.is_host(batch.probabilities):
            if batch.n >= MOST_WAITING and self.machine is not None:
                return replace(self, seen=seen)._plus_beside(batch, threads)
            batch = batch.to_host()  # small, or to be held
        waiting = sum(one.n for one in self.waiting) + batch.n
        small = batch.n < MOST_WAITING and self.machine is not None
        if small and not (self.waiting and self.waiting[0].epsilon != batch.epsilon):
            new = replace(self, seen=seen, waiting=(*self.waiting, batch.copied()))
            return new if waiting < MOST_WAITING else new._without_waiting(threads)
        return replace(self._without_waiting(threads), seen=seen, waiting=(batch,))._without_waiting(threads)

    def settled(self, threads: int | None) -> Contents:
        """With the batches that wait, and the sums that are on a GPU."""
        new = self._without_waiting(threads)
        if new.beside is None:
            return new
        tally, sums = new.tally + new.beside.tally.to_host(), new.sums
        if new.beside.sums is not None and sums is not None:
            sums = sums + new.beside.sums.to_host()
        return replace(new, beside=None, tally=tally, sums=sums)

    def _without_waiting(self, threads: int | None) -> Contents:
        if not self.waiting:
            return self
        rows, epsilon = self._induced(), self.waiting[0].epsilon
        before, n = self.tally.n, len(rows.numbers)
        tally = self.tally + tally_of(rows, self.options.n_bins, epsilon, threads)
        new = replace(self, waiting=(), tally=tally, sample=self.sample.plus(rows))
        if new.machine is None:
            held = min(n, max(FIRST_ROWS - before, 0))  # merged states may hold more
            if held:
                _, opened = self.opened.split(rows.taken(slice(0, held)), complete=False)
                new = replace(new, opened=opened)
            if before + held < FIRST_ROWS:
                return new
            new, rows = new.fixed(threads), rows.taken(slice(held, n))
            if held == n:
                return new
        whole, opened = new.opened.split(rows)
        return replace(new, opened=opened)._with_blocks(whole)

    def _plus_beside(self, batch: Batch, threads: int | None) -> Contents:
        """With a batch on a GPU, whose whole blocks are added up there; `seen` has it already."""
        if self.beside is not None and arrays.gpu_of(self.beside.tally.extremes.counts) != arrays.gpu_of(batch.labels):
            self = self.settled(threads)
        if self.beside is not None and self.beside.tally.is_full:
            raise ValueError(TOO_LARGE)
        assert self.machine is not None
        data = batch.induced(self.options.lens)
        numbers = np.arange(batch.first, batch.first + batch.n)

        def brought(places: np.ndarray) -> Rows:
            at = arrays.like(places, batch.labels)
            parts = (data.probabilities, data.labels, batch.weights)
            return Rows(numbers[places], *(arrays.to_host(data.xp.take(part, at, axis=0)) for part in parts))

        size = self.opened.size
        begin = min(-batch.first % size, batch.n)
        end = begin + (batch.n - begin) // size * size
        whole = None
        if end > begin:
            blocks = replace(data, labels=data.labels[begin:end], probabilities=data.probabilities[begin:end, :])
            whole = sums_beside(self.machine, blocks, batch.weights[begin:end], batch.first + begin)
        found = DeviceSums(tally_beside(data, batch.weights, self.options.n_bins), whole)
        wanted = self.sample.wanted(numbers)
        sample = self.sample.plus(brought(wanted)) if wanted.size else self.sample
        new = replace(self, beside=found if self.beside is None else self.beside + found, sample=sample)
        for places in (np.arange(begin), np.arange(end, batch.n)):
            if places.size:
                complete, opened = new.opened.split(brought(places))
                new = replace(new, opened=opened)._with_blocks(complete)
        return new

    def _induced(self) -> Rows:
        """The batches that wait as ascending rows, seen through the lens."""
        numbers = np.concatenate([np.arange(one.first, one.first + one.n) for one in self.waiting])
        parts = [(one.labels, one.probabilities, one.weights) for one in self.waiting]
        labels, p, weights = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        data = self.options.lens.induced(Classification(labels, p, None, None, self.waiting[0].epsilon))
        p = np.ascontiguousarray(data.probabilities)
        return Rows.joined([Rows(numbers, p, data.labels, weights)])

    def merged(self, other: Contents, threads: int | None) -> Contents:
        """With all rows of another state's contents.

        While neither knows its bandwidth, nor does what they are together, however many rows that are open it has: it
        must not depend on which states are merged first.
        """
        different = self.options.difference(other.options)
        if different is not None:
            raise ValueError(different)
        self, other = self.settled(threads), other.settled(threads)
        known = self if self.machine is not None else other
        new = replace(
            self,
            options=replace(self.options, kernel=known.options.kernel),
            seen=self.seen.union(other.seen),
            tally=self.tally + other.tally,
            opened=self.opened.union(other.opened),
            sample=self.sample.union(other.sample),
            bandwidth_rows=max(self.bandwidth_rows, other.bandwidth_rows),
            machine=known.machine,
            sums=known.sums if self.sums is None or other.sums is None else self.sums + other.sums,
        )
        if new.tally.is_full:
            raise ValueError(TOO_LARGE)
        if new.machine is None:
            return new
        blocks, opened = new.opened.closed()
        return replace(new, opened=opened)._with_blocks(blocks)

    def fixed(self, threads: int | None, *, elsewhere: bool = True) -> Contents:
        """With the median heuristic for the bandwidths, on the rows of smallest numbers; all are open.

        Identical ones have no median: an error where the kernel will see others `elsewhere`.
        """
        if self.machine is not None:
            return self
        points = self.first_points()
        kernel, _ = resolve([points], self.options.kernel, threads, elsewhere=elsewhere)
        return self.with_kernel(kernel, len(points), threads)

    def first_points(self) -> np.ndarray:
        """Those that the bandwidths come from."""
        return self.settled(None).opened.rows(self.m).probabilities[:FIRST_ROWS]

    def with_kernel(self, kernel: Kernel, bandwidth_rows: int, threads: int | None) -> Contents:
        """With these bandwidths, which are medians of so many rows, where they are not known yet."""
        if self.machine is not None:
            return self
        options = replace(self.options, kernel=kernel)
        machine = Machine(options, self.m, threads)
        blocks, opened = self.opened.closed()
        new = replace(
            self, options=options, opened=opened, bandwidth_rows=bandwidth_rows, machine=machine, sums=machine.zeros()
        )
        return new._with_blocks(blocks)

    def _with_blocks(self, pieces: list[Rows]) -> Contents:
        if not pieces:
            return self
        assert self.machine is not None and self.sums is not None
        return replace(self, sums=self.machine.plus(self.sums, pieces))

    def bin_totals(self, threads: int | None) -> BinTotals:
        """What is known without a kernel."""
        if not len(self.seen):
            raise ValueError("the state has no samples; call update() first, or merge a state that has some")
        tally, n = self.settled(threads).tally, len(self.seen)
        scores = dict(zip(SCORES, tally.scores.to_float().tolist(), strict=True))
        if tally.n_weighted and scores["weight_squared"] < n * SMALLEST_WEIGHT**2:
            raise ValueError(
                f"`sample_weight` has a root mean square of {math.sqrt(scores['weight_squared'] / n):.3g}, expected at "
                "least 1e-6 in a state, whose sums are in fixed point; make it with weights whose mean is about 1"
            )
        return BinTotals(n, tally.n_weighted, scores, tally.cells.to_float(), tally.extremes, self.options.lens)

    def totals(self, threads: int | None) -> Totals:
        """With the rows of open blocks; of two rows at least where the kernel is not known."""
        found = self.bin_totals(threads)
        if self.machine is None and found.n < 2:
            raise ValueError("the SKCE needs at least 2 samples, the state has 1 sample; call update() with more")
        final = self.settled(threads).fixed(threads, elsewhere=found.n > FIRST_ROWS)
        if final.opened.pieces:
            final = final._with_blocks([final.opened.rows(final.m)])
        machine, sums = final.machine, final.sums
        assert machine is not None and sums is not None
        rows = final.sample.rows
        unit, weighted = machine.feature_unit * machine.mark_unit, found.n_weighted > 0
        classes = final.options.classes if isinstance(final.options.lens, Canonical) else None
        weights = rows.weights if weighted else None
        sample = Classification(rows.labels, rows.probabilities, weights, classes, 2.0**-52, lens=final.options.lens)
        return Totals(
            **vars(found),
            kernel=final.options.kernel,
            bandwidth_rows=final.bandwidth_rows or None,
            map=final.options.map(final.m),
            root=final.options.root(),
            sums=sums.sums.to_float() * unit,
            own=np.bincount(machine.map.groups, sums.own.to_float(), machine.map.n_groups) * unit**2,
            null_own=float(sums.null_own.to_float()) * unit**2,
            drawn=None if sums.drawn is None or weighted else machine.drawn_totals(sums.drawn),
            sample=sample,
            sample_rows=rows.numbers,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """All but the options, with fixed types: equal where the states are. No batch may wait."""
        assert not self.waiting and self.beside is None
        found = {
            "rows": np.array(self.seen.intervals, dtype=np.int64).reshape(-1, 2),
            "n_weighted": np.array(self.tally.n_weighted, dtype=np.int64),
            "bandwidth_rows": np.array(self.bandwidth_rows, dtype=np.int64),
            **dict(zip(_names("confidence", Extremes._fields), self.tally.extremes, strict=True)),
            **dict(zip(_names("open", Rows._fields), self.opened.rows(self.m), strict=True)),
            **dict(zip(_names("sample", Rows._fields), self.sample.rows, strict=True)),
        }
        for name, sums in self._exact().items():
            found[f"{name}_high"], found[f"{name}_low"] = sums.high, sums.low
        return found

    def _exact(self) -> dict[str, ExactSums]:
        found = {"scores": self.tally.scores, "cells": self.tally.cells}
        if self.sums is not None:
            found |= {"sums": self.sums.sums, "own": self.sums.own, "null_own": self.sums.null_own}
            if self.sums.drawn is not None:
                found |= {f"drawn_{name}": value for name, value in vars(self.sums.drawn).items()}
        return found

    @classmethod
    def of(cls, options: StateOptions, arrays: Mapping[str, np.ndarray], threads: int | None) -> Contents:
        """From what `arrays` returned.

        Raises
        ------
        ValueError
            If the arrays are not those of a state with these options.
        """
        empty = cls.empty(options, threads)
        _check_like(arrays, empty.arrays())

        def exact(name: str) -> ExactSums:
            return ExactSums(arrays[f"{name}_high"], arrays[f"{name}_low"])

        def rows(of: str) -> Rows:
            return Rows(*(arrays[name] for name in _names(of, Rows._fields)))

        sums = None
        if empty.sums is not None:
            drawn = None
            if empty.sums.drawn is not None:
                drawn = DrawnSums(*(exact(f"drawn_{name}") for name in vars(empty.sums.drawn)))
            sums = KernelSums(exact("sums"), exact("own"), exact("null_own"), drawn)
        intervals = arrays["rows"].tolist()
        extremes = Extremes(*(arrays[name] for name in _names("confidence", Extremes._fields)))
        return replace(
            empty,
            seen=RowSet(tuple(start for start, _ in intervals), tuple(stop for _, stop in intervals)),
            tally=Tally(int(arrays["n_weighted"]), exact("scores"), exact("cells"), extremes),
            opened=OpenRows.of(empty.opened.size, rows("open")),
            sample=RowSample.of(empty.sample.size, options.seed, rows("sample")),
            bandwidth_rows=int(arrays["bandwidth_rows"]),
            sums=sums,
        )


def _names(prefix: str, fields: Iterable[str]) -> list[str]:
    return [f"{prefix}_{field}" for field in fields]


LENGTHS = ("rows", "open_", "sample_")  # arrays with as many rows as there are


def _check_like(arrays: Mapping[str, np.ndarray], like: Mapping[str, np.ndarray]) -> None:
    """Types and shapes as those of an empty state; further arrays are none of ours."""
    missing = sorted(like.keys() - arrays.keys())
    if missing:
        raise ValueError(f"the arrays {missing} are missing in a state of these options")
    for name, model in like.items():
        array, free = arrays[name], name.startswith(LENGTHS)
        same = array.dtype == model.dtype and array.ndim == model.ndim
        if not same or array.shape[int(free) :] != model.shape[int(free) :]:
            raise ValueError(
                f"the array {name!r} has dtype {array.dtype} and shape {array.shape}, expected {model.dtype} and "
                f"{model.shape}"
            )
