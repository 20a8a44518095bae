"""A state beside torchmetrics: time and memory for many samples; and states alone for very many.

    python docs/scripts/streaming_beside.py [ROWS ...] [--file PREDICTIONS.npy] [--tools ...] > docs/streaming_table.txt

Samples of ten classes in float32 come from a generator that repeats a block of 262,144 rows, or from a file with
`labels.npy` beside it, in batches of 65,536. Each line is a process of its own: seconds are those after imports,
reading the samples included, and the peak is all that the process took. torchmetrics needs torch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

BLOCK, M, BATCH = 2**18, 10, 65_536


def block():
    rng = np.random.default_rng(0)
    e = rng.standard_exponential((BLOCK, M), dtype=np.float32) ** 2
    p = e / e.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    y = (rng.random((BLOCK, 1)) > np.cumsum(p, axis=1, dtype=np.float64)).sum(axis=1).clip(0, M - 1)
    return y, p


def batches(rows, file):
    """Batches of (labels, predictions), as an iterator."""
    if file is not None:
        p = np.load(file, mmap_mode="r")
        y = np.load(os.path.join(os.path.dirname(file), "labels.npy"), mmap_mode="r")
        for begin in range(0, rows, BATCH):
            yield np.asarray(y[begin : min(begin + BATCH, rows)]).astype(np.int64), p[begin : min(begin + BATCH, rows)]
        return
    y, p = block()
    for begin in range(0, rows, BATCH):
        at = begin % BLOCK
        size = min(BATCH, rows - begin)
        yield y[at : at + size], p[at : at + size]


def with_state(rows, file, **options):
    from kcalib.streaming import CalibrationState, run, source

    state = CalibrationState(M, **options)
    start = time.perf_counter()
    given = file if file is not None else lambda: batches(rows, None)
    run(state, source(given), rows=(0, rows) if file is not None else None)
    ece, skce = state.top_label_ece().value, state.skce().value
    return time.perf_counter() - start, f"ECE {ece:.6f}, SKCE {skce:.2e}"


def with_torchmetrics(rows, file):
    import torch
    from torchmetrics.classification import MulticlassCalibrationError

    metric = MulticlassCalibrationError(M, n_bins=15)
    metric.update(torch.full((2, M), 1 / M), torch.tensor([0, 1]))
    metric.reset()
    start = time.perf_counter()
    for y, p in batches(rows, file):
        metric.update(torch.from_numpy(np.ascontiguousarray(p)), torch.from_numpy(np.ascontiguousarray(y)))
    ece = float(metric.compute())
    return time.perf_counter() - start, f"ECE {ece:.6f}"


def with_metric(rows, file):
    """The metric of kcalib.integrations, as torchmetrics is called."""
    import torch

    from kcalib.integrations.torchmetrics import ECE

    metric = ECE(M)
    metric.update(torch.full((2, M), 1 / M), torch.tensor([0, 1]))
    metric.reset()
    start = time.perf_counter()
    for y, p in batches(rows, file):
        metric.update(torch.from_numpy(np.ascontiguousarray(p)), torch.from_numpy(np.ascontiguousarray(y)))
    ece = float(metric.compute())
    return time.perf_counter() - start, f"ECE {ece:.6f}"


TOOLS = {
    "state, 256 columns, no draws": lambda *given: with_state(*given, n_resamples=0),
    "state, 64 columns, no draws": lambda *given: with_state(*given, n_columns=64, n_resamples=0),
    "torchmetrics": with_torchmetrics,
    "kcalib.integrations ECE": with_metric,
}


def measure(tool, rows, file):
    """In a process of its own."""
    call = [sys.executable, __file__, "--child", tool, str(rows), *(["--file", file] if file else [])]
    return json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", type=lambda text: int(float(text)))
    parser.add_argument("--file")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        seconds, found = TOOLS[arguments.child](arguments.rows[0], arguments.file)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "found": found, "peak": peak}))
        return
    origin = "a memory-mapped .npy file" if arguments.file else "a generator that repeats a block (10 MB)"
    print(f"{M} classes, float32, batches of {BATCH}, from {origin}; {os.cpu_count()} threads")
    print(f"{'':30} {'samples':>13} {'seconds':>8} {'us a sample':>12} {'peak memory':>12}  result")
    for rows in arguments.rows or [1_000_000, 10_000_000]:
        for tool in arguments.tools:
            got = measure(tool, rows, arguments.file)
            name = f"{tool} {importlib.metadata.version(tool)}" if tool == "torchmetrics" else tool
            print(
                f"{name:30} {rows:13,} {got['seconds']:8.1f} {1e6 * got['seconds'] / rows:12.2f} "
                f"{got['peak'] / 1e6:9,.0f} MB  {got['found']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
