"""What a state says: the results that `kcalib.evaluate` and its kind have for samples in memory, from sums."""

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
    """Of a state of class probabilities."""

    _RESULTS = LabelResults

    @property
    @abstractmethod
    def options(self) -> StateOptions:
        """The options of the state."""

    @abstractmethod
    def _totals(self) -> Totals:
        """What the state has found."""

    @abstractmethod
    def _bin_totals(self) -> BinTotals:
        """The part of it that needs no kernel."""

    def result(self, *, level: float = 0.05, tolerance: float | None = None) -> Evaluation:
        """The usual numbers about a model, the SKCE and a test of calibration, with a verdict.

        Parameters
        ----------
        level : float
            Level of the verdict, in (0, 1).
        tolerance : float, optional
            As in `kcalib.evaluate`.

        Returns
        -------
        Evaluation
            As of `kcalib.evaluate` with ``estimator="features"`` and ``method="adaptive"``, the ECE in the bins of the
            state. The lower bound of the error is the kernel's or that of maps of the temperature, ``rms_error_from``
            says which.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range, if the state has fewer than two samples, or if there is no bound of the
            error that a tolerance can be compared with: with weights, and below four samples.

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
        """Expected calibration error of the top label, in the bins of the state: `kcalib.top_label_ece`.

        Parameters
        ----------
        norm : {"l1", "l2", "max"}
            As there.

        Returns
        -------
        ECEResult
            Bins included.

        Raises
        ------
        ValueError
            If the state has no samples, or for another `norm`.
        """
        return ece_of(self._bin_totals(), "top_label", norm)

    def class_wise_ece(self, *, norm: str = "l1", class_weight: Any = None) -> ECEResult:
        """Expected calibration error of each class, in the bins of the state: `kcalib.class_wise_ece`.

        Parameters
        ----------
        norm, class_weight
            As there.

        Returns
        -------
        ECEResult
            Bins and the error of each class included.

        Raises
        ------
        TypeError, ValueError
            If the state has no samples, or for an argument that is out of range.
        """
        return ece_of(self._bin_totals(), "class_wise", norm, class_weight)

    def debiased_ece(self, *, notion: str = "top_label", class_weight: Any = None) -> ECEResult:
        """The "l2" error without the part of noise in the labels: `kcalib.debiased_ece` with ``binning="uniform"``.

        Parameters
        ----------
        notion, class_weight
            As there.

        Returns
        -------
        ECEResult
            With the unbiased square.

        Raises
        ------
        TypeError, ValueError
            If the state has no samples, or weighted ones, if a bin holds a single sample, or for an argument that is
            out of range.
        """
        return ece_of(self._bin_totals(), notion, "l2", class_weight, debiased=True)

    def ece_interval(self, *, notion: str = "top_label", confidence_level: float = 0.95) -> ConfidenceInterval:
        r"""Confidence interval of the expected calibration error ("l1") with the bins of the state.

        Parameters
        ----------
        notion : {"top_label", "class_wise"}
            Of which error.
        confidence_level : float
            In (0, 1).

        Returns
        -------
        ConfidenceInterval
            Of :math:`\sum_b |\mu_b|`, with :math:`\mu_b` the expected gap in bin b times the bin's probability.

        Raises
        ------
        ValueError
            If an argument is out of range, with weights, and below four samples.

        Notes
        -----
        The bounds on the error of an ECE that `kcalib.compare` has for ``metric="ece"``, with a parametric bootstrap:
        deviations of the bins' gaps are normal, with the covariance that the sums say, or binomial in bins where labels
        rarely come out otherwise. Limits of classes are averaged; for errors that are jointly normal that holds however
        classes depend on each other. Too wide rather than too narrow. Time O(4000 n_bins) a column, seed that of the
        state.

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
        """The reliability diagram in the bins of the state: `kcalib.reliability`.

        Parameters
        ----------
        lens : Lens, optional
            What the event is, in the problem that the state's lens induces: ``kcalib.lenses.TopLabel()``,
            ``kcalib.lenses.ClassWise(k)``, or of two classes ``kcalib.lenses.Canonical()``, the second one. Default:
            the top label; if the state's lens leaves two classes, the second one.
        confidence_level : float
            Of both bands.
        bands : {"both", "confidence", "consistency"}, optional
            Which to compute; default "both".
        simultaneous : bool
            As in `kcalib.reliability`.

        Returns
        -------
        ReliabilityDiagram
            With `plot`. The consistency band has the limits of the binomial law with each bin's mean confidence, which
            are those of the exact law or a little wider. With weights there are no bands. The smallest and the largest
            confidence of a bin are known of the top label only, and NaN elsewhere.

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
        """The Brier score taken apart, by classes in the bins of the state: `kcalib.brier_decomposition`.

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
        """Accuracy, mean confidence, log loss and Brier score, with standard errors.

        Returns
        -------
        Scores
            Each with `value` and `standard_error`, that of a mean of independent samples; None with weights.

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
