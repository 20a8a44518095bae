"""Calibration as a metric of Hugging Face `evaluate`."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate
import numpy as np

from kcalib.integrations._measures import measure_of_classes

__all__ = ["Calibration"]


class Calibration(evaluate.Metric):
    """A measure of kcalib for predictions and references.

    Predictions are rows of class probabilities, or probabilities of the second of two classes. References are labels,
    integers or strings.

    Parameters
    ----------
    config_name : str
        The measure, as in `kcalib.integrations.mlflow.metric`; default "skce".
    **kwargs
        Arguments of ``evaluate.Metric``.

    Raises
    ------
    ValueError
        If there is no measure with this name.

    Notes
    -----
    ``compute(predictions=..., references=..., **options)`` takes the options of the function with this name, and
    returns a dictionary with one number. ``evaluate.load(kcalib.integrations.evaluate.__file__, "top_label_ece")``
    loads it from its file.

    Examples
    --------
    >>> from kcalib.integrations.evaluate import Calibration
    >>> metric = Calibration("top_label_ece", keep_in_memory=True)
    >>> metric.compute(predictions=[0.25, 0.25, 0.75, 0.75], references=[0, 1, 1, 1], n_bins=2)
    {'top_label_ece': 0.0}
    """

    def __init__(self, config_name: str | None = None, **kwargs: Any) -> None:
        config_name = "skce" if config_name in (None, "default") else config_name
        self.measure = measure_of_classes(config_name)
        super().__init__(config_name=config_name, **kwargs)

    def _info(self) -> Any:
        number, text = datasets.Value("float64"), datasets.Value("string")
        return evaluate.MetricInfo(
            description="A calibration error, proper score or test of calibration of kcalib.",
            citation="",
            inputs_description="predictions: rows of class probabilities, or those of the second of two classes; "
            "references: labels",
            features=[
                datasets.Features({"predictions": predictions, "references": references})
                for predictions in (datasets.Sequence(number), number)
                for references in (datasets.Value("int64"), text)
            ],
        )

    def _compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> dict[str, float]:
        self.measure.check(options)
        return {str(self.config_name): self.measure(np.asarray(references), np.asarray(predictions), **options)}
