"""Calibration errors of other tools beside ours, on the same small data: docs/other_tools_table.txt.

    pip install torchmetrics torch-uncertainty netcal relplot MCGrad uncertainty-calibration
    python docs/scripts/other_tools.py > docs/other_tools_table.txt

A tool that is not installed is left out, and said. Tests compare our column with what this version computes.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import kcalib
from kcalib.lenses import Confidence

# Two classes, no probability on the edge of a bin; and with 0.2, 0.6 and 1, which are, of five bins.
Y = np.array([0, 0, 1, 0, 1, 0, 1, 1, 1, 1])
P = np.array([0.05, 0.12, 0.25, 0.31, 0.34, 0.45, 0.63, 0.75, 0.87, 0.97])
P_ON_EDGES = np.array([0.05, 0.2, 0.25, 0.31, 0.34, 0.45, 0.6, 0.75, 0.87, 1.0])
P_TIED = np.array([0.3, 0.3, 0.3, 0.05, 0.3, 0.45, 0.63, 0.75, 0.75, 0.97])
# Three classes.
Y3 = np.array([0, 1, 2, 0, 1, 2, 0, 1])
P3 = np.array(
    [[71, 18, 11], [23, 62, 15], [14, 25, 61], [45, 32, 23], [52, 37, 11], [3, 8, 89], [31, 49, 20], [17, 68, 15]]
) / 100  # fmt: skip
BINS = 5


class Row(NamedTuple):
    tool: str
    call: str
    theirs: Callable[[], float]
    our_call: str
    why: str = ""  # the numbers differ


def numbers(call: str) -> float:
    """Our number of a row: its call, as it is printed."""
    names = {"y": Y, "p": P, "p_on_edges": P_ON_EDGES, "p_tied": P_TIED, "y3": Y3, "p3": P3}
    scope = {name: getattr(kcalib, name) for name in kcalib.__all__} | names | {"as_given": Confidence(), "np": np}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcalib.AntiConservativeWarning)
        return float(eval(call, scope))


def torchmetrics(preds: Any, target: Any, **options: Any) -> float:
    import torch
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    preds, target = torch.tensor(preds), torch.tensor(target)
    if preds.ndim == 1:
        return float(binary_calibration_error(preds, target, **{"n_bins": BINS} | options))
    return float(multiclass_calibration_error(preds, target, preds.shape[1], **{"n_bins": BINS} | options))


def torch_uncertainty(name: str, preds: Any, target: Any, **options: Any) -> float:
    import torch
    from torch_uncertainty.metrics.classification import calibration

    metric = getattr(calibration, name)(**options)
    metric.update(torch.tensor(preds, dtype=torch.float32), torch.tensor(target))
    return float(metric.compute())


def netcal(name: str, preds: Any, target: Any, **options: Any) -> float:
    import netcal.metrics

    return float(getattr(netcal.metrics, name)(BINS, **options).measure(preds, target))


def relplot(preds: Any, target: Any, sigma: float | None = None) -> float:
    import relplot

    return float(relplot.smECE(preds, target) if sigma is None else relplot.smECE_sigma(preds, target, sigma))


def mcgrad(name: str, preds: Any, target: Any) -> float:
    import mcgrad.metrics

    return float(getattr(mcgrad.metrics, name)(target, preds))


def uncertainty_calibration(name: str, preds: Any, target: Any) -> float:
    import calibration

    return float(getattr(calibration, name)(preds, target, num_bins=BINS))


TOP, GIVEN = "top_label_ece(y, p, n_bins=5", "top_label_ece(y, p, n_bins=5, lens=as_given"
EDGES = "their bins are [a, b), and 1 is alone in a sixth"
IN_LAST = "their bins are [a, b), with 1 in the last"
TIES = "they part equal confidences, by the order of rows"
OF_BINS = f"(b := {GIVEN.replace('ece(', 'ece.result(')}).bins[0])"
ROWS = [
    Row("torchmetrics", "binary_calibration_error(p, y)", lambda: torchmetrics(P, Y), f"{GIVEN})"),
    Row("torchmetrics", "... norm='l2'", lambda: torchmetrics(P, Y, norm="l2"), f"{GIVEN}, norm='l2')"),
    Row("torchmetrics", "... norm='max'", lambda: torchmetrics(P, Y, norm="max"), f"{GIVEN}, norm='max')"),
    Row("torchmetrics", "binary_calibration_error(p_on_edges, y)", lambda: torchmetrics(P_ON_EDGES, Y),
        f"{GIVEN})".replace("p,", "p_on_edges,"), EDGES),
    Row("torchmetrics", "multiclass_calibration_error(p3, y3, 3)", lambda: torchmetrics(P3, Y3),
        "top_label_ece(y3, p3, n_bins=5)"),
    Row("TorchUncertainty", "AdaptiveCalibrationError('binary')", lambda: torch_uncertainty(
        "AdaptiveCalibrationError", P, Y, task="binary", num_bins=BINS), f"{TOP}, binning='equal_mass')"),
    Row("TorchUncertainty", "... p_tied", lambda: torch_uncertainty(
        "AdaptiveCalibrationError", P_TIED, Y, task="binary", num_bins=BINS),
        f"{TOP}, binning='equal_mass')".replace("p,", "p_tied,"), TIES),
    Row("TorchUncertainty", "ClasswiseCalibrationError(3), p3", lambda: torch_uncertainty(
        "ClasswiseCalibrationError", P3, Y3, num_classes=3, num_bins=BINS), "class_wise_ece(y3, p3, n_bins=5)"),
    Row("TorchUncertainty", "SmoothCalibrationError(kernel_type='reflected')", lambda: torch_uncertainty(
        "SmoothCalibrationError", P, Y, kernel_type="reflected"),
        "smooth_ece(y, p)", "as relplot"),
    Row("netcal", "ECE(5).measure(p, y)", lambda: netcal("ECE", P, Y), f"{GIVEN})"),
    Row("netcal", "ECE(5).measure(p_on_edges, y)", lambda: netcal("ECE", P_ON_EDGES, Y),
        f"{GIVEN})".replace("p,", "p_on_edges,"), IN_LAST),
    Row("netcal", "ECE(5, equal_intervals=False)", lambda: netcal("ECE", P, Y, equal_intervals=False),
        f"{GIVEN}, binning='equal_mass')"),
    Row("netcal", "MCE(5).measure(p, y)", lambda: netcal("MCE", P, Y), f"{GIVEN}, norm='max')"),
    Row("netcal", "ACE(5).measure(p, y)", lambda: netcal("ACE", P, Y),
        f"np.mean(abs({OF_BINS}.accuracy - b.confidence)[b.weight > 0])"),
    Row("netcal", "ECE(5).measure(p3, y3)", lambda: netcal("ECE", P3, Y3), "top_label_ece(y3, p3, n_bins=5)"),
    Row("relplot", "smECE(p, y)", lambda: relplot(P, Y), "smooth_ece(y, p, lens=as_given)",
        "bandwidths k / 1024, a sum over 200 points"),
    Row("relplot", "smECE_sigma(p, y, 0.1)", lambda: relplot(P, Y, 0.1),
        "smooth_ece(y, p, bandwidth=0.1, lens=as_given)", "a sum over 200 points"),
    Row("MCGrad", "ecce(y, p)", lambda: mcgrad("ecce", P, Y), "cumulative_calibration_error(y, p, lens=as_given)"),
    Row("MCGrad", "ecce(y, p_tied)", lambda: mcgrad("ecce", P_TIED, Y),
        "cumulative_calibration_error(y, p_tied, lens=as_given)", TIES),
    Row("MCGrad", "ecce_pvalue(y, p)", lambda: mcgrad("ecce_pvalue", P, Y),
        "cumulative_calibration_error(y, p, lens=as_given).pvalue"),
    Row("uncertainty-calibration", "get_ece(p3, y3)", lambda: uncertainty_calibration("get_ece", P3, Y3),
        "top_label_ece(y3, p3, n_bins=5)"),
]  # fmt: skip
PACKAGES = ("torchmetrics", "torch-uncertainty", "netcal", "relplot", "MCGrad", "uncertainty-calibration")


def main() -> None:
    warnings.simplefilter("ignore")
    for name, values in {"y": Y, "p": P, "p_on_edges": P_ON_EDGES, "p_tied": P_TIED, "y3": Y3, "p3": P3}.items():
        text = np.array2string(values, separator=", ", max_line_width=200)
        print(f"{name:<11}", text.replace("\n", "\n" + 12 * " "))
    for row in ROWS:
        try:
            theirs = f"{row.theirs():.6f}"
        except ImportError as error:
            theirs = f"({error.name} is not installed)"
        print(f"\n{theirs}  {row.tool}: {row.call}")
        print(f"{numbers(row.our_call):.6f}  {row.our_call}")
        if row.why:
            print(f"{'':8}  {row.why}")
    print()
    for package in (*PACKAGES, "numpy"):
        try:
            print(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            print(package, "is not installed")


if __name__ == "__main__":
    main()
