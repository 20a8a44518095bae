"""Calibration errors by regression: which estimator should I trust, decided by a risk (Gruber and Bach, 2025).

    DirichletKDE    Dirichlet kernel density ratio       dirichlet_kde.py
    KKR, UKKR       kernel ridge regression              kernel_ridge.py

What all estimation functions share, h(p, p') and its risk among it, is in `_function`.
"""

from kcalib.regression.dirichlet_kde import DirichletKDE
from kcalib.regression.kernel_ridge import KKR, UKKR, RegularizationWarning

__all__ = ["KKR", "UKKR", "DirichletKDE", "RegularizationWarning"]
