"""Labels as users have them become classes 0..C-1 with names, or one line says why not."""

import numpy as np
import pandas as pd
import pytest
import sklearn.utils.class_weight

from ensemble import InputError
from ensemble.data import labels as module
from ensemble.data.labels import class_weights, classes, weights_in_batches
from ensemble.notes import collected

ONE_HOT = np.eye(3)[[0, 2, 1, 1]]


@pytest.mark.parametrize(
    ("labels", "given_names", "expected", "names"),
    [
        ([0, 2, 1, 2], None, [0, 2, 1, 2], "012"),
        ([0, 2, 2, 2], None, [0, 2, 2, 2], "012"),  # A class without examples is still one.
        ([0.0, 1.0, 1.0], None, [0, 1, 1], "01"),
        ([True, False, True], None, [1, 0, 1], "01"),
        ([[0], [1], [1]], None, [0, 1, 1], "01"),
        (ONE_HOT, None, [0, 2, 1, 1], "012"),
        (ONE_HOT.astype(bool), "abc", [0, 2, 1, 1], "abc"),
        (["b", "a", "b", "b"], None, [1, 0, 1, 1], "ab"),
        (np.array(["b", "a"] * 2, object), None, [1, 0, 1, 0], "ab"),
        (np.array([1, 0, 1], object), None, [1, 0, 1], "01"),
        (pd.array([True, False, True], "boolean"), None, [1, 0, 1], "01"),
        (pd.Series([2, 0, 2, 1], dtype="Int64"), None, [2, 0, 2, 1], "012"),
        (pd.Categorical(["u", "v", "u"], ["v", "u", "w"]), None, [0, 1, 0], "uv"),
        (["b", "a", "b"], "bac", [0, 1, 0], "bac"),
        ([0, 1, 0], "ab", [0, 1, 0], "ab"),
    ],
)
def test_labels_become_classes_in_silence(labels, given_names, expected, names):
    with collected() as lines:
        found, found_names = classes({"labels": labels}, given_names and list(given_names), "mine")
    assert found["labels"].tolist() == expected
    assert found["labels"].dtype == np.int32
    assert found_names == tuple(names)
    assert not lines


@pytest.mark.parametrize(
    ("labels", "given_names", "expected", "names", "said"),
    [
        ([1, 3, 2, 2, 1, 3], None, [0, 2, 1, 1, 0, 2], ("1", "2", "3"), "do not begin at 0"),
        ([-1, 1, 1, -1], None, [0, 1, 1, 0], ("-1", "1"), "do not begin at 0"),
        ([7, 40, 7, 40], None, [0, 1, 0, 1], ("7", "40"), "7, 40"),
    ],
)
def test_labels_that_begin_elsewhere_are_said(labels, given_names, expected, names, said):
    with collected() as lines:
        found, found_names = classes({"labels": labels}, given_names, "mine")
    assert found["labels"].tolist() == expected
    assert found_names == names
    assert len(lines) == 1
    assert said in lines[0]


def test_all_splits_have_the_same_classes():
    found, names = classes({"train": ["b", "c", "b"], "test": ["a", "c"]}, None, "mine")
    assert names == ("a", "b", "c")
    assert [values.tolist() for values in found.values()] == [[1, 2, 1], [0, 2]]


@pytest.mark.parametrize(
    ("labels", "given_names", "line"),
    [
        ([0, None], None, "labels is None for example 1, and 1 of 2 are missing"),
        (pd.array(["a", None, "b"], "string"), None, "<NA> for example 1"),
        ([0.5, 1.5], None, "call them targets"),
        ([0, np.nan], None, "labels are texts"),
        ([[0, 1], [1, 1]], None, "one-hot rows"),
        ([[1, 2], [3]], None, "ragged"),
        ([0, 1, 90], None, "labels holds 90 in example 2"),
        (list(range(100, 130)), None, "30 labels have 30 different values"),
        ([str(k) for k in range(30)], None, "30 labels have 30 different values"),
        (["a", "d"], ["a", "b"], "holds d in example 1; there are 2 class_names"),
        ([0, 2], ["a", "b"], "holds 2 in example 1; there are 2 class_names"),
        ([2, 5], ["a", "b"], "holds 2 in example 0; there are 2 class_names"),
        ([-1, 1], ["a", "b"], "holds -1"),
        ([-1, 0, 1, 2], None, "labels holds -1 in example 0; labels are texts, or"),
        ([0, 1], ["a", "a"], "has the classes a, a"),
        ([0, 0], None, "more than one class"),
        (["a", "a"], None, "more than one class"),
        ([], None, "shape (0,)"),
        (np.array([{}, {}]), None, "dtype object"),
    ],
)
def test_what_cannot_be_classes_is_refused(labels, given_names, line):
    with pytest.raises(InputError) as refused:
        classes({"mine: labels": labels}, given_names, "mine")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_class_weights():
    labels = np.array([0] * 6 + [1] * 3 + [2])
    np.testing.assert_array_equal(class_weights("none", labels, 3), [1, 1, 1])
    balanced = class_weights("balanced", labels, 3)
    expected = sklearn.utils.class_weight.compute_class_weight(
        "balanced", classes=np.arange(3), y=labels
    )
    np.testing.assert_allclose(balanced, expected, rtol=1e-6)
    np.testing.assert_allclose(balanced[labels].mean(), 1, rtol=1e-6)
    assert balanced.dtype == np.float32
    assert np.isfinite(class_weights("balanced", labels, 5)).all()
    weights = class_weights("1, 2,0.5", labels, 3)
    np.testing.assert_array_equal(weights, np.float32([1, 2, 0.5]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("1,2", "has 2 numbers; give one for each of the 3 classes"),
        ("1,2,3,4", "has 4 numbers"),
    ],
)
def test_class_weights_that_are_refused(spec, message):
    with pytest.raises(InputError, match=message):
        class_weights(spec, np.array([0, 1, 2]), 3)


def test_weights_that_a_batch_is_divided_by_count_less(monkeypatch):
    labels = np.repeat([0, 1, 0, 1], 25)
    weights = np.float32([1, 3])

    def ratio(batch_size, own=None):
        found = weights_in_batches(weights, labels, own, batch_size)
        return found[1] / found[0]

    assert ratio(1) == pytest.approx(1)
    assert ratio(100) == pytest.approx(3)
    same, other = 49 / 99, 50 / 99  # What the second of two is.
    expected = 3 * (other / 4 + same / 6) / (same / 2 + other / 4)
    assert ratio(2) == pytest.approx(expected, rel=0.01)
    assert ratio(2, np.full(100, 0.3)) == pytest.approx(expected, rel=0.01)
    monkeypatch.setattr(module, "_MOST_DRAWN", 50)
    assert ratio(100) == pytest.approx(3)
    assert weights_in_batches(np.float32([1, 3, 5]), labels, None, 100)[2] == pytest.approx(5)
