"""`kcalib update`, `kcalib merge` and `kcalib show`: state files."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kcalib import streaming
from kcalib._backend.files import hold_file, printable
from kcalib._command.arguments import STATE, get_state_options, make_kernel
from kcalib._command.evaluate import write_results
from kcalib._command.files import open_file
from kcalib._command.jobs import (
    Failure,
    Model,
    check_reading,
    check_same_kind,
    collect_failures,
    make_jobs,
    translate,
    translate_errors,
)
from kcalib._command.kinds import check_plotting
from kcalib._command.method_options import flag
from kcalib._command.streamed import (
    LOG_SECONDS,
    AnyState,
    check_samples,
    evaluate_state,
    get_noun,
    make_state_for,
)
from kcalib._command.streams import BAD_INPUT, DONE, format_error, write
from kcalib._input.columns import FileError
from kcalib._input.source import Source
from kcalib.bandwidth import NoLengthScaleError
from kcalib.lenses import Confidence
from kcalib.streaming import CalibrationState, ComparisonState, ForecastState, GroupedState
from kcalib.streaming._options import StateOptions
from kcalib.streaming.running import Note, checked_rows, feed, loaded, next_row, with_part

FIRST_ROWS = 2000  # for the bandwidth by --bandwidth-of


def run_update(arguments: argparse.Namespace) -> int:
    failures: list[Failure] = []
    check_reading(arguments)  # usage errors
    with collect_failures(failures, arguments.file):
        samples = open_file(arguments.file, vars(arguments), arguments.clusters)
        check_samples(samples, arguments)
        with ExitStack() as stack:
            with collect_failures(failures, arguments.state), translate_errors():
                stack.enter_context(hold_file(arguments.state, arguments.wait))
                state, note = _load_or_make(samples, arguments)
            if not failures:
                rows = state.n_samples
                remedy = (
                    "already; skip them by --resume if they are the same, or number them apart by --part or --first-row"
                )
                with translate_errors(), _errors_of_rows(remedy, arguments.state):
                    feed(
                        state, samples, note, Path(arguments.state),
                        resume=arguments.resume, checkpoint_seconds=arguments.checkpoint_every, log_seconds=LOG_SECONDS,
                    )  # fmt: skip
                added = state.n_samples - rows
                summary = f"{added} rows of {printable(arguments.file)} added, {state.n_samples} in all"
                written = write(f"{printable(arguments.state)}: {summary}\n")
                return DONE if written else BAD_INPUT
    return BAD_INPUT


@contextmanager
def _errors_of_rows(remedy: str, state: str = "") -> Iterator[None]:
    """Add the remedy to errors of rows that were added twice, and name a state that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.filename != state:
            raise
        raise FileError(f"{state}: {error.strerror}") from None
    except ValueError as error:
        rows, is_repeated, _ = str(error).partition(" added already")
        if not is_repeated:
            raise
        raise FileError(f"{rows} added {remedy}") from None


def _load_or_make(samples: Source, arguments: argparse.Namespace) -> tuple[AnyState, Note]:
    """Return the state to update, and the note of this update."""
    before: Note | None = None
    path = Path(arguments.state)
    if path.exists():
        state, before = loaded(path)
        _check_kind(type(state))
        _check_options(state, samples, arguments)
        if arguments.part is not None:
            state = with_part(state, arguments.part)
    else:
        state = make_state_for(samples, arguments, **_kernels(samples, arguments), part=arguments.part or 0)
    begin, end = checked_rows(arguments.rows, samples.n)
    # With --part or --rows numbers are those of the file, so that rows that are added twice are noticed.
    numbered = arguments.part is not None or arguments.rows is not None
    first_row = arguments.first_row if arguments.first_row is not None else 0 if numbered else next_row(state)
    note = Note(samples.describe(), samples.fingerprint(), begin, end, state.options.part, first_row, finished=False)
    if before is None:
        return state, note
    again = replace(note, first_row=before.first_row) if arguments.first_row is None else note
    same = before.difference(again) is None
    if same and not arguments.resume:
        raise FileError(
            f"holds the rows of {arguments.file} already; skip them by --resume"
            if before.finished
            else f"an update with {arguments.file} was interrupted; continue by --resume"
        )
    if not same and not before.finished:
        raise FileError(
            f"an update with {before.source} was interrupted; finish it first by the same command with --resume"
        )
    return state, again if same else note


def _check_kind(kind: type) -> None:
    """Refuse states to which the command cannot add predictions."""
    if kind is ComparisonState:
        raise FileError(
            "is a state of several models; use `kcalib compare` with --checkpoint FILE --part K, then `kcalib merge`"
        )
    if kind not in (CalibrationState, ForecastState):
        raise FileError(f"is a {kind.__name__}; update it in Python (kcalib.streaming.load, update, save)")


