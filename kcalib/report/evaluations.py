"""Evaluations as parts of a page: verdicts in words, the table of numbers, tests, and how to reproduce them.

`ModelEvaluation.to_html` and the command `report` use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kcalib._backend.provenance import machine, versions
from kcalib.report.laws import draw_law
from kcalib.report.page import Section, document, escape, paragraph, preformatted, row, svg, table
from kcalib.report.summary import format_pvalue

TEXTS = ("model", "predicted", "statistic", "largest deviation")


def page_of(evaluation: Any, results: Sequence[Any]) -> str:
    """Write the page that `ModelEvaluation.to_html` returns."""
    models = {"model": evaluation}
    metrics = (getattr(evaluation, "metrics", None) or {}).values()
    of_metrics = [result for named in metrics for result in (named if isinstance(named, tuple) else (named,))]
    results = [*(result for result in of_metrics if hasattr(result, "_repr_html_")), *results]
    results_section = Section("Beside it", [part for result in results for part in _of_result(result)])
    sections = [numbers(models), *([results_section] if results else []), tests(models), repeated(models, None)]
    return document("Is the model calibrated?", verdicts(models), sections)


def _of_result(result: Any) -> list[str]:
    """Show any result of kcalib as it is printed, and its picture where it has one."""
    try:
        pictures = [svg(result.plot, type(result).__name__)] if hasattr(result, "plot") else []
    except ValueError:  # a test that has drawn nothing
        pictures = []
    return [row([*pictures, f'<div class="wide">{result._repr_html_()}</div>'])]


def verdicts(models: Mapping[str, Any]) -> list[str]:
    """Write a paragraph of HTML for each model."""
    paragraphs = []
    for name, evaluation in models.items():
        tone, test = "bad" if evaluation.miscalibrated else "good", evaluation.test
        reason = f"p = {format_pvalue(test.pvalue)}, {evaluation.n_samples:,} samples"
        if test.has_interval:
            low, high = test.confidence_interval()
            reason += f", SKCE {evaluation.skce.value:.2g}, 95 % interval {low:.2g} to {high:.2g}"
        verdict = f'<span class="{tone}">{escape(evaluation.verdict)}</span>'
        paragraphs.append(f"<strong>{escape(name)}: {verdict}</strong> ({escape(reason)})")
    return paragraphs


def numbers(models: Mapping[str, Any]) -> Section:
    """Write a table for each kind of predictions."""
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, evaluation in models.items():
        kinds.setdefault(tuple(evaluation.columns()), {})[name] = evaluation
    parts = []
    for group in kinds.values():
        rows = [{"model": name, **e.columns(), **_format_skce(e)} for name, e in group.items()]
        parts.append(table(list(rows[0]), [list(row.values()) for row in rows], TEXTS))
        parts += [paragraph(text, "small") for text in dict.fromkeys(t for e in group.values() for t in e.remarks())]
    return Section("Numbers", parts)


def _format_skce(evaluation: Any) -> dict[str, str]:
    error = evaluation.skce.standard_error
    return {
        "SKCE": f"{evaluation.skce.value:.2e}",
        "std. error": "-" if error is None else f"{error:.2e}",
        "p-value": format_pvalue(evaluation.test.pvalue),
    }


def tests(models: Mapping[str, Any]) -> Section:
    """Draw the null distribution of each test, where there are draws, and say what was done by which statistics."""
    parts = []
    for name, evaluation in models.items():
        test = evaluation.test
        parts.append(paragraph(f"{name}: {test.method} test: {test.null_law}", "small"))
        if test.blocks is not None:
            rows = [[block.name, block.finding, format_pvalue(block.pvalue)] for block in test.blocks]
            parts.append(table(["statistic", "largest deviation", "p-value by itself"], rows, TEXTS))
        if test.null_quantiles is not None:
            parts.append(svg(partial(draw_law, test), f"{name}: the statistic and its law under calibration"))
    return Section("Could this be chance? The statistic, and what it is for calibrated models", parts)


def repeated(models: Mapping[str, Any], command: str | None) -> Section:
    """Say what was computed, with which versions, and how to do it again."""
    lines = [] if command is None else [command, ""]
    lines.append(", ".join([*(f"{name} {version}" for name, version in versions().items()), machine()]))
    for name, evaluation in models.items():
        skce, test = evaluation.skce, evaluation.test
        lines.append(
            f"{name}: {skce.estimator} SKCE, {skce.kernel}, {skce.backend} backend, {skce.dtype}; "
            f"{test.method} test, seed {test.seed}, level {evaluation.level:g}, tolerance {evaluation.tolerance}"
        )
    return Section("What was computed, and how to repeat it", [preformatted("\n".join(lines))])
