"""Files of predicted distributions: names of their columns, options that name them, and messages."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from file_contents import error_of, read_contents

from kcalib._input.parameters import FAMILIES

Y = np.array([0.5, -1.25, 3.0, 2.0, 0.0])
MEAN = np.array([0.25, -1.0, 2.5, 2.0, 1.0])
STD = np.array([1.0, 0.5, 0.25, 2.0, 1.5])
SAMPLES = np.arange(15.0).reshape(5, 3)


def write_csv(path, **columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def write_parquet(path, **columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def assert_contents(contents, family, true=Y, **parameters):
    assert contents.family == family and contents.parameters.keys() == parameters.keys()
    np.testing.assert_array_equal(contents.y_true, true)
    for name, values in parameters.items():
        np.testing.assert_array_equal(contents.parameters[name], values)


# -- what is found (tests/streaming/sources has the formats)


def test_a_target_beside_columns_of_vectors(tmp_path):
    """The predictions are of numbers."""
    columns = {"y": Y, "y_0": Y, "y_1": Y, **{f"samples_{i}": SAMPLES[:, i] for i in range(3)}}
    assert_contents(read_contents(write_csv(tmp_path / "m.csv", **columns)), "Samples", samples=SAMPLES)


def test_names_in_order_of_preference(tmp_path):
    for family, parameters in FAMILIES[:3]:
        for i in range(2):
            arrays = {names[i]: SAMPLES if option == "samples" else STD for option, names in parameters.items()}
            contents = read_contents(write_npz(tmp_path / "m.npz", targets=Y, **arrays))
            assert_contents(contents, family, **{option: arrays[names[i]] for option, names in parameters.items()})
    # A complete family before an incomplete one, and normal distributions before samples.
    assert_contents(
        read_contents(write_npz(tmp_path / "m.npz", y=Y, mean=MEAN, samples=SAMPLES)), "Samples", samples=SAMPLES
    )
    path = write_npz(tmp_path / "m.npz", y=Y, mu=MEAN, std=STD, y_mean=MEAN + 1, samples=SAMPLES)
    assert_contents(read_contents(path), "Normal", mean=MEAN + 1, std=STD)
    assert_contents(read_contents(path, samples="samples"), "Samples", samples=SAMPLES)


def test_options_name_columns(tmp_path):
    path = write_npz(tmp_path / "m.npz", truth=Y, y_pred=MEAN, error=STD, draws=SAMPLES, std=STD + 1, intensity=STD)
    assert_contents(read_contents(path, labels="truth", mean="y_pred"), "Normal", mean=MEAN, std=STD + 1)
    assert_contents(read_contents(path, labels="truth", mean="y_pred", std="error"), "Normal", mean=MEAN, std=STD)
    assert_contents(read_contents(path, labels="truth", samples="draws"), "Samples", samples=SAMPLES)
    assert_contents(read_contents(path, labels="truth", rate="intensity"), "Poisson", rate=STD)
    np.save(tmp_path / "targets.npy", Y)
    contents = read_contents(path, labels=str(tmp_path / "targets.npy"), samples="draws")
    assert_contents(contents, "Samples", samples=SAMPLES)
    assert "targets.npy" in contents.description
    # A prefix of columns; a name itself goes before the columns that it begins.
    columns = {"y": Y, "m": MEAN, **{f"m_{i}": SAMPLES[:, i] for i in range(3)}, "s": STD}
    path = write_csv(tmp_path / "m.csv", **columns)
    assert_contents(read_contents(path, mean="m", std="s"), "Normal", mean=MEAN, std=STD)
    path = write_csv(tmp_path / "n.csv", **{name: values for name, values in columns.items() if name != "m"})
    assert_contents(read_contents(path, samples="m"), "Samples", samples=SAMPLES)


def test_class_probabilities_beside_distributions(tmp_path):
    p = np.full((5, 2), 0.5)
    labels = np.array([0, 1, 0, 1, 1])
    path = write_npz(tmp_path / "m.npz", probs=p, mean=MEAN, std=STD, y=labels)
    message = error_of(path)
    assert message == (
        "there are class probabilities or logits, array 'probs', and predicted distributions, Normal of array 'mean' "
        "and array 'std'; choose by --probs or --mean"
    )
    assert read_contents(path, probs="probs").family is None
    assert_contents(read_contents(path, mean="mean"), "Normal", labels, mean=MEAN, std=STD)
    # What is no whole family of distributions does not matter beside class probabilities.
    path = write_npz(tmp_path / "n.npz", probs=p, mean=MEAN, y=labels)
    assert read_contents(path).family is None
    path = write_npz(tmp_path / "o.npz", logits=p, rate=MEAN, y=labels)
    assert "--logits or --rate" in error_of(path)


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_a_mean_is_called_y_pred_beside_a_standard_deviation(tmp_path, form):
    write = write_npz if form == "npz" else write_csv
    path = write(tmp_path / f"m.{form}", y_true=Y, y_pred=MEAN, y_std=STD)
    assert_contents(read_contents(path), "Normal", mean=MEAN, std=STD)
    path = write(tmp_path / f"n.{form}", y_true=[0, 1, 1, 0, 1], y_pred=[0.5, 0.25, 1, 0, 0.5])
    assert read_contents(path).family is None


# -- errors


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_missing_parameters(tmp_path, form):
    noun = "array" if form == "npz" else "column"
    write = write_npz if form == "npz" else write_csv
    path = write(tmp_path / f"m.{form}", y=Y, mean=MEAN)
    assert error_of(path) == (
        f"there is {noun} 'mean', but no {noun} of std; the file has the {noun}s 'y', 'mean', expected one of std, "
        "y_std, sigma; name it by --std; of variances take the square root first"
    )
    path = write(tmp_path / f"m.{form}", y=Y, sigma=STD)
    assert f"there is {noun} 'sigma', but no {noun} of mean" in error_of(path)
    path = write(tmp_path / f"m.{form}", y=Y, other=MEAN)
    assert "for --mean; the file has" in error_of(path, mean="forecast", std="other")
    assert f"there is {noun} 'other', but no {noun} of std" in error_of(path, mean="other")
    message = error_of(path)
    assert f"no {noun} of predictions" in message
    assert "or quantiles such as 0.1 and 0.9, or q10 and q90; name them by --mean and --std" in message
    path = write(tmp_path / f"m.{form}", a=Y, mean=MEAN, std=STD)
    assert f"there is no {noun} of labels" in error_of(path) and "--labels" in error_of(path)
    assert f"there is no {noun} 'b' for --labels" in error_of(path, labels="b")
    assert "--mean and --samples belong to different families" in error_of(path, mean="mean", samples="std")


def test_values_that_are_no_numbers(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("y,mean_0,mean_2,std_0,std_1\n1,0.5,1,1,1\n")
    assert "mean_1 is missing" in error_of(path)
    path = write_npz(tmp_path / "m.npz", y=np.array(["a"] * 5), mean=MEAN, std=STD)
    assert error_of(path) == "`y` has dtype <U1, expected real numbers; convert them to floats"
    path = write_npz(tmp_path / "m.npz", y=Y, mean=MEAN, std=STD.astype(complex))
    assert error_of(path) == "`std` has dtype complex128, expected real numbers; convert them to floats"
    path = write_parquet(tmp_path / "m.parquet", y=Y, mean=[0.5, None, 1.0, 1.0, 1.0], std=STD)
    assert "column 'mean' has no value in row 1" in error_of(path)


def test_a_plain_array_is_no_distribution(tmp_path):
    np.save(tmp_path / "m.npy", SAMPLES)
    message = error_of(tmp_path / "m.npy", samples="samples")
    assert message == (
        "the array has no fields, so --samples names nothing; save predicted distributions as an .npz file of named "
        "arrays"
    )
