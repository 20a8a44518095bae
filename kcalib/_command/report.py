"""`kcalib report`: an HTML page about models."""

from __future__ import annotations

import argparse
import shlex
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from kcalib._backend.files import printable, write_whole
from kcalib._command.arguments import make_kernel
from kcalib._command.evaluate import evaluate_data, make_options, make_panels
from kcalib._command.jobs import (
    Failure,
    Model,
    check_no_states,
    check_reading,
    collect_failures,
    make_jobs,
    note_unused,
    read_data,
    read_log,
)
from kcalib._command.kinds import check_options
from kcalib._command.streams import BAD_INPUT, DONE, MISCALIBRATED, format_error, show_progress, write
from kcalib._command.streams import report as write_note
from kcalib._input.columns import FileError
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib.inference.calibration_test import calibration_test
from kcalib.inference.compare import comparison_of
from kcalib.inference.metrics.measured import SharedOptions
from kcalib.inference.metrics.scores import CRPS, BrierScore
from kcalib.inference.metrics.skce import SKCE
from kcalib.lenses import Canonical
from kcalib.recalibration import Choice, choose, save
from kcalib.recalibration.choice import AS_GIVEN, CHOSEN
from kcalib.report import evaluations
from kcalib.report.diagrams import require_matplotlib
from kcalib.report.figures import Panel, draw_panels, make_captions
from kcalib.report.laws import draw_intervals
from kcalib.report.page import Section, document, escape, paragraph, row, svg, table
from kcalib.results import Comparison

MOST_PANELS = 30  # on a page, which then stays below a megabyte
N_CLASSES = 8  # with a diagram
MAX_SECONDS = 60.0  # for choosing the recalibrator of a model
SIMPLE = "temperature"  # a map with one parameter


