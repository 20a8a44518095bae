"""Options of the command line: `parser` returns the argument parser with all subcommands."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from kcalib._backend.files import printable
from kcalib._backend.options import SEED, OptionError
from kcalib._command import method_options
from kcalib._command.parallel import parse_workers
from kcalib._command.streams import BAD_INPUT, DONE, INTERRUPTED, MISCALIBRATED, SAVED, USAGE, suggest
from kcalib._input import columns, parameters
from kcalib._input.forecasts import Forecasts
from kcalib._version import __version__
from kcalib.estimators.binning import N_BINS
from kcalib.evaluation_metrics import GROUPS, check_metrics
from kcalib.evaluation_metrics import METRICS as EVALUATE_METRICS
from kcalib.inference.calibration_test import METHODS
from kcalib.inference.compare import METRICS
from kcalib.inference.metrics.ece import N_RESAMPLES
from kcalib.kernels import Exponential, Kernel
from kcalib.lenses import Canonical, ClassWise, Confidence, Groups, Lens, TopK, TopLabel
from kcalib.report import figures
from kcalib.report.diagrams import SCALES

STREAMED_FROM = 2**30  # bytes of all files; from this size on they are read in chunks
STATE = ".kcalib"  # suffix of state files
# Options of `CalibrationState` that have the same name on the command line.
STATE_OPTIONS = ("n_columns", "n_resamples", "n_bins", "lens", "seed", "fair")

FILES = ".npz, .npy, .csv, .tsv, .parquet or .jsonl"

# Options that --help shows; --help-all shows all.
COMMON = {
    *("help", "show_all", "version", "output", "json", "csv", "plot", "fail_if_miscalibrated", "seed", "threads"),
    *("probs", "logits", "confidence", "labels", "positive", "multilabel", "normalize", "mean", "std", "samples"),
    *("lens", "level", "tolerance", "method", "metric", "metrics", "order", "print_completion"),
}

EXIT_CODES = f"""\
exit codes:
  {DONE}    done
  {BAD_INPUT}    bad input: a file could not be read, evaluated, compared or written
  {USAGE}    wrong usage: an unknown option, or a value out of range
  {MISCALIBRATED}    with --fail-if-miscalibrated: done, and some model is miscalibrated
  {SAVED}   stopped by SIGTERM or SIGINT after saving: run the same command with --resume
  {INTERRUPTED}  interrupted
"""

FORMATS = f"""\
formats:
  .npz       named arrays (best for regression); an array `classes` holds the label of each column
  .npy       structured: one field per column; plain: the predictions (logits if the file name
             says so), with the labels in a file next to it, such as labels.npy
  .csv       a header, then one sample per line; commas, UTF-8; - is standard input
  .tsv       the same with tabs; .csv.gz and .tsv.gz are compressed
  .parquet   needs pyarrow: pip install 'kcalib[parquet]'

Class probabilities: an array (n, m), or (n,) for the probability of the second of two classes.
In tables: one column (binary), one column of lists, or several columns: probs_0, probs_1, ...
(also probs.0, probs0), or for labels cat, dog, ...: probs_cat, probs_dog, ... or .pred_cat, .pred_dog, ...
Other columns with the prefix, such as probs_max or .pred_class, are ignored. A single column is the
probability of --positive, else of the class in its name (probs_dog), else of the second of the sorted labels.
For confidences and whether each prediction was right, use --confidence and --labels. For samples with several
labels, an array (n, m) or columns label_cat, label_dog, ..., use --multilabel.

Language models: .jsonl or .json files, or a folder of them, with samples of lm_eval; responses with top_logprobs
and the right answer; confidence and correct; probs and label; or prompts with prompt_logprobs.

Forecast tables: tables of forecast hubs (output_type, output_type_id, value) with --targets, or quantiles in
columns (M-lo-90, M-hi-90, M-median; 0.1, 0.9; q0.1) with --targets or a column y. Each model is evaluated.

