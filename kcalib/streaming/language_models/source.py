"""Logs of language models as a source, with their fields as named arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._input.columns import FileError, no_such_columns
from kcalib.lenses import Buckets
from kcalib.streaming.forecast_tables.results import ModelForecasts
from kcalib.streaming.language_models.logs import LogOptions, read_files, read_logs
from kcalib.streaming.sources.content import file_identity
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE, Layout, ReadOptions
from kcalib.streaming.sources.named_arrays import ArraysReader

STRIP = 2**16  # rows of tokens that are summed at once
LOGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def log_reader(files: Sequence[Path], options: ReadOptions) -> ArraysReader:
    """Read the log of one model, or with `has_names` the field that `labels` names."""
    columns = options.columns("field", ())
    others = {name: getattr(options, name) for name in ("logits", "from_logits", "multilabel", "positive")}
    for name, value in (others | dict(options.parameters)).items():
        if value:
            raise FileError(
                f"is a log of a language model, but {columns.spelled(name)} is for other files; leave it out"
            )
    label = None if options.labels is None else os.fspath(options.labels)
    choices = None if options.classes is None else tuple(map(str, options.classes))
    named = LogOptions(None if options.has_names else label, options.probs, choices, options.per_character)
    identity = tuple(part for file in files for part in file_identity(file))
    try:
        log = _read(tuple(files), identity, named)
    except FileError as error:
        spelled = columns.spelled("classes").removesuffix("=")
        raise FileError(str(error).replace("`choices`", spelled).replace("choices=", "classes=")) from None
    arrays: Mapping[str, Any] = {Y_TRUE: log.y_true, Y_PRED: log.y_pred}
    class_names = None
    if log.clusters is not None:
        rows: Any = log.y_pred
        arrays, class_names = {Y_TRUE: _number_buckets(log), Y_PRED: TokenBuckets(log)}, Buckets().names_of_sparse(rows)
    names = (Y_TRUE, Y_PRED)
    if options.has_names and label is not None:
        if label not in log.tasks:
            raise no_such_columns(options.columns("field", tuple(log.tasks)), label, "labels")
        arrays, names = log.tasks, (label, label)
    layout = Layout(
        names[:1], {Y_PRED: names[1:]}, "field", normalize=options.normalize, class_names=class_names, log=log
    )
    return ArraysReader(layout, lambda: nullcontext(arrays.__getitem__), str(files[0]), lambda: iter(identity))


class TokenBuckets:
    """The rows of a log of tokens, summed in buckets and the rest on reading."""

    def __init__(self, log: ModelForecasts):
        self._log = log
        self.shape, self.ndim, self.dtype = (log.n_samples, self[:1].shape[1]), 2, np.dtype(np.float64)

    def __getitem__(self, part: slice) -> np.ndarray:
        log: Any = self._log
        return Buckets().induced_of_sparse(log.y_true[part], log.y_pred[part])[1]


def _number_buckets(log: Any) -> np.ndarray:
    """Return the bucket of each observed token, or the number of the rest."""
    parts = (slice(begin, begin + STRIP) for begin in range(0, log.n_samples, STRIP))
    return np.concatenate([Buckets().induced_of_sparse(log.y_true[part], log.y_pred[part])[0] for part in parts])


@lru_cache(maxsize=1)
def _read(files: tuple[Path, ...], identity: tuple[bytes, ...], options: LogOptions) -> ModelForecasts:
    """Return the log of the only model, cached for further fields."""
    models = read_logs(read_files(files), options)
    if len(models) != 1:
        names = ", ".join(model.model for model in models)
        raise FileError(f"holds lines of {len(models)} models, {names}, expected one; write a file for each")
    return models[0]
