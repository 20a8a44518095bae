"""`kcalib evaluate` and `kcalib demo`: evaluate each file separately."""

from __future__ import annotations

import argparse
import importlib.resources
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from kcalib._backend.files import printable
from kcalib._command.arguments import make_kernel
from kcalib._command.files import open_file
from kcalib._command.jobs import (
    Failure,
    Job,
    Model,
    add_weights,
    check_no_states,
    check_reading,
    check_same_kind,
    check_tables,
    collect_failures,
    find_clusters,
    make_jobs,
    read_column,
    read_data,
    read_log,
    translate_errors,
)
from kcalib._command.kinds import check_options, check_plotting, draw_data
from kcalib._command.machine import evaluations_csv, evaluations_json
from kcalib._command.method_options import flag, make_method
from kcalib._command.parallel import check_parallel, open_parallel, with_workers
from kcalib._command.streamed import check_streaming, evaluate_in_chunks, option_that_needs_all, reads_in_chunks
from kcalib._command.streams import BAD_INPUT, DONE, MISCALIBRATED, write
from kcalib._command.tables import evaluations_report
from kcalib._input.columns import FileError
from kcalib._input.data import Data
from kcalib._input.forecasts import prepare
from kcalib._input.groupings import read_given
from kcalib._input.labels import Classification
from kcalib._input.parameters import STD_NAMES
from kcalib.evaluation import evaluate, evaluation_of, join_labels, split_labels
from kcalib.evaluation_results import Evaluation
from kcalib.inference.adaptive.clusters import clusters_of
from kcalib.inference.adaptive.groups import WorstGroups, find_worst_groups, worst_groups
from kcalib.inference.verdict import shown_at_least
from kcalib.lenses import Canonical, TopLabel
from kcalib.report import figures
from kcalib.report.summary import format_pvalue
from kcalib.streaming.forecast_tables.hub import FIELDS
from kcalib.streaming.forecast_tables.reading import read_forecasts
from kcalib.streaming.forecast_tables.results import CROSSING, ModelForecasts
from kcalib.streaming.forecast_tables.table import TABLES, read_file
from kcalib.streaming.forecast_tables.wide import find_quantiles
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE


def run_evaluate(arguments: argparse.Namespace) -> int:
    jobs = list(make_jobs(arguments.files))
    check_no_states(jobs, arguments)
    if arguments.by and arguments.csv and arguments.targets is None:
        arguments.usage_error("--by does not go with --csv, which prints a single table; use --json")
    for name in ("confidence", "lens", "tolerance", "by", "normalize") if arguments.multilabel else ():
        if getattr(arguments, name) not in (None, False, [], Canonical()):
            arguments.usage_error(f"{flag(name)} does not go with --multilabel; leave it out")
    if arguments.checkpoint is not None and len(arguments.files) > 1:
        arguments.usage_error(
            f"--checkpoint is for one file, but {len(arguments.files)} are given; evaluate each alone"
        )
    reading = check_reading(arguments)
    if arguments.parallel is None:
        check_streaming(arguments, option_that_needs_all(arguments))
        return _run(arguments, jobs, reading)
    check_parallel(arguments)
    return with_workers(arguments, lambda: _run(arguments, jobs, reading))


def run_demo(arguments: argparse.Namespace) -> int:
    with ExitStack() as stack:
        files = sorted((importlib.resources.files("kcalib") / "data").iterdir(), key=lambda file: file.name)
        jobs = [
            Job(
                file.name.removeprefix("digits_").removesuffix(".npz"),
                str(file),
                stack.enter_context(importlib.resources.as_file(file)),
            )
            for file in files
            if file.name.startswith("digits_") and file.name.endswith(".npz")
        ]
        return _run(arguments, jobs, {})


def _run(arguments: argparse.Namespace, jobs: Sequence[Job], reading: dict[str, Any]) -> int:
    # The demo sets stream=False: it has no options of reading in chunks.
    unable = None if arguments.stream is not None else option_that_needs_all(arguments)
    streams = [arguments.parallel is None and reads_in_chunks([job], arguments, unable) for job in jobs]
    options = {} if all(streams) else make_options(arguments)
    models: list[Model] = []
    failures: list[Failure] = []

    with collect_failures(failures, str(arguments.plot)):
        check_plotting(arguments)
    for job, in_pieces in zip(jobs, streams, strict=True) if not failures else ():
        with collect_failures(failures, job.file):
            if arguments.multilabel:
                models += evaluate_labels(job, arguments, options, reading)
                continue
            if reads_forecasts(job, arguments, reading):
                models += evaluate_forecasts(job, arguments, models, options, reading, failures)
                continue
            log = read_log(job, reading)
            if log is not None and log.clusters is not None and not in_pieces:
                models.append(evaluate_tokens(job, arguments, log))
            elif in_pieces:
                models.append(evaluate_in_chunks(job, arguments, models))
            else:
                with read_data(job, arguments.threads, reading) as data:
                    check_same_kind(data.noun, models, arguments)
                    check_options(data, arguments)
                    data = add_weights(job, arguments, data, reading)
                    lens_data = arguments.lens.induced(data)
                    all_options = options | read_samples(job, arguments, data, reading)
                    model = evaluate_data(job, arguments, lens_data, all_options, drawn=arguments.plot is not None)
                    models.append(replace(model, groups=find_groups(job, arguments, lens_data, reading)))
            if log is not None:
                models[-1] = replace(models[-1], rows=log.describe_rows())
    return write_results(models, failures, arguments)


