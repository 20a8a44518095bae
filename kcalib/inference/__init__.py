"""Hypothesis tests: is the model calibrated, and how sure are you?

calibration_test    the asymptotic block test
compare             paired comparison of models on the same samples
"""
