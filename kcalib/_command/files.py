"""Open the files of the command, or standard input, with messages that name options."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kcalib._command.streams import suggest_file
from kcalib._input.columns import Columns, FileError
from kcalib._input.parameters import PARAMETERS
from kcalib.streaming.sources.layout import ReadOptions
from kcalib.streaming.sources.opening import open_source
from kcalib.streaming.sources.reader_source import ReaderSource
from kcalib.streaming.sources.text import TextReader

STDIN = Path("-")


@dataclass(frozen=True)
class FileColumns(Columns):
    """Columns of a file, with messages that name options of the command."""

    def spelled(self, option: str) -> str:
        return f"--{option}".replace("_", "-")

    def otherwise(self) -> str:
        confidence = next((name for name in self.names if name.lower().startswith("conf")), None)
        if confidence is not None:
            return f"; for confidences pass --confidence {confidence}, and --labels: whether each prediction was right"
        return (
            "; for regression expected mean and std, samples, rate, or quantiles such as 0.1 and 0.9, or q10 and q90; "
            "name them by --mean and --std, --samples, or --rate, and Laplace distributions by --loc and --scale"
        )

    def suggest_file(self, name: str) -> str:
        return suggest_file(name)


def open_file(file: str, options_by_name: Mapping[str, Any], clusters: str | None = None) -> ReaderSource:
    """Open a file, a folder, a pattern of files, or standard input."""
    options = ReadOptions(
        options_by_name.get("probs") or options_by_name.get("confidence"),
        options_by_name.get("logits"),
        options_by_name.get("labels"),
        bool(options_by_name.get("from_logits")),
        bool(options_by_name.get("normalize")),
        bool(options_by_name.get("multilabel")),
        classes=options_by_name.get("classes"),
        positive=options_by_name.get("positive"),
        per_character=bool(options_by_name.get("per_character")),
        parameters={name: options_by_name.get(name) for name in PARAMETERS},
        columns=FileColumns,
        clusters=clusters,
        missing=options_by_name.get("missing") or "refuse",
        has_names=bool(options_by_name.get("has_names")),
        needs_labels=options_by_name.get("needs_labels", True),
    )
    if file != str(STDIN):
        return open_source(file, options)
    if clusters is not None:
        raise FileError("--clusters cannot be read from standard input; write it to a file")
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # standard input can be read only once
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.flush()

    def open_copy() -> IO[bytes]:
        stream = os.fdopen(os.dup(copy.fileno()), "rb")
        stream.seek(0)
        return stream

    def identity() -> Iterator[bytes]:
        with open_copy() as stream:
            yield stream.read(2**20)

    try:
        samples = ReaderSource([TextReader(open_copy, options, file, ",", identity)])
    except BaseException:
        copy.close()
        raise
    weakref.finalize(samples, copy.close)
    return samples
