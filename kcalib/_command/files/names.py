"""Which of a file's names are the parameters of predicted distributions, and which the targets.

`choose_forecasts` finds the parameters, `target_names` the targets. Class probabilities and labels are found by
`_input.columns`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcalib._command.files.source import Source
from kcalib._input.columns import LABEL_NAMES, FileError, choose_by_names, label_name, named, numbered_family

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
    if found is None and incomplete and (asked or choose_by_names(source) is None):
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
        classes = choose_by_names(source)
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
    family = numbered_family(source, name, False)
    return exact if family is None else family.names


def target_names(source: Source, labels: str | None, vectors: bool) -> tuple[str, ...]:
    """The targets: a name, or columns y_0, y_1, ..., which go first if predictions are columns of vectors."""
    for name in LABEL_NAMES if labels is None else (labels,):
        some = _array_or_columns(source, name, exact_first=labels is not None or not vectors)
        if some is not None:
            return some
    return (label_name(source, labels),)  # raises
