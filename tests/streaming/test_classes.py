"""States know their classes: columns in another order are put in order by name, or refused with both orders."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from command_runs import error_line, ran

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, ComparisonState, GroupedState, PredictionSample, load, run, source
from kcalib.streaming._files.format import pack_content, unpack

N, HALF = 600, 300
RNG = np.random.default_rng(0)
FRAUD = RNG.uniform(size=N)
Y = np.where(RNG.uniform(size=N) < FRAUD**2, "fraud", "ok")  # rarer than predicted
P = {"fraud": FRAUD, "ok": 1 - FRAUD}
ORDERS = [["fraud", "ok"], ["ok", "fraud"]]
ROWS = [slice(0, HALF), slice(HALF, N)]
OPTIONS = {"kernel": Exponential(0.3), "n_resamples": 0, "n_columns": 64}
SMALL = ("--bandwidth", "0.3", "--resamples", "0", "--columns", "64")
COMPARED = (*SMALL[:2], *SMALL[4:])
BOTH = r"\['fraud', 'ok'\].*\['ok', 'fraud'\]"


def columns(rows, order):
    return np.stack([P[name][rows] for name in order], axis=1)


def frame(rows, order):
    return pytest.importorskip("pandas").DataFrame({name: P[name][rows] for name in order})


def state(**options):
    return CalibrationState(2, **OPTIONS, **options)


@pytest.fixture(scope="module")
def whole():
    """All rows together, in one order."""
    return state(classes=ORDERS[0]).update(Y, columns(slice(N), ORDERS[0]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two parts in files, whose columns are in another order."""
    monkeypatch.chdir(tmp_path)
    for k, (rows, order) in enumerate(zip(ROWS, ORDERS, strict=True)):
        write_csv(f"{k}.csv", rows, order)
        np.savez(f"{k}.npz", labels=Y[rows], probs=columns(rows, order), classes=order)
        codes = np.array([order.index(label) for label in Y[rows]])
        np.savez(f"codes{k}.npz", labels=codes, probs=columns(rows, order), classes=order)
    return tmp_path


def write_csv(name, rows, order):
    lines = [",".join(["label", *(f"probs_{label}" for label in order)])]
    lines += [",".join([y, *map(repr, p.tolist())]) for y, p in zip(Y[rows], columns(rows, order), strict=True)]
    with open(name, "w") as file:
        file.write("\n".join(lines) + "\n")


def test_the_skce_of_all_rows_is_that_of_arrays_in_memory(whole):
    hits = (Y == "ok").astype(int)
    features = kcalib.methods.FeatureEstimator(n_columns=64)
    expected = kcalib.skce(hits, columns(slice(N), ORDERS[0]), kernel=Exponential(0.3), estimator=features)
    assert whole.skce().value == pytest.approx(expected, rel=1e-9) and expected > 0.01


def test_batches_of_frames_are_put_in_the_order_of_the_first(whole):
    added = state()
    for rows, order in zip(ROWS, ORDERS, strict=True):
        added.update(Y[rows], frame(rows, order))
    assert added == whole and added.options.classes == ("fraud", "ok") and "['fraud', 'ok']" in repr(added)
    assert state(classes=ORDERS[0]).update(Y, frame(slice(N), ORDERS[1])) == whole
    again = CalibrationState.from_bytes(state().update(Y[ROWS[0]], frame(ROWS[0], ORDERS[0])).to_bytes())
    assert again.update(Y[ROWS[1]], frame(ROWS[1], ORDERS[1])) == whole
    with pytest.raises(ValueError, match=r"the columns are the classes \['ham', 'spam'\], expected \['fraud', 'ok'\]"):
        added.update(["ham", "spam"], frame(slice(2), ORDERS[0]).set_axis(["ham", "spam"], axis=1))
    assert added == whole


@pytest.mark.parametrize(
    "make",
    [
        lambda pairs: pairs,
        lambda pairs: [{"labels": y, "probs": p} for y, p in pairs],
        lambda pairs: iter(pairs),
    ],
)
def test_batches_and_arrays_of_a_source_keep_names(whole, make):
    pairs = [(Y[rows], frame(rows, order)) for rows, order in zip(ROWS, ORDERS, strict=True)]
    assert run(state(), source(make(pairs))) == whole
    added = run(state(), source(pairs[0]))
    assert run(added, source({"label": pairs[1][0], "p": pairs[1][1]}), first_row=HALF) == whole
    other = [pairs[0], (pairs[1][0], pairs[1][1].set_axis(["ham", "spam"], axis=1))]
    with pytest.raises(ValueError, match=r"batch 1 has the columns \['ham', 'spam'\], the first one \['fraud', 'ok'\]"):
        run(state(), source(make(other)))


