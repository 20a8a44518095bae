"""`python -m kcalib`: the same as the command `kcalib`."""

import sys

from kcalib._command.cli import main

if __name__ == "__main__":
    sys.exit(main())
