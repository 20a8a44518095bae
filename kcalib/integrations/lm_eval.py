"""Calibration of language models on multiple choice questions, in EleutherAI's `lm_eval`.

Importing the module registers metrics such as "kcalib_skce"; `CalibratedTask` is a task with these metrics. For samples
that `lm_eval` has logged use `kcalib.streaming.read_answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.api.registry import register_aggregation, register_metric
from lm_eval.api.task import ConfigurableTask

from kcalib.integrations._measures import MEASURES, OF_CLASSES
from kcalib.streaming.language_models.questions import Question, read_index, read_text, softmax_rows, stack_rows

__all__ = ["CalibratedTask"]

PREFIX = "kcalib_"


class CalibratedTask(ConfigurableTask):
    """A multiple choice task with metrics of kcalib in its ``metric_list``, in addition to those of `lm_eval`.

    Parameters
    ----------
    *args, **kwargs
        Arguments of ``lm_eval.api.task.ConfigurableTask``, such as `config`; in YAML ``class: !function
        utils.CalibratedTask``, where the file utils.py imports it.

    Notes
    -----
    Names of metrics are ``kcalib_`` plus the name of a function: ``kcalib_skce``, ``kcalib_top_label_ece``, ...
    """

    def process_results(self, doc: Any, results: Any) -> Any:
        """Return the values of the metrics for a question; `lm_eval` calls it.

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
        choices, target = [choice.strip() for choice in self.doc_to_choice(doc)], self.doc_to_target(doc)
        question = Question(target, choices, [value for value, _ in results[: len(choices)]])
        label = read_text(question) if isinstance(target, str) else read_index(question)
        if label is None:
            raise ValueError(f"`doc` has the target {target!r}, expected one of its choices {choices} or its place")
        names = [name for name in self._metric_fn_list if name.startswith(PREFIX)]
        return results_of_host | dict.fromkeys(names, (label, softmax_rows([question.values])[0]))


def _register(name: str) -> None:
    measure = MEASURES[name]

    @register_aggregation(PREFIX + name)  # type: ignore[untyped-decorator, unused-ignore]
    def aggregated(items: Sequence[tuple[int, np.ndarray]]) -> float:
        labels, rows = zip(*items, strict=True)
        return measure(np.array(labels), stack_rows(rows, 0.0))

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
