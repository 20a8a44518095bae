"""The command `kcalib`: files in (`_command.files`), one table, JSON or CSV out, a picture (`report.figures`).

Whatever a user can do wrong ends in one line on standard error, never in a traceback. The
exit codes are those of `EPILOG`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib.resources
import io
import json
import math
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._command import files
from kcalib._command.files import names
from kcalib._input.forecasts import Either as Data
from kcalib._input.forecasts import Forecasts
from kcalib._version import __version__
from kcalib.estimators.forecast_quantities import LEVELS
from kcalib.estimators.quantile_calibration import QuantileCalibration, curve_of
from kcalib.estimators.reliability import ReliabilityDiagram, diagram_of
from kcalib.estimators.skce import ESTIMATORS
from kcalib.evaluation import INTERVAL, ForecastEvaluation, evaluation_of, forecast_evaluation_of
from kcalib.evaluation import N_BINS as EVALUATION_BINS
from kcalib.inference.calibration_test import METHODS
from kcalib.inference.compare import METRICS, N_BINS, N_RESAMPLES, SEED, Options, comparison_of
from kcalib.lenses import Canonical, ClassWise, Groups, Lens, TopK, TopLabel
from kcalib.report import figures
from kcalib.results import CalibrationTestResult, Comparison, ConfidenceInterval, Evaluation, aligned

DONE, BAD_INPUT, USAGE, MISCALIBRATED, INTERRUPTED = 0, 1, 2, 3, 130

MOST_BINS = 10_000
# How the library's messages name what an option says.
OPTION_OF = {
    "from_logits=True": "--from-logits",
    "`block_size`": "--block-size",
    "`index`": "the column of --lens class-wise",
    "`k`": "the number of --lens top-k",
    "`groups`": "--lens groups",
}

EPILOG = f"""\
formats:
  .npz       arrays by name (best for regression); with `classes`, the label of each column, labels may be strings
  .npy       structured: fields are columns; plain: the predictions (logits if the file's
             name says so), with labels in a file beside it, such as labels.npy
  .csv       a header, then one sample a line; commas, UTF-8
  .parquet   needs pyarrow: pip install 'kcalib[parquet]'
Predictions are an array (n, m), or (n,) for the probability of the second of two classes.
Among columns they are one (binary), one of lists, or a family: probs_0, probs_1, ... (also
probs.0, probs0), or probs_cat, probs_dog, ... for labels cat, dog, ...

Regression: targets, and for each sample a predicted distribution: a normal one by its mean and
standard deviation, an empirical one by samples (n, S), or a Poisson one by its rate. Columns of
samples are samples_0, samples_1, ...; for targets that are vectors y_0, y_1, ... and mean_0, ...,
std_0, ...; arrays are (n, d), samples (n, S, d).

names, in order of preference:
  probabilities  {", ".join(names.PROBABILITY_NAMES)}
  logits         {", ".join(names.LOGIT_NAMES)} (a softmax is applied)
  mean and std   {", ".join(names.MEAN_NAMES)}; {", ".join(names.STD_NAMES)}
  samples        {", ".join(names.SAMPLES_NAMES)}
  rate           {", ".join(names.RATE_NAMES)}
  labels         {", ".join(names.LABEL_NAMES)} (targets, too)

exit codes:
  {DONE}    done
  {BAD_INPUT}    bad input: a file could not be read, evaluated or compared, or an output not written
  {USAGE}    usage: an unknown option or an option value out of range
  {MISCALIBRATED}    with --fail-if-miscalibrated (not of compare): done, and some model is miscalibrated
  {INTERRUPTED}  interrupted
