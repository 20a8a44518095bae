"""The script `kcalib`: beside the package, so that Ctrl-C while that is imported ends it as at any later time."""

import sys


def main() -> int:
    """Run the command and return its exit code."""
    try:
        from kcalib._command.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("kcalib: interrupted", file=sys.stderr)
        return 130  # as `kcalib._command.streams.INTERRUPTED`
