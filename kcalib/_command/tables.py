"""Results as text: tables that fit the terminal, with remarks below."""

from __future__ import annotations

import argparse
import itertools
import operator
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import cast

from kcalib._backend.files import printable
from kcalib._command.jobs import Model
from kcalib.evaluation_results import Evaluation
from kcalib.lenses import Buckets, Canonical, Confidence
from kcalib.report.summary import align, format_pvalue
from kcalib.results import CalibrationTestResult, Comparison

TEXTS = ("model", "predicted", "release", "evaluated", "verdict")  # columns that are no numbers
GAP = "  "


def evaluations_report(models: Sequence[Model], arguments: argparse.Namespace) -> str:
    """Return a table for each kind of model, with remarks below."""
    width = terminal_width()
    kind = operator.attrgetter("noun")
    kinds = [list(group) for _, group in itertools.groupby(sorted(models, key=kind), kind)]
    return "\n".join(
        format_table([_row(model) for model in group], width)
        + "\n"
        + "".join(line + "\n" for line in _remarks(group, arguments, min(width, 120)))
        + "".join(
            f"\n{model.model} by {' and '.join(arguments.by)}\n{_groups(model)}" for model in group if model.groups
        )
        + "".join(
            f"\n{model.model}\n{_metrics(model)}" for model in group if getattr(model.evaluation, "metrics", None)
        )
        for group in kinds
    )


def _metrics(model: Model) -> str:
    """Return the table of --metrics."""
    return "".join(line + "\n" for line in align(cast("Evaluation", model.evaluation).metric_rows(), [True, True]))


def _groups(model: Model) -> str:
    """Return the table of a model's groups."""
    assert model.groups is not None
    summary = model.groups._summary()
    return "".join(line + "\n" for line in (*align(summary.rows, summary.is_text), *summary.notes))


def terminal_width() -> int:
    """Return the width of the terminal, or no limit for a file."""
    return shutil.get_terminal_size(fallback=(sys.maxsize, 24)).columns


def _row(model: Model) -> dict[str, str]:
    e = model.evaluation
    return {
        "model": model.model,
        **e.columns(),
        "SKCE": f"{e.skce.value:.2e}",
        "std. error": "-" if e.skce.standard_error is None else f"{e.skce.standard_error:.2e}",
        "p-value": format_pvalue(e.test.pvalue),
        **({} if model.pvalue_holm is None else {"p (Holm)": format_pvalue(model.pvalue_holm)}),
        "verdict": e.verdict,
    }


def format_table(rows: Sequence[dict[str, str]], width: int) -> str:
    """Return a table with a row for each model; on a narrow terminal several tables with a column for each model."""
    headers = list(rows[0])
    wide = align([headers, *(list(row.values()) for row in rows)], [header in TEXTS for header in headers])
    if max(map(len, wide)) <= width:
        return "\n".join(wide) + "\n"
    columns = []
    for *cells, verdict in (list(row.values()) for row in rows):  # the verdict is wrapped
        columns.append([*cells, *textwrap.wrap(verdict, max(16, *map(len, cells)), break_long_words=False)])
    widths = [max(map(len, column)) + len(GAP) for column in columns]
    room = width - max(map(len, headers))
    if max(widths) > room:
        return "\n".join(wide) + "\n"
    parts: list[str] = []
    start = 0
    while start < len(columns):
        stop = start + 1
        while stop < len(columns) and sum(widths[start : stop + 1]) <= room:
            stop += 1
        group = columns[start:stop]
        length = max(map(len, group))
        group = [[*headers, *[""] * (length - len(headers))], *(c + [""] * (length - len(c)) for c in group)]
        lines = align(list(zip(*group, strict=True)), [True] + [False] * (stop - start))
        parts.append("\n".join(lines) + "\n")
        start = stop
    return "\n".join(parts)


