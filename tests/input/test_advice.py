"""Messages whose advice works: each call fails with a message, and the call that the message advises does not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import kcalib
from kcalib._command.cli import main
from kcalib.distributions import Beta, Dirichlet, Mixture, Normal, Poisson, Samples
from kcalib.kernels import Exponential
from kcalib.recalibration import (
    PlattScaling,
    QuantileRecalibration,
    ScaleCalibration,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
    save,
)
from kcalib.target_kernels import Draws

P = np.tile([[0.8, 0.15, 0.05], [0.1, 0.8, 0.1]], (5, 1))
Q = np.tile([0.1, 0.9], 5)
Y = np.tile([0, 1], 5)
SURE = np.column_stack([Y, 1 - Y]).astype(float)  # always wrong
MIXTURE = Mixture([0.5, 0.5], [Normal([0.0, 1.0], 1.0), Normal([2.0, 3.0], 1.0)])
score = kcalib.brier_score

ADVICE = {
    "labels of no class": (
        lambda: score(np.tile([0, -1, 1, 0, 1], 2), Q),
        r"is -1, .*3 different labels for 2 classes: drop samples without a label first",
        [lambda: score(np.tile([0, 1, 0, 1], 2), Q[np.tile([0, 1, 1, 1, 1], 2) > 0][:8])],
    ),
    "labels of a class without probabilities": (
        lambda: score([0, 1, 2] * 3 + [3], P),
        "4 different labels for 3 classes: .* or pass the probability of every class",
        [lambda: score([0, 1, 2] * 3 + [3], np.c_[P, np.zeros(10)])],
    ),
    "-1 and 1": (
        lambda: score(2 * Y - 1, Q),
        r"pass classes=\[-1, 1\]",
        [lambda: score(2 * Y - 1, Q, classes=[-1, 1])],
    ),
    "1 to 3": (
        lambda: score(Y + 1 + (np.arange(10) == 9), P),
        r"subtract 1, or pass classes=range\(1, 4\)",
        [
            lambda: score(Y + (np.arange(10) == 9), P),
            lambda: score(Y + 1 + (np.arange(10) == 9), P, classes=range(1, 4)),
        ],
    ),
    "other numbers": (
        lambda: score(10 * Y, P),
        "pass classes= with the label of each of the 3 columns",
        [lambda: score(10 * Y, P, classes=[0, 10, 20])],
    ),
    "booleans": (lambda: score(Y > 0, P), r"pass integers 0\.\.2", [lambda: score((Y > 0).astype(int), P)]),
    "strings": (
        lambda: score(np.array(["a", "b"])[Y], P),
        "pass classes= with the label of each column",
        [lambda: score(np.array(["a", "b"])[Y], P, classes=["a", "b", "c"])],
    ),
    "more strings than classes": (
        lambda: score(["a", "b", "c", "d", "a"] * 2, P),
        "holds 4 distinct strings.*drop the samples of other labels, or pass the probability of every class",
        [
            lambda: score(["a", "b", "c", "a"] * 2, P[:8]),
            lambda: score(["a", "b", "c", "d", "a"] * 2, np.c_[P, np.zeros(10)]),
        ],
    ),
    "classes of another type": (
        lambda: score(Y, P, classes=["0", "1", "2"]),
        "write both as numbers, or both as strings",
        [lambda: score(Y, P, classes=[0, 1, 2]), lambda: score(Y.astype(str), P, classes=["0", "1", "2"])],
    ),
    "rounded predictions": (
        lambda: score(Y, SURE[:, 0].astype(int)),
        r"or y_pred\.astype\(float\) if 0 and 1 are meant as probabilities",
        [lambda: score(Y, SURE[:, 0].astype(int).astype(float))],
    ),
    "percentages": (lambda: score(Y, 100 * P), "divide percentages by 100", [lambda: score(Y, 100 * P / 100)]),
    "logits": (
        lambda: score(Y, 9 * P - 3),
        "for logits pass from_logits=True",
        [lambda: score(Y, 9 * P - 3, from_logits=True)],
    ),
    "errors of arithmetic": (
        lambda: score(Y, Q + [1e-4, 0.1001] * 5),
        r"clip to \[0, 1\]",
        [lambda: score(Y, np.clip(Q + [1e-4, 0.1001] * 5, 0, 1))],
    ),
    "sums": (lambda: score(Y, 0.9001 * P), "normalise the rows", [lambda: score(Y, P / P.sum(axis=1, keepdims=True))]),
    "a row of zeros": (
        lambda: score(Y, np.r_[P[:-1], [[0, 0, 0]]]),
        "sums to 0, .*; drop such rows first$",
        [lambda: score(Y[:-1], P[:-1])],
    ),
    "transposed": (lambda: score(Y, P.T), r"pass y_pred\.T$", [lambda: score(Y, P.T.T)]),
    "labels as floats": (
        lambda: score(Y, 2.0 * Y),
        "pass the output of predict_proba instead of predicted labels$",
        [lambda: score(Y, P)],
    ),
    "columns of other classes": (
        lambda: TemperatureScaling().fit(Y, P).transform(P[:, :2]),
        "of 2 classes, but this TemperatureScaling was fitted to probabilities of 3 classes",
        [lambda: TemperatureScaling().fit(Y, P).transform(P)],
    ),
    "arguments of save": (
        lambda: save("map.json", TemperatureScaling()),
        r"`recalibrator` is 'map\.json', expected a fitted one; the order is \(recalibrator, path\)",
        [],
    ),
    "swapped": (lambda: score(P, Y), r"the order is \(y_true, y_pred\)", [lambda: score(Y, P)]),
    "large weights": (
        lambda: score(Y, P, sample_weight=np.full(10, 1e20)),
        "rescale the weights",
        [lambda: score(Y, P, sample_weight=np.full(10, 1e20) / 1e20)],
    ),
    "impossible labels": (
        lambda: TemperatureScaling(floor=None).fit(Y, SURE),
        "pass floor=1e-7, .* or logits",
        [
            lambda: TemperatureScaling(floor=1e-7).fit(Y, SURE),
            lambda: TemperatureScaling(floor=None).fit(Y, 20 * SURE, from_logits=True),
        ],
    ),
    "logits after probabilities": (
        lambda: VectorScaling().fit(Y, P).transform(np.log(P), from_logits=True),
        r"pass these \(from_logits=False\)",
        [lambda: VectorScaling().fit(Y, P).transform(P)],
    ),
    "not fitted": (
        lambda: PlattScaling().transform(Q),
        r"call fit\(y_true, y_pred\) first",
        [lambda: PlattScaling().fit(Y, Q).transform(Q)],
    ),
    "folds": (
        lambda: VennAbers(n_folds=11).fit(Y, Q),
        "pass fewer, or None",
        [lambda: VennAbers(n_folds=10).fit(Y, Q), lambda: VennAbers(n_folds=None).fit(Y, Q)],
    ),
    "equal residuals": (
        lambda: ScaleCalibration().fit([1.0, 1.0], Normal([0.0, 0.0], [1.0, 1.0])),
        "pass more samples, or bias=False",
        [lambda: ScaleCalibration(bias=False).fit([1.0, 1.0], Normal([0.0, 0.0], [1.0, 1.0]))],
    ),
    "targets that are means": (
        lambda: ScaleCalibration().fit([0.0, 0.0], Normal([0.0, 0.0], [1.0, 1.0])),
        "holds the predicted means, .* check the targets",
        [],
    ),
    "a scale of mixtures": (
        lambda: ScaleCalibration().fit([1.0, 2.0], MIXTURE),
        "use QuantileRecalibration$",
        [lambda: QuantileRecalibration().fit([1.0, 2.0], MIXTURE)],
    ),
    "a scale of beta distributions": (
        lambda: ScaleCalibration().fit([0.2, 0.4], Beta([1.0, 2.0], [1.0, 1.0])),
        "use TemperatureScaling$",
        [lambda: TemperatureScaling().fit([0.2, 0.4], Beta([1.0, 2.0], [1.0, 1.0]))],
    ),
    "a scale of counts": (
        lambda: ScaleCalibration().fit([1, 2], Poisson([1.0, 2.0])),
        "not closed under shift and scale$",
        [],
    ),
    "no standard deviation": (
        lambda: ScaleCalibration().fit([1.0, 2, 3], Samples([[1.0, 1], [0, 1], [2, 5]])),
        "standard deviation 0 at sample 0, .* drop such samples",
        [lambda: ScaleCalibration().fit([2.0, 3], Samples([[0.0, 1], [2, 5]]))],
    ),
    "shares of 0": (
        lambda: TemperatureScaling().fit([[0.0, 1.0], [0.4, 0.6]], Dirichlet([[1.0, 2.0], [3.0, 4.0]])),
        "move such targets inside, or use criterion='skce'",
        [
            lambda: TemperatureScaling().fit([[0.01, 0.99], [0.4, 0.6]], Dirichlet([[1.0, 2.0], [3.0, 4.0]])),
            lambda: TemperatureScaling(
                criterion="skce", kernel=Exponential(metric="euclidean"), target_kernel=Draws(n_draws=16)
            ).fit([[0.0, 1.0], [0.4, 0.6]], Dirichlet([[1.0, 2.0], [3.0, 4.0]])),
        ],
    ),
}


@pytest.mark.parametrize("name", ADVICE)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_advice_works(name):
    call, message, remedies = ADVICE[name]
    with pytest.raises((TypeError, ValueError), match=message):
        call()
    for remedy in remedies:
        remedy()


@pytest.mark.parametrize(
    ("labels", "probs", "advice"),
    [
        (Y, 0.9001 * P, "--normalize"),
        (Y, 9 * P - 3, "--from-logits"),
        (Y + 1 + (np.arange(10) == 9), P, "--classes=1,2,3"),
        (2 * Y - 1, Q, "--classes=-1,1"),
    ],
)
def test_advice_of_the_command_works(labels, probs, advice, tmp_path, capsys):
    np.savez(tmp_path / "m.npz", labels=labels, probs=probs)
    command = ["evaluate", str(tmp_path / "m.npz"), "--method", "features", "--json"]
    assert main(command) == 1
    assert re.search(f"{advice}(?![-\\w]|,\\d)", capsys.readouterr().err)
    assert main([*command, advice]) == 0


def test_advice_of_the_scikit_learn_wrapper_works():
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    from kcalib.integrations.sklearn import RecalibratedClassifier

    rng = np.random.default_rng(0)
    x, y, groups = rng.normal(size=(60, 2)), np.arange(60) % 3, np.arange(60) // 6
    of_groups = RecalibratedClassifier(LogisticRegression(), cv=GroupKFold(3), ensemble=True)
    assert len(of_groups.fit(x, y, groups=groups).pairs_) == 3
    with pytest.raises(ValueError, match="groups"):
        of_groups.fit(x, y)
    prefit = RecalibratedClassifier(LogisticRegression().fit(x, y), cv="prefit")
    with pytest.raises(ValueError, match=r"no samples of the classes \[2\].*; pass samples of every class, such as"):
        prefit.fit(x[y < 2], y[y < 2])
    assert prefit.fit(x[:30], y[:30]).classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("values", [np.arange(10), P.max(axis=1), Y * 0.5], ids=["numbers", "confidences", "halves"])
def test_a_further_column_of_a_frame_is_named(values: np.ndarray) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(P, columns=["cat", "dog", "owl"]).assign(id=values)
    labels = np.array(["cat", "dog"])[Y]
    with pytest.raises(ValueError, match="drop column 'id', since the others are the probabilities of all classes$"):
        kcalib.evaluate(labels, frame)
    assert kcalib.evaluate(labels, frame.drop(columns="id")).n_classes == 3


def test_an_index_with_duplicates_has_no_advice_that_multiplies_rows() -> None:
    pd = pytest.importorskip("pandas")
    labels, frame = pd.Series(Y, index=np.arange(10) % 3 + 1), pd.DataFrame(P, index=np.arange(10)[::-1] % 3 + 1)
    with pytest.raises(ValueError, match=r"pass the same samples, or, to pair them by position, pass y_true\.to_numpy"):
        score(labels, frame)
    assert score(labels.to_numpy(), frame) == score(Y, P)


TABLES = {
    "columns named by no prefix": (
        "cat,dog,owl,label", "name it by --probs or --logits, several as A,B,C", ["--probs", "cat,dog,owl"],
    ),
    "a missing column of several": ("cat,dog,owl,label", "no column 'dgo'", ["--probs", "cat,dgo,owl"]),
    "confidences": (
        "confidence,dog,owl,correct", "for confidences pass --confidence confidence, and --labels",
        ["--confidence", "confidence", "--labels", "correct", "--classes=dog,cat"],
    ),
    "a gap": ("prob_0,prob_2,prob_3,label", "the columns 'prob_0' to 'prob_3' have no number 1", []),
    "no names": ("0.8,0.15,0.05,cat", "the first line must hold names of columns", []),
    "a label of no column": ("prob_ant,prob_bee,prob_cow,label", "the names of the columns; correct the label", []),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_advice_for_tables(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, message, options = TABLES[case]
    labels = Y if case == "a gap" else np.array(["cat", "dog"])[Y]
    rows = [",".join(map(str, [*p, label])) for p, label in zip(P, labels, strict=True)]
    path = tmp_path / "m.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    works = bool(options) and "missing" not in case
    assert main(["evaluate", str(path), *([] if works else options)]) == 1
    assert message in capsys.readouterr().err
    assert not works or main(["evaluate", str(path), *options]) == 0


def test_a_single_column_is_named_after_its_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, labels in {"spam": ["ham", "spam"], "yes": ["no", "yes"]}.items():
        rows = [f"{q},{labels[y]}" for q, y in zip(Q, Y, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"prob_{name},label", *rows]) + "\n")
    assert main(["evaluate", str(tmp_path / "spam.csv"), str(tmp_path / "yes.csv")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("spam", "yes"):
        assert f"{name}: two classes: the second column, or the only one, is the probability of {name} " in shown


def test_labels_in_a_file_of_another_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "p.npy", P)
    np.savez(tmp_path / "good.npz", y_true=Y)
    assert main(["evaluate", str(tmp_path / "p.npy"), "--labels", str(tmp_path / "good.npz")]) == 1
    assert "good.npz' is no .npy file); name a file by --labels FILE.npy" in capsys.readouterr().err
    np.save(tmp_path / "good.npy", Y)
    assert main(["evaluate", str(tmp_path / "p.npy"), "--labels", str(tmp_path / "good.npy")]) == 0
