"""
Which law do my counts follow?
==============================

Visits to an emergency department, predicted for each day. Poisson predictions have the right mean and too little
spread, because crowds come together; negative binomial ones have a dispersion, too.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib
from kcalib.distributions import NegativeBinomial, Poisson

rng = np.random.default_rng(0)
mean = np.exp(rng.normal(2.5, 0.4, size=730))
visits = rng.poisson(mean * rng.gamma(5, 1 / 5, size=mean.size))  # a negative binomial law of dispersion 1/5

models = {"poisson": Poisson(mean), "negative binomial": NegativeBinomial(mean, 0.2)}
for name, prediction in models.items():
    print(f"{name}: {kcalib.evaluate(visits, prediction, seed=0).verdict}")

# %%
# Which is better, and how sure is that? The comparison is by the CRPS of each day.

comparison = kcalib.compare(visits, models, metric="crps")
print(comparison)
figure, both = plt.subplots(1, 2, figsize=(9, 5), layout="constrained")
for axes, (name, prediction) in zip(both, models.items()):
    kcalib.quantile_calibration(visits, prediction).plot(axes)
    axes.set_title(name, loc="right")
plt.show()
