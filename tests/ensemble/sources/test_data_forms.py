"""Data come in the forms that programs have, and all of them are one form afterwards."""

import numpy as np
import pytest
from sklearn import datasets

from ensemble import UserError
from ensemble.sources.data_forms import as_arrays

X = np.arange(12.0).reshape(4, 3)
Y = np.array([0, 1, 1, 0])
BATCHES = [(X[:3], Y[:3]), (X[3:], Y[3:])]


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X.tolist(), Y.tolist()),
        {"inputs": X, "labels": Y},
        {"X": X, "y": Y},
        {"images": X, "label": Y},
        {"data": X, "target": Y, "target_names": None, "DESCR": "of whatever"},
        BATCHES,
        iter(BATCHES),
        list(zip(X, Y, strict=True)),
        [{"image": X[:3], "label": Y[:3]}, {"image": X[3:], "label": Y[3:]}],
    ],
)
def test_one_pool(data):
    found = as_arrays(data)
    assert found.keys() == {"inputs", "labels"}
    np.testing.assert_array_equal(found["inputs"], X)
    np.testing.assert_array_equal(found["labels"], Y)


@pytest.mark.parametrize(
    "data",
    [
        {"train": (X, Y), "test": (X[:2], Y[:2])},
        {"train": BATCHES, "test": BATCHES[:1]},
        {"train": {"x": X, "y": Y}, "test": {"inputs": X, "labels": Y}},
        {"X_train": X, "y_train": Y, "X_test": X, "y_test": Y},
        {"train_X": X, "train_y": Y, "test_inputs": X, "test_labels": Y},
        {"train": (X, Y), "val": (X, Y), "test": (X, Y)},
    ],
)
def test_splits(data):
    found = as_arrays(data)
    assert found.keys() - {"validation_inputs", "validation_labels"} == {
        "train_inputs",
        "train_labels",
        "test_inputs",
        "test_labels",
    }
    np.testing.assert_array_equal(found["train_inputs"], X)
    np.testing.assert_array_equal(found["train_labels"], Y)


def test_y_is_what_the_likelihood_takes_or_what_its_values_say():
    assert as_arrays((X, Y), "targets").keys() == {"inputs", "targets"}
    assert as_arrays((X, Y / 2)).keys() == {"inputs", "targets"}
    assert as_arrays({"train": (X, Y), "test": (X, Y / 2)}).keys() >= {"test_targets"}


def test_bundled_sets_of_scikit_learn_keep_their_names():
    found = as_arrays(datasets.load_iris())
    assert found["class_names"].tolist() == ["setosa", "versicolor", "virginica"]
    assert as_arrays(datasets.load_diabetes()).keys() == {"inputs", "targets"}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.arange(10.0), "labels"),
        (np.arange(11.0), "targets"),
        (np.arange(11), "labels"),
        ([0, 0.5], "targets"),
    ],
)
def test_few_whole_numbers_are_labels_and_other_floats_are_targets(values, kind):
    assert kind in as_arrays((np.zeros((len(values), 2)), values))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (X, "without targets"),
        ("digits", "without targets"),
        (3, "without targets"),
        ([], "is empty"),
        ((X, X, Y, Y), "4 arrays.*{'train'"),
        ([(X, Y, Y)], "as batch 0"),
        ([(X, Y), (X[:, :2], Y)], "different shapes"),
        ([{"image": X, "number": Y}], "keys image, number"),
        ({"train": {"x": X}}, "has the keys x; give"),
        ({"X": X, "inputs": X, "y": Y}, "'inputs' twice"),
    ],
)
def test_other_forms_are_refused(data, line):
    with pytest.raises(UserError, match=line):
        as_arrays(data)
