"""The layers of the package: `test_codebase.py` compares imports with them."""

from __future__ import annotations

# From the ground up. A line names rooms, or modules of a room that is on several lines: a module may import what is on
# earlier lines, and within its own line in a circle never.
LAYERS = [
    ["_version", "_native"],
    ["_backend"],
    ["_pairs", "laws", "lenses", "report"],
    [
        "kernels",
        "target_kernels",
        "results",
        "_input.checks",
        "_input.classes",
        "_input.data",
        "_input.columns",
        "_input.frames",
        "_input.digits",
        "_input.logits",
        "_input.sparse",
        "_input.labels",
    ],
    ["bandwidth", "distributions", "evaluation_results"],
    ["_input"],
    ["_packing"],
    ["parallel"],
    ["solvers"],
    ["definiteness", "estimators"],
    ["inference", "regression"],
    ["streaming"],
    ["evaluation", "evaluation_metrics", "methods", "recalibration"],
    [""],
    ["_command", "integrations"],
    ["__main__"],
]


def layer(module: str) -> int:
    """The number of the line that has the longest part of the module's name, which is without "kcalib."."""
    parts = module.split(".") if module else []
    for length in range(len(parts), -1, -1):
        for number, rooms in enumerate(LAYERS):
            if ".".join(parts[:length]) in rooms and (length or not parts):
                return number
    raise AssertionError(f"give kcalib.{module} a place in LAYERS")
