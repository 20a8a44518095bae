"""The command `kcalib`, so slow that a test can interrupt it: each row takes SECONDS of `KCALIB_TEST_SECONDS_A_ROW`."""

import os
import sys
import time

from kcalib._command.cli import main
from kcalib.streaming import CalibrationState, ComparisonState, running

SECONDS = float(os.environ["KCALIB_TEST_SECONDS_A_ROW"])


def slowed(kind):
    update = kind.update

    def slow(self, y_true, *args, **kwargs):
        if "first_row" in kwargs:  # rows of the run; not those from which it takes a bandwidth
            time.sleep(SECONDS * len(y_true))
        return update(self, y_true, *args, **kwargs)

    kind.update = slow


if __name__ == "__main__":
    slowed(CalibrationState)
    slowed(ComparisonState)
    running.FIRST_SLICE = 64
    sys.exit(main())
