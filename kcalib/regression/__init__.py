"""Calibration errors by regression: which estimator should I trust, decided by a risk (Gruber and Bach, 2025).

KKR, UKKR    kernel ridge regression                    kernel_ridge.py
             what all share: features, risk, h(p, p')   _function.py
"""

from kcalib.regression.kernel_ridge import KKR, UKKR, RegularizationWarning

__all__ = ["KKR", "UKKR", "RegularizationWarning"]