Regression: targets, and a predicted distribution for each sample. Arrays have shape (n,) or (n, d), samples
(n, S) or (n, S, d); columns are mean, std, samples_0, samples_1, ..., or mean_0, ..., std_0, ..., y_0, y_1, ...
for vectors.
  Normal                          mean and std; for vectors also mean and cov, or mean and scale_tril (arrays)
  samples                         samples
  Poisson                         rate
  negative binomial               mean and dispersion
  log-normal                      mean_log and std_log
  Laplace, Student's t, gamma     by options only: --loc and --scale; --loc, --scale and --df; --shape and --scale

names, in order of preference:
  probabilities  {", ".join(columns.PROBABILITY_NAMES)}
  logits         {", ".join(columns.LOGIT_NAMES)} (softmax is applied)
  mean and std   {", ".join(parameters.MEAN_NAMES)}; {", ".join(parameters.STD_NAMES)}
  samples        {", ".join(parameters.SAMPLES_NAMES)}
  rate           {", ".join(parameters.RATE_NAMES)}
  labels         {", ".join(columns.LABEL_NAMES)} (also for targets)

{EXIT_CODES}"""


class Parser(argparse.ArgumentParser):
    """An argument parser: --help shows common options only, and errors suggest similar names."""

    commands: Any
    shows_all = False

    def __init__(self, *, details: str = EXIT_CODES, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self.details = details
        self.add_argument("--help-all", dest="show_all", action=HelpAll, help="show all options and exit")

    def add_subparsers(self, **kwargs: Any) -> Any:
        self.commands = super().add_subparsers(**kwargs)
        return self.commands

    def format_help(self) -> str:
        if self.shows_all:
            self.epilog = self.details
            return super().format_help()
        more = "file formats and exit codes" if self.details == FORMATS else "and exit codes"
        self.epilog = f"`{self.prog} --help-all` shows all options, {more}."
        hidden = [action for action in self._actions if action.option_strings and action.dest not in COMMON]
        descriptions = [action.help for action in hidden]
        for action in hidden:
            action.help = argparse.SUPPRESS
        text = super().format_help()
        for action, description in zip(hidden, descriptions, strict=True):
            action.help = description
        return text

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        first = next(iter(sys.argv[1:] if args is None else args), "").partition("=")[0]
        actions = self._option_string_actions
        # Report an unknown option instead of "COMMAND is required".
        if first.startswith("-") and not any(option.startswith(first) for option in actions):
            self.error(f"unrecognized arguments: {first}{suggest(first, actions) or '; put options after the COMMAND'}")
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:  # the subcommand knows its options and suggests one
            command = self.commands.choices[arguments.command]
            suggestion = suggest(unknown[0].partition("=")[0], command._option_string_actions)
            command.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion}")
        if getattr(arguments, "confidence", None) is not None:
            if arguments.lens not in (None, Canonical()):
                arguments.usage_error("--lens does not go with --confidence; leave it out")
            arguments.lens = Confidence()
        return arguments

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice is not None:
            message += suggest(choice[1], re.findall(r"\w[\w-]*", choice[2]))
        super().error(printable(message))


class HelpAll(argparse.Action):
    """Print the help text with all options."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **kwargs)

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.shows_all = True
        parser.print_help()
        parser.exit()


