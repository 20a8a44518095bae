"""Checks of options, and errors that a caller can word otherwise."""

from __future__ import annotations

import pickle

import pytest

import kcalib
from kcalib._backend.options import OptionError, check_choice, check_integer
from kcalib.distributions import Normal, wasserstein_distance
from kcalib.kernels import Exponential, RationalQuadratic


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


HUGE = 10**400  # float() raises OverflowError
P, Y = [0.2, 0.7, 0.4, 0.6], [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Exponential(HUGE), "`bandwidth` is 10+, expected a positive finite number"),
        (lambda: HUGE * Exponential(), "`scale` is inf, expected a positive finite number"),
        (lambda: Exponential() * -HUGE, "`scale` is -inf, expected a positive finite number"),
        (lambda: RationalQuadratic(1.0, alpha=HUGE), "`alpha` is 10+, expected a positive finite number"),
        (lambda: kcalib.ckce(Y, P, regularization=HUGE), "`regularization` is 10+, expected a positive finite number"),
        (lambda: kcalib.kde_calibration_error(Y, P, bandwidth=HUGE), "`bandwidth` is 10+, expected a positive, finite"),
        (
            lambda: kcalib.pinball_loss([1.0], Normal([0.0], [1.0]), levels=[0.5, HUGE]),
            "`levels` has an integer beyond",
        ),
        (
            lambda: wasserstein_distance(Normal([0.0], [1.0]), Normal([1.0], [1.0]), order=HUGE),
            "`order` is 10+, expected a fin",
        ),
    ],
)
def test_integers_beyond_all_floats(call, match):
    with pytest.raises(ValueError, match=match):
        call()
