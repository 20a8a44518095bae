"""
A network that is nearly always sure
====================================

Is a network calibrated whose confidences are mostly between 0.99 and 1? A linear axis shows nothing there; bins of
equal mass and an axis of log-odds do. Here one in ten predictions has ten times the error probability that the network
says.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib

rng = np.random.default_rng(0)
error = 10 ** rng.uniform(-5, -0.5, size=100_000)  # error probability that the network says
happens = np.where(rng.uniform(size=error.size) < 0.1, 10 * error, error).clip(0, 0.5)
y = (rng.uniform(size=error.size) > happens).astype(int)  # 1: it was right
p = np.stack((error, 1 - error), axis=1)

diagram = kcalib.reliability(y, p, binning="equal_mass")
figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
diagram.plot(axes, scale="logit")
plt.show()

# %%
# The test finds the error, although the ECE is small.

print(kcalib.calibration_test(y, p, seed=0))
print("ECE", round(kcalib.top_label_ece(y, p), 4))
