"""Hypothesis tests: is the model calibrated, and which model is calibrated better?

calibration_test    is the model calibrated? By one of the methods that stand in files of their own
compare             paired comparison of models on the same samples
"""
