"""What is suggested for a mistype, and rows that --normalize divides by their sums."""

import json

import numpy as np
import pytest
from command_runs import error_line, ran, usage_error

import kcalib
from kcalib._command.files import open_file


@pytest.mark.parametrize(
    "words, meant",
    [
        (("evalute", "m.npz"), "evaluate"),
        (("evaluate", "m.npz", "--bandwith", "2"), "--bandwidth"),
        (("evaluate", "m.npz", "--JSN"), "--json"),
        (("compare", "m.npz", "--metrik=ece"), "--metric"),
        (("evaluate", "m.npz", "--method", "spectral"), "spectrum"),
        (("compare", "m.npz", "--metric", "briers"), "brier_score"),
        (("evaluate", "m.npz", "--something-else"), None),
        (("compare", "m.npz", "--metric", "xyz"), None),
        (("--verson",), "--version"),
        (("evaluate", "m.npz", "--lens", "toplabel"), "top-label"),
        (("evaluate", "m.npz", "--lens", "class_wise:1"), "class-wise"),
    ],
)
def test_the_nearest_option_is_suggested(capsys, words, meant):
    message = usage_error(capsys, *words)
    assert (f"; did you mean {meant}?" in message) == (meant is not None)
    assert ("did you mean" in message) == (meant is not None)


def test_options_come_after_the_command(capsys):
    message = usage_error(capsys, "--json", "evaluate", "m.npz")
    assert "unrecognized arguments: --json; put options after the COMMAND" in message


def test_an_unknown_option_shows_the_usage_of_its_command(capsys):
    assert usage_error(capsys, "update", "s.kcalib", "m.npz", "--stream").startswith("kcalib update: error: ")


def test_no_family_is_suggested_where_a_single_name_is_wanted(tmp_path, capsys):
    path = tmp_path / "m.csv"
    path.write_text("prob_0,prob_1,truth\n0.5,0.5,1\n0.2,0.8,0\n")
    ran("evaluate", path, "--labels", "prob", code=1)
    assert error_line(capsys).endswith("columns 'prob_0', 'prob_1', 'truth'; did you mean 'prob_1'?")
    ran("evaluate", path, "--probs", "prb", "--labels", "truth", code=1)
    assert error_line(capsys).endswith("; did you mean 'prob'?")
    np.savez(tmp_path / "m.npz", prob_0=[0.5, 0.8], truth=[1, 0])
    ran("evaluate", tmp_path / "m.npz", "--probs", "prob", code=1)
    assert error_line(capsys).endswith("the arrays 'prob_0', 'truth'; did you mean 'prob_0'?")


@pytest.mark.parametrize("command", [("evaluate",), ("evaluate", "--stream"), ("update", "s.kcalib"), ("show",)])
def test_the_nearest_file_is_suggested(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Model_1.npz").touch()
    ran(*command, "model1.npz", code=1)
    assert error_line(capsys) == "model1.npz: No such file or directory; did you mean Model_1.npz?"
    ran(*command, "other.npz", code=1)
    assert error_line(capsys) == "other.npz: No such file or directory"
    ran(*command, "nowhere/model1.npz", code=1)
    assert error_line(capsys) == "nowhere/model1.npz: No such file or directory; there is no folder 'nowhere'"
    for mistype in ("Model_1.nzp", "model_1"):  # and not that there is no such format
        ran(*command, mistype, code=1)
        assert error_line(capsys) == f"{mistype}: No such file or directory; did you mean Model_1.npz?"


@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_the_nearest_column_is_suggested(tmp_path, monkeypatch, capsys, stream):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text("probs_0,probs_1,label\n0.5,0.5,0\n0.2,0.8,1\n")
    np.savez("n.npz", mean=np.zeros(4), spread=np.ones(4), y=np.zeros(4))
    cases = [("m.csv", "--labels", "lable", "'label'"), ("m.csv", "--probs", "prosb", "'probs'")]
    for file, option, mistype, meant in [*cases, ("n.npz", "--std", "spraed", "'spread'")]:
        ran("evaluate", file, option, mistype, *stream, code=1)
        assert error_line(capsys).endswith(f"; did you mean {meant}?")
    ran("evaluate", "m.csv", "--labels", "xyz", *stream, code=1)
    assert "did you mean" not in error_line(capsys)


def test_the_nearest_file_of_labels_is_suggested(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("probs.npy", np.full((4, 2), 0.5))
    np.save("my_labels.npy", np.array([0, 1, 1, 0]))
    ran("evaluate", "probs.npy", "--labels", "my_label.npy", code=1)
    assert "(there is no file 'my_label.npy'; did you mean my_labels.npy?)" in error_line(capsys)


def rounded():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), size=300)
    return (rng.uniform(size=(300, 1)) > np.cumsum(p, axis=1)).sum(axis=1), (0.9 * p).round(2)


@pytest.mark.parametrize("form", ["npz", "npy", "csv", "percent"])
@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_rows_are_divided_by_their_sums(tmp_path, monkeypatch, capsys, form, stream):
    monkeypatch.chdir(tmp_path)
    y, p = rounded()
    file = "m.npy" if form == "npy" else "m.csv" if form == "csv" else "m.npz"
    if form == "npy":
        np.save("m.npy", p)
        np.save("labels.npy", y)
    elif form == "csv":
        lines = [",".join(map(str, (*row, label))) for row, label in zip(p.tolist(), y.tolist())]
        (tmp_path / file).write_text("\n".join(["p_0,p_1,p_2,p_3,p_4,y", *lines]) + "\n")
    else:
        np.savez(file, probs=(p * 100).round().astype(int) if form == "percent" else p, y=y)
    ran("evaluate", file, *stream, code=1)
    assert ("expected a probability" if form == "percent" else "(--normalize)") in error_line(capsys)
    ran("evaluate", file, "--normalize", "--json", *stream)
    found = json.loads(capsys.readouterr().out)["models"][0]["brier_score"]
    assert found == pytest.approx(kcalib.brier_score(y, p / p.sum(axis=1, keepdims=True)), rel=1e-12)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"logits": np.ones((4, 3))}, "not for logits in array 'logits'"),
        ({"probs": np.full(4, 0.5)}, "rows of probabilities, one for each class"),
        ({"mean": np.zeros(4), "std": np.ones(4)}, "leave it out"),
        ({"probs": np.array([[0.5, 0.5], [0, 0], [1, 1], [2, 2]])}, "`probs[1]` sums to 0, expected 1"),
        ({"probs": np.array([[0.5, 0.5], [2, -1], [1, 1], [2, 2]])}, "`probs[1, 0]` is 2, expected a probability"),
        ({"probs": np.array([[0.5, 0.5], [np.nan, 1], [1, 1], [2, 2]])}, "`probs[1, 0]` is nan"),
    ],
)
@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_what_cannot_be_normalized_is_an_error(tmp_path, monkeypatch, capsys, arrays, message, stream):
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", y=np.array([0, 1, 1, 0]), **arrays)
    ran("evaluate", "m.npz", "--normalize", *stream, code=1)
    found = error_line(capsys)
    assert message in found


def test_rows_over_their_sums_have_another_fingerprint(tmp_path):
    y, p = rounded()
    np.savez(tmp_path / "m.npz", probs=p / p.sum(axis=1, keepdims=True), y=y)
    path = str(tmp_path / "m.npz")
    one, other = (open_file(path, {"normalize": normalize}).fingerprint() for normalize in (False, True))
    assert one != other
