"""
Samples that do not fit into memory
===================================

How do I evaluate samples that do not fit into memory? A state of a few megabytes takes predictions in chunks, also on
several machines. Its results are identical, bit for bit, for any order of adding the parts.
"""

import matplotlib.pyplot as plt
import numpy as np

from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState


def part(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(10), size=20_000)
    y = (rng.uniform(size=(len(p), 1)) > p.cumsum(axis=1)).sum(axis=1)
    return y, p


states = []
for number in range(3):  # three jobs
    state = CalibrationState(10, kernel=Exponential(0.7), part=number)
    state.update(*part(number))
    states.append(state)

whole = sum(states[1:], states[0])
print(whole.result())
assert whole.skce().value == (states[2] + states[0] + states[1]).skce().value

# %%
figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
whole.reliability().plot(axes)
plt.show()
