"""
Is my rain ensemble calibrated?
===============================

Twenty members predict the rain of a day, with many dry days. The members are too similar: the observed rain lies
outside all of them too often. The test of ranks tells how sure that is, and a map of the quantiles repairs part of it.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib
from kcalib.distributions import Samples
from kcalib.recalibration import QuantileRecalibration

rng = np.random.default_rng(0)
n, members = 1200, 20
wetness = rng.normal(size=n)  # what the model knows of the day
rain = np.maximum(wetness + rng.normal(size=n), 0) * 5  # millimetres
ensemble = np.maximum(wetness[:, None] + 0.6 * rng.normal(size=(n, members)), 0) * 5

first, later = slice(0, 600), slice(600, None)
print(kcalib.evaluate(rain[later], Samples(ensemble[later]), method="ranks", seed=0).verdict)

# %%
# PIT values at both ends are too frequent: a histogram like a bowl is that of members with too little spread. The map,
# fitted to the first days, improves the CRPS of the later ones. It cannot predict more rain than the wettest member.

repaired = QuantileRecalibration().fit(rain[first], Samples(ensemble[first])).transform(Samples(ensemble[later]))
figure, both = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
for axes, title, prediction in zip(both, ("members", "repaired"), (Samples(ensemble[later]), repaired)):
    values = kcalib.pit_values(rain[later], prediction, seed=0)
    axes.hist(values, bins=11, range=(0, 1), density=True)
    axes.set(title=f"{title}: CRPS {kcalib.crps(rain[later], prediction):.3f}", xlabel="PIT value")
plt.show()
