"""Choose the arrays or columns of parameters of predicted distributions, and of targets, by their names.

`columns` does the same for class probabilities and labels. Sources of all formats (`streaming.sources`) and the command
use the same names.
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

# Names of each parameter; the first family with all parameters is used. Parameters without names need an option: other
# libraries use loc and scale also for normal distributions.
MEAN_NAMES = ("mean", "y_mean", "mu", "y_pred")  # y_pred only with a further parameter
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
    ("StudentT", {"df": ("df",), "loc": (), "scale": ("scale",)}),
    ("LogNormal", {"mean_log": ("mean_log",), "std_log": ("std_log",)}),
    ("Gamma", {"shape": (), "scale": ("scale",)}),
)
PARAMETERS = tuple(dict.fromkeys(option for _, parameters in FAMILIES for option in parameters))
VECTORS = ("Normal", "MultivariateNormal")  # families whose targets may be vectors


@dataclass(frozen=True)
class FamilyChoice:
    """The names of the parameters of predicted distributions."""

    family: str
    names: dict[str, tuple[str, ...]]

    def described(self, source: Columns) -> str:
        return f"{self.family} of " + " and ".join(named(source, names) for names in self.names.values())


def choose_forecasts(source: Columns, option_values: Mapping[str, str | None]) -> FamilyChoice | None:
    """Return the parameters that options name, or the first complete family; None for class labels."""
    options = [option for option in PARAMETERS if option_values.get(option) is not None]
    choice: FamilyChoice | None = None
    incomplete: list[tuple[FamilyChoice, str, tuple[str, ...]]] = []  # with the missing parameter and its names
    for family, parameters in FAMILIES:
        if not set(options) <= parameters.keys() or not (options or all(parameters.values())):
            continue
        names = {
            option: _parameter(source, option, parameters[option], option_values.get(option)) for option in parameters
        }
        complete = FamilyChoice(family, {option: columns for option, columns in names.items() if columns is not None})
        if len(complete.names) == len(names):
            choice = complete
            break
        if options or complete.names:
            missing = next(option for option in parameters if option not in complete.names)
            incomplete.append((complete, missing, parameters[missing]))
    if choice is None and incomplete and (options or choose_by_names(source) is None):
        partial, missing, expected = incomplete[0]
        present = " and ".join(named(source, columns) for columns in partial.names.values())
        one_of = f", expected one of {', '.join(expected)}" if expected else ""
        raise FileError(
            f"there is {present}, but no {source.noun} of {missing}; {source.inventory()}{one_of}; name it by "
            f"{source.spelled(missing)}{'; of variances take the square root first' if missing == 'std' else ''}"
        )
    if choice is None and options:
        raise FileError(
            f"{' and '.join(map(source.spelled, options))} belong to different families of distributions; name "
            "the parameters of one"
        )
    if choice is not None and not options:
        classes = choose_by_names(source)
        if classes is not None and classes.names not in choice.names.values():
            raise FileError(
                f"there are class probabilities or logits, {named(source, classes.names)}, and predicted "
                f"distributions, {choice.described(source)}; choose by "
                f"{source.spelled('logits' if classes.logits else 'probs')} or "
                f"{source.spelled(next(iter(choice.names)))}"
            )
    return choice


def _parameter(source: Columns, option: str, names: tuple[str, ...], value: str | None) -> tuple[str, ...] | None:
    """Return the array or columns of a parameter, by the option or the first of `names` that exists."""
    for name in names if value is None else (value,):
        columns = _array_or_columns(source, name, exact_first=value is not None)
        if columns is not None:
            return columns
    if value is None:
        return None
    raise no_such_columns(source, value, option)


def _array_or_columns(source: Columns, name: str, *, exact_first: bool) -> tuple[str, ...] | None:
    exact = (name,) if name in source.names else None
    if source.noun != "column" or (exact_first and exact is not None):
        return exact
    family = numbered_family(source, name, False)
    return exact if family is None else family.names


def target_names(source: Columns, labels: str | None, vectors: bool) -> tuple[str, ...]:
    """Return the names of the targets; columns y_0, y_1, ... go first if predictions are columns of vectors."""
    for name in LABEL_NAMES if labels is None else (labels,):
        columns = _array_or_columns(source, name, exact_first=labels is not None or not vectors)
        if columns is not None:
            return columns
    return (label_name(source, labels),)  # raises
