"""Predictions and labels or targets from .npz, .npy, .csv and .parquet files; `_command.cli` calls `read_predictions`.

A file is a set of named arrays or columns (`_Source`). `_choose` finds class probabilities
among the names, `_choose_forecasts` what predicted distributions are made of, `_label_name` and `_target_names` the
labels and targets, and the source reads just those. Values are checked later, by `kcalib._input.labels`
and `kcalib.distributions`. Nothing is ever unpickled.
"""

from __future__ import annotations

import csv
import os
import re
from array import array as CArray
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kcalib import distributions
from kcalib.distributions import Distribution

__all__ = ["FileError", "FileForecasts", "FilePredictions", "read_predictions"]

# Names recognised without an option; the first that a file has is used.
PROBABILITY_NAMES = ("probs", "probabilities", "y_prob", "y_proba", "prob", "proba", "y_pred", "predictions", "p")
LOGIT_NAMES = ("logits", "y_logits", "y_logit", "logit")
LABEL_NAMES = ("labels", "label", "y_true", "y", "target", "targets", "y_test")
CLASSES_NAME = "classes"
# The same of predicted distributions: the names of each parameter. The first family that a file has all of is used.
MEAN_NAMES = ("mean", "y_mean", "mu")
STD_NAMES = ("std", "y_std", "sigma")
SAMPLES_NAMES = ("samples", "y_samples")
RATE_NAMES = ("rate", "y_rate")
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {  # of `kcalib.distributions`
    "Normal": {"mean": MEAN_NAMES, "std": STD_NAMES},
    "Samples": {"samples": SAMPLES_NAMES},
    "Poisson": {"rate": RATE_NAMES},
}

SEPARATORS = ("_", ".", "")  # between the prefix and the suffix of a family of columns
SUFFIXES = (".npz", ".npy", ".csv", ".parquet")

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


class FileError(ValueError):
    """Why a file holds no predictions. The message leaves naming the file to the caller."""


@dataclass(frozen=True)
class FilePredictions:
    """What a file holds, as `kcalib.evaluate` takes it."""

    y_true: np.ndarray  # shape: (n,), or (n, m) one-hot
    y_pred: np.ndarray  # shape: (n, m), or (n,) for a binary problem
    from_logits: bool
    classes: np.ndarray | None  # the label of each column of y_pred, shape: (m,)
    name: str  # the file's name without folder and suffix
    origin: str  # which arrays or columns y_pred and y_true are, for messages


@dataclass(frozen=True)
class FileForecasts:
    """Targets and the parameters of predicted distributions."""

    y_true: np.ndarray  # shape: (n,) or (n, d)
    family: str  # a key of `FAMILIES`
    parameters: dict[str, np.ndarray]  # by the names that the family has for them
    name: str
    origin: str

    def distribution(self) -> Distribution:
        """The predictions; errors are those of `kcalib.distributions`."""
        made: Distribution = getattr(distributions, self.family)(**self.parameters)
        return made


Reader = Callable[["_Choice", "str | None"], tuple[np.ndarray, "np.ndarray | None"]]


@dataclass(frozen=True)
class _Source:
    """The arrays or columns of a file."""

    noun: str  # "array" or "column"
    names: tuple[str, ...]
    read: Reader  # predictions, and labels if a name is given
    in_one_pass: bool = False  # several columns are best read together

    def inventory(self) -> str:
        shown = ", ".join(map(repr, self.names[:20])) + (", ..." if len(self.names) > 20 else "")
        return f"the file has the {self.noun}s {shown}" if self.names else f"the file has no {self.noun}s"


@dataclass(frozen=True)
class _Choice:
    """The names that make up the predictions."""

    names: tuple[str, ...]
    logits: bool
    classes: tuple[str, ...] | None = None  # from suffixes that are no numbers


