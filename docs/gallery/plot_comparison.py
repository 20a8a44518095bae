"""
Which of my models is calibrated better?
========================================

`kcalib.compare` estimates the paired difference of two models on the same samples, which is more precise than the error
of each model.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier

import kcalib

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y, test_size=0.5, random_state=0)
models = {
    "logistic": LogisticRegression(max_iter=3000),
    "network": MLPClassifier(max_iter=1000, random_state=0),
    "bayes": GaussianNB(),
}
p = {name: model.fit(X_train, y_train).predict_proba(X_test) for name, model in models.items()}

comparison = kcalib.compare(y_test, p)
print(comparison)

# %%
figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
comparison.plot(axes)
plt.show()
