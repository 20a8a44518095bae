"""Calibration as a metric of evidently reports."""

from __future__ import annotations

from typing import Any

import numpy as np
from evidently.core.metric_types import SingleValueCalculation, SingleValueMetric

from kcalib.integrations._measures import check_options, measure_of_classes

__all__ = ["Calibration"]


class Calibration(SingleValueMetric):
    """A measure of kcalib for a data set whose data definition has a classification with probabilities.

    With several classes, the labels are the names of the columns of probabilities.

    Parameters
    ----------
    measure : str
        As in `kcalib.integrations.mlflow.metric`; default "skce".
    classification_name : str
        Which classification of the data definition; default "default".
    tests : list, optional
        Tests of evidently, such as ``[evidently.tests.lt(0.05)]``.

    Raises
    ------
    TypeError
        For an unknown option.
    ValueError
        If there is no measure with this name. In a report: if the data definition has no such classification with
        probabilities; if a binary one has more than one label besides ``pos_label``.

    Examples
    --------
    >>> import pandas as pd
    >>> from evidently import BinaryClassification, DataDefinition, Dataset, Report
    >>> from kcalib.integrations.evidently import Calibration
    >>> data = pd.DataFrame({"target": [0, 1, 1, 1], "p": [0.2, 0.2, 0.8, 0.8]})
    >>> columns = BinaryClassification(target="target", prediction_probas="p")
    >>> current = Dataset.from_pandas(data, DataDefinition(classification=[columns]))
    >>> report = Report([Calibration(measure="brier_score")]).run(current, None)
    >>> round(report.dict()["metrics"][0]["value"], 6)
    0.19
    """

    measure: str = "skce"
    classification_name: str = "default"

    def __init__(self, measure: str = "skce", **kwargs: Any) -> None:
        check_options(kwargs, "Calibration", sorted(self.__fields__), {})  # evidently ignores unknown options
        measure_of_classes(measure)
        super().__init__(measure=measure, **kwargs)


class CalibrationCalculation(SingleValueCalculation[Calibration]):
    """The calculation that evidently finds by the type of its metric."""

    def calculate(self, context: Any, current_data: Any, reference_data: Any) -> Any:
        current = self.result(self._compute(current_data))
        return current, None if reference_data is None else self.result(self._compute(reference_data))

    def display_name(self) -> str:
        return f"kcalib.{self.metric.measure}"

    def _compute(self, data: Any) -> float:
        measure, name = measure_of_classes(self.metric.measure), self.metric.classification_name
        columns = data.data_definition.get_classification(name)
        if columns is None or not columns.prediction_probas:
            raise ValueError(
                f"the data definition has no classification {name!r} with `prediction_probas`; add one, such as "
                'BinaryClassification(target="target", prediction_probas="p")'
            )
        frame, probabilities = data.as_dataframe(), columns.prediction_probas
        y_true = frame[columns.target].to_numpy()
        if isinstance(probabilities, str):
            other_labels = [label for label in dict.fromkeys(y_true.tolist()) if label != columns.pos_label]
            if len(other_labels) > 1:
                raise ValueError(
                    f"column {columns.target!r} has the labels {other_labels[0]!r} and {other_labels[1]!r} beside the "
                    f"positive {columns.pos_label!r}; pass pos_label= to BinaryClassification, or a "
                    "MulticlassClassification"
                )
            return measure((y_true == columns.pos_label).astype(np.int64), frame[probabilities].to_numpy())
        classes = list(probabilities)  # as in evidently, column names are labels
        return measure(y_true.astype(str), frame[classes].to_numpy(), classes=classes)
