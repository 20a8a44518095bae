"""Calibration errors without bins."""
