"""`kcalib demo` in a fresh process: start, import, six evaluations, output."""

import json
import subprocess
import sys

COMMAND = [sys.executable, "-m", "kcalib", "demo", "--json"]


class Command:
    repeat = (3, 7, 10.0)
    number = 1

    def setup_cache(self):
        pass

    def setup(self):
        done = subprocess.run(COMMAND, capture_output=True, text=True)
        try:
            json.loads(done.stdout)
        except ValueError:
            raise NotImplementedError("this version has no `kcalib demo --json`") from None

    def time_demo(self):
        subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)
