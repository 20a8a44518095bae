"""
Could this be chance?
=====================

A test draws labels from the predictions, as if the model were calibrated, and counts how often the statistic of drawn
labels is at least as large as the statistic of the observed labels.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib

rng = np.random.default_rng(0)
p = rng.dirichlet(np.ones(3), size=500)
y = (rng.uniform(size=(500, 1)) > p.cumsum(axis=1)).sum(axis=1)

result = kcalib.calibration_test(y, p, seed=0)
print(result.pvalue, result.null_law)
figure, axes = plt.subplots(figsize=(7, 2.5), layout="constrained")
result.plot(axes)
plt.show()

# %%
# The same labels with over-confident predictions.

sharp = p**1.5 / np.sum(p**1.5, axis=1, keepdims=True)
figure, axes = plt.subplots(figsize=(7, 2.5), layout="constrained")
kcalib.calibration_test(y, sharp, seed=0).plot(axes)
plt.show()
