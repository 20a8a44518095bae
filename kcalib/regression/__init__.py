"""Calibration errors by regression: which estimator should I trust, decided by a risk (Gruber and Bach, 2025)."""