class PrintCompletion(argparse.Action):
    """Print the completion script of a shell."""

    def __call__(self, parser: Any, namespace: Any, shell: Any, option: Any = None) -> None:
        try:
            import shtab
        except ImportError:
            parser.error("--print-completion needs shtab; pip install 'kcalib[completion]'")
        if shell not in shtab.SUPPORTED_SHELLS:
            parser.error(f"--print-completion {shell}: expected one of {', '.join(shtab.SUPPORTED_SHELLS)}")
        for command in parser.commands.choices.values():
            for action in command._actions:
                if action.metavar in ("FILE", "STATE", "OUT", "JSON", "MAP"):
                    action.complete = shtab.FILE
        print(shtab.complete(parser, shell))
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = Parser(
        prog="kcalib",
        description="Measure, test and compare the calibration of probabilistic models.",
        details=FORMATS,
    )
    parser.add_argument("--version", action="version", version=f"kcalib {__version__}")
    parser.add_argument(
        "--print-completion", metavar="SHELL", action=PrintCompletion,
        help="print a completion script for bash, zsh, fish or tcsh, and exit (needs shtab)",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    predictions, states = (_add_evaluate, _add_compare, _add_report, _add_apply), (_add_update, _add_merge, _add_show)
    for add in (*predictions, *states, _add_history, _add_demo):
        command = add(commands)
        command.set_defaults(usage_error=command.error)
    return parser


def _add_evaluate(commands: Any) -> Parser:
    evaluate: Parser = commands.add_parser(
        "evaluate",
        usage="kcalib evaluate [options] FILE ...",
        help="evaluate the predictions of models",
        description="Print proper scores, calibration errors and a verdict for each file. A file holds the labels and\n"
        "the predictions of one model: class probabilities, or the distributions that a regression model\n"
        "predicts.",
        details=FORMATS,
    )
    _add_files(evaluate)
    reading = _add_reading(evaluate)
    reading.add_argument(
        "--multilabel", action="store_true",
        help="samples have any number of labels: an array or columns of 0 or 1; evaluate each label separately",
    )  # fmt: skip
    _add_targets(reading)
    samples = _add_samples(evaluate)
    samples.add_argument(
        "--given", metavar="NAME", action="append", default=[],
        help="further variable: test whether predictions are calibrated for each of its values; may be repeated",
    )  # fmt: skip
    samples.add_argument(
        "--by", metavar="NAME", action="append", default=[],
        help="variable that defines groups: print the groups that are calibrated worst, for forecast tables all groups "
        "(such as horizon); may be repeated",
    )  # fmt: skip
    _add_common(evaluate)
    _add_streaming(evaluate)
    _add_workers(evaluate)
    return evaluate


def _add_compare(commands: Any) -> Parser:
    compare: Parser = commands.add_parser(
        "compare",
        usage="kcalib compare [options] FILE FILE ...",
        help="compare models on the same samples",
        description="Print a calibration error or score of each model with a confidence interval, a ranking, and the\n"
        "paired differences between models. All files must hold the same labels or targets in the same\n"
        "order.",
        details=FORMATS,
    )
    _add_files(compare, "; at least two files, or one state of several models")
    _add_targets(_add_reading(compare))
    _add_samples(compare)
    output = compare.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of tables")
    output.add_argument("--csv", action="store_true", help="print CSV instead of tables: the models, then the pairs")
    computed = compare.add_argument_group("what to compute")
    computed.add_argument(
        "--metric", choices=[metric.name for metric in METRICS], default="skce",
        help="what to compare (default: %(default)s);"
        f" for regression {', '.join(metric.name for metric in METRICS if Forecasts in metric.kinds)}",
    )  # fmt: skip
    computed.add_argument(
        "--confidence-level", metavar="FLOAT", type=LEVEL, default=0.95,
        help="level of the intervals (default: %(default)s)",
    )  # fmt: skip
    _add_lens(computed)
    _add_bandwidth(computed, "the median over the models of the median distances; skce only")
    # None means not given: some metrics do not have the option.
    _add_bins(computed, "bins of the ECE")
    _add_fair(computed)
    computed.add_argument(
        "--resamples", dest="n_resamples", metavar="INT", type=integer(1),
        help=f"bootstrap replicates for the ECE (default: {N_RESAMPLES}, more for many pairs)",
    )  # fmt: skip
    _add_seed(computed, "seed of random draws", SEED)
    _add_threads(computed)
    _add_streaming(compare)
    _add_workers(compare)
    compare.add_argument(
        "--columns", dest="n_columns", metavar="INT", type=int, help="with --stream: number of random features"
    )
    _add_part(compare, "with --checkpoint: number of this part; states to be merged need different parts")
    return compare


def _add_report(commands: Any) -> Parser:
    report: Parser = commands.add_parser(
        "report",
        usage="kcalib report -o OUT [options] FILE ...",
        help="write an HTML report about models",
        description="Write a self-contained HTML page: verdicts in words, numbers, reliability diagrams (also of the\n"
        "worst classes), tests with their null distributions, a comparison if all files hold the same\n"
        "labels or targets, the gain by recalibration, and how to reproduce the report.",
        details=FORMATS,
    )
    _add_files(report)
    _add_written(report, ".html file; replaced if it exists")
    _add_reading(report)
    pictures = report.add_argument_group("output")
    _add_failing(pictures, "a verdict")
    _add_axes(pictures)
    pictures.add_argument(
        "--plot-classes", metavar="INT", type=integer(0, 100),
        help="draw a diagram for this many of the worst classes (default: 8; fewer if there are many models)",
    )  # fmt: skip
    pictures.add_argument(
        "--no-repair", dest="repair", action="store_false",
        help="skip the section on recalibration; it is skipped anyway if it would take longer than a minute",
    )  # fmt: skip
    pictures.add_argument(
        "--save-map", metavar="MAP", type=Path,
        help="write the chosen recalibrator, fitted to all samples that were tried, to this .json file for "
        "`kcalib apply`; one FILE only",
    )  # fmt: skip
    _add_computed(report)
    report.set_defaults(parallel=None, time_blocks=None, metrics=())
    return report


def _add_apply(commands: Any) -> Parser:
    apply: Parser = commands.add_parser(
        "apply",
        usage="kcalib apply [options] MAP FILE -o OUT",
        help="recalibrate predictions by a saved map",
        description="Recalibrate the predictions in a file and write them, with the labels if there are any, to an\n"
        ".npz file. The map was written by `kcalib report --save-map` or kcalib.recalibration.save. Columns\n"
        "that are named after classes may come in any order.",
        details=FORMATS,
    )
    apply.add_argument("map", metavar="MAP", help="fitted recalibrator, such as map.json")
    apply.add_argument("file", metavar="FILE", help="predictions, with or without labels: " + FILES)
    _add_written(apply, ".npz file; replaced if it exists")
    _add_reading(apply)
    apply.set_defaults(lens=None)
    return apply


def _add_update(commands: Any) -> Parser:
    update: Parser = commands.add_parser(
        "update",
        usage="kcalib update [options] STATE FILE",
        help="add predictions to a state",
        description="Add the predictions in a file to a state: a small file of sums, which can be updated again and\n"
        "merged with other states. A missing state is created. It is also the checkpoint of the update:\n"
        "after an interruption, run the same command with --resume.",
        details=FORMATS,
    )
    update.add_argument("state", metavar="STATE", help="state file, such as all.kcalib")
    update.add_argument("file", metavar="FILE", help="predictions and labels: a file, a folder, or a pattern of files")
    reading = _add_reading(update)
    _add_clusters(reading)
    _add_running(reading)
    _add_wait(reading)
    numbers = update.add_argument_group("numbers of rows (a row can be added only once)")
    _add_part(numbers, "number of this part; states to be merged need different parts")
    numbers.add_argument(
        "--first-row", metavar="INT", type=integer(0, 2**40 - 1),
        help="number of the file's first row (default: the next of the state; 0 with --part or --rows)",
    )  # fmt: skip
    options = update.add_argument_group("options of a new state (states to be merged need the same)")
    _add_lens(options, None)
    kernel = options.add_mutually_exclusive_group()
    _add_bandwidth(kernel, "the median distance of the first 2000 rows")
    kernel.add_argument(
        "--bandwidth-of", metavar="FILE",
        help="take the bandwidth of another state, or the median distance of the first 2000 rows of another file of "
        "predictions; states to be merged need equal bandwidths (for regression, on targets too)",
    )  # fmt: skip
    options.add_argument(
        "--columns", dest="n_columns", metavar="INT", type=int, help="number of random features (default: 256)"
    )
    options.add_argument(
        "--resamples", dest="n_resamples", metavar="INT", type=int,
        help="draws of the labels for the null distribution (default: 199; 0 for very many classes and for regression)",
    )  # fmt: skip
    options.add_argument("--bins", dest="n_bins", metavar="INT", type=int, help=f"bins of the ECE (default: {N_BINS})")
    _add_fair(options)
    options.add_argument("--seed", metavar="INT", type=int, help="seed of random features and draws (default: 0)")
    _add_threads(options)
    return update


def _add_merge(commands: Any) -> Parser:
    merge: Parser = commands.add_parser(
        "merge",
        usage="kcalib merge -o OUT STATE ...",
        help="merge states",
        description="Merge states of different rows with equal options. The order does not change the results. With\n"
        "equal bandwidths they are the results of one run over all rows, bit for bit.",
    )
    _add_states(merge)
    _add_written(merge, "merged state; replaced if it exists")
    _add_wait(merge)
    return merge


def _add_show(commands: Any) -> Parser:
    show: Parser = commands.add_parser(
        "show",
        usage="kcalib show [options] STATE ...",
        help="evaluate states",
        description="Print the table of `kcalib evaluate` for the samples that were added to each state.",
    )
    _add_states(show)
    _add_output(show)
    _add_verdict(show.add_argument_group("what to compute"))
    return show


def _add_history(commands: Any) -> Parser:
    history: Parser = commands.add_parser(
        "history",
        usage="kcalib history [options] JSON ...",
        help="show the calibration of a model over its releases",
        description="Print the numbers and verdicts of models over their releases, when verdicts changed, and what\n"
        "makes releases incomparable. Each file holds the output of `kcalib evaluate --json` or `kcalib\n"
        "show --json` for one release; releases are named after their files.",
    )
    history.add_argument("files", nargs="+", metavar="JSON", help="one file for each release")
    history.add_argument(
        "--order", choices=("time", "given"), default="time",
        help="by time of evaluation (default), or as the files are given",
    )  # fmt: skip
    output = history.add_argument_group("output")
    _add_machine(output)
    _add_plot(output, "draw the SKCEs with their intervals, and the ECE or the CRPS, to")
    _add_failing(output, "the verdict on the last release")
    return history


def _add_demo(commands: Any) -> Parser:
    demo: Parser = commands.add_parser(
        "demo",
        usage="kcalib demo [options]",
        help="evaluate the predictions of six classifiers that come with kcalib",
        description="Run `kcalib evaluate` on the predictions of six classifiers of handwritten digits.",
    )
    _add_common(demo)
    demo.set_defaults(
        stream=False,
        parallel=None,
        by=[],
        given=[],
        multilabel=False,
        clusters=None,
        time_blocks=None,
        weights=None,
        targets=None,
        sort_quantiles=False,
    )
    return demo


def _add_files(parser: Parser, more: str = "") -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help=f"predictions and labels of one model: {FILES}{more}")


