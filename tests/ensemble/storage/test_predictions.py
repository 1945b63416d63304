"""Stored predictions: what is read back, what is refused."""

import json

import numpy as np
import pytest
from etils import epath
from run_parts import of_classes, validated

from ensemble import UserError, target_rows
from ensemble.likelihoods.gaussian import Gaussian
from ensemble.storage.predictions import (
    MemberPredictions,
    map_predictions,
    read_predictions,
    write_arrays,
    write_predictions,
)

CONFIG = validated({"num_epochs": 1}).to_dict()
LOG_PROBS = np.log(np.full((2, 3, 4), 0.25, np.float32))
LABELS = np.array([0, 3, 1])
CLASSES = of_classes("abcd")
NUMBERS = Gaussian(0.0, 1.0, -1.0, 1.0)


@pytest.fixture
def path(tmp_path):
    path = epath.Path(tmp_path / "test.npz")
    write_predictions(path, MemberPredictions({"log_probs": LOG_PROBS}), LABELS, [0, 2], CONFIG)
    return path


def test_what_was_written_comes_back(path):
    stored = read_predictions(path, CONFIG, CLASSES)
    np.testing.assert_array_equal(stored.arrays["log_probs"], LOG_PROBS)
    np.testing.assert_array_equal(stored.targets, LABELS)
    np.testing.assert_array_equal(stored.members, [0, 2])
    longer = {**CONFIG, "num_epochs": 9}  # What may change in a workdir may change here.
    np.testing.assert_array_equal(read_predictions(path, longer, CLASSES).targets, LABELS)


def test_those_of_another_configuration_are_refused(path):
    with pytest.raises(UserError, match=r"seed: 0 -> 1;"):
        read_predictions(path, {**CONFIG, "seed": 1}, CLASSES)


