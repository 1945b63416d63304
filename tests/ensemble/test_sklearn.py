"""The configuration of scikit-learn's estimators."""

import numpy as np

from ensemble import sklearn


def small_data(num_rows=6):
    return {
        "train_inputs": np.arange(2.0 * num_rows, dtype=np.float32).reshape(num_rows, 2),
        "train_labels": np.arange(num_rows) % 2,
        "class_names": np.array(["a", "b"]),
    }


def test_whole_weights_repeat_rows_and_others_are_kept():
    data = small_data()
    whole = sklearn.weighted(data, [0, 1, 2, 0, 1, 3])
    assert whole["train_inputs"][:, 0].tolist() == [2, 4, 4, 8, 10, 10, 10]
    assert whole["train_labels"].tolist() == [1, 0, 0, 0, 1, 1, 1]
    assert whole["class_names"] is data["class_names"]
    assert "sample_weight" not in whole
    parts = sklearn.weighted(data, [0, 1, 2, 0.5, 1, 3])
    assert parts["sample_weight"].tolist() == [1, 2, 0.5, 1, 3]
    assert parts["train_inputs"][:, 0].tolist() == [2, 4, 6, 8, 10]
    many = sklearn.weighted(data, [0, 10, 10, 10, 10, 11])
    assert many["sample_weight"].tolist() == [10, 10, 10, 10, 11]
    assert "sample_weight" not in sklearn.weighted(data, [0, 10, 10, 10, 10, 10])
