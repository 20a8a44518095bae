"""The files that the user names: model names, reading, and error messages."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend.files import FileBusyError, printable
from kcalib._backend.options import OptionError
from kcalib._command.arguments import STATE
from kcalib._command.files import STDIN, open_file
from kcalib._command.kinds import Picture
from kcalib._command.method_options import flag, owners
from kcalib._command.streams import format_error, report, suggest_file
from kcalib._input.checks import weights_of
from kcalib._input.columns import FileError
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._input.parameters import PARAMETERS
from kcalib.bandwidth import NoLengthScaleError
from kcalib.evaluation_results import Evaluation, ForecastEvaluation, MultilabelEvaluation
from kcalib.inference.adaptive.clusters import clusters_of
from kcalib.inference.adaptive.groups import WorstGroups
from kcalib.inference.calibration_test import scale_weights
from kcalib.lenses import Confidence
from kcalib.parallel.transport import TileError
from kcalib.report import figures
from kcalib.streaming.forecast_tables.results import ModelForecasts
from kcalib.streaming.language_models.source import LOGS
from kcalib.streaming.sources.layout import Y_TRUE
from kcalib.streaming.sources.opening import suffix_of
from kcalib.streaming.sources.reader_source import ReaderSource

RENAMED_OPTIONS = (
    "rows",
    "checkpoint",
    "tolerance",
    "n_columns",
    "n_resamples",
    "n_bins",
    "metrics",
    "seed",
    "backend",
    "clusters",
    "time_blocks",
    "given",
)

# The first parameter names a family of distributions; each second parameter needs one of these.
FIRST_PARAMETERS = ("mean", "samples", "rate", "loc", "mean_log", "shape")
SECOND_PARAMETERS = dict.fromkeys(("std", "dispersion", "cov", "scale_tril"), ("mean",)) | {
    "scale": ("loc", "shape"),
    "df": ("loc",),
    "std_log": ("mean_log",),
}


@dataclass(frozen=True)
class Job:
    """A file to evaluate."""

    model: str
    file: str  # as the user wrote it
    path: Path


@dataclass(frozen=True)
class Model:
    """An evaluated file."""

    model: str
    file: str
    noun: str  # kind of predictions, in words
    evaluation: Evaluation | ForecastEvaluation
    picture: Picture | None
    groups: WorstGroups | None = None  # of --by
    pvalue_holm: float | None = None  # adjusted, for a label of --multilabel
    together: MultilabelEvaluation | None = None  # all labels of the file
    classes: tuple[Any, ...] | None = None  # in the order of the columns; None through a lens
    rows: str | None = None  # which rows of a forecast table or log were used


@dataclass(frozen=True)
class Failure:
    """The reason why a file was not evaluated or not written."""

    file: str
    message: str


def check_reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that say what to read; exit if they do not go together."""
    names = (
        "probs",
        "logits",
        "confidence",
        "labels",
        "from_logits",
        "normalize",
        "per_character",
        "classes",
        "positive",
        "missing",
        *PARAMETERS,
    )
    reading = {name: getattr(arguments, name) for name in names}
    if reading["confidence"] is not None and reading["positive"] is not None:
        arguments.usage_error("--positive does not go with --confidence; leave one out")
    for second, firsts in SECOND_PARAMETERS.items():
        for option in ("probs", "logits", *FIRST_PARAMETERS):
            if option not in firsts and reading[second] is not None and reading[option] is not None:
                first = " or ".join(map(flag, firsts))
                arguments.usage_error(f"{flag(second)} goes with {first}, not with {flag(option)}; leave it out")
    for option in PARAMETERS:
        if reading["from_logits"] and reading[option] is not None:
            arguments.usage_error(
                f"--from-logits is for class probabilities, but {flag(option)} is for regression; leave one out"
            )
    return reading


def check_tables(arguments: argparse.Namespace, reading: dict[str, Any]) -> None:
    """Refuse options that do not apply to forecast tables, and missing --targets."""
    if arguments.targets is not None and not arguments.targets.exists():
        raise FileError(f"--targets {arguments.targets}: no such file{suggest_file(str(arguments.targets))}")
    for option in (*reading, "weights", "multilabel"):
        if reading.get(option) or getattr(arguments, option, None):
            raise FileError(f"is a forecast table, but {flag(option)} is for other files; leave it out")


