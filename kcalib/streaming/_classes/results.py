"""Results of states of class probabilities: those of `kcalib.evaluate` and related functions, from sums."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from kcalib._backend.options import check_fraction
from kcalib.estimators.brier import BrierDecomposition
from kcalib.estimators.ece import ECEResult
from kcalib.estimators.reliability import ReliabilityDiagram
from kcalib.evaluation_results import Evaluation
from kcalib.inference.verdict import check_tolerance, direction
from kcalib.lenses import Lens
from kcalib.results import ConfidenceInterval
from kcalib.streaming._classes.binned_results import (
    Scores,
    decomposition_of,
    diagram_of,
    ece_interval_of,
    ece_of,
    scores_of,
)
from kcalib.streaming._classes.kernel_results import LabelResults, StateResults
from kcalib.streaming._classes.totals import BinTotals, Totals
from kcalib.streaming._options import StateOptions


class Results(StateResults):
    """Results of a state of class probabilities."""

    _RESULTS = LabelResults

    @property
    @abstractmethod
    def options(self) -> StateOptions:
        """The options of the state."""

    @abstractmethod
    def _totals(self) -> Totals:
        """Return the sums of the state."""

    @abstractmethod
    def _bin_totals(self) -> BinTotals:
        """Return the sums that need no kernel."""

    def result(self, *, level: float = 0.05, tolerance: float | None = None) -> Evaluation:
        """Return scores, calibration errors, the SKCE and a test of calibration, with a verdict.

        Parameters
        ----------
        level : float
            Level of the verdict, in (0, 1).
        tolerance : float, optional
            As in `kcalib.evaluate`.

        Returns
        -------
        Evaluation
            The result of `kcalib.evaluate` with ``estimator="features"`` and ``method="adaptive"``, with the ECE in the
            bins of the state. The lower bound of the error comes from the kernel or from maps of the temperature;
            ``rms_error_from`` says from which.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range; if the state has fewer than two samples; if `tolerance` is given and there
            is no lower bound of the error (with weights, or fewer than four samples).

        Warns
        -----
        AntiConservativeWarning
            As `calibration_test`.

        Notes
        -----
        Time and memory do not depend on the number of samples: O(n_columns m n_resamples) for the sums, and
        O(rows^2 (n_columns + m)) for the rows that the state keeps, at most 4096.

        Examples
        --------
        >>> import numpy as np, kcalib
        >>> rng = np.random.default_rng(1)
        >>> p = rng.uniform(size=3000)
        >>> y = rng.uniform(size=3000) < p
        >>> state = kcalib.streaming.CalibrationState(2, n_columns=64)
        >>> for rows in np.split(np.arange(3000), 30):
        ...     state = state.update(y[rows], p[rows] ** 1.5)
        >>> result = state.result()
        >>> result.n_samples, result.verdict.partition(":")[0]
        (3000, 'miscalibrated, class 1 predicted too rarely')
        """
        check_fraction("level", level)
        check_tolerance(tolerance)
        totals = self._totals()
        measured = self._RESULTS.of(totals, self.options, self._threads).measured(level, tolerance)
        scores = scores_of(totals)
        accuracy, confidence = scores.accuracy.value, scores.mean_confidence.value
        return Evaluation(
            n_samples=totals.n,
            n_classes=totals.sample.m,
            positive_class=totals.sample.positive_class,
            lens=str(totals.lens),
            confidence_from=totals.sample.confidence_from,
            accuracy=accuracy,
            mean_confidence=confidence,
            log_loss=scores.log_loss.value,
            brier_score=scores.brier_score.value,
            top_label_ece=ece_of(totals, "top_label", "l1").value,
            **measured.fields(),
            verdict=measured.verdict(direction(totals.n, accuracy, confidence)),
        )

    def top_label_ece(self, *, norm: str = "l1") -> ECEResult:
        """Return the expected calibration error of the top label in the bins of the state, see `kcalib.top_label_ece`.

        Parameters
        ----------
        norm : {"l1", "l2", "max"}
            As in `kcalib.top_label_ece`.

        Returns
        -------
        ECEResult
            The error and the bins.

        Raises
        ------
        ValueError
            If the state has no samples, or for another `norm`.
        """
        return ece_of(self._bin_totals(), "top_label", norm)

    def class_wise_ece(self, *, norm: str = "l1", class_weight: Any = None) -> ECEResult:
        """Return the expected calibration error of each class in the bins of the state, see `kcalib.class_wise_ece`.

        Parameters
        ----------
        norm, class_weight
            As in `kcalib.class_wise_ece`.

        Returns
        -------
        ECEResult
            The error, the errors of the classes, and the bins.

        Raises
        ------
        TypeError, ValueError
            If the state has no samples, or if an argument is out of range.
        """
        return ece_of(self._bin_totals(), "class_wise", norm, class_weight)

    def debiased_ece(self, *, notion: str = "top_label", class_weight: Any = None) -> ECEResult:
        """Return the "l2" error without the noise of the labels: `kcalib.debiased_ece` with ``binning="uniform"``.

        Parameters
        ----------
        notion, class_weight
            As in `kcalib.debiased_ece`.

        Returns
        -------
        ECEResult
            The error, with the unbiased square.

        Raises
        ------
        TypeError, ValueError
            If the state has no samples or weighted ones, if a bin holds a single sample, or if an argument is out of
            range.
        """
        return ece_of(self._bin_totals(), notion, "l2", class_weight, debiased=True)

    def ece_interval(self, *, notion: str = "top_label", confidence_level: float = 0.95) -> ConfidenceInterval:
        r"""Return a confidence interval of the expected calibration error ("l1") with the bins of the state.

        Parameters
        ----------
        notion : {"top_label", "class_wise"}
            Which error.
        confidence_level : float
            Level of the interval, in (0, 1).

        Returns
        -------
        ConfidenceInterval
            For :math:`\sum_b |\mu_b|`, where :math:`\mu_b` is the expected gap in bin b times the probability of the
            bin.

        Raises
        ------
        ValueError
            If an argument is out of range, with weights, or with fewer than four samples.

        Notes
        -----
        The interval is that of `kcalib.compare` with ``metric="ece"``, with a parametric bootstrap: deviations of the
        gaps of bins are normal with the covariance from the sums, or binomial in bins with few different labels. Limits
        of classes are averaged, which is valid for any dependence between classes if the errors are jointly normal. The
        interval is too wide rather than too narrow. Time O(4000 n_bins) for each column; the seed is that of the state.

        Examples
        --------
        >>> import numpy as np, kcalib
        >>> rng = np.random.default_rng(1)
        >>> p = rng.uniform(size=3000)
        >>> y = rng.uniform(size=3000) < p
        >>> state = kcalib.streaming.CalibrationState(2, n_columns=64).update(y, p)
        >>> low, high = state.ece_interval()
        >>> low, low < state.top_label_ece().value < high < 0.05
        (0.0, True)
        """
        return ece_interval_of(self._bin_totals(), notion, confidence_level, self.options.seed)

    def reliability(
        self,
        *,
        lens: Lens | None = None,
        confidence_level: float = 0.95,
        bands: str | None = None,
        simultaneous: bool = False,
    ) -> ReliabilityDiagram:
        """Return the reliability diagram in the bins of the state, see `kcalib.reliability`.

        Parameters
        ----------
        lens : Lens, optional
            The event, in the problem that the lens of the state induces: ``kcalib.lenses.TopLabel()``,
            ``kcalib.lenses.ClassWise(k)``, or ``kcalib.lenses.Canonical()`` for the second of two classes. Default: the
            top label, or the second class if the lens of the state induces two classes.
        confidence_level : float
            Level of both bands.
        bands : {"both", "confidence", "consistency"}, optional
            Which bands to compute; default "both".
        simultaneous : bool
            As in `kcalib.reliability`.

        Returns
        -------
        ReliabilityDiagram
            The diagram, with a method `plot`. The consistency band has the limits of the binomial distribution with the
            mean confidence of each bin, which are exact or slightly too wide. With weights there are no bands. The
            smallest and the largest confidence of a bin are known for the top label only, and NaN otherwise.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range, if the state has no samples, or for a class of weighted samples.

        Examples
        --------
        >>> import kcalib
        >>> state = kcalib.streaming.CalibrationState(2, kernel=kcalib.kernels.Exponential(0.5), n_bins=2)
        >>> state = state.update([0, 1, 1, 0, 1], [0.2, 0.3, 0.4, 0.6, 0.9])
        >>> diagram = state.reliability(lens=kcalib.lenses.Canonical())
        >>> diagram.confidence.round(6), diagram.frequency.round(6)
        (array([0.3 , 0.75]), array([0.666667, 0.5     ]))
        """
        return diagram_of(self._bin_totals(), lens, confidence_level, bands, simultaneous)

    def brier_decomposition(self) -> BrierDecomposition:
        """Return the Brier score's decomposition by classes in the bins of the state, see `kcalib.brier_decomposition`.

        Returns
        -------
        BrierDecomposition
            With weights, `noise` and `n_singletons` are None.

        Raises
        ------
        ValueError
            If the state has no samples.

        Examples
        --------
        >>> import kcalib
        >>> state = kcalib.streaming.CalibrationState(2, kernel=kcalib.kernels.Exponential(0.5), n_bins=2)
        >>> parts = state.update([0, 1, 1, 0], [0.2, 0.2, 0.8, 0.8]).brier_decomposition()
        >>> round(parts.score, 6), round(parts.miscalibration, 6), round(parts.discrimination, 6), parts.uncertainty
        (0.34, 0.09, 0.0, 0.25)
        """
        return decomposition_of(self._bin_totals())

    def scores(self) -> Scores:
        """Return accuracy, mean confidence, log loss and Brier score, with standard errors.

        Returns
        -------
        Scores
            Each with a `value` and the `standard_error` of a mean of independent samples, which is None with weights.

        Raises
        ------
        ValueError
            If the state has no samples.

        Examples
        --------
        >>> import kcalib
        >>> state = kcalib.streaming.CalibrationState(2, kernel=kcalib.kernels.Exponential(0.5))
        >>> scores = state.update([0, 1, 1, 0], [0.2, 0.2, 0.8, 0.8]).scores()
        >>> scores.accuracy.value, round(scores.accuracy.standard_error, 6)
        (0.5, 0.288675)
        """
        return scores_of(self._bin_totals())
