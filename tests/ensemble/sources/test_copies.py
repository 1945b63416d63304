"""Exact copies of examples come into one split, wherever they lie; all else is split as ever."""

import re

import numpy as np
import pytest
from run_parts import read_in_blocks_of

from ensemble.source import Request
from ensemble.sources import copies, dataset_from_arrays, in_memory, load_dataset
from ensemble.sources.catalogue import load

SPLITS = ("train", "validation", "calibration", "test")


def _arrays(num_examples=200, num_copies=0, dtype=np.float32):
    """Examples of which the last `num_copies` repeat others; labels are their numbers, mod 3."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 255, (num_examples, 5, 4, 1)).astype(dtype)
    sources = rng.choice(num_examples - num_copies, num_copies, replace=False)
    inputs[num_examples - num_copies :] = inputs[sources]
    return {"inputs": inputs, "labels": np.arange(num_examples) % 3}


def _rows(source, split):
    return {row.tobytes() for row in in_memory(source, split).inputs}


def _examples(source, splits):
    """Inputs and labels of splits, sorted."""
    parts = [in_memory(source, split) for split in splits]
    return sorted(
        (row.tobytes(), label) for part in parts for row, label in zip(*part, strict=True)
    )


def _splits_of_rows(source):
    """In how many splits each different input is."""
    rows = [_rows(source, split) for split in SPLITS]
    return [sum(row in one for one in rows) for row in set.union(*rows)]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_copies_come_into_one_split(dtype, caplog):
    arrays = _arrays(200, 37, dtype)
    assert max(_splits_of_rows(dataset_from_arrays(arrays, copies_together=False))) > 1
    assert "the same inputs" not in caplog.text
    dataset = dataset_from_arrays(arrays, "mine")
    assert set(_splits_of_rows(dataset)) == {1}
    assert (
        "mine: 37 examples have the same inputs as others; equal inputs are kept in one split"
        in caplog.text
    )
    assert caplog.text.count("the same inputs") == 1
    assert re.search(r"one split, which moved [1-9]\d*\.", caplog.text)
    assert sum(dataset.sizes.values()) == 200
    assert dataset.sizes["test"] >= 15  # Of 20.
    whole = dataset_from_arrays(arrays, hold_out=False)
    assert _examples(dataset, SPLITS) == _examples(whole, ["train"])


def test_one_copy_is_one_and_nothing_is_said_where_nothing_moves(caplog):
    digests = np.arange(40)
    digests[[1, 20]] = digests[0]
    apart = [np.arange(10), np.arange(10, 40)]
    copies.keep_together([np.arange(8), np.arange(8, 38)], digests[2:], "mine")
    assert caplog.messages == []  # All differ.
    digests[1] = 41
    copies.keep_together(apart, digests, "mine")
    [line] = caplog.messages
    assert line.startswith("mine: 1 example has the same inputs as others")
    caplog.clear()
    digests[[1, 20]] = digests[0], 42
    copies.keep_together(apart, digests, "mine")
    assert caplog.messages == []  # Both are in one split.


def test_without_copies_splits_are_as_they_were(caplog):
    """The fingerprints are of before copies were looked for."""
    for dtype, expected in ((np.uint8, "a28e38856bce2819"), (np.float32, "4584e110943418dd")):
        arrays = _arrays(dtype=dtype)
        assert dataset_from_arrays(arrays, seed=3).fingerprint == expected
        assert dataset_from_arrays(arrays, seed=3, copies_together=False).fingerprint == expected
    assert "the same inputs" not in caplog.text


def test_a_set_that_was_joined_to_itself_keeps_its_sizes():
    arrays = _arrays()
    twice = {key: np.concatenate([value, value]) for key, value in arrays.items()}
    dataset = dataset_from_arrays(twice)
    assert set(_splits_of_rows(dataset)) == {1}
    assert dataset.sizes["test"] >= 20
    assert dataset.sizes["train"] >= 200


def test_few_different_inputs_are_split_as_before(caplog):
    """Tables of categories: equal inputs are other cases."""
    rng = np.random.default_rng(0)
    arrays = {"inputs": rng.integers(0, 2, (300, 3)), "labels": rng.integers(0, 2, 300)}
    before = dataset_from_arrays(arrays, copies_together=False)
    assert dataset_from_arrays(arrays).fingerprint == before.fingerprint
    assert "292 of 300 examples" in caplog.text


def test_a_memory_map_is_split_alike(tmp_path, monkeypatch):
    arrays = _arrays(200, 37)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    expected = dataset_from_arrays(arrays)
    read_in_blocks_of(monkeypatch, 7 * 20)
    source = load_dataset(f"npy:{tmp_path}")
    assert source.fingerprint == expected.fingerprint
    before = load(f"npy:{tmp_path}", Request(copies_together=False))
    assert before.fingerprint != source.fingerprint


def test_test_examples_that_were_learned_are_told(caplog):
    arrays = _arrays(100)
    given = {f"train_{key}": value for key, value in arrays.items()}
    given |= {f"test_{key}": value[90:] for key, value in arrays.items()}
    dataset = dataset_from_arrays(given, "mine", hold_out=False)
    assert "mine: 10 of 10 test examples equal training examples in inputs and t" in caplog.text
    np.testing.assert_array_equal(dataset.splits["test"].inputs, arrays["inputs"][90:])
    caplog.clear()
    dataset_from_arrays(given | {"test_inputs": arrays["inputs"][90:] + 0.5}, "mine")
    assert "equal training examples" not in caplog.text


@pytest.mark.parametrize("targets", [np.arange(100) % 3, np.ones(100), np.ones((100, 2))])
def test_a_copy_has_the_target_of_the_other_too(targets, caplog, tmp_path):
    """Inputs of a shop's rows, such as the item and whether it is on offer, repeat by nature."""
    key = "labels" if targets.dtype.kind == "i" else "targets"
    arrays = {"inputs": _arrays(100)["inputs"], key: targets}
    given = {f"train_{name}": value for name, value in arrays.items()}
    given |= {f"test_{name}": value[90:].copy() for name, value in arrays.items()}
    given[f"test_{key}"][:7] = (given[f"test_{key}"][:7] + 1) % 3
    for name, values in given.items():
        np.save(tmp_path / f"{name}.npy", values)
    dataset_from_arrays(given, "mine", hold_out=False)
    load_dataset(f"npy:{tmp_path}", hold_out=False)
    assert caplog.text.count(": 3 of 10 test examples") == 2


def test_zeros_of_either_sign_are_equal():
    inputs = np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.0, 1.0 + 1e-12]])
    digests = copies.digest_examples(inputs, np.dtype(np.float32))
    assert digests[0] == digests[1] == digests[3] != digests[2]
