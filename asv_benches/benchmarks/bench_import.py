"""`import kcalib` in a fresh interpreter: medians over a few of them.

Measure this on an installed wheel, as `asv run` does: an editable install asks the build
system on import whether anything changed.
"""

import statistics
import subprocess
import sys

PROCESSES = 9

PROGRAM = """
import time
import numpy, scipy.special
start = time.perf_counter()
import kcalib
print(time.perf_counter() - start)
"""


class Import:
    def setup_cache(self):
        pass

    def track_import_beyond_numpy_and_scipy(self):
        return seconds_of_import()

    track_import_beyond_numpy_and_scipy.unit = "seconds"


def seconds_of_import(processes=PROCESSES):
    def once():
        done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
        return float(done.stdout)

    once()  # files into the cache
    return statistics.median(once() for _ in range(processes))
