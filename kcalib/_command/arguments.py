"""The options of the command: `parser`."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kcalib._backend.files import printable
from kcalib._backend.options import SEED
from kcalib._command import method_options
from kcalib._command.nearest import nearest
from kcalib._command.parallel import FORMS, METAVAR, workers
from kcalib._command.state_arguments import STREAMED_FROM, add_bandwidth, add_running, add_state_options
from kcalib._command.streams import BAD_INPUT, DONE, INTERRUPTED, MISCALIBRATED, SAVED, USAGE
from kcalib._input import columns, parameters
from kcalib._input.forecasts import Forecasts
from kcalib._version import __version__
from kcalib.estimators.binning import N_BINS
from kcalib.estimators.skce import ESTIMATORS, FEATURES
from kcalib.inference.calibration_test import METHODS
from kcalib.inference.compare import METRICS
from kcalib.inference.metrics.ece import N_RESAMPLES
from kcalib.lenses import Canonical, ClassWise, Groups, Lens, TopK, TopLabel
from kcalib.report import figures
from kcalib.report.diagrams import SCALES

MOST_BINS = 10_000
CANONICAL = Canonical()
AXES = "logit spreads out confidences near 0 and 1, in bins of equal mass (default: linear)"

EPILOG = f"""\
formats:
  .npz       arrays by name (best for regression); with `classes`, the label of each column, labels may be strings
  .npy       structured: fields are columns; plain: the predictions (logits if the file's
             name says so), with labels in a file beside it, such as labels.npy
  .csv       a header, then one sample a line; commas, UTF-8; - is standard input
  .tsv       the same with tabs; .csv.gz, .tsv.gz compressed
  .parquet   needs pyarrow: pip install 'kcalib[parquet]'
Predictions are an array (n, m), or (n,) for the probability of the second of two classes.
Among columns they are one (binary), one of lists, or a family: probs_0, probs_1, ... (also
probs.0, probs0), or probs_cat, probs_dog, ... for labels cat, dog, ...

Regression: targets, and for each sample a predicted distribution: a normal one by its mean and
standard deviation, an empirical one by samples (n, S), or a Poisson one by its rate. Columns of
samples are samples_0, samples_1, ...; for targets that are vectors y_0, y_1, ... and mean_0, ...,
std_0, ...; arrays are (n, d), samples (n, S, d). Also negative binomial distributions by mean and
dispersion, normal ones of vectors by arrays mean and cov or scale_tril, and Laplace distributions,
by --loc and --scale only, since files of normal ones have such names, too.

names, in order of preference:
  probabilities  {", ".join(columns.PROBABILITY_NAMES)}
  logits         {", ".join(columns.LOGIT_NAMES)} (a softmax is applied)
  mean and std   {", ".join(parameters.MEAN_NAMES)}; {", ".join(parameters.STD_NAMES)}
  samples        {", ".join(parameters.SAMPLES_NAMES)}
  rate           {", ".join(parameters.RATE_NAMES)}
  labels         {", ".join(columns.LABEL_NAMES)} (targets, too)

exit codes:
  {DONE}    done
  {BAD_INPUT}    bad input: a file could not be read, evaluated or compared, or an output not written
  {USAGE}    usage: an unknown option or an option value out of range
  {MISCALIBRATED}    with --fail-if-miscalibrated (not of compare): done, and some model is miscalibrated
  {SAVED}   stopped by SIGTERM or SIGINT and saved: run it again with --resume
  {INTERRUPTED}  interrupted
