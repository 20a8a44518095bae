"""Read files in chunks into states, for `kcalib update`, `evaluate --stream` and `compare --stream`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from kcalib._backend.faults import format_size
from kcalib._backend.files import FileBusyError
from kcalib._command.arguments import STATE_OPTIONS, STREAMED_FROM, get_state_options, make_kernel
from kcalib._command.files import STDIN, open_file
from kcalib._command.jobs import Job, Model, check_same_kind, translate, translate_errors
from kcalib._command.kinds import check_confidences, check_dimensions, check_fair, check_for_forecasts, draw_state
from kcalib._command.method_options import flag
from kcalib._command.streams import report
from kcalib._input.columns import FileError
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._input.parameters import PARAMETERS
from kcalib._input.source import Source
from kcalib.distributions import MultivariateNormal
from kcalib.evaluation_results import ForecastEvaluation
from kcalib.lenses import CANONICAL
from kcalib.streaming import CalibrationState, ComparisonState, ForecastState, run
from kcalib.streaming.language_models.source import LOGS
from kcalib.streaming.sources.opening import suffix_of

State = TypeVar("State", bound=CalibrationState | ForecastState | ComparisonState)

LOG_SECONDS = 60.0
AnyState = CalibrationState | ForecastState  # of one model


def make_state_for(samples: Source, arguments: argparse.Namespace, **more: Any) -> AnyState:
    """Return an empty state of the kind that the samples need."""
    check_samples(samples, arguments)
    kind: type[AnyState] = CalibrationState if samples.prediction is None else ForecastState
    return make_state(kind, samples, arguments, **more)


def check_samples(samples: Source, arguments: argparse.Namespace) -> None:
    """Refuse samples that states cannot hold."""
    if samples.prediction is not None:
        check_for_forecasts(arguments)
    check_fair(samples.prediction, arguments)
    check_confidences(getattr(samples, "lens", CANONICAL), arguments)
    if samples.prediction == MultivariateNormal.__name__:
        raise FileError(
            "holds normal distributions with covariances, which states do not take with Wasserstein kernels; use "
            "`kcalib evaluate --no-stream`, or kcalib.streaming.ForecastState with another kernel"
        )


def make_state(kind: type[State], samples: Source, arguments: argparse.Namespace, **more: Any) -> State:
    """Return an empty state with the given options."""
    options = get_state_options(arguments) | more | {"threads": arguments.threads}
    if getattr(samples, "clusters", None) is not None:
        options["clusters"] = True
    if (lens := getattr(samples, "lens", CANONICAL)) != CANONICAL:
        options["lens"] = lens
    if samples.prediction is None:
        options["n_classes"] = samples.n_classes
    else:
        options.pop("lens", None)
    try:
        return kind(**options)
    except ValueError as error:
        message = translate(error)
        for name in STATE_OPTIONS:
            message = message.replace(f"`{name}`", flag(name))
        arguments.usage_error(message)
        raise AssertionError("unreachable: a usage error ends the command") from None


def reads_in_chunks(files: Sequence[Job], arguments: argparse.Namespace, unable: str | None) -> bool:
    """Return whether to read in chunks: on request, or if files are large and no option needs all samples."""
    if arguments.stream is not None:
        return bool(arguments.stream)
    size = sum(os.path.getsize(job.path) for job in files if job.path.is_file() and suffix_of(job.path) not in LOGS)
    if size <= STREAMED_FROM or unable is not None:
        return False
    names = ", ".join(job.file for job in files)
    report(f"{names}: {format_size(size)} are read in chunks; --no-stream reads them at once")
    return True


def check_streaming(arguments: argparse.Namespace, unable: str | None) -> None:
    """Refuse options that do not go together, and set `stream` if another option needs it."""
    for name in ("checkpoint", "rows"):
        if getattr(arguments, name) is not None:
            if arguments.stream is False:
                arguments.usage_error(f"--{name} is for reading in chunks; leave out --no-stream")
            arguments.stream = True
    if arguments.checkpoint is None and (arguments.resume or arguments.checkpoint_every):
        arguments.usage_error(f"{'--resume' if arguments.resume else '--checkpoint-every'} needs --checkpoint FILE")
    if arguments.stream and unable is not None:
        arguments.usage_error(f"{unable} needs all samples at once; leave it out, or --stream")


def option_that_needs_all(arguments: argparse.Namespace) -> str | None:
    """Return an option that needs all samples at once, or None."""
    if arguments.method != "adaptive":
        return f"--method {arguments.method}"
    names = ("by", "given", "metrics", "multilabel", "targets", "time_blocks", "weights")
    return next((flag(name) for name in names if getattr(arguments, name)), None)


def option_of_forecasts(arguments: argparse.Namespace) -> str | None:
    """Return an option of predicted distributions, or None."""
    return next((flag(name) for name in PARAMETERS if getattr(arguments, name) is not None), None)


def evaluate_in_chunks(job: Job, arguments: argparse.Namespace, models: Sequence[Model]) -> Model:
    """Evaluate the samples of a file chunk by chunk."""
    if getattr(arguments, "plot_classes", 0):
        raise FileError("--plot-classes needs all samples at once; leave it out, or pass --no-stream")
    samples = open_file(job.file, vars(arguments), arguments.clusters)
    check_same_kind(Classification.noun if samples.prediction is None else Forecasts.noun, models, arguments)
    if samples.prediction is not None and samples.n is not None:  # before the work, not after it
        check_dimensions(samples.read(0, 1)[1].n_dims, arguments)
    state = make_state_for(samples, arguments, kernel=make_kernel(arguments))
    if job.path == STDIN and arguments.checkpoint is not None:
        raise FileError("--checkpoint needs input that can be read again, not standard input; write it to a file")
    with translate_errors():
        return evaluate_state(add_rows(state, samples, arguments), job, arguments)


def add_rows(state: State, samples: Source | Mapping[str, Source], arguments: argparse.Namespace) -> State:
    """Add the samples to the state, with --rows, --checkpoint and --resume."""
    checkpoint = arguments.checkpoint
    if checkpoint is not None and checkpoint.is_file() and not arguments.resume:
        raise FileError(f"the checkpoint {str(checkpoint)!r} exists; continue by --resume, or remove it")
    try:
        state = run(
            state,
            samples,
            checkpoint=checkpoint,
            resume=arguments.resume,
            rows=arguments.rows,
            checkpoint_seconds=arguments.checkpoint_every,
            log_seconds=LOG_SECONDS,
        )
    except OSError as error:
        if checkpoint is None or error.filename != os.fspath(checkpoint) or isinstance(error, FileBusyError):
            raise
        raise FileError(f"--checkpoint {checkpoint}: {error.strerror}") from None
    if not state.n_samples:
        raise FileError("there are no rows, expected one for each sample")
    return state


def get_noun(state: AnyState) -> str:
    return Forecasts.noun if isinstance(state, ForecastState) else Classification.noun


def evaluate_state(state: AnyState, job: Job, arguments: argparse.Namespace) -> Model:
    evaluation = state.result(level=arguments.level, tolerance=arguments.tolerance)
    if isinstance(evaluation, ForecastEvaluation):
        check_dimensions(evaluation.n_dims, arguments)
    picture = None if arguments.plot is None else draw_state(state, arguments)
    classes = getattr(state.options, "classes", None)
    return Model(job.model, job.file, get_noun(state), evaluation, picture, classes=classes)
