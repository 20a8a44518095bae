"""
Is my rain ensemble calibrated?
===============================

Twenty members predict the rain of each day; many days are dry. The members are too similar: the observed rain is too
often outside their range. The test of ranks says whether that is more than chance; recalibration repairs part of it.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib
from kcalib.distributions import Samples
from kcalib.recalibration import QuantileRecalibration

rng = np.random.default_rng(0)
n, members = 1200, 20
wetness = rng.normal(size=n)  # known to the model
rain = np.maximum(wetness + rng.normal(size=n), 0) * 5  # millimetres
ensemble = np.maximum(wetness[:, None] + 0.6 * rng.normal(size=(n, members)), 0) * 5

first, later = slice(0, 600), slice(600, None)
print(kcalib.evaluate(rain[later], Samples(ensemble[later]), method="ranks", seed=0).verdict)

# %%
# PIT values near 0 and 1 are too frequent: the members have too little spread. A map of quantile levels, fitted to the
# first days, improves the CRPS of the later days. It cannot predict more rain than the wettest member.

repaired = QuantileRecalibration().fit(rain[first], Samples(ensemble[first])).transform(Samples(ensemble[later]))
figure, both = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
for axes, title, prediction in zip(both, ("members", "repaired"), (Samples(ensemble[later]), repaired)):
    values = kcalib.pit_values(rain[later], prediction, seed=0)
    axes.hist(values, bins=11, range=(0, 1), density=True)
    axes.set(title=f"{title}: CRPS {kcalib.crps(rain[later], prediction):.3f}", xlabel="PIT value")
plt.show()
