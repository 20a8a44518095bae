"""
A network that is nearly always sure
====================================

Most confidences of a good network are between .99 and 1, where a linear axis shows nothing. Bins of equal mass and an
axis of log-odds spread them out: here every tenth prediction of "one error in ten thousand" is one in a thousand.
"""

import matplotlib.pyplot as plt
import numpy as np

import kcalib

rng = np.random.default_rng(0)
error = 10 ** rng.uniform(-5, -0.5, size=100_000)  # what the network says
happens = np.where(rng.uniform(size=error.size) < 0.1, 10 * error, error).clip(0, 0.5)
y = (rng.uniform(size=error.size) > happens).astype(int)  # 1: it was right
p = np.stack((error, 1 - error), axis=1)

diagram = kcalib.reliability(y, p, binning="equal_mass")
figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
diagram.plot(axes, scale="logit")
plt.show()

# %%
# The test finds it, too, although the expected calibration error is small.

print(kcalib.calibration_test(y, p, seed=0))
print("ECE", round(kcalib.top_label_ece(y, p), 4))