def run_report(arguments: argparse.Namespace) -> int:
    jobs = list(make_jobs(arguments.files))
    check_no_states(jobs, arguments)
    if arguments.output.suffix.lower() not in (".html", ".htm"):
        arguments.usage_error(f"--output is {str(arguments.output)!r}, expected a file name that ends in .html")
    if arguments.save_map is not None:
        if len(jobs) > 1 or not arguments.repair or not (arguments.confidence or arguments.lens == Canonical()):
            arguments.usage_error("--save-map is for one FILE, without --lens and --no-repair; leave them out")
        if arguments.save_map.suffix.lower() != ".json":
            arguments.usage_error(f"--save-map is {str(arguments.save_map)!r}, expected a file name that ends in .json")
    reading, options = check_reading(arguments), make_options(arguments)
    n_classes = N_CLASSES if arguments.plot_classes is None else arguments.plot_classes
    n_classes = min(n_classes, max(0, MOST_PANELS // len(jobs) - 1))
    drawing = argparse.Namespace(**vars(arguments) | {"plot_classes": n_classes})
    failures: list[Failure] = []
    first: Data | None = None
    models: list[Model] = []
    data_by_model: dict[str, Data] = {}
    show_progress(f"{len(jobs)} file{'s' if len(jobs) > 1 else ''} to evaluate and repair")
    with collect_failures(failures, str(arguments.output)):
        require_matplotlib()
    for job in jobs if not failures else ():
        show_progress(f"{job.model}: evaluating")
        with collect_failures(failures, job.file), read_data(job, arguments.threads, reading) as data:
            if (log := read_log(job, reading)) is not None and log.clusters is not None:
                raise FileError("holds predictions of tokens, which depend on each other; use `kcalib evaluate`")
            note_unused(job, reading)
            check_options(data, arguments)
            with suppress(ValueError):  # different classes: the models are not compared
                data = data.in_order_of(first := data if first is None else first)
            data_by_model[job.model] = arguments.lens.induced(data)
            models.append(evaluate_data(job, drawing, data_by_model[job.model], options, drawn=True))
    if failures:
        return BAD_INPUT
    with collect_failures(failures, str(arguments.output)):
        page = _page(models, data_by_model, arguments).encode()
        write_whole(arguments.output, page)
        show_progress()
        content = f"{len(models)} model{'s' if len(models) > 1 else ''}, {len(page) >> 10} KiB"
    if failures or not write(f"{printable(str(arguments.output))}: {content}\n"):
        return BAD_INPUT
    if arguments.fail_if_miscalibrated and any(model.evaluation.miscalibrated for model in models):
        return MISCALIBRATED
    return DONE


def _page(models: Sequence[Model], data_by_model: Mapping[str, Data], arguments: argparse.Namespace) -> str:
    evaluated = {model.model: model.evaluation for model in models}
    sections = [
        evaluations.numbers(evaluated),
        _diagrams(models),
        evaluations.tests(evaluated),
        _comparisons(data_by_model, arguments),
        Section("Can it be repaired?", _repairs(data_by_model, arguments) if arguments.repair else []),
        evaluations.repeated(evaluated, "kcalib " + shlex.join(arguments.command_line)),
    ]
    subject = models[0].model if len(models) == 1 else f"{len(models)} models"
    return document(
        f"Calibration of {subject}", evaluations.verdicts(evaluated), [section for section in sections if section.parts]
    )


def _diagrams(models: Sequence[Model]) -> Section:
    show_progress("drawing diagrams")
    panels = {model.model: make_panels(model) for model in models}
    parts = [_row([first for first, *_ in panels.values()])]
    for name, (_, *classes) in panels.items():
        if classes:
            noun = "classes" if len(classes) > 1 else "class"
            parts.append(paragraph(f"{name}: the {noun} with the largest errors", "small"))
            parts.append(_row([replace(panel, model=panel.model.removeprefix(f"{name}: ")) for panel in classes]))
    all_panels = [panel for group in panels.values() for panel in group]
    return Section("Where is it off?", [*parts, *(paragraph(text, "small") for text in make_captions(all_panels))])


def _row(panels: Sequence[Panel]) -> str:
    """Return a row with a picture of each panel; a narrow page wraps it."""
    return row([svg(partial(draw_panels, [panel], captioned=False), f"diagram of {panel.model}") for panel in panels])


def _comparisons(data_by_model: Mapping[str, Data], arguments: argparse.Namespace) -> Section:
    """Compare models on the same samples by the SKCE and by a proper score."""
    parts: list[str] = []
    if len(data_by_model) > 1:
        show_progress("comparing the models")
        first_name, first = next(iter(data_by_model.items()))
        for data in data_by_model.values():
            reason = "models are of several kinds" if data.noun != first.noun else data.mismatch(first, first_name)
            if reason is not None:
                parts.append(paragraph(f"The models are not compared: {reason}", "small"))
                return Section("Which is better?", parts)
        for metric in (
            SKCE(make_kernel(arguments)),
            CRPS(bool(arguments.fair)) if isinstance(first, Forecasts) else BrierScore(),
        ):
            options = SharedOptions(threads=arguments.threads, seed=arguments.seed)
            comparison = comparison_of(data_by_model, metric, 1 - arguments.level, options)
            parts += _comparison(comparison)
    return Section("Which is better?", parts)


def _comparison(comparison: Comparison) -> list[str]:
    level = f"{100 * comparison.confidence_level:g} %"
    pairs = [
        [
            f"{d.first} less {d.second}", f"{d.difference:.3g}",
            f"{d.confidence_interval.low:.3g} to {d.confidence_interval.high:.3g}", f"{d.pvalue_holm:.2g}",
        ]
        for d in comparison.differences
    ]  # fmt: skip
    header = [comparison.metric, "difference", f"{level} interval", "p (Holm)"]
    return [
        svg(partial(draw_intervals, comparison), f"{comparison.metric} of each model with its interval"),
        table(header, pairs),
        *(paragraph(text, "small") for text in comparison.remarks()),
    ]


def _repairs(data_by_model: Mapping[str, Data], arguments: argparse.Namespace) -> list[str]:
    parts = []
    for name, data in data_by_model.items():
        show_progress(f"{name}: fitting recalibrators")
        # At most 500,000 probabilities of 10,000 samples.
        n = min(data.n, 10_000, max(1000, 500_000 // data.m) if isinstance(data, Classification) else data.n)
        rows = np.sort(np.random.default_rng(arguments.seed).permutation(data.n)[:n])
        y, y_pred = data.take(rows).as_given()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                choice = choose(y, y_pred, seed=arguments.seed, max_seconds=MAX_SECONDS)
            except TimeoutError:
                reason = (
                    f"it would take longer than {MAX_SECONDS:g} s; use kcalib.recalibration.choose, which has no limit"
                )
                parts.append(paragraph(f"{name}: no recalibration was tried: {reason}", "small"))
                continue
            except (ValueError, TypeError, NotImplementedError) as error:
                parts.append(paragraph(f"{name}: no recalibration was tried: {format_error(error)}", "small"))
                continue
        if arguments.save_map is not None:
            _save_map(choice, data, arguments.save_map)
        score = choice.score.replace("_", " ")
        effects = [_describe_gain(choice, n)]
        if choice.predictions is not None and choice.name != AS_GIVEN:
            test = calibration_test(y, choice.predictions, seed=arguments.seed, threads=arguments.threads)
            outcome = "still fails" if test.pvalue < arguments.level else "passes"
            effects.append(f"Repaired by fits to the other folds, it {outcome} the test (p = {test.pvalue:.2g}).")
        parts.append(f"<p><strong>{escape(name)}</strong>: {escape(' '.join(effects))}</p>")
        table_rows = [[m, f"{choice.comparison.model(m).value:.5g}"] for m in choice.comparison.ranking]
        parts.append(table(["predictions", score], table_rows))
        # Fits to different folds give the same warning with different numbers.
        kinds = {warning.category: str(warning.message) for warning in warned}
        parts += [paragraph(reason, "small") for reason in kinds.values()]
    return parts


def _save_map(choice: Choice, data: Data, path: Path) -> None:
    """Write the chosen recalibrator with the classes of the file."""
    if choice.recalibrator is None:
        write_note(f"no map is written to {printable(str(path))}: no recalibration is clearly better than none")
        return
    if isinstance(data, Classification):
        choice.recalibrator.classes_ = data.class_names
    save(choice.recalibrator, path)


def _describe_gain(choice: Choice, n_samples: int) -> str:
    gain = choice.comparison.difference(CHOSEN, AS_GIVEN)
    low, high = (limit + 0.0 for limit in gain.confidence_interval)  # no -0
    score, is_clear = choice.score.replace("_", " "), high < 0
    if choice.name == AS_GIVEN:
        effect = f"no recalibration has a lower {score}; that of the choice changes by {gain.difference + 0.0:.2g}"
    elif is_clear:
        effect = f"{choice.name} recalibration lowers the {score} by {-gain.difference:.3g}"
    else:
        effect = (
            f"{choice.name} recalibration has the lowest {score}, but the gain of the choice is not significant: it "
            f"changes by {gain.difference:.2g}"
        )
    effect += (
        f", 95 % interval of the change {low:.3g} to {high:.3g}, in a {choice.n_folds}-fold cross-validation of the "
        f"choice on {n_samples:,} samples."
    )
    if is_clear and choice.name not in (AS_GIVEN, SIMPLE) and SIMPLE in choice.comparison.ranking:
        share = choice.comparison.difference(SIMPLE, AS_GIVEN).difference / gain.difference
        effect += f" The {SIMPLE} alone, a single parameter, gains {100 * max(share, 0.0):.0f} % of that."
    return effect