"""


@dataclass(frozen=True)
class Job:
    """A file to evaluate."""

    model: str
    file: str  # as the user calls it
    path: Path


@dataclass(frozen=True)
class Model:
    """An evaluated file."""

    model: str
    file: str
    evaluation: Evaluation | ForecastEvaluation
    diagram: ReliabilityDiagram | QuantileCalibration | None  # for the picture


@dataclass(frozen=True)
class Failure:
    """A file that was not evaluated or not written, and why."""

    file: str
    message: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        arguments = _parser().parse_args(argv)
        code: int = arguments.run(arguments)
    except SystemExit as stop:  # --help, --version and usage errors
        code = stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        _report("interrupted")
        code = INTERRUPTED
    return code if _write("") else max(code, BAD_INPUT)


# -- options -----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="kcalib",
        description="Are my models calibrated, how sure is that, and which is calibrated better?",
        epilog=f"`kcalib COMMAND --help` lists options, file formats and exit codes.\n\n{EPILOG}",
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=f"kcalib {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate predictions from files",
        description="Print proper scores, calibration errors and a verdict for the predictions in each file, which\n"
        "are class probabilities, or the distributions that a regression model predicts.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    evaluate.add_argument("files", nargs="+", metavar="FILE", help="predictions and labels of one model")
    _add_reading(evaluate)
    _add_common(evaluate)
    evaluate.set_defaults(run=_run_evaluate, usage_error=evaluate.error)

    compare = commands.add_parser(
        "compare",
        help="compare models on the same samples",
        description="Print a calibration error or score of each model with its interval, a ranking, and the paired\n"
        "differences of all pairs of models. All files must hold the same labels, or targets, in the same order.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    compare.add_argument("files", nargs="+", metavar="FILE", help="predictions and labels of one model; at least two")
    _add_reading(compare)
    _add_comparing(compare)
    compare.set_defaults(run=_run_compare, usage_error=compare.error)

    demo = commands.add_parser(
        "demo",
        help="evaluate the predictions of six classifiers that come with kcalib",
        description="Do what `kcalib evaluate` does on the predictions of six classifiers of handwritten digits.",
        epilog=EPILOG[EPILOG.index("exit codes:") :],
        formatter_class=formatter,
    )
    _add_common(demo)
    demo.set_defaults(run=_run_demo)
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    names = parser.add_argument_group("what to read")
    which = names.add_mutually_exclusive_group()
    which.add_argument("--probs", metavar="NAME", help="array, column or prefix of columns with the probabilities")
    which.add_argument("--logits", metavar="NAME", help="the same for logits: a softmax is applied")
    which.add_argument("--mean", metavar="NAME", help="regression: array, column or prefix of columns with the means")
    names.add_argument("--std", metavar="NAME", help="the same for their standard deviations")
    which.add_argument("--samples", metavar="NAME", help="regression: the same for samples of each prediction")
    which.add_argument("--rate", metavar="NAME", help="regression: the same for rates of Poisson distributions")
    names.add_argument(
        "--labels", metavar="NAME", help="array or column with the labels or targets, or a file NAME.npy"
    )
    names.add_argument("--from-logits", action="store_true", help="the predictions are logits, however they are named")


def _add_comparing(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of tables")
    output.add_argument("--csv", action="store_true", help="print CSV instead of tables: the models, then the pairs")
    computed = parser.add_argument_group("what to compute")
    computed.add_argument(
        "--metric",
        choices=tuple(METRICS),
        default="skce",
        help="what to compare the models by (default: %(default)s);"
        f" of regression files {', '.join(name for name, metric in METRICS.items() if metric.of_distributions)}",
    )
    computed.add_argument(
        "--confidence-level", metavar="FLOAT", type=_level, default=0.95, help="of the intervals (default: %(default)s)"
    )
    _add_lens(computed)
    # None: not given, which matters where the metric has no such option.
    computed.add_argument(
        "--bins", metavar="INT", type=_integer(1, MOST_BINS), help=f"bins of the ECE (default: {N_BINS})"
    )
    computed.add_argument(
        "--resamples", metavar="INT", type=_integer(1),
        help=f"replicates of the bootstrap for the ECE (default: {N_RESAMPLES}, more for many pairs)",
    )  # fmt: skip
    computed.add_argument(
        "--seed", metavar="INT", type=_integer(0),
        help=f"seed of the bootstrap, or of what SKCE and CKCE draw (default: {SEED})",
    )  # fmt: skip
    computed.add_argument(
        "--threads", metavar="INT", type=_integer(1),
        help="threads, of skce, ckce and ece (default: one for each CPU, or OMP_NUM_THREADS)",
    )  # fmt: skip


def _add_common(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    machine = output.add_mutually_exclusive_group()
    machine.add_argument("--json", action="store_true", help="print JSON instead of a table")
    machine.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    output.add_argument(
        "--plot",
        metavar="OUT",
        type=_picture,
        help="write reliability diagrams, or quantile calibration curves of regression models, to a .png, .pdf or .svg "
        "file",
    )
    output.add_argument(
        "--fail-if-miscalibrated",
        action="store_true",
        help=f"exit with {MISCALIBRATED} if a verdict is 'miscalibrated'",
    )
    computed = parser.add_argument_group("what to compute")
    _add_lens(computed)
    computed.add_argument(
        "--level", metavar="FLOAT", type=_level, default=0.05, help="level of the verdict (default: %(default)s)"
    )
    computed.add_argument(
        "--seed", metavar="INT", type=_integer(0), default=0,
        help="seed of what the test draws or permutes (default: %(default)s)",
    )  # fmt: skip
    computed.add_argument(
        "--method", choices=("auto", *METHODS), default="auto", help="test of calibration (default: %(default)s)"
    )
    computed.add_argument(
        "--estimator", choices=ESTIMATORS, default="unbiased", help="estimator of the SKCE (default: %(default)s)"
    )
    computed.add_argument(
        "--block-size", metavar="INT", type=_integer(2),
        help="samples in a block, for --method block and --estimator block (default: about the square root of n)",
    )  # fmt: skip
    computed.add_argument(
        "--bins", metavar="INT", type=_integer(1, MOST_BINS),
        help=f"bins of the ECE and of reliability diagrams (default: {EVALUATION_BINS})",
    )  # fmt: skip
    computed.add_argument(
        "--threads", metavar="INT", type=_integer(1), help="threads (default: one for each CPU, or OMP_NUM_THREADS)"
    )


def _add_lens(group: Any) -> None:
    group.add_argument(
        "--lens", metavar="LENS", type=_lens, default=Canonical(),
        help="notion of calibration: canonical (all classes, the default), top-label, class-wise:COLUMN, top-k:K, or "
        "groups:0,1/2,3,4 (columns, counted from 0)",
    )  # fmt: skip


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    bounds = f"at least {low}" if high is None else f"between {low} and {high}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{text!r}, expected an integer {bounds}")
        return value

    return parse


def _level(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number between 0 and 1")
    return value


def _lens(text: str) -> Lens:
    name, colon, argument = text.partition(":")
    if not colon and name in ("canonical", "top-label"):
        return TopLabel() if name == "top-label" else Canonical()
    try:
        if name == "class-wise":
            return ClassWise(_integer(0)(argument))
        if name == "top-k":
            return TopK(_integer(1)(argument))
        if name == "groups":
            return Groups([[_integer(0)(column) for column in group.split(",")] for group in argument.split("/")])
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    raise argparse.ArgumentTypeError(
        f"{text!r}, expected canonical, top-label, class-wise:COLUMN, top-k:K or groups:0,1/2,3,4"
    )


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in figures.SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a file name that ends in {', '.join(figures.SUFFIXES)}")
    return path


# -- commands ----------------------------------------------------------------------------------


def _run_evaluate(arguments: argparse.Namespace) -> int:
    return _run(arguments, list(_named(arguments.files)), _reading(arguments))


def _run_demo(arguments: argparse.Namespace) -> int:
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


def _reading(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("probs", "logits", "labels", "from_logits", "mean", "std", "samples", "rate")
    reading = {name: getattr(arguments, name) for name in names}
    for option in ("probs", "logits", "samples", "rate"):
        if reading["std"] is not None and reading[option] is not None:
            arguments.usage_error(f"--std goes with --mean, not with --{option}; leave it out")
    for option in ("mean", "std", "samples", "rate"):
        if reading["from_logits"] and reading[option] is not None:
            arguments.usage_error(f"--from-logits is for class probabilities, --{option} for regression; leave one out")
    return reading


def _named(files: Sequence[str]) -> Iterator[Job]:
    """Models are called by the stems of their files, or by their paths where stems are equal."""
    stems = Counter(Path(file).stem for file in files)
    for file in files:
        stem = Path(file).stem
        yield Job(_printable(stem if stems[stem] == 1 else file), file, Path(file))


def _run(arguments: argparse.Namespace, jobs: Sequence[Job], reading: dict[str, Any]) -> int:
    models: list[Model] = []
    failures: list[Failure] = []

    if arguments.plot is not None:  # a missing library shows before the work, not after it
        with _collected(failures, str(arguments.plot)):
            figures.require_matplotlib()
    for job in jobs if not failures else ():
        with _collected(failures, job.file):
            models.append(_evaluated(job, arguments, reading, models[0] if arguments.csv and models else None))
    if arguments.plot is not None and models:
        with _collected(failures, str(arguments.plot)):
            figures.plot_reliability([_panel(model) for model in models], arguments.plot)

    if arguments.json:
        text = _json(models, failures, arguments)
    elif arguments.csv:
        text = _csv(models)
    else:
        text = _report_of(models, arguments) if models else ""
    if not _write(text) or failures:
        return BAD_INPUT
    if arguments.fail_if_miscalibrated and any(model.evaluation.miscalibrated for model in models):
        return MISCALIBRATED
    return DONE


@contextmanager
def _collected(failures: list[Failure], file: str) -> Iterator[None]:
    """An error becomes a line on standard error and a Failure."""
    try:
        yield
    except (OSError, ValueError, TypeError, MemoryError, figures.PlotError) as error:
        failures.append(Failure(_printable(file), _message(error)))
        _report(f"error: {failures[-1].file}: {failures[-1].message}")


def _evaluated(
    job: Job, arguments: argparse.Namespace, reading: dict[str, Any], same_kind_as: Model | None = None
) -> Model:
    options = {name: getattr(arguments, name) for name in ("level", "estimator", "method", "block_size")}
    options |= {"kernel": None, "seed": arguments.seed, "threads": arguments.threads}
    with _prepared(job, arguments.threads, reading) as data:
        if same_kind_as is not None and isinstance(data, Forecasts) != _is_regression(same_kind_as):
            raise files.FileError(
                f"{_kind(isinstance(data, Forecasts))}, {same_kind_as.model} {_kind(_is_regression(same_kind_as))}; "
                "--csv prints one table: evaluate the files of each kind by themselves"
            )
        if isinstance(data, Forecasts):
            _check_for_forecasts(data, arguments)
            curve = None
            evaluation = forecast_evaluation_of(data, **options)
            if arguments.plot is not None:
                curve = curve_of(
                    data, levels=np.asarray(LEVELS), confidence_level=0.95, simultaneous=False, seed=arguments.seed
                )
            return Model(job.model, job.file, evaluation, curve)
        data = arguments.lens.induced(data)
        n_bins = EVALUATION_BINS if arguments.bins is None else arguments.bins
        diagram = None
        classes = evaluation_of(data, n_bins=n_bins, **options)
        if arguments.plot is not None:
            diagram = diagram_of(TopLabel().induced(data), n_bins=n_bins)
    return Model(job.model, job.file, classes, diagram)


def _is_regression(model: Model) -> bool:
    return isinstance(model.evaluation, ForecastEvaluation)


def _kind(is_regression: bool) -> str:
    return "holds predicted distributions" if is_regression else "holds class probabilities"


def _check_for_forecasts(data: Forecasts, arguments: argparse.Namespace) -> None:
    """That no option is given that is for class probabilities, or for predictions of numbers, only."""
    if data.n_dims > 1 and getattr(arguments, "plot", None) is not None:
        raise files.FileError(
            f"holds predictions of vectors of {data.n_dims} entries, and --plot draws those of numbers; leave it out, "
            "or write a file for each entry"
        )
    given = {"--lens": arguments.lens != Canonical(), "--bins": arguments.bins is not None}
    for option, is_given in given.items():
        if is_given:
            raise files.FileError(f"{_kind(True)}, but {option} is for class probabilities; leave it out")


@contextmanager
def _prepared(job: Job, threads: int | None, reading: dict[str, Any]) -> Iterator[Data]:
    """The checked content of a file; errors that the library then raises speak of the file."""
    found = files.read_predictions(job.path, **reading)
    try:
        yield found.prepared(threads)
    except files.FileError:
        raise
    except (ValueError, TypeError) as error:
        # The library speaks of arguments; say what they are here.
        message = str(error)
        for argument, option in OPTION_OF.items():
            message = message.replace(argument, option)
        if "pass classes=" in message:
            message += " (in an .npz file: an array `classes`)"
        if any(f"`{name}" in message for name in ("y_true", "y_pred", "mean", "std", "samples", "rate")):
            message += f" ({found.origin})"
        raise files.FileError(message) from None


def _run_compare(arguments: argparse.Namespace) -> int:
    jobs = list(_named(arguments.files))
    options = _comparing(arguments, jobs)
    whole: dict[str, Data] = {}  # as in the files, not seen through the lens
    models: dict[str, Data] = {}
    failures: list[Failure] = []
    for job in jobs:
        with _collected(failures, job.file):
            with _prepared(job, arguments.threads, _reading(arguments)) as data:
                whole[job.model] = data
                if isinstance(data, Forecasts):
                    _check_for_forecasts(data, arguments)
                    models[job.model] = data
                else:
                    models[job.model] = arguments.lens.induced(data)
            _check_same_samples(data, *next(iter(whole.items())))
    comparison = None
    if not failures:
        with _collected(failures, "compare"):
            comparison = comparison_of(models, arguments.metric, arguments.confidence_level, options)
    if arguments.json:
        text = _comparison_json(comparison, jobs, failures)
    elif comparison is None:
        text = ""
    else:
        text = _comparison_csv(comparison) if arguments.csv else _comparison_report(comparison)
    return DONE if _write(text) and not failures else BAD_INPUT


def _comparing(arguments: argparse.Namespace, jobs: Sequence[Job]) -> Options:
    """The options of the comparison; a usage error if the metric does not have one of them."""
    if len(jobs) < 2:
        arguments.usage_error("expected at least two files to compare")
    twice = [name for name, count in Counter(job.model for job in jobs).items() if count > 1]
    if twice:
        arguments.usage_error(f"{twice[0]} is given twice")
    options = Options(
        n_bins=arguments.bins, n_resamples=arguments.resamples, seed=arguments.seed, threads=arguments.threads
    )
    try:
        options.check(arguments.metric, arguments.confidence_level)
    except ValueError as error:
        message = str(error)
        for name, option in (
            ("n_bins", "bins"),
            ("n_resamples", "resamples"),
            ("seed", "seed"),
            ("threads", "threads"),
        ):
            message = message.replace(f"`{name}`", f"--{option}")
        arguments.usage_error(
            message.replace("metric=", "--metric ").replace("confidence_level=", "--confidence-level ")
        )
    return options


def _check_same_samples(data: Data, name: str, first: Data) -> None:
    """That the labels or targets are those of the first model, which is called `name`."""
    reason = "; models are compared on the same samples in the same order"
    if isinstance(data, Forecasts) and isinstance(first, Forecasts):
        _check_same_targets(data, name, first, reason)
        return
    if isinstance(data, Forecasts) or isinstance(first, Forecasts):
        raise files.FileError(
            f"{_kind(isinstance(data, Forecasts))}, but {name} {_kind(isinstance(first, Forecasts))}; "
            "models of one kind are compared"
        )
    if (data.n, data.m) != (first.n, first.m):
        raise files.FileError(f"{data.n} samples and {data.m} classes, but {name} has {first.n} and {first.m}" + reason)
    classes, expected = (tuple(range(one.m)) if one.classes is None else one.classes for one in (data, first))
    if classes != expected:
        raise files.FileError(
            f"the columns are the classes {list(classes)}, but those of {name} {list(expected)}; "
            "write the same columns in the same order"
        )
    differing = np.flatnonzero(data.labels != first.labels)
    if differing.size:
        i = int(differing[0])
        raise files.FileError(
            f"the label of sample {i} (counted from 0) is {classes[data.labels[i]]}, but in {name} "
            f"{classes[first.labels[i]]} ({differing.size} labels differ)" + reason
        )


def _check_same_targets(data: Forecasts, name: str, first: Forecasts, reason: str) -> None:
    if (data.n, data.n_dims) != (first.n, first.n_dims):
        raise files.FileError(
            f"{data.n} samples and targets of {data.n_dims} entries, but {name} has {first.n} and {first.n_dims}"
            + reason
        )
    differing = np.argwhere(data.y != first.y)
    if differing.size:
        i, entry = (int(k) for k in differing[0])
        raise files.FileError(
            f"the target of sample {i} (counted from 0) is {data.y[i, entry]:.6g}, but in {name} "
            f"{first.y[i, entry]:.6g} ({len(np.unique(differing[:, 0]))} targets differ)" + reason
        )


# -- output ------------------------------------------------------------------------------------

# Header, cell of an evaluation, and whether the column holds text; the model's name goes before them.
Column = tuple[str, Callable[[Any], str], bool]
COMMON_COLUMNS: tuple[Column, ...] = (
    ("SKCE", lambda e: f"{e.skce.value:.2e}", False),
    ("std. error", lambda e: _scientific(e.skce.standard_error), False),
    ("p-value", lambda e: _pvalue(e.test.pvalue), False),
    ("verdict", lambda e: e.verdict, True),
)
COLUMNS: tuple[Column, ...] = (
    ("n", lambda e: str(e.n_samples), False),
    ("classes", lambda e: str(e.n_classes), False),
    ("accuracy", lambda e: f"{e.accuracy:.4f}", False),
    ("log loss", lambda e: f"{e.log_loss:.4f}", False),
    ("Brier", lambda e: f"{e.brier_score:.4f}", False),
    ("ECE", lambda e: f"{e.top_label_ece:.4f}", False),
    *COMMON_COLUMNS,
)
FORECAST_COLUMNS: tuple[Column, ...] = (
    ("n", lambda e: str(e.n_samples), False),
    ("predicted", lambda e: e.prediction, True),
    ("RMSE", lambda e: f"{e.rmse:.4g}", False),
    ("CRPS", lambda e: f"{e.crps:.4g}", False),
    ("log score", lambda e: _optional(e.log_score, ".4f"), False),
    ("pinball", lambda e: _optional(e.pinball_loss, ".4g"), False),
    (f"in {100 * INTERVAL:g} %", lambda e: _optional(e.interval_coverage, ".4f"), False),
    *COMMON_COLUMNS,
)
GAP = "  "


def _cells(model: Model) -> list[str]:
    columns = FORECAST_COLUMNS if _is_regression(model) else COLUMNS
    return [model.model, *(cell(model.evaluation) for _, cell, _ in columns)]


def _report_of(models: Sequence[Model], arguments: argparse.Namespace) -> str:
    """A table for each kind of model, and below it what was done."""
    width = shutil.get_terminal_size(fallback=(sys.maxsize, 24)).columns
    kinds = [[model for model in models if _is_regression(model) is kind] for kind in (False, True)]
    return "\n".join(
        _table(some, width) + "\n" + "".join(line + "\n" for line in _remarks(some, arguments, min(width, 120)))
        for some in kinds
        if some
    )


def _table(models: Sequence[Model], width: int) -> str:
    """One row a model; on a narrow terminal one column a model, as many at a time as fit."""
    columns_of = FORECAST_COLUMNS if _is_regression(models[0]) else COLUMNS
    headers = ["model", *(header for header, _, _ in columns_of)]
    wide = aligned([headers, *map(_cells, models)], [True, *(is_text for _, _, is_text in columns_of)])
    if max(map(len, wide)) <= width:
        return "\n".join(wide) + "\n"
    columns = [_column(model) for model in models]
    widths = [max(map(len, column)) + len(GAP) for column in columns]
    room = width - max(map(len, headers))
    if max(widths) > room:
        return "\n".join(wide) + "\n"
    parts: list[str] = []
    start = 0
    while start < len(columns):
        stop = start + 1
        while stop < len(columns) and sum(widths[start : stop + 1]) <= room:
            stop += 1
        group = columns[start:stop]
        length = max(map(len, group))
        group = [[*headers, *[""] * (length - len(headers))], *(c + [""] * (length - len(c)) for c in group)]
        lines = aligned(list(zip(*group, strict=True)), [True] + [False] * (stop - start))
        parts.append("\n".join(lines) + "\n")
        start = stop
    return "\n".join(parts)


def _column(model: Model) -> list[str]:
    """The cells of a model one below the other, the verdict on several lines."""
    cells = _cells(model)
    return [*cells[:-1], *textwrap.wrap(cells[-1], max(16, *map(len, cells[:-1])), break_long_words=False)]


def _remarks(models: Sequence[Model], arguments: argparse.Namespace, width: int) -> list[str]:
    skce = models[0].evaluation.skce
    threads = "" if skce.threads is None else f", {skce.threads} thread{'s' if skce.threads > 1 else ''}"
    kernel = f"{skce.kernel.partition('(')[0]} kernel with the median distance as bandwidth"
    if _is_regression(models[0]):
        targets = dict.fromkeys(model.evaluation.skce.target_kernel.partition("(")[0] for model in models)
        kernel += f", {' or '.join(targets)} kernel on targets"
    level = f"{arguments.level:g}"
    lens = [] if skce.lens == str(Canonical()) else [f"lens: {skce.lens}: all numbers are those of its classes"]
    remarks = [
        *lens,
        f"SKCE: {skce.estimator} estimator, {kernel}; {skce.operator} operator{threads}",
        *_forecast_remarks(models),
        f"verdict at level {level}: {'; '.join(_tests([model.evaluation.test for model in models]))}",
    ]
    if len(models) > 1:
        remarks.append(
            f"the level holds for each model by itself; for {level} over all {len(models)} "
            f"use --level {arguments.level / len(models):.2g}"
        )
    return [line for remark in remarks for line in textwrap.wrap(remark, width, subsequent_indent="  ")]


def _forecast_remarks(models: Sequence[Model]) -> list[str]:
    """What the columns of the table of regression models are."""
    evaluations = [model.evaluation for model in models if isinstance(model.evaluation, ForecastEvaluation)]
    if not evaluations:
        return []
    remarks = [f"in {100 * INTERVAL:g} %: share of the targets in central intervals of that probability"]
    if any(e.n_dims > 1 for e in evaluations):
        remarks.append("CRPS of vectors: the energy score; pinball loss and intervals are for numbers only")
    return remarks


def _tests(tests: Sequence[CalibrationTestResult]) -> Iterator[str]:
    """What was done, once for each method."""
    for method in dict.fromkeys(test.method for test in tests):
        some = [test for test in tests if test.method == method]
        blocks = sorted({test.block_size for test in some if test.block_size is not None})
        if blocks:
            sizes = str(blocks[0]) if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]}"
            yield f"{method} test, blocks of {sizes} samples, permuted with seed {some[0].seed}"
        elif some[0].n_resamples is not None:
            yield f"{method} test of all pairs, {some[0].n_resamples} draws with seed {some[0].seed}"
        else:
            yield f"{method} test of all pairs"


def _comparison_report(comparison: Comparison) -> str:
    width = min(120, shutil.get_terminal_size(fallback=(sys.maxsize, 24)).columns)
    remarks = [line for text in comparison.remarks() for line in textwrap.wrap(text, width, subsequent_indent="  ")]
    parts = (comparison.model_lines(), comparison.pair_lines(), remarks)
    return "\n".join("".join(line + "\n" for line in lines) for lines in parts)


def _comparison_json(comparison: Comparison | None, jobs: Sequence[Job], failures: Iterable[Failure]) -> str:
    content = {
        "kcalib": __version__,
        "files": {job.model: _printable(job.file) for job in jobs},
        "comparison": None if comparison is None else dataclasses.asdict(comparison),
        "errors": [dataclasses.asdict(failure) for failure in failures],
    }
    return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _comparison_csv(comparison: Comparison) -> str:
    """One table: a model has no second model and no p-values, a pair no rank."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([
        "model", "minus", "metric", "lens", "value", "standard_error", "low", "high", "confidence_level", "rank",
        "pvalue", "pvalue_holm", "distinguishable",
    ])  # fmt: skip
    what, level = (comparison.metric, comparison.lens), comparison.confidence_level
    for m in comparison.models:
        row = [m.model, "", *what, m.value, m.standard_error, *m.confidence_interval, level, m.rank]
        writer.writerow([*row, "", "", ""])
    for d in comparison.differences:
        row = [d.first, d.second, *what, d.difference, d.standard_error, *d.confidence_interval, level, ""]
        writer.writerow([*row, d.pvalue, d.pvalue_holm, d.distinguishable])
    return text.getvalue()


