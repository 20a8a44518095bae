"""Hypothesis tests: is a model calibrated, and which of several models is calibrated better?

calibration_test    test whether a model is calibrated; each method has a module of its own
compare             compare models on the same samples, by paired differences
"""
