"""
Is my classifier calibrated?
============================

`kcalib.evaluate` gives the verdict, `kcalib.reliability` the picture, here for a random forest on handwritten digits.
Forests average the votes of trees and are often under-confident.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import kcalib

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
p = RandomForestClassifier(random_state=0).fit(X_train, y_train).predict_proba(X_test)

print(kcalib.evaluate(y_test, p))

# %%
# Points above the diagonal mean that the forest is right more often than it says. Faint points have few samples.

figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
kcalib.reliability(y_test, p).plot(axes)
plt.show()
