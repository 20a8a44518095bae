"""Choose the arrays or columns of predictions and labels by their names.

Sources of all formats (`streaming.sources`) and the command use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kcalib._backend.options import find_similar

# Names that need no option; the first that a file has is used.
PROBABILITY_NAMES = ("probs", "probabilities", "y_prob", "y_proba", "prob", "proba", "y_pred", "predictions", "p")
LOGIT_NAMES = ("logits", "y_logits", "y_logit", "logit")
CLASS_PREFIXES = ("prob", "proba", "probs", "probabilities", "y_prob", "y_proba", *LOGIT_NAMES, ".pred")  # of a class
LABEL_NAMES = ("labels", "label", "y_true", "y", "target", "targets", "y_test")
CLASSES_NAME = "classes"

FAMILY_PREFIXES = (*PROBABILITY_NAMES, ".pred")  # of tidymodels, where `.pred` alone is a predicted number
# Suffixes that name no class.
OTHER_SUFFIXES = {
    *("adj", "adjusted", "argmax", "class", "conf", "confidence", "correct", "entropy", "int", "label", "lower"),
    *("margin", "max", "mean", "min", "pred", "predicted", "prediction", "res", "std", "sum", "time", "top", "top1"),
    *("upper", "value", "var"),
}

SEPARATORS = ("_", ".", "")  # between prefix and suffix


class FileError(ValueError):
    """Why a file holds no predictions; the caller adds the name of the file."""


@dataclass(frozen=True)
class Choice:
    """The names of the predictions."""

    names: tuple[str, ...]
    logits: bool
    classes: tuple[str | int, ...] | None = None  # from suffixes, other than the numbers 0, 1, ...


@dataclass(frozen=True)
class Columns:
    """The names to choose from."""

    noun: str  # "array" or "column"
    names: tuple[str, ...]
    holder: str = field(default="the file", kw_only=True)  # its description

    def inventory(self) -> str:
        listing = ", ".join(map(repr, self.names[:20])) + (", ..." if len(self.names) > 20 else "")
        return f"{self.holder} has the {self.noun}s {listing}" if self.names else f"{self.holder} has no {self.noun}s"

    def meant(self, name: str, *, families: bool = True) -> str:
        """Return the end of a message about a missing name: a similar name or prefix of columns."""
        candidates = list(self.names)
        if families and self.noun == "column":
            prefixes = (re.sub(r"[_.]?\d+$", "", column) for column in self.names)
            candidates += [prefix for prefix in prefixes if prefix not in ("", name)]
        similar = find_similar(name, candidates)
        return "" if similar is None else f"; did you mean {similar!r}?"

    def spelled(self, option: str) -> str:
        """Return an option as the user writes it."""
        if option == "positive":
            return "classes="
        is_own = option in ("probs", "logits", "labels", "classes", "from_logits", "clusters", "missing")
        return f"{option}=" if is_own else f"parameters={{{option!r}: ...}}"

    def otherwise(self) -> str:
        """Return the end of the message that no predictions are found."""
        return ""

    def suggest_file(self, name: str) -> str:
        """Return the end of the message that a file does not exist."""
        return ""


def named(source: Columns, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{source.noun} {names[0]!r}"
    return f"{source.noun}s {names[0]!r} to {names[-1]!r}"


def choose(source: Columns, probs: str | None, logits: str | None) -> Choice:
    for name, are_logits, option in ((probs, False, "probs"), (logits, True, "logits")):
        if name is not None:
            choice = _match(source, name, are_logits, by_option=True)
            if choice is None and source.noun == "column" and "," in name:
                listed = tuple(part.strip() for part in name.split(","))
                name = next((part for part in listed if part not in source.names), "")
                choice = None if name else Choice(listed, are_logits)
            if choice is None:
                raise no_such_columns(source, name, option)
            return choice
    choice = choose_by_names(source)
    if choice is not None:
        return choice
    families = ", or several columns such as probs_0, probs_1, ..." if source.noun == "column" else ""
    raise FileError(
        f"there is no {source.noun} of predictions; {source.inventory()}, expected one of "
        f"{', '.join(PROBABILITY_NAMES + LOGIT_NAMES)}{families}; name it by "
        f"{source.spelled('probs')} or {source.spelled('logits')}{', several as A,B,C' if families else ''}"
        f"{source.otherwise()}"
    )


def no_such_columns(source: Columns, name: str, option: str) -> FileError:
    """Return the error about an option that names no array or column."""
    families = "" if source.noun != "column" else f" or columns {name}_0, {name}_1, ..."
    return FileError(
        f"there is no {source.noun} {name!r}{families} for {source.spelled(option)}; {source.inventory()}"
        f"{source.meant(name)}"
    )


def choose_by_names(source: Columns) -> Choice | None:
    kinds = ((FAMILY_PREFIXES, False), (LOGIT_NAMES, True))
    choices = (_match(source, name, are_logits, by_option=False) for names, are_logits in kinds for name in names)
    choice = next((choice for choice in choices if choice is not None), None)
    return _single_of_family(source) if choice is None and source.noun == "column" else choice


def _single_of_family(source: Columns) -> Choice | None:
    """Return the only column of probabilities that is named after a class, such as prob_spam."""
    pattern = re.compile("(?:y_)?prob(?:a|s|abilities)?[_.](.+)")
    matches = [match for match in map(pattern.fullmatch, source.names) if match is not None]
    names = [match[0] for match in matches if match[1].lower() not in OTHER_SUFFIXES]
    return Choice((names[0],), False) if len(names) == 1 else None


def _match(source: Columns, name: str, logits: bool, *, by_option: bool) -> Choice | None:
    """Return `name`, or several columns with this prefix.

    Without an option several columns have priority: a column `prob` next to `prob_0`, `prob_1` or `prob_cat`,
    `prob_dog` is probably the probability of the predicted class. An option selects them by ``prob_`` or ``prob_*``.
    """
    exact = Choice((name,), logits) if name in source.names and (by_option or name != ".pred") else None
    if source.noun != "column":
        return exact
    if by_option and exact is not None:
        return exact
    if by_option:
        name = name.removesuffix("*")
    family = numbered_family(source, name, logits, from_zero=False) or _named_family(source, name, logits)
    return exact if family is None or (exact is not None and len(family.names) < 2) else family


def numbered_family(source: Columns, prefix: str, logits: bool, *, from_zero: bool = True) -> Choice | None:
    """Return the numbered columns, from 0 on without a gap unless the numbers may be classes."""
    for separator in SEPARATORS:
        start = prefix + separator
        members = [name for name in source.names if name.startswith(start) and _is_number(name[len(start) :])]
        if len(members) < 2:
            continue
        members.sort(key=lambda name: int(name[len(start) :]))
        numbers = [int(name[len(start) :]) for name in members]
        if not from_zero and len(set(numbers)) == len(numbers):
            return Choice(tuple(members), logits, None if numbers == list(range(len(members))) else tuple(numbers))
        if numbers != list(range(len(members))):
            subject = f"the columns {', '.join(map(repr, members[:20]))} are numbered"
            if numbers == list(range(1, len(members) + 1)):
                raise FileError(
                    f"{subject} 1 to {numbers[-1]}, expected 0 to {numbers[-1] - 1}: rename them (and "
                    "let the labels start at 0), or use the class names as suffixes and labels"
                )
            missing = next((i for i in range(numbers[-1]) if i not in numbers), None)
            gap = "one number occurs twice" if missing is None else f"{start}{missing} is missing"
            raise FileError(f"{subject}, expected 0, 1, 2, ...: {gap}")
        return Choice(tuple(members), logits)
    return None


def _named_family(source: Columns, prefix: str, logits: bool) -> Choice | None:
    for separator in ("",) if prefix.endswith(("_", ".")) else ("_", "."):
        start = prefix + separator
        family = [
            n for n in source.names if n.startswith(start) and len(n) > len(start) and not _is_number(n[len(start) :])
        ]
        members = [name for name in family if name[len(start) :].lower() not in OTHER_SUFFIXES]
        if len(members) >= 2:
            return Choice(tuple(members), logits, tuple(name[len(start) :] for name in members))
        if len(family) >= 2 and members:
            return Choice(tuple(members), logits)
    return None


def _is_number(suffix: str) -> bool:
    return suffix.isascii() and suffix.isdigit()


def label_family(source: Columns, labels: str | None, predictions: Choice) -> tuple[str, ...]:
    """Return the array or columns with 0 or 1 for each label, in the order of the predictions."""
    choices = (_match(source, name, False, by_option=False) for name in (LABEL_NAMES if labels is None else (labels,)))
    choice = next((choice for choice in choices if choice is not None), None)
    if choice is None:
        raise no_such_columns(source, LABEL_NAMES[0] if labels is None else labels, "labels")
    if set(choice.classes or ()) != set(predictions.classes or ()):
        raise FileError(
            f"the labels are the {named(source, choice.names)}, the predictions the "
            f"{named(source, predictions.names)}, expected the same suffixes; name them by "
            f"{source.spelled('labels')} and {source.spelled('probs')}"
        )
    if choice.classes is None or predictions.classes is None:
        return choice.names
    return tuple(choice.names[choice.classes.index(label)] for label in predictions.classes)


def label_name(source: Columns, labels: str | None) -> str:
    if labels is not None:
        if labels in source.names:
            return labels
        file = " or file" if labels.lower().endswith(".npy") else ""
        raise FileError(
            f"there is no {source.noun}{file} {labels!r} for {source.spelled('labels')}; {source.inventory()}"
            f"{source.meant(labels, families=False)}"
        )
    for name in LABEL_NAMES:
        if name in source.names:
            return name
    raise FileError(
        f"there is no {source.noun} of labels; {source.inventory()}, expected one of {', '.join(LABEL_NAMES)}; "
        f"name it by {source.spelled('labels')}"
    )