@pytest.mark.parametrize("name", ["{}.csv", "{}.npz", "codes{}.npz"])
def test_sources_in_another_order(folder, whole, name):
    first, second = (source(name.format(k)) for k in range(2))
    assert run(run(state(), first), second, first_row=HALF) == whole
    with pytest.raises(
        ValueError, match=r"has the classes \('ok', 'fraud'\), .* \('fraud', 'ok'\); files of one source"
    ):
        source([name.format(k) for k in range(2)])
    parts = [run(state(part=k), file) for k, file in enumerate((first, second))]
    with pytest.raises(ValueError, match=f"`classes` is {BOTH}.* make both with the same, such as classes="):
        sum(parts)
    merged = sum(run(state(part=k, classes=ORDERS[0]), file) for k, file in enumerate((first, second)))
    assert merged.skce().value == pytest.approx(whole.skce().value, rel=1e-12)


def test_numbers_are_put_in_ascending_order():
    pandas = pytest.importorskip("pandas")
    y, p = (Y == "ok").astype(int), columns(slice(N), ORDERS[0])
    plain = state().update(y, p)
    reversed_frame = pandas.DataFrame({"prob_1": p[:, 1], "prob_0": p[:, 0]})
    assert state().update(y, reversed_frame) == plain
    parts = state().update(y[:HALF], p[:HALF]), state(part=1).update(y[HALF:], reversed_frame[HALF:])
    assert sum(parts).options.classes == (0, 1)


def test_classes_that_a_file_of_an_earlier_version_does_not_say(whole, tmp_path):
    content = unpack(whole.to_bytes(), "")
    (tmp_path / "old.kcalib").write_bytes(pack_content(content._replace(options=content.options | {"classes": None})))
    old = load(tmp_path / "old.kcalib")
    assert old.skce().value == whole.skce().value and repr(old).endswith("classes not known")
    for first, second in ((old, whole), (whole, old)):
        with pytest.raises(ValueError, match=r"`classes` is \['fraud', 'ok'\] in one state and not known"):
            first.copy().merge(second)
    with pytest.raises(ValueError, match=r"the classes \['fraud', 'ok'\], but the state was saved by an earlier"):
        old.update(Y, frame(slice(N), ORDERS[0]), first_row=N)


def test_kernels_between_classes_see_the_names_of_the_first_batch():
    pandas = pytest.importorskip("pandas")
    ages, p = RNG.choice([10, 20, 40], size=90), RNG.dirichlet(np.ones(3), size=90)
    options = OPTIONS | {"target_kernel": Exponential(15.0)}
    named = CalibrationState(3, **options).update(ages, pandas.DataFrame(p, columns=[10, 20, 40]))
    assert named == CalibrationState(3, **options, classes=[10, 20, 40]).update(ages, p)


def test_models_are_compared_class_by_class(folder):
    every = slice(N)
    for k, order in enumerate(ORDERS):
        write_csv(f"all{k}.csv", every, order)
        np.savez(f"all{k}.npz", labels=Y, probs=columns(every, order), classes=order)
    compared = ComparisonState(2, ["a", "b"], **OPTIONS)
    compared.update(Y, {name: frame(every, order) for name, order in zip("ab", ORDERS, strict=True)})
    in_memory = [kcalib.compare(Y, {"a": frame(every, ORDERS[0]), "b": frame(every, ORDERS[1])}, lens=lens)
                 for lens in (None, kcalib.lenses.ClassWise(1))]  # fmt: skip
    read = kcalib.compare({"a": source("all0.csv"), "b": source("all1.npz")})
    for result in (compared.result(), *in_memory, read):
        a, b = result.models
        assert a.value == pytest.approx(b.value, rel=1e-9)
        assert result.difference("a", "b").difference == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match=r"'b': the columns are the classes \[0, 1\], expected \['fraud', 'ok'\]"):
        kcalib.compare({"a": source("all0.csv"), "b": source(((Y == "ok").astype(int), columns(every, ORDERS[0])))})


