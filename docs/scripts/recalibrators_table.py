"""Recalibrators on the logits of a ResNet-110 on CIFAR-10: fitted to the validation part, measured on the test part.

    KCALIB_DATA=folder python docs/scripts/recalibrators_table.py > docs/recalibrators_table.txt

The folder holds ``cifar10_resnet110_kull2019.npz`` with the arrays ``logits``, ``labels``, ``val_logits`` and
``val_labels``: the network of Kull et al. 2019, whose published numbers are printed beside ours. Loss: mean negative
log-likelihood. Brier: mean over classes, as they have it. ECE: top-label, and class by class the sum over classes, both
with 15 bins of equal width. SKCE: the unbiased estimate x 1e4 with its standard error, all with the bandwidth of the
predictions as given. p: of the adaptive test of the repaired predictions. The last lines are a choice by nested
cross-validation on the validation part alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

import kcalib
from kcalib.bandwidth import median_distance
from kcalib.kernels import Exponential
from kcalib.recalibration import (
    BetaCalibration,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
    choose,
)

NAME = "cifar10_resnet110_kull2019.npz"
RECALIBRATORS = {
    "temperature": TemperatureScaling(),
    "platt": PlattScaling(),
    "beta": BetaCalibration(),
    "isotonic": IsotonicCalibration(),
    "isotonic, smoothing=0": IsotonicCalibration(smoothing=0.0),
    "venn-abers": VennAbers(),
    "histogram": HistogramBinning(),
    "histogram, uniform": HistogramBinning(binning="uniform"),
    "vector": VectorScaling(),
    **{f"matrix, {size:g}": MatrixScaling(regularization=size) for size in (0.1, 1.0, 10.0, 100.0)},
    **{f"dirichlet, {size:g}": DirichletCalibration(regularization=size) for size in (0.1, 1.0, 10.0, 100.0)},
}
# Log loss, Brier score, ECE and class-wise ECE; the regularisations of Dirichlet and matrix scaling are by
# cross-validation, and the predictions means over its five folds.
PUBLISHED = {
    "as given": (0.358274, 0.011019, 0.047503, 0.098456),
    "temperature": (0.209261, 0.009785, 0.011321, 0.043437),
    "vector": (0.206, None, None, 0.036),
    "matrix": (0.203753, 0.009759, 0.010591, 0.036155),
    "dirichlet": (0.205106, 0.009765, 0.010857, 0.039497),
}
CANDIDATES = ("temperature", "platt", "beta", "isotonic", "vector", "dirichlet, 1", "dirichlet, 10", "dirichlet, 100")


@dataclass(frozen=True)
class Part:
    y: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True)
class Row:
    name: str
    loss: float
    brier: float
    ece: float
    class_wise: float
    skce: Any
    p_value: float
    error: float

    def __str__(self) -> str:
        shown = f"{self.name:22} {self.loss:8.6f} {self.brier:8.6f} {self.ece:8.6f} {self.class_wise:8.6f}"
        shown += f" {1e4 * self.skce.value:7.3f} {1e4 * self.skce.standard_error:6.3f} {max(self.p_value, 1e-300):8.0e}"
        return f"{shown} {100 * self.error:7.2f}"


def parts(folder: str) -> tuple[Part, Part]:
    """Validation and test."""
    with np.load(Path(folder) / NAME) as data:
        return (
            Part(data["val_labels"].ravel().astype(np.int64), data["val_logits"].astype(np.float64)),
            Part(data["labels"].ravel().astype(np.int64), data["logits"].astype(np.float64)),
        )


def scores(y: np.ndarray, q: np.ndarray) -> tuple[float, float, float, float]:
    """Log loss, Brier score, ECE and class-wise ECE, as they are published."""
    m = q.shape[1]
    return (
        kcalib.log_loss(y, q),
        kcalib.brier_score(y, q) / m,
        kcalib.top_label_ece(y, q),
        m * kcalib.class_wise_ece(y, q),
    )


def measured(name: str, y: np.ndarray, q: np.ndarray, kernel: Exponential) -> Row:
    return Row(
        name,
        *scores(y, q),
        skce=kcalib.skce.result(y, q, kernel=kernel),
        p_value=kcalib.calibration_test(y, q, kernel=kernel).pvalue,
        error=float(np.mean(q.argmax(axis=1) != y)),
    )


def repaired(name: str, validation: Part, test: Part) -> np.ndarray:
    """Predictions for the test part."""
    if name == "as given":
        return scipy.special.softmax(test.logits, axis=1)
    fitted = RECALIBRATORS[name].clone().fit(validation.y, validation.logits, from_logits=True)
    return fitted.transform(test.logits, from_logits=True)


def rows(validation: Part, test: Part) -> list[Row]:
    kernel = Exponential(bandwidth=median_distance(repaired("as given", validation, test)).value)
    names = ("as given", *RECALIBRATORS)
    return [measured(name, test.y, repaired(name, validation, test), kernel) for name in names]


def choice_lines(validation: Part, test: Part) -> list[str]:
    choice = choose(
        validation.y, validation.logits, {name: RECALIBRATORS[name] for name in CANDIDATES}, from_logits=True
    )
    lines = [f"choice by cross-validation on the validation part: {choice.name}"]
    for name in choice.comparison.ranking:
        value = choice.comparison.model(name)
        lines.append(f"{name:22} {value.value:8.6f} {value.standard_error:8.6f}")
    gain = choice.comparison.difference("chosen", "as given")
    low, high = gain.confidence_interval
    lines.append(f"gain of the choice: {gain.difference:.4f}, 95 % interval {low:.4f} to {high:.4f}")
    before = kcalib.log_loss(test.y, test.logits, from_logits=True)
    after = kcalib.log_loss(test.y, choice.recalibrator.transform(test.logits, from_logits=True))
    return [*lines, f"on the test part: {after - before:.4f}"]


def main() -> None:
    validation, test = parts(os.environ["KCALIB_DATA"])
    columns = f"{'loss':>8} {'Brier':>8} {'ECE':>8} {'by class':>8} {'SKCE e4':>7} {'error':>6} {'p':>8} {'wrong %':>7}"
    print(f"{'':22} {columns}")
    print(*rows(validation, test), sep="\n")
    print("\npublished (Kull et al. 2019)")
    for name, numbers in PUBLISHED.items():
        print(f"{name:22} " + " ".join(f"{'' if x is None else f'{x:.6g}':>8}" for x in numbers).rstrip())
    print()
    print(*choice_lines(validation, test), sep="\n")


if __name__ == "__main__":
    main()
