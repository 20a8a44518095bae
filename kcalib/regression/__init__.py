"""Calibration errors by regression: which estimator should I trust, decided by a risk (Gruber and Bach, 2025)."""

from kcalib.regression.dirichlet_kde import DirichletKDE

__all__ = ["DirichletKDE"]
