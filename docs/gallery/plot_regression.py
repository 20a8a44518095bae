"""
Are predicted distributions calibrated?
=======================================

A Bayesian ridge regression predicts a mean and a standard deviation for each patient. The share of targets below each
predicted quantile should be its level, and values of the probability integral transform (PIT) should be uniform.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import cross_val_predict

import kcalib
from kcalib.distributions import Normal

X, y = load_diabetes(return_X_y=True)
model = BayesianRidge()
mean = cross_val_predict(model, X, y)
std = model.fit(X, y).predict(X, return_std=True)[1]
prediction = Normal(mean, std)

print(kcalib.evaluate(y, prediction))

# %%
# The curve, an average over all predictions, is within the band. The verdict also uses how errors depend on the
# prediction.

figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
kcalib.quantile_calibration(y, prediction).plot(axes)
plt.show()
