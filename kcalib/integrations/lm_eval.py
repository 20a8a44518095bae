"""Calibration of language models on multiple choice, in EleutherAI's `lm_eval`.

`predictions` makes labels and probabilities of samples that `lm_eval` has logged, for all that kcalib has. Imported,
the module registers metrics, "kcalib_skce" and so on, and `CalibratedTask` is a task that has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.api.registry import register_aggregation, register_metric
from lm_eval.api.task import ConfigurableTask

from kcalib.integrations._measures import MEASURES, OF_CLASSES

__all__ = ["CalibratedTask", "predictions"]

PREFIX = "kcalib_"


def predictions(samples: Iterable[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and class probabilities of logged samples.

    Parameters
    ----------
    samples : iterable of dict
        ``results["samples"][task]`` of ``lm_eval.simple_evaluate(..., log_samples=True)`` of a task of multiple choice,
        or the lines of a file that ``--log_samples`` has written.

    Returns
    -------
    y_true : ndarray of int, shape (n,)
        Places of the right choices.
    y_pred : ndarray, shape (n, m)
        Softmax of the choices' log-likelihoods; where questions have fewer choices than others, further ones have
        probability 0.

    Raises
    ------
    TypeError
        If these are no samples, such as those of all tasks.
    ValueError
        If there are no samples, or for one that is not of multiple choice, whose target is none of its choices, or
        whose log-likelihoods are NaN or all minus infinity.

    Examples
    --------
    >>> from kcalib.integrations.lm_eval import predictions
    >>> y, p = predictions([{"target": 1, "filtered_resps": [(-1.0, False), (-1.0, False)]}])
    >>> y, p
    (array([1]), array([[0.5, 0.5]]))
    """
    if isinstance(samples, (str, Mapping)) or not isinstance(samples, Iterable):
        raise TypeError(
            f"`samples` is a {type(samples).__name__}, expected the samples of one task, one after the other: "
            'results["samples"][task], or map(json.loads, open(file)) of a file that --log_samples has written'
        )
    return _stack([_label_and_probabilities(number, sample) for number, sample in enumerate(samples)])


def _label_and_probabilities(number: int, sample: Mapping[str, Any]) -> tuple[int, np.ndarray]:
    if not isinstance(sample, Mapping):
        raise TypeError(
            f"`samples[{number}]` is a {type(sample).__name__}, expected a dictionary that lm_eval has logged"
        )
    if "target" not in sample or "filtered_resps" not in sample:
        raise ValueError(
            f"`samples[{number}]` has no 'target' or no 'filtered_resps'; pass samples that lm_eval has logged"
        )
    responses = sample["filtered_resps"]
    if not all(isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2 for pair in responses):
        raise ValueError(f"`samples[{number}]` has no log-likelihoods of choices; its task is not of multiple choice")
    target, requests = sample["target"], _arguments(sample)
    half = len(requests) // 2
    contextless_requests = [("", choice) for _, choice in requests[:half]]
    # The metric acc_mutual_info also asks for each choice without its context.
    if any(context for context, _ in requests[:half]) and requests[half:] == contextless_requests:
        requests, responses = requests[:half], responses[:half]
    choices = [choice.strip() for _, choice in requests]
    place = choices.index(target.strip()) if isinstance(target, str) and target.strip() in choices else target
    try:
        place = int(place)
        if not 0 <= place < len(responses):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"`samples[{number}]` has the target {target!r}, expected one of its {len(responses)} choices or its place"
        ) from None
    values = [float(pair[0]) for pair in responses]
    if not math.isfinite(max(values)) or any(map(math.isnan, values)):
        raise ValueError(
            f"`samples[{number}]` has the log-likelihoods {values}, expected numbers, of which one is finite; leave "
            "such samples out"
        )
    return place, _softmax(values)


def _arguments(sample: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return contexts and choices whose log-likelihoods were computed; files hold them in dictionaries."""
    requests = sample.get("arguments", ())
    if isinstance(requests, Mapping):
        requests = [tuple(request.values()) for request in requests.values()]
    return [(request[0], request[1]) for request in requests]


def _softmax(values: Sequence[float]) -> np.ndarray:
    powers = np.exp(np.asarray(values) - np.max(values))
    return np.asarray(powers / np.sum(powers))


def _stack(pairs: Sequence[tuple[int, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if not pairs:
        raise ValueError("`samples` is empty; pass those of a task, logged with log_samples=True")
    rows = np.zeros((len(pairs), max(len(p) for _, p in pairs)))
    for row, (_, p) in zip(rows, pairs, strict=True):
        row[: len(p)] = p
    return np.array([label for label, _ in pairs]), rows


class CalibratedTask(ConfigurableTask):
    """A task of multiple choice with metrics of kcalib in its ``metric_list``, beside those of `lm_eval`.

    Parameters
    ----------
    *args, **kwargs
        Of ``lm_eval.api.task.ConfigurableTask``, such as `config`; in YAML ``class: !function utils.CalibratedTask``,
        of a file utils.py that imports it.

    Notes
    -----
    The metrics are ``kcalib_skce``, ``kcalib_top_label_ece`` and so on: ``kcalib_`` before the name of a function.
    """

    def process_results(self, doc: Any, results: Any) -> Any:
        """What `lm_eval` calls for each question.

        Parameters
        ----------
        doc : dict
            The question.
        results : list of (float, bool)
            Log-likelihood of each choice, and whether it is the most likely text.

        Returns
        -------
        dict
            A value for each metric.
        """
        results_of_host = super().process_results(doc, results)
        choices = self.doc_to_choice(doc)
        sample = {
            "target": self.doc_to_target(doc),
            "filtered_resps": results[: len(choices)],
            "arguments": [("", choice) for choice in choices],
        }
        names = [name for name in self._metric_fn_list if name.startswith(PREFIX)]
        return results_of_host | dict.fromkeys(names, _label_and_probabilities(0, sample))


def _register(name: str) -> None:
    measure = MEASURES[name]

    @register_aggregation(PREFIX + name)  # type: ignore[untyped-decorator, unused-ignore]
    def aggregated(items: Sequence[tuple[int, np.ndarray]]) -> float:
        return measure(*_stack(items))

    @register_metric(
        metric=PREFIX + name,
        higher_is_better=measure.greater_is_better,
        output_type=["multiple_choice"],
        aggregation=PREFIX + name,
    )  # type: ignore[untyped-decorator, unused-ignore]
    def unchanged(items: Any) -> Any:
        return items


for _name in OF_CLASSES:
    _register(_name)
