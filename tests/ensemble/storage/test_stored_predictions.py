"""Stored predictions: what is read back, what is refused."""

import numpy as np
import pytest
from run_parts import validated, workdir_of

from ensemble import InputError, likelihoods
from ensemble.storage.predictions import (
    read_predictions,
    read_predictive,
    write_predictions,
    write_predictive,
)

TARGETS = np.array([0.5, 3.0, 1.0])
LIKELIHOOD = likelihoods.from_data("gaussian", TARGETS, ())
ARRAYS = {"loc": np.arange(15.0).reshape(5, 3), "scale": np.ones((5, 3))}
THREE = LIKELIHOOD.predictive(ARRAYS, np.array([0, 0, 1, 2, 2]), np.array([0.25, 0.25, 0.5]))


@pytest.fixture
def work(tmp_path):
    work = workdir_of(tmp_path)
    work.write_config(validated({"num_epochs": 1}))
    write_predictions(work, "test", THREE, TARGETS, [0, 1, 4])
    return work


def test_what_was_written_comes_back(work):
    found, targets, members = read_predictions(work, "test", LIKELIHOOD)
    for name, one in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], one)
    np.testing.assert_array_equal(found.shares, THREE.shares)
    np.testing.assert_array_equal(targets, TARGETS)
    assert members.tolist() == [0, 1, 4]


def test_what_is_missing_or_unfinished_or_damaged_is_refused(work):
    path = work.predictions / "test.npz"
    path.copy(work.predictions / "calibration.npz")
    for split in ("val", "calibration"):
        with pytest.raises(InputError, match=rf"{split}\.npz is missing"):
            read_predictions(work, split, LIKELIHOOD)
    content = path.read_bytes()
    for damaged in (b"", b"no archive", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"test\.npz is damaged, or of another run"):
            read_predictions(work, "test", LIKELIHOOD)


def test_predictions_are_mapped(work):
    path = work.path / "some"
    for _ in range(2):
        write_predictive(path, THREE)
    found = read_predictive(path, LIKELIHOOD)
    assert isinstance(found.arrays["loc"], np.memmap)
    np.testing.assert_array_equal(found.arrays["loc"], ARRAYS["loc"])


def test_members_are_chosen_and_nan_is_found_in_any_array():
    scale = np.ones((5, 3))
    scale[1, 2] = np.nan
    said = LIKELIHOOD.predictive({**ARRAYS, "scale": scale}, THREE.member_of)
    np.testing.assert_array_equal(said.have_nan(), [True, False, False])
    chosen = said.of([1, 2])
    np.testing.assert_array_equal(chosen.arrays["loc"][:, 0], [6, 9, 12])
    assert chosen.member_of.tolist() == [0, 1, 1]
    assert not chosen.have_nan().any()
