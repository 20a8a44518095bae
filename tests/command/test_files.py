"""Every file format gives the arrays that were written, and every bad file a message that helps."""

import csv
import io
import json
import pickle
import re
import sys
import warnings
import zipfile

import numpy as np
import pytest
from file_contents import error_of, read_contents

from kcalib._command.cli import main
from kcalib._command.files import open_file
from kcalib._input import columns
from kcalib._input.columns import FileError
from kcalib._input.labels import prepare
from kcalib.streaming import source

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5], [0.2, 0.5, 0.3], [0.5, 0.125, 0.375]])
Y = np.array([0, 1, 2, 2, 0])


def write_csv(path, header, *rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_parquet(path, **columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def assert_contents(contents, pred=P, true=Y, *, logits=False, classes=None):
    np.testing.assert_array_equal(contents.y_pred, pred)
    np.testing.assert_array_equal(contents.y_true, true)
    assert contents.from_logits is logits
    assert (None if contents.classes is None else contents.classes.tolist()) == classes


# -- npz


@pytest.mark.parametrize("probs", columns.PROBABILITY_NAMES)
def test_npz_names(tmp_path, probs):
    for labels in columns.LABEL_NAMES:
        np.savez(tmp_path / "m.npz", **{probs: P, labels: Y})
        contents = read_contents(tmp_path / "m.npz")
        assert_contents(contents)
        assert repr(probs) in contents.description and repr(labels) in contents.description


@pytest.mark.parametrize("name", columns.LOGIT_NAMES)
def test_npz_logits_by_name(tmp_path, name):
    np.savez_compressed(tmp_path / "m.npz", **{name: np.log(P), "y": Y})
    assert_contents(read_contents(tmp_path / "m.npz"), np.log(P), logits=True)


def test_npz_preferences_and_options(tmp_path):
    np.savez(tmp_path / "m.npz", p=P[::-1], prob=P, logits=np.log(P), y=Y, labels=Y[::-1], other=P * 2, truth=Y + 1)
    path = str(tmp_path / "m.npz")
    assert_contents(read_contents(path), P, Y[::-1])  # `prob` before `p` and before logits, `labels` before `y`
    assert_contents(read_contents(path, probs="other", labels="truth"), P * 2, Y + 1)
    assert_contents(read_contents(path, logits="other"), P * 2, Y[::-1], logits=True)
    assert_contents(read_contents(path, probs="p", from_logits=True), P[::-1], Y[::-1], logits=True)


def test_npz_classes_only_with_labels_of_their_kind(tmp_path):
    names = np.array(["cat", "dog", "eel"])
    np.savez(tmp_path / "a.npz", probs=P, labels=names[Y], classes=names)
    assert_contents(read_contents(tmp_path / "a.npz"), true=names[Y], classes=["cat", "dog", "eel"])
    np.savez(tmp_path / "b.npz", probs=P, labels=Y, classes=names)
    assert_contents(read_contents(tmp_path / "b.npz"))
    np.savez(tmp_path / "c.npz", probs=P, labels=names.astype("S")[Y], classes=names.astype("S"))
    assert_contents(read_contents(tmp_path / "c.npz"), true=names[Y], classes=["cat", "dog", "eel"])
    np.savez(tmp_path / "d.npz", probs=P, labels=Y + 1, classes=[1, 2, 3])
    assert_contents(read_contents(tmp_path / "d.npz"), true=Y + 1, classes=[1, 2, 3])


def test_npz_errors(tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, a=P, b=Y)
    message = error_of(path)
    assert "arrays 'a', 'b'" in message and "probs, probabilities, y_prob" in message and "--probs" in message
    message = error_of(path, probs="a")
    assert "no array of labels" in message and "labels, label, y_true" in message and "--labels" in message
    assert error_of(path, probs="z") == "there is no array 'z' for --probs; the file has the arrays 'a', 'b'"
    assert "'z' for --logits" in error_of(path, logits="z")
    assert "'z' for --labels" in error_of(path, probs="a", labels="z")
    assert "no array or file 'z.npy' for --labels" in error_of(path, probs="a", labels="z.npy")
    np.savez(path)
    assert "the file has no arrays" in error_of(path)


def test_objects_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return exec, ("raise SystemExit('unpickled')",)

    np.savez(tmp_path / "m.npz", probs=P, labels=np.array([Bomb()] * 5, dtype=object))
    message = error_of(tmp_path / "m.npz")
    assert (
        "array 'labels' holds Python objects" in message and "never unpickled" in message and "astype(str)" in message
    )
    np.save(tmp_path / "m.npy", np.array([Bomb()], dtype=object))
    assert "never unpickled" in error_of(tmp_path / "m.npy")
    for suffix in (".npz", ".npy", ".parquet"):
        (tmp_path / f"q{suffix}").write_bytes(pickle.dumps([1.0]))
        assert "is not what its suffix says" in error_of(tmp_path / f"q{suffix}")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz_at_every_length(tmp_path, save):
    save(tmp_path / "m.npz", probs=P, labels=Y)
    content = (tmp_path / "m.npz").read_bytes()
    for length in range(1, len(content), 3):
        (tmp_path / "cut.npz").write_bytes(content[:length])
        message = error_of(tmp_path / "cut.npz")
        assert "truncated or damaged" in message or (length < 4 and "is not what its suffix says" in message)


def test_corrupt_bytes_are_an_error_or_other_numbers(tmp_path):
    np.savez_compressed(tmp_path / "m.npz", probs=P, labels=Y)
    content = (tmp_path / "m.npz").read_bytes()
    rng = np.random.default_rng(0)
    errors = 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        (tmp_path / "bad.npz").write_bytes(damaged)
        try:
            read_contents(tmp_path / "bad.npz")
        except FileError:
            errors += 1
    assert errors > 30


def test_npz_member_that_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as file:
        file.writestr("probs", b"0.5")
        file.writestr("labels", b"1")
    assert "'labels' is not an array" in error_of(tmp_path / "m.npz")


def npz_of(path, compression=zipfile.ZIP_STORED, **members):
    """Members as they are, whatever they say of themselves; a list is several of one name."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as file:
        warnings.simplefilter("ignore")  # of names that are there already
        for name, some in members.items():
            for one in some if isinstance(some, list) else [some]:
                file.writestr(f"{name}.npy", one)
    return path


def npy_of(array, shape=None, dtype=None):
    """The bytes of an .npy file, whose header may tell another shape or dtype."""
    file = io.BytesIO()
    header = {"descr": dtype or array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_2_0(file, header)
    return file.getvalue() + array.tobytes()


def both_readers(path, match):
    """Files that are read at once, and in pieces, have one message."""
    with pytest.raises(FileError, match=match):
        read_contents(path)
    with pytest.raises(FileError, match=f"{path.name}: {match}"):
        list(source(path).chunks(2))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2**63,), "<f8"), ((2**62, 2), "<f8"), ((5, 2**62), "<f8"), ((2**70, 3), "<f8"), ((-5, 3), "<f8")]
    + [((5, 4), "<f8"), ((2**60, 3), "|S0"), ((5, 3), "|V0")],
)
def test_shapes_that_the_bytes_are_too_few_for(tmp_path, shape, dtype, compression):
    for name in ("probs", "labels"):
        members = {"probs": npy_of(P), "labels": npy_of(Y)}
        members[name] = npy_of({"probs": P, "labels": Y}[name], shape, dtype)
        path = npz_of(tmp_path / "m.npz", compression, **members)
        both_readers(path, rf"array '{name}' is truncated or damaged \(.*shape {re.escape(str(shape))} of .*write it")


def test_two_arrays_of_one_name(tmp_path):
    path = npz_of(tmp_path / "m.npz", probs=[npy_of(P), npy_of(P[::-1])], labels=npy_of(Y))
    both_readers(path, "two arrays have the name 'probs'")
    np.savez(path, probs=P, labels=Y)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("labels", b"x")  # is called so, too
    both_readers(path, "two arrays have the name 'labels'")


# -- npy


def test_npy_structured(tmp_path):
    array = np.zeros(5, [("probs", "f8", 3), ("y", "i4"), ("p1", "f8"), ("p0", "f8")])
    array["probs"], array["y"], array["p0"], array["p1"] = P, Y, P[:, 0], P[:, 1]
    np.save(tmp_path / "m.npy", array)
    assert_contents(read_contents(tmp_path / "m.npy"))
    assert_contents(read_contents(tmp_path / "m.npy", probs="p"), P[:, :2])
    assert "columns 'probs', 'y', 'p1', 'p0'" in error_of(tmp_path / "m.npy", probs="q")


def test_npy_plain_with_labels_beside_it(tmp_path):
    np.save(tmp_path / "resnet.npy", P)
    np.save(tmp_path / "resnet_logits.npy", P * 3)
    message = error_of(tmp_path / "resnet.npy")
    assert (
        "the array has no labels" in message and "--labels FILE.npy" in message and "labels.npy, label.npy" in message
    )
    np.save(tmp_path / "y.npy", Y)
    assert_contents(read_contents(tmp_path / "resnet.npy"))
    np.save(tmp_path / "labels.npy", Y[::-1])
    contents = read_contents(tmp_path / "resnet_logits.npy")
    assert_contents(contents, P * 3, Y[::-1], logits=True)
    assert "labels.npy" in contents.description
    assert_contents(read_contents(tmp_path / "resnet.npy", labels=str(tmp_path / "y.npy")))
    assert_contents(read_contents(tmp_path / "resnet.npy", from_logits=True), P, Y[::-1], logits=True)
    assert "there is no file 'nope.npy'" in error_of(tmp_path / "resnet.npy", labels="nope.npy")
    assert "--probs names nothing" in error_of(tmp_path / "resnet.npy", probs="p")
    assert "--from-logits" in error_of(tmp_path / "resnet.npy", logits="p")


def test_npy_that_claims_to_be_huge(tmp_path):
    np.save(tmp_path / "m.npy", P)
    content = (tmp_path / "m.npy").read_bytes()
    assert b"(5, 3), }             " in content
    (tmp_path / "m.npy").write_bytes(content.replace(b"(5, 3), }             ", b"(5000000000000, 30), }"))
    assert re.search("does not fit into memory|truncated or damaged", error_of(tmp_path / "m.npy"))


# -- csv


def family(pattern, columns=3):
    return [pattern.format(i) for i in range(columns)]


@pytest.mark.parametrize("pattern", ["probs_{}", "prob_{}", "p{}", "probs.{}", "y_proba_{}", "logits_{}", "logit{}"])
def test_csv_families(tmp_path, pattern):
    path = write_csv(
        tmp_path / "m.csv", ["id", *family(pattern), "y"], *([i, *p, y] for i, (p, y) in enumerate(zip(P, Y)))
    )
    assert_contents(read_contents(path), logits=pattern.startswith("logit"))


def test_csv_family_is_sorted_by_number(tmp_path):
    order = np.random.default_rng(0).permutation(12)
    q = np.random.default_rng(1).dirichlet(np.ones(12), size=4)
    header = [f"prob_{i}" for i in order]
    path = write_csv(tmp_path / "m.csv", [*header, "label"], *([*row[order], 11] for row in q))
    assert_contents(read_contents(path), q, [11] * 4)


def test_csv_family_by_class_name(tmp_path):
    names = np.array(["dog", "cat", "sea eel"])
    path = write_csv(tmp_path / "m.csv", [*(f"prob_{n}" for n in names), "y"], *([*p, names[y]] for p, y in zip(P, Y)))
    assert_contents(read_contents(path), true=names[Y], classes=["dog", "cat", "sea eel"])
    # Labels that look like booleans are still names here.
    path = write_csv(tmp_path / "b.csv", ["p_True", "p_False", "y"], [0.25, 0.75, "True"], [0.5, 0.5, "False"])
    assert_contents(read_contents(path), [[0.25, 0.75], [0.5, 0.5]], ["True", "False"], classes=["True", "False"])


def test_csv_binary_column_and_what_goes_first(tmp_path):
    path = write_csv(tmp_path / "m.csv", ["y_true", "p", "p_value", "p_adjusted"], [1, 0.25, 7, 8], [0, 1e-3, 7, 8])
    assert_contents(read_contents(path), [0.25, 1e-3], [1, 0])
    # `prob` beside prob_0, prob_1 is the probability of the predicted class.
    path = write_csv(tmp_path / "n.csv", ["y", "prob", "prob_0", "prob_1"], [1, 0.75, 0.75, 0.25], [0, 0.5, 0.5, 0.5])
    assert_contents(read_contents(path), [[0.75, 0.25], [0.5, 0.5]], [1, 0])
    assert_contents(read_contents(path, probs="prob"), [0.75, 0.5], [1, 0])
    assert_contents(read_contents(path, logits="prob_1", labels="prob_0"), [0.25, 0.5], [0.75, 0.5], logits=True)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "0", "+2", "-1"], np.array([1, 0, 2, -1])),
        (["1.0", "0", "2.5"], np.array([1.0, 0.0, 2.5])),
        (["True", "false", "TRUE"], np.array([True, False, True])),
        (["a", "1", "b c"], np.array(["a", "1", "b c"])),
        (["1_0", "1_1"], np.array(["1_0", "1_1"])),
        (["9" * 30, "1"], np.array([float("9" * 30), 1.0])),
    ],
)
def test_csv_labels(tmp_path, cells, expected):
    path = write_csv(tmp_path / "m.csv", ["p", "y"], *([0.5, cell] for cell in cells))
    contents = read_contents(path).y_true
    assert contents.dtype.kind == expected.dtype.kind
    np.testing.assert_array_equal(contents, expected)


def test_csv_dialects_that_are_no_error(tmp_path):
    text = '\ufeffy, p_0 ,"p_1"\r\n1, 0.25,.75\r\n\r\n0,"1","0"\r\n'
    (tmp_path / "m.CSV").write_bytes(text.encode())
    assert_contents(read_contents(tmp_path / "m.CSV"), [[0.25, 0.75], [1, 0]], [1, 0])


@pytest.mark.parametrize(
    ("header", "options", "columns"),
    [
        ("label,prob,prob_dog,prob_cat", {}, "fdc"),  # `prob` is the probability of the predicted class
        ("label,prob,prob_dog,prob_cat", {"probs": "prob_"}, "fdc"),
        ("label,prob,prob_dog,prob_cat", {"probs": "prob_*"}, "fdc"),
        ("label,prob_dog,prob_max,prob_cat", {}, "dfc"),
        ("label,.pred_class,.pred_dog,.pred_cat", {}, "ldc"),
        ("label,.pred,.pred_dog,.pred_cat", {"probs": ".pred_"}, "ldc"),
        ("label,prob_max,prob_cat", {}, "fc"),
        ("label,prob_dog", {"probs": "prob_dog"}, "d"),
        ("label,.pred_cat", {"probs": ".pred_cat"}, "c"),
        ("label,score", {"probs": "score", "positive": "cat"}, "c"),
        ("label,score", {"probs": "score", "positive": "dog"}, "d"),
        ("label,score", {"probs": "score"}, "d"),  # the second of the sorted labels
    ],
)
def test_columns_of_classes_by_name(tmp_path, header, options, columns):
    cat, labels = np.array([0.25, 0.75, 0.5, 0.875]), ["dog", "cat", "cat", "dog"]
    kinds = {"c": cat, "d": 1 - cat, "f": np.maximum(cat, 1 - cat), "l": labels}
    path = write_csv(tmp_path / "m.csv", header.split(","), *zip(labels, *map(kinds.get, columns), strict=True))
    samples, expected = open_file(str(path), options), [0.75, 0.75, 0.5, 0.125]
    # A chunk of one row has labels of one class alone.
    chunks = [] if header == "label,score" and len(options) < 2 else list(samples.chunks(1))
    for parts in ([samples.prepare().as_given()], [prepare(*chunk, classes=[0, 1]).as_given() for chunk in chunks]):
        observed = [p[np.arange(len(p)), y] for y, p in parts]
        np.testing.assert_allclose(np.concatenate(observed or [expected]), expected)


@pytest.mark.parametrize("numbers", [(1, 2, 3), (10, 12, 11), (0, 1, 5)])
def test_numbers_of_columns_are_classes(tmp_path, numbers):
    labels = np.array(numbers)[Y]
    path = write_csv(tmp_path / "m.csv", ["y", *(f"p_{k}" for k in numbers)], *([y, *p] for y, p in zip(labels, P)))
    data = open_file(str(path), {}).prepare()
    np.testing.assert_allclose(data.probabilities[np.arange(5), data.labels], P[np.arange(5), Y])
    assert data.class_names == tuple(sorted(numbers))
    (chunk,) = open_file(str(path), {}).chunks(5)
    np.testing.assert_array_equal(chunk[0], data.labels)


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("label,score", {"probs": "score", "positive": "owl"}, "are not two classes with 'owl'"),
        (
            "label,prob_cat",
            {"probs": "prob_cat", "positive": "dog"},
            "named after the class 'cat', not after --positive",
        ),
        (
            "label,p_cat,p_dog",
            {"positive": "cat"},
            "--positive is for a single column of probabilities, but there are 2",
        ),
    ],
)
def test_positive_classes_that_are_none(tmp_path, header, options, message):
    rows = [["dog", 0.25, 0.75], ["cat", 0.5, 0.5]]
    path = write_csv(tmp_path / "m.csv", header.split(","), *(row[: header.count(",") + 1] for row in rows))
    with pytest.raises(FileError, match=re.escape(message)):
        open_file(str(path), options).prepare()
    np.savez(tmp_path / "m.npz", y=["a", "b"], p=[0.25, 0.5], classes=["b", "a"])
    with pytest.raises(FileError, match="the array `classes` says that the probabilities are of 'a'"):
        open_file(str(tmp_path / "m.npz"), {"positive": "b"}).prepare()


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("p,y\n0.5,1\n\n0.25,0\nhigh,1\n", ["line 5, column 'p' is 'high'", "expected a number", "repair or drop"]),
        ('p,y\n"0,5",1\n', ["line 2, column 'p' is '0,5'"]),
        ("p,y\n0.5,1,\n", ["line 2 has 3 cells, expected 2"]),
        ("p,y\n0.5,1\n0.5,\n", ["line 3, column 'y' is empty", "class label"]),
        ("a,b\n0.5,1\n", ["no column of predictions", "columns 'a', 'b'", "probs_0, probs_1", "--probs or --logits"]),
        ("p,b\n0.5,1\n", ["no column of labels", "columns 'p', 'b'", "labels, label, y_true", "--labels"]),
        ("0.5,1\n0.25,0\n", ["the first line, '0.5,1', holds numbers", "add a header"]),
        ("p,y\n", ["there are no rows"]),
        ("\n\n", ["there is no header"]),
        ("p\ty\n0.5\t1\n", ["no commas"]),
        ("p,y,p\n0.5,1,0.5\n", ["2 columns have the name 'p'"]),
        ('p,y\n0.5,"1\n', ["is not CSV"]),
        ("p_0,p_2,y\n0.5,0.5,1\n", ["`y[0]` is 1, expected one of [0, 2], the names of", "have no number 1"]),
        ("p_0,p_00,y\n0.5,0.5,1\n", ["'p_0', 'p_00'", "twice"]),
        ("y_pred,y\n1,1\n0,0\n", ["`y_pred` has dtype int64", "predicted labels"]),
    ],
)  # fmt: skip
def test_csv_errors(tmp_path, text, fragments):
    (tmp_path / "m.csv").write_text(text)
    message = error_of(tmp_path / "m.csv")
    for fragment in fragments:
        assert fragment in message


def test_whole_numbers_are_fine_as_logits_and_in_matrices(tmp_path):
    path = write_csv(tmp_path / "m.csv", ["logit", "p_0", "p_1", "y"], [-2, 1, 0, 1], [3, 0, 1, 0])
    contents = read_contents(path, logits="logit")
    assert_contents(contents, [-2.0, 3.0], [1, 0], logits=True)
    assert contents.y_pred.dtype == np.float64
    assert_contents(read_contents(path), [[1, 0], [0, 1]], [1, 0])


def test_csv_that_is_no_text(tmp_path):
    (tmp_path / "m.csv").write_bytes("p,y\n0.5,ä\n".encode("utf-16"))
    assert "is not UTF-8 text" in error_of(tmp_path / "m.csv")
    (tmp_path / "m.csv").write_bytes(b"p,y\n" + b"0.5," + b"1" * 200_000 + b"\n")
    assert "line 2 is not CSV" in error_of(tmp_path / "m.csv")


def test_csv_missing_family_by_option(tmp_path):
    path = write_csv(tmp_path / "m.csv", ["a_0", "a_1", "y"], [0.25, 0.75, 1])
    assert_contents(read_contents(path, probs="a"), [[0.25, 0.75]], [1])
    assert "no column 'b' or columns b_0, b_1, ... for --probs" in error_of(path, probs="b")


# -- parquet


def test_numbers_beside_columns_of_named_classes(tmp_path):
    named = {f"p_{name}": P[:, i] for i, name in enumerate(["cat", "dog", "eel"])}
    # With named columns, numbers do not say which class is meant.
    message = error_of(write_parquet(tmp_path / "m.parquet", y=Y, **named))
    assert "column 'y' holds int64" in message and "'cat', 'dog', 'eel'" in message


def test_parquet_errors(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "m.parquet"
    write_parquet(path, p=[0.5, 0.5], y=["aXc", "b"])
    path.write_bytes(path.read_bytes().replace(b"aXc", b"a\xffc"))
    assert "column 'y' holds text that is not UTF-8" in error_of(path)
    nested = [[[0.5], [0.5]], [[1.0], [0.0]]]
    assert "column 'p' has lists of lists (list<" in error_of(write_parquet(path, p=nested, y=[0, 1]))
    with pytest.raises(FileError, match=r"m.parquet: column 'p' has lists of lists .*expected one list of numbers"):
        source(path)
    assert "column 'p_1' has dtype <U1" in error_of(write_parquet(path, p_0=[0.5], p_1=["x"], y=[0]))
    schema = pa.schema([("p", pa.float64()), ("p", pa.float64()), ("y", pa.int64())])
    import pyarrow.parquet as pq

    pq.write_table(pa.table([[0.5], [0.5], [1]], schema=schema), path)
    assert "2 columns have the name 'p'" in error_of(path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "m.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert error_of(tmp_path / "m.parquet") == "reading .parquet files needs pyarrow; pip install 'kcalib[parquet]'"


# -- any


def test_files_that_are_none(tmp_path):
    (tmp_path / "plain").touch()
    assert "the suffix is ''" in error_of(tmp_path / "plain")
    for suffix in (".npz", ".npy", ".csv", ".parquet"):
        (tmp_path / f"empty{suffix}").touch()
        assert "is empty (0 bytes)" in error_of(tmp_path / f"empty{suffix}")
    np.save(tmp_path / "m.npy", P)
    (tmp_path / "m.npy").rename(tmp_path / "m.npz")
    assert "is not what its suffix says" in error_of(tmp_path / "m.npz")


def make_rows(names):
    p = np.random.default_rng(0).dirichlet(np.ones(len(names)), size=30).tolist()
    return [(names[i % len(names)], *row) for i, row in enumerate(p)]


@pytest.mark.parametrize("names", [("ok", "fraud"), ("cat", "dog", "emu")])
def test_json_names_the_classes_in_the_order_of_columns(tmp_path, capsys, names):
    write_csv(tmp_path / "m.csv", ["label", *(f"prob_{name}" for name in names)], *make_rows(names))
    assert main(["evaluate", str(tmp_path / "m.csv"), "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["classes"] == list(names)
    assert model["positive_class"] == (names[1] if len(names) == 2 else None)
