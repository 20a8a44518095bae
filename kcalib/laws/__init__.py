"""Provide laws of test statistics with relative accuracy in both tails, in the manner of `scipy.stats`.

Laws have `cdf`, `sf`, their logarithms and their inverses `ppf` and `isf`, for numbers and arrays.
"""

from kcalib.laws.chi_square_mixture import ChiSquareMixture
from kcalib.laws.pearson import PearsonCurve

__all__ = ["ChiSquareMixture", "PearsonCurve"]
