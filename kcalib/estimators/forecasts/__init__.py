"""Scores and quantile calibration of predicted distributions.

crps     CRPS and energy score
dispersion   sharpness, Dawid-Sebastiani score, ENCE, miscalibration area
scores   log score and pinball loss
quantile_calibration   PIT values and quantile calibration curves
quantities   means, quantiles and distribution functions that the others need
"""
