"""
Are predicted distributions calibrated?
=======================================

A Bayesian ridge regression predicts a mean and a standard deviation for each patient. Quantiles should cover as many
targets as they say, and values of the probability integral transform should be uniform.
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
# Each quantile covers what it should within the band. The verdict looks further: at the distribution for each single
# prediction, not at their average.

figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
kcalib.quantile_calibration(y, prediction).plot(axes)
plt.show()
