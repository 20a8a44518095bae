"""Measure, test and compare the calibration of probabilistic models.

`evaluate` gives an overview of one model. `skce` and the other estimators measure calibration errors,
`calibration_test` tests whether a model is calibrated, `compare` ranks models, and `recalibration` corrects
predictions.
"""

import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

try:
    importlib.import_module("kcalib._native")
except ModuleNotFoundError as error:
    from pathlib import Path

    folder = Path(__file__).parent
    # meson.build exists in a checkout only; any other missing module is a different error.
    if error.name != "kcalib._native" or not (folder / "meson.build").is_file():
        raise
    raise ImportError(
        f"this is the source folder {folder}, without the compiled core; install kcalib (`pip install .`), and start "
        "Python in another folder, or with the option -P, to import what is installed"
    ) from None

from kcalib._version import __version__

__all__ = [
    "AntiConservativeWarning",
    "Band",
    "BrierDecomposition",
    "CKCEResult",
    "CalibrationCurve",
    "CalibrationTestResult",
    "Comparison",
    "ConfidenceInterval",
    "CumulativeCalibrationError",
    "ECEResult",
    "Evaluation",
    "FewErrors",
    "ForecastEvaluation",
    "GoodnessOfFit",
    "GradientWarning",
    "GroupCalibration",
    "IndefiniteKernelWarning",
    "KDEResult",
    "LogisticRecalibration",
    "LogitsWarning",
    "MMCEResult",
    "ModelDifference",
    "ModelValue",
    "MultilabelEvaluation",
    "ObservedExpectedRatio",
    "QuantileCalibration",
    "QuantileScores",
    "ReliabilityBins",
    "ReliabilityDiagram",
    "SKCEResult",
    "SparseProbabilities",
    "ToleranceWarning",
    "UCMEResult",
    "WorstGroups",
    "__version__",
    "bandwidth",
    "brier_decomposition",
    "brier_score",
    "calibration_test",
    "canonical_ece",
    "ckce",
    "class_wise_ece",
    "compare",
    "crps",
    "cumulative_calibration_error",
    "dawid_sebastiani_score",
    "debiased_ece",
    "distributions",
    "ence",
    "evaluate",
    "hosmer_lemeshow_test",
    "integrated_calibration_index",
    "interval_score",
    "jkce",
    "kde_calibration_error",
    "kernels",
    "laws",
    "lenses",
    "log_loss",
    "log_score",
    "logistic_recalibration",
    "methods",
    "miscalibration_area",
    "mmce",
    "observed_expected_ratio",
    "parallel",
    "pinball_loss",
    "pit_values",
    "quantile_calibration",
    "quantile_scores",
    "recalibration",
    "regression",
    "reliability",
    "score_samples",
    "sharpness",
    "skce",
    "smallest_eigenvalue",
    "smooth_ece",
    "solvers",
    "spiegelhalter_test",
    "squared_calibration_error",
    "streaming",
    "target_kernels",
    "top_label_ece",
    "ucme",
    "weighted_interval_score",
    "worst_groups",
]

if TYPE_CHECKING:
    from kcalib import (
        bandwidth,
        distributions,
        kernels,
        laws,
        lenses,
        methods,
        parallel,
        recalibration,
        regression,
        solvers,
        streaming,
        target_kernels,
    )
    from kcalib._backend.warnings import (
        AntiConservativeWarning,
        GradientWarning,
        IndefiniteKernelWarning,
        LogitsWarning,
    )
    from kcalib._input.sparse import SparseProbabilities
    from kcalib.definiteness import smallest_eigenvalue
    from kcalib.estimators.bands import Band
    from kcalib.estimators.binning import ReliabilityBins
    from kcalib.estimators.brier import BrierDecomposition, brier_decomposition
    from kcalib.estimators.canonical_ece import canonical_ece
    from kcalib.estimators.ckce import ToleranceWarning, ckce, jkce
    from kcalib.estimators.clinical.curve import CalibrationCurve, integrated_calibration_index
    from kcalib.estimators.clinical.logistic import LogisticRecalibration, logistic_recalibration
    from kcalib.estimators.clinical.observed_expected import (
        GoodnessOfFit,
        ObservedExpectedRatio,
        hosmer_lemeshow_test,
        observed_expected_ratio,
        spiegelhalter_test,
    )
    from kcalib.estimators.curves.cumulative import CumulativeCalibrationError, cumulative_calibration_error
    from kcalib.estimators.curves.smooth_ece import smooth_ece
    from kcalib.estimators.debiased_ece import debiased_ece
    from kcalib.estimators.ece import ECEResult, class_wise_ece, top_label_ece
    from kcalib.estimators.forecasts.crps import crps
    from kcalib.estimators.forecasts.dispersion import dawid_sebastiani_score, ence, miscalibration_area, sharpness
    from kcalib.estimators.forecasts.quantile_calibration import QuantileCalibration, pit_values, quantile_calibration
    from kcalib.estimators.forecasts.quantile_scores import (
        QuantileScores,
        interval_score,
        quantile_scores,
        weighted_interval_score,
    )
    from kcalib.estimators.forecasts.scores import log_score, pinball_loss
    from kcalib.estimators.mmce import MMCEResult, mmce
    from kcalib.estimators.reliability import ReliabilityDiagram, reliability
    from kcalib.estimators.scores import brier_score, log_loss
    from kcalib.estimators.skce import skce
    from kcalib.estimators.ucme import ucme
    from kcalib.evaluation import evaluate
    from kcalib.evaluation_results import Evaluation, ForecastEvaluation, MultilabelEvaluation
    from kcalib.inference.adaptive.groups import GroupCalibration, WorstGroups, worst_groups
    from kcalib.inference.calibration_test import calibration_test
    from kcalib.inference.compare import compare, score_samples
    from kcalib.regression.cross_validation import squared_calibration_error
    from kcalib.regression.dirichlet_kde import kde_calibration_error
    from kcalib.results import (
        CalibrationTestResult,
        CKCEResult,
        Comparison,
        ConfidenceInterval,
        FewErrors,
        KDEResult,
        ModelDifference,
        ModelValue,
        SKCEResult,
        UCMEResult,
    )
