"""Exit codes, and what is written to standard output and standard error."""

from __future__ import annotations

import os
import sys
from typing import Any

from kcalib._backend.files import printable
from kcalib._command.nearest import nearest_file

DONE, BAD_INPUT, USAGE, MISCALIBRATED, SAVED, INTERRUPTED = 0, 1, 2, 3, 75, 130  # 75: EX_TEMPFAIL


def message_of(error: BaseException) -> str:
    """Return the message of an error in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        text += nearest_file(error.filename)
    text = "; ".join([text, *getattr(error, "__notes__", ())])
    if isinstance(error, MemoryError):
        text = f"not enough memory ({text})" if text else "not enough memory"
    return printable(" ".join(text.split()))


def report(line: str) -> None:
    if sys.stderr is not None:
        print("kcalib: " + _encodable(printable(line), sys.stderr), file=sys.stderr)


def write(text: str) -> bool:
    """Write to standard output and say whether that worked; a closed pipe is no error."""
    if sys.stdout is None:
        return True
    try:
        sys.stdout.write(_encodable(text, sys.stdout))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes again when it ends: give it something to flush into.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            report(f"error: standard output: {message_of(error)}")
            return False
    return True


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