def evaluate_tokens(job: Job, arguments: argparse.Namespace, log: ModelForecasts) -> Model:
    """Evaluate predictions of tokens; each text is a cluster unless --clusters is given."""
    if arguments.weights is not None or arguments.given or arguments.time_blocks is not None:
        raise FileError("holds predictions of tokens, which have no --weights, --given or --time-blocks; leave it out")
    names = ("level", "tolerance", "kernel", "method", "seed", "threads")
    options = {name: value for name, value in make_options(arguments).items() if name in names}
    shared = {"lens": None if arguments.lens == Canonical() else arguments.lens, "threads": arguments.threads}
    with translate_errors():
        clusters = log.clusters if arguments.clusters is None else log.column(arguments.clusters)
        evaluation = evaluate(log.y_true, log.y_pred, clusters=clusters, **options | shared)
        by, drawn = {name: log.column(name) for name in arguments.by}, arguments.plot is not None
        for name, column in by.items():
            if len(set(zip(log.column("text").tolist(), column.tolist(), strict=True))) < log.n_samples:
                raise FileError(
                    f"--by {name} has several tokens of a text in a group, but tests of groups need independent "
                    "samples; give --by position, or evaluate a file for each group"
                )
        groups = worst_groups(log.y_true, log.y_pred, by, seed=arguments.seed, **shared) if by else None
        picture = draw_data(prepare(log.y_true, log.y_pred, lens=TopLabel()), arguments) if drawn else None
    return Model(job.model, job.file, Classification.noun, evaluation, picture, groups)


def evaluate_labels(
    job: Job, arguments: argparse.Namespace, options: dict[str, Any], reading: dict[str, Any]
) -> list[Model]:
    """Evaluate each label of a file as a binary problem, and adjust the p-values over all labels."""
    models: list[Model] = []
    with translate_errors():
        samples = open_file(str(job.path), reading | {"multilabel": True})
        layout, block = samples.layout, samples.read_unchecked()
        if layout.family is not None:
            raise FileError("holds predicted distributions, but --multilabel is for class probabilities; leave it out")
        checks = {"classes": layout.classes, "from_logits": layout.from_logits, "threads": arguments.threads}
        names, problems = split_labels(block[Y_TRUE], block[Y_PRED], **checks)
        for name, problem in zip(names, problems, strict=True):
            data = add_weights(job, arguments, problem, reading)
            label = replace(job, model=printable(f"{job.model}: {name}"))
            of_samples = read_samples(job, arguments, data, reading)
            models.append(evaluate_data(label, arguments, data, options | of_samples, drawn=arguments.plot is not None))
        together = join_labels(names, [cast(Evaluation, model.evaluation) for model in models])
    adjusted = zip(models, together.evaluations, together.pvalues_holm, strict=True)
    return [replace(model, evaluation=e, pvalue_holm=p, together=together) for model, e, p in adjusted]


def reads_forecasts(job: Job, arguments: argparse.Namespace, reading: dict[str, Any]) -> bool:
    """Return whether a file is a forecast table: by --targets, or by its header if no option says how to read it."""
    if arguments.targets is not None:
        return True
    if any(reading.values()) or job.path.suffix.lower() not in TABLES:
        return False
    names = next(read_file(job.path), {})
    return FIELDS[0] in names or (not set(STD_NAMES) & set(names) and bool(find_quantiles(names)))


def evaluate_forecasts(
    job: Job, arguments: argparse.Namespace, others: Sequence[Model], options: dict[str, Any], reading: dict[str, Any],
    failures: list[Failure],
) -> list[Model]:  # fmt: skip
    """Evaluate each model in a forecast table, and its groups by the columns of --by."""
    check_tables(arguments, reading)
    models: list[Model] = []
    with translate_errors():
        tables = read_forecasts(job.path, arguments.targets, sort_quantiles=arguments.sort_quantiles)
        parts = [part for table in tables for part in (table, *(table.split(*arguments.by) if arguments.by else ()))]
    for part in parts:
        name = part.model if len(arguments.files) == 1 or part.model == job.model else f"{job.model}: {part.model}"
        with collect_failures(failures, name):
            if part.y_true is None:
                remedy = "sort them by --sort-quantiles" if CROSSING in part.unused else "check --targets"
                raise FileError(f"no forecast can be evaluated: {part.describe_rows()}; {remedy}")
            with translate_errors():
                data = prepare(part.y_true, part.y_pred, threads=arguments.threads)
                check_same_kind(data.noun, [*others, *models], arguments)
                check_options(data, arguments)
                if arguments.time_blocks is not None:
                    part.check_one_series()
                clusters = None if arguments.clusters is None else part.column(arguments.clusters)
                of_samples: dict[str, Any] = {"clusters": clusters_of(clusters, arguments.time_blocks, data.n)}
                if arguments.given:
                    of_samples["given"] = read_given({name: part.column(name) for name in arguments.given}, data.n)
                named, data = replace(job, model=printable(name)), arguments.lens.induced(data)
                model = evaluate_data(named, arguments, data, options | of_samples, drawn=arguments.plot is not None)
            models.append(replace(model, rows=part.describe_rows() if part in tables else None))
    return models