def _json(models: Iterable[Model], failures: Iterable[Failure], arguments: argparse.Namespace) -> str:
    content = {
        "kcalib": __version__,
        "level": arguments.level,
        "seed": arguments.seed,
        "models": [
            {"model": model.model, "file": model.file, **dataclasses.asdict(model.evaluation)} for model in models
        ],
        "errors": [dataclasses.asdict(failure) for failure in failures],
    }
    return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null. Intervals have named limits."""
    if isinstance(value, ConfidenceInterval):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


CSV_FIELDS = (
    "n_samples",
    "n_classes",
    "lens",
    "accuracy",
    "mean_confidence",
    "log_loss",
    "brier_score",
    "top_label_ece",
)
FORECAST_CSV_FIELDS = (
    "n_samples", "n_dims", "prediction", "rmse", "crps", "log_score", "pinball_loss", "interval_coverage",
    "interval_width", "pit_mean", "quantile_calibration_error",
)  # fmt: skip


def _csv(models: Sequence[Model]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    fields = FORECAST_CSV_FIELDS if models and _is_regression(models[0]) else CSV_FIELDS
    writer.writerow([
        "model", "file", *fields, "skce", "skce_standard_error", "skce_estimator", "kernel", "method", "statistic",
        "pvalue", "block_size", "n_blocks", "seed", "level", "miscalibrated", "verdict",
    ])  # fmt: skip
    for model in models:
        e = model.evaluation
        writer.writerow([
            model.model, model.file, *(getattr(e, field) for field in fields), e.skce.value, e.skce.standard_error,
            e.skce.estimator, e.skce.kernel, e.test.method, e.test.statistic, e.test.pvalue, e.test.block_size,
            e.test.n_blocks, e.test.seed, e.level, e.miscalibrated, e.verdict,
        ])  # fmt: skip
    return text.getvalue()


def _panel(model: Model) -> figures.Panel:
    assert model.diagram is not None
    e = model.evaluation
    notes = [f"SKCE {e.skce.value:.2e}", _with_p(_pvalue(e.test.pvalue))]
    if isinstance(e, ForecastEvaluation):
        notes.insert(0, f"CRPS {e.crps:.4g}")
    else:
        notes.insert(0, f"ECE {e.top_label_ece:.4f}")
        if e.lens != str(Canonical()):
            notes.insert(0, e.lens)
    return figures.Panel(model.model, e.verdict, e.miscalibrated, tuple(notes), model.diagram, _is_regression(model))


def _with_p(pvalue: str) -> str:
    return f"p {pvalue[0]} {pvalue[1:]}" if pvalue[0] == "<" else f"p = {pvalue}"


def _pvalue(pvalue: float) -> str:
    return f"{pvalue:.2g}" if pvalue > 0 else "<1e-300"


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _scientific(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"


def _message(error: BaseException) -> str:
    """One line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, MemoryError):
        text = f"not enough memory ({text})" if text else "not enough memory"
    return _printable(" ".join(text.split()))


def _printable(text: str) -> str:
    """File names need not be text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _report(line: str) -> None:
    if sys.stderr is not None:
        print("kcalib: " + _encodable(line, sys.stderr), file=sys.stderr)


def _write(text: str) -> bool:
    """Write to standard output and flush it; whether that worked or was no longer wanted."""
    if sys.stdout is None:
        return True
    try:
        sys.stdout.write(_encodable(text, sys.stdout))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes again when it ends: give it something to flush into.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _report(f"error: standard output: {_message(error)}")
            return False
    return True


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