else:  # hidden from type checkers: with __getattr__ they would accept any name
    # Modules are imported when one of their names is first used: importing all takes longer than importing NumPy.
    MODULES = {
        "_backend.warnings": "AntiConservativeWarning GradientWarning IndefiniteKernelWarning LogitsWarning",
        "_input.sparse": "SparseProbabilities",
        "bandwidth": "",
        "definiteness": "smallest_eigenvalue",
        "distributions": "",
        "estimators.bands": "Band",
        "estimators.binning": "ReliabilityBins",
        "estimators.brier": "BrierDecomposition brier_decomposition",
        "estimators.canonical_ece": "canonical_ece",
        "estimators.ckce": "ToleranceWarning ckce jkce",
        "estimators.clinical.curve": "CalibrationCurve integrated_calibration_index",
        "estimators.clinical.logistic": "LogisticRecalibration logistic_recalibration",
        "estimators.clinical.observed_expected": "GoodnessOfFit ObservedExpectedRatio hosmer_lemeshow_test "
        "observed_expected_ratio spiegelhalter_test",
        "estimators.forecasts.crps": "crps",
        "estimators.curves.cumulative": "CumulativeCalibrationError cumulative_calibration_error",
        "estimators.curves.smooth_ece": "smooth_ece",
        "estimators.debiased_ece": "debiased_ece",
        "estimators.ece": "ECEResult class_wise_ece top_label_ece",
        "estimators.forecasts.dispersion": "dawid_sebastiani_score ence miscalibration_area sharpness",
        "estimators.forecasts.scores": "log_score pinball_loss",
        "estimators.mmce": "MMCEResult mmce",
        "estimators.forecasts.quantile_calibration": "QuantileCalibration pit_values quantile_calibration",
        "estimators.forecasts.quantile_scores": "QuantileScores interval_score quantile_scores weighted_interval_score",
        "estimators.reliability": "ReliabilityDiagram reliability",
        "estimators.scores": "brier_score log_loss",
        "estimators.skce": "skce",
        "estimators.ucme": "ucme",
        "evaluation": "evaluate",
        "evaluation_results": "Evaluation ForecastEvaluation MultilabelEvaluation",
        "inference.adaptive.groups": "GroupCalibration WorstGroups worst_groups",
        "inference.calibration_test": "calibration_test",
        "inference.compare": "compare score_samples",
        "kernels": "",
        "laws": "",
        "lenses": "",
        "methods": "",
        "parallel": "",
        "recalibration": "",
        "regression": "",
        "regression.cross_validation": "squared_calibration_error",
        "regression.dirichlet_kde": "kde_calibration_error",
        "results": "CalibrationTestResult CKCEResult Comparison ConfidenceInterval FewErrors KDEResult ModelDifference "
        "ModelValue SKCEResult UCMEResult",
        "solvers": "",
        "streaming": "",
        "target_kernels": "",
    }
    OPENED_LATER = {name: f"kcalib.{module}" for module, names in MODULES.items() for name in names.split() or [module]}

    _import_lock = threading.RLock()  # with Python's locks, one for each module, two threads can deadlock
    if hasattr(os, "register_at_fork"):  # not on Windows
        # A child forked while another thread imports would wait for that thread's lock forever.
        os.register_at_fork(
            before=_import_lock.acquire, after_in_parent=_import_lock.release, after_in_child=_import_lock.release
        )

    def __getattr__(name: str) -> Any:
        """Import and return a public object; for names known from other libraries, say what kcalib offers instead."""
        if name in OPENED_LATER:
            path = OPENED_LATER[name]
            with _import_lock:
                importlib.import_module(path.rpartition(".")[0])  # another thread may be importing `path` from it
                module = importlib.import_module(path)
            value = module if module.__name__ == f"kcalib.{name}" else getattr(module, name)
            globals()[name] = value
            return value
        instead = {
            "calibration_error": "`squared_calibration_error` estimates a squared error and has its `root`; a binned "
            "error is `top_label_ece`",
            "static_calibration_error": "it is `class_wise_ece(y_true, y_pred)`",
            "adaptive_calibration_error": "it is `class_wise_ece(y_true, y_pred, binning='equal_mass')`",
        }
        remedy = f": {instead[name]}" if name in instead else ""
        raise AttributeError(f"module 'kcalib' has no attribute {name!r}{remedy}", name=name)

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
