"""The way of an array: no function of a lower room calls one of a higher room."""

from __future__ import annotations

import pytest
import way

# Lower rooms are handed objects and ask these for what they are: marks that are made when first asked for, the array
# that stands for a kind of data, methods that are made by their class, changes made to every part of a kernel, the
# sums of pair problems that are made one after the other; the tiles of a problem that is shared out; and sources for
# pieces of the samples, for sums over all of them, and these for results.
ALLOWED = {
    ("_pairs.problem", "points_and_residuals"),
    ("_input.data", "Forecasts.reference"),
    ("_input.methods", "ByEigenvalues.__post_init__"),
    ("_input.methods", "ConjugateGradient.__post_init__"),
    ("_packing.variance", "null_moments.<locals>.total_of"),
    ("kernels", "_as_vectors"),
    ("estimators.skce_pieces", "PartsSource._chunks"),
    ("estimators.skce_pieces", "PartsSource.chunks"),
    ("estimators.skce_pieces", "PartsSource.n"),
    ("inference.calibration_test", "PartsSource.summed"),
    ("inference.calibration_test", "Results.calibration_test"),
    ("inference.compare", "ComparisonState.result"),
    ("inference.compare", "PartsSource.summed_together"),
}


@pytest.mark.parametrize("name", way.WAYS)
def test_no_call_leads_up(name):
    with way.prepared(name) as call:
        steps = way.steps_of(call)
    modules = {step.module.partition(".")[0] for step in steps}
    assert {"_input", "_packing", "_pairs", "_backend"} <= modules
    assert {(step.caller, step.function) for step in way.turns_back(steps)} <= ALLOWED


def test_a_call_that_leads_up_is_seen():
    steps = way.steps_of(way.WAYS["skce"])
    assert way.turns_back([*steps, way.Step(3, "estimators.skce", "skce", "_pairs.dispatch")])
    assert way.turns_back([way.Step(3, "_pairs.dispatch", "backend_for", "estimators.skce")]) == []
