"""Results as JSON and CSV."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from kcalib._backend.files import printable
from kcalib._backend.provenance import machine, utc_time, versions
from kcalib._command.jobs import Failure, Job, Model
from kcalib._version import __version__
from kcalib.evaluation_results import Evaluation, MultilabelEvaluation
from kcalib.results import Comparison, ConfidenceInterval

LONGEST = 1000  # longer arrays are not printed
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that spreadsheets evaluate


def comparison_json(comparison: Comparison | None, jobs: Sequence[Job], failures: Iterable[Failure]) -> str:
    content = {
        "kcalib": __version__,
        "files": {job.model: printable(job.file) for job in jobs},
        "comparison": None if comparison is None else dataclasses.asdict(comparison),
        "errors": [dataclasses.asdict(failure) for failure in failures],
    }
    return to_json(content)


def comparison_csv(comparison: Comparison) -> str:
    """Return one table: models without p-values, then pairs without ranks."""
    header = [
        "model", "minus", "metric", "lens", "value", "standard_error", "low", "high", "confidence_level", "rank",
        "pvalue", "pvalue_holm", "distinguishable",
    ]  # fmt: skip
    metric_and_lens, level = (comparison.metric, comparison.lens), comparison.confidence_level
    models = [
        [m.model, "", *metric_and_lens, m.value, m.standard_error, *m.confidence_interval, level, m.rank, "", "", ""]
        for m in comparison.models
    ]
    pairs = [
        [
            d.first, d.second, *metric_and_lens, d.difference, d.standard_error, *d.confidence_interval, level, "",
            d.pvalue, d.pvalue_holm, d.distinguishable,
        ]
        for d in comparison.differences
    ]  # fmt: skip
    return write_csv([header, *models, *pairs])


def evaluations_json(models: Iterable[Model], failures: Iterable[Failure], arguments: argparse.Namespace) -> str:
    content = {
        "kcalib": __version__,
        "time": utc_time(),
        "machine": machine(),
        "versions": versions(),
        "level": arguments.level,
        "tolerance": arguments.tolerance,
        "seed": arguments.seed,
        "models": [
            {
                "model": model.model,
                "file": model.file,
                **dataclasses.asdict(model.evaluation),
                **({} if model.together is None else _of_labels(model.pvalue_holm, model.together)),
                **({} if model.classes is None else {"classes": model.classes}),
                **({} if model.rows is None else {"rows": model.rows}),
                **({} if model.groups is None else {"groups": dataclasses.asdict(model.groups)}),
                "confidence_interval": _interval(model),
            }
            for model in models
        ],
        "errors": [dataclasses.asdict(failure) for failure in failures],
    }
    return to_json(content)


def _of_labels(pvalue_holm: float | None, together: MultilabelEvaluation) -> dict[str, Any]:
    """Return the adjusted p-value of a label, and the means over all labels of its file."""
    means = {name: getattr(together, name) for name in ("accuracy", "log_loss", "brier_score", "top_label_ece")}
    return {"pvalue_holm": pvalue_holm, "means_over_labels": means}


def _interval(model: Model) -> ConfidenceInterval | None:
    """Return the interval of the SKCE at one minus the level of the verdict."""
    test, level = model.evaluation.test, model.evaluation.level
    return test.confidence_interval(1 - level) if test.has_interval else None


def to_json(content: Any) -> str:
    return json.dumps(without_infinity(content), indent=2, allow_nan=False) + "\n"


def without_infinity(value: Any) -> Any:
    """Return a value for JSON: NaN and infinity as None, a log p-value of -inf as "-Infinity", intervals as dicts."""
    if isinstance(value, ConfidenceInterval):
        value = value._asdict()
    if isinstance(value, dict):
        certain = {"log_pvalue": "-Infinity"} if value.get("log_pvalue") == -math.inf else {}
        return {key: without_infinity(entry) for key, entry in value.items()} | certain
    if isinstance(value, (list, tuple)):
        return [without_infinity(entry) for entry in value]
    if isinstance(value, np.ndarray):  # such as the curves of diagrams
        return without_infinity(value.tolist()) if value.size <= LONGEST else None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV, with an apostrophe before texts that a spreadsheet would run as a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in row])
    return text.getvalue()


def evaluations_csv(models: Sequence[Model]) -> str:
    kind = type(models[0].evaluation) if models else Evaluation
    fields = [field.name for field in dataclasses.fields(kind)]
    fields = fields[: fields.index("skce")]
    rows: list[Sequence[Any]] = [[
        "model", "file", *fields, "skce", "skce_standard_error", "skce_estimator", "kernel", "method", "statistic",
        "pvalue", "finding", "block_size", "n_blocks", "seed", "rms_error_lower", "level", "tolerance", "miscalibrated",
        "verdict", *(["pvalue_holm"] if models and models[0].together else []),
    ]]  # fmt: skip
    metrics = [dict(_number_cells(getattr(model.evaluation, "metrics", None) or {})) for model in models]
    names = list(dict.fromkeys(name for cells in metrics for name in cells))
    rows[0] = [*rows[0], *names]
    for model, cells in zip(models, metrics, strict=True):
        e = model.evaluation
        rows.append([
            model.model, printable(model.file), *(getattr(e, field) for field in fields),
            e.skce.value, e.skce.standard_error, e.skce.estimator, e.skce.kernel,
            e.test.method, e.test.statistic, e.test.pvalue, e.test.finding, e.test.block_size, e.test.n_blocks,
            e.test.seed, e.rms_error_lower, e.level, e.tolerance, e.miscalibrated, e.verdict,
            *([] if model.pvalue_holm is None else [model.pvalue_holm]), *(cells.get(name) for name in names),
        ])  # fmt: skip
    return write_csv(rows)


def _number_cells(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers in metrics by names such as "logistic_recalibration.slope_interval.low"."""
    if isinstance(value, (int, float)):
        yield name, value
    elif dataclasses.is_dataclass(value):
        shown = [field.name for field in dataclasses.fields(value) if field.repr]
        value = {
            field: getattr(value, field) for field in shown if field not in ("confidence_level", "n_samples", "seed")
        }
    elif isinstance(value, tuple):
        value = value._asdict() if isinstance(value, ConfidenceInterval) else dict(enumerate(value))
    for key, entry in value.items() if isinstance(value, dict) else ():
        yield from _number_cells(entry, f"{name}.{key}".removeprefix("."))
