"""`kcalib history`: the calibration of models over their releases, from output of `kcalib evaluate --json`."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

from kcalib._backend.files import describe_special_file, printable
from kcalib._command.jobs import Failure, Job, collect_failures, make_jobs
from kcalib._command.machine import to_json, write_csv
from kcalib._command.streams import BAD_INPUT, DONE, MISCALIBRATED, write
from kcalib._command.tables import format_table, terminal_width, wrap_lines
from kcalib._input.columns import FileError
from kcalib.report import figures
from kcalib.report.diagrams import require_matplotlib
from kcalib.report.figures import Release, draw_history
from kcalib.report.summary import format_pvalue

# Numbers by their names in JSON: header and format in the table.
NUMBERS = {
    "n_samples": ("n", "d"),
    "accuracy": ("accuracy", ".4f"),
    "rmse": ("RMSE", ".4g"),
    "crps": ("CRPS", ".4g"),
    "log_score": ("log score", ".4f"),
    "log_loss": ("log loss", ".4f"),
    "brier_score": ("Brier", ".4f"),
    "top_label_ece": ("ECE", ".4f"),
    "interval_coverage": ("in 90 %", ".4f"),
}
MOST_MODELS = 20  # in a picture
REMEDY = "give the output of `kcalib evaluate --json`"


def run_history(arguments: argparse.Namespace) -> int:
    failures: list[Failure] = []
    evaluations: list[tuple[str, Release]] = []  # models and releases
    with collect_failures(failures, str(arguments.plot)):
        if arguments.plot is not None:
            require_matplotlib()
    for job in make_jobs(arguments.files) if not failures else ():
        with collect_failures(failures, job.file):
            evaluations += _read(job)
    if failures:
        return BAD_INPUT
    models = _by_model(evaluations, arguments.order)
    if arguments.plot is not None:
        with collect_failures(failures, str(arguments.plot)):
            if len(models) > MOST_MODELS:
                raise ValueError(
                    f"--plot draws at most {MOST_MODELS} models, but there are {len(models)}; name fewer files"
                )
            scores = {model: _score(model, releases) for model, releases in models.items()}
            figures.save(lambda: draw_history(models, scores), arguments.plot, arguments.theme or "light")
    text = _json if arguments.json else _csv if arguments.csv else _report
    if not write(text(models)) or failures:
        return BAD_INPUT
    if arguments.fail_if_miscalibrated and any(releases[-1].miscalibrated for releases in models.values()):
        return MISCALIBRATED
    return DONE


def _read(job: Job) -> list[tuple[str, Release]]:
    """Return the models of a file."""
    if (kind := describe_special_file(job.path)) is not None:
        raise FileError(f"is {kind}, not a file; give a file with the output of `kcalib evaluate --json`")
    try:
        content = json.loads(job.path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileError(f"is not JSON ({error}); {REMEDY}") from None
    models = _entry(content, "models", list)
    if not models:
        raise FileError("holds no model, because the evaluation failed; repeat `kcalib evaluate --json`")
    return [(_text(model, "model"), _release(job.model, content, model)) for model in models]


def _release(name: str, content: Any, model: Any) -> Release:
    time = _entry(content, "time", str)
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time, re.ASCII):
        raise FileError(f"`time` is {time[:40]!r}, expected a time such as 2026-01-31T12:00:00Z; {REMEDY}")
    skce, test = _entry(model, "skce", dict), _entry(model, "test", dict)
    interval = _entry(model, "confidence_interval", dict, NoneType)
    return Release(
        name=name,
        time=time,
        kcalib=_text(content, "kcalib"),
        machine=_text(content, "machine"),
        numbers={"n_samples": _entry(model, "n_samples", int)}
        | {number: _entry(model, number, int, float, NoneType) for number in NUMBERS if number in model},
        skce=_number(skce, "value"),
        standard_error=_entry(skce, "standard_error", int, float, NoneType),
        confidence_interval=None if interval is None else (_number(interval, "low"), _number(interval, "high")),
        pvalue=_number(test, "pvalue"),
        kernel=_text(skce, "kernel"),
        estimator=_text(skce, "estimator"),
        level=_number(model, "level"),
        miscalibrated=_entry(model, "miscalibrated", bool),
        verdict=_text(model, "verdict"),
    )


def _entry(content: Any, key: str, *kinds: type) -> Any:
    """Return an entry of one of the kinds; numbers must be finite."""
    if not isinstance(content, dict) or key not in content:
        raise FileError(f"has no entry `{key}`; {REMEDY}")
    value = content[key]
    is_infinite = isinstance(value, int | float) and not abs(value) <= sys.float_info.max
    if not isinstance(value, kinds) or is_infinite or (isinstance(value, bool) and bool not in kinds):
        value_text = json.dumps(value)[:40]
        raise FileError(f"`{key}` is {value_text}, which no evaluation has; {REMEDY}")
    return value


def _text(content: Any, key: str) -> str:
    return printable(_entry(content, key, str))


def _number(content: Any, key: str) -> float:
    return float(_entry(content, key, int, float))


def _by_model(evaluations: Sequence[tuple[str, Release]], order: str) -> dict[str, list[Release]]:
    """Return the releases of each model; if every file holds one model, all are releases of the same model."""
    is_one_each = len({release.name for _, release in evaluations}) == len(evaluations)
    has_one_name = len({model for model, _ in evaluations}) == 1
    models: dict[str, list[Release]] = {}
    for model, release in evaluations:
        models.setdefault("model" if is_one_each and not has_one_name else model, []).append(release)
    if order == "time":
        for releases in models.values():
            releases.sort(key=lambda release: release.time)
    return models


def _score(model: str, releases: Sequence[Release]) -> tuple[str, str]:
    """Return the number that the picture shows next to the SKCE, and its label."""
    for number in ("top_label_ece", "crps"):
        if all(number in release.numbers for release in releases):
            return number, NUMBERS[number][0]
    raise ValueError(
        f"--plot shows top_label_ece or crps, but the releases of {model} do not all have the same one; plot "
        "classifiers and regression models separately"
    )


def _report(models: Mapping[str, Sequence[Release]]) -> str:
    width = terminal_width()
    parts = []
    for model, releases in models.items():
        title = f"{model}\n" if len(models) > 1 else ""
        numbers = [number for number in NUMBERS if any(release.numbers.get(number) is not None for release in releases)]
        parts.append(title + format_table([_row(release, numbers) for release in releases], width))
    remarks = [remark for model, releases in models.items() for remark in _remarks(model, releases)]
    if remarks:
        parts.append("".join(line + "\n" for line in wrap_lines(remarks, min(width, 120))))
    return "\n".join(parts)


def _row(release: Release, numbers: Sequence[str]) -> dict[str, str]:
    row = {"release": release.name, "evaluated": release.time[:10]}
    for number in numbers:
        header, form = NUMBERS[number]
        value = release.numbers.get(number)
        row[header] = "-" if value is None else format(value, form)
    error = release.standard_error
    return row | {
        "SKCE": f"{release.skce:.2e}",
        "std. error": "-" if error is None else f"{error:.2e}",
        "p-value": format_pvalue(release.pvalue),
        "verdict": release.verdict,
    }


def _remarks(model: str, releases: Sequence[Release]) -> Iterator[str]:
    """Describe changes of the verdict, and what makes releases incomparable."""
    for before, after in itertools.pairwise(releases):
        if before.miscalibrated != after.miscalibrated:
            change = "miscalibrated" if after.miscalibrated else "no longer miscalibrated"
            yield f"{model}: {change} since {after.name}"
    varies: dict[str, tuple[list[Any], str]] = {
        "kernels": ([r.kernel for r in releases], "SKCEs are comparable for equal kernels: use evaluate --bandwidth"),
        "estimators": ([r.estimator for r in releases], "use evaluate --method"),
        "levels": ([r.level for r in releases], "verdicts are comparable at equal levels: use evaluate --level"),
        "numbers of samples": ([r.numbers["n_samples"] for r in releases], "small errors show in large samples only"),
        "versions of kcalib": ([r.kcalib for r in releases], "see the changelog"),
    }
    for quantity, (values, remedy) in varies.items():
        values = list(dict.fromkeys(values))
        if len(values) > 1:
            few = ", ".join(map(str, [*values[:3], "..."] if len(values) > 3 else values))
            yield f"{model}: {quantity} differ ({few}); {remedy}"


def _json(models: Mapping[str, Sequence[Release]]) -> str:
    content = {model: [dataclasses.asdict(release) for release in releases] for model, releases in models.items()}
    return to_json({"models": content})


def _csv(models: Mapping[str, Sequence[Release]]) -> str:
    numbers = [
        name for name in NUMBERS if any(name in release.numbers for releases in models.values() for release in releases)
    ]
    rows: list[Sequence[Any]] = [[
        "model", "release", "time", "kcalib", "machine", *numbers, "skce", "skce_standard_error", "low", "high",
        "pvalue", "kernel", "estimator", "level", "miscalibrated", "verdict",
    ]]  # fmt: skip
    for model, releases in models.items():
        for r in releases:
            rows.append([
                model, r.name, r.time, r.kcalib, r.machine, *(r.numbers.get(name) for name in numbers),
                r.skce, r.standard_error, *(r.confidence_interval or (None, None)),
                r.pvalue, r.kernel, r.estimator, r.level, r.miscalibrated, r.verdict,
            ])  # fmt: skip
    return write_csv(rows)
