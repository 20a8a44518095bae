"""Distributions of test statistics with relative accuracy in both tails, in the style of `scipy.stats`.

They have `cdf`, `sf`, their logarithms, and their inverses `ppf` and `isf`, for numbers and arrays.
"""

from kcalib.laws.chi_square_mixture import ChiSquareMixture
from kcalib.laws.pearson import PearsonCurve

__all__ = ["ChiSquareMixture", "PearsonCurve"]
