"""`ModelSources`: sources of several models with the same labels, for comparisons."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.files import printable
from kcalib._input.classes import Classes
from kcalib._input.labels import Classification
from kcalib._input.source import Source
from kcalib.streaming._options import SharedOptions


class ModelSources:
    """Several sources as one; a chunk maps the names of models to their predictions."""

    def __init__(self, models: Mapping[str, Source]):
        self._models = dict(models)
        for model, source in self._models.items():
            if getattr(source, "clusters", None) is not None:
                log = getattr(getattr(source, "layout", None), "log", None)
                if log is not None and log.clusters is not None:
                    raise ValueError(
                        f"the source of {model!r} is a log of tokens in clusters, but a comparison of sources has "
                        "no clusters; use kcalib.streaming.read_answers, and kcalib.compare(clusters=log.clusters)"
                    )
                raise ValueError(
                    f"the source of {model!r} has clusters, but a comparison of sources has none; open it without "
                    "clusters=, or pass all samples to kcalib.compare(clusters=)"
                )
        name, first = next(iter(self._models.items()))
        for model, source in self._models.items():
            if source.n_classes != first.n_classes:
                raise ValueError(
                    f"{name!r} has {first.n_classes} classes, {model!r} has {source.n_classes}; "
                    "models are compared on the same samples, with the "
                    "probability of every class"
                )
            if first.n is not None and source.n is not None and source.n != first.n:
                raise ValueError(
                    f"{name!r} has {first.n} samples, {model!r} has {source.n}; models are compared on the same samples"
                )
        self.n_classes = first.n_classes
        self.n_columns = sum(source.n_columns for source in self._models.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    @property
    def n(self) -> int | None:
        """The number of samples; None if it is unknown before all are read."""
        return next((source.n for source in self._models.values() if source.n is not None), None)

    def chunks_for(
        self, options: SharedOptions, rows: int, start: int = 0
    ) -> Iterator[tuple[Any, dict[str, Any], None]]:
        """Yield labels, predictions of each model, and no clusters; refuse labels that differ."""
        names, at = list(self._models), start
        for chunks in itertools.zip_longest(
            *(chunks_for(source, options, rows, start) for source in self._models.values())
        ):
            counts = [0 if chunk is None else len(chunk[0]) for chunk in chunks]
            if len(set(counts)) > 1:
                short, long = names[counts.index(min(counts))], names[counts.index(max(counts))]
                raise ValueError(
                    f"{short!r} has {at + min(counts)} samples, {long!r} has more; "
                    "models are compared on the same samples"
                )
            (first_labels, first, _), *others = chunks
            first_labels, predictions = arrays.to_host(first_labels), {names[0]: first}
            for name, (labels, pred, _) in zip(names[1:], others, strict=True):
                if isinstance(first, Classification) and isinstance(pred, Classification):
                    try:
                        pred = pred.in_order(Classes(first.class_names, "columns"))
                    except ValueError as error:
                        raise ValueError(f"{name!r}: {error}, as {names[0]!r} has them") from None
                    labels = pred.labels
                labels, predictions[name] = arrays.to_host(labels), pred
                if not np.array_equal(first_labels, labels):
                    row = int(np.argmax(first_labels != labels))
                    raise ValueError(
                        f"the label of sample {at + row} is {first_labels[row]} for {names[0]!r} and {labels[row]} for "
                        f"{name!r}; models are compared on the same samples in the same order"
                    )
            at += counts[0]
            yield chunks[0][0], predictions, None

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, source in self._models.items():
            for text in (name, source.fingerprint()):
                encoded = text.encode("utf-8", "surrogateescape")
                digest.update(len(encoded).to_bytes(8, "little"))
                digest.update(encoded)
        return digest.hexdigest()

    def describe(self) -> str:
        return "; ".join(f"{printable(name)}: {source.describe()}" for name, source in self._models.items())


def chunks_for(source: Source, options: SharedOptions, rows: int, start: int) -> Iterator[tuple[Any, Any, Any]]:
    """Return chunks of any source for `update` of a state, with clusters or None."""
    of_ours = getattr(source, "chunks_for", None)
    if of_ours is None:
        return ((true, pred, None) for true, pred in source.chunks(rows, start))
    chunks: Iterator[tuple[Any, Any, Any]] = of_ours(options, rows, start)
    return chunks
