"""`import kcalib` in a fresh interpreter, and the first call after it: medians over a few of them.

The import brings the compiled core, and a call the rooms on its way, so that the two together are what a program waits
for.

Measure this on an installed wheel, as `asv run` does: an editable install asks the build
system on import whether anything changed.
"""

import os
import statistics
import subprocess
import sys
import tempfile

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
    program = PROGRAM.replace("{call}", call)

    def once(environment):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return float(done.stdout)

    with tempfile.TemporaryDirectory() as folder:  # compiled once, also where the environment forbids to write beside
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        once(environment)  # files into the cache
        return statistics.median(once(environment) for _ in range(processes))
