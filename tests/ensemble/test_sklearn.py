"""The configuration of scikit-learn's estimators."""

import numpy as np
import pytest

from ensemble import EnsembleClassifier, EnsembleRegressor
from ensemble.config import flatten
from ensemble.configs import tabular
from ensemble.sklearn import repetition
from ensemble.sklearn.estimator import _with_validation


@pytest.mark.parametrize("estimator", [EnsembleClassifier, EnsembleRegressor])
@pytest.mark.parametrize("variant", ["", "sgd"])
def test_defaults_are_those_of_the_bundled_configuration(estimator, variant):
    config = flatten(tabular.get_config(variant))
    method = {"method": variant} if variant else {}
    found = flatten(estimator(**method)._run_config(num_examples=50))
    keys = ["ensemble_size", "model", "num_epochs", "batch_size", "optimizer", "learning_rate"]
    keys += ["schedule", "weight_decay", "mlp.widths", "mlp.activation", "method", "scaling"]
    keys.append("early_stopping_epochs" if variant else "cross_fitted.patience")
    assert {key: found[key] for key in keys} == {key: config[key] for key in keys}


def test_another_model_is_not_told_that_it_has_no_use_for_default_widths(caplog):
    assert "mlp" not in EnsembleRegressor(model="cnn")._run_config(num_examples=50)
    assert not caplog.records


def small_data(num_rows=6):
    return {
        "train_inputs": np.arange(2.0 * num_rows, dtype=np.float32).reshape(num_rows, 2),
        "train_labels": np.arange(num_rows) % 2,
        "class_names": np.array(["a", "b"]),
    }


def test_whole_weights_repeat_rows_and_others_are_kept(caplog):
    data = small_data()
    whole = repetition.weighted(data, [0, 1, 2, 0, 1, 3])
    assert whole["train_inputs"][:, 0].tolist() == [2, 4, 4, 8, 10, 10, 10]
    assert whole["train_labels"].tolist() == [1, 0, 0, 0, 1, 1, 1]
    assert whole["class_names"] is data["class_names"]
    assert "sample_weight" not in whole
    parts = repetition.weighted(data, [0, 1, 2, 0.5, 1, 3])
    assert parts["sample_weight"].tolist() == [1, 2, 0.5, 1, 3]
    assert parts["train_inputs"][:, 0].tolist() == [2, 4, 6, 8, 10]
    assert not caplog.records
    many = repetition.weighted(data, [0, 10, 10, 10, 10, 11])
    assert many["sample_weight"].tolist() == [10, 10, 10, 10, 11]
    assert "51, more than 10 times its 5 rows" in caplog.text
    assert "sample_weight" not in repetition.weighted(data, [0, 10, 10, 10, 10, 10])


def test_rows_have_an_order_of_their_own_only_where_some_are_equal():
    data = small_data()
    same, equal = repetition.in_order(data)
    assert equal is None
    assert same["train_inputs"] is data["train_inputs"]
    data["train_inputs"][:3] = 0  # Of rows 0 and 2 the labels are equal, too.
    rows = np.random.default_rng(0).permutation(6)
    one, equal = repetition.in_order(data)
    other, _ = repetition.in_order({**data, **repetition.taken(data, rows)})
    for key in ("train_inputs", "train_labels"):
        np.testing.assert_array_equal(one[key], other[key])
    assert np.unique(equal).size == 4
    weights = np.arange(1.0, 7)  # Rows of other weights are not equal.
    assert repetition.in_order({**data, "sample_weight": weights})[1] is None


def test_equal_rows_are_not_on_both_sides_of_the_validation_split():
    data, equal = repetition.in_order(repetition.weighted(small_data(40), np.full(40, 3)))
    split = _with_validation(data, seed=0, equal=equal)
    sides = [set(split[f"{side}_inputs"][:, 0]) for side in ("train", "validation")]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 40
