"""Calibration errors by regression: which estimator should I trust, decided by a risk (Gruber and Bach, 2025).

An estimation function h(p, p') is fitted to labels and predictions; the mean of h(p, p) estimates the squared
calibration error, and its risk on other samples says how far to trust it.
"""

from kcalib.regression._choice import EstimatorRisk, SquaredCalibrationErrorResult
from kcalib.regression.binned import BinnedCalibration
from kcalib.regression.cross_validation import SquaredCalibrationErrorCV, squared_calibration_error
from kcalib.regression.dirichlet_kde import DirichletKDE
from kcalib.regression.kernel_ridge import KKR, UKKR, RegularizationWarning
from kcalib.regression.temperature import TemperatureCalibration

__all__ = [
    "KKR",
    "UKKR",
    "BinnedCalibration",
    "DirichletKDE",
    "EstimatorRisk",
    "RegularizationWarning",
    "SquaredCalibrationErrorCV",
    "SquaredCalibrationErrorResult",
    "TemperatureCalibration",
    "squared_calibration_error",
]