def make_jobs(files: Sequence[str]) -> Iterator[Job]:
    """Name models after the stems of their files, or after their paths if stems are equal."""
    stems = Counter(_stem(file) for file in files)
    for file in files:
        stem = _stem(file)
        yield Job(printable(stem if stems[stem] == 1 else file), file, Path(file))


def check_no_states(files: Sequence[Job], arguments: argparse.Namespace) -> None:
    """Refuse states where predictions are expected."""
    for job in files:
        if job.path.suffix == STATE:
            arguments.usage_error(
                f"{printable(job.file)} is a state, expected predictions; use `kcalib show`, or for a state of "
                "several models `kcalib compare` without other files"
            )


def _stem(file: str) -> str:
    """Strip the suffix, also of compressed files (.csv.gz)."""
    path = Path(file)
    return path.name.removesuffix(suffix_of(path)) if path.suffix.lower() == ".gz" else path.stem


def check_same_kind(noun: str, models: Sequence[Model], arguments: argparse.Namespace) -> None:
    """Refuse two kinds of predictions in one CSV table."""
    if arguments.csv and models and noun != models[0].noun:
        raise FileError(
            f"holds {noun}, but {models[0].model} holds {models[0].noun}, and --csv prints one table; evaluate "
            "the files of each kind separately"
        )