def _add_states(parser: Parser) -> None:
    parser.add_argument("files", nargs="+", metavar="STATE", help="state files")


def _add_written(parser: Parser, text: str) -> None:
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help=text)


def _add_wait(group: Any) -> None:
    group.add_argument(
        "--wait", metavar="SECONDS", type=SECONDS, default=60.0,
        help=f"how long to wait for another process that writes the state, before exiting with {SAVED} (default: 60)",
    )  # fmt: skip


def _add_reading(parser: Parser) -> Any:
    """Add and return the group of options that say what to read."""
    names = parser.add_argument_group("what to read")
    predictions = names.add_mutually_exclusive_group()
    predictions.add_argument(
        "--probs", metavar="NAME",
        help="array, column, columns (cat,dog,owl), or prefix of columns (such as prob_) with class probabilities",
    )  # fmt: skip
    predictions.add_argument("--logits", metavar="NAME", help="the same for logits, to which softmax is applied")
    predictions.add_argument(
        "--confidence", metavar="NAME",
        help="array or column with confidences; --labels says whether each prediction was right (0 or 1, true or "
        "false)",
    )  # fmt: skip
    predictions.add_argument(
        "--mean", metavar="NAME", help="regression: array, column, or prefix of columns with predicted means"
    )
    names.add_argument("--std", metavar="NAME", help="with --mean: the same for standard deviations")
    predictions.add_argument(
        "--samples",
        metavar="NAME",
        help="regression: the same for samples of each predicted distribution (ensemble members)",
    )
    predictions.add_argument("--rate", metavar="NAME", help="regression: the same for rates of Poisson distributions")
    names.add_argument(
        "--dispersion", metavar="NAME", help="with --mean: the same for dispersions of negative binomial distributions"
    )
    names.add_argument("--cov", metavar="NAME", help="with --mean: array (n, d, d) of covariance matrices")
    names.add_argument(
        "--scale-tril", metavar="NAME", help="with --mean: array (n, d, d) of Cholesky factors of covariance matrices"
    )
    predictions.add_argument("--loc", metavar="NAME", help="regression: the same for medians of Laplace distributions")
    names.add_argument("--scale", metavar="NAME", help="with --loc or --shape: the same for scales")
    names.add_argument(
        "--df",
        metavar="NAME",
        help="with --loc and --scale: the same for degrees of freedom of Student's t distributions",
    )
    predictions.add_argument(
        "--mean-log", metavar="NAME", help="regression: the same for means of the logarithm of log-normal distributions"
    )
    names.add_argument(
        "--std-log", metavar="NAME", help="with --mean-log: the same for standard deviations of the logarithm"
    )
    predictions.add_argument("--shape", metavar="NAME", help="regression: the same for shapes of gamma distributions")
    names.add_argument(
        "--missing", choices=("refuse", "drop"), default=None,
        help="what to do with ensemble members that are NaN: drop leaves them out (default: refuse)",
    )  # fmt: skip
    names.add_argument("--labels", metavar="NAME", help="array or column with labels or targets, or a file NAME.npy")
    names.add_argument(
        "--classes", metavar="A,B,...", type=_classes,
        help="class of each column of probabilities, if the file does not name it; a single column is the second "
        "class; possible answers in logs of language models",
    )  # fmt: skip
    names.add_argument(
        "--positive", metavar="CLASS",
        help="class of a single column of probabilities (default: the class in its name, else the second of the sorted "
        "labels)",
    )  # fmt: skip
    names.add_argument(
        "--per-character", action="store_true",
        help="logs of lm_eval: divide log-likelihoods by the number of characters of each choice, as acc_norm does",
    )  # fmt: skip
    names.add_argument("--from-logits", action="store_true", help="the predictions are logits, whatever their name")
    names.add_argument(
        "--normalize",
        action="store_true",
        help="divide each row of probabilities by its sum (for rounded probabilities)",
    )
    return names