"""


class Parser(argparse.ArgumentParser):
    """One whose errors name what may have been meant, and that a terminal shows and does not obey."""

    commands: Any

    def add_subparsers(self, **kwargs: Any) -> Any:
        self.commands = super().add_subparsers(**kwargs)
        return self.commands

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        first = next(iter(sys.argv[1:] if args is None else args), "")
        own = self._option_string_actions
        if first.startswith("-") and not any(one.startswith(first) for one in own):  # else COMMAND were said to lack
            self.error(f"unrecognized arguments: {first}{nearest(first, own) or '; options come after the COMMAND'}")
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:  # an error of the command, whose usage it shows, and whose options it knows
            command = self.commands.choices[found.command]
            options = re.findall(r"--[a-z-]+", command.format_usage())
            meant = nearest(unknown[0].partition("=")[0], options)
            command.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice is not None:
            message += nearest(choice[1], re.findall(r"\w[\w-]*", choice[2]))
        super().error(printable(message))


def parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(
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
    _add_streaming(evaluate)
    _add_workers(evaluate)
    evaluate.set_defaults(usage_error=evaluate.error)

    compare = commands.add_parser(
        "compare",
        help="compare models on the same samples",
        description="Print a calibration error or score of each model with its interval, a ranking, and the paired\n"
        "differences of all pairs of models. All files must hold the same labels, or targets, in the same order.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    compare.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="predictions and labels of one model; at least two, or a state of several",
    )
    _add_reading(compare)
    _add_comparing(compare)
    _add_streaming(compare)
    _add_workers(compare)
    compare.add_argument("--columns", dest="n_columns", metavar="INT", type=int, help="columns of features in pieces")
    compare.add_argument(
        "--part", metavar="INT", type=integer(0, 2**23 - 1),
        help="with --checkpoint: count these rows apart from those of other parts, so that the states can be merged",
    )  # fmt: skip
    compare.set_defaults(usage_error=compare.error)

    report = commands.add_parser(
        "report",
        help="write a page about models",
        description="Write a page of HTML that needs nothing else: verdicts in words, numbers, reliability diagrams,\n"
        "also of the worst classes, the tests with their laws, a comparison if all files hold the same labels or\n"
        "targets, what recalibration would gain, and how to repeat all of it.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    report.add_argument("files", nargs="+", metavar="FILE", help="predictions and labels of one model")
    report.add_argument(
        "-o", "--output", metavar="OUT", type=Path, required=True, help=".html file; replaced if it exists"
    )
    _add_reading(report)
    pictures = report.add_argument_group("output")
    _add_failing(pictures)
    pictures.add_argument("--axes", choices=SCALES, help=AXES)
    pictures.add_argument(
        "--plot-classes", metavar="INT", type=integer(0, 100),
        help="classes of each model that have a diagram, the worst ones (default: 8; fewer of many models)",
    )  # fmt: skip
    _add_computed(report)
    report.set_defaults(usage_error=report.error, parallel=None)

    update = commands.add_parser(
        "update",
        help="add the predictions of a file to a state",
        description="Add the predictions of a file to a state: a small file of sums, which takes part after part, and\n"
        "is merged with others. It is made if it is not there, and is its own checkpoint: a run that is interrupted\n"
        "goes on from there by the same command with --resume.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    update.add_argument("state", metavar="STATE", help="file of the state, such as all.kcalib")
    update.add_argument("file", metavar="FILE", help="predictions and labels; a file, a folder, or a pattern of files")
    _add_updating(update)
    update.set_defaults(usage_error=update.error)

    merge = commands.add_parser(
        "merge",
        help="make one state of several",
        description="Add up states of different rows with the same options. The results are the same, bit for bit,\n"
        "in any order, and with one bandwidth those of one run over all rows.",
        epilog=EPILOG[EPILOG.index("exit codes:") :],
        formatter_class=formatter,
    )
    merge.add_argument("files", nargs="+", metavar="STATE", help="files of states")
    merge.add_argument(
        "-o", "--output", metavar="OUT", type=Path, required=True, help="file for all; replaced if it exists"
    )
    merge.set_defaults(usage_error=merge.error)

    show = commands.add_parser(
        "show",
        help="evaluate states",
        description="Print what `kcalib evaluate` prints, from states.",
        epilog=EPILOG[EPILOG.index("exit codes:") :],
        formatter_class=formatter,
    )
    show.add_argument("files", nargs="+", metavar="STATE", help="files of states")
    _add_output(show)
    _add_verdict(show.add_argument_group("what to compute"))
    show.set_defaults(usage_error=show.error)

    history = commands.add_parser(
        "history",
        help="show a model over its releases",
        description="Print the numbers and verdicts of models over their releases, from files that hold what\n"
        "`kcalib evaluate --json` (or `show --json`) printed for each, when verdicts changed, and what makes releases\n"
        "incomparable. Releases are called as their files.",
        epilog=EPILOG[EPILOG.index("exit codes:") :],
        formatter_class=formatter,
    )
    history.add_argument("files", nargs="+", metavar="JSON", help="one for each release")
    history.add_argument(
        "--order", choices=("time", "given"), default="time", help="of evaluation (default), or as files are given"
    )
    output = history.add_argument_group("output")
    _add_machine(output)
    output.add_argument(
        "--plot", metavar="OUT", type=_picture,
        help="draw the SKCEs with their intervals, and the ECE or the CRPS, to a .png, .pdf or .svg file",
    )  # fmt: skip
    output.add_argument("--theme", choices=tuple(figures.THEMES), help="with --plot: colours (default: light)")
    output.add_argument(
        "--fail-if-miscalibrated", action="store_true",
        help=f"exit with {MISCALIBRATED} if the verdict on the last release is 'miscalibrated'",
    )  # fmt: skip
    history.set_defaults(usage_error=history.error)

    demo = commands.add_parser(
        "demo",
        help="evaluate the predictions of six classifiers that come with kcalib",
        description="Do what `kcalib evaluate` does on the predictions of six classifiers of handwritten digits.",
        epilog=EPILOG[EPILOG.index("exit codes:") :],
        formatter_class=formatter,
    )
    _add_common(demo)
    demo.set_defaults(usage_error=demo.error, stream=False, parallel=None)
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> Any:
    """The group of options that say what to read."""
    names = parser.add_argument_group("what to read")
    which = names.add_mutually_exclusive_group()
    which.add_argument("--probs", metavar="NAME", help="array, column or prefix of columns with the probabilities")
    which.add_argument("--logits", metavar="NAME", help="the same for logits: a softmax is applied")
    which.add_argument("--mean", metavar="NAME", help="regression: array, column or prefix of columns with the means")
    names.add_argument("--std", metavar="NAME", help="the same for their standard deviations")
    which.add_argument("--samples", metavar="NAME", help="regression: the same for samples of each prediction")
    which.add_argument("--rate", metavar="NAME", help="regression: the same for rates of Poisson distributions")
    names.add_argument(
        "--dispersion", metavar="NAME", help="beside --mean: the same for negative binomial distributions"
    )
    names.add_argument("--cov", metavar="NAME", help="beside --mean: array (n, d, d) of covariance matrices")
    names.add_argument("--scale-tril", metavar="NAME", help="beside --mean: array (n, d, d) of their Cholesky factors")
    which.add_argument("--loc", metavar="NAME", help="regression: the same for medians of Laplace distributions")
    names.add_argument("--scale", metavar="NAME", help="the same for their scales")
    names.add_argument(
        "--labels", metavar="NAME", help="array or column with the labels or targets, or a file NAME.npy"
    )
    names.add_argument("--from-logits", action="store_true", help="the predictions are logits, however they are named")
    names.add_argument(
        "--normalize", action="store_true", help="divide each row of probabilities by its sum, such as rounded ones"
    )
    return names


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
        f" of regression files {', '.join(name for name, metric in METRICS.items() if Forecasts in metric.kinds)}",
    )
    computed.add_argument(
        "--confidence-level", metavar="FLOAT", type=_level, default=0.95, help="of the intervals (default: %(default)s)"
    )
    _add_lens(computed)
    add_bandwidth(computed, "the median over the models of the median distance; skce only")
    # None: not given, which matters where the metric has no such option.
    computed.add_argument(
        "--bins", dest="n_bins", metavar="INT", type=integer(1, MOST_BINS), help=f"bins of the ECE (default: {N_BINS})"
    )
    computed.add_argument(
        "--resamples", dest="n_resamples", metavar="INT", type=integer(1),
        help=f"replicates of the bootstrap for the ECE (default: {N_RESAMPLES}, more for many pairs)",
    )  # fmt: skip
    computed.add_argument(
        "--seed", metavar="INT", type=integer(0), default=SEED,
        help="seed of the bootstrap, or of what SKCE and CKCE draw (default: %(default)s)",
    )  # fmt: skip
    computed.add_argument(
        "--threads", metavar="INT", type=integer(1),
        help="threads, of skce, ckce and ece (default: one for each CPU, or OMP_NUM_THREADS)",
    )  # fmt: skip


def _add_updating(parser: argparse.ArgumentParser) -> None:
    add_running(_add_reading(parser))
    numbers = parser.add_argument_group("numbers of the rows, of which none may come twice")
    numbers.add_argument(
        "--part", metavar="INT", type=integer(0, 2**23 - 1),
        help="count the rows of this file apart from those of other parts; states that are merged have different ones",
    )  # fmt: skip
    numbers.add_argument(
        "--first-row", metavar="INT", type=integer(0, 2**40 - 1),
        help="number of the file's first row (default: after those of the state; with --part or --rows 0)",
    )  # fmt: skip
    options = parser.add_argument_group("options of a new state; states that are merged have the same")
    _add_lens(options, None)
    add_state_options(options)
    options.add_argument("--threads", metavar="INT", type=integer(1), help="threads (default: one for each CPU)")


def _add_streaming(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("samples in pieces")
    group.add_argument(
        "--stream", action=argparse.BooleanOptionalAction,
        help=f"read the file in pieces, in little memory (default: from {STREAMED_FROM >> 30} GiB on)",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint", metavar="FILE", type=Path,
        help=f"save the state there now and then, and when SIGTERM or SIGINT come, which then exit with {SAVED}",
    )  # fmt: skip
    add_running(group)


def _add_workers(parser: argparse.ArgumentParser) -> None:
    pairs = parser.add_argument_group("all pairs of samples, on several processes or machines")
    pairs.add_argument(
        "--parallel", metavar=METAVAR, type=workers,
        help=f"who computes: {FORMS}; --checkpoint FILE then keeps finished tiles, from which --resume goes on",
    )  # fmt: skip


def _add_output(parser: argparse.ArgumentParser) -> Any:
    output = parser.add_argument_group("output")
    _add_machine(output)
    output.add_argument(
        "--plot",
        metavar="OUT",
        type=_picture,
        help="write reliability diagrams, or quantile calibration curves of regression models, to a .png, .pdf or .svg "
        "file",
    )
    output.add_argument("--axes", choices=SCALES, help=f"with --plot: {AXES}")
    output.add_argument("--theme", choices=tuple(figures.THEMES), help="with --plot: colours (default: light)")
    _add_failing(output)
    return output


def _add_machine(output: Any) -> None:
    machine = output.add_mutually_exclusive_group()
    machine.add_argument("--json", action="store_true", help="print JSON instead of a table")
    machine.add_argument("--csv", action="store_true", help="print CSV instead of a table")


def _add_failing(output: Any) -> None:
    output.add_argument(
        "--fail-if-miscalibrated",
        action="store_true",
        help=f"exit with {MISCALIBRATED} if a verdict is 'miscalibrated'",
    )


def _add_verdict(computed: Any) -> None:
    computed.add_argument(
        "--level", metavar="FLOAT", type=_level, default=0.05, help="level of the verdict (default: %(default)s)"
    )
    computed.add_argument(
        "--tolerance", metavar="FLOAT", type=_tolerance,
        help="root mean square error of probabilities that does not matter: the verdict is whether a model is off by "
        "more (default: whether it is calibrated)",
    )  # fmt: skip


def _add_common(parser: argparse.ArgumentParser) -> None:
    _add_output(parser).add_argument(
        "--plot-classes", metavar="INT", type=integer(1, 100), default=0,
        help="with --plot: diagrams of so many classes, those with the largest errors, too",
    )  # fmt: skip
    _add_computed(parser)


def _add_computed(parser: argparse.ArgumentParser) -> None:
    computed = parser.add_argument_group("what to compute")
    _add_lens(computed)
    _add_verdict(computed)
    computed.add_argument(
        "--seed", metavar="INT", type=integer(0), default=0,
        help="seed of what the test draws or permutes (default: %(default)s)",
    )  # fmt: skip
    computed.add_argument(
        "--method", choices=[m.name for m in METHODS], default="auto", help="test of calibration (default: %(default)s)"
    )
    computed.add_argument(
        "--estimator", choices=(*ESTIMATORS, FEATURES),
        help="estimator of the SKCE, and of tests that take one (default: that of the test)",
    )  # fmt: skip
    computed.add_argument(
        "--block-size", metavar="INT", type=integer(2),
        help="samples in a block, for --method block and --estimator block (default: about the square root of n)",
    )  # fmt: skip
    computed.add_argument(
        "--bins", dest="n_bins", metavar="INT", type=integer(1, MOST_BINS),
        help=f"bins of the ECE and of reliability diagrams (default: {N_BINS})",
    )  # fmt: skip
    add_bandwidth(computed, "the median distance")
    computed.add_argument(
        "--threads", metavar="INT", type=integer(1), help="threads (default: one for each CPU, or OMP_NUM_THREADS)"
    )
    method_options.add_options(parser)


def _add_lens(group: Any, default: Lens | None = CANONICAL) -> None:
    group.add_argument(
        "--lens", metavar="LENS", type=_lens, default=default,
        help="notion of calibration: canonical (all classes, the default), top-label, class-wise:COLUMN, top-k:K, or "
        "groups:0,1/2,3,4 (columns, counted from 0)",
    )  # fmt: skip


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
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


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0 to below 1")
    return value


def _lens(text: str) -> Lens:
    name, colon, argument = text.partition(":")
    if not colon and name in ("canonical", "top-label"):
        return TopLabel() if name == "top-label" else Canonical()
    try:
        if name == "class-wise":
            return ClassWise(integer(0)(argument))
        if name == "top-k":
            return TopK(integer(1)(argument))
        if name == "groups":
            return Groups([[integer(0)(column) for column in group.split(",")] for group in argument.split("/")])
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    raise argparse.ArgumentTypeError(
        f"{text!r}, expected canonical, top-label, class-wise:COLUMN, top-k:K or groups:0,1/2,3,4"
        f"{nearest(name, ('canonical', 'top-label', 'class-wise', 'top-k', 'groups'))}"
    )


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in figures.SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a file name that ends in {', '.join(figures.SUFFIXES)}")
    return path
