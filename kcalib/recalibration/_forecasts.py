"""What recalibrators of predicted distributions share: checked targets and distributions in, distributions out."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._input.forecasts import Forecasts, prepare_forecasts
from kcalib.distributions import Categorical, Distribution, as_distribution
from kcalib.distributions.adapters import is_external
from kcalib.recalibration._recalibrator import Recalibrator
from kcalib.recalibration._scalable import family_of


class ForecastRecalibrator(Recalibrator):
    """Base class of recalibrators of predicted distributions, on the host."""

    @on_their_gpu
    def fit(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> Self:
        self._check_parameters()
        self._check_left_out(classes=classes is not None, from_logits=from_logits)
        y_pred = self._checked_prediction(y_pred)
        data = prepare_forecasts(y_true, y_pred, sample_weight=sample_weight)
        arrays.check_not_cuda(data.y, type(self).__name__)
        weight = np.ones(data.n)
        if data.sample_weight is not None:
            weight = arrays.to_compute_device(data.sample_weight, np.float64)
        used = np.flatnonzero(weight > 0)
        used_data = data if len(used) == data.n else data.take(used)
        self._fit(used_data, weight[used] / weight[used].mean())
        self.n_samples_, self.family_ = data.n, family_of(data.prediction)
        return self

    @on_their_gpu
    def transform(self, y_pred: Any, *, classes: Any = None, from_logits: bool = False) -> Any:
        self._check_fitted()
        self._check_left_out(classes=classes is not None, from_logits=from_logits)
        y_pred = self._checked_prediction(y_pred)
        self._check_family(family_of(y_pred))
        return self._transform(y_pred)

    def _check_left_out(self, **options: bool) -> None:
        for name in (name for name, is_used in options.items() if is_used):
            raise ValueError(
                f"`{name}` is for class probabilities, {type(self).__name__} for distributions; leave it out"
            )

    def _checked_prediction(self, y_pred: Any) -> Distribution:
        if is_external(y_pred):
            y_pred = as_distribution(y_pred)
        if not isinstance(y_pred, Distribution) or isinstance(y_pred, Categorical):
            raise TypeError(
                f"`y_pred` is {type(y_pred).__name__}, expected a distribution of kcalib.distributions: "
                f"{type(self).__name__} is for these; for class probabilities there are others"
            )
        self._check_kind(y_pred)
        return y_pred

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise for wrong parameters."""

    @abstractmethod
    def _check_kind(self, prediction: Distribution) -> None:
        """Raise for distributions that it cannot repair."""

    @abstractmethod
    def _fit(self, data: Forecasts, weight: np.ndarray) -> None:
        """Set the attributes of the fit, to samples with weights of the mean 1."""

    @abstractmethod
    def _transform(self, prediction: Distribution) -> Distribution:
        """Return the repaired distributions."""
