"""Checks of options, and errors that a caller can word otherwise."""

from __future__ import annotations

import pickle

import pytest

from kcalib._backend.options import OptionError, check_choice, check_integer


@pytest.mark.parametrize(
    ("check", "option", "fault"),
    [
        (lambda: check_integer("k", 0, 1, 9, ": rows"), "k", "is 0, expected an integer between 1 and 9: rows"),
        (lambda: check_integer("k", -1, 0), "k", "is -1, expected an integer at least 0"),
        (lambda: check_choice("norm", "l3", ("l1", "l2")), "norm", "is 'l3', expected one of 'l1', 'l2'"),
    ],
)  # fmt: skip
def test_an_error_tells_the_option_from_the_fault(check, option, fault):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check()
    error = caught.value
    assert isinstance(error, OptionError)
    assert (error.option, error.fault, str(error)) == (option, fault, f"`{option}` {fault}")
    again = pickle.loads(pickle.dumps(error))
    assert (again.option, str(again)) == (option, str(error))


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_integer(value):
    with pytest.raises(TypeError, match="`k` is .*, expected an integer"):
        check_integer("k", value, 0)
