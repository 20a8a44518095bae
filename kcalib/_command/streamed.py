"""Files into states, in pieces: what `kcalib update` and `kcalib evaluate --stream` have in common."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kcalib._backend.faults import shown_size
from kcalib._command.files import FileError
from kcalib._command.files.csv import STDIN, stdin_part
from kcalib._command.files.source import FileColumns
from kcalib._command.jobs import Job, Model, spelled
from kcalib._command.kinds import Picture
from kcalib._command.method_options import flag
from kcalib._command.state_arguments import GIVEN, STREAMED_FROM, given_kernel, given_options
from kcalib._command.streams import report
from kcalib._input.source import Source
from kcalib.report import figures
from kcalib.streaming import CalibrationState, ComparisonState, run
from kcalib.streaming.sources.opening import file_parts
from kcalib.streaming.sources.part import Wanted
from kcalib.streaming.sources.parts import PartsSource

State = TypeVar("State", CalibrationState, ComparisonState)

LOG_SECONDS = 60.0
NOUN = "class probabilities"


def opened(file: str, arguments: argparse.Namespace) -> Source:
    """The samples of a file, a folder, files that a pattern names, or standard input."""
    wanted = Wanted(arguments.probs, arguments.logits, arguments.labels, arguments.from_logits, columns=FileColumns)
    return PartsSource([stdin_part(wanted)] if file == str(STDIN) else file_parts([file], wanted))


def made(kind: type[State], samples: Source, arguments: argparse.Namespace, **more: Any) -> State:
    """An empty state for the samples, with the options that were given."""
    options = {name: value for name, value in given_options(arguments).items() if name not in more}
    try:
        return kind(samples.n_classes, **options, **more, threads=arguments.threads)
    except ValueError as error:
        message = spelled(error)
        for name in GIVEN:
            message = message.replace(f"`{name}`", flag(name))
        arguments.usage_error(message)
        raise AssertionError("unreachable: a usage error ends the command") from None


def wants_stream(files: Sequence[Job], arguments: argparse.Namespace, unable: str | None) -> bool:
    """Whether files are read in pieces: on request, or if they are large and nothing is asked for that is `unable`."""
    if arguments.stream is not None:
        return bool(arguments.stream)
    size = sum(os.path.getsize(job.path) for job in files if job.path.is_file())
    if size <= STREAMED_FROM or unable is not None:
        return False
    names = ", ".join(job.file for job in files)
    report(f"{names}: {shown_size(size)} are read in pieces, as --stream says; --no-stream reads them at once")
    return True


def check_streaming(arguments: argparse.Namespace, unable: str | None) -> None:
    """Usage errors of options that do not go together; what needs a stream asks for one."""
    for name in ("checkpoint", "rows"):
        if getattr(arguments, name) is not None:
            if arguments.stream is False:
                arguments.usage_error(f"--{name} is for samples that are read in pieces, not for --no-stream")
            arguments.stream = True
    if arguments.checkpoint is None and (arguments.resume or arguments.checkpoint_every):
        given = "--resume" if arguments.resume else "--checkpoint-every"
        arguments.usage_error(f"{given} needs --checkpoint FILE")
    if arguments.stream and unable is not None:
        arguments.usage_error(f"{unable} needs all samples at once; leave it out, or --stream")


def unstreamable(arguments: argparse.Namespace) -> str | None:
    """An option that takes all samples at once; None if there is none."""
    if arguments.method not in ("auto", "features"):
        return f"--method {arguments.method}"
    if arguments.estimator not in (None, "features"):
        return f"--estimator {arguments.estimator}"
    return of_forecasts(arguments)


def of_forecasts(arguments: argparse.Namespace) -> str | None:
    """An option of predicted distributions; None if there is none."""
    names = ("mean", "std", "samples", "rate")
    return next((f"--{name}" for name in names if getattr(arguments, name) is not None), None)


def streamed(job: Job, arguments: argparse.Namespace) -> Model:
    """An evaluation of the samples of a file."""
    samples = opened(job.file, arguments)
    state = made(CalibrationState, samples, arguments, kernel=given_kernel(arguments))
    if job.path == STDIN and arguments.checkpoint is not None:
        raise FileError("standard input cannot be read again, so there is no --checkpoint; write it to a file")
    with respelled():
        return model_of(completed(state, samples, arguments), job, arguments)


def completed(state: State, samples: Source | Mapping[str, Source], arguments: argparse.Namespace) -> State:
    """The state with all samples, or those of --rows, as --checkpoint and --resume say."""
    checkpoint = arguments.checkpoint
    if checkpoint is not None and checkpoint.exists() and not arguments.resume:
        raise FileError(f"the checkpoint {str(checkpoint)!r} exists; go on from it by --resume, or remove it")
    state = run(
        state,
        samples,
        checkpoint=checkpoint,
        resume=arguments.resume,
        rows=arguments.rows,
        checkpoint_seconds=arguments.checkpoint_every,
        log_seconds=LOG_SECONDS,
    )
    if not state.n_samples:
        raise FileError("there are no rows, expected one for each sample")
    return state


@contextmanager
def respelled() -> Iterator[None]:
    """Errors of samples in pieces, and of states of them, in words of the command."""
    try:
        yield
    except FileError as error:
        message = spelled(error)
        raise error if message == str(error) else FileError(message) from None
    except (ValueError, TypeError) as error:
        raise FileError(spelled(error)) from None


def model_of(state: CalibrationState, job: Job, arguments: argparse.Namespace) -> Model:
    evaluation = state.result(level=arguments.level, tolerance=arguments.tolerance)
    picture = None if arguments.plot is None else Picture(state.reliability(), figures.RELIABILITY)
    return Model(job.model, job.file, NOUN, evaluation, picture)