def _add_targets(reading: Any) -> None:
    reading.add_argument(
        "--targets", metavar="FILE", type=Path,
        help="forecast tables: the table of the targets, such as oracle output or a time series of a hub",
    )  # fmt: skip
    reading.add_argument("--sort-quantiles", action="store_true", help="forecast tables: sort crossing quantiles")


def _add_samples(parser: Parser) -> Any:
    """Add and return the group of options that describe samples."""
    samples = parser.add_argument_group("what is known about the samples (arrays or columns of the file)")
    samples.add_argument("--weights", metavar="NAME", help="weights, which must not depend on the labels")
    dependence = samples.add_mutually_exclusive_group()
    _add_clusters(dependence)
    dependence.add_argument(
        "--time-blocks", metavar="INT", type=integer(1),
        help="rows are in the order of time, and independent if they are at least this many steps apart",
    )  # fmt: skip
    return samples


def _add_clusters(group: Any) -> None:
    group.add_argument(
        "--clusters",
        metavar="NAME",
        help="samples with the same value depend on each other, such as rows of one patient",
    )


def _add_running(group: Any) -> None:
    """Add the options of a run that can be interrupted."""
    group.add_argument(
        "--rows", metavar="A:B", type=_rows,
        help="read rows A to B - 1 only; A or B may be left out",
    )  # fmt: skip
    group.add_argument(
        "--resume", action="store_true",
        help="continue an interrupted run of this command, or start one: rows that were added already are skipped",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint-every", metavar="SECONDS", type=SECONDS, default=0.0,
        help="shortest time between saves (default: saving may take 5 %% of the time)",
    )  # fmt: skip


