"""Comparison of models on the same samples.

Samples are paired: the difference of two models is itself an estimate from n independent samples, so its standard error
includes their covariance. Each metric is a class in `METRICS`.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import (
    LARGEST_KEY,
    SEED,
    OptionError,
    check_fraction,
    check_integer,
    check_seed,
)
from kcalib._input.checks import dtype_name
from kcalib._input.data import Data
from kcalib._input.forecasts import prepare
from kcalib._input.frames import NAMELESS, check_variables
from kcalib._input.methods import resolved
from kcalib._input.source import (
    Source,
    check_left_to_source,
    check_not_for_sums,
)
from kcalib._input.sparse import SparseProbabilities
from kcalib.estimators.skce import check_not_parallel
from kcalib.inference.adaptive.clusters import clusters_of
from kcalib.inference.metrics.ckce import CKCE
from kcalib.inference.metrics.clusters import measure_clusters
from kcalib.inference.metrics.ece import ECE
from kcalib.inference.metrics.measured import Estimate, Metric, MetricResult, SharedOptions
from kcalib.inference.metrics.scores import CRPS, BrierScore, LogLoss, LogScore, MeanMetric
from kcalib.inference.metrics.skce import SKCE
from kcalib.lenses import KEPT, Buckets, Confidence, Lens, TopLabel
from kcalib.parallel.argument import in_parallel
from kcalib.results import Comparison, ModelDifference, ModelValue

__all__ = ["compare", "score_samples"]


@in_parallel
@on_their_gpu
def compare(
    y_true: Any,
    y_preds: Mapping[str, Any] | None = None,
    *,
    sample_weight: Any = None,
    clusters: Any = None,
    time_blocks: int | None = None,
    metric: str | Metric = "skce",
    confidence_level: float = 0.95,
    seed: int | None = SEED,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
    backend: Any = None,
) -> Comparison:
    r"""Compare models on the same samples: values, paired differences, and a ranking.

    Parameters
    ----------
    y_true : array_like, shape (n,) or (n, m)
        Labels or targets as in `kcalib.skce`, the same for all models, at least 4. Or a mapping of names to sources
        (`kcalib.streaming.Source`) with the same labels, read in chunks, for the metrics "skce", "ece", "brier_score"
        and "log_loss"; `y_preds` is then left out.
    y_preds : mapping of str to array_like, shape (n, m) or (n,), or Distribution
        Two or more models by name: the predictions of the same samples in the same order. Families of distributions may
        differ between models.
    sample_weight, clusters : array_like, shape (n,), optional
        Weight and cluster of each sample, as in `kcalib.calibration_test`, for "skce" and means of scores. Standard
        errors come from a jackknife that leaves out whole clusters, or single samples, with Student's t distribution
        with as many degrees of freedom. The SKCE is then estimated with random features, over pairs of different
        clusters.
    time_blocks : int, optional
        Samples are in the order of time. For means of scores, samples at least `time_blocks` steps apart are taken as
        independent: pass h for errors of forecasts h steps ahead; the test is the one of Diebold and Mariano. For
        "skce", every `time_blocks` successive samples are a cluster; choose blocks several times longer than the
        dependence reaches.
    metric : {"skce", "ckce", "ece", "brier_score", "log_loss", "crps", "log_score"} or metric
        What is compared; lower is better. "skce": the unbiased estimate of `kcalib.skce`; "ckce": `kcalib.ckce` with
        its bias removed; "ece": `kcalib.top_label_ece`; the others: the functions of these names, which measure
        calibration and sharpness together. For distributions there are "skce", "ckce", "crps" and "log_score".
        `kcalib.distributions.Quantiles` are scored at their levels, so all models must be quantiles at the same levels:
        ``Quantiles(levels, y_pred.quantile(levels))``. "log_score" does not compare a probability of a target with a
        density. For options, such as a kernel, pass an object of `kcalib.methods`: ``SKCE``, ``CKCE``, ``ECE``,
        ``CRPS``.
    confidence_level : float
        Level of the intervals, in (0, 1). Two models are distinguishable if the p-value of their difference, adjusted
        for the number of pairs, is at most 1 minus this level.
    seed : int, optional
        Seed of the bootstrap ("ece"), of random features and of the subset of at most 2000 samples for part of the
        standard error ("skce"), of pivots and a subset of at most 1000 samples ("ckce"). By default a seed is drawn;
        the result reports it. The other metrics are deterministic.
    classes, from_logits, lens, threads
        As in `kcalib.skce`, the same for all models. The lens is applied to each model separately: with
        `kcalib.lenses.TopLabel` each is judged on the class that it predicts. With `kcalib.lenses.Confidence` `y_true`
        may also be a mapping of names to whether each prediction of that model was right.
    backend : optional
        As in `kcalib.skce`, for "skce" and "ckce", which then sum over all pairs for any n.

    Returns
    -------
    Comparison
        Values with standard errors and confidence intervals, paired differences of all pairs with intervals, p-values
        and p-values adjusted by Holm's method, a ranking with the models that are not distinguishable, and the options
        used.

    Raises
    ------
    TypeError
        If `y_preds` is not a mapping or a name is not a string; as `kcalib.skce`.
    ValueError
        If there are fewer than two models or four samples; if models differ in shape; if `confidence_level`, `metric`
        or `seed` is out of range; if the metric does not have an option that is given; as `kcalib.skce` and
        `kcalib.ckce`, with the name of the model in the message.
    MemoryError
        If the "ckce" of a model does not fit in memory.

    Warns
    -----
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite.
    ConvergenceWarning
        If the solver misses the accuracy of `kcalib.ckce` ("ckce" with a very small `regularization`).

    See Also
    --------
    kcalib.evaluate : The usual metrics of one model.

    Notes
    -----
    Each interval is for one model or one pair, and is valid near calibration, where statistics are degenerate. "skce":
    U-statistics with a jackknife, in time O(n^2 m) for each model; random features where this would take longer than
    about a second. "ckce": the value minus its bias to first order in 1 / n. "ece": bounds from a multinomial
    bootstrap. Means of scores: paired t-intervals that allow for labels too rare to be seen; with `time_blocks` the
    variance uses the autocovariances up to that lag (Diebold and Mariano 1995, with Harvey's correction); up to 12
    samples an exact sign-flip test. Formulas and sources are in the user guide, "Formulas of intervals and tests".

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> result = kcalib.compare(y, {"sharp": p**3 / (p**3 + (1 - p) ** 3), "right": p, "right too": 0.98 * p})
    >>> result.ranking[-1], result.model("right").not_distinguishable_from
    ('sharp', ('right too',))
    >>> result.difference("right", "sharp").confidence_interval.high < 0
    True

    Samples that are read in chunks, for example from a file for each model:

    >>> sources = {"right": kcalib.streaming.source((y, p)), "less": kcalib.streaming.source((y, 0.8 * p))}
    >>> kcalib.compare(sources, metric="brier_score").ranking
    ('right', 'less')
    """
    chosen, options = resolved(metric, METRICS, "metric"), SharedOptions(seed, threads, backend)
    check_options(options, chosen, confidence_level)
    if y_preds is None:
        check_left_to_source(classes, from_logits)
        check_not_for_sums(sample_weight=sample_weight, clusters=clusters, time_blocks=time_blocks)
        return _compare_sources(_check_sources(y_true), chosen, confidence_level, options, lens)
    if not isinstance(y_preds, Mapping):
        raise TypeError(f"`y_preds` is a {type(y_preds).__name__}, expected a mapping of names to predictions")
    has_own_labels = isinstance(y_true, Mapping) and lens == Confidence()
    if has_own_labels and list(y_true) != list(y_preds):
        raise ValueError(f"`y_true` has the models {list(y_true)}, expected {list(y_preds)}; pass labels for each one")
    models: dict[str, Data] = {}
    first: Data | None = None  # checked without the lens, which may drop column names
    has_names = any(type(y_pred) not in (*NAMELESS, SparseProbabilities) for y_pred in y_preds.values())
    for name, y_pred in y_preds.items():
        if not isinstance(name, str):
            raise TypeError(f"`y_preds` has the key {name!r}, expected names that are strings")
        try:
            checks = {"classes": classes, "from_logits": from_logits, "threads": threads, "dtype": chosen.dtype}
            of_metric = KEPT if isinstance(chosen, MeanMetric) else Buckets()
            checks["sparse_lens"] = TopLabel() if chosen.name == ECE.name else of_metric
            labels = y_true[name] if has_own_labels else y_true
            data = plain = prepare(labels, y_pred, sample_weight=sample_weight, lens=lens, **checks)
            if lens is not None and has_names:
                plain = prepare(labels, y_pred, sample_weight=sample_weight, **checks)
            first = plain if first is None else first
            if (ordered := plain.in_order_of(first)) is not plain:
                data = ordered if lens is None else lens.induced(ordered)
            models[str(name)] = data
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"`y_preds[{name!r}]`: {error}") from None
    if models:
        check_variables(y_true, next(iter(y_preds.values())), clusters=clusters)
        codes = clusters_of(clusters, time_blocks, next(iter(models.values())).n)
        options = replace(options, clusters=codes, time_blocks=time_blocks)
    return comparison_of(models, chosen, confidence_level, options)


@on_their_gpu
def score_samples(
    y_true: Any,
    y_pred: Any,
    metric: str | Metric,
    *,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
) -> Any:
    """Return the score of each sample, whose mean is the score.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits, lens, threads
        As in `kcalib.skce`.
    metric : {"brier_score", "log_loss", "crps", "log_score"} or metric
        The score, one of the means over samples that `kcalib.compare` compares.

    Returns
    -------
    array, shape (n,)
        Scores; lower is better. A NumPy array, or a CuPy array if the predictions are on an NVIDIA GPU.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`; if the metric is not a mean over samples, or does not fit the predictions.

    See Also
    --------
    kcalib.compare : Compare the means of two or more models, also for clusters or time series.

    Examples
    --------
    >>> import kcalib
    >>> kcalib.score_samples([1, 0], [0.75, 0.5], "brier_score").tolist()
    [0.0625, 0.25]
    """
    chosen = resolved(metric, METRICS, "metric")
    checks: dict[str, Any] = {"classes": classes, "from_logits": from_logits, "lens": lens, "threads": threads}
    data = prepare(y_true, y_pred, sparse_lens=KEPT, **checks)
    if not isinstance(chosen, MeanMetric) or type(data) not in chosen.kinds:
        names = [repr(kind.name) for kind in METRICS if issubclass(kind, MeanMetric) and type(data) in kind.kinds]
        raise OptionError("metric", f"is {chosen.name!r}, no mean of scores of {data.noun}; use {' or '.join(names)}")
    return chosen.losses(data)


def _check_sources(models: Any) -> dict[str, Source]:
    if not isinstance(models, Mapping):
        what = "is missing, and `y_true` is one source" if isinstance(models, Source) else "is missing"
        raise TypeError(
            f"`y_preds` {what}; pass labels and a mapping of names to predictions, or one of names to sources"
        )
    for name, model in models.items():
        if not isinstance(name, str):
            raise TypeError(f"`y_true` has the key {name!r}, expected names that are strings")
        if not isinstance(model, Source):
            raise TypeError(
                f"`y_true[{name!r}]` is a {type(model).__name__}, expected a kcalib.streaming.Source; pass predictions "
                "as `y_preds`, and labels as `y_true`"
            )
    return dict(models)


def _compare_sources(
    sources: dict[str, Source], metric: Metric, confidence_level: float, options: SharedOptions, lens: Lens | None
) -> Comparison:
    """Compare samples that are read in chunks."""
    if len(sources) < 2:
        raise ValueError(f"`y_true` has {len(sources)} sources, expected two or more to compare")
    if metric.name not in IN_PIECES:
        raise OptionError(
            "metric",
            f"is {metric.name!r}, which reads all samples at once; use one of {', '.join(IN_PIECES)}, or pass the "
            "samples themselves: y, p = source.read(0, n)",
        )
    check_not_parallel(options.backend, "a comparison of sources")
    dtype = None if dtype_name(metric.dtype) == "float64" else metric.dtype
    check_not_for_sums(n_resamples=getattr(metric, "n_resamples", None), dtype=dtype, backend=options.backend)
    own = {name: getattr(metric, name) for name in ("kernel", "target_kernel", "n_bins") if hasattr(metric, name)}
    shared = {"lens": lens, "seed": check_seed(options.seed), "threads": options.threads}
    first = next(iter(sources.values()))
    state = first.summed_together(sources, n_resamples=0, **shared, **own)
    return state.result(metric.name, confidence_level=confidence_level)


IN_PIECES = ("skce", "ece", "brier_score", "log_loss")  # metrics that sources can compute


def comparison_of(
    models: Mapping[str, Data], metric: Metric, confidence_level: float, options: SharedOptions
) -> Comparison:
    """Compare models on checked data."""
    start = time.perf_counter()
    _check_models(models)
    data = list(models.values())
    if type(data[0]) not in metric.kinds:
        (kind,) = metric.kinds
        others = ", ".join(repr(other.name) for other in METRICS if type(data[0]) in other.kinds)
        raise ValueError(
            f"metric={metric.name!r} is for {kind.noun}, but `y_preds` are {data[0].noun}; use one of {others}"
        )
    metric.check_models(data)
    is_plain = options.clusters is None and data[0].sample_weight is None
    measure = metric.measure if is_plain else functools.partial(measure_clusters, metric)
    measured = measure(data, confidence_level, options)
    return compared(tuple(models), metric.name, confidence_level, measured, data[0], data[0].n, start)


def compared(
    names: tuple[str, ...],
    metric: str,
    confidence_level: float,
    measured: MetricResult,
    data: Data,
    n: int,
    start: float,
) -> Comparison:
    """Return the comparison of models measured on n samples; `data` is of the first model, `start` the start time."""
    differences = _adjust_differences(names, measured.differences, confidence_level)
    ranking = tuple(names[i] for i in sorted(range(len(names)), key=lambda i: measured.values[i].value))
    undescribed = dict.fromkeys((
        "prediction", "kernel", "bandwidth", "bandwidth_source", "target_kernel", "target_factor",
        "prediction_distances", "regularization", "n_columns", "n_bins", "n_resamples", "seed", "dtype", "backend",
        "backend_reason",
        "threads",
    ))  # fmt: skip
    return Comparison(
        metric=metric,
        estimator=measured.estimator,
        intervals=measured.intervals,
        confidence_level=float(confidence_level),
        ranking=ranking,
        models=tuple(_rank_models(names, measured.values, ranking, differences)),
        differences=differences,
        n_samples=n,
        **{**undescribed, **data.describe(), **measured.described},
        seconds=time.perf_counter() - start,
    )


def _check_models(models: Mapping[str, Data]) -> None:
    if len(models) < 2:
        raise ValueError(f"`y_preds` has the models {list(models)}, expected at least 2 to compare")
    first, *others = models.items()
    for name, data in others:
        if data.noun != first[1].noun:
            raise ValueError(
                f"`y_preds[{name!r}]` are {data.noun}, `y_preds[{first[0]!r}]` {first[1].noun}; "
                "models of one kind are compared"
            )
        if data.size != first[1].size:
            raise ValueError(
                f"`y_preds[{name!r}]` has {data.size}, `y_preds[{first[0]!r}]` {first[1].size}; "
                "models are compared on the same samples and classes"
            )
    if first[1].n < 4:
        raise ValueError(f"a comparison needs at least 4 samples, `y_true` has {first[1].n}")


def _adjust_differences(
    names: Sequence[str], differences: Sequence[Estimate], confidence_level: float
) -> tuple[ModelDifference, ...]:
    adjusted = holm([d.pvalue for d in differences])
    return tuple(
        ModelDifference(
            first=first,
            second=second,
            difference=d.value,
            standard_error=d.standard_error,
            confidence_interval=d.interval,
            pvalue=d.pvalue,
            pvalue_holm=pvalue,
            distinguishable=pvalue <= 1 - confidence_level,
        )
        for (first, second), d, pvalue in zip(itertools.combinations(names, 2), differences, adjusted, strict=True)
    )


def holm(pvalues: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method: the k-th smallest of K times K + 1 - k, made monotone, at most 1."""
    adjusted = [0.0] * len(pvalues)
    highest = 0.0
    for place, i in enumerate(sorted(range(len(pvalues)), key=pvalues.__getitem__)):
        highest = max(highest, min(1.0, (len(pvalues) - place) * pvalues[i]))
        adjusted[i] = highest
    return adjusted


def _rank_models(
    names: Sequence[str], values: Sequence[Estimate], ranking: Sequence[str], differences: Iterable[ModelDifference]
) -> Iterator[ModelValue]:
    near = {frozenset((d.first, d.second)) for d in differences if not d.distinguishable}
    for name, estimate in zip(names, values, strict=True):
        yield ModelValue(
            model=name,
            value=estimate.value,
            standard_error=estimate.standard_error,
            confidence_interval=estimate.interval,
            rank=1 + sum(other.value < estimate.value for other in values),
            not_distinguishable_from=tuple(other for other in ranking if frozenset((name, other)) in near),
        )


METRICS: tuple[type[Metric], ...] = (SKCE, CKCE, ECE, BrierScore, LogLoss, CRPS, LogScore)


def check_options(options: SharedOptions, metric: Metric, confidence_level: Any) -> None:
    """Refuse options that the metric does not have, or that are out of range."""
    check_fraction("confidence_level", confidence_level)
    metric.check(confidence_level)
    if options.backend is not None and not metric.has_backend:
        raise OptionError(
            "backend", f"has no meaning for the metric {metric.name!r}, only for 'skce', 'ckce'; leave it out"
        )
    if options.seed is not None:
        check_integer("seed", options.seed, 0, LARGEST_KEY)
