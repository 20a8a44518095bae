"""Recalibration: one number, the temperature, that makes predictions more or less sure of themselves.

`TemperatureScaling` finds the temperature T on labelled predictions and then scales other predictions with it: their
densities, or probabilities, become proportional to p^(1/T) with respect to a reference measure (Widmann et al. 2021,
appendix F).

    TemperatureScaling    what users call                                    temperature_scaling.py
                          what is scaled: probabilities or distributions     _scalable.py
                          each family at another temperature                 _families.py
                          likelihoods as functions of the temperature        _likelihood.py
                          the highest likelihood                             _search.py
                          the lowest SKCE                                    _skce.py
"""

from kcalib.recalibration._scalable import ProbabilityFloorWarning
from kcalib.recalibration._search import TemperatureBoundWarning
from kcalib.recalibration.temperature_scaling import TemperatureScaling

__all__ = ["ProbabilityFloorWarning", "TemperatureBoundWarning", "TemperatureScaling"]
