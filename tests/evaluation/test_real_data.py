"""Published numbers of real predictions; the variable KCALIB_DATA names their folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import kcalib

FOLDER = os.environ.get("KCALIB_DATA")
pytestmark = pytest.mark.skipif(not FOLDER, reason="KCALIB_DATA does not name a folder of predictions")

# Accuracy and ECE (15 bins) as the folder's table gives them.
TABLE = {
    "cifar10_resnet110_kull2019": (0.936, 0.048),
    "cifar10_vgg16_kumar2019": (0.936, 0.040),
    "cifar10_netcal_lenet_5": (0.531, 0.108),
    "cifar10_netcal_wideresnet_16_4": (0.911, 0.054),
    "cifar100_netcal_lenet_5": (0.125, 0.015),
    "cifar100_netcal_densenet_bc_100": (0.754, 0.142),
    "cifar100_netcal_wideresnet_16_4": (0.754, 0.058),
    "imagenet16h_noise110_vgg19": (0.847, 0.031),
}


def load(name: str):
    path = Path(FOLDER or "") / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in KCALIB_DATA")
    with np.load(path) as data:
        logits = "logits" in data
        return data["labels"], data["logits" if logits else "probs"], logits


@pytest.mark.parametrize("name", TABLE)
def test_accuracy_and_ece_of_the_table(name):
    y, p, logits = load(name)
    accuracy, ece = TABLE[name]
    # Half a unit of the last printed digit.
    assert kcalib.top_label_ece(y, p, from_logits=logits) == pytest.approx(ece, abs=5.0001e-4)
    assert np.mean(np.argmax(p, axis=1) == y) == pytest.approx(accuracy, abs=5.0001e-4)


@pytest.mark.parametrize("name", ["cifar10_resnet110_kull2019", "imagenet16h_noise110_vgg19"])
def test_skce_of_saturated_predictions_agrees_with_numpy(name):
    """Over a quarter of ResNet-110's rows have a confidence of exactly 1 in float32."""
    y, p, logits = load(name)
    y, p = y[:1200].astype(int), p[:1200].astype(np.longdouble)
    if logits:
        p = np.exp(p - p.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
    kernel = kcalib.kernels.Exponential(bandwidth=0.5)
    e = np.eye(p.shape[1])[y] - p
    total = trace = np.longdouble(0)
    for i in range(len(y)):
        d = np.sqrt(((p[i] - p) ** 2).sum(axis=1))
        row = np.exp(-2 * d) * (e[i] * e).sum(axis=1)
        total, trace = total + row.sum(), trace + row[i]
    n = len(y)
    found = kcalib.skce(y, p.astype(float), kernel=kernel)
    assert found == pytest.approx(float((total - trace) / (n * (n - 1))), rel=1e-11)


def test_pairs_of_confidences_are_not_turned_round():
    y, p, _ = load("imagenet16h_noise110_vgg19")
    right, c = y == p.argmax(axis=1), p.max(axis=1)  # 9 % of the confidences are below 1/2
    pairs, turned = (kcalib.evaluate(right, c, lens=lens, seed=0) for lens in (kcalib.lenses.Confidence(), None))
    assert (pairs.accuracy, turned.accuracy) == pytest.approx((0.8467, 0.8617), abs=1e-4)
    assert (pairs.top_label_ece, turned.top_label_ece) == pytest.approx((0.0308, 0.0317), abs=1e-4)
