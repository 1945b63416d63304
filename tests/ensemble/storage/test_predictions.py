"""Stored predictions: what is read back, what is refused."""

import numpy as np
import pytest
from etils import epath

from ensemble import UserError
from ensemble.config_rules import validate
from ensemble.storage.predictions import MemberPredictions, read_predictions, write_predictions

CONFIG = validate({"num_epochs": 1}).to_dict()
LOG_PROBS = np.log(np.full((2, 3, 4), 0.25, np.float32))
LABELS = np.array([0, 3, 1])


@pytest.fixture
def path(tmp_path):
    path = epath.Path(tmp_path / "test.npz")
    write_predictions(path, MemberPredictions(LOG_PROBS), LABELS, [0, 2], CONFIG)
    return path


def test_what_was_written_comes_back(path):
    stored = read_predictions(path, CONFIG)
    np.testing.assert_array_equal(stored.log_probs, LOG_PROBS)
    np.testing.assert_array_equal(stored.targets, LABELS)
    np.testing.assert_array_equal(stored.members, [0, 2])
    longer = {**CONFIG, "num_epochs": 9}  # What may change in a workdir may change here.
    np.testing.assert_array_equal(read_predictions(path, longer).targets, LABELS)


def test_those_of_another_configuration_are_refused(path):
    with pytest.raises(UserError, match=r"another configuration: seed: 0 -> 1; remove it and run"):
        read_predictions(path, {**CONFIG, "seed": 1})


def test_absent_and_damaged_files_are_refused(path):
    with pytest.raises(UserError, match=r"val\.npz is missing"):
        read_predictions(path.parent / "val.npz", CONFIG)
    content = path.read_bytes()
    for damaged in (b"", b"no archive", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged or not of this program"):
            read_predictions(path, CONFIG)


@pytest.mark.parametrize(
    ("log_probs", "targets", "members"),
    [
        (LOG_PROBS[:, :0], LABELS[:0], [0, 2]),
        (LOG_PROBS[0], LABELS, [0, 2]),
        (LOG_PROBS, LABELS[:2], [0, 2]),
        (LOG_PROBS, LABELS, [0]),
        (LOG_PROBS, LABELS + 1, [0, 2]),
        (LOG_PROBS.astype(int), LABELS, [0, 2]),
        (LOG_PROBS, LABELS / 2, [0, 2]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(path, log_probs, targets, members):
    write_predictions(path, MemberPredictions(log_probs), targets, members, CONFIG)
    with pytest.raises(UserError, match=r"must be \[M, N, C\]"):
        read_predictions(path, CONFIG)


def test_pickled_objects_are_never_loaded(path):
    np.savez(path, log_probs=np.array([{}]), targets=LABELS, members=[0], config="{}")
    with pytest.raises(UserError, match="is damaged or not of this program"):
        read_predictions(path, CONFIG)
