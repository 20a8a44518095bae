"""Calibration errors by regression, with a risk to choose between estimators (Gruber and Bach, 2025).

An estimation function h(p, p') is fitted to labels and predictions. The mean of h(p, p) estimates the squared
calibration error, and the risk of h on other samples measures the accuracy of the estimate.
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
