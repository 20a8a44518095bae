"""Methods with options, for functions that take ``method=``: a string for the defaults, an object for the options.

    kcalib.ckce, kcalib.solvers.solve   AutomaticSolver, Cholesky, ConjugateGradient
    kcalib.ckce                         Fourier, Nystrom, PivotedCholesky

Each class checks its options when it is made; it stands in the file of what it does.
"""

from kcalib.estimators.ckce_low_rank import Fourier, Nystrom, PivotedCholesky
from kcalib.solvers._solve import AutomaticSolver
from kcalib.solvers.cholesky import Cholesky
from kcalib.solvers.conjugate_gradient import ConjugateGradient

__all__ = ["AutomaticSolver", "Cholesky", "ConjugateGradient", "Fourier", "Nystrom", "PivotedCholesky"]