def _add_streaming(parser: Parser) -> None:
    group = parser.add_argument_group("reading in chunks")
    group.add_argument(
        "--stream", action=argparse.BooleanOptionalAction,
        help=f"read the file in chunks, in little memory (default: from {STREAMED_FROM >> 30} GiB on)",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint", metavar="FILE", type=Path,
        help=f"save the state there from time to time, and on SIGTERM or SIGINT before exiting with {SAVED}",
    )  # fmt: skip
    _add_running(group)


def _add_workers(parser: Parser) -> None:
    pairs = parser.add_argument_group("several processes or machines")
    pairs.add_argument(
        "--parallel", metavar="WORKERS", type=parse_workers,
        help="compute on processes:N, dask://HOST:PORT, dask (a cluster on this machine), or mpi; --checkpoint FILE "
        "then keeps finished tiles, and --resume continues from them",
    )  # fmt: skip


def _add_output(parser: Parser) -> Any:
    output = parser.add_argument_group("output")
    _add_machine(output)
    _add_plot(output, "write reliability diagrams (of regression models: quantile calibration curves) to")
    _add_axes(output, "with --plot: ")
    _add_failing(output, "a verdict")
    return output


def _add_machine(output: Any) -> None:
    machine = output.add_mutually_exclusive_group()
    machine.add_argument("--json", action="store_true", help="print JSON instead of a table")
    machine.add_argument("--csv", action="store_true", help="print CSV instead of a table")


