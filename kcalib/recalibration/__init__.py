"""Recalibration: maps from predictions to calibrated predictions, fitted to labelled ones.

`TemperatureScaling` makes densities, or probabilities, proportional to p^(1/T) with respect to a reference measure
(Widmann et al. 2021, appendix F). The other classes are for class probabilities, or for distributions.

Each class derives from `Recalibrator` and has its own module; `choose` selects the best one by a proper score.
"""

from kcalib._backend.warnings import TemperatureBoundWarning
from kcalib.recalibration._recalibrator import Recalibrator, SeparationWarning
from kcalib.recalibration._saved import load, save
from kcalib.recalibration._scalable import ProbabilityFloorWarning
from kcalib.recalibration.beta_calibration import BetaCalibration
from kcalib.recalibration.choice import Choice, choose
from kcalib.recalibration.histogram import HistogramBinning
from kcalib.recalibration.isotonic import IsotonicCalibration
from kcalib.recalibration.matrix_scaling import DirichletCalibration, MatrixScaling, VectorScaling
from kcalib.recalibration.platt import PlattScaling
from kcalib.recalibration.quantile_recalibration import QuantileRecalibration
from kcalib.recalibration.scale_calibration import ScaleCalibration
from kcalib.recalibration.temperature_scaling import TemperatureScaling
from kcalib.recalibration.venn_abers import VennAbers

__all__ = [
    "BetaCalibration",
    "Choice",
    "DirichletCalibration",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "PlattScaling",
    "ProbabilityFloorWarning",
    "QuantileRecalibration",
    "Recalibrator",
    "ScaleCalibration",
    "SeparationWarning",
    "TemperatureBoundWarning",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "choose",
    "load",
    "save",
]
