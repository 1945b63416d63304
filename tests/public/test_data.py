"""Data come in the forms that programs have, and all of them train the same ensemble."""

import numpy as np
import pytest
from runs import MEMBERS, classes

import ensemble

CONFIG = {**MEMBERS, "ensemble_size": 1, "num_devices": 1, "num_epochs": 1, "hold_out": False}
ARRAYS = classes(96)
X, Y = ARRAYS["inputs"], ARRAYS["labels"]
BATCHES = [(X[:50], Y[:50]), (X[50:], Y[50:])]
FORMS = {
    "pair": (X, Y),
    "lists": (X.tolist(), Y.tolist()),
    "X_and_y": {"X": X, "y": Y},
    "bunch": {"data": X, "target": Y, "target_names": None, "DESCR": "of whatever"},
    "batches": BATCHES,
    "examples": list(zip(X, Y, strict=True)),
    "batches_by_name": [{"image": x, "label": y} for x, y in BATCHES],
}


@pytest.fixture(scope="module")
def expected():
    """What a network predicts that has learned from arrays by name."""
    return ensemble.train(CONFIG, ARRAYS, show_progress=False).predictor(X).probs


@pytest.mark.parametrize(
    "form",
    [name if name == "pair" else pytest.param(name, marks=pytest.mark.check) for name in FORMS],
)
def test_every_form_is_learned_alike(form, expected):
    found = ensemble.train(CONFIG, FORMS[form], show_progress=False).predictor(X).probs
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (X, "targets"),
        (3, "targets"),
        ([(X, Y), (X[:, :2], Y)], "shapes"),
        ([{"image": X, "number": Y}], "image, number"),
        ({"X": X, "inputs": X, "y": Y}, "'inputs'"),
    ],
)
def test_other_forms_are_one_line_that_names_what_is_wrong(data, named):
    with pytest.raises(ensemble.UserError, match=named) as caught:
        ensemble.train(CONFIG, data, show_progress=False)
    assert "\n" not in str(caught.value)
