"""`import kcalib` in a fresh interpreter, and the first call after it: medians over a few of them.

The import brings the compiled core, and a call the rooms on its way, so that the two together are what a program waits
for.

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
{call}
print(time.perf_counter() - start)
"""
FIRST_CALL = "kcalib.skce([0, 1, 1], [0.2, 0.6, 0.9])"


class Import:
    def setup_cache(self):
        pass

    def track_import_beyond_numpy_and_scipy(self):
        return seconds_of_import()

    def track_import_and_first_call_beyond_numpy_and_scipy(self):
        return seconds_of_import(FIRST_CALL)

    track_import_beyond_numpy_and_scipy.unit = "seconds"
    track_import_and_first_call_beyond_numpy_and_scipy.unit = "seconds"


def seconds_of_import(call="", processes=PROCESSES):
    def once():
        program = PROGRAM.replace("{call}", call)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        return float(done.stdout)

    once()  # files into the cache
    return statistics.median(once() for _ in range(processes))
