"""`kcalib compare`: files against each other."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from kcalib._backend.options import OptionError
from kcalib._command.files import FileError
from kcalib._command.jobs import Failure, Job, collected, named, prepared, reading_of
from kcalib._command.kinds import check_options
from kcalib._command.machine import comparison_csv, comparison_json
from kcalib._command.method_options import flag
from kcalib._command.streams import BAD_INPUT, DONE, write
from kcalib._command.tables import comparison_report
from kcalib._input.data import Data
from kcalib.inference.compare import check_options as check_metric_options
from kcalib.inference.compare import comparison_of
from kcalib.inference.metrics.measured import MetricOptions


def run_compare(arguments: argparse.Namespace) -> int:
    jobs = list(named(arguments.files))
    options = _options(arguments, jobs)
    whole: dict[str, Data] = {}  # as in the files, not seen through the lens
    models: dict[str, Data] = {}
    failures: list[Failure] = []
    for job in jobs:
        with collected(failures, job.file):
            with prepared(job, arguments.threads, reading_of(arguments)) as data:
                whole[job.model] = data
                check_options(data, arguments)
                models[job.model] = arguments.lens.induced(data)
            _check_same_samples(data, *next(iter(whole.items())))
    comparison = None
    if not failures:
        with collected(failures, "compare"):
            comparison = comparison_of(models, arguments.metric, arguments.confidence_level, options)
    if arguments.json:
        text = comparison_json(comparison, jobs, failures)
    elif comparison is None:
        text = ""
    else:
        text = comparison_csv(comparison) if arguments.csv else comparison_report(comparison)
    return DONE if write(text) and not failures else BAD_INPUT


def _options(arguments: argparse.Namespace, jobs: Sequence[Job]) -> MetricOptions:
    """The options of the comparison; a usage error if the metric does not have one of them."""
    if len(jobs) < 2:
        arguments.usage_error("expected at least two files to compare")
    twice = [name for name, count in Counter(job.model for job in jobs).items() if count > 1]
    if twice:
        arguments.usage_error(f"{twice[0]} is given twice")
    options = MetricOptions(**{name: getattr(arguments, name) for name in ("n_bins", "n_resamples", "seed", "threads")})
    try:
        check_metric_options(options, arguments.metric, arguments.confidence_level)
    except OptionError as error:
        arguments.usage_error(f"{flag(error.option)} {error.fault}")
    return options


def _check_same_samples(data: Data, name: str, first: Data) -> None:
    """That the labels or targets are those of the first model, which is called `name`."""
    if data.noun != first.noun:
        raise FileError(f"holds {data.noun}, but {name} holds {first.noun}; models of one kind are compared")
    reason = data.mismatch(first, name)
    if reason is not None:
        raise FileError(reason)
