"""The landing page's summary of docs/performance_table.txt, which asv_benches/table.py prints.

    python docs/scripts/speed_summary.py [docs/performance_table.txt]

prints what docs/conf.py puts on the page: some of the table's rows in words. Nothing is measured or typed here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).parents[1] / "performance_table.txt"
THREADS = "2 threads"
PAIR = "Nanoseconds per pair"
PAIRS = 10_000 * 9_999 / 2 / 1e6  # of that section, in milliseconds
# What; how its number reads; how the title of its section begins; its row; and a row that the number is divided by.
ROWS = (
    ("SKCE over all pairs of 10,000 samples, 10 classes", "{milliseconds:.0f} ms", PAIR, "kcalib, 2 threads", None),
    ("the same by NumPy, in tiles", "{:.1f} times as long", PAIR, "numpy_tiled, 2 threads", "kcalib, 2 threads"),
    ("the same by PyTorch, in tiles", "{:.1f} times as long", PAIR, "torch, 2 threads", "kcalib, 2 threads"),
    ("the same, were it exponentials, roots and multiply-adds alone", "{:.2f} times as long", "Fraction of the machine",
     "engine, float64, m = 10, 2 threads", None),
    ("SKCE of 10 million binary forecasts", "{:.1f} times np.sort of as many numbers", "Binary problems",
     "skce, n = 1e+07, 2 threads", None),
    ("a call with ten samples", "{:.0f} µs", "What a call costs", "skce of 10 samples, microseconds", None),
    ("bootstrap of 5,000 samples by NumPy, 1,000 resamples", "{:.0f} times as long as kcalib's", "Tests of calibration",
     "NumPy with stored H over bootstrap, 2 threads", None),
    ("a test of a million binary forecasts", "{:.2f} s", "Tests of calibration",
     "binary, n = 1e+06, test, 2 threads, seconds", None),
    ("ECE of a million predictions of 100 classes", "{:.1f} times np.sum of them", "Binned errors",
     "top_label_ece, 2 threads", None),
)  # fmt: skip


class Table(NamedTuple):
    sections: dict[str, dict[str, float]]  # rows by title
    verdicts: tuple[str, ...]
    cpu: str

    def section(self, title: str) -> dict[str, float]:
        """That whose title begins so; empty if the table has none."""
        found = [rows for name, rows in self.sections.items() if name.startswith(title)]
        return found[0] if found else {}


def read(text: str) -> Table:
    """Columns end where the words above them do."""
    sections, verdicts, cpu = {}, [], ""
    for block in text.strip().split("\n\n"):
        title, *lines = block.splitlines()
        if title.startswith("CPU: "):
            cpu = title.removeprefix("CPU: ")
            continue
        end = lines[0].index("measured") + len("measured")
        width = end - (20 if "before" in lines[0] else 10)
        sections[title] = {" ".join(line[:width].split()): float(line[:end].split()[-1]) for line in lines[1:]}
        verdicts += [word for line in lines[1:] if (word := line.split()[-1]) in ("yes", "no")]
    return Table(sections, tuple(verdicts), cpu)


def summary(table: Table) -> list[tuple[str, str]]:
    """What, and how much of it; without sections that the table lacks."""
    lines = []
    for what, form, title, name, divisor in ROWS:
        if rows := table.section(title):
            value = rows[name] / (rows[divisor] if divisor else 1)
            lines.append((what, form.format(value, milliseconds=value * PAIRS)))
    met = table.verdicts.count("yes")
    return [*lines, ("bars of the whole table that are met", f"{met} of {len(table.verdicts)}")]


def main() -> None:
    table = read((Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE).read_text())
    for what, value in summary(table):
        print(f"{what}: {value}")
    print(f"({THREADS}; {table.cpu})")


if __name__ == "__main__":
    main()