def read_predictions(
    path: str | os.PathLike[str],
    *,
    probs: str | None = None,
    logits: str | None = None,
    labels: str | None = None,
    from_logits: bool = False,
    mean: str | None = None,
    std: str | None = None,
    samples: str | None = None,
    rate: str | None = None,
) -> FilePredictions | FileForecasts:
    """Predictions and labels, or targets, of one model from one file.

    Parameters
    ----------
    path : path-like
        A .npz, .npy, .csv or .parquet file.
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
    mean, std, samples, rate : str, optional
        Names, or prefixes of families of columns, of the parameters of predicted distributions; `labels` then names
        the targets. Default: the first of `FAMILIES` that the file has all parameters of, if it has no class
        probabilities.

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
    given = {"mean": mean, "std": std, "samples": samples, "rate": rate}
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(f"the suffix is {path.suffix!r}, expected one of {', '.join(SUFFIXES)}; convert the file")
    _check_content(path)
    if suffix == ".npy":
        whole = _npy_array(path)
        if whole.dtype.names is None:
            _check_no_names(probs=probs, logits=logits, **given)
            return _plain_npy(path, whole, labels, from_logits)
        source = _field_source(whole)
    else:
        source = {".npz": _npz_source, ".csv": _csv_source, ".parquet": _parquet_source}[suffix](path)

    forecasts = None
    if probs is None and logits is None and not from_logits:
        forecasts = _choose_forecasts(source, given)
    if forecasts is not None:
        return _read_forecasts(path, source, forecasts, labels)
    choice = _choose(source, probs, logits)
    label_file = _label_file(labels)
    label_name = _label_name(source, labels) if label_file is None else None
    pred, true = source.read(choice, label_name)
    if label_file is not None:
        true = _npy_labels(label_file)
    assert true is not None  # by one of the two ways
    from_logits = from_logits or choice.logits
    pred_origin = _named(source, choice.names)
    pred = _check_not_labels(pred, from_logits, pred_origin)
    true_origin = f"{source.noun} {label_name!r}" if label_file is None else f"file {str(label_file)!r}"

    classes: np.ndarray | None = None
    if choice.classes is not None:
        classes = np.asarray(choice.classes)
        if true.dtype.kind not in "SUO":
            raise FileError(
                f"{true_origin} holds {true.dtype}, but the predictions are the {pred_origin}, named after the "
                f"classes; expected labels {', '.join(map(repr, choice.classes[:5]))}, or predictions numbered from 0"
            )
    elif source.noun == "array" and CLASSES_NAME in source.names:
        classes = _text(_npz_array(path, CLASSES_NAME))
        if (classes.dtype.kind == "U") != (true.dtype.kind in "SU"):
            classes = None  # display names; the labels are positions
    return FilePredictions(
        y_true=_text(true),
        y_pred=pred,
        from_logits=from_logits,
        classes=classes,
        name=path.stem,
        origin=f"y_pred is {pred_origin}, y_true is {true_origin}",
    )


# -- which names -------------------------------------------------------------------------------


def _choose(source: _Source, probs: str | None, logits: str | None) -> _Choice:
    for name, are_logits, option in ((probs, False, "--probs"), (logits, True, "--logits")):
        if name is not None:
            choice = _match(source, name, are_logits, by_option=True)
            if choice is None:
                families = "" if source.noun != "column" else f" and no columns {name}_0, {name}_1, ..."
                raise FileError(f"there is no {source.noun} {name!r}{families}, as {option} says; {source.inventory()}")
            return choice
    choice = _choose_by_names(source)
    if choice is not None:
        return choice
    families = ", or several columns such as probs_0, probs_1, ..." if source.noun == "column" else ""
    raise FileError(
        f"there is no {source.noun} of predictions; {source.inventory()}, expected one of "
        f"{', '.join(PROBABILITY_NAMES + LOGIT_NAMES)}{families}; name it by --probs or --logits; for regression "
        "expected mean and std, samples, or rate; name them by --mean and --std, --samples, or --rate"
    )


def _choose_by_names(source: _Source) -> _Choice | None:
    for names, are_logits in ((PROBABILITY_NAMES, False), (LOGIT_NAMES, True)):
        for name in names:
            choice = _match(source, name, are_logits, by_option=False)
            if choice is not None:
                return choice
    return None


def _match(source: _Source, name: str, logits: bool, *, by_option: bool) -> _Choice | None:
    """`name` itself or a family of columns with that prefix.

    Without an option a numbered family goes first: a column `prob` beside `prob_0`, `prob_1`
    is likely the probability of the predicted class.
    """
    exact = _Choice((name,), logits) if name in source.names else None
    if source.noun != "column":
        return exact
    if by_option and exact is not None:
        return exact
    return _numbered_family(source, name, logits) or exact or _named_family(source, name, logits)


@dataclass(frozen=True)
class _Forecasts:
    """The names that make up the parameters of predicted distributions."""

    family: str
    names: dict[str, tuple[str, ...]]

    def described(self, source: _Source) -> str:
        return f"{self.family} of " + " and ".join(_named(source, names) for names in self.names.values())


def _choose_forecasts(source: _Source, given: dict[str, str | None]) -> _Forecasts | None:
    """The parameters that options name, or those of the first complete family; None: the file is of class labels."""
    asked = [option for option, name in given.items() if name is not None]
    found: _Forecasts | None = None
    incomplete: dict[str, dict[str, tuple[str, ...]]] = {}
    for family, parameters in FAMILIES.items():
        if not set(asked) <= parameters.keys():
            continue
        names = {option: _parameter(source, option, parameters[option], given[option]) for option in parameters}
        complete = {option: some for option, some in names.items() if some is not None}
        if len(complete) == len(names):
            found = _Forecasts(family, complete)
            break
        if asked or complete:
            incomplete[family] = complete
    if found is None and incomplete and (asked or _choose_by_names(source) is None):
        family, complete = next(iter(incomplete.items()))
        missing = next(option for option in FAMILIES[family] if option not in complete)
        beside = " and ".join(_named(source, some) for some in complete.values())
        raise FileError(
            f"there is {beside}, but no {source.noun} of {missing}; {source.inventory()}, expected one of "
            f"{', '.join(FAMILIES[family][missing])}; name it by --{missing}"
        )
    if found is None and asked:
        raise FileError(f"--{' and --'.join(asked)} are of different families of distributions; give those of one")
    if found is not None and not asked:
        classes = _choose_by_names(source)
        if classes is not None:
            raise FileError(
                f"there are class probabilities or logits, {_named(source, classes.names)}, and predicted "
                f"distributions, {found.described(source)}; say which by --{'logits' if classes.logits else 'probs'} "
                f"{classes.names[0] if len(classes.names) == 1 else 'NAME'} or by --{next(iter(found.names))}"
            )
    return found


def _parameter(source: _Source, option: str, names: tuple[str, ...], given: str | None) -> tuple[str, ...] | None:
    """The array or columns of a parameter: what is given by the option, or the first of `names` that there is."""
    for name in names if given is None else (given,):
        some = _array_or_columns(source, name, exact_first=given is not None)
        if some is not None:
            return some
    if given is None:
        return None
    families = "" if source.noun != "column" else f" and no columns {given}_0, {given}_1, ..."
    raise FileError(f"there is no {source.noun} {given!r}{families}, as --{option} says; {source.inventory()}")


def _array_or_columns(source: _Source, name: str, *, exact_first: bool) -> tuple[str, ...] | None:
    exact = (name,) if name in source.names else None
    if source.noun != "column" or (exact_first and exact is not None):
        return exact
    family = _numbered_family(source, name, False)
    return exact if family is None else family.names


def _target_names(source: _Source, labels: str | None, vectors: bool) -> tuple[str, ...]:
    """The targets: a name, or columns y_0, y_1, ..., which go first if predictions are columns of vectors."""
    for name in LABEL_NAMES if labels is None else (labels,):
        some = _array_or_columns(source, name, exact_first=labels is not None or not vectors)
        if some is not None:
            return some
    return (_label_name(source, labels),)  # raises


def _read_forecasts(path: Path, source: _Source, chosen: _Forecasts, labels: str | None) -> FileForecasts:
    label_file = _label_file(labels)
    vectors = chosen.family == "Normal" and len(chosen.names["mean"]) > 1
    targets = () if label_file is not None else _target_names(source, labels, vectors)
    *parameters, true = _read_groups(source, [*chosen.names.values(), targets])
    if label_file is not None:
        true = _npy_labels(label_file)
    assert true is not None
    origin = f"file {str(label_file)!r}" if label_file is not None else _named(source, targets)
    for array, what in zip([*parameters, true], [*(_named(source, n) for n in chosen.names.values()), origin]):
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


def _read_groups(source: _Source, groups: Sequence[tuple[str, ...]]) -> list[np.ndarray | None]:
    """Each group of columns as one array; None for a group of none."""
    if not source.in_one_pass:
        return [source.read(_Choice(names, False), None)[0] if names else None for names in groups]
    table = source.read(_Choice(tuple(name for names in groups for name in names), False), None)[0]
    table = table.reshape(len(table), -1)
    stops = np.cumsum([len(names) for names in groups])
    parts = [table[:, stop - len(names) : stop] for stop, names in zip(stops, groups, strict=True)]
    return [
        None if not names else part[:, 0] if len(names) == 1 else part
        for part, names in zip(parts, groups, strict=True)
    ]


def _named(source: _Source, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{source.noun} {names[0]!r}"
    return f"{source.noun}s {names[0]!r} to {names[-1]!r}"


def _numbered_family(source: _Source, prefix: str, logits: bool) -> _Choice | None:
    for separator in SEPARATORS:
        start = prefix + separator
        members = [name for name in source.names if name.startswith(start) and _is_number(name[len(start) :])]
        if len(members) < 2:
            continue
        members.sort(key=lambda name: int(name[len(start) :]))
        numbers = [int(name[len(start) :]) for name in members]
        if numbers != list(range(len(members))):
            found = f"the columns {', '.join(map(repr, members[:20]))} are numbered"
            if numbers == list(range(1, len(members) + 1)):
                raise FileError(
                    f"{found} 1 to {numbers[-1]}, expected 0 to {numbers[-1] - 1}: rename them (and "
                    "let the labels start at 0), or use the class names as suffixes and labels"
                )
            missing = next((i for i in range(numbers[-1]) if i not in numbers), None)
            gap = "one number occurs twice" if missing is None else f"{start}{missing} is missing"
            raise FileError(f"{found} with a gap or twice, expected 0, 1, 2, ...: {gap}")
        return _Choice(tuple(members), logits)
    return None


def _named_family(source: _Source, prefix: str, logits: bool) -> _Choice | None:
    for separator in filter(None, SEPARATORS):
        start = prefix + separator
        members = [
            n for n in source.names if n.startswith(start) and len(n) > len(start) and not _is_number(n[len(start) :])
        ]
        if len(members) >= 2:
            return _Choice(tuple(members), logits, tuple(name[len(start) :] for name in members))
    return None


def _is_number(suffix: str) -> bool:
    return suffix.isascii() and suffix.isdigit()


def _label_name(source: _Source, labels: str | None) -> str:
    if labels is not None:
        if labels in source.names:
            return labels
        file = " and no such file" if labels.lower().endswith(".npy") else ""
        raise FileError(f"there is no {source.noun} {labels!r}{file}, as --labels says; {source.inventory()}")
    for name in LABEL_NAMES:
        if name in source.names:
            return name
    raise FileError(
        f"there is no {source.noun} of labels; {source.inventory()}, expected one of {', '.join(LABEL_NAMES)}; "
        "name it by --labels"
    )


def _label_file(labels: str | None) -> Path | None:
    if labels is not None and labels.lower().endswith(".npy") and Path(labels).is_file():
        return Path(labels)
    return None


def _check_not_labels(pred: np.ndarray, from_logits: bool, origin: str) -> np.ndarray:
    if pred.dtype.kind not in "biu" or not (pred.ndim == 1 or (pred.ndim == 2 and pred.shape[1] == 1)):
        return pred
    if from_logits:
        return pred.astype(np.float64)
    raise FileError(
        f"{origin} holds whole numbers and looks like predicted labels, expected probabilities; "
        "name the predictions by --probs or --logits"
    )


def _text(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "S":
        return array
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"a label is not UTF-8 text: {error}") from None


# -- .npz and .npy -----------------------------------------------------------------------------


_MAGIC = {  # the second: an archive of nothing
    ".npz": (b"PK\x03\x04", b"PK\x05\x06"),
    ".npy": (b"\x93NUMPY",),
    ".parquet": (b"PAR1",),
}


def _check_content(path: Path) -> None:
    """The system's own error for a file that cannot be opened, ours for one that is nothing."""
    if path.is_dir():
        raise FileError("is a folder, expected a file; name the files in it")
    with open(path, "rb") as file:
        start = file.read(8)
    if not start:
        raise FileError("is empty (0 bytes); write it again")
    magics = _MAGIC.get(path.suffix.lower(), (b"",))
    if not start.startswith(magics):
        raise FileError(
            f"is not what its suffix says: it starts with {start!r}, a {path.suffix} file with {magics[0]!r}; "
            "write it again, or give it the suffix of its format"
        )