def _add_plot(output: Any, purpose: str) -> None:
    output.add_argument("--plot", metavar="OUT", type=_picture, help=f"{purpose} a .png, .pdf or .svg file")
    output.add_argument("--theme", choices=tuple(figures.THEMES), help="with --plot: colours (default: light)")


def _add_axes(output: Any, when: str = "") -> None:
    output.add_argument(
        "--axes", choices=SCALES,
        help=f"{when}logit shows confidences near 0 and 1 in detail, in bins of equal mass (default: linear)",
    )  # fmt: skip


def _add_failing(output: Any, noun: str) -> None:
    output.add_argument(
        "--fail-if-miscalibrated", action="store_true", help=f"exit with {MISCALIBRATED} if {noun} is 'miscalibrated'"
    )


def _add_verdict(computed: Any) -> None:
    computed.add_argument(
        "--level", metavar="FLOAT", type=LEVEL, default=0.05,
        help="significance level of the verdict (default: %(default)s)",
    )  # fmt: skip
    computed.add_argument(
        "--tolerance", metavar="FLOAT", type=TOLERANCE,
        help="root mean square error of probabilities that does not matter: 'miscalibrated' then means a larger error "
        "(default: any error)",
    )  # fmt: skip


def _add_common(parser: Parser) -> None:
    _add_output(parser).add_argument(
        "--plot-classes", metavar="INT", type=integer(1, 100), default=0,
        help="with --plot: also draw a diagram for this many classes, those with the largest errors",
    )  # fmt: skip
    _add_computed(parser).add_argument(
        "--metrics", metavar="NAME,...", type=_metrics, default=(),
        help=f"further numbers for class probabilities: {', '.join([*GROUPS, *EVALUATE_METRICS])}",
    )  # fmt: skip


def _add_computed(parser: Parser) -> Any:
    """Add the options of an evaluation, and return the group 'what to compute'."""
    computed = parser.add_argument_group("what to compute")
    _add_lens(computed)
    _add_verdict(computed)
    _add_seed(computed, "seed of the draws or permutations of the test", 0)
    computed.add_argument(
        "--method",
        choices=[m.name for m in METHODS],
        default="adaptive",
        help="test of calibration (default: %(default)s)",
    )
    _add_bins(computed, "bins of the ECE and of reliability diagrams")
    _add_fair(computed)
    _add_bandwidth(computed, "the median distance")
    _add_threads(computed)
    method_options.add_options(parser)
    return computed


