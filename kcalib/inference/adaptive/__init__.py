"""The adaptive test, and lower bounds of the error by a fitted witness."""

import kcalib.inference.adaptive.forecast_blocks as _forecast_blocks  # noqa: F401 - registers them
from kcalib.inference.adaptive.method import Adaptive

__all__ = ["Adaptive"]
