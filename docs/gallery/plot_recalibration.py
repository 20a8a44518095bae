"""
Can it be repaired?
===================

Naive Bayes is far too confident. A recalibrator is chosen by cross-validation on one half of the samples, and evaluated
on the other half.
"""

import warnings

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_predict
from sklearn.naive_bayes import GaussianNB

import kcalib
from kcalib.recalibration import IsotonicCalibration, ProbabilityFloorWarning, TemperatureScaling, choose

warnings.simplefilter("ignore", ProbabilityFloorWarning)  # naive Bayes predicts probabilities of 0
X, y = load_digits(return_X_y=True)
p = cross_val_predict(GaussianNB(), X, y, method="predict_proba")
fit, judge = slice(0, None, 2), slice(1, None, 2)

choice = choose(y[fit], p[fit], {"temperature": TemperatureScaling(), "isotonic": IsotonicCalibration()})
print(choice.name, choice.comparison.difference("chosen", "as given"))

# %%
# Before and after, on samples that the choice has not seen.

figure, both = plt.subplots(1, 2, figsize=(9, 5.5), layout="constrained")
repaired = choice.recalibrator.transform(p[judge])
for axes, predictions in zip(both, (p[judge], repaired)):
    kcalib.reliability(y[judge], predictions).plot(axes)
plt.show()
