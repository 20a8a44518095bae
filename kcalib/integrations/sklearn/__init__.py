"""kcalib in scikit-learn: scorers for cross-validation, a display, and recalibration as an estimator.

    scorer, scorer_names       for `cross_val_score`, `GridSearchCV`          _scorers.py
    ReliabilityDisplay         reliability diagrams of one or more models     _display.py
    RecalibratedClassifier     a classifier with its recalibration            _classifier.py
    ProbabilityRecalibrator    recalibration of predicted probabilities       _probabilities.py
                               recalibration methods by name                  _methods.py

scikit-learn 1.5 or later is needed, for the display matplotlib.
"""

from kcalib.integrations.sklearn._classifier import RecalibratedClassifier
from kcalib.integrations.sklearn._display import ReliabilityDisplay
from kcalib.integrations.sklearn._probabilities import ProbabilityRecalibrator
from kcalib.integrations.sklearn._scorers import scorer, scorer_names

__all__ = ["ProbabilityRecalibrator", "RecalibratedClassifier", "ReliabilityDisplay", "scorer", "scorer_names"]
