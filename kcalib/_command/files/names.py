"""Which of a file's names are the predictions, and which the labels or targets.

`choose` finds class probabilities or logits among the names, `choose_forecasts` what predicted distributions are made
of, `label_name` and `target_names` the labels and targets.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcalib._command.files.source import Choice, FileError, Source, named

# Names recognised without an option; the first that a file has is used.
PROBABILITY_NAMES = ("probs", "probabilities", "y_prob", "y_proba", "prob", "proba", "y_pred", "predictions", "p")
LOGIT_NAMES = ("logits", "y_logits", "y_logit", "logit")
LABEL_NAMES = ("labels", "label", "y_true", "y", "target", "targets", "y_test")
CLASSES_NAME = "classes"
# Predicted distributions have names for each parameter; the first family that a file has all of is used.
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


def choose(source: Source, probs: str | None, logits: str | None) -> Choice:
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


def _choose_by_names(source: Source) -> Choice | None:
    for names, are_logits in ((PROBABILITY_NAMES, False), (LOGIT_NAMES, True)):
        for name in names:
            choice = _match(source, name, are_logits, by_option=False)
            if choice is not None:
                return choice
    return None


def _match(source: Source, name: str, logits: bool, *, by_option: bool) -> Choice | None:
    """`name` itself or a family of columns with that prefix.

    Without an option a numbered family goes first: a column `prob` beside `prob_0`, `prob_1`
    is likely the probability of the predicted class.
    """
    exact = Choice((name,), logits) if name in source.names else None
    if source.noun != "column":
        return exact
    if by_option and exact is not None:
        return exact
    return _numbered_family(source, name, logits) or exact or _named_family(source, name, logits)


@dataclass(frozen=True)
class FamilyChoice:
    """The names that make up the parameters of predicted distributions."""

    family: str
    names: dict[str, tuple[str, ...]]

    def described(self, source: Source) -> str:
        return f"{self.family} of " + " and ".join(named(source, names) for names in self.names.values())


def choose_forecasts(source: Source, given: dict[str, str | None]) -> FamilyChoice | None:
    """The parameters that options name, or those of the first complete family; None: the file is of class labels."""
    asked = [option for option, name in given.items() if name is not None]
    found: FamilyChoice | None = None
    incomplete: dict[str, dict[str, tuple[str, ...]]] = {}
    for family, parameters in FAMILIES.items():
        if not set(asked) <= parameters.keys():
            continue
        names = {option: _parameter(source, option, parameters[option], given[option]) for option in parameters}
        complete = {option: some for option, some in names.items() if some is not None}
        if len(complete) == len(names):
            found = FamilyChoice(family, complete)
            break
        if asked or complete:
            incomplete[family] = complete
    if found is None and incomplete and (asked or _choose_by_names(source) is None):
        family, complete = next(iter(incomplete.items()))
        missing = next(option for option in FAMILIES[family] if option not in complete)
        beside = " and ".join(named(source, some) for some in complete.values())
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
                f"there are class probabilities or logits, {named(source, classes.names)}, and predicted "
                f"distributions, {found.described(source)}; say which by --{'logits' if classes.logits else 'probs'} "
                f"{classes.names[0] if len(classes.names) == 1 else 'NAME'} or by --{next(iter(found.names))}"
            )
    return found


def _parameter(source: Source, option: str, names: tuple[str, ...], given: str | None) -> tuple[str, ...] | None:
    """The array or columns of a parameter: what is given by the option, or the first of `names` that there is."""
    for name in names if given is None else (given,):
        some = _array_or_columns(source, name, exact_first=given is not None)
        if some is not None:
            return some
    if given is None:
        return None
    families = "" if source.noun != "column" else f" and no columns {given}_0, {given}_1, ..."
    raise FileError(f"there is no {source.noun} {given!r}{families}, as --{option} says; {source.inventory()}")


def _array_or_columns(source: Source, name: str, *, exact_first: bool) -> tuple[str, ...] | None:
    exact = (name,) if name in source.names else None
    if source.noun != "column" or (exact_first and exact is not None):
        return exact
    family = _numbered_family(source, name, False)
    return exact if family is None else family.names


def target_names(source: Source, labels: str | None, vectors: bool) -> tuple[str, ...]:
    """The targets: a name, or columns y_0, y_1, ..., which go first if predictions are columns of vectors."""
    for name in LABEL_NAMES if labels is None else (labels,):
        some = _array_or_columns(source, name, exact_first=labels is not None or not vectors)
        if some is not None:
            return some
    return (label_name(source, labels),)  # raises


def _numbered_family(source: Source, prefix: str, logits: bool) -> Choice | None:
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
        return Choice(tuple(members), logits)
    return None


def _named_family(source: Source, prefix: str, logits: bool) -> Choice | None:
    for separator in filter(None, SEPARATORS):
        start = prefix + separator
        members = [
            n for n in source.names if n.startswith(start) and len(n) > len(start) and not _is_number(n[len(start) :])
        ]
        if len(members) >= 2:
            return Choice(tuple(members), logits, tuple(name[len(start) :] for name in members))
    return None


def _is_number(suffix: str) -> bool:
    return suffix.isascii() and suffix.isdigit()


def label_name(source: Source, labels: str | None) -> str:
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
