"""Recalibration: functions that repair predictions, fitted on labelled ones.

`TemperatureScaling` finds the temperature T on labelled predictions and then scales other predictions with it: their
densities, or probabilities, become proportional to p^(1/T) with respect to a reference measure (Widmann et al. 2021,
appendix F). The others are for class probabilities, or for distributions.

    Recalibrator          the protocol of all of them                        _recalibrator.py
    TemperatureScaling    what users call                                    temperature_scaling.py
                          what is scaled: probabilities or distributions     _scalable.py
                          each family at another temperature                 _families.py
                          likelihoods as functions of the temperature        _likelihood.py
                          the highest likelihood                             _search.py
                          the lowest SKCE                                    _skce.py
    PlattScaling          slope and intercept of the log-odds                platt.py
    BetaCalibration       two slopes and an intercept                        beta_calibration.py
                          logistic regression of one event                   _logistic.py
    VectorScaling, MatrixScaling, DirichletCalibration                       matrix_scaling.py
                          softmax regression                                 _multinomial.py
                          Newton's method                                    _newton.py
                          the same of many parameters                        _truncated_newton.py
                          likelihoods without a maximum                      _separation.py
    IsotonicCalibration   a monotone function                                isotonic.py
                          samples with equal predictions                     _points.py
    VennAbers             two of them for each prediction                    venn_abers.py
    HistogramBinning      frequencies in bins                                histogram.py
    ScaleCalibration      distributions moved and spread                     scale_calibration.py
    QuantileRecalibration levels of quantiles replaced                       quantile_recalibration.py
                          what these two share                               _forecasts.py
    choose                the one of the best score                          choice.py
"""

from kcalib._backend.warnings import TemperatureBoundWarning
from kcalib.recalibration._recalibrator import Recalibrator
from kcalib.recalibration._scalable import ProbabilityFloorWarning
from kcalib.recalibration._separation import SeparationWarning
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
]