@contextmanager
def collect_failures(failures: list[Failure], file: str) -> Iterator[None]:
    """Turn an error into a `Failure` and a line on standard error."""
    try:
        yield
    except FileBusyError:  # has an exit code of its own
        raise
    except (OSError, ValueError, TypeError, MemoryError, figures.PlotError, TileError) as error:
        name = printable(Path(file))
        message = format_error(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")
        failures.append(Failure(printable(file), message))
        report(f"error: {failures[-1].file}: {failures[-1].message}")


@contextmanager
def read_data(job: Job, threads: int | None, reading: dict[str, Any]) -> Iterator[Data]:
    """Read and check a file, and translate errors of the library in the body."""
    with translate_errors():
        samples = open_file(str(job.path), reading)
        data = samples.prepare(threads)
        log = samples.layout.log
        if reading.get("confidence") is not None or (log is not None and log.lens == Confidence()):
            data = see_confidences(data, samples)
    try:
        yield data
    except FileError:
        raise
    except (ValueError, TypeError) as error:
        message = translate(error)
        if any(f"`{name}" in message for name in ("y_true", "y_pred", *PARAMETERS)):
            message += f" ({samples.layout.describe()})"
        raise FileError(message) from None


def read_log(job: Job, reading: dict[str, Any]) -> ModelForecasts | None:
    """Return the log of a language model in a file or folder, or None if it is something else."""
    if suffix_of(job.path) not in LOGS and not job.path.is_dir():
        return None
    with translate_errors():
        return open_file(str(job.path), reading).layout.log


def note_unused(job: Job, reading: dict[str, Any]) -> None:
    """Report on standard error which lines of a log are not used."""
    if (log := read_log(job, reading)) is not None and log.unused:
        report(f"{job.file}: {log.describe_rows()}")


def see_confidences(data: Data, samples: ReaderSource) -> Classification:
    """Return the binary problem of --confidence: was each prediction right?"""
    assert isinstance(data, Classification)
    Confidence().check_columns(samples.n_columns, "y_pred")
    names = data.class_names
    if isinstance(names[0], str) and not (data.classes is not None and data.classes.is_known):
        raise FileError(
            f"the labels are {', '.join(map(repr, names))}, expected 0 or 1, true or false (is it right?); "
            f"name them by --classes=WRONG,RIGHT ({samples.layout.describe()})"
        )
    return Confidence().induced(data)


def find_clusters(job: Job, arguments: argparse.Namespace, n: int, reading: dict[str, Any]) -> np.ndarray | None:
    """Return the cluster of each sample by --clusters, --time-blocks, or the texts of tokens; None without these."""
    name, log = arguments.clusters, read_log(job, reading)
    if name is None and arguments.time_blocks is None and log is not None and log.clusters is not None:
        name = "text"
    clusters = None if name is None else read_column(job, "--clusters", name, reading)
    with translate_errors():
        return clusters_of(clusters, arguments.time_blocks, n)


def read_column(job: Job, option: str, name: str, reading: dict[str, Any]) -> np.ndarray:
    """Read an array or column with a value for each sample."""
    if job.path == STDIN:
        raise FileError(f"{option} cannot be read from standard input; write it to a file")
    try:
        with translate_errors():
            values = open_file(str(job.path), reading | {"labels": name, "has_names": True}).read_unchecked()[Y_TRUE]
    except FileError as error:
        message = str(error).replace("--labels", option).replace("expected a class label", "expected a value")
        raise FileError(message) from None
    return np.asarray(values)


def add_weights(job: Job, arguments: argparse.Namespace, data: Data, reading: dict[str, Any]) -> Data:
    """Return the samples with the weights of --weights."""
    if arguments.weights is None:
        return data
    weights = weights_of(read_column(job, "--weights", arguments.weights, reading), data.n, data.reference)
    return scale_weights(replace(data, sample_weight=weights))  # type: ignore[type-var]


@contextmanager
def translate_errors(*, has_missing: bool = True) -> Iterator[None]:
    """Translate errors of the library: they name options of the command instead of Python arguments."""
    try:
        yield
    except FileError as error:
        message = translate(error, has_missing=has_missing)
        raise error if message == str(error) else FileError(message) from None
    except (ValueError, TypeError) as error:
        raise FileError(translate(error, has_missing=has_missing)) from None


def translate(error: Exception, *, has_missing: bool = True) -> str:
    """Return the message of an error with options of the command instead of Python arguments."""
    message = str(error)
    if isinstance(error, NoLengthScaleError):
        remedies = {
            "classes": "give it by --bandwidth",
            "predictions": "use evaluate with --no-stream, or update with --bandwidth-of other predictions",
            "targets": "use kcalib.skce or kcalib.calibration_test in Python, with another target_kernel",
        }
        message = f"{error.fault}; {remedies[error.of]}"
    elif isinstance(error, OptionError) and error.option in ("index", "k", "groups"):
        option = {"index": "the column of --lens class-wise", "k": "the number of --lens top-k"}
        message = f"{option.get(error.option, '--lens groups')} {error.fault}"
    elif isinstance(error, OptionError) and (error.option in owners() or error.option in RENAMED_OPTIONS):
        message = f"{flag(error.option)} {error.fault}"
    message = message.replace("`sample_weight", "`--weights")
    for name in ("targets", "per_character", "clusters", "time_blocks", "sort_quantiles"):
        message = message.replace(f"`{name}`", f"--{name.replace('_', '-')}")
    message = re.sub("but `(probs|labels)` is for", r"but --\1 is for", message)  # others are arrays of the file
    message = message.replace("or give clusters,", "or give --clusters,")
    message = message.replace("normalise the rows", "divide the rows by their sums (--normalize)")
    if not has_missing:
        message = re.sub(", or pass missing='drop'.*", "", message)
    message = message.replace("missing='drop'", "--missing drop")
    message = re.sub("pass predicted distributions.*", "name --mean and --std, --samples, or --rate", message)
    message = re.sub("pass the output of predict_proba.*", "name the predictions by --probs or --logits", message)
    message = message.replace("pass multilabel=True to kcalib.evaluate", "evaluate them with --multilabel")
    if "pass classes=" in message:
        message += " (in an .npz file: an array `classes`)"

    message = re.sub(r"classes=range\(1, (\d+)\)", lambda match: f"classes={list(range(1, int(match[1])))}", message)

    def spell(match: re.Match[str]) -> str:
        return "--classes=" + ",".join(name.strip(" '\"") for name in match[1].split(","))

    message = re.sub(r"(?<![`\w])classes=\[([^]]*)\]", spell, message)
    return re.sub(r"(?<=pass |with )classes=(?= )", "--classes=A,B,...", message)
