"""Calibration of language models on multiple choice, in EleutherAI's `lm_eval`.

`predictions` makes labels and probabilities of samples that `lm_eval` has logged, for all that kcalib has. Imported,
the module registers metrics, "kcalib_skce" and so on, and `CalibratedTask` is a task that has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from lm_eval.api.registry import register_aggregation, register_metric
from lm_eval.api.task import ConfigurableTask

from kcalib._backend.options import check_choice
from kcalib.integrations._measures import MEASURES, OF_CLASSES

__all__ = ["CalibratedTask", "predictions"]

PREFIX = "kcalib_"


class _Question(NamedTuple):
    name: str  # in messages
    target: Any
    choices: list[str]  # empty where the sample does not say
    values: list[float]  # log-likelihoods of the choices
    is_right: bool | None  # whether the likeliest choice is right, by the task's own metric


def predictions(
    samples: Iterable[Mapping[str, Any]], *, targets: Literal["index", "text"] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and class probabilities of logged samples.

    Parameters
    ----------
    samples : iterable of dict
        ``results["samples"][task]`` of ``lm_eval.simple_evaluate(..., log_samples=True)`` of a task of multiple choice,
        or the lines of a file that ``--log_samples`` has written.
    targets : {"index", "text"}, optional
        Whether targets are places of choices, from 0, or texts of choices; files hold both as strings. Default: what
        all targets can be. If all can be both, such as "2" where the choices are "1" to "4", what the "acc" of the
        samples says of the likeliest choices.

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
        whose log-likelihoods are NaN or all minus infinity; if targets could be indices and texts.

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
    if targets is not None:
        check_choice("targets", targets, tuple(_READERS))
    questions = [_read_question(number, sample) for number, sample in enumerate(samples)]
    return _stack(
        list(zip(_read_labels(questions, targets), map(_softmax, (q.values for q in questions)), strict=True))
    )


def _read_question(number: int, sample: Mapping[str, Any]) -> _Question:
    name = f"`samples[{number}]`"
    if not isinstance(sample, Mapping):
        raise TypeError(f"{name} is a {type(sample).__name__}, expected a dictionary that lm_eval has logged")
    if "target" not in sample or "filtered_resps" not in sample:
        raise ValueError(f"{name} has no 'target' or no 'filtered_resps'; pass samples that lm_eval has logged")
    responses = sample["filtered_resps"]
    if not all(isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2 for pair in responses):
        raise ValueError(f"{name} has no log-likelihoods of choices; its task is not of multiple choice")
    requests = _arguments(sample)
    half = len(requests) // 2
    contextless_requests = [("", choice) for _, choice in requests[:half]]
    # The metric acc_mutual_info also asks for each choice without its context.
    if any(context for context, _ in requests[:half]) and requests[half:] == contextless_requests:
        requests, responses = requests[:half], responses[:half]
    values = [float(pair[0]) for pair in responses]
    if not math.isfinite(max(values)) or any(map(math.isnan, values)):
        raise ValueError(
            f"{name} has the log-likelihoods {values}, expected numbers, of which one is finite; leave such samples out"
        )
    target = sample["target"]
    if isinstance(target, (list, tuple)) and len(target) == 1:
        (target,) = target
    is_right = None if sample.get("acc") is None else bool(sample["acc"])
    return _Question(name, target, [choice.strip() for _, choice in requests], values, is_right)


def _read_labels(questions: Sequence[_Question], targets: str | None) -> list[int]:
    """Return the places of the right choices, from targets that are all indices or all texts."""
    readings = {
        kind: [read(question) for question in questions] for kind, read in _READERS.items() if targets in (None, kind)
    }
    for question, *places in zip(questions, *readings.values(), strict=True):
        if set(places) == {None}:
            raise ValueError(
                f"{question.name} has the target {question.target!r}, expected one of its {len(question.values)} "
                "choices or its place; correct the target"
            )
    possible = {kind: [p for p in places if p is not None] for kind, places in readings.items() if None not in places}
    if not possible:
        raise ValueError("some targets of `samples` are indices of choices, others texts; write indices for all")
    agreeing = {kind: labels for kind, labels in possible.items() if _agree(questions, labels)}
    labels, *others = (agreeing or possible).values()
    if others and others[0] != labels:
        at = next(i for i, label in enumerate(labels) if label != others[0][i])
        raise ValueError(
            f"{questions[at].name} has the target {questions[at].target!r}, which is the index of the choice "
            f"{questions[at].choices[labels[at]]!r} and the text of another, and no 'acc' of the samples says which is "
            "meant; pass targets='index' or targets='text'"
        )
    return labels


def _agree(questions: Sequence[_Question], labels: Sequence[int]) -> bool:
    """Whether the task counts those questions as right whose likeliest choice is the label."""
    return all(
        question.is_right in (None, int(np.argmax(question.values)) == label)
        for question, label in zip(questions, labels, strict=True)
    )


def _read_index(question: _Question) -> int | None:
    """Return the target as a place, which a file may hold as "2", "[2]" or "True"."""
    target = question.target
    if isinstance(target, str):
        target = target.strip().removeprefix("[").removesuffix("]")
        target = {"True": 1, "False": 0}.get(target, target)
    try:
        place = float(target)
    except (TypeError, ValueError):
        return None
    return int(place) if 0 <= place < len(question.values) and place.is_integer() else None


def _read_text(question: _Question) -> int | None:
    """Return the place of the choice that the target is; choices of one text differ in their contexts alone."""
    target = question.target.strip() if isinstance(question.target, str) else None
    return question.choices.index(target) if target is not None and question.choices.count(target) == 1 else None


_READERS = {"index": _read_index, "text": _read_text}


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
        (label,), (p,) = predictions([sample], targets="text" if isinstance(sample["target"], str) else "index")
        names = [name for name in self._metric_fn_list if name.startswith(PREFIX)]
        return results_of_host | dict.fromkeys(names, (label, p))


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