def _remarks(models: Sequence[Model], arguments: argparse.Namespace, width: int) -> list[str]:
    evaluations = [model.evaluation for model in models]
    skce = evaluations[0].skce
    threads = "" if skce.threads is None else f", {skce.threads} thread{'s' if skce.threads > 1 else ''}"
    kernel = f"{skce.kernel.partition('(')[0]} kernel with the median distance as bandwidth"
    if skce.bandwidth_source == "given":  # in states
        kernel = f"{skce.kernel} kernel"
    targets = {e.skce.target_kernel.partition("(")[0]: None for e in evaluations if e.skce.prediction is not None}
    if targets:
        kernel += f", {' or '.join(targets)} kernel on targets"
    level = f"{arguments.level:g}"
    lens = [] if skce.lens == str(Canonical()) else [f"lens: {skce.lens}: all numbers are for its classes"]
    if skce.lens == str(Buckets()) and getattr(evaluations[0], "n_classes", 0) > Buckets().n_buckets + 1:
        lens = [f"test and SKCE: sums within random groups of tokens, lens {skce.lens}; scores: tokens"]
    if skce.lens == str(Confidence()):
        lens = ["confidences as given; accuracy: share of right predictions"]
    remarks = [
        *lens,
        f"SKCE: {skce.estimator} estimator, {kernel}; {skce.backend} backend{threads}",
        *_explanations(models),
        f"verdict at level {level}: {'; '.join(_tests([e.test for e in evaluations]))}",
    ]
    remarks += [f"{model.model}: {model.rows}" for model in models if model.rows is not None]
    if arguments.tolerance is not None:
        remarks.append(f"miscalibrated: error above the tolerance {arguments.tolerance:g}")
    if any(e.rms_error_lower for e in evaluations if e.miscalibrated):
        remarks.append(
            f"off by at least: with confidence {1 - arguments.level:g}, the root mean square over predictions of the "
            "largest error in the probability of any event"
        )
    together = {model.file: model.together for model in models if model.together is not None}
    remarks += [f"{printable(file)}: {of_labels.means()}" for file, of_labels in together.items()]
    if together:
        remarks.append("verdicts: p-values are adjusted over the labels of a file (Holm)")
    elif len(models) > 1:
        remarks.append(
            f"the level holds for each model separately; for {level} over all {len(models)} models "
            f"use --level {arguments.level / len(models):.2g}"
        )
    return wrap_lines(remarks, width)


def _explanations(models: Sequence[Model]) -> Iterator[str]:
    """Describe the columns, with the names of models where these differ."""
    for remark in dict.fromkeys(remark for model in models for remark in model.evaluation.remarks()):
        names = [model.model for model in models if remark in model.evaluation.remarks()]
        yield remark if len(names) == len(models) else f"{', '.join(names)}: {remark}"


def _tests(tests: Sequence[CalibrationTestResult]) -> Iterator[str]:
    """Yield a description of the tests of each method."""
    for method in dict.fromkeys(test.method for test in tests):
        group = [test for test in tests if test.method == method]
        scope = "all samples" if method in ("features", "adaptive") else "all pairs"
        blocks = sorted({test.block_size for test in group if test.block_size is not None})
        if blocks:
            sizes = str(blocks[0]) if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]}"
            yield f"{method} test, blocks of {sizes} samples, permuted with seed {group[0].seed}"
        elif group[0].n_resamples is not None:
            yield f"{method} test of {scope}, {group[0].n_resamples} draws with seed {group[0].seed}"
        else:
            yield f"{method} test of {scope}"


def comparison_report(comparison: Comparison) -> str:
    width = min(120, terminal_width())
    parts = (comparison.model_lines(), comparison.pair_lines(), wrap_lines(comparison.remarks(), width))
    return "\n".join("".join(line + "\n" for line in lines) for lines in parts)


def wrap_lines(remarks: Sequence[str], width: int) -> list[str]:
    return [line for remark in remarks for line in textwrap.wrap(remark, width, subsequent_indent="  ")]
