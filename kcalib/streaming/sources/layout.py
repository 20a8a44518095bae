"""What to read from a file: `ReadOptions` holds the options of the user, `Layout` the names in the file.

`Layout.prepare` is the only place that checks values.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import kcalib.distributions as distributions
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.classes import Classes, format_names, is_named_after, is_number, key_of, places_of, strip_prefix
from kcalib._input.columns import LABEL_NAMES, Columns, FileError, choose, label_family, label_name, named
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts, prepare_forecasts
from kcalib._input.labels import Classification, Names, prepare
from kcalib._input.parameters import VECTORS, choose_forecasts, target_names
from kcalib.distributions import Distribution
from kcalib.streaming._forecasts.families import FIELDS, OTHERS
from kcalib.streaming.forecast_tables.results import ModelForecasts
from kcalib.streaming.sources.content import decode_text, normalize_rows
from kcalib.streaming.sources.stored import map_labels

Y_TRUE, Y_PRED = "y_true", "y_pred"
Block = dict[str, Any]  # arrays of some rows: "y_true", and "y_pred" or the parameters of distributions


@dataclass(frozen=True)
class ReadOptions:
    """Options of the user about the arrays or columns of a file."""

    probs: str | None = None
    logits: str | None = None
    labels: Any = None
    from_logits: bool = False
    normalize: bool = False
    multilabel: bool = False  # the labels are an array or columns of 0 or 1
    classes: tuple[Any, ...] | None = None
    missing: str = "refuse"  # or "drop", for members that are NaN
    parameters: Mapping[str, str | None] = field(default_factory=dict)  # names by parameter
    columns: type[Columns] = Columns  # spelling of options in messages
    clusters: Any = None  # a name or an array; read like labels, by a separate source
    has_names: bool = False  # only labels are needed, which may be text
    positive: str | None = None  # the class that a single column is the probability of
    per_character: bool = False  # for log-likelihoods of choices in logs
    needs_labels: bool = True  # whether files without labels are refused

    def layout(self, columns: Columns) -> Layout:
        """Choose among the names in a file; a FileError says what is missing."""
        if self.per_character:
            raise FileError(f"{columns.spelled('per_character')} is for logs of lm_eval; leave it out")
        stored = None if (file := label_file(self.labels)) is None else map_labels(file)
        spelled = columns.spelled("from_logits").replace("=", "=True")
        layout = Layout(
            (), {}, columns.noun, stored_labels=stored, normalize=self.normalize, logits_option=spelled,
            positive=self.positive, positive_option=columns.spelled("positive"),
        )  # fmt: skip
        targets: tuple[str, ...] = () if file is None else (str(file),)
        forecasts = None
        if self.probs is None and self.logits is None and not self.from_logits:
            forecasts = choose_forecasts(columns, self.parameters)
        if self.missing != "refuse" and (forecasts is None or forecasts.family != "Samples"):
            what = "there are no predicted samples" if forecasts is None else f"there is {forecasts.described(columns)}"
            raise FileError(f"{what}, but {columns.spelled('missing')} is for members of samples; leave it out")
        if forecasts is not None:
            if self.classes is not None:
                raise FileError(
                    f"there are predicted distributions, {forecasts.described(columns)}, but "
                    f"{columns.spelled('classes')} is for class probabilities; leave it out"
                )
            if self.positive is not None:
                raise FileError(
                    f"there are predicted distributions, {forecasts.described(columns)}, but "
                    f"{columns.spelled('positive')} is for class probabilities; leave it out"
                )
            if self.normalize:
                normalize_rows(None, False, forecasts.described(columns))
            vectors = forecasts.family in VECTORS and len(forecasts.names["mean"]) > 1
            if file is None and self._expects_labels(columns):
                targets = target_names(columns, self._label_option(columns), vectors)
            return dataclasses.replace(
                layout, targets=targets, predictions=forecasts.names, family=forecasts.family, missing=self.missing
            )
        choice = choose(columns, self.probs, self.logits)
        if self.multilabel:
            targets = targets or label_family(columns, self._label_option(columns), choice)
        if self.positive is not None and len(choice.names) > 1:
            raise FileError(
                f"{columns.spelled('positive')} is for a single column of probabilities, but there are "
                f"{len(choice.names)}, {named(columns, choice.names)}; leave it out"
            )
        if not targets and self._expects_labels(columns):
            targets = (label_name(columns, self._label_option(columns)),)
        return dataclasses.replace(
            layout,
            targets=targets,
            predictions={Y_PRED: choice.names},
            from_logits=self.from_logits or choice.logits,
            classes=self.classes if choice.classes is None else choice.classes,
            order=None if choice.classes is None else self.classes,
            has_class_columns=choice.classes is not None,
        )

    def _expects_labels(self, columns: Columns) -> bool:
        return self.needs_labels or self.labels is not None or not set(LABEL_NAMES).isdisjoint(columns.names)

    def _label_option(self, columns: Columns) -> str | None:
        if not (self.labels is None or isinstance(self.labels, (str, os.PathLike))):
            raise TypeError(
                f"`labels` is a {type(self.labels).__name__}, expected the name of one of the {columns.noun}s; an "
                "array goes with an array of predictions"
            )
        return None if self.labels is None else os.fspath(self.labels)


def label_file(labels: Any) -> Path | None:
    """Return the .npy file with labels, if the option names one."""
    if isinstance(labels, (str, Path)) and str(labels).lower().endswith(".npy") and Path(labels).is_file():
        return Path(labels)
    return None


@dataclass(frozen=True)
class Layout:
    """Which arrays or columns are read, and their meaning."""

    targets: tuple[str, ...]  # name of labels or targets, or of columns of vectors; may be empty
    predictions: Mapping[str, tuple[str, ...]]  # names of "y_pred" or of each parameter
    noun: str = "array"
    family: str | None = None  # of predicted distributions
    from_logits: bool = False
    normalize: bool = False  # divide rows of probabilities by their sums
    classes: tuple[Any, ...] | None = None  # the label of each column of probabilities
    has_class_columns: bool = False  # columns are named after the classes
    class_names: tuple[Any, ...] | None = None  # if labels are column numbers
    order: tuple[Any, ...] | None = None  # requested order of classes that the file names
    stored_labels: np.memmap | None = field(default=None, compare=False)  # from a separate file
    distribution: Distribution | None = field(default=None, compare=False)  # of checked parameters
    missing: str = "refuse"
    logits_option: str = "from_logits=True"
    positive: str | None = None  # the class that a single column is the probability of
    positive_option: str = "classes="
    others: dict[str, Any] = field(default_factory=dict, compare=False)  # the other labels
    log: ModelForecasts | None = field(default=None, compare=False)  # of a language model

    @classmethod
    def of_distribution(cls, distribution: Distribution, target: str) -> Layout:
        """Return the layout of distribution objects."""
        fields = FIELDS.get(type(distribution))
        weights = "" if getattr(distribution, "counts_alike", True) else " with weights"
        if fields is None or weights:
            kind = type(distribution).__name__
            raise FileError(f"the predictions are {kind}{weights}, which cannot be read in chunks; {OTHERS}")
        names, family = {name: (name,) for name in fields}, type(distribution).__name__
        if getattr(distribution, "weights", None) is not None:  # missing members
            return cls((target,), names, "parameter", family=family, missing="drop")
        return cls((target,), names, "parameter", family=family, distribution=distribution)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The names of each array that is read from the file."""
        is_apart = self.stored_labels is not None or not self.targets
        return dict(self.predictions) if is_apart else {Y_TRUE: self.targets, **self.predictions}

    @property
    def names(self) -> tuple[str, ...]:
        """All names that are read from the file."""
        return tuple(dict.fromkeys(name for names in self.groups.values() for name in names))

    def block(self, get: Callable[[str], np.ndarray]) -> Block:
        """Return rows of columns, which `get` returns by name."""
        return {key: stack_columns([get(name) for name in names], names) for key, names in self.groups.items()}

    def count_columns(self, block: Mapping[str, Any]) -> int:
        """Return how many numbers a prediction has, 0 for probabilities of shape (n,)."""
        shapes = {name: tuple(map(int, block[name].shape)) for name in self.predictions}
        if self.family is not None:
            return sum(prod(shape[1:]) for shape in shapes.values())
        shape = shapes[Y_PRED]
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] == 0):
            raise FileError(
                f"the predictions have shape {shape}, expected (n, m) probabilities, or (n,) for two classes"
            )
        return 0 if len(shape) == 1 else shape[1]

    def check_lengths(self, block: Mapping[str, Any]) -> int:
        """Return the number of rows, which all arrays must have in common."""
        if not self.targets:
            return int(next(iter(block.values())).shape[0])
        labels = block[Y_TRUE] if self.stored_labels is None else self.stored_labels
        shape = tuple(labels.shape)
        for key, names in self.predictions.items():
            if len(shape) not in (1, 2) or not block[key].shape or shape[0] != block[key].shape[0]:
                raise FileError(
                    f"{self.noun} {_first_to_last(self.targets)!r} has shape {shape}, {self.noun} "
                    f"{_first_to_last(names)!r} {tuple(block[key].shape)}; expected one "
                    f"{'label' if self.family is None else 'target'} for each row of predictions"
                )
        return int(shape[0])

    def with_classes(self, classes: np.ndarray, labels: np.dtype[Any]) -> Layout:
        """Use the array `classes` of a file for labels, or for names of the columns that labels number."""
        names = tuple(classes.tolist())
        if (classes.dtype.kind == "U") == (labels.kind in "SUO"):
            return dataclasses.replace(self, classes=names, order=self.classes)
        if classes.dtype.kind != "U":
            return self
        return dataclasses.replace(self, classes=None, class_names=names, order=self.classes)

    def prepare(self, block: Block, at: int = 0, *, is_whole: bool = False, threads: int | None = None) -> Data:
        """Check rows from number `at` on; errors name the columns and the row of the file."""
        target, names = _first_to_last(self.targets), {key: _first_to_last(n) for key, n in self.predictions.items()}
        true = decode_text(block[Y_TRUE])
        if self.family is not None:
            with self.located({**self.predictions, target: self.targets}, at):
                values = {key: block[key] for key in self.predictions}
                kind: Any = getattr(distributions, self.family)
                more = {"missing": self.missing} if self.family == "Samples" else {}
                pred = kind(**values, **more) if self.distribution is None else self.distribution._with(**values)
                return prepare_forecasts(true, pred, names=Names(target, " and ".join(names.values())))
        is_text = isinstance(true, np.ndarray) and true.dtype.kind in "SUO"
        pred, columns = block[Y_PRED], self.predictions[Y_PRED]
        if len(columns) == 1 and (pred.ndim == 2 or self.noun == "file"):
            columns = ()  # the name of a matrix
        classes: Any = self.classes
        if self.positive is not None and classes is not None and key_of(classes[-1]) != key_of(self.positive):
            raise FileError(
                f"{self.positive_option} is {self.positive}, but the array `classes` says that the probabilities are "
                f"of {classes[-1]!r}; leave it out"
            )
        if self.has_class_columns:  # as written in labels
            classes = Classes(tuple(str(name) if is_text else name for name in classes), "columns")
        elif classes is None and (self.positive is not None or (is_text and not is_whole and len(columns) == 1)):
            classes = self._classes_of_column(true, pred, columns)
        numbers = range(len(columns) if len(columns) > 1 else 0)  # that name columns
        if classes is None and is_text and not is_whole and places_of(np.unique(true).tolist(), numbers) is None:
            row = next((i for i, label in enumerate(true.tolist()) if isinstance(label, (str, bytes))), 0)
            raise FileError(
                f"`{target}[{at + row}]` is {true.tolist()[row]!r}, but a chunk may lack some classes; pass "
                "classes= with the label of each column"
            )
        if self.has_class_columns and not is_text and any(isinstance(name, str) for name in self.classes or ()):
            raise FileError(
                f"{self.noun} {target!r} holds {true.dtype}, but the predictions are the {self.noun}s {names[Y_PRED]}, "
                f"named after the classes; expected labels {', '.join(map(repr, (self.classes or ())[:5]))}, or "
                "predictions numbered from 0"
            )
        if self.normalize:
            pred = block[Y_PRED] = normalize_rows(pred, self.from_logits, self.describe())
        with self.located({names[Y_PRED]: self.predictions[Y_PRED], target: self.targets}, at):
            data = prepare(
                true,
                pred,
                classes=classes,
                from_logits=self.from_logits,
                threads=threads,
                names=Names(target, names[Y_PRED], self.logits_option),
                columns=columns,
            )
            if self.class_names is not None and len(set(self.class_names)) == data.m == len(self.class_names):
                data = dataclasses.replace(data, classes=Classes(self.class_names))
            return data if self.order is None else data.in_order(Classes(self.order))

    def _classes_of_column(self, true: Any, pred: Any, columns: tuple[str, ...]) -> Classes | None:
        """Return the classes of a single column: the positive one is the second, all others are the first."""
        labels = np.unique(np.asarray(arrays.to_host(true))).tolist()
        name = (columns or ("",))[0]
        positive = strip_prefix(name) if self.positive is None else self.positive
        if not positive or not labels:
            return None
        if pred.ndim == 2 and pred.shape[1] > 1:
            raise FileError(
                f"{self.positive_option} is for a single column of probabilities, but there are {pred.shape[1]}; leave "
                "it out"
            )
        self.others.update({key_of(label): label for label in labels if key_of(label) != key_of(positive)})
        same = [label for label in labels if key_of(label) == key_of(positive)]
        is_text = isinstance(labels[0], str)
        if len(self.others) > 1 or not (is_text or same or is_number(positive)):
            raise FileError(
                f"the labels {format_names(self.others.values())} are not two classes with {positive!r}, the class of "
                f"the column; name the class by {self.positive_option}"
            )
        label = same[0] if same else positive if is_text else type(labels[0])(float(positive))
        other = next(iter(self.others.values()), f"not {positive}" if is_text else type(labels[0])(not label))
        if name and is_named_after(name, other) and not is_named_after(name, label):
            raise FileError(
                f"column {name!r} is named after the class {other!r}, not after {self.positive_option} {positive}; "
                "leave that out"
            )
        return Classes((other, label), "columns")

    def checked(self, block: Block, at: int, *, for_states: bool) -> tuple[Array, Any]:
        """Return checked labels or targets, and predictions, for `Source.chunks`."""
        data = self.prepare(block, at)
        if isinstance(data, Forecasts):
            return data.as_given()
        assert isinstance(data, Classification)
        if for_states:
            epsilon = 2.0**-52 if self.from_logits else data.input_epsilon
            labels, given = map(arrays.to_host, (data.labels, data.probabilities if self.from_logits else data.given))
            return labels, dataclasses.replace(data, labels=labels, given=given, losses=None, input_epsilon=epsilon)
        return data.labels, block[Y_PRED] if not self.from_logits and self.order is None else data.probabilities

    def describe(self) -> str:
        targets = " to ".join(map(repr, dict.fromkeys((self.targets[0], self.targets[-1]))))
        groups = {
            name: " to ".join(map(repr, dict.fromkeys((names[0], names[-1]))))
            for name, names in self.predictions.items()
        }
        if self.family is not None:
            parameters = " and ".join(f"{name} in {names}" for name, names in groups.items())
            return f"{self.family} distributions, {self.noun}s of {parameters}, targets in {targets}"
        kind = "logits" if self.from_logits else "probabilities"
        plural = "s" if len(self.predictions[Y_PRED]) > 1 else ""
        return f"{kind} in {self.noun}{plural} {groups[Y_PRED]}, labels in {targets}"

    @contextmanager
    def located(self, columns: Mapping[str, tuple[str, ...]], at: int) -> Iterator[None]:
        """Name columns and rows of the file in errors about arrays and rows of a block."""

        def locate(match: re.Match[str]) -> str:
            names, row, entry = columns[match[1]], int(match[2]) + at, match[3]
            if entry is not None and len(names) > 1:
                return f"`{names[int(entry)]}[{row}]"
            return f"`{_first_to_last(names)}[{row}" + (f", {entry}]" if entry is not None else "]")

        try:
            yield
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else FileError
            names = "|".join(map(re.escape, columns))
            message = str(error).replace("from_logits=True", self.logits_option)
            numbers = [name for name in self.classes or () if isinstance(name, int)] if self.has_class_columns else []
            gap = sorted({*range(max(numbers, default=0))} - {*numbers, 0})
            if gap and re.search("sums to|expected one of", message):
                numbered = " to ".join(map(repr, self.predictions[Y_PRED][:: len(numbers) - 1]))
                message = f"{message}; the columns {numbered} have no number {', '.join(map(str, gap[:5]))}"
            raise kind(re.sub(rf"`({names})\[(\d+)(?:, (\d+))?\]", locate, message)) from None


def _first_to_last(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def stack_columns(columns: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Return one column unchanged, several as the columns of a matrix."""
    if len(columns) == 1:
        return columns[0]
    for column, name in zip(columns, names, strict=True):
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise FileError(f"column {name!r} has dtype {column.dtype} and {column.ndim} axes, expected numbers")
    return np.stack(columns, axis=1)
