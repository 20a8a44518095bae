"""Where the time of the pair engine goes, stage by stage: samples of `perf`, with the source line of each.

    CXXFLAGS=-g pip install --force-reinstall --no-deps .      # the same code, and its line numbers
    python asv_benches/profile_stages.py [--m 10 1000] [--dtype float64] [--seconds 3]

One thread, exponential kernel, n as in bench_limits. Each sample of the CPU clock in the compiled
core counts for the innermost of the functions below that it is in, inlined ones included. Needs
perf and addr2line (binutils); no hardware counters, which virtual machines seldom have. Beside it
stands what the same work takes at the machine's peak rates (bench_limits.Rates).

A sample falls on the instruction that waits, and the processor overlaps neighbouring stages: they are
told apart roughly, and one may seem to be faster than its limit.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import bench_limits

# Functions of src/cpu and src/include, and their stages.
STAGES = {
    "accumulate": "products: m multiply-adds",
    "from_residuals": "distances from products",
    "squared_from": "distances from products",
    "squared_euclidean": "distances from products",
    "repair": "near pairs by differences",
    "by_differences": "near pairs by differences",
    "square_root": "square root and exp",  # the compiler interleaves them
    "exp_minus": "square root and exp",
    "decays": "square root and exp",
    "factor_values": "between stages: loads, stores, scaling",
    "kernel_values": "between stages: loads, stores, scaling",
    "for_each_tile": "between stages: loads, stores, scaling",
    "row": "sums",
    "end_tile": "sums",
    "end_panel": "sums",
    "start_panel": "sums",
    "look_at": "packing",
    "pack": "packing",
    "pack_rows": "packing",
    "transpose": "packing",
    "square_norm": "packing",
}
OTHER = "other"

WORKLOAD = """
import sys, time
sys.path.insert(0, {folder!r})
from benchmarks.bench_limits import samples, sweep_of
sweep = sweep_of("engine", samples({m}), {m}, {dtype!r}, 1)
end, sweeps = time.perf_counter() + {seconds}, 0
while time.perf_counter() < end:
    sweep()
    sweeps += 1
print(sweeps * samples({m}) * (samples({m}) - 1) // 2)
"""
FREQUENCY = 4000  # samples per second of CPU time


def recorded(m: int, dtype: str, seconds: float) -> tuple[Path, collections.Counter[int], int]:
    """The compiled core's file, the number of samples at each of its addresses, and the number of pairs."""
    program = WORKLOAD.format(folder=str(Path(__file__).parent), m=m, dtype=dtype, seconds=seconds)
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/perf.data"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", data]
        record += [sys.executable, "-c", program]
        pairs = subprocess.run(record, check=True, capture_output=True, text=True, cwd=folder).stdout
        script = ["perf", "script", "-i", data, "--show-mmap-events", "-F", "comm,ip,dso"]
        text = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    mapped = re.compile(r"\[0x([0-9a-f]+)\(0x([0-9a-f]+)\) @ (0x[0-9a-f]+|0) .*\]: r-xp (/.*/_native\..*)")
    start = size = offset = 0
    path = None
    samples: collections.Counter[int] = collections.Counter()
    for line in text.splitlines():
        if found := mapped.search(line):
            start, size, offset = (int(found[k], 16) for k in (1, 2, 3))
            path = Path(found[4])
        elif found := re.match(r"\s*\S+\s+([0-9a-f]+) ", line):
            address = int(found[1], 16) - start
            if path and 0 <= address < size:
                samples[address + offset] += 1
    if path is None:
        sys.exit("perf has not seen the compiled core")
    return path, samples, int(pairs)


def name_of(signature: str) -> str:
    """`f` of `void ns::(anonymous namespace)::f<T>(arguments)`."""
    depth, kept = 0, ""
    for character in signature.replace("(anonymous namespace)", ""):
        depth += (character in "<(") - (character in ">)")
        if depth == 0 and character not in ">)":
            kept += character
    return kept.split("::")[-1].split(" ")[-1]


def stages(path: Path, samples: collections.Counter[int]) -> collections.Counter[str]:
    addresses = sorted(samples)
    command = ["addr2line", "-a", "-f", "-i", "-C", "-e", str(path)]
    text = "\n".join(map(hex, addresses))
    lines = subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout.splitlines()
    functions: dict[int, list[str]] = {}
    for line in lines:
        if line.startswith("0x"):
            names = functions.setdefault(int(line, 16), [])
        else:
            names.append(line)  # functions, innermost first, and files in turn
    shares: collections.Counter[str] = collections.Counter()
    for address, names in functions.items():
        known = (STAGES[name] for name in map(name_of, names[::2]) if name in STAGES)
        shares[next(known, OTHER)] += samples[address]
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--dtype", nargs="+", choices=("float64", "float32"), default=["float64"])
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    columns: list[tuple[str, dict[str, float]]] = []
    for dtype, m in [(dtype, m) for dtype in arguments.dtype for m in arguments.m]:
        path, samples, pairs = recorded(m, dtype, arguments.seconds)
        nanoseconds = {stage: 1e9 * count / FREQUENCY / pairs for stage, count in stages(path, samples).items()}
        exp, root, fma = (bench_limits.rate(what, dtype, 1) for what in ("exp", "sqrt", "fma"))
        limit = {STAGES["exp_minus"]: 1 / exp + 1 / root, STAGES["accumulate"]: m / fma}
        columns += [(f"{dtype}, m = {m}", nanoseconds), ("limit", limit)]
    width = max(map(len, STAGES.values()))
    print("nanoseconds per pair".ljust(width) + "".join(f"{name:>20}" for name, _ in columns))
    for stage in [*dict.fromkeys(STAGES.values()), OTHER]:
        cells = (f"{values[stage]:.3f}" if stage in values else "" for _, values in columns)
        print((stage.ljust(width) + "".join(f"{cell:>20}" for cell in cells)).rstrip())
    print("sum".ljust(width) + "".join(f"{sum(values.values()):20.3f}" for _, values in columns))


if __name__ == "__main__":
    main()
