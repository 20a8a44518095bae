"""The command `kcalib`, so slow that a test can interrupt it: each row takes SECONDS of `KCALIB_TEST_SECONDS_A_ROW`."""

import os
import sys
import time

from kcalib._command.cli import main
from kcalib.streaming import CalibrationState, running

SECONDS = float(os.environ["KCALIB_TEST_SECONDS_A_ROW"])
update = CalibrationState.update


def slow(self, y_true, *args, **kwargs):
    time.sleep(SECONDS * len(y_true))
    return update(self, y_true, *args, **kwargs)


if __name__ == "__main__":
    CalibrationState.update = slow
    running.FIRST_SLICE = 64
    sys.exit(main())
