"""`.npy` files, with labels in a file next to them or in fields, and the named arrays of `.npz` files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from kcalib._input.columns import LABEL_NAMES, FileError
from kcalib.streaming.sources.content import file_identity
from kcalib.streaming.sources.layout import Y_PRED, Layout, ReadOptions, label_file
from kcalib.streaming.sources.named_arrays import ArraysReader, named_reader, row_slices
from kcalib.streaming.sources.reader import Reader
from kcalib.streaming.sources.stored import ArchivedArray, archive_members, map_array, map_labels
from kcalib.streaming.sources.tables import TableReader


def npy_reader(path: Path, options: ReadOptions) -> Reader:
    array = map_array(path, "the array")

    def identity() -> Iterator[bytes]:
        return file_identity(path)

    if array.dtype.names is not None:
        return TableReader(
            array.dtype.names,
            lambda columns, start, rows: row_slices(array, start, rows),
            options,
            n=array.shape[0],
            identity=identity,
            place=str(path),
        )
    spelled = options.columns("array", ()).spelled
    for option, name in {"probs": options.probs, "logits": options.logits, **options.parameters}.items():
        if name is not None:
            remedy = f"leave it out (for logits: {spelled('from_logits')})"
            if option not in ("probs", "logits"):
                remedy = "save predicted distributions as an .npz file of named arrays"
            raise FileError(f"the array has no fields, so {spelled(option)} names nothing; {remedy}")
    labels = _find_labels(path, options)
    stored = None if labels is None else map_labels(labels)
    layout = Layout(
        () if labels is None else (labels.name,),
        {Y_PRED: (path.name,)},
        "file",
        from_logits=options.from_logits or "logits" in path.stem.lower(),
        normalize=options.normalize,
        positive=options.positive,
        positive_option=spelled("positive"),
        classes=options.classes,
        stored_labels=stored,
        logits_option=spelled("from_logits").replace("=", "=True"),
    )
    return ArraysReader(layout, lambda: nullcontext(lambda name: array), str(path), identity)


def _find_labels(path: Path, options: ReadOptions) -> Path | None:
    """Return the file of the option, or the one next to the predictions; None if no labels are needed."""
    labels = label_file(options.labels)
    candidates = [path.with_name(name + ".npy") for name in LABEL_NAMES]
    if options.labels is None:
        labels = next((file for file in candidates if file.is_file() and file != path), None)
    if labels is None and (options.needs_labels or options.labels is not None):
        columns = options.columns("array", ())
        option, hint = columns.spelled("labels"), ""
        if options.labels is not None and Path(options.labels).is_file():
            hint = f" ({str(options.labels)!r} is no .npy file)"
        elif options.labels is not None:
            hint = f" (there is no file {str(options.labels)!r}{columns.suggest_file(str(options.labels))})"
        raise FileError(
            f"the array has no labels{hint}; name a file by {option}{'' if option.endswith('=') else ' '}FILE.npy, "
            f"or put one of {', '.join(file.name for file in candidates)} beside it"
        )
    return labels


def npz_reader(path: Path, options: ReadOptions) -> Reader:
    members = archive_members(path)
    return named_reader(
        options,
        tuple(members),
        lambda: nullcontext(lambda name: ArchivedArray(path, name, members[name])),
        place=str(path),
        identity=lambda: file_identity(path),
    )