def write_results(models: Sequence[Model], failures: list[Failure], arguments: argparse.Namespace) -> int:
    """Write the picture and the table, and return the exit code."""
    if arguments.plot is not None and models:
        with collect_failures(failures, str(arguments.plot)):
            panels = [panel for model in models for panel in make_panels(model)]
            figures.plot_reliability(panels, arguments.plot, arguments.theme or "light")

    if arguments.json:
        text = evaluations_json(models, failures, arguments)
    elif arguments.csv:
        text = evaluations_csv(models)
    else:
        text = evaluations_report(models, arguments) if models else ""
    if not write(text) or failures:
        return BAD_INPUT
    if arguments.fail_if_miscalibrated and any(model.evaluation.miscalibrated for model in models):
        return MISCALIBRATED
    return DONE


def make_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `evaluation_of`; exit if one of them is wrong."""
    return {
        "level": arguments.level,
        "tolerance": arguments.tolerance,
        "kernel": make_kernel(arguments),
        "method": make_method(arguments),
        "fair": bool(arguments.fair),
        "cluster_option": "clusters" if arguments.time_blocks is None else "time_blocks",
        "n_bins": arguments.n_bins,
        "metrics": arguments.metrics,
        "seed": arguments.seed,
        "threads": arguments.threads,
    }


def evaluate_data(
    job: Job, arguments: argparse.Namespace, data: Data, options: dict[str, Any], *, drawn: bool
) -> Model:
    """Evaluate checked data after the lens was applied, with a picture if `drawn`."""
    with open_parallel(arguments.parallel) as run:
        evaluation = evaluation_of(data, **options, backend=run)
    picture, classes = draw_data(data, arguments) if drawn else None, getattr(data, "classes", None)
    names = None if classes is None else classes.names
    return Model(job.model, job.file, data.noun, evaluation, picture, classes=names)


def read_samples(job: Job, arguments: argparse.Namespace, data: Data, reading: dict[str, Any]) -> dict[str, Any]:
    """Return the clusters and further variables for `evaluation_of`, from the columns that options name."""
    of_samples: dict[str, Any] = {"clusters": find_clusters(job, arguments, data.n, reading)}
    if arguments.given:
        variables = {name: read_column(job, "--given", name, reading) for name in arguments.given}
        of_samples["given"] = read_given(variables, data.n)
    return of_samples


def find_groups(job: Job, arguments: argparse.Namespace, data: Data, reading: dict[str, Any]) -> WorstGroups | None:
    """Test calibration in the groups of --by, or return None without --by."""
    if not arguments.by:
        return None
    if not isinstance(data, Classification):
        raise FileError(f"holds {data.noun}, but --by is for class probabilities; leave it out")
    groups = {name: read_column(job, "--by", name, reading) for name in arguments.by}
    options = {"level": arguments.level, "seed": arguments.seed, "threads": arguments.threads}
    return find_worst_groups(data, groups, **options)


def make_panels(model: Model) -> list[figures.Panel]:
    """Return the panels of a model: its diagram, then the diagrams of its classes."""
    assert model.picture is not None
    e, style = model.evaluation, model.picture.style
    pvalue = format_pvalue(e.test.pvalue)
    notes = (
        *e.notes(),
        f"SKCE {e.skce.value:.2e}",
        f"p {pvalue[0]} {pvalue[1:]}" if pvalue[0] == "<" else f"p = {pvalue}",
        *([f"off by ≥ {shown_at_least(least)}"] if (least := e.rms_error_lower) else []),
    )
    verdict = e.verdict.partition(":")[0]
    model_panel = figures.Panel(model.model, verdict, e.miscalibrated, notes, model.picture.diagram, style)
    of_class = replace(style, labels=("predicted probability", "observed frequency", style.labels[2]))
    return [
        model_panel,
        *(
            figures.Panel(f"{model.model}: {c.name}", f"ECE {c.ece:.4f}", False, (), c.diagram, of_class)
            for c in model.picture.classes
        ),
    ]
