"""Ensembles of which members are missing: each prediction is that by the members that are there."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kcalib
from kcalib._command.cli import main
from kcalib.distributions import Normal, Samples, wasserstein_distance
from kcalib.streaming import ForecastState, source

NAN = np.nan
RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(150, 11))
Y, WITH_GAPS = VALUES[:, 0], np.where(RNG.uniform(size=(150, 10)) < 0.2, NAN, VALUES[:, 1:])
MEMBERS = Samples(WITH_GAPS, missing="drop")


def test_a_prediction_is_that_of_the_members_that_are_there():
    u = kcalib.pit_values(Y, MEMBERS, seed=3)
    for i in range(12):
        row, alone = MEMBERS.take(slice(i, i + 1)), Samples(WITH_GAPS[i : i + 1, ~np.isnan(WITH_GAPS[i])])
        y, levels = Y[i : i + 1], [0.05, 0.1, 0.3, 0.5, 2 / 3, 0.8, 0.95]
        np.testing.assert_array_equal(row.quantile(levels), alone.quantile(levels))
        np.testing.assert_array_equal(row.cdf(y), alone.cdf(y))
        assert row.standard_deviation() == pytest.approx(alone.standard_deviation())
        for fair in (False, True):
            assert kcalib.crps(y, row, fair=fair) == pytest.approx(kcalib.crps(y, alone, fair=fair))
        rank = np.sum(alone.samples < y)
        assert rank / (alone.size + 1) < u[i] < (rank + 1) / (alone.size + 1)
    vectors = Samples([[[1.0, 2.0], [NAN, 5.0], [3.0, 2.0]]], missing="drop")
    assert kcalib.crps([[1.0, 2.0]], vectors) == pytest.approx((0 + 2) / 2 - 2 / 4)
    # Weights 1, 2, 5 of 8 without the second: 1 / 6 and 5 / 6.
    weighted = Samples(np.ma.masked_equal([[0.0, 9.0, 6.0]], 9.0), [0.125, 0.25, 0.625], missing="drop")
    assert weighted.expected_value()[0, 0] == pytest.approx(5.0)
    assert Samples(VALUES, missing="drop").weights is None


def test_points_are_means_of_quantile_functions():
    complete, thin = [[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]], [[3.0, NAN, 1.0, NAN, 2.0, NAN]]
    both = Samples([*complete, *thin], missing="drop")
    np.testing.assert_allclose(both.wasserstein_points(), np.repeat(complete, 2, axis=0) / 6**0.5)
    # Four cells of (0, 4): 0, 0, 4, 4; of (0, 3, 6): 0, 2, 4, 6. The exact distance is that on twelfths.
    pair = Samples([[0.0, 4.0, NAN, NAN], [0.0, 3.0, 6.0, NAN]], missing="drop")
    np.testing.assert_allclose(pair.wasserstein_points() * 2, [[0, 0, 4, 4], [0, 2, 4, 6]])
    assert wasserstein_distance(pair)[0, 1] == pytest.approx((2 / 12 * 9 + 2 / 12 * 1 + 4 / 12 * 4) ** 0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Samples([[1.0, NAN]]), r"`samples\[0, 1\]` is nan, expected .*pass missing='drop' to leave out"),
        (lambda: Samples(np.ma.masked_equal([[1, 2]], 2)), r"`samples\[0, 1\]` is nan.*missing='drop'"),
        (lambda: Samples([[1.0, 2.0], [NAN, NAN]], missing="drop"), r"`samples\[1\]` has no member.*drop the"),
        (lambda: Samples([[1.0, NAN]], [0.0, 1.0], missing="drop"), r"`weights\[0\]` are 0 for all members"),
        (lambda: Samples([[1.0, np.inf]], missing="drop"), r"`samples\[0, 1\]` is inf, expected a finite number"),
        (lambda: Samples([[1.0]], missing="fill"), "`missing` is 'fill', expected one of 'refuse', 'drop'"),
        (lambda: kcalib.crps([1.0], Samples([[1.0, NAN]], missing="drop"), fair=True), r"`y_pred\[0\]` has 1 member"),
        (lambda: source({"y": Y, "mean": Y, "std": Y}, missing="drop"), "there is Normal.*missing= is for members"),
        (lambda: source({"labels": [0, 1], "probs": [0.5, 0.4]}, missing="drop"), "there are no predicted samples"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_states_hold_members_that_are_missing():
    whole = ForecastState(n_columns=16, fair=True).update(Y, MEMBERS)
    e = whole.result()
    assert e.crps == pytest.approx(kcalib.crps(Y, MEMBERS, fair=True), rel=1e-12)
    assert e.interval_coverage == kcalib.evaluate(Y, MEMBERS, method="ranks").interval_coverage
    in_batches = ForecastState(n_columns=16, fair=True)
    for begin in (0, 40, 100):
        rows = slice(begin, {0: 40, 40: 100, 100: 150}[begin])
        in_batches = ForecastState.from_bytes(in_batches.update(Y[rows], MEMBERS.take(rows)).to_bytes())
    assert in_batches.to_bytes() == whole.to_bytes()
    with pytest.raises(ValueError, match="Samples of numbers with weights"):
        ForecastState().update([0.0], Samples([[0.0, 1.0]], [0.3, 0.7]))


def test_sources_files_and_the_command_drop_members(tmp_path, capsys):
    expected = kcalib.crps(Y, MEMBERS)
    for samples in (source((Y, MEMBERS)), source({"y": Y, "samples": WITH_GAPS}, missing="drop")):
        part = samples.read(10, 60)[1]
        np.testing.assert_array_equal(part.weights, MEMBERS.weights[10:60])
        joined = [pred.weights for _, pred in samples.chunks(70)]
        np.testing.assert_array_equal(np.concatenate(joined), MEMBERS.weights)
    npz, csv, normal = (str(tmp_path / name) for name in ("a.npz", "b.csv", "c.npz"))
    np.savez(npz, y=Y, samples=WITH_GAPS)
    np.savez(normal, y=Y, mean=Y, std=np.ones(150))
    cells = [[repr(float(y)), *("" if np.isnan(x) else repr(float(x)) for x in row)] for y, row in zip(Y, WITH_GAPS)]
    header = ["y", *(f"samples_{k}" for k in range(10))]
    (tmp_path / "b.csv").write_text("\n".join(",".join(row) for row in [header, *cells]))
    for file in (npz, csv):
        assert main(["evaluate", file]) == 1
        assert "--missing drop" in capsys.readouterr().err
        for options in ([], ["--stream"]):
            assert main(["evaluate", "--json", "--missing", "drop", *options, file]) == 0
            (model,) = json.loads(capsys.readouterr().out)["models"]
            assert model["crps"] == pytest.approx(expected, rel=1e-12)
    assert main(["evaluate", "--missing", "drop", normal]) == 1
    assert "there is Normal of array 'mean' and array 'std', but --missing is for members" in capsys.readouterr().err


def test_ranks_are_among_the_members_that_are_there():
    assert kcalib.calibration_test(Y, MEMBERS, method="ranks", seed=0).pvalue > 0.01
    assert kcalib.calibration_test(3 * Y, MEMBERS, method="ranks", seed=0).finding == "over-confident"
    models = {"with gaps": MEMBERS, "complete": Samples(VALUES[:, 1:]), "normal": Normal(0 * Y, 1.0)}
    compared = kcalib.compare(Y, models, metric=kcalib.methods.CRPS(fair=True))
    assert not compared.difference("with gaps", "complete").distinguishable
