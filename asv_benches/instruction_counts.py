"""Instructions that a sweep over all pairs takes on a processor that nobody has at hand, counted in an emulator.

    python asv_benches/instruction_counts.py "setarch -R qemu-aarch64 -L ROOT ROOT/usr/bin/python3"

runs this file by the given command, whose Python imports kcalib for the emulated processor, and prints text. QEMU logs
which blocks of the compiled core are executed, and what they consist of (`-d in_asm,exec`). Each number is a difference
between a large and a small problem. Without `setarch -R` the core would lie elsewhere in each process.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DTYPES = ("float64", "float32")
SAMPLES = {2: (192, 384), 10: (192, 384), 100: (128, 256), 1000: (64, 128)}  # small and large, of m classes
REPETITIONS = (100, 300)
PROBES = ("exp", "sqrt", "fma")
KINDS = {
    "mul-adds": re.compile(r"fml[as]|fn?m(add|sub)"),
    "roots": re.compile(r"fsqrt|fdiv"),
    "loads": re.compile(r"ld"),
    "stores": re.compile(r"st"),
    "floats": re.compile(r"f"),
}
TRACE = re.compile(r"^Trace \d+: \S+ \[\w+/0*(\w+)/")
INSTRUCTION = re.compile(r"^0x0*(\w+):\s+\w+\s+(\S+)\s*(.*)")


def kind_of(mnemonic: str, operands: str) -> str:
    for kind, pattern in KINDS.items():
        if pattern.match(mnemonic):
            return kind
    return "vectors" if re.match(r"[vqd]\d", operands) else "rest"


def work() -> None:
    """In the emulated process: all cases, with a call of the system that nothing else makes before and after each."""
    sys.path.insert(0, str(Path(__file__).parent))
    from benchmarks.common import pair_problem, predictions, total_of

    from kcalib import _native
    from kcalib._pairs.backends.cpu import CpuBackend

    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "_native" in line]
    place = next(fields[0].split("-") for fields in lines if "x" in fields[1])
    print(f"0x{place[0]}..0x{place[1]}", flush=True)
    if "QEMU_DFILTER" not in os.environ:
        return
    for dtype in DTYPES:
        for what in PROBES:
            for repetitions in REPETITIONS:
                os.getppid()
                elements = _native.probe(what, dtype, repetitions, _native.Sweep(1))
                os.getppid()
                print(int(elements), flush=True)
        for m, sizes in SAMPLES.items():
            for n in sizes:
                sweep = total_of(CpuBackend(pair_problem(*predictions(n, m, dtype), dtype), threads=1))
                os.getppid()
                sweep()
                os.getppid()
                print(n * (n - 1) // 2, flush=True)


def counted(command: list[str], place: str) -> Iterator[tuple[Counter[str], int]]:
    """For each case what the core executes, by kind, and how many elements or pairs that is."""
    blocks: dict[str, Counter[str]] = {}
    executed: list[Counter[str]] = [Counter()]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        os.mkfifo(log)
        environment = os.environ | {
            "QEMU_LOG": "in_asm,exec,nochain,strace", "QEMU_DFILTER": place, "QEMU_LOG_FILENAME": str(log),
        }  # fmt: skip
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            with log.open() as lines:
                for line in lines:
                    if trace := TRACE.match(line):
                        executed[-1][trace[1]] += 1
                    elif line.startswith("IN:"):
                        start, block = "", Counter[str]()
                    elif found := INSTRUCTION.match(line):
                        start = start or found[1]
                        block[kind_of(found[2], found[3])] += 1
                        blocks[start] = block
                    elif "getppid()" in line:
                        executed.append(Counter())
            printed = process.stdout.read().split()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    for case, elements in zip(executed[1::2], printed[1:], strict=True):
        total: Counter[str] = Counter()
        for start, times in case.items():
            for kind, count in blocks[start].items():
                total[kind] += times * count
        yield total, int(elements)


def difference(cases: Iterator[tuple[Counter[str], int]]) -> dict[str, float]:
    """Of each kind, what an element or a pair of the next two cases takes."""
    (few, elements), (many, more) = next(cases), next(cases)
    return {kind: (many[kind] - few[kind]) / (more - elements) for kind in many}


def table(cases: Iterator[tuple[Counter[str], int]]) -> Iterator[str]:
    kinds = [*KINDS, "vectors", "rest"]
    yield f"{'instructions':29}{'all':>9}" + "".join(f"{kind:>10}" for kind in kinds)
    for dtype in DTYPES:
        names = [*(f"{what}, alone" for what in PROBES), *(f"a pair, m = {m}" for m in SAMPLES)]
        for name in names:
            found = difference(cases)
            numbers = "".join(f"{found.get(kind, 0):10.2f}" for kind in kinds)
            yield f"{dtype}, {name:<20}{sum(found.values()):9.2f}{numbers}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="the command that runs an emulated Python, with its options")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work()
        return
    command = [*arguments.python.split(), "-P", str(Path(__file__).resolve()), "emulated", "--work"]
    place = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    for line in table(counted(command, place)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
