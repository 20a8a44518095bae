"""Which of some named arrays or columns are the parameters of predicted distributions, and which the targets.

`choose_forecasts` finds the parameters, `target_names` the targets; class probabilities and labels are found by
`columns`. Sources of all formats (`streaming.sources`) and the command find the same names without an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kcalib._input.columns import (
    LABEL_NAMES,
    Columns,
    FileError,
    choose_by_names,
    label_name,
    named,
    no_such_columns,
    numbered_family,
)

# Predicted distributions have names for each parameter; the first family that a file has all of is used. Without a name
# a parameter is found by an option alone: other libraries have loc and scale for normal distributions, too.
MEAN_NAMES = ("mean", "y_mean", "mu")
STD_NAMES = ("std", "y_std", "sigma")
SAMPLES_NAMES = ("samples", "y_samples")
RATE_NAMES = ("rate", "y_rate")
DISPERSION_NAMES = ("dispersion",)
FAMILIES: tuple[tuple[str, dict[str, tuple[str, ...]]], ...] = (  # of `kcalib.distributions`
    ("Normal", {"mean": MEAN_NAMES, "std": STD_NAMES}),
    ("Samples", {"samples": SAMPLES_NAMES}),
    ("Poisson", {"rate": RATE_NAMES}),
    ("NegativeBinomial", {"mean": MEAN_NAMES, "dispersion": DISPERSION_NAMES}),
    ("MultivariateNormal", {"mean": MEAN_NAMES, "cov": ("cov",)}),
    ("MultivariateNormal", {"mean": MEAN_NAMES, "scale_tril": ("scale_tril",)}),
    ("Laplace", {"loc": (), "scale": ("scale",)}),
)
PARAMETERS = tuple(dict.fromkeys(option for _, parameters in FAMILIES for option in parameters))
VECTORS = ("Normal", "MultivariateNormal")  # families whose targets may be vectors


@dataclass(frozen=True)
class FamilyChoice:
    """The names that make up the parameters of predicted distributions."""

    family: str
    names: dict[str, tuple[str, ...]]

    def described(self, source: Columns) -> str:
        return f"{self.family} of " + " and ".join(named(source, names) for names in self.names.values())


def choose_forecasts(source: Columns, given: Mapping[str, str | None]) -> FamilyChoice | None:
    """The parameters that options name, or those of the first complete family; None: the file is of class labels."""
    asked = [option for option in PARAMETERS if given.get(option) is not None]
    found: FamilyChoice | None = None
    incomplete: list[tuple[FamilyChoice, str, tuple[str, ...]]] = []  # with the parameter that is missing, its names
    for family, parameters in FAMILIES:
        if not set(asked) <= parameters.keys() or not (asked or all(parameters.values())):
            continue
        names = {option: _parameter(source, option, parameters[option], given.get(option)) for option in parameters}
        complete = FamilyChoice(family, {option: some for option, some in names.items() if some is not None})
        if len(complete.names) == len(names):
            found = complete
            break
        if asked or complete.names:
            missing = next(option for option in parameters if option not in complete.names)
            incomplete.append((complete, missing, parameters[missing]))
    if found is None and incomplete and (asked or choose_by_names(source) is None):
        part, missing, expected = incomplete[0]
        beside = " and ".join(named(source, some) for some in part.names.values())
        one_of = f", expected one of {', '.join(expected)}" if expected else ""
        raise FileError(
            f"there is {beside}, but no {source.noun} of {missing}; {source.inventory()}{one_of}; name it by "
            f"{source.spelled(missing)}"
        )
    if found is None and asked:
        raise FileError(
            f"{' and '.join(map(source.spelled, asked))} are of different families of distributions; give those of one"
        )
    if found is not None and not asked:
        classes = choose_by_names(source)
        if classes is not None:
            raise FileError(
                f"there are class probabilities or logits, {named(source, classes.names)}, and predicted "
                f"distributions, {found.described(source)}; say which by "
                f"{source.spelled('logits' if classes.logits else 'probs')} or "
                f"{source.spelled(next(iter(found.names)))}"
            )
    return found


def _parameter(source: Columns, option: str, names: tuple[str, ...], given: str | None) -> tuple[str, ...] | None:
    """The array or columns of a parameter: what is given by the option, or the first of `names` that there is."""
    for name in names if given is None else (given,):
        some = _array_or_columns(source, name, exact_first=given is not None)
        if some is not None:
            return some
    if given is None:
        return None
    raise no_such_columns(source, given, option)


def _array_or_columns(source: Columns, name: str, *, exact_first: bool) -> tuple[str, ...] | None:
    exact = (name,) if name in source.names else None
    if source.noun != "column" or (exact_first and exact is not None):
        return exact
    family = numbered_family(source, name, False)
    return exact if family is None else family.names


def target_names(source: Columns, labels: str | None, vectors: bool) -> tuple[str, ...]:
    """Return the names of the targets; columns y_0, y_1, ... go first if predictions are columns of vectors."""
    for name in LABEL_NAMES if labels is None else (labels,):
        some = _array_or_columns(source, name, exact_first=labels is not None or not vectors)
        if some is not None:
            return some
    return (label_name(source, labels),)  # raises
