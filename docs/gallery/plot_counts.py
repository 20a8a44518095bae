"""
Which distribution do my counts have?
=====================================

The example predicts daily visits to an emergency department. Poisson predictions have the right mean but too small a
variance, because patients come in groups; negative binomial predictions also have a dispersion.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib
from kcalib.distributions import NegativeBinomial, Poisson

rng = np.random.default_rng(0)
mean = np.exp(rng.normal(2.5, 0.4, size=730))
visits = rng.poisson(mean * rng.gamma(5, 1 / 5, size=mean.size))  # negative binomial, dispersion 1/5

models = {"poisson": Poisson(mean), "negative binomial": NegativeBinomial(mean, 0.2)}
for name, prediction in models.items():
    print(f"{name}: {kcalib.evaluate(visits, prediction, seed=0).verdict}")

# %%
# The comparison by the CRPS of each day says which is better, and how sure that is.

comparison = kcalib.compare(visits, models, metric="crps")
print(comparison)
figure, both = plt.subplots(1, 2, figsize=(9, 5), layout="constrained")
for axes, (name, prediction) in zip(both, models.items()):
    kcalib.quantile_calibration(visits, prediction).plot(axes)
    axes.set_title(name, loc="right")
plt.show()
