"""Annotations on targets in a user's own data."""

import numpy as np
import pytest

from ensemble import UserError
from ensemble.notes import collected
from ensemble.sources import dataset_from_arrays

INPUTS = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
DATA = {"inputs": INPUTS, "targets": np.arange(30.0)}
FLAGS = np.arange(30) % 3 == 0


def test_remarks_stay_with_their_targets_in_every_split():
    with collected() as notes:
        source = dataset_from_arrays({**DATA, "censored": FLAGS, "target_errors": np.arange(30)})
    assert "10 of 30 targets are censored" in notes[0]
    assert "errors of measurement" in notes[1]
    for split in source.sizes:
        rows = source.read(split, slice(None)).targets
        np.testing.assert_array_equal(rows["censored"], rows["targets"] % 3 == 0)
        np.testing.assert_array_equal(rows["target_errors"], rows["targets"])
    changed = dataset_from_arrays({**DATA, "censored": ~FLAGS})
    same = dataset_from_arrays({**DATA, "censored": ~FLAGS})
    assert source.fingerprint != changed.fingerprint == same.fingerprint


def test_y_of_whole_numbers_is_targets_where_it_has_remarks():
    whole = {"X_train": INPUTS, "y_train": np.arange(30), "censored_train": FLAGS}
    source = dataset_from_arrays(whole)
    assert source.class_names is None
    assert source.targets("train").dtype.names == ("targets", "censored")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"censored": FLAGS[:5]}, r"censored.*\(5,\).*\[N\]"),
        ({"censored": FLAGS + 1}, "censored.*2.*0.*True"),
        ({"censored": ["yes"] * 30}, "one bool for each"),
        ({"target_errors": [[1], [1, 2]]}, "target_errors is ragged"),
        ({"target_errors": np.full(30, -1.0)}, "-1.0.*0.*standard"),
        ({"target_errors": np.full(30, np.nan)}, "holds nan"),
        ({"target_errors": np.full((30, 2), 1.0)}, "one number for each"),
        ({"censored": FLAGS, "class_names": ["a", "b"]}, "censored or target_errors beside each"),
        ({"targets": np.ones((30, 2)), "censored": FLAGS}, "one|single target"),
    ],
)
def test_bad_annotations_are_one_line(annotations, message):
    with pytest.raises(UserError, match=message) as refused:
        dataset_from_arrays({**DATA, **annotations})
    assert "\n" not in str(refused.value)


def test_every_split_has_the_remarks_or_none():
    data = {f"{split}_{key}": one for split in ("train", "test") for key, one in DATA.items()}
    with pytest.raises(UserError, match="target_errors beside"):
        dataset_from_arrays({**data, "train_censored": FLAGS})
