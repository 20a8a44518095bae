"""Reliability diagrams of a classifier of the demo data, with three kinds of bins.

python docs/scripts/reliability_diagrams.py [--output docs/_static/reliability.png]
"""

from __future__ import annotations

import argparse
from importlib import resources

import numpy as np

import kcalib

MODEL = "digits_forest.npz"
TITLES = {"uniform": "equal width", "equal_mass": "equal mass", "isotonic": "isotonic regression (CORP)"}


def main() -> None:
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="docs/_static/reliability.png")
    output = parser.parse_args().output
    with resources.as_file(resources.files("kcalib") / "data" / MODEL) as path, np.load(path) as data:
        y, p = data["labels"], data["probs"]
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    for ax, (binning, title) in zip(figure.subplots(1, 3), TITLES.items(), strict=True):
        diagram = kcalib.reliability(y, p, binning=binning)
        diagram.plot(ax, legend=binning != "equal_mass")
        ax.set_title(title)
    figure.savefig(output, dpi=100)


if __name__ == "__main__":
    main()
