"""`kcalib history`: the calibration of models over their releases, from what `kcalib evaluate --json` printed for each.

Files are read and checked here, and become `report.history.Release`s: rows of a table, of JSON or CSV, and a picture.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kcalib._backend.files import endless, printable
from kcalib._command.files import FileError
from kcalib._command.jobs import Failure, Job, collected, named
from kcalib._command.machine import finite
from kcalib._command.streams import BAD_INPUT, DONE, MISCALIBRATED, write
from kcalib._command.tables import shown_pvalue, tabulated, terminal_width, wrapped
from kcalib.report import figures
from kcalib.report.diagrams import require_matplotlib
from kcalib.report.history import Release, draw_history

# Numbers of a model beside its SKCE, by their names in JSON: the header, and how a table shows them.
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
BESIDE = ("top_label_ece", "crps")  # which of them a picture shows, the first that there is
MOST_MODELS = 20  # of a picture
LARGEST = sys.float_info.max
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
REMEDY = "give what `kcalib evaluate --json` prints"


def run_history(arguments: argparse.Namespace) -> int:
    failures: list[Failure] = []
    found: list[tuple[str, Release]] = []  # models and releases
    with collected(failures, str(arguments.plot)):
        if arguments.plot is not None:
            require_matplotlib()
    for job in named(arguments.files) if not failures else ():
        with collected(failures, job.file):
            found += _read(job)
    if failures:
        return BAD_INPUT
    models = _by_model(found, arguments.order)
    if arguments.plot is not None:
        with collected(failures, str(arguments.plot)):
            if len(models) > MOST_MODELS:
                raise ValueError(f"a picture holds at most {MOST_MODELS} models, and these files have {len(models)}")
            beside = {model: _beside(model, releases) for model, releases in models.items()}
            figures.save(lambda: draw_history(models, beside), arguments.plot, arguments.theme or "light")
    text = _json if arguments.json else _csv if arguments.csv else _report
    if not write(text(models)) or failures:
        return BAD_INPUT
    if arguments.fail_if_miscalibrated and any(releases[-1].miscalibrated for releases in models.values()):
        return MISCALIBRATED
    return DONE


def _read(job: Job) -> list[tuple[str, Release]]:
    """The models of a file."""
    if (what := endless(job.path)) is not None:
        raise FileError(f"is {what}, not a file; {REMEDY} into one")
    try:
        content = json.loads(job.path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileError(f"is no JSON ({error}); {REMEDY}") from None
    models = _entry(content, "models", list)
    if not models:
        raise FileError(f"holds no model, since evaluating failed; {REMEDY} where it succeeds")
    return [(_text(model, "model"), _release(job.model, content, model)) for model in models]


def _release(name: str, content: Any, model: Any) -> Release:
    time = _entry(content, "time", str)
    if not TIME.fullmatch(time):
        raise FileError(f"`time` is {time[:40]!r}, expected such as 2026-01-31T12:00:00Z; {REMEDY}")
    skce, test = _entry(model, "skce", dict), _entry(model, "test", dict)
    interval = _entry(model, "confidence_interval", dict, None)
    return Release(
        name=name,
        time=time,
        kcalib=_text(content, "kcalib"),
        machine=_text(content, "machine"),
        numbers={"n_samples": _count(model, "n_samples")}
        | {number: _number(model, number) for number in NUMBERS if number in model and number != "n_samples"},
        skce=_value(skce, "value"),
        standard_error=_number(skce, "standard_error"),
        confidence_interval=None if interval is None else (_value(interval, "low"), _value(interval, "high")),
        pvalue=_value(test, "pvalue"),
        kernel=_text(skce, "kernel"),
        estimator=_text(skce, "estimator"),
        level=_value(model, "level"),
        miscalibrated=_entry(model, "miscalibrated", bool),
        verdict=_text(model, "verdict"),
    )


def _entry(content: Any, key: str, *kinds: Any) -> Any:
    """An entry of one of the kinds; None among them stands for null."""
    if not isinstance(content, dict) or key not in content:
        raise FileError(f"has no `{key}` where an evaluation has one; {REMEDY}")
    value = content[key]
    known = tuple(kind for kind in kinds if kind is not None)
    if not isinstance(value, known) and not (value is None and None in kinds):
        raise FileError(f"`{key}` is {json.dumps(value)[:40]}, which no evaluation has; {REMEDY}")
    return value


def _text(content: Any, key: str) -> str:
    """In one line that no terminal obeys."""
    return printable(_entry(content, key, str))


def _number(content: Any, key: str) -> float | None:
    value: float | None = _entry(content, key, int, float, None)
    if isinstance(value, bool) or (value is not None and not -LARGEST <= value <= LARGEST):
        raise FileError(f"`{key}` is {json.dumps(value)[:40]}, which no evaluation has; {REMEDY}")
    return value


def _count(content: Any, key: str) -> int:
    _entry(content, key, int)
    count = _value(content, key)
    assert isinstance(count, int)
    return count


def _value(content: Any, key: str) -> float:
    value = _number(content, key)
    if value is None:
        raise FileError(f"`{key}` is null, where an evaluation has a number; {REMEDY}")
    return value


def _by_model(found: Sequence[tuple[str, Release]], order: str) -> dict[str, list[Release]]:
    """The releases of each model; where each file holds one model, they are of one, whatever each is called."""
    names = dict.fromkeys(model for model, _ in found)
    one = len({release.name for _, release in found}) == len(found)
    models: dict[str, list[Release]] = {name: [] for name in (["model"] if one and len(names) > 1 else names)}
    for model, release in found:
        models["model" if model not in models else model].append(release)
    if order == "time":
        for releases in models.values():
            releases.sort(key=lambda release: release.time)
    return models


def _beside(model: str, releases: Sequence[Release]) -> tuple[str, str]:
    for number in BESIDE:
        if all(number in release.numbers for release in releases):
            return number, NUMBERS[number][0]
    raise ValueError(
        f"a picture shows {' or '.join(BESIDE)} beside the SKCE, and not all releases of {model} have the same one; "
        "draw those of classifiers and of predicted distributions by themselves"
    )


def _report(models: Mapping[str, Sequence[Release]]) -> str:
    width = terminal_width()
    parts = []
    for model, releases in models.items():
        title = f"{model}\n" if len(models) > 1 else ""
        shown = [number for number in NUMBERS if any(one.numbers.get(number) is not None for one in releases)]
        parts.append(title + tabulated([_row(release, shown) for release in releases], width))
    remarks = [remark for model, releases in models.items() for remark in _remarks(model, releases)]
    if remarks:
        parts.append("".join(line + "\n" for line in wrapped(remarks, min(width, 120))))
    return "\n".join(parts)


def _row(release: Release, shown: Sequence[str]) -> dict[str, str]:
    row = {"release": release.name, "evaluated": release.time[:10]}
    for number in shown:
        header, form = NUMBERS[number]
        value = release.numbers.get(number)
        row[header] = "-" if value is None else format(value, form)
    error = release.standard_error
    return row | {
        "SKCE": f"{release.skce:.2e}",
        "std. error": "-" if error is None else f"{error:.2e}",
        "p-value": shown_pvalue(release.pvalue),
        "verdict": release.verdict,
    }


def _remarks(model: str, releases: Sequence[Release]) -> Iterator[str]:
    """When the verdict changed, and what makes numbers of two releases incomparable."""
    for before, after in itertools.pairwise(releases):
        if before.miscalibrated != after.miscalibrated:
            what = "miscalibrated" if after.miscalibrated else "no longer miscalibrated"
            yield f"{model}: {what} since {after.name}"
    varies: list[tuple[str, Callable[[Release], Any], str]] = [
        ("kernels", lambda one: one.kernel, "SKCEs are comparable for one kernel: give evaluate --bandwidth"),
        ("estimators", lambda one: one.estimator, "give evaluate --estimator"),
        ("levels", lambda one: one.level, "verdicts are comparable at one level: give evaluate --level"),
        ("numbers of samples", lambda one: one.numbers["n_samples"], "small errors are seen in large samples only"),
        ("versions of kcalib", lambda one: one.kcalib, "see its changelog"),
    ]
    for what, of, remedy in varies:
        values = list(dict.fromkeys(of(release) for release in releases))
        if len(values) > 1:
            some = ", ".join(map(str, [*values[:3], "..."] if len(values) > 3 else values))
            yield f"{model}: {what} differ ({some}); {remedy}"


def _json(models: Mapping[str, Sequence[Release]]) -> str:
    content = {model: [dataclasses.asdict(release) for release in releases] for model, releases in models.items()}
    return json.dumps(finite({"models": content}), indent=2, allow_nan=False) + "\n"


def _csv(models: Mapping[str, Sequence[Release]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [name for name in NUMBERS if any(name in one.numbers for some in models.values() for one in some)]
    writer.writerow([
        "model", "release", "time", "kcalib", "machine", *numbers, "skce", "skce_standard_error", "low", "high",
        "pvalue", "kernel", "estimator", "level", "miscalibrated", "verdict",
    ])  # fmt: skip
    for model, releases in models.items():
        for one in releases:
            writer.writerow([
                model, one.name, one.time, one.kcalib, one.machine, *(one.numbers.get(name) for name in numbers),
                one.skce, one.standard_error, *(one.confidence_interval or (None, None)),
                one.pvalue, one.kernel, one.estimator, one.level, one.miscalibrated, one.verdict,
            ])  # fmt: skip
    return text.getvalue()
