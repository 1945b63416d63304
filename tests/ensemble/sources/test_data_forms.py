"""Data come in the forms that programs have, and all of them are one form afterwards."""

import numpy as np
import pandas as pd
import pytest
from run_parts import validated
from sklearn import datasets

from ensemble import UserError, default_config
from ensemble.config import flatten
from ensemble.configs import arrays, images, tabular
from ensemble.run.loop import create_task
from ensemble.sources import data_forms
from ensemble.sources.catalogue import complete
from ensemble.sources.data_forms import recognise

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
    found = recognise(data).arrays
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
    found = recognise(data).arrays
    assert found.keys() - {"validation_inputs", "validation_labels"} == {
        "train_inputs",
        "train_labels",
        "test_inputs",
        "test_labels",
    }
    np.testing.assert_array_equal(found["train_inputs"], X)
    np.testing.assert_array_equal(found["train_labels"], Y)


def test_y_is_what_the_likelihood_takes_or_what_its_values_say():
    assert recognise((X, Y), "targets").arrays.keys() == {"inputs", "targets"}
    assert recognise((X, Y / 2)).arrays.keys() == {"inputs", "targets"}
    assert recognise({"train": (X, Y), "test": (X, Y / 2)}).arrays.keys() >= {"test_targets"}


def test_bundled_sets_of_scikit_learn_keep_their_names():
    found = recognise(datasets.load_iris()).arrays
    assert found["class_names"].tolist() == ["setosa", "versicolor", "virginica"]
    assert recognise(datasets.load_diabetes()).arrays.keys() == {"inputs", "targets"}


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
    assert recognise((np.zeros((len(values), 2)), values)).kind == kind


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (X, "without targets"),
        ("digits", "is a text; name data by the configuration, as {.dataset.: .csv:FILE."),
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
        recognise(data)


def test_a_run_recognises_its_data_once_and_their_source_needs_them_no_more(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return recognise(*arguments)

    monkeypatch.setattr(data_forms, "recognise", counted)
    frame = FRAME[0].assign(y=TABLE[1])
    for data in (TABLE, FRAME, {"train": frame, "test": frame[:5]}, iter([TABLE])):
        calls.clear()
        given, said = complete({"target": "y"} if isinstance(data, dict) else {}, data)
        task = create_task(validated(said), given)
        assert task.num_train_examples
        assert len(calls) == 1


# Defaults are those of a bundled configuration, and no key too many.

TABLE = (np.zeros((20, 5)), np.arange(20) % 2)
FRAME = (pd.DataFrame({"size": np.arange(20.0), "town": ["here", "there"] * 10}), TABLE[1])
PICTURES = (np.zeros((20, 12, 12, 3)), np.arange(20) % 2)
SHARED = ("method", "optimizer", "learning_rate", "schedule", "num_epochs")


def test_a_method_of_tables_is_for_runs_that_can_have_it():
    assert complete({}, FRAME)[1]["method"] == "cross_fitted"
    assert complete({"learning_rate": 1e-3}, FRAME)[1]["scaling"] == "robust"
    for said in ({"teacher": "runs/mine"}, {"method": "sgd"}):  # As before there was one.
        assert complete(said, FRAME)[1].keys().isdisjoint({"scaling"})
        assert complete(said, FRAME)[1].get("method", "sgd") == "sgd"


@pytest.mark.parametrize(
    ("data", "bundled"), [(TABLE, arrays), (PICTURES, images), (FRAME, tabular)]
)
def test_defaults_are_those_of_the_configuration(data, bundled):
    given, said = complete({"ensemble_size": 2}, data)
    expected = flatten(bundled.get_config())
    config = flatten(validated(said, ["ensemble_size"]))
    assert {key: config[key] for key in SHARED} == {key: expected[key] for key in SHARED}
    assert config["model"] == expected["model"]
    if bundled is not tabular:
        assert config["early_stopping_epochs"] == expected["early_stopping_epochs"]
    if config["model"] == "mlp":
        assert config["mlp.widths"] == expected["mlp.widths"]
    assert config["ensemble_size"] == 2
    assert given.arrays.keys() == {"inputs", "labels"}


def test_what_is_given_is_kept_and_what_suits_it_only():
    _, said = complete({"learning_rate": 0.1, "num_epochs": 3}, TABLE)
    assert said == {"learning_rate": 0.1, "num_epochs": 3, "model": "mlp"}
    _, said = complete({"learning_rate": 0.1}, TABLE)
    assert said == {"learning_rate": 0.1, "num_epochs": 100, "model": "mlp"}
    _, said = complete({"num_steps": 9, "hold_out": False, "model": "tiny"}, TABLE)
    assert said["model"] == "tiny"
    assert not said.keys() & {"num_epochs", "early_stopping_epochs"}
    validated(said, ["num_steps"])


def test_widths_are_those_of_a_model_that_has_some():
    assert complete({"learning_rate": 0.1}, FRAME)[1]["mlp.widths"] == "128,128"
    _, said = complete({"model": "linear", "mlp.widths": "3"}, FRAME)
    assert said["mlp.widths"] == "3"
    _, said = complete({"model": "linear"}, FRAME)
    assert "mlp.widths" not in said
    validated(said, ["model"])


def test_a_sampler_gets_no_key_of_sgd():
    _, said = complete({"method": "hmc"}, TABLE)
    assert said.keys() == {"method", "model"}
    validated(said, ["method"])


def test_a_sampler_of_a_frame_has_the_widths_of_tables():
    _, said = complete({"method": "hmc"}, FRAME)
    assert said == {"method": "hmc", "model": "mlp", "mlp.widths": "128,128"}
    validated(said, ["method"])


def test_numbers_get_a_likelihood_of_numbers():
    table = (TABLE[0], np.linspace(0, 1, 20))
    assert complete({}, table)[1]["likelihood"] == "gaussian"
    given, said = complete({"likelihood": "student_t"}, TABLE)
    assert said["likelihood"] == "student_t"
    assert "targets" in given.arrays


def test_ragged_inputs_are_left_to_what_checks_the_data():
    given, said = complete({}, {"inputs": [[1, 2], [1]], "labels": [0, 1]})
    assert said["model"] == "mlp"
    assert given.arrays["inputs"] == [[1, 2], [1]]


def test_small_pictures_go_to_an_mlp_and_a_whole_configuration_stays():
    tiny = (np.zeros((20, 4, 4)), TABLE[1])
    assert complete({}, tiny)[1]["model"] == "mlp"
    channels_first = (np.zeros((20, 3, 12, 12)), TABLE[1])
    assert "model" not in complete({}, channels_first)[1]  # The default, a CNN.
    whole = flatten(default_config())
    assert complete(whole, TABLE)[1] == whole
