"""Arrays whose memory is not aligned to their numbers, as views of structures and of files have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kcalib
from kcalib import _native
from kcalib.distributions import Normal, Samples

RNG = np.random.default_rng(0)
N = 60


def misaligned(array: np.ndarray) -> np.ndarray:
    buffer = np.empty(array.nbytes + 1, np.uint8)
    view = np.ndarray(array.shape, array.dtype, buffer[1:].data)
    view[...] = array
    assert not view.flags.aligned
    return view


LABELS, P = RNG.integers(0, 3, N), RNG.dirichlet(np.ones(3), N)
CONFIDENCE, WEIGHTS = RNG.random(N), RNG.random(N)
BINARY = np.stack([1 - CONFIDENCE, CONFIDENCE], axis=1)
CALLS: dict[str, Callable[[Callable[[np.ndarray], Any]], Any]] = {
    "skce": lambda a: kcalib.skce(a(LABELS), a(P)),
    "skce, weights": lambda a: kcalib.skce(a(LABELS), a(P), sample_weight=a(WEIGHTS)),
    "skce, binary, weights": lambda a: kcalib.skce(a((LABELS == 1) * 1.0), a(CONFIDENCE), sample_weight=a(WEIGHTS)),
    "skce, float32": lambda a: kcalib.skce(a(LABELS.astype(np.int32)), a(P.astype(np.float32)), dtype="float32"),
    "median, line": lambda a: kcalib.bandwidth.median_distance(a(BINARY)).value,
    "median, one column": lambda a: kcalib.bandwidth.median_distance(a(CONFIDENCE[:, None])).value,
    "median": lambda a: kcalib.bandwidth.median_distance(a(P)).value,
    "ece": lambda a: kcalib.top_label_ece(a(LABELS), a(P), sample_weight=a(WEIGHTS)),
    "classes": lambda a: kcalib.class_wise_ece(a(LABELS), a(P), sample_weight=a(WEIGHTS)),
    "brier_score": lambda a: kcalib.brier_decomposition(a(LABELS), a(P), sample_weight=a(WEIGHTS)).score,
    "ucme": lambda a: kcalib.ucme(a(LABELS), a(P), kernel=kcalib.kernels.Exponential(bandwidth=0.5)),
    "canonical": lambda a: kcalib.canonical_ece(a(LABELS), a(P), sample_weight=a(WEIGHTS)),
    "kde": lambda a: kcalib.kde_calibration_error(a(LABELS), a(P), bandwidth=0.1),
    "normal": lambda a: kcalib.skce(a(WEIGHTS), Normal(a(CONFIDENCE), a(WEIGHTS + 1))),
    "samples": lambda a: kcalib.skce(a(WEIGHTS), Samples(a(P))),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiled_code_gets_aligned_arrays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = CALLS[name](np.asarray)
    seen = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            seen.extend(x for x in (*args, *options.values()) if isinstance(x, np.ndarray))
            return function(*args, **options)

        return call

    for attribute, value in vars(_native).items():
        if type(value).__name__ in ("cython_function_or_method", "builtin_function_or_method", "fused_cython_function"):
            monkeypatch.setattr(_native, attribute, watched(value))
    assert CALLS[name](misaligned) == expected
    assert seen or name == "median"  # whose arrays go to a class
    assert all(array.flags.aligned for array in seen)
