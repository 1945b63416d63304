"""Data frames go by the names of their columns, from the splits to predictions."""

import json

import numpy as np
import pandas as pd
import pytest
from small_runs import small_config

import ensemble
from ensemble import UserError
from ensemble.notes import collected
from ensemble.sources.columns import in_order, names_of, note_other_rows

FRAME = pd.DataFrame(np.arange(6.0).reshape(2, 3), columns=["a", "b", "c"])


def test_names_are_those_of_columns_that_differ():
    assert names_of(FRAME) == ("a", "b", "c")
    assert names_of(FRAME.set_axis([2, 0, 1], axis=1)) == ("2", "0", "1")
    for nameless in (FRAME.to_numpy(), FRAME.set_axis(["a", "a", "b"], axis=1), [[1.0]], None):
        assert names_of(nameless) is None
    two_levels = pd.MultiIndex.from_tuples([("a", "b"), ("a", "c"), ("b", "c")])
    assert names_of(FRAME.set_axis(two_levels, axis=1)) is None


@pytest.mark.parametrize(
    "given",
    [
        FRAME[["c", "a", "b"]],
        FRAME[["c", "a", "b"]].assign(text="x"),
        FRAME.set_axis(range(3), axis=1),  # As a frame made of an array has them.
        FRAME.to_numpy(),
    ],
)
def test_columns_come_into_the_order_that_was_learned(given):
    ordered = np.asarray(in_order(given, ("a", "b", "c"), "inputs"))
    np.testing.assert_array_equal(ordered, FRAME)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (FRAME[["a", "c"]], "inputs lack column 'b', .* columns are 'a', 'c': give all of them"),
        (FRAME.set_axis([*"xyz"], axis=1), "lack columns 'a', 'b', 'c'"),
        (FRAME[["a", "b", "c", "b"]], "have column 'b' twice"),
    ],
)
def test_columns_that_are_not_there_once_are_named(given, line):
    with pytest.raises(UserError, match=line):
        in_order(given, ("a", "b", "c"), "inputs")


@pytest.mark.parametrize(("order", "is_said"), [([1, 0, 2], True), ([0, 1, 2], False)])
def test_rows_whose_index_has_another_order_are_said(order, is_said):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    with collected() as notes:
        note_other_rows(frame, pd.Series([1, 2, 3]).iloc[order], "X and y")
        note_other_rows(frame, pd.Series([1, 2, 3], index=[7, 8, 9]), "no index in common")
        note_other_rows(frame.to_numpy(), [1, 2, 3], "no index at all")
    assert ["X and y have the same index in another order" in line for line in notes] == (
        [True] if is_said else []
    )


def test_splits_and_predictions_are_taken_by_name(blobs, tmp_path):
    names = [f"feature {k}" for k in range(6)]
    frame, labels = pd.DataFrame(blobs["inputs"], columns=names), blobs["labels"]
    data = {"train": (frame, labels), "test": (frame[names[::-1]], labels)}
    result = ensemble.train(
        small_config(num_epochs=2), data, workdir=str(tmp_path), show_progress=False
    )
    described = json.loads((tmp_path / "report.json").read_text())["dataset"]
    assert described["input_names"] == names
    expected = result.predictor(frame.to_numpy()).probs
    for predictor in (result.predictor, ensemble.load(str(tmp_path))):
        for given in (frame[names[::-1]], frame[names[3:] + names[:3]].assign(other=1)):
            np.testing.assert_array_equal(predictor(given).probs, expected)
        with pytest.raises(UserError, match="inputs lack column 'feature 2'"):
            predictor(frame.drop(columns="feature 2"))
    accuracy = (expected.argmax(axis=1) == labels).mean()
    assert result.report["test"]["ensemble"]["accuracy"] == pytest.approx(accuracy)
