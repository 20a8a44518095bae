"""`kcalib apply`: recalibrate the predictions of a file by a saved map."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kcalib.distributions as distributions
from kcalib._backend import arrays
from kcalib._backend.files import printable, write_whole
from kcalib._backend.threads import TerminalProgress
from kcalib._command.files import open_file
from kcalib._command.jobs import Failure, check_reading, collect_failures, translate_errors
from kcalib._command.streams import BAD_INPUT, DONE, write
from kcalib._input.classes import is_named_after, key_of
from kcalib._input.columns import CLASSES_NAME, FileError
from kcalib.recalibration import DirichletCalibration, load
from kcalib.recalibration._recalibrator import prepare_unlabelled
from kcalib.streaming.sources.content import normalize_rows
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE, Block, Layout

ROWS = 65_536  # rows of one call of the recalibrator


def run_apply(arguments: argparse.Namespace) -> int:
    if arguments.output.suffix.lower() != ".npz":
        arguments.usage_error(f"--output is {str(arguments.output)!r}, expected a file name that ends in .npz")
    if arguments.missing == "drop":
        arguments.usage_error("--missing is for evaluations; write a file of complete samples for apply")
    for path in map(Path, (arguments.map, arguments.file)):
        if arguments.output.exists() and path.exists() and arguments.output.samefile(path):
            arguments.usage_error(f"--output is {str(arguments.output)!r}, which is read; name another file")
    reading, failures, content = check_reading(arguments), list[Failure](), dict[str, Any]()
    with collect_failures(failures, arguments.map):
        recalibrator = load(arguments.map)
        with collect_failures(failures, arguments.file), translate_errors(has_missing=False):
            samples = open_file(arguments.file, reading | {"needs_labels": False})
            layout = samples.layout
            if layout.log is not None and layout.log.clusters is not None:
                raise FileError(
                    "holds predictions of tokens, expected probabilities of all classes; write these as the array "
                    "`probs` of an .npz file"
                )
            block = samples.read_unchecked()
            if Y_TRUE in block:
                content["labels"] = np.array(block[Y_TRUE].tolist())
            if layout.family is not None:
                content |= _repair_distributions(recalibrator, block, layout)
            elif arguments.confidence is None:
                content |= _repair_probabilities(recalibrator, block, layout)
            else:
                content["confidence"] = _repair_probabilities(recalibrator, block, layout)["probs"]
    with collect_failures(failures, str(arguments.output)):
        if not failures:
            file = io.BytesIO()
            np.savez(file, **content)
            write_whole(arguments.output, file.getvalue())
            n, method = len(next(iter(content.values()))), type(recalibrator).__name__
            line = f"{printable(str(arguments.output))}: {n:,} samples, repaired by {method}: {', '.join(content)}\n"
            return DONE if write(line) else BAD_INPUT
    return BAD_INPUT


def _repair_probabilities(recalibrator: Any, block: Block, layout: Layout) -> dict[str, np.ndarray]:
    """Return recalibrated probabilities, and the classes of the columns if they are known."""
    pred, known, are_logits = block[Y_PRED], getattr(recalibrator, "classes_", ()), layout.from_logits
    if layout.normalize:
        pred = normalize_rows(pred, are_logits, layout.describe())
    takes_any = isinstance(recalibrator, DirichletCalibration) or getattr(recalibrator, "from_logits_", True)
    if are_logits and not takes_any:  # `kcalib report` fits such maps to the softmax of logits
        with layout.located({Y_PRED: layout.predictions[Y_PRED]}, 0):
            pred, are_logits = prepare_unlabelled(pred, True, recalibrator._check_family).probabilities, False
    classes = layout.class_names if layout.classes is None else layout.classes
    if classes is None and len(known) == 2 and (pred.ndim == 1 or pred.shape[1] == 1):
        classes = _name_single_column(layout, known)

    def repair(rows: slice) -> Any:
        with layout.located({Y_PRED: layout.predictions[Y_PRED]}, rows.start):
            return recalibrator.transform(pred[rows], classes=classes, from_logits=are_logits)

    repaired = {"probs": np.concatenate(_repair_in_parts(len(pred), repair))}
    if classes is not None or any(isinstance(label, str) for label in known):
        repaired[CLASSES_NAME] = np.array(known if classes is None else classes)
    return repaired


def _name_single_column(layout: Layout, known: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the classes of the map with the class of the single column last; None if no class is named."""
    column, positive = layout.predictions[Y_PRED][0], layout.positive
    if positive is not None and key_of(positive) not in map(key_of, known):
        raise FileError(
            f"{layout.positive_option} is {positive}, expected a class of the map, {known[0]} or {known[1]}"
        )
    if positive is None:
        is_named = [layout.noun == "column" and is_named_after(column, label) for label in known]
    else:
        is_named = [key_of(label) == key_of(positive) for label in known]
    return None if is_named[0] == is_named[1] else known[::-1] if is_named[0] else known


def _repair_distributions(recalibrator: Any, block: Block, layout: Layout) -> dict[str, np.ndarray]:
    """Return the parameters of the recalibrated distributions by name."""
    with layout.located(layout.predictions, 0):
        prediction = getattr(distributions, str(layout.family))(**{name: block[name] for name in layout.predictions})
    parts = _repair_in_parts(prediction.n, lambda rows: recalibrator.transform(prediction.take(rows)))
    return {name: np.concatenate([arrays.to_host(getattr(part, name)) for part in parts]) for name in parts[0]._names()}


def _repair_in_parts(n: int, repair: Callable[[slice], Any]) -> list[Any]:
    """Apply `repair` to consecutive slices of the rows, return the results, and show progress."""
    parts = []
    with TerminalProgress("apply") as progress:
        for begin in range(0, n, ROWS):
            parts.append(repair(slice(begin, min(begin + ROWS, n))))
            if progress is not None:
                progress(min(1.0, (begin + ROWS) / n))
    return parts
