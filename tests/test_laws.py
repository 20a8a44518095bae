"""`kcalib.laws` against closed forms in extended precision, published tables, and quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kcalib.laws import ChiSquareMixture


@pytest.mark.parametrize("dof", [1, 2, 3, 10, 1000])
def test_equal_weights_have_a_chi_square_law(dof):
    law, expected = ChiSquareMixture([1.0] * dof), stats.chi2(dof)
    x = expected.isf([0.999, 0.9, 0.5, 0.1, 1e-3, 1e-10, 1e-100])
    np.testing.assert_allclose(law.sf(x), expected.sf(x), rtol=1e-11)
    np.testing.assert_allclose(law.cdf(x), expected.cdf(x), rtol=1e-11)
