"""Laws of test statistics, with both tails to relative accuracy, in the manner of `scipy.stats`.

Objects with `cdf`, `sf`, their logarithms and their inverses `ppf` and `isf`, of numbers and arrays.
"""

from kcalib.laws.chi_square_mixture import ChiSquareMixture
from kcalib.laws.pearson import PearsonCurve

__all__ = ["ChiSquareMixture", "PearsonCurve"]
