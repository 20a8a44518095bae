"""`read_predictions`: from the path of a file to the predictions and labels, or targets, of one model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kcalib import distributions
from kcalib._command.files.csv import STDIN, csv_source
from kcalib._command.files.npz import field_source, npy_array, npy_labels, npz_array, npz_source
from kcalib._command.files.parquet import parquet_source
from kcalib._command.files.source import Source
from kcalib._command.nearest import nearest_file
from kcalib._input.columns import CLASSES_NAME, LABEL_NAMES, Choice, FileError, choose, label_name, named
from kcalib._input.data import Data
from kcalib._input.forecasts import prepare
from kcalib._input.labels import Names
from kcalib._input.parameters import VECTORS, FamilyChoice, choose_forecasts, target_names
from kcalib.distributions import Distribution
from kcalib.streaming.sources.content import as_text, check_content, normalized
from kcalib.streaming.sources.npy import label_file
from kcalib.streaming.sources.opening import suffix_of

TEXTS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SUFFIXES = (".npz", ".npy", *TEXTS, ".parquet")


@dataclass(frozen=True)
class FilePredictions:
    """What a file holds, as `kcalib.evaluate` takes it."""

    y_true: np.ndarray  # shape: (n,), or (n, m) one-hot
    y_pred: np.ndarray  # shape: (n, m), or (n,) for a binary problem
    from_logits: bool
    classes: np.ndarray | None  # the label of each column of y_pred, shape: (m,)
    name: str  # the file's name without folder and suffix
    origin: str  # which arrays or columns y_pred and y_true are, for messages

    def prepared(self, threads: int | None) -> Data:
        """The checked content; errors are those of `kcalib._input`."""
        return prepare(
            self.y_true,
            self.y_pred,
            classes=self.classes,
            from_logits=self.from_logits,
            threads=threads,
            names=Names(from_logits="--from-logits"),
        )


@dataclass(frozen=True)
class FileForecasts:
    """Targets and the parameters of predicted distributions."""

    y_true: np.ndarray  # shape: (n,) or (n, d)
    family: str  # a class of `kcalib.distributions`
    parameters: dict[str, np.ndarray]  # by the names that the family has for them
    name: str
    origin: str

    def distribution(self) -> Distribution:
        """The predictions; errors are those of `kcalib.distributions`."""
        made: Distribution = getattr(distributions, self.family)(**self.parameters)
        return made

    def prepared(self, threads: int | None) -> Data:
        """The checked content; errors are those of `kcalib._input`, too."""
        return prepare(self.y_true, self.distribution(), threads=threads)


def read_predictions(
    path: str | os.PathLike[str],
    *,
    probs: str | None = None,
    logits: str | None = None,
    labels: str | None = None,
    from_logits: bool = False,
    normalize: bool = False,
    **parameters: str | None,
) -> FilePredictions | FileForecasts:
    """Predictions and labels, or targets, of one model from one file.

    Parameters
    ----------
    path : path-like
        A .npz, .npy, .csv, .tsv, .csv.gz, .tsv.gz or .parquet file; "-" for standard input, which is CSV.
    probs, logits : str, optional
        Name of the array or column with probabilities or logits, or the prefix of a family of
        columns (``probs_0``, ``probs_1``, ...); at most one of them. Default: the first
        of `PROBABILITY_NAMES`, then of `LOGIT_NAMES`, that the file has.
    labels : str, optional
        Name of the array or column with the labels, or an existing .npy file that holds
        them. Default: the first of `LABEL_NAMES`; for an .npy file without fields
        the file of that name beside it.
    from_logits : bool
        Whatever is read are logits, however it is named.
    normalize : bool
        Rows of probabilities are divided by their sums, in float64.
    **parameters : str, optional
        Names, or prefixes of families of columns, of the parameters of predicted distributions, by those of
        `_input.parameters.PARAMETERS`; `labels` then names the targets. Default: the first of `FAMILIES` that the file
        has all parameters of, if it has no class probabilities.

    Returns
    -------
    FilePredictions or FileForecasts
        Not checked beyond what the format needs.

    Raises
    ------
    FileError
        If the file cannot be read, or does not hold what is asked for.
    OSError
        If the system refuses to open it.
    """
    path = Path(path)
    if path != STDIN:
        path.stat()  # the system's own error if there is none
    suffix = ".csv" if path == STDIN else suffix_of(path)
    if suffix not in SUFFIXES:
        raise FileError(f"the suffix is {suffix!r}, expected one of {', '.join(SUFFIXES)}; convert the file")
    if path != STDIN:
        check_content(path)
    if suffix == ".npy":
        whole = npy_array(path)
        if whole.dtype.names is None:
            _check_no_names(probs=probs, logits=logits, **parameters)
            return _plain_npy(path, whole, labels, from_logits, normalize)
        source = field_source(whole)
    else:
        source = {".npz": npz_source, ".parquet": parquet_source}.get(suffix, csv_source)(path)

    forecasts = None
    if probs is None and logits is None and not from_logits:
        forecasts = choose_forecasts(source, parameters)
    if forecasts is not None:
        if normalize:
            normalized(None, False, forecasts.described(source))
        return _read_forecasts(path, source, forecasts, labels)
    choice = choose(source, probs, logits)
    file = label_file(labels)
    name = label_name(source, labels) if file is None else None
    pred, true = source.read(choice, name)
    if file is not None:
        true = npy_labels(file)
    assert true is not None  # by one of the two ways
    from_logits = from_logits or choice.logits
    pred_origin = named(source, choice.names)
    pred = _check_not_labels(pred, from_logits, pred_origin)
    if normalize:
        pred = normalized(pred, from_logits, pred_origin)
    true_origin = f"{source.noun} {name!r}" if file is None else f"file {str(file)!r}"

    classes: np.ndarray | None = None
    if choice.classes is not None:
        classes = np.asarray(choice.classes)
        if true.dtype.kind not in "SUO":
            raise FileError(
                f"{true_origin} holds {true.dtype}, but the predictions are the {pred_origin}, named after the "
                f"classes; expected labels {', '.join(map(repr, choice.classes[:5]))}, or predictions numbered from 0"
            )
    elif source.noun == "array" and CLASSES_NAME in source.names:
        classes = as_text(npz_array(path, CLASSES_NAME))
        if (classes.dtype.kind == "U") != (true.dtype.kind in "SU"):
            classes = None  # display names; the labels are positions
    return FilePredictions(
        y_true=as_text(true),
        y_pred=pred,
        from_logits=from_logits,
        classes=classes,
        name=path.stem,
        origin=f"y_pred is {pred_origin}, y_true is {true_origin}",
    )


def _read_forecasts(path: Path, source: Source, chosen: FamilyChoice, labels: str | None) -> FileForecasts:
    file = label_file(labels)
    vectors = chosen.family in VECTORS and len(chosen.names["mean"]) > 1
    targets = () if file is not None else target_names(source, labels, vectors)
    *parameters, true = _read_groups(source, [*chosen.names.values(), targets])
    if file is not None:
        true = npy_labels(file)
    assert true is not None
    origin = f"file {str(file)!r}" if file is not None else named(source, targets)
    for array, what in zip([*parameters, true], [*(named(source, n) for n in chosen.names.values()), origin]):
        if array is not None and array.dtype.kind not in "biuf":
            kind = "strings" if array.dtype.kind in "SU" else str(array.dtype)
            raise FileError(f"{what} holds {kind}, expected numbers")
    return FileForecasts(
        y_true=true,
        family=chosen.family,
        parameters={name: array for name, array in zip(chosen.names, parameters) if array is not None},
        name=path.stem,
        origin=f"y_pred is {chosen.described(source)}, y_true is {origin}",
    )


def _read_groups(source: Source, groups: Sequence[tuple[str, ...]]) -> list[np.ndarray | None]:
    """Each group of columns as one array; None for a group of none."""
    if not source.in_one_pass:
        return [source.read(Choice(names, False), None)[0] if names else None for names in groups]
    table = source.read(Choice(tuple(name for names in groups for name in names), False), None)[0]
    table = table.reshape(len(table), -1)
    stops = np.cumsum([len(names) for names in groups])
    parts = [table[:, stop - len(names) : stop] for stop, names in zip(stops, groups, strict=True)]
    return [
        None if not names else part[:, 0] if len(names) == 1 else part
        for part, names in zip(parts, groups, strict=True)
    ]


def _check_not_labels(pred: np.ndarray, from_logits: bool, origin: str) -> np.ndarray:
    if pred.dtype.kind not in "biu" or not (pred.ndim == 1 or (pred.ndim == 2 and pred.shape[1] == 1)):
        return pred
    if from_logits:
        return pred.astype(np.float64)
    raise FileError(
        f"{origin} holds whole numbers and looks like predicted labels, expected probabilities; "
        "name the predictions by --probs or --logits"
    )


def _check_no_names(**given: str | None) -> None:
    for option, name in given.items():
        if name is not None:
            remedy = "leave it out (for logits: --from-logits)"
            if option not in ("probs", "logits"):
                remedy = "save predicted distributions as an .npz file of named arrays"
            raise FileError(f"the array has no fields, so --{option} names nothing; {remedy}")


def _plain_npy(
    path: Path, array: np.ndarray, labels: str | None, from_logits: bool, normalize: bool
) -> FilePredictions:
    """The array is the predictions; the labels are in another file."""
    file = label_file(labels)
    beside = [path.with_name(name + ".npy") for name in LABEL_NAMES]
    if labels is None:
        file = next((one for one in beside if one.is_file() and one != path), None)
    if file is None:
        tried = "" if labels is None else f" (there is no file {labels!r}{nearest_file(labels)})"
        raise FileError(
            f"the array has no labels{tried}; name a file by --labels FILE.npy, or put one of "
            f"{', '.join(file.name for file in beside)} beside it"
        )
    from_logits = from_logits or "logits" in path.stem.lower()
    pred = _check_not_labels(array, from_logits, "the array")
    return FilePredictions(
        y_true=as_text(npy_labels(file)),
        y_pred=normalized(pred, from_logits, "the array") if normalize else pred,
        from_logits=from_logits,
        classes=None,
        name=path.stem,
        origin=f"y_pred is the array, y_true is file {str(file)!r}",
    )
