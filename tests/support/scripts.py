"""Scripts of the documentation as modules, so that tests have their data sets."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"


def load_script(name: str) -> ModuleType:
    """Return docs/scripts/name.py."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
