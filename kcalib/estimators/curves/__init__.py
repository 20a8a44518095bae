"""Calibration errors of curves instead of bins."""
