"""Calibration given further variables: residuals and log scores by category, over the labels that all blocks share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.random import draw_replicate_batches
from kcalib._input.groupings import Grouping
from kcalib._input.labels import Classification
from kcalib._pairs.label_cells import FLOOR
from kcalib.inference.adaptive.blocks import (
    LEAST_SCORE_VARIANCE,
    LEAST_VARIANCE,
    Block,
    Words,
)
from kcalib.inference.adaptive.sheets import CellEntries, CellSheet, CellView, LabelRows, keep_cells

LABELS_AT_ONCE = 2**22


def given_blocks(
    data: Classification, groupings: Sequence[Grouping], n_draws: int, seed: int, threads: int | None
) -> list[Block]:
    """Return the blocks of each variable, for the labels of `data.draw(seed, b)`."""
    p, n, m = np.asarray(arrays.to_host(data.probabilities), dtype=np.float64), data.n, data.m
    w = np.ones(n) if data.sample_weight is None else np.asarray(arrays.to_host(data.sample_weight))
    logarithms, rows = np.log(np.maximum(p, FLOOR)), np.arange(n)
    logarithms -= np.sum(p * logarithms, axis=1, keepdims=True)
    counts: list[list[np.ndarray]] = [[] for _ in groupings]
    scores: list[list[np.ndarray]] = [[] for _ in groupings]

    def add(labels: np.ndarray) -> None:
        of_labels = w * logarithms[rows, labels]
        for k, grouping in enumerate(groupings):
            size = len(grouping.values)
            counts[k].append(np.bincount(grouping.codes * m + labels, w, size * m))
            scores[k].append(np.bincount(grouping.codes, of_labels, size))

    add(np.asarray(arrays.to_host(data.labels), dtype=np.int64))
    at_once = max(1, LABELS_AT_ONCE // n)
    for batch in draw_replicate_batches(data.cumulative, n_draws, seed, at_once=at_once, threads=threads):
        for labels in np.asarray(arrays.to_host(batch)).T.astype(np.int64):
            add(labels)

    blocks = []
    for k, grouping in enumerate(groupings):
        sheets = given_sheets(grouping, data)
        size = len(grouping.values)
        classes = np.arange(m)
        cells = grouping.codes[:, None] * m + classes

        def sum_cells(values: np.ndarray, cells: np.ndarray = cells, size: int = size) -> np.ndarray:
            return np.bincount(cells.ravel(), values.ravel(), size * m)

        residuals = np.stack(counts[k]) - sum_cells(w[:, None] * p)
        variances = np.maximum(sum_cells(w[:, None] ** 2 * p * (1 - p)), LEAST_VARIANCE)
        if m == 2:
            residuals, variances = residuals[:, 1::2], variances[1::2]
        score_variances = np.bincount(grouping.codes, w**2 * np.sum(p * logarithms**2, axis=1), size)
        has_score = score_variances > LEAST_SCORE_VARIANCE * n
        of_scores = np.stack(scores[k]) * has_score
        for sheet, sums, spread in zip(
            sheets, (residuals, of_scores), (variances, np.where(has_score, score_variances, 1.0)), strict=True
        ):
            blocks.append(_make_block(sheet, sums, spread))
    return blocks


def _make_block(sheet: CellSheet, sums: np.ndarray, variances: np.ndarray) -> Block:
    squares = sums**2 / variances
    worst = int(np.argmax(squares[0]))
    (view,) = sheet.views
    assert view.name is not None
    finding = functools.partial(view.finding, np.array([worst]), float(sums[0, worst]))
    return Block(view.name, np.sum(squares, axis=1), finding, lambda: 0.0)


def given_sheets(grouping: Grouping, data: Any) -> list[CellSheet]:
    """Return the cells of a variable's two blocks: the classes by category, and the temperature by category."""
    first, size = int(data.m == 2), len(grouping.values)
    n_columns, words = data.m - first, Words.of(data)

    def where(k: int) -> str:
        return f"where {grouping.name} is {grouping.values[k]}"

    def count_classes(rows: LabelRows) -> CellEntries:
        return rows.of_classes(grouping.codes[rows.numbers][:, None] * n_columns + np.arange(n_columns), first)

    def add_scores(rows: LabelRows) -> CellEntries:
        return rows.of_scores(grouping.codes[rows.numbers][:, None])

    def describe_class(cells: np.ndarray, total: float) -> str:
        return f"{words.describe_share(first + cells[0] % n_columns, total)} {where(cells[0] // n_columns)}"

    def describe_score(cells: np.ndarray, total: float) -> str:
        return f"{words.describe_temperature(total)} {where(cells[0])}"

    return [
        CellSheet(size * n_columns, count_classes, (CellView(f"given {grouping.name}", keep_cells, describe_class),)),
        CellSheet(size, add_scores, (CellView(f"temperature given {grouping.name}", keep_cells, describe_score),)),
    ]
