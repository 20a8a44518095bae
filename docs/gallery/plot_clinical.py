"""
Is my risk score calibrated?
============================

A score predicts death within 30 days for the patients of a new hospital. Papers that validate such scores report the
calibration slope, calibration-in-the-large, the ratio of observed to expected deaths, and a smooth calibration curve.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib

rng = np.random.default_rng(0)
risk = rng.beta(1, 6, size=1500)
died = rng.uniform(size=1500) < risk
odds = risk / (1 - risk)
predicted = 1 / (1 + 0.7 / odds**1.3)  # overfitted: log-odds are too extreme

result = kcalib.evaluate(died, predicted, metrics="clinical", seed=0)
print(result.verdict)
for name, number in result.metrics.items():
    print(f"{name}\n{number}\n")

# %%
# With a slope below 1 low risks are too low and high risks too high. The smooth curve shows where, and the histogram
# how many patients have each predicted risk.

figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
kcalib.integrated_calibration_index.result(died, predicted, seed=0).plot(axes)
plt.show()