def _check_options(state: AnyState, samples: Source, arguments: argparse.Namespace) -> None:
    """Refuse a state whose options differ from the given ones."""
    options = state.options
    state_kind, sample_kind = _kind(options), _kind(samples)
    if state_kind not in (sample_kind, "None distributions"):  # a state without rows
        raise FileError(f"is a state of {state_kind}, but {arguments.file} holds predictions of {sample_kind}")
    if options.clusters != (arguments.clusters is not None):
        fault = "samples in clusters; name them by" if options.clusters else "independent samples; leave out"
        raise FileError(f"is a state of {fault} --clusters")
    if (getattr(options, "lens", None) == Confidence()) != (arguments.confidence is not None):
        fault = "confidences; name them by" if arguments.confidence is None else "class probabilities; leave out"
        raise FileError(f"is a state of {fault} --confidence")
    for name, value in get_state_options(arguments).items():
        if getattr(options, name) != value:
            raise FileError(f"has {flag(name)} {getattr(options, name)}, not {value}; leave {flag(name)} out")
    for name, kernel in _kernels(samples, arguments).items():
        if kernel is not None and kernel != getattr(state, name, None):
            kernel_noun = name.replace("_", " ")
            raise FileError(f"has the {kernel_noun} {getattr(options, name)}, not {kernel}; leave the bandwidth out")


def _kind(holder: Any) -> str:
    """Describe the predictions of a state's options or of a source."""
    prediction = getattr(holder, "prediction", None)
    if isinstance(holder, StateOptions) or (isinstance(holder, Source) and prediction is None):
        return f"{holder.n_classes} classes"
    return f"{prediction} distributions"


def _kernels(samples: Source, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the kernels with the bandwidths of --bandwidth or --bandwidth-of."""
    if arguments.bandwidth_of is None:
        return {"kernel": make_kernel(arguments)}
    try:
        if arguments.bandwidth_of.endswith(STATE):
            state = next(iter(_models_of(streaming.load(arguments.bandwidth_of)).values()))
        else:
            source = open_file(arguments.bandwidth_of, vars(arguments))
            few: dict[str, Any] = {"n_columns": 16, "n_resamples": 0}
            if source.prediction is None:
                state = CalibrationState(source.n_classes, lens=arguments.lens, **few)
            else:
                state = ForecastState(**few)
            for y_true, y_pred in itertools.islice(source.chunks(FIRST_ROWS), 1):
                state.update(y_true, y_pred)
        if isinstance(state, ForecastState) != (samples.prediction is not None):
            raise FileError(
                f"holds {_kind(state.options)}, but {arguments.file} holds {_kind(samples)}; name another file"
            )
        if not state.n_samples:
            raise FileError("holds no rows; name another file, or give --bandwidth")
        accumulator = state._accumulator.flush(None).fix_bandwidths(None, elsewhere=True)
        if accumulator.bandwidth_rows < 0:  # identical predictions: no bandwidth for other files
            raise NoLengthScaleError(
                -accumulator.bandwidth_rows, of="classes" if samples.prediction is None else "predictions"
            )
        options = accumulator.options
        names = ("kernel", "target_kernel") if samples.prediction is not None else ("kernel",)
        return {name: getattr(options, name) for name in names}
    except (OSError, ValueError, TypeError) as error:
        reason = format_error(error) if isinstance(error, OSError) else translate(error)
        raise FileError(f"--bandwidth-of {arguments.bandwidth_of}: {reason}") from None


def run_merge(arguments: argparse.Namespace) -> int:
    failures: list[Failure] = []
    merged: Any = None
    out = arguments.output
    if out.exists() and any(os.path.exists(file) and os.path.samefile(out, file) for file in arguments.files):
        arguments.usage_error(f"-o {out} is one of the files to merge; name another file")
    for file in arguments.files:
        with collect_failures(failures, file):
            state = streaming.load(file)
            if merged is None:
                merged = state
            else:
                if type(state) is not type(merged):
                    kinds = f"a {type(state).__name__}, but the first file is a {type(merged).__name__}"
                    raise FileError(f"is {kinds}; merge states of one kind")
                remedy = (
                    "by an earlier file already; name each state once, and give states of different samples different "
                    "parts (`kcalib update --part K`)"
                )
                with translate_errors(), _errors_of_rows(remedy):
                    merged.merge(state)
    if failures or merged is None:
        return BAD_INPUT
    with collect_failures(failures, str(out)), hold_file(out, arguments.wait):
        merged.save(out)
    if failures:
        return BAD_INPUT
    n = f"{len(arguments.files)} state{'s' if len(arguments.files) > 1 else ''}"
    return DONE if write(f"{printable(out)}: {n} merged, {merged.n_samples} rows\n") else BAD_INPUT


def run_show(arguments: argparse.Namespace) -> int:
    models: list[Model] = []
    failures: list[Failure] = []
    seeds = set()
    with collect_failures(failures, str(arguments.plot)):
        check_plotting(arguments)
    for job in make_jobs(arguments.files) if not failures else ():
        with collect_failures(failures, job.file), translate_errors():
            for name, state in _models_of(streaming.load(job.path)).items():
                check_same_kind(get_noun(state), models, arguments)
                model = f"{job.model}: {name}" if name else job.model
                models.append(evaluate_state(state, replace(job, model=printable(model)), arguments))
                seeds.add(state.options.seed)
    arguments.seed = seeds.pop() if len(seeds) == 1 else None
    return write_results(models, failures, arguments)


def _models_of(state: Any) -> dict[str, AnyState]:
    """Return the states of the single models in a file by name."""
    if isinstance(state, GroupedState):
        return {"": state.total, **{str(group): part for group, part in state.groups.items()}}
    return dict(state.states) if isinstance(state, ComparisonState) else {"": state}
