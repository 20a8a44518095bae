"""`kcalib compare`: models on the same samples."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kcalib._backend.files import printable
from kcalib._backend.options import SEED, OptionError
from kcalib._command.arguments import STATE, make_kernel
from kcalib._command.files import STDIN, open_file
from kcalib._command.jobs import (
    Failure,
    Job,
    add_weights,
    check_no_states,
    check_reading,
    check_tables,
    collect_failures,
    find_clusters,
    make_jobs,
    note_unused,
    read_data,
    read_log,
    translate_errors,
)
from kcalib._command.kinds import check_options
from kcalib._command.machine import comparison_csv, comparison_json
from kcalib._command.method_options import flag
from kcalib._command.parallel import check_parallel, open_parallel, with_workers
from kcalib._command.streamed import (
    add_rows,
    check_streaming,
    make_state,
    option_of_forecasts,
    reads_in_chunks,
)
from kcalib._command.streams import BAD_INPUT, DONE, write
from kcalib._command.tables import comparison_report
from kcalib._input.columns import FileError
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts, prepare
from kcalib._input.parameters import PARAMETERS
from kcalib._input.source import Source
from kcalib._input.sparse import SparseProbabilities
from kcalib.inference.adaptive.clusters import clusters_of
from kcalib.inference.compare import IN_PIECES, METRICS, comparison_of
from kcalib.inference.compare import check_options as check_metric_options
from kcalib.inference.metrics.measured import Metric, SharedOptions
from kcalib.lenses import Canonical
from kcalib.results import Comparison
from kcalib.streaming import ComparisonState, load
from kcalib.streaming.forecast_tables.reading import read_forecasts, share_tasks
from kcalib.streaming.forecast_tables.results import ModelForecasts

SAMPLE_OPTIONS = (
    "targets", "weights", "clusters", "time_blocks", "confidence", "probs", "logits", "labels", "classes",
    "from_logits", *PARAMETERS, "lens", "bandwidth", "n_bins", "n_resamples", "n_columns", "fair",
    "seed", "part", "stream", "checkpoint", "rows", "resume", "checkpoint_every", "threads", "parallel",
)  # fmt: skip


def run_compare(arguments: argparse.Namespace) -> int:
    jobs = list(make_jobs(arguments.files))
    failures: list[Failure] = []
    if len(jobs) == 1 and jobs[0].path.suffix == STATE:
        return _write(_compare_state(jobs[0], arguments, failures), jobs, failures, arguments)
    check_no_states(jobs, arguments)
    if arguments.bandwidth is not None and arguments.metric != "skce":
        arguments.usage_error(f"--bandwidth is for --metric skce, not for {arguments.metric}; leave it out")
    if arguments.parallel is not None:
        check_parallel(arguments)
        metric, options = _options(arguments, jobs, in_pieces=False)
        return with_workers(arguments, lambda: _compare_at_once(jobs, arguments, metric, options, failures))
    unable = _option_that_needs_all(arguments)
    _check_pieces(arguments, jobs, unable)
    in_pieces = reads_in_chunks(jobs, arguments, unable)
    metric, options = _options(arguments, jobs, in_pieces)
    if in_pieces:
        return _write(_compare_in_pieces(jobs, arguments, failures), jobs, failures, arguments)
    return _compare_at_once(jobs, arguments, metric, options, failures)


def _compare_at_once(
    jobs: Sequence[Job],
    arguments: argparse.Namespace,
    metric: Metric,
    options: SharedOptions,
    failures: list[Failure],
) -> int:
    """Compare files that are read as a whole, and return the exit code."""
    if arguments.targets is not None:
        return _compare_tables(jobs, arguments, metric, options, failures)
    logs: list[ModelForecasts | None] = []
    file_data: dict[str, Data] = {}  # before the lens is applied
    models: dict[str, Data] = {}
    for job in jobs:
        with collect_failures(failures, job.file):
            with read_data(job, arguments.threads, check_reading(arguments)) as data:
                note_unused(job, check_reading(arguments))
                data = data.in_order_of(next(iter(file_data.values()), data))
                file_data[job.model] = data
                logs.append(read_log(job, check_reading(arguments)))
                check_options(data, arguments)
                models[job.model] = arguments.lens.induced(data)
            if not _have_same_tokens(logs):
                _check_same_samples(data, *next(iter(file_data.items())))
    comparison = None
    with collect_failures(failures, jobs[0].file):
        reading = check_reading(arguments)
        if not failures:  # all files hold the same samples
            clusters = find_clusters(jobs[0], arguments, file_data[jobs[0].model].n, reading)
            options = replace(options, clusters=clusters, time_blocks=arguments.time_blocks)
        models = {name: add_weights(jobs[0], arguments, data, reading) for name, data in models.items()}
    if not failures:
        with collect_failures(failures, "compare"), translate_errors(), open_parallel(arguments.parallel) as run:
            shared = replace(options, backend=run)
            comparison = comparison_of(models, metric, arguments.confidence_level, shared)
    return _write(comparison, jobs, failures, arguments)


def _compare_tables(
    jobs: Sequence[Job], arguments: argparse.Namespace, metric: Metric, options: SharedOptions, failures: list[Failure]
) -> int:
    """Compare models in forecast tables on the tasks that they share, and return the exit code."""
    tables: list[ModelForecasts] = []
    models: dict[str, Data] = {}
    comparison = None
    for job in jobs:
        with collect_failures(failures, job.file), translate_errors():
            check_tables(arguments, check_reading(arguments))
            tables += read_forecasts(job.path, arguments.targets, sort_quantiles=arguments.sort_quantiles)
    with collect_failures(failures, "compare"), translate_errors(), open_parallel(arguments.parallel) as run:
        for table in share_tasks(tables) if not failures else ():
            if table.model in models:
                raise FileError(f"the model {table.model} appears twice; give each model its own model_id")
            data = prepare(table.y_true, table.y_pred, threads=arguments.threads)
            check_options(data, arguments)
            models[printable(table.model)] = arguments.lens.induced(data)
            if arguments.time_blocks is not None:
                table.check_one_series()
            column = None if arguments.clusters is None else table.column(arguments.clusters)
            clusters = clusters_of(column, arguments.time_blocks, data.n)
            options = replace(options, backend=run, clusters=clusters, time_blocks=arguments.time_blocks)
        if len(models) == 1:
            raise FileError(f"holds forecasts of one model, {table.model}; expected at least two")
        comparison = comparison_of(models, metric, arguments.confidence_level, options) if models else None
    return _write(comparison, jobs, failures, arguments)


def _write(
    comparison: Comparison | None, jobs: Sequence[Job], failures: Sequence[Failure], arguments: argparse.Namespace
) -> int:
    if arguments.json:
        text = comparison_json(comparison, jobs, failures)
    elif comparison is None:
        text = ""
    else:
        text = comparison_csv(comparison) if arguments.csv else comparison_report(comparison)
    return DONE if write(text) and not failures else BAD_INPUT


def _compare_in_pieces(
    jobs: Sequence[Job], arguments: argparse.Namespace, failures: list[Failure]
) -> Comparison | None:
    """Compare files that are read in chunks."""
    sources: dict[str, Source] = {}
    for job in jobs:
        with collect_failures(failures, job.file):
            sources[job.model] = open_file(job.file, vars(arguments))
            if sources[job.model].prediction is not None:
                raise FileError(f"holds {Forecasts.noun}, which are not compared in chunks; leave out --stream")
    if failures:
        return None
    with collect_failures(failures, "compare"), translate_errors():
        first = next(iter(sources.values()))
        kernel, part = make_kernel(arguments), arguments.part or 0
        state = make_state(
            ComparisonState, first, arguments, models=tuple(sources), kernel=kernel, part=part, n_resamples=0
        )
        state = add_rows(state, sources, arguments)
        return state.result(arguments.metric, confidence_level=arguments.confidence_level)
    return None


def _compare_state(job: Job, arguments: argparse.Namespace, failures: list[Failure]) -> Comparison | None:
    """Compare the models of a state that was written by --checkpoint or `kcalib merge`."""
    options = [name for name in SAMPLE_OPTIONS if getattr(arguments, name) not in (None, False, Canonical(), SEED, 0.0)]
    if options:
        arguments.usage_error(f"{flag(options[0])} is for predictions, and {job.file} is a state, which has its own")
    if arguments.metric not in IN_PIECES:
        arguments.usage_error(f"--metric {arguments.metric} needs all samples; a state has {', '.join(IN_PIECES)}")
    with collect_failures(failures, job.file), translate_errors():
        state = load(job.path)
        if not isinstance(state, ComparisonState):
            raise FileError(
                f"is a {type(state).__name__}, expected a state of several models, as --checkpoint leaves it"
            )
        return state.result(arguments.metric, confidence_level=arguments.confidence_level)
    return None


def _check_pieces(arguments: argparse.Namespace, jobs: Sequence[Job], unable: str | None) -> None:
    """Refuse options of reading in chunks that do not go together."""
    if arguments.part is not None and arguments.checkpoint is None:
        arguments.usage_error("--part needs --checkpoint FILE, which is merged with the files of other parts")
    check_streaming(arguments, unable)
    if arguments.stream and sum(job.path == STDIN for job in jobs):
        arguments.usage_error("standard input holds one model; write it to a file, or leave out --stream")


def _option_that_needs_all(arguments: argparse.Namespace) -> str | None:
    """Return the option that needs all samples at once, or None."""
    if arguments.metric not in IN_PIECES:
        return f"--metric {arguments.metric}"
    # With --confidence each model has its own labels (was it right?), and states need common ones.
    for name in ("n_resamples", "clusters", "time_blocks", "weights", "confidence", "targets"):
        if getattr(arguments, name) is not None:
            return flag(name)
    return option_of_forecasts(arguments)


def _options(arguments: argparse.Namespace, jobs: Sequence[Job], in_pieces: bool) -> tuple[Metric, SharedOptions]:
    """Return the metric and the shared options; exit if the metric does not have an option."""
    if len(jobs) < 2 and arguments.targets is None:
        arguments.usage_error("expected at least two files to compare, or a state of several models")
    twice = [name for name, count in Counter(job.model for job in jobs).items() if count > 1]
    if twice:
        arguments.usage_error(f"{twice[0]} is given twice")
    if arguments.n_columns is not None and not in_pieces:
        arguments.usage_error("--columns is for reading in chunks; leave it out, or pass --stream")
    (metric,) = (cls for cls in METRICS if cls.name == arguments.metric)
    option_values = {name: getattr(arguments, name) for name in ("n_bins", "n_resamples", "fair")}
    metric_options = {
        name: x for name, x in (option_values | {"kernel": make_kernel(arguments)}).items() if x is not None
    }
    for name in metric_options.keys() - vars(metric).keys():
        owner = next(cls.name for cls in METRICS if name in vars(cls))
        fault = f"has no meaning for the metric {metric.name!r}, only for {owner!r}; leave it out"
        arguments.usage_error(f"{flag(name)} {fault}")
    # States have their own threads.
    threads = None if in_pieces else arguments.threads
    options = SharedOptions(arguments.seed, threads, arguments.parallel)
    try:
        chosen = metric(**metric_options)
        check_metric_options(options, chosen, arguments.confidence_level)
    except OptionError as error:
        arguments.usage_error(f"{flag(error.option)} {error.fault}")
    return chosen, options


def _have_same_tokens(logs: Sequence[ModelForecasts | None]) -> bool:
    """Say whether the first and last log have the same tokens as labels, which models may count to the rest or not."""
    first, last = logs[0], logs[-1]
    if first is None or last is None or first.y_true is None or last.y_true is None:
        return False
    return isinstance(first.y_pred, SparseProbabilities) and np.array_equal(first.y_true, last.y_true)


def _check_same_samples(data: Data, name: str, first: Data) -> None:
    """Refuse labels or targets that differ from those of the first model, `name`."""
    if data.noun != first.noun:
        raise FileError(f"holds {data.noun}, but {name} holds {first.noun}; compare models of one kind")
    reason = data.mismatch(first, name)
    if reason is not None:
        raise FileError(reason)
