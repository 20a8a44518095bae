"""Members of ensembles as draws: the fair score wherever there is one, and the test of ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

import kcalib
from kcalib._command.cli import main
from kcalib.distributions import Normal, Samples
from kcalib.methods import CRPS, Ranks
from kcalib.streaming import ForecastState

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(120, 8))
Y, MEMBERS = VALUES[:, 0], VALUES[:, 1:]
FAIR = kcalib.crps(Y, Samples(MEMBERS), fair=True)


def test_ensembles_of_one_law_are_told_apart_by_their_sizes_alone():
    told_apart = {CRPS(): 0, CRPS(fair=True): 0}
    for seed in range(20):
        values = np.random.default_rng(seed).normal(size=(400, 61))
        models = {"10": Samples(values[:, 1:11]), "50": Samples(values[:, 11:])}
        for metric in told_apart:
            told_apart[metric] += kcalib.compare(values[:, 0], models, metric=metric).differences[0].distinguishable
    assert told_apart[CRPS()] == 20 and told_apart[CRPS(fair=True)] <= stats.binom.ppf(0.9999, 20, 0.05)


def test_the_fair_score_is_the_same_everywhere(tmp_path, capsys):
    e = kcalib.evaluate(Y, Samples(MEMBERS), method="ranks")
    assert (e.crps, e.fair) == (FAIR, True) and not kcalib.evaluate(Y, Samples(MEMBERS), method="gamma").fair
    states = [ForecastState(fair=True, n_columns=16, part=part) for part in (0, 1)]
    for state, rows in zip(states, (slice(60), slice(60, None)), strict=True):
        state.update(Y[rows], Samples(MEMBERS[rows]))
    merged = states[0].merge(ForecastState.from_bytes(states[1].to_bytes())).result()
    assert merged.fair and merged.crps == pytest.approx(FAIR, rel=1e-12)
    models = {"members": Samples(MEMBERS), "normal": Normal(np.zeros(120), np.ones(120))}
    compared = kcalib.compare(Y, models, metric=CRPS(fair=True))
    assert compared.model("members").value == pytest.approx(FAIR, rel=1e-12)
    assert compared.model("normal").value == pytest.approx(kcalib.crps(Y, models["normal"]), rel=1e-12)

    files = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    np.savez(files[0], y=Y, samples=MEMBERS)
    np.savez(files[1], y=Y, samples=MEMBERS[:, :5])
    state = str(tmp_path / "a.kcalib")
    assert main(["update", "--fair", state, files[0]]) == 0
    capsys.readouterr()
    for command in (["evaluate", "--fair", files[0]], ["evaluate", "--stream", "--fair", files[0]], ["show", state]):
        assert main([*command, "--json"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert model["fair"] and model["crps"] == pytest.approx(FAIR, rel=1e-12)
    assert main(["compare", "--metric", "crps", "--fair", *files, "--json"]) == 0
    (model, _) = json.loads(capsys.readouterr().out)["comparison"]["models"]
    assert model["value"] == pytest.approx(FAIR, rel=1e-12)


def test_a_fair_score_of_what_has_no_members_is_refused(tmp_path, capsys):
    normal = Normal(Y, np.ones(120))
    for call in (
        lambda: kcalib.crps(Y, normal, fair=True),
        lambda: kcalib.compare(Y, {"a": normal, "b": normal}, metric=CRPS(fair=True)),
        lambda: ForecastState(fair=True).update(Y, normal),
    ):
        with pytest.raises(ValueError, match="`fair` is .*leave it out"):
            call()
    with pytest.raises(ValueError, match="`fair`"):
        ForecastState(fair=True).update(Y, Samples(MEMBERS)).merge(ForecastState(part=1).update(Y, Samples(MEMBERS)))
    with pytest.raises(TypeError, match="`fair` is 1, expected True or False"):
        CRPS(fair=1)
    file = str(tmp_path / "a.npz")
    np.savez(file, y=Y, mean=Y, std=np.ones(120))
    for command in (["evaluate"], ["evaluate", "--stream"], ["update", str(tmp_path / "s.kcalib")]):
        assert main([*command, "--fair", file]) == 1
        assert "holds Normal distributions, but --fair is for samples; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("are_tied", [False, True])
def test_the_level_of_the_test_of_ranks(are_tied):
    n_sets, n_rejected = 100, 0
    for seed in range(n_sets):
        rng = np.random.default_rng(seed)
        values = rng.integers(0, 4, size=(50, 6)) if are_tied else rng.normal(size=(50, 6))
        n_rejected += (
            kcalib.calibration_test(values[:, 0], Samples(values[:, 1:]), method="ranks", seed=seed).pvalue <= 0.05
        )
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], n_sets, 0.05)
    assert low <= n_rejected <= high


def test_what_ranks_find():
    found = {"over-confident": 2 * Y, "under-confident": 0.3 * Y, "predictions too low": Y + 1}
    for finding, targets in found.items():
        result = kcalib.evaluate(targets, Samples(MEMBERS), method="ranks").test
        assert result.pvalue < 0.01 and result.finding == finding
    # All targets are below all of 9 members: (rank + u) / 10 is in the first tenth.
    result = kcalib.calibration_test(np.full(120, -9.0), Samples(VALUES[:, [*range(8), 0]]), method=Ranks(9), seed=0)
    assert result.estimate == pytest.approx((0.9 + 9 * 0.1) / 2) and result.n_resamples == 9


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (([0, 1], [0.2, 0.7]), "for Samples of numbers, not for class probabilities; use 'adaptive'"),
        ((Y, Normal(Y, np.ones(120))), "for Samples of numbers, not for Normal; use 'adaptive'"),
        ((Y[:2], Samples(MEMBERS[:2, :2], [0.3, 0.7])), "for Samples of equal weight; use 'adaptive'"),
    ],
)
def test_ranks_of_what_has_none(data, message):
    with pytest.raises(ValueError, match="^`kernel` has no meaning for the method 'ranks'; leave it out"):
        kcalib.calibration_test(Y, Samples(MEMBERS), method="ranks", kernel=kcalib.kernels.Exponential())
    with pytest.raises(ValueError, match=message):
        kcalib.calibration_test(*data, method="ranks")
    assert kcalib.calibration_test(*data, method="adaptive").pvalue <= 1


def test_the_seed_breaks_ties_of_ranks():
    """All ranks are tied: by each seed they are uniform by themselves."""
    zeros = np.zeros(200), Samples(np.zeros((200, 3)))
    results = [kcalib.calibration_test(*zeros, method="ranks", seed=seed) for seed in (1, 2)]
    assert results[0].estimate != results[1].estimate and min(result.pvalue for result in results) > 1e-3
