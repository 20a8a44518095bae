"""Exit codes, standard output and standard error, and suggestions for unknown words."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from kcalib._backend.files import printable
from kcalib._backend.options import find_similar

DONE, BAD_INPUT, USAGE, MISCALIBRATED, SAVED, INTERRUPTED = 0, 1, 2, 3, 75, 130  # 75: EX_TEMPFAIL


def format_error(error: BaseException) -> str:
    """Return the message of an error in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        text += suggest_file(error.filename)
    text = "; ".join([text, *getattr(error, "__notes__", ())])
    if isinstance(error, MemoryError):
        text = f"not enough memory ({text})" if text else "not enough memory"
    return printable(" ".join(text.split()))


def report(line: str) -> None:
    show_progress()
    if sys.stderr is not None:
        print("kcalib: " + _encodable(printable(line), sys.stderr), file=sys.stderr)


def show_progress(text: str = "") -> None:
    """Show the current step on a terminal, in place of the previous one."""
    if sys.stderr is not None and sys.stderr.isatty():
        print("\r\033[K" + _encodable(printable(text), sys.stderr), end="", file=sys.stderr, flush=True)


def write(text: str) -> bool:
    """Write to standard output and return whether that worked; a closed pipe is not an error."""
    if sys.stdout is None:
        return True
    try:
        sys.stdout.write(_encodable(text, sys.stdout))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes again at exit: give it an open file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            report(f"error: standard output: {format_error(error)}")
            return False
    return True


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def suggest(word: str, words: Iterable[str]) -> str:
    """Return the end of a message, which suggests the most similar of `words` if there is one."""
    match = find_similar(word, words)
    return "" if match is None else f"; did you mean {match}?"


def suggest_file(name: str) -> str:
    """Return the end of a message about a missing file: a similar name among the first 20,000 files of its folder."""
    path = Path(name)
    try:
        with os.scandir(path.parent) as entries:
            files = [entry.name for entry in islice(entries, 20_000)]
    except FileNotFoundError:
        return f"; there is no folder {str(path.parent)!r}"
    except OSError:
        return ""
    return suggest(path.name, files)
