"""Evaluate one model: scores, calibration error, test of calibration, and a verdict.

The command `kcalib evaluate` prints the same. `evaluate` checks its input and calls `evaluation_of`:
`inference.verdict.measure` measures calibration, and `_evaluation` computes the scores for each kind of data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, cast, overload

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import LARGEST_SEED, SEED, OptionError, check_fraction, check_seed
from kcalib._input.checks import reject
from kcalib._input.classes import Classes, match_one_hot
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts, prepare
from kcalib._input.frames import check_variables, column_names
from kcalib._input.groupings import read_given
from kcalib._input.labels import Classification, Names
from kcalib._input.labels import prepare as prepare_labels
from kcalib._input.methods import resolved
from kcalib._input.source import (
    check_left_to_source,
    check_not_for_sums,
    is_source,
)
from kcalib._input.sparse import SparseProbabilities
from kcalib.distributions import Categorical, Distribution, Quantiles
from kcalib.estimators.binning import N_BINS, reliability_bins
from kcalib.estimators.forecasts.crps import crps_values
from kcalib.estimators.forecasts.quantile_calibration import is_continuous, pit_of
from kcalib.estimators.forecasts.quantities import has_density, levels_of, mean_of, means_of, quantiles_of, targets_of
from kcalib.estimators.forecasts.scores import log_score_values, pinball_values
from kcalib.estimators.scores import (
    accuracy_of,
    brier_score_of,
    log_loss_of,
    log_losses,
    square_residuals,
    top_label,
    weighted_mean,
)
from kcalib.evaluation_metrics import check_metrics, compute_metrics
from kcalib.evaluation_results import INTERVAL, Evaluation, ForecastEvaluation, MultilabelEvaluation
from kcalib.inference.adaptive.clusters import read_clusters
from kcalib.inference.adaptive.method import Adaptive
from kcalib.inference.adaptive.ranks import Ranks
from kcalib.inference.adaptive.witness import distance_bound
from kcalib.inference.calibration_test import METHODS, scale_weights, sums_of
from kcalib.inference.compare import holm
from kcalib.inference.task import CalibrationMethod
from kcalib.inference.verdict import (
    Measured,
    check_tolerance,
    direction,
    measure,
    off_quantiles,
    off_spread,
    shown_at_least,
)
from kcalib.kernels import Kernel
from kcalib.lenses import KEPT, Buckets, Lens, TopLabel
from kcalib.parallel.argument import in_parallel
from kcalib.streaming.state import CalibrationState
from kcalib.target_kernels import TargetKernel

__all__ = ["evaluate"]

STRIP = 2**16  # sparse rows that are mapped to dense ones at a time
MOST_SPARSE_ROWS = 2**17  # above, a state takes the sums through buckets


P = ParamSpec("P")


class Evaluate(Protocol[P]):
    """The type of `evaluate`: the type of its result depends on the type of `y_pred`."""

    @overload
    def __call__(
        self, y_true: Any, y_pred: Any, *, multilabel: Literal[True], **kwargs: Any
    ) -> MultilabelEvaluation: ...
    @overload
    def __call__(self, y_true: Any, y_pred: Categorical, *args: P.args, **kwargs: P.kwargs) -> Evaluation: ...
    @overload
    def __call__(self, y_true: Any, y_pred: Distribution, *args: P.args, **kwargs: P.kwargs) -> ForecastEvaluation: ...
    @overload
    def __call__(self, y_true: Any, y_pred: Any = ..., *args: P.args, **kwargs: P.kwargs) -> Evaluation: ...


def _typed(
    function: Callable[Concatenate[Any, Any, P], Evaluation | ForecastEvaluation | MultilabelEvaluation],
) -> Evaluate[P]:
    """Tell type checkers that `function` is an `Evaluate`."""
    return cast("Evaluate[P]", function)


@_typed
@in_parallel
@on_their_gpu
def evaluate(
    y_true: Any,
    y_pred: Any = None,
    *,
    sample_weight: Any = None,
    clusters: Any = None,
    given: Any = None,
    level: float = 0.05,
    tolerance: float | None = None,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    method: str | CalibrationMethod = "adaptive",
    seed: int | None = SEED,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    multilabel: bool = False,
    metrics: str | Sequence[str] | None = None,
    threads: int | None = None,
    backend: Any = None,
) -> Evaluation | ForecastEvaluation | MultilabelEvaluation:
    """Evaluate one model: familiar scores, the SKCE, and a test of calibration with a verdict.

    Scores of class probabilities are accuracy, Brier score, log loss and ECE. Those of predicted distributions are
    root mean squared error, CRPS, log score, pinball loss, and the coverage of intervals and quantiles.

    Parameters
    ----------
    y_true, y_pred, kernel, target_kernel, classes, from_logits, threads, backend
        As in `kcalib.skce`. A source is evaluated by a `kcalib.streaming.CalibrationState`, which has `method`
        "adaptive" only. With `backend` the SKCE is the estimate over all pairs; workers read a source at once.
    sample_weight, clusters : array_like, shape (n,), optional
        Weight and cluster of each sample, as in `kcalib.calibration_test`; scores are weighted. There is then no
        standard error and no lower limit of the error: they need independent samples of equal weight.
    given : array_like of shape (n,), mapping, or data frame, optional
        Further variables that the test conditions on, as in `kcalib.calibration_test`.
    level : float
        Level of the verdict, in (0, 1): a calibrated model is called miscalibrated with about this probability.
    tolerance : float, optional
        Root mean square calibration error that is acceptable, in [0, 1). The verdict then says whether the error is
        shown to be larger: whether ``rms_error_lower`` is. Default: the verdict says whether the model is calibrated.
    method : str or one of `kcalib.methods`
        The test, as in `kcalib.calibration_test`. The SKCE is the estimate that the test uses, if any; otherwise the
        estimate over all pairs, or by random features if all pairs would take more than about a second. "ranks" takes
        the members of ``Samples`` for draws: `crps` is then the fair score, as in `kcalib.crps`.
    seed : int, optional
        Seed of the test's draws, of randomized PIT values, and of the order of samples in blocks. None draws one,
        which the result reports.
    lens : Lens, optional
        Notion of calibration, see `kcalib.lenses`. All numbers are those of the induced problem. Default: the whole
        vector of probabilities; for `kcalib.SparseProbabilities` the test and the SKCE use `kcalib.lenses.Buckets`,
        the scores use the classes. `kcalib.lenses.Confidence` is for pairs of a confidence and whether the prediction
        was right.
    multilabel : bool
        Whether a sample can have several labels, or none. `y_true` is then a matrix of 0 and 1, shape (n, labels), and
        `y_pred` the matrix of their probabilities (or logits), whose rows need not sum to 1. Each label is evaluated
        as a binary problem. `classes` names the labels; columns of data frames are matched by name.
    metrics : str or sequence of str, optional
        Further numbers of class probabilities, by the names of their functions, such as
        ``["logistic_recalibration", "observed_expected_ratio"]``, or "clinical" for all of :ref:`clinical`. They have
        default options and confidence level 1 - `level`, and are in ``metrics`` of the result; for more than two
        classes, for each class against all others. Those that are not defined for these samples, such as a slope
        without events, are None; ``undefined`` has the reasons.

    Returns
    -------
    Evaluation, ForecastEvaluation or MultilabelEvaluation
        The evaluation. Its verdict depends on the p-value of the test only. With "adaptive" it also says what the test
        has found (``test.finding``); with other methods it names what is off by more than two standard errors: for
        class probabilities the difference between mean confidence and accuracy; for predicted numbers the mean of the
        PIT values ("too low" or "too high" predictions) or the coverage of intervals ("over-confident",
        "under-confident"); for predicted vectors the ratio of squared errors to variances.

        ``rms_error_lower`` is a lower confidence limit: with probability 1 - `level` the calibration error is at least
        as large. The error is the root mean square, over predictions, of the total variation distance between the
        prediction and the conditional distribution of the label; for two classes, of the error of either probability.
        The limit is close if a temperature or shifts of the classes explain the error, and may be far too low
        otherwise. A limit through a lens such as `kcalib.lenses.TopLabel` holds for all classes, too, and can be
        larger. No upper limit exists without assumptions.

        ``skce.seconds`` does not include the sweep over pairs that the estimate shares with the test.

        With `multilabel` p-values are adjusted by Holm's method, under any dependence of the labels: if all labels are
        calibrated, the probability that any is called miscalibrated is at most `level`.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` and `kcalib.calibration_test`. Also if `level` is outside (0, 1) or `tolerance` outside [0, 1);
        if `tolerance` is given, but there is no limit of the error: for a `method` without confidence interval, and
        for kernels that are unbounded or may be indefinite; if `metrics` has an unknown name, or is given with
        `clusters` or predicted distributions.

    Notes
    -----
    The user guide derives the lower limits in "Formulas of intervals and tests": from the SKCE and the largest
    eigenvalue of its kernel, or for class probabilities from fitted temperature maps, each at half the level;
    ``rms_error_from`` says which one is reported. For predicted numbers ``rms_distance_lower`` is a limit of the root
    mean square of the Wasserstein-1 distances between predictions and conditional distributions of the targets.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=500)
    >>> kcalib.evaluate(rng.uniform(size=500) < p, p).verdict
    'no evidence against calibration'

    Probabilities that are off by 0.3 (1 - p), a root mean square of 0.17:

    >>> y = rng.uniform(size=500) < 0.7 * p + 0.3
    >>> result = kcalib.evaluate(y, p)
    >>> 0.08 < result.rms_error_lower < 0.17, "off by at least 0." in result.verdict
    (True, True)
    >>> kcalib.evaluate(y, p, tolerance=0.2).verdict
    'not shown to be off by more than 0.2'

    Samples that are read in chunks, for example from a file larger than memory:

    >>> result = kcalib.evaluate(kcalib.streaming.source((y, p)))
    >>> result.n_samples, result.miscalibrated
    (500, True)

    Two labels for each sample; the second one is predicted too often:

    >>> p, u = np.random.default_rng(2).uniform(size=(2, 500, 2))
    >>> kcalib.evaluate(u < p * [1, 0.7], p, multilabel=True, classes=["cat", "dog"]).verdict
    'miscalibrated for 1 of 2 labels: dog'

    Predicted distributions:

    >>> from kcalib.distributions import Normal
    >>> mean = rng.normal(size=500)
    >>> result = kcalib.evaluate(mean + rng.normal(size=500), Normal(mean, np.full(500, 0.6)))
    >>> result.verdict.partition(":")[0], round(result.interval_coverage, 2)
    ('miscalibrated, over-confident', 0.67)
    """
    check_fraction("level", level)
    check_tolerance(tolerance)
    seed = check_seed(seed, LARGEST_SEED)
    if not isinstance(multilabel, (bool, np.bool_)):
        raise TypeError(f"`multilabel` is {multilabel!r}, expected True or False")
    names = () if metrics is None else check_metrics(metrics)
    if is_source(y_true, y_pred):
        check_not_for_sums(multilabel=multilabel or None)
        check_left_to_source(classes, from_logits)
        check_not_for_sums(
            sample_weight=sample_weight, clusters=clusters, given=given, metrics=metrics, backend=backend
        )
        state = y_true.summed(
            kernel=kernel, target_kernel=target_kernel, lens=lens, seed=seed, threads=threads, **sums_of(method)
        )
        return state.result(level=level, tolerance=tolerance)
    checks = {"classes": classes, "from_logits": from_logits, "lens": lens, "threads": threads}
    rows = y_pred if lens is None and not multilabel and isinstance(y_pred, SparseProbabilities) else None
    if rows is not None:
        if names:
            raise OptionError("metrics", "is for single classes, but SparseProbabilities have too many; pass a `lens`")
        top = prepare_labels(y_true, rows, sample_weight=sample_weight, **(checks | {"lens": TopLabel()}))
        has_sums = sample_weight is given is backend is None and isinstance(resolved(method, METHODS), Adaptive)
        if has_sums and len(rows) > MOST_SPARSE_ROWS:
            shared = {"kernel": kernel, "target_kernel": target_kernel, "seed": seed, "threads": threads}
            state = _sum_sparse(y_true, rows, clusters, **shared, **sums_of(method))
            return _with_scores_of(y_true, rows, top, state.result(level=level, tolerance=tolerance))
    if multilabel:
        for name, value in {"lens": lens, "tolerance": tolerance}.items():
            if value is not None:
                raise OptionError(name, f"is {value}, which multilabel=True does not have; leave it out")
        del checks["lens"]
        labels, problems = split_labels(y_true, y_pred, sample_weight=sample_weight, **checks)
    else:
        data = prepare(y_true, y_pred, sample_weight=sample_weight, sparse_lens=Buckets(), **checks)
        labels, problems = (), [scale_weights(data)]
    data = problems[0]
    check_variables(y_true, y_pred, clusters=clusters, given=given)
    options: dict[str, Any] = {
        "level": level,
        "tolerance": tolerance,
        "kernel": kernel,
        "target_kernel": target_kernel,
        "method": method,
        "seed": seed,
        "threads": threads,
        "backend": backend,
        "metrics": names,
        "clusters": None if clusters is None else read_clusters(clusters, data.n),
        "given": () if given is None else read_given(given, data.n),
    }
    evaluations = [evaluation_of(problem, **options) for problem in problems]
    if rows is not None:
        return _with_scores_of(y_true, rows, top, cast("Evaluation", evaluations[0]))
    return join_labels(labels, cast("list[Evaluation]", evaluations)) if multilabel else evaluations[0]


def _sum_sparse(y_true: Any, rows: SparseProbabilities, clusters: Any, **options: Any) -> CalibrationState:
    """Return the state of sparse rows through buckets, which needs less memory than dense rows."""
    codes = None if clusters is None else read_clusters(clusters, len(rows))
    labels = arrays.to_host(arrays.as_array(y_true, "y_true"))
    n_classes = min(Buckets().n_buckets, rows.n_classes) + rows.has_rest
    state = CalibrationState(n_classes, clusters=codes is not None, **options)
    for part in _slices(len(rows)):
        state.update(labels[part], rows[part], clusters=None if codes is None else codes[part])
    return state


def _slices(n: int) -> Iterator[slice]:
    return (slice(begin, begin + STRIP) for begin in range(0, n, STRIP))


def _with_scores_of(y_true: Any, rows: SparseProbabilities, top: Classification, result: Evaluation) -> Evaluation:
    """Return an evaluation of sparse rows through buckets with its scores replaced by those of the classes."""
    labels = arrays.to_host(arrays.as_array(y_true, "y_true"))
    kept_rows = (prepare_labels(labels[part], rows[part], lens=KEPT) for part in _slices(len(rows)))
    scores = [(log_losses(kept), square_residuals(kept)) for kept in kept_rows]
    losses, squares = (np.concatenate(parts) for parts in zip(*scores, strict=True))
    lens = str(Buckets())
    return replace(
        result,
        n_classes=rows.n_classes,
        lens=lens,
        skce=replace(result.skce, lens=lens),
        test=replace(result.test, lens=lens),
        confidence_from=top.confidence_from,
        accuracy=accuracy_of(top),
        mean_confidence=weighted_mean(top, top_label(top)[0]),
        log_loss=weighted_mean(top, losses),
        brier_score=weighted_mean(top, squares) / (2 if rows.n_classes == 2 else 1),
        top_label_ece=reliability_bins(top, N_BINS).ece,
    )


def split_labels(
    y_true: Any, y_pred: Any, *, classes: Any = None, from_logits: bool = False, **checks: Any
) -> tuple[tuple[Any, ...], list[Data]]:
    """Return the names of the labels of a multilabel problem, and a checked binary problem for each label."""
    y_true, y_pred = map(arrays.compute_lazy, (y_true, y_pred))
    true, pred = arrays.as_array(y_true, "y_true"), arrays.as_array(y_pred, "y_pred")
    if pred.ndim != 2 or not pred.shape[1] or tuple(true.shape) != tuple(pred.shape):
        raise ValueError(
            f"`y_true` has shape {tuple(true.shape)}, `y_pred` {tuple(pred.shape)}; with multilabel=True expected (n, "
            "labels) of both: whether the sample has the label, 0 or 1, and the probability of that"
        )
    m = int(pred.shape[1])
    columns, places = match_one_hot(column_names(y_true, m), column_names(y_pred, m), m, ("y_true", "y_pred"))
    names = columns.names if classes is None else tuple(arrays.to_host(arrays.as_array(classes, "classes")).tolist())
    if len(names) != m:
        raise ValueError(f"`classes` has {len(names)} names, expected {m}: one for each column of `y_pred`")
    reject(
        true,
        (true != 0) & (true != 1),
        lambda at, x: f"`y_true{at}` is {x!r}, expected 0 or 1: whether the sample has the label",
    )
    problems: list[Data] = []
    for k, t in enumerate(np.argsort(places).tolist()):
        called = Names(f"y_true[:, {t}]", f"y_pred[:, {k}]")
        problem = prepare_labels(true[:, t], pred[:, k], from_logits=from_logits, names=called, **checks)
        classes_of_label = Classes((f"not {names[k]}", names[k]))
        problems.append(scale_weights(replace(problem, classes=classes_of_label)))
    return names, problems


def join_labels(names: Sequence[Any], evaluations: Sequence[Evaluation]) -> MultilabelEvaluation:
    """Join the evaluations of all labels, with p-values adjusted by Holm."""
    return MultilabelEvaluation.of(names, evaluations, holm([e.test.pvalue for e in evaluations]))


def evaluation_of(
    data: Data, *, seed: int, n_bins: int | None = None, fair: bool = False, metrics: Sequence[str] = (), **options: Any
) -> Evaluation | ForecastEvaluation:
    """Evaluate checked data; further options are those of `measure`."""
    if metrics and not data.has_classes:
        raise OptionError("metrics", f"is for class probabilities, but `y_pred` holds {data.noun}; leave it out")
    if metrics and options.get("clusters") is not None:
        option = options.get("cluster_option", "clusters")
        raise OptionError("metrics", f"is for independent samples, but `{option}` is given; leave out either")
    measured = measure(data, seed=seed, **options)
    fair = fair or measured.test.method == Ranks.name
    evaluation = _evaluation(data, measured, seed, N_BINS if n_bins is None else n_bins, fair)
    if not metrics:
        return evaluation
    results, reasons = compute_metrics(metrics, cast("Classification", data), 1 - measured.level, seed)
    return replace(cast("Evaluation", evaluation), metrics=results, undefined=reasons or None)


@singledispatch
def _evaluation(data: Data, measured: Measured, seed: int, n_bins: int, fair: bool) -> Evaluation | ForecastEvaluation:
    """Return the evaluation: scores of the data, and `measured` calibration."""
    raise NotImplementedError(type(data))


@_evaluation.register
def _(data: Classification, measured: Measured, seed: int, n_bins: int, fair: bool) -> Evaluation:
    accuracy = accuracy_of(data)
    confidence = weighted_mean(data, top_label(data)[0])
    return Evaluation(
        n_samples=data.n,
        n_classes=data.m,
        positive_class=data.positive_class,
        lens=str(data.lens),
        confidence_from=data.confidence_from,
        accuracy=accuracy,
        mean_confidence=confidence,
        log_loss=log_loss_of(data),
        brier_score=brier_score_of(data, data.m == 2),
        top_label_ece=reliability_bins(data, n_bins).ece,
        **measured.fields(),
        verdict=measured.verdict(direction(data.n, accuracy, confidence)),
    )


@_evaluation.register
def _(data: Forecasts, measured: Measured, seed: int, n_bins: int, fair: bool) -> ForecastEvaluation:
    errors = arrays.to_compute_device(data.y) - means_of(data)
    has_a_density = has_density(data.prediction)
    numbers = _of_numbers(data, seed) if data.n_dims == 1 else {}
    if numbers:
        shift, excess = numbers["pit_mean"] - 0.5, numbers["pit_coverage"] - INTERVAL
        verdict = measured.verdict(off_quantiles(_effective_size(data), shift, excess))
    else:
        gap, error = _spread(data, errors)
        verdict = measured.verdict(off_spread(gap, error))
    distance = None
    is_known = data.n_dims == 1 and not isinstance(data.prediction, Quantiles)  # open between levels
    if is_known and data.sample_weight is None and measured.is_independent:
        distance = distance_bound(data, measured.level) if measured.test.pvalue < measured.level else 0.0
        if distance and measured.miscalibrated:
            verdict += f"; by at least {shown_at_least(distance)} in the units of the targets"
    return ForecastEvaluation(
        n_samples=data.n,
        n_dims=data.n_dims,
        prediction=type(data.prediction).__name__,
        rmse=math.sqrt(mean_of(data, arrays.namespace(errors).mean(errors**2, axis=1))),
        crps=mean_of(data, crps_values(data, fair=fair)),
        log_score=mean_of(data, log_score_values(data)) if has_a_density else None,
        pinball_loss=numbers.get("pinball_loss"),
        interval_coverage=numbers.get("interval_coverage"),
        interval_width=numbers.get("interval_width"),
        pit_mean=numbers.get("pit_mean"),
        quantile_calibration_error=numbers.get("quantile_calibration_error"),
        pit_seed=seed if data.n_dims == 1 and not is_continuous(data) else None,
        fair=fair,
        **measured.fields(),
        rms_distance_lower=distance,
        verdict=verdict,
    )


def _of_numbers(data: Forecasts, seed: int) -> dict[str, float]:
    """Return the scores that exist for predictions of numbers only."""
    levels, ends = levels_of(data, None), np.array([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    pit, y = pit_of(data, seed), targets_of(data)[:, 0]
    xp = arrays.namespace(pit)

    def share(where: Array) -> float:
        return mean_of(data, xp.astype(where, np.float64))

    numbers = {
        "pinball_loss": mean_of(data, pinball_values(data, levels)),
        "pit_mean": mean_of(data, pit),
        "pit_coverage": share((pit >= ends[0]) & (pit <= ends[1])),  # its mean is INTERVAL under calibration
        "quantile_calibration_error": float(np.mean([abs(share(pit <= level) - level) for level in levels])),
    }
    if not isinstance(data.prediction, Quantiles) or data.prediction._has_levels(ends).all():
        limits = quantiles_of(data, ends)
        numbers["interval_coverage"] = share((y >= limits[:, 0]) & (y <= limits[:, 1]))
        numbers["interval_width"] = mean_of(data, limits[:, 1] - limits[:, 0])
    return numbers


def _spread(data: Forecasts, errors: Array) -> tuple[float, float]:
    """Return the mean of squared errors over variances, minus 1, and its standard error."""
    std, xp = arrays.to_compute_device(data.prediction.standard_deviation()), arrays.namespace(errors)
    if data.n < 2 or not xp.all(std > 0):
        return 0.0, math.inf
    squares = xp.mean((errors / std) ** 2, axis=1)
    n, mean = _effective_size(data), mean_of(data, squares)
    variance = mean_of(data, (squares - mean) ** 2)
    return mean - 1, math.sqrt(variance / max(n - 1, 1.0))


def _effective_size(data: Forecasts) -> float:
    """Return the number of samples of equal weight whose mean has the same variance."""
    if data.sample_weight is None:
        return data.n
    weight = arrays.to_host(data.sample_weight)
    return float(np.sum(weight) ** 2 / np.sum(weight**2))
