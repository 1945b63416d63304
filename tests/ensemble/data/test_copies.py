"""Equal inputs come into one split; copies of training examples in the test split are noted."""

import itertools

import numpy as np
import pytest

from ensemble.data import dataset_from_arrays, in_memory, load_dataset

SPLITS = ("train", "validation", "calibration", "test")
NOTE = "stand in the training split, too, equal in inputs and target"


def arrays(num_examples=200, num_copies=0, dtype=np.float32):
    """Examples of which the last `num_copies` repeat others; labels are their numbers, mod 3."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 255, (num_examples, 5, 4, 1)).astype(dtype)
    sources = rng.choice(num_examples - num_copies, num_copies, replace=False)
    inputs[num_examples - num_copies :] = inputs[sources]
    return {"inputs": inputs, "labels": np.arange(num_examples) % 3}


def num_splits(source):
    """The most splits that one input is in."""
    rows = [{row.tobytes() for row in in_memory(source, one).inputs} for one in SPLITS]
    return max(sum(row in one for one in rows) for row in set.union(*rows))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_equal_inputs_come_into_one_split(dtype, caplog):
    data = arrays(200, 37, dtype)
    dataset = dataset_from_arrays(data, "mine")
    assert num_splits(dataset) == 1
    assert sum(dataset.sizes.values()) == 200
    assert dataset.sizes["test"] >= 15  # Of 20.
    assert NOTE not in caplog.text
    whole = dataset_from_arrays(data, hold_out=False)
    parts = [in_memory(dataset, one) for one in SPLITS]
    rows = [
        sorted(zip(map(bytes, part.inputs), part.targets.tolist(), strict=True))
        for part in (*parts, in_memory(whole, "train"))
    ]
    assert sorted(itertools.chain(*rows[:-1])) == rows[-1]


def test_few_different_inputs_are_other_cases_and_no_copies(caplog):
    """A table of three categories, each of which is in every split."""
    inputs = np.eye(3)[np.arange(300) % 3]
    dataset = dataset_from_arrays({"inputs": inputs, "labels": np.arange(300) % 2})
    assert dataset.sizes == {"train": 210, "validation": 30, "calibration": 30, "test": 30}
    assert NOTE not in caplog.text


@pytest.mark.parametrize("targets", [np.arange(100) % 3, np.ones(100), np.ones((100, 2))])
def test_copies_are_equal_in_inputs_and_target_and_noted_once(targets, caplog, tmp_path):
    """Inputs of a shop's rows, such as the item and whether it is on offer, repeat by nature."""
    key = "labels" if targets.dtype.kind == "i" else "targets"
    given = {"train_inputs": arrays(100)["inputs"], f"train_{key}": targets}
    given |= {name.replace("train", "test"): values[90:].copy() for name, values in given.items()}
    given[f"test_{key}"][:7] = (given[f"test_{key}"][:7] + 1) % 3
    for name, values in given.items():
        np.save(tmp_path / f"{name}.npy", values)
    dataset = dataset_from_arrays(given, "mine")
    np.testing.assert_array_equal(dataset.splits["test"].inputs, given["test_inputs"])
    assert caplog.text.count(f"mine: 3 of 10 test examples (30%) {NOTE}") == 1
    load_dataset(f"npy:{tmp_path}", hold_out=False)
    assert caplog.text.count(NOTE) == 2
    caplog.clear()
    dataset_from_arrays({**given, "test_inputs": given["test_inputs"] + 0.5}, "mine")
    assert NOTE not in caplog.text
