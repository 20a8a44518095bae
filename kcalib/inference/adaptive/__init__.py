"""The adaptive test, and the lower bound of the error by a fitted witness."""

from kcalib.inference.adaptive.method import Adaptive

__all__ = ["Adaptive"]
