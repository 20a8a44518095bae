"""Scores and quantile calibration of predicted distributions."""