def _damaged(what: str, error: Exception) -> FileError:
    if "allow_pickle" in str(error):
        return FileError(
            f"{what} holds Python objects (dtype object), which are never unpickled here; "
            "save it as numbers or strings, such as array.astype(str)"
        )
    if isinstance(error, MemoryError):
        return FileError(f"{what} does not fit into memory, if its header is right ({error}); use fewer samples")
    reason = str(error) or type(error).__name__
    return FileError(f"{what} is truncated or damaged ({reason}); write it again")


_MAX_HEADER = 1_000_000  # NumPy's limit of 10000 characters is met by some 500 fields


def _npy_array(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False, max_header_size=_MAX_HEADER))
    except Exception as error:
        raise _damaged("the array", error) from None


def _npz_array(path: Path, name: str) -> np.ndarray:
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False, max_header_size=_MAX_HEADER) as file:
            array = file[name]
    except Exception as error:
        raise _damaged(f"array {name!r}", error) from None
    if not isinstance(array, np.ndarray):
        raise FileError(f"{name!r} is no array; write the file by numpy.savez")
    return array


def _npz_source(path: Path) -> _Source:
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = tuple(file.files)
    except Exception as error:
        raise _damaged("the archive", error) from None

    def read(choice: _Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        return _npz_array(path, choice.names[0]), None if labels is None else _npz_array(path, labels)

    return _Source("array", names, read)


def _field_source(array: np.ndarray) -> _Source:
    """The fields of a structured array are columns."""

    def read(choice: _Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        return _stacked([array[name] for name in choice.names], choice.names), None if labels is None else array[labels]

    return _Source("column", array.dtype.names or (), read)


def _check_no_names(**given: str | None) -> None:
    for option, name in given.items():
        if name is not None:
            remedy = "leave it out (for logits: --from-logits)"
            if option not in ("probs", "logits"):
                remedy = "save predicted distributions as an .npz file of named arrays"
            raise FileError(f"the array has no fields, so --{option} names nothing; {remedy}")


def _plain_npy(path: Path, array: np.ndarray, labels: str | None, from_logits: bool) -> FilePredictions:
    """The array is the predictions; the labels are in another file."""
    label_file = _label_file(labels)
    beside = [path.with_name(name + ".npy") for name in LABEL_NAMES]
    if labels is None:
        label_file = next((file for file in beside if file.is_file() and file != path), None)
    if label_file is None:
        tried = "" if labels is None else f" (there is no file {labels!r})"
        raise FileError(
            f"the array has no labels{tried}; name a file by --labels FILE.npy, or put one of "
            f"{', '.join(file.name for file in beside)} beside it"
        )
    from_logits = from_logits or "logits" in path.stem.lower()
    return FilePredictions(
        y_true=_text(_npy_labels(label_file)),
        y_pred=_check_not_labels(array, from_logits, "the array"),
        from_logits=from_logits,
        classes=None,
        name=path.stem,
        origin=f"y_pred is the array, y_true is file {str(label_file)!r}",
    )


def _npy_labels(path: Path) -> np.ndarray:
    try:
        _check_content(path)
        array = _npy_array(path)
    except FileError as error:
        raise FileError(f"the labels {str(path)!r}: {error}") from None
    if array.dtype.names is not None:
        raise FileError(f"the labels {str(path)!r} are an array with fields, expected a plain one")
    return array


def _stacked(columns: list[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """One column as it is, several as the columns of a matrix."""
    if len(columns) == 1:
        return columns[0]
    for column, name in zip(columns, names, strict=True):
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise FileError(f"column {name!r} has dtype {column.dtype} and {column.ndim} axes, expected numbers")
    return np.stack(columns, axis=1)


# -- .csv --------------------------------------------------------------------------------------


def _csv_source(path: Path) -> _Source:
    _, header = next(_csv_rows(path), (0, []))
    if not header:
        raise FileError("there is no header, expected column names in the first line")
    if all(_is_float(cell) for cell in header):
        raise FileError(
            f"the first line, {_shown(','.join(header))}, holds numbers, expected column names; add a header"
        )
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise FileError(f"the header is {_shown(header[0])}: it has no commas; separate the cells by commas")

    def read(choice: _Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        for name in (*choice.names, *((labels,) if labels is not None else ())):
            if header.count(name) > 1:
                raise FileError(f"{header.count(name)} columns have the name {name!r}; rename all but one")
        return _read_csv(path, header, choice, labels)

    return _Source("column", tuple(header), read, in_one_pass=True)


def _read_csv(
    path: Path, header: list[str], choice: _Choice, labels: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    columns = [header.index(name) for name in choice.names]
    label_column = None if labels is None else header.index(labels)
    numbers = CArray("d")
    label_cells: list[str] = []
    whole = len(columns) == 1  # a single column of whole numbers looks like labels
    rows = _csv_rows(path)
    next(rows)
    for line, row in rows:
        if len(row) != len(header):
            raise FileError(
                f"line {line} has {len(row)} cells, expected {len(header)} as in the header; repair the line"
            )
        try:
            numbers.extend([float(row[i]) for i in columns])
        except ValueError:
            bad = next(i for i in columns if not _is_float(row[i]))
            raise FileError(
                f"line {line}, column {header[bad]!r} is {_shown(row[bad])}, expected a number; repair or drop the line"
            ) from None
        whole = whole and _INTEGER.fullmatch(row[columns[0]].strip()) is not None
        if label_column is not None:
            label = row[label_column].strip()
            if not label:
                raise FileError(
                    f"line {line}, column {labels!r} is empty, expected a class label; repair or drop the line"
                )
            label_cells.append(label)
    if not numbers:
        raise FileError("there are no rows below the header, expected one for each sample")
    pred = np.frombuffer(numbers).reshape(-1, len(columns))
    if len(columns) == 1:
        pred = pred[:, 0]
        if whole and np.all(np.abs(pred) < 2**53):
            pred = pred.astype(np.int64)
    return pred, None if label_column is None else _typed_labels(label_cells, as_text=choice.classes is not None)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, with their numbers; names in the first are stripped."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        first = True
        try:
            for row in reader:
                if row:
                    yield reader.line_num, [cell.strip() for cell in row] if first else row
                    first = False
        except csv.Error as error:
            raise FileError(
                f"line {reader.line_num} is no CSV ({error}); repair the quotes or write it again"
            ) from None
        except UnicodeDecodeError as error:
            raise FileError(f"is not UTF-8 text ({error}); save it as UTF-8") from None


def _typed_labels(cells: list[str], as_text: bool) -> np.ndarray:
    if as_text:
        return np.asarray(cells)
    if all(cell.lower() in _BOOLEANS for cell in cells):
        return np.asarray([_BOOLEANS[cell.lower()] for cell in cells])
    if all(_is_float(cell) for cell in cells):
        if all(_INTEGER.fullmatch(cell) and len(cell) < 19 for cell in cells):
            return np.asarray([int(cell) for cell in cells], dtype=np.int64)
        return np.asarray([float(cell) for cell in cells])
    return np.asarray(cells)


def _is_float(cell: str) -> bool:
    """A number as files write it; Python's own underscores make a class name of it."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")


# -- .parquet ----------------------------------------------------------------------------------


def _parquet_source(path: Path) -> _Source:
    try:
        import pyarrow.parquet
    except ImportError:
        raise FileError("reading .parquet files needs pyarrow; pip install 'kcalib[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
    except Exception as error:
        raise _damaged("the file", error) from None

    def read(choice: _Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        wanted = [*choice.names, *(() if labels is None else (labels,))]
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                table = file.read(columns=wanted)
        except Exception as error:
            raise _damaged("the file", error) from None
        for name in wanted:
            if table.column_names.count(name) != 1:
                raise FileError(f"{table.column_names.count(name)} columns have the name {name!r}, expected one")
        columns = [_arrow_array(table.column(name), name) for name in choice.names]
        return _stacked(columns, choice.names), None if labels is None else _arrow_array(table.column(labels), labels)

    return _Source("column", names, read)


def _arrow_array(column: Any, name: str) -> np.ndarray:
    """A pyarrow.ChunkedArray as NumPy; columns of lists of one length become a matrix."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise FileError(f"column {name!r} has no value in row {row}; repair or drop the row")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.asarray(column.to_pylist(), dtype=str)
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column).to_numpy()
        size = int(lengths[0]) if len(lengths) else 0
        wrong = np.flatnonzero(lengths != size)
        if len(wrong):
            raise FileError(
                f"column {name!r} has {lengths[wrong[0]]} numbers in row {wrong[0]}, expected {size} as in row 0"
            )
        flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=kind.value_type)
        if flat.null_count:
            row = int(np.flatnonzero(flat.is_null().to_numpy())[0]) // size
            raise FileError(f"column {name!r} has a missing number in row {row}; repair or drop the row")
        return _arrow_array(flat, name).reshape(len(lengths), size)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(column.to_numpy())
    raise FileError(f"column {name!r} has type {kind}, expected numbers, strings or lists of numbers")
