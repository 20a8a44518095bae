"""Methods, estimators and metrics with options. Functions take a name, for the defaults, or one of these objects.

.. code-block:: none

    kcalib.calibration_test             Adaptive, Exact, Features, Spectrum; for other questions CME, Consistency,
                                        Ranks; to compare with the literature Bootstrap, Multiplier, Pearson,
                                        Gamma, Block, Linear, DistributionFree
    kcalib.ckce, kcalib.solvers.solve   AutomaticSolver, Cholesky, ConjugateGradient
    kcalib.ckce                         Fourier, Nystrom, PivotedCholesky
    kcalib.skce                         BlockEstimator, FeatureEstimator
    kcalib.compare                      SKCE, CKCE, ECE, CRPS

Each class checks its options when it is created.
"""

from kcalib.estimators.ckce_low_rank import Fourier, Nystrom, PivotedCholesky
from kcalib.estimators.skce import BlockEstimator, FeatureEstimator
from kcalib.inference.adaptive import Adaptive
from kcalib.inference.adaptive.ranks import Ranks
from kcalib.inference.blocks import Block, Linear
from kcalib.inference.cme import CME
from kcalib.inference.consistency import Consistency
from kcalib.inference.distribution_free import DistributionFree
from kcalib.inference.exact import Exact
from kcalib.inference.features import Features
from kcalib.inference.gamma import Gamma
from kcalib.inference.metrics.ckce import CKCE
from kcalib.inference.metrics.ece import ECE
from kcalib.inference.metrics.scores import CRPS
from kcalib.inference.metrics.skce import SKCE
from kcalib.inference.resampling import Bootstrap, Multiplier
from kcalib.inference.spectrum import Pearson, Spectrum
from kcalib.solvers._solve import AutomaticSolver
from kcalib.solvers.cholesky import Cholesky
from kcalib.solvers.conjugate_gradient import ConjugateGradient

__all__ = [
    "CKCE",
    "CME",
    "CRPS",
    "ECE",
    "SKCE",
    "Adaptive",
    "AutomaticSolver",
    "Block",
    "BlockEstimator",
    "Bootstrap",
    "Cholesky",
    "ConjugateGradient",
    "Consistency",
    "DistributionFree",
    "Exact",
    "FeatureEstimator",
    "Features",
    "Fourier",
    "Gamma",
    "Linear",
    "Multiplier",
    "Nystrom",
    "Pearson",
    "PivotedCholesky",
    "Ranks",
    "Spectrum",
]
