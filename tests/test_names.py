"""Public names: one meaning each, and what is said of names that others use for something else."""

from __future__ import annotations

import pytest

import kcalib


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        (
            "calibration_error",
            "`squared_calibration_error` estimates a squared error .* binned error is `top_label_ece`",
        ),
        ("static_calibration_error", r"it is `class_wise_ece\(y_true, y_pred\)`"),
        ("adaptive_calibration_error", r"it is `class_wise_ece\(y_true, y_pred, binning='equal_mass'\)`"),
    ],
)
def test_a_name_that_users_look_for_says_what_to_call(name, remedy):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': {remedy}"):
        getattr(kcalib, name)


def test_other_names_are_missing_as_usual():
    with pytest.raises(AttributeError, match=r"^module 'kcalib' has no attribute 'nothing'$"):
        kcalib.nothing  # noqa: B018