def test_absent_and_damaged_files_are_refused(path):
    with pytest.raises(UserError, match=r"val\.npz is missing"):
        read_predictions(path.parent / "val.npz", CONFIG, CLASSES)
    content = path.read_bytes()
    for damaged in (b"", b"no archive", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged or not of this program"):
            read_predictions(path, CONFIG, CLASSES)


@pytest.mark.parametrize(
    ("log_probs", "targets", "members", "message"),
    [
        (LOG_PROBS[:, :0], LABELS[:0], [0, 2], r"log_probs \(2, 0, 4\) must be \[M, N, ...\]"),
        (LOG_PROBS[0], LABELS, [0, 2], r"log_probs \(3, 4\) must be \[M, N, ...\]"),
        (LOG_PROBS[..., 0], LABELS, [0, 2], r"log_probs \(2, 3\) must be \[M, N, 4\]"),
        (LOG_PROBS, LABELS[:2], [0, 2], r"log_probs \(2, 3, 4\) must be \[M, N, ...\]"),
        (LOG_PROBS, LABELS, [0], r"log_probs \(2, 3, 4\) must be \[M, N, ...\]"),
        (LOG_PROBS, LABELS[None], [0, 2], r"targets \(1, 3\) and members \(2,\) must be lists"),
        (LOG_PROBS, LABELS + 1, [0, 2], r"targets must be classes in 0\.\.3"),
        (LOG_PROBS, LABELS - 1, [0, 2], r"targets must be classes in 0\.\.3"),
        (LOG_PROBS, LABELS / 2, [0, 2], r"targets must be classes in 0\.\.3"),
        (
            LOG_PROBS.astype(int),
            LABELS,
            [0, 2],
            r"log_probs \(2, 3, 4\) must be \[M, N, 4\] of floats",
        ),
        (LOG_PROBS * np.nan, LABELS, [0, 2], "log_probs hold NaN"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(path, log_probs, targets, members, message):
    write_predictions(path, MemberPredictions({"log_probs": log_probs}), targets, members, CONFIG)
    with pytest.raises(UserError, match=rf"test\.npz: {message}.* train again"):
        read_predictions(path, CONFIG, CLASSES)


def test_a_file_without_predictions_is_refused(path):
    np.savez(path, targets=LABELS, members=[0, 2], config=json.dumps(CONFIG))
    with pytest.raises(UserError, match=r"no log_probs"):
        read_predictions(path, CONFIG, CLASSES)


def test_targets_were_called_labels(path):
    np.savez(path, log_probs=LOG_PROBS, labels=LABELS, members=[0, 2], config=json.dumps(CONFIG))
    stored = read_predictions(path, CONFIG, CLASSES)
    np.testing.assert_array_equal(stored.targets, LABELS)
    assert stored.arrays.keys() == {"log_probs"}


def test_members_are_chosen_and_nan_is_found_in_any_array():
    other = np.zeros((3, 2))
    other[1, 0] = np.nan
    predictions = MemberPredictions({"a": np.arange(24.0).reshape(3, 2, 4), "b": other})
    np.testing.assert_array_equal(predictions.have_nan(), [False, True, False])
    chosen = predictions.of_members([0, 2])
    np.testing.assert_array_equal(chosen.arrays["a"][:, 0, 0], [0, 16])
    assert not chosen.have_nan().any()


def test_members_of_several_estimators(path):
    arrays = {"loc": np.arange(15.0).reshape(5, 3), "scale": np.ones((5, 3))}
    predictions = MemberPredictions(arrays, np.array([0, 0, 1, 2, 2]))
    arrays["scale"][1, 2] = np.nan
    np.testing.assert_array_equal(predictions.have_nan(), [True, False, False])
    chosen = predictions.of_members([1, 2])
    np.testing.assert_array_equal(chosen.arrays["loc"][:, 0], [6, 9, 12])
    assert chosen.member_of.tolist() == [0, 1, 1]
    targets = np.zeros(3, np.float32)
    write_predictions(path, chosen, targets, [1, 2], CONFIG)
    stored = read_predictions(path, CONFIG, NUMBERS)
    assert stored.member_of.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(stored.arrays["loc"], chosen.arrays["loc"])
    assert stored.view(NUMBERS).num_members == 2
    forgeries = ([0, 2, 2], [1, 1, 2], [0, 1], [0, 0, 0], [[0, 1, 1]], [1, 0, 0])
    for forged in forgeries:
        write_predictions(
            path, chosen._replace(member_of=np.array(forged)), targets, [1, 2], CONFIG
        )
        with pytest.raises(UserError, match=r"member_of|\[M, N, \.\.\.\]"):
            read_predictions(path, CONFIG, NUMBERS)


def test_pickled_objects_are_never_loaded(path):
    np.savez(path, log_probs=np.array([{}]), targets=LABELS, members=[0], config="{}")
    with pytest.raises(UserError, match="is damaged or not of this program"):
        read_predictions(path, CONFIG, CLASSES)


MEMBERS = MemberPredictions({"loc": np.zeros((2, 3)), "scale": np.ones((2, 3))})
ROWS = target_rows.joined(
    {
        "targets": np.float32([1, 2, 4]),
        "censored": np.array([True, False, False]),
        "target_errors": np.float32([0, 1, 2]),
    }
)


def test_what_is_known_of_targets_comes_back(tmp_path):
    path = epath.Path(tmp_path / "test.npz")
    write_predictions(path, MEMBERS, ROWS, [0, 1], CONFIG)
    np.testing.assert_array_equal(read_predictions(path, CONFIG, NUMBERS).targets, ROWS)


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        ({"censored": np.zeros(2, bool)}, r"censored \(2,\) must be one for each target"),
        ({"censored": np.zeros(3)}, "censored must be true or false"),
        ({"target_errors": np.full(3, np.nan)}, "target_errors must be finite"),
        ({"target_errors": np.full(3, -1.0)}, "target_errors must be finite and not negative"),
    ],
)
def test_forged_remarks_are_refused(tmp_path, forged, message):
    path = epath.Path(tmp_path / "test.npz")
    columns = {**target_rows.columns(ROWS), **forged}
    entries = {**columns, "members": np.arange(2), "config": json.dumps(CONFIG)}
    write_arrays(path, MEMBERS, np.savez, **entries)
    with pytest.raises(UserError, match=message):
        read_predictions(path, CONFIG, NUMBERS)


def test_predictions_are_mapped_and_checked(tmp_path):
    path = epath.Path(tmp_path / "some.npz")
    arrays = {"a": np.arange(24.0).reshape(2, 3, 4), "b": np.arange(6, dtype=np.float32)[None]}
    write_arrays(path, MemberPredictions(arrays), np.savez, source="here")
    (found, member_of, weights), entries = map_predictions(path)
    assert (str(entries["source"]), member_of, weights) == ("here", None, None)
    for name, one in arrays.items():
        assert isinstance(found[name].base, np.memmap)
        np.testing.assert_array_equal(found[name], one)
        assert found[name].dtype == one.dtype
    content = bytearray(path.read_bytes())
    content[content.index(arrays["a"][0, 1, 2].tobytes())] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="CRC"):
        map_predictions(path)
    write_arrays(path, MemberPredictions(arrays), np.savez_compressed)
    with pytest.raises(ValueError, match="compressed"):
        map_predictions(path)


def test_a_full_disk_leaves_nothing(tmp_path):
    def save(file, **arrays):
        file.write(b"some")
        raise OSError(28, "No space left on device")

    path = epath.Path(tmp_path / "some.npz")
    with pytest.raises(OSError, match="No space"):
        write_arrays(path, MEMBERS, save)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.0], [0.5, np.nan], [1, 2]])
def test_weights_are_positive_and_one_for_each_member(tmp_path, weights):
    path = epath.Path(tmp_path / "some.npz")
    arrays = {"a": np.zeros((2, 3, 4))}
    good = MemberPredictions(arrays, None, np.array([0.25, 0.75]))
    write_arrays(path, good, np.savez)
    np.testing.assert_array_equal(map_predictions(path)[0].weights, good.weights)
    np.savez(path, **arrays, member_weights=np.array(weights))
    with pytest.raises(ValueError, match="positive number for each member"):
        map_predictions(path)
