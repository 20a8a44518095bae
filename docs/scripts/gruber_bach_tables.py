"""The risks of Gruber and Bach's tables, recomputed, for the predictions in the folder that KCALIB_DATA names.

    KCALIB_DATA=... python docs/scripts/gruber_bach_tables.py [--all] [--canonical]

For ResNet-110 on CIFAR-10, with the published split, each estimator's grid point of the lowest mean root risk, its mean
root risk x 100 with the standard error over folds, what the paper prints, and the difference of the risk to that of
h = 0 (null), with its standard error. With --canonical also all ten classes together, which takes minutes. With --all
instead all files: for each the estimators by risk, and the squared error by the best.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

import kcalib
from kcalib.lenses import Canonical, Lens, TopLabel
from kcalib.regression import BinnedCalibration, SquaredCalibrationErrorCV

RESNET = "cifar10_resnet110_kull2019"
PRINTED = {
    "TopLabel": {
        "15 bins": "5.40 +- 0.24", "bins": "5.39 +- 0.23", "kde": "7.46 +- 0.35",
        "kkr": "5.39 +- 0.24", "ukkr": "5.38 +- 0.24",
    },
    "Canonical": {"kde": "4.46 +- 0.14", "kkr": "4.47 +- 0.14", "ukkr": "4.47 +- 0.14"},
}  # fmt: skip


def load(path: Path) -> tuple[np.ndarray, np.ndarray, bool]:
    """Labels, predictions, and whether these are logits."""
    with np.load(path) as data:
        name = "logits" if "logits" in data else "probs"
        return data["labels"], data[name], name == "logits"


def published_order(n: int) -> np.ndarray:
    return np.random.RandomState(0).permutation(n)


def print_table(path: Path, lens: Lens) -> None:
    y, p, logits = load(path)
    order = published_order(len(y))
    notion = type(lens).__name__
    print(f"\n{path.stem}, {notion}\n")
    print(f"{'':12s}{'best':>24s}{'printed':>15s}{'float64':>18s}{'(risk - null) x 1e6':>24s}")
    for name in ("15 bins", "bins", "temperature", "kde", "kkr", "ukkr"):
        if "bins" in name and not lens.is_scalar:
            continue
        estimator = BinnedCalibration(15) if name == "15 bins" else name
        cv = SquaredCalibrationErrorCV(estimator, lens=lens, shuffle=False).fit(y[order], p[order], from_logits=logits)
        found = cv.cv_results_
        best = int(np.argmin(found["mean_root_risk"]))
        risks = np.array([found[f"split{k}_risk"][best] for k in range(5)])
        roots, gains = 100 * np.sqrt(risks), 1e6 * (risks - np.array(cv.result_.fold_null_risks))
        setting = ", ".join(f"{key} {value:.3g}" for key, value in found["params"][best].items())
        printed = PRINTED[notion].get(name, "")
        print(f"{name:12s}{setting:>24s}{printed:>15s}{shown(roots, 4):>18s}{shown(gains, 1):>24s}", flush=True)
    nulls = 100 * np.sqrt(cv.result_.fold_null_risks)
    print(f"{'h = 0':12s}{'':24s}{'':15s}{shown(nulls, 4):>18s}")


def shown(values: np.ndarray, digits: int) -> str:
    return f"{np.mean(values):.{digits}f} +- {np.std(values, ddof=1) / np.sqrt(len(values)):.{min(digits, 2)}f}"


def print_file(path: Path) -> None:
    y, p, logits = load(path)
    result = kcalib.squared_calibration_error(y, p, lens=TopLabel(), from_logits=logits)
    print(f"\n{path.stem}, TopLabel: root {result.root:.4f} by {result.estimator}, null risk {result.null_risk:.3e}\n")
    print(result, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--canonical", action="store_true")
    options = parser.parse_args()
    folder = Path(os.environ["KCALIB_DATA"])
    if options.all:
        for path in sorted(folder.glob("*_*.npz")):
            if not path.stem.startswith("precip"):
                print_file(path)
        return
    print_table(folder / f"{RESNET}.npz", TopLabel())
    if options.canonical:
        print_table(folder / f"{RESNET}.npz", Canonical())


if __name__ == "__main__":
    main()