def test_groups_and_samples_of_predictions(whole):
    group = np.arange(N) % 2
    added = GroupedState(2, **OPTIONS)
    for rows, order in zip(ROWS, ORDERS, strict=True):
        added.update(Y[rows], frame(rows, order), group=group[rows])
    assert added.total == whole
    assert {part.options.classes for part in added.groups.values()} == {("fraud", "ok")}
    other = GroupedState(2, **OPTIONS, part=1).update(Y, frame(slice(N), ORDERS[1]), group=group)
    with pytest.raises(ValueError, match=BOTH):
        added + other
    kernel = PredictionSample(2).update(columns(slice(N), ORDERS[0])).kernel()
    first, second = (PredictionSample(2, part=k).update(frame(ROWS[k], ORDERS[k])) for k in range(2))
    one = PredictionSample(2).update(frame(ROWS[0], ORDERS[0])).update(frame(ROWS[1], ORDERS[1]))
    assert one.kernel() == kernel
    with pytest.raises(ValueError, match="`columns` is"):
        first + second


def test_the_command_keeps_classes(folder, capsys, whole):
    for k in range(2):
        ran("update", "s.kcalib", f"{k}.csv", *SMALL)
        ran("update", f"{k}.kcalib", f"{k}.csv", "--part", k, *SMALL)
        ran("update", f"same{k}.kcalib", f"{k}.csv", "--part", k, "--classes", "fraud,ok", *SMALL)
    capsys.readouterr()
    assert load("s.kcalib") == whole
    ran("merge", "-o", "m.kcalib", "0.kcalib", "1.kcalib", code=1)
    message = error_line(capsys)
    assert "['fraud', 'ok'] in one state and ['ok', 'fraud'] in the other" in message
    assert "make both with the same, such as --classes=fraud,ok" in message  # as was done for these
    ran("merge", "-o", "m.kcalib", "same0.kcalib", "same1.kcalib")
    assert load("m.kcalib").skce().value == pytest.approx(whole.skce().value, rel=1e-12)
    capsys.readouterr()
    ran("show", "s.kcalib", "--json")
    assert json.loads(capsys.readouterr().out)["models"][0]["classes"] == ["fraud", "ok"]


def test_comparisons_of_the_command_keep_classes(folder, capsys):
    for k in range(2):
        os.mkdir(f"part{k}")
        os.rename(f"{k}.csv", f"part{k}/a.csv")
        os.rename(f"{k}.npz", f"part{k}/b.npz")
    for k, name, options in ((0, "0", ()), (1, "1", ()), (1, "same", ("--classes", "fraud,ok"))):
        ran(
            "compare",
            f"part{k}/a.csv",
            f"part{k}/b.npz",
            "--checkpoint",
            f"{name}.kcalib",
            "--part",
            k,
            *COMPARED,
            *options,
        )
    capsys.readouterr()
    ran("merge", "-o", "m.kcalib", "0.kcalib", "1.kcalib", code=1)
    assert "--classes=fraud,ok" in error_line(capsys)
    ran("merge", "-o", "m.kcalib", "0.kcalib", "same.kcalib")
    merged = load("m.kcalib")
    assert merged.options.classes == ("fraud", "ok") and merged.n_samples == N


def test_labels_that_are_text_beside_a_single_column(folder, capsys):
    with open("one.csv", "w") as file:
        file.write("label,prob\n" + "".join(f"{y},{p!r}\n" for y, p in zip(Y, FRAUD.tolist(), strict=True)))
    ran("update", "one.kcalib", "one.csv", *SMALL, code=1)
    assert "pass --classes=A,B,... with the label of each column" in error_line(capsys)
    ran("update", "one.kcalib", "one.csv", *SMALL, "--classes", "ok,fraud")
    assert load("one.kcalib") == state(classes=ORDERS[1]).update(Y, columns(slice(N), ORDERS[1]))
    capsys.readouterr()
    for name in ("0.csv", "0.npz", "codes0.npz"):
        ran("update", "two.kcalib", name, *SMALL, "--classes", "ham,spam", code=1)
        assert "the columns are the classes ['fraud', 'ok'], expected ['ham', 'spam']" in error_line(capsys)
