"""Prints constraints for pip: the oldest versions that pyproject.toml allows of what kcalib itself depends on.

And of scikit-learn and pandas, on which parts of kcalib and of its tests stand. Called by .ci/tests.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ALSO = ("scikit-learn", "pandas", "matplotlib", "pyarrow")

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = [project["optional-dependencies"][extra] for extra in ("test", "plot", "parquet")]
for requirement in sum(extras, project["dependencies"]):
    if bound := re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement):
        name, version = bound.groups()
        if requirement in project["dependencies"] or name in ALSO:
            print(f"{name}=={version}")