def _add_lens(group: Any, default: Lens | None = Canonical()) -> None:  # noqa: B008
    group.add_argument(
        "--lens", metavar="LENS", type=_lens, default=default,
        help="notion of calibration: canonical (all classes, the default), top-label, class-wise:COLUMN, top-k:K, or "
        "groups:0,1/2,3,4 (columns, counted from 0)",
    )  # fmt: skip


def _add_bandwidth(group: Any, default: str) -> None:
    group.add_argument(
        "--bandwidth", metavar="FLOAT", type=BANDWIDTH, help=f"bandwidth of the exponential kernel (default: {default})"
    )


def _add_fair(group: Any) -> None:
    group.add_argument(
        "--fair", action="store_true", default=None,
        help="ensemble members: estimate the CRPS of the distribution that they are drawn from",
    )  # fmt: skip


def _add_bins(group: Any, help_text: str) -> None:
    group.add_argument(
        "--bins", dest="n_bins", metavar="INT", type=integer(1, 10_000), help=f"{help_text} (default: {N_BINS})"
    )


def _add_part(group: Any, text: str) -> None:
    group.add_argument("--part", metavar="INT", type=integer(0, 2**23 - 1), help=text)


def _add_seed(group: Any, help_text: str, default: int) -> None:
    group.add_argument(
        "--seed", metavar="INT", type=integer(0), default=default, help=f"{help_text} (default: %(default)s)"
    )


def _add_threads(group: Any) -> None:
    group.add_argument(
        "--threads", metavar="INT", type=integer(1), help="threads (default: one for each CPU, or OMP_NUM_THREADS)"
    )


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for integers between two bounds."""
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


def number(expected: str, is_valid: Callable[[float], bool]) -> Callable[[str], float]:
    """Return an argparse type for numbers that are valid."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"{text!r}, expected {expected}")
        return value

    return parse


LEVEL = number("a number between 0 and 1", lambda value: 0 < value < 1)
TOLERANCE = number("a number from 0 to below 1", lambda value: 0 <= value < 1)
SECONDS = number("a number of seconds, at least 0", lambda value: 0 <= value < math.inf)
BANDWIDTH = number("a positive number", lambda value: 0 < value < math.inf)


def _classes(text: str) -> tuple[Any, ...]:
    """Return labels separated by commas; numbers if all of them are numbers."""
    names = [name.strip() for name in text.split(",")]
    for kind in (int, float, str):
        with suppress(ValueError):
            return tuple(kind(name) for name in names)
    raise AssertionError("unreachable: every name is a text")


def _metrics(text: str) -> tuple[str, ...]:
    try:
        return check_metrics(name.strip() for name in text.split(","))
    except OptionError as error:
        raise argparse.ArgumentTypeError(error.fault) from None


def _rows(text: str) -> tuple[int, int | None]:
    begin, colon, end = text.partition(":")
    try:
        first = int(begin) if begin else 0
        last = int(end) if end else None
    except ValueError:
        colon = ""
    if not colon or first < 0 or (last is not None and last < first):
        raise argparse.ArgumentTypeError(f"{text!r}, expected A:B with whole numbers, 0 <= A <= B")
    return first, last


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
        f"{suggest(name, ('canonical', 'top-label', 'class-wise', 'top-k', 'groups'))}"
    )


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in figures.SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a file name that ends in {', '.join(figures.SUFFIXES)}")
    return path


def make_kernel(arguments: argparse.Namespace) -> Kernel | None:
    """Return the kernel with the given bandwidth, or None."""
    return None if arguments.bandwidth is None else Exponential(bandwidth=arguments.bandwidth)


def get_state_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `CalibrationState` that the user has given."""
    return {name: value for name in STATE_OPTIONS if (value := getattr(arguments, name)) is not None}
