"""Options of `--method`, generated from the fields of the classes in `kcalib.methods`.

`add_options` adds an option for each field whose value is a word or a number; its help text comes from the docstring.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Sequence
from functools import cache
from typing import Any

from kcalib._backend.options import OptionError
from kcalib.inference.calibration_test import METHODS
from kcalib.inference.task import CalibrationMethod

# Also an option of other numbers; all of them receive it.
SHARED = ("n_bins",)
# An option of --logits already.
OF_FILES = ("from_logits",)
WORD = re.compile(r'"(\w+)"')


def flag(name: str) -> str:
    """Return the option of a Python parameter."""
    return "--parallel" if name == "backend" else "--" + name.removeprefix("n_").replace("_", "-")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field; its help text names the methods that have it."""
    group = parser.add_argument_group("options of --method")
    for name, classes in owners().items():
        text_of_type, text = _documented(classes[0]).get(name, ("", ""))
        kwargs = _argument(typing.get_type_hints(classes[0])[name], text_of_type)
        if kwargs is not None and "choices" in kwargs:  # each class checks its own
            kwargs["choices"] = list(dict.fromkeys(word for cls in classes for word in _words(cls, name)))
        if name not in SHARED and kwargs is not None:
            methods = ", ".join(cls.name for cls in classes)
            default = _default(name, classes)
            help_text = f"{methods}: {text}{default}".replace("%", "%%")
            group.add_argument(flag(name), dest=name, help=help_text, **kwargs)


def _default(name: str, classes: Sequence[type[CalibrationMethod]]) -> str:
    """Describe the default of the field, and the different defaults of some methods."""
    defaults = {cls.name: getattr(cls, name) for cls in classes}
    default = next((value for value in defaults.values() if value is not None), None)
    further_defaults = [f"; {method}: {value}" for method, value in defaults.items() if value not in (default, None)]
    return "" if default is None else f" (default: {default}{''.join(further_defaults)})"


def make_method(arguments: argparse.Namespace) -> CalibrationMethod:
    """Return the method with the given options; exit if it does not have one of them."""
    (cls,) = (cls for cls in METHODS if cls.name == arguments.method)
    options = {name: getattr(arguments, name, None) for name in owners()}
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        classes = owners()[name]
        if cls not in classes and name not in SHARED:
            arguments.usage_error(
                f"{flag(name)} is for --method {join_names(classes)}, not for {cls.name}; leave it out"
            )
    try:
        return cls(**{name: value for name, value in options.items() if cls in owners()[name]})
    except OptionError as error:
        arguments.usage_error(f"{flag(error.option)} {error.fault}")
    except (TypeError, ValueError) as error:
        arguments.usage_error(f"--method {cls.name}: {error}")
    raise AssertionError("unreachable: a usage error ends the command")


def join_names(classes: Sequence[type[CalibrationMethod]]) -> str:
    *names, last = (cls.name for cls in classes)
    return f"{', '.join(names)} or {last}" if names else last


@cache
def owners() -> dict[str, list[type[CalibrationMethod]]]:
    """Return for each field the classes that have it, in the order of `METHODS`."""
    classes: dict[str, list[type[CalibrationMethod]]] = {}
    for cls in METHODS:
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every method is a dataclass
            if field.name not in OF_FILES:
                classes.setdefault(field.name, []).append(cls)
    return classes


def _argument(hint: Any, text_of_type: str) -> dict[str, Any] | None:
    """Return the arguments of `add_argument` for a field of this type, or None if no word or number is its value."""
    types = set(typing.get_args(hint)) or {hint}
    choices = WORD.findall(text_of_type)
    if bool in types:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    if int in types and str in types:
        return {"type": _integer_or_word, "metavar": "|".join(["INT", *choices])}
    if int in types:
        return {"type": int, "metavar": "INT"}
    if float in types:
        return {"type": float, "metavar": "FLOAT"}
    if str in types:
        return {"choices": choices} if choices else {"metavar": "NAME"}
    return None


def _words(cls: type[CalibrationMethod], name: str) -> list[str]:
    return WORD.findall(_documented(cls).get(name, ("", ""))[0])


def _integer_or_word(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _documented(cls: type[CalibrationMethod]) -> dict[str, tuple[str, str]]:
    """Return the type and the first clause of each parameter in a class's docstring (empty with `python -OO`)."""
    section = (inspect.getdoc(cls) or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    documented: dict[str, tuple[str, str]] = {}
    for names, text_of_type, text in re.findall(r"^(\w[\w, ]*) : (.*)\n((?:    .*(?:\n|$))+)", section, re.MULTILINE):
        summary = re.split(r"[.;:](?: |$)", " ".join(text.replace("`", "").split()))[0]
        summary = summary[:1].lower() + summary[1:]
        documented |= dict.fromkeys(names.split(", "), (text_of_type, summary))
    return documented
