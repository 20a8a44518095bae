"""Predictions that are distributions: families of predicted distributions, as arrays of parameters.

    Normal    numbers, and vectors of independent entries    normal.py

    wasserstein_distance, mmd_distance    tables of distances between them    distances.py

What is asked of a family, and how to write your own, is in `Distribution` (_distribution.py).
"""

from kcalib.distributions._distribution import Components, Distribution
from kcalib.distributions.distances import mmd_distance, wasserstein_distance
from kcalib.distributions.normal import Normal

__all__ = ["Components", "Distribution", "Normal", "mmd_distance", "wasserstein_distance"]
