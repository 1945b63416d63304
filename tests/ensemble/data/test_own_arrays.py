"""A user's own arrays: every form that a program has, what they become, and each refusal."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import datasets

from ensemble import InputError
from ensemble.data import dataset_from_arrays, load_dataset, normalise, own_arrays
from ensemble.data.catalogue import complete
from ensemble.data.data_forms import recognise

RNG = np.random.default_rng(0)
IMAGES = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)
LABELS = np.array([0, 1, 2, 0, 1, 2])
SPLITS = ["train", "validation", "calibration", "test"]


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [
        (IMAGES, np.uint8),
        (IMAGES.astype(np.int64), np.uint8),
        (IMAGES > 3, np.uint8),
        (IMAGES.tolist(), np.uint8),
        (IMAGES.astype(object), np.uint8),
        (IMAGES / 255, np.float32),
        (IMAGES.astype(np.int16) - 1, np.float32),
        (IMAGES.astype(np.int32) + 200, np.float32),
    ],
)
def test_whole_numbers_of_a_byte_are_kept_as_bytes_and_others_as_floats(inputs, dtype):
    given = own_arrays.check_arrays(recognise({"inputs": inputs, "labels": LABELS}), "mine")
    found = given.parts["pool"].inputs
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[..., 0], np.asarray(inputs, dtype))


def with_value(key, where, value):
    values = {"inputs": IMAGES.astype(np.float64), "labels": LABELS.astype(np.float64)}
    values[key][where] = value
    return values


def pool(**changes):
    return {"inputs": IMAGES, "labels": LABELS, **changes}


TRAIN = {"train_inputs": IMAGES, "train_labels": LABELS}
TEST = {"test_inputs": IMAGES, "test_labels": LABELS}
REFUSED = {
    "no arrays": ({}, r"mine has the arrays \(none\); expected are inputs and labels, or train_"),
    "an unknown key": (pool(z=IMAGES), "mine has the arrays inputs, y, z; expected are"),
    "both forms": (pool(**TRAIN), "expected are"),
    "half a split": ({**TRAIN, "test_inputs": IMAGES}, "test_inputs, train_inputs, train_y;"),
    "no train": (TEST, "expected are"),
    "both kinds": (pool(targets=LABELS), "has 'y' twice"),
    "scalars": (pool(inputs=LABELS), r"shape \(6,\); inputs are feature vectors \[N, F\]"),
    "volumes": (pool(inputs=np.zeros((6, 2, 2, 2, 2))), "inputs are feature vectors"),
    "no pixels": (pool(inputs=IMAGES[:, :0]), "that is not empty"),
    "other shapes": (
        {**TRAIN, **TEST, "test_inputs": IMAGES[:, :3]},
        r"test_inputs has shape \(6, 3, 5\).* of one shape in all splits",
    ),
    "complex numbers": (pool(inputs=np.ones((6, 2), complex)), "dtype complex128"),
    "gaps": (pool(inputs=np.full((6, 2), None)), "inputs is None for example 0"),
    "sparse": (pool(inputs=sparse.csr_matrix(np.eye(6))), r"sparse by its toarray"),
    "too large": (with_value("inputs", (4, 1, 1), 1e39), r"inputs holds 1e\+39 in example 4"),
    "half a label": (with_value("labels", 3, 0.5), "labels holds 0.5 in example 3"),
    "a label of test": (
        {**TRAIN, **TEST, "test_labels": LABELS + 1, "class_names": list("abc")},
        "test_labels holds 3 in example 2; there are 3 class_names",
    ),
    "deep targets": ({"inputs": IMAGES, "targets": np.ones((6, 2, 1))}, r"targets are \[N\]"),
    "texts as targets": ({"inputs": IMAGES, "targets": list("abcdef")}, "targets has dtype <U1"),
    "weights of others": (pool(sample_weight=np.ones(5)), r"sample_weight of shape \(5,\)"),
}


@pytest.mark.parametrize(("arrays", "message"), REFUSED.values(), ids=REFUSED)
def test_arrays_that_are_refused(arrays, message):
    with pytest.raises(InputError, match=message) as error:
        own_arrays.check_arrays(recognise(arrays, name="mine"), "mine")
    assert str(error.value).startswith("mine")
    assert "\n" not in str(error.value)


# Forms, and what is not said.


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.arange(10.0), "labels"),
        (np.arange(11.0), "targets"),
        (np.arange(11), "labels"),
        ([0, 0.5], "targets"),
    ],
)
def test_few_whole_numbers_are_labels_and_other_floats_are_targets(values, kind):
    pair = (np.zeros((len(values), 2)), values)
    assert recognise(pair).kind == kind
    assert recognise(pair, "targets").kind == "targets"
    both = recognise({"train": (IMAGES, LABELS), "test": pair})
    assert (both.kind, [*both.parts]) == (kind, ["train", "test"])


def test_bundled_sets_of_scikit_learn_keep_their_names():
    found = recognise(datasets.load_iris())
    assert found.class_names.tolist() == ["setosa", "versicolor", "virginica"]
    assert recognise(datasets.load_diabetes()).kind == "targets"


FRAME = (pd.DataFrame({"size": np.arange(20.0), "town": ["a", "b"] * 10}), np.arange(20) % 2)


def test_defaults_are_those_of_a_bundled_configuration_and_no_key_too_many():
    assert complete({}, {}, FRAME)[1]["method"] == "kfold_bagging"
    assert complete({"learning_rate": 1e-3}, {}, FRAME)[1]["scaler"] == "robust"
    for values in ({"teacher": "runs/mine"}, {"method": "deep_ensemble"}):
        assert complete(values, {}, FRAME)[1].keys().isdisjoint({"scaler"})
        assert complete(values, {}, FRAME)[1].get("method", "deep_ensemble") == "deep_ensemble"
    table = (np.zeros((20, 5)), np.linspace(0, 1, 20))
    assert complete({}, {}, table)[1]["likelihood"] == "gaussian"
    given, values = complete({"likelihood": "student_t"}, {}, (table[0], FRAME[1]))
    assert values["likelihood"] == "student_t"
    assert given.kind == "targets"


# Splits and scales.


def numbered(num_examples, seed=0, shape=(4,)):
    """Examples that are all different: their first value is their number."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_examples, *shape)).astype(np.float32)
    inputs.reshape(num_examples, -1)[:, 0] = np.arange(num_examples)
    return {"inputs": inputs, "labels": rng.integers(0, 3, num_examples)}


def of_split(split, arrays):
    return {f"{split}_{key}": values for key, values in arrays.items()}


@pytest.mark.parametrize("given", [[], ["test"], SPLITS[1:]])
def test_splits_that_are_not_given_are_a_tenth_each(given):
    train = numbered(100)
    test = numbered(7, seed=1)
    arrays = of_split("train", train) if given else train
    for split in given:
        arrays = {**arrays, **of_split(split, test)}
    dataset = dataset_from_arrays(arrays, seed=3)
    carved = [split for split in SPLITS if split not in given]
    assert list(dataset.splits) == SPLITS
    assert [dataset.sizes[split] for split in carved[1:]] == [10] * (len(carved) - 1)
    rows = [dataset.splits[split].inputs[:, 0].astype(int) for split in carved]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(100))
    for split, mine in zip(carved, rows, strict=True):
        np.testing.assert_array_equal(dataset.splits[split].inputs, train["inputs"][mine])
        np.testing.assert_array_equal(dataset.splits[split].targets, train["labels"][mine])
    for split in given:  # As given, order included.
        np.testing.assert_array_equal(dataset.splits[split].inputs, test["inputs"])
    whole = dataset_from_arrays(arrays, hold_out=False)
    assert list(whole.splits) == ["train", *given]
    np.testing.assert_array_equal(whole.splits["train"].targets, train["labels"])


def test_features_are_standardised_by_the_training_split():
    arrays = numbered(100)
    arrays["inputs"][:, 2] = 0.1  # Constant.
    arrays["inputs"][:, 3] = 1e6 + arrays["inputs"][:, 1]
    dataset = dataset_from_arrays(arrays)
    scaled = {
        name: normalise(split.inputs, dataset.shift, dataset.scale)
        for name, split in dataset.splits.items()
    }
    np.testing.assert_allclose(scaled["train"].mean(0)[:3], 0, atol=1e-6)
    np.testing.assert_allclose(scaled["train"].std(0), [1, 1, 0, 1], atol=1e-2)
    assert abs(float(scaled["test"].mean(0)[0])) > 1e-4  # The test split has a mean of its own.
    assert dataset.shift.dtype == dataset.scale.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_are_divided_by_their_largest_value(dtype):
    inputs = np.arange(20 * 12).reshape(20, 2, 6, 1)[::-1].astype(dtype)
    inputs[:, 0, 0] = 239  # In every split.
    dataset = dataset_from_arrays({"inputs": inputs, "labels": [0, 1] * 10})
    assert dataset.input_dtype == dtype
    scaled = normalise(inputs, dataset.shift, dataset.scale)
    np.testing.assert_allclose(scaled, inputs / 239, rtol=1e-6)


# Files.

FEATURES = RNG.normal(3, 2, (60, 4))
PICTURES = RNG.integers(0, 200, (60, 5, 4), np.uint8)
THREE = np.arange(60) % 3
ARRAYS = {
    "features": {"inputs": FEATURES, "labels": THREE},
    "whole numbers": {"inputs": PICTURES.astype(np.int16), "labels": THREE.astype(np.float64)},
    "big endian": {"inputs": FEATURES.astype(">f4"), "labels": THREE.astype(">i8")},
    "targets": {"inputs": FEATURES, "targets": FEATURES[:, 0] ** 2},
    "pictures": {"train_inputs": PICTURES, "train_labels": THREE},
    "splits": {
        **{f"{split}_inputs": PICTURES[:20] / 3 for split in ("train", "validation", "test")},
        **{f"{split}_labels": THREE[:20] for split in ("train", "validation", "test")},
        "class_names": np.array(["a", "b", "c"]),
    },
}


def written(folder, arrays):
    """The names of a folder of npy files and of an npz file."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "all.npz", **arrays)
    return f"npy:{folder}", f"npz:{folder / 'all.npz'}"


@pytest.mark.parametrize("hold_out", [True, False])
@pytest.mark.parametrize("case", ARRAYS)
def test_maps_of_files_are_the_same_data_as_in_memory(case, hold_out, tmp_path):
    names = written(tmp_path, ARRAYS[case])
    mapped, loaded = (load_dataset(name, seed=3, hold_out=hold_out) for name in names)
    assert mapped.sizes == loaded.sizes
    assert mapped.class_names == loaded.class_names
    assert mapped.input_shape == loaded.input_shape
    assert mapped.fingerprint == loaded.fingerprint
    assert mapped.test_fingerprint == loaded.test_fingerprint
    np.testing.assert_array_equal(mapped.shift, loaded.shift)
    np.testing.assert_array_equal(mapped.scale, loaded.scale)
    for split, size in loaded.sizes.items():
        indices = np.random.default_rng(1).integers(0, size, (3, 5))
        for where in (indices, slice(1, 7), slice(None), indices[0]):
            for ours, theirs in zip(mapped.read(split, where), loaded.read(split, where), strict=1):
                assert ours.dtype == theirs.dtype
                np.testing.assert_array_equal(ours, theirs)


def cut(file):
    file.write_bytes(file.read_bytes()[:-8])


def forged(file):
    file.write_bytes(file.read_bytes().replace(b"(60, 4)", b"(10**9, 4)"[:7]))


SPOILED = {
    "no inputs": (lambda f: f.unlink(), "has the arrays y; expected are"),
    "empty": (lambda f: f.write_bytes(b""), "inputs.npy cannot be read"),
    "text": (lambda f: f.write_text("1, 2"), "cannot be read: .*magic string"),
    "cut": (cut, "cannot be read: .*greater than file size"),
    "forged": (forged, "inputs.npy cannot be read"),
    "a folder": (lambda f: (f.parent / "x.npy").mkdir(), "x.npy cannot be read: .*directory"),
    "pickled": (
        lambda f: np.save(f, np.array([{}], object), allow_pickle=True),
        "inputs.npy cannot be read: .*pickles are not read",
    ),
    "lengths": (lambda f: np.save(f, FEATURES[1:]), "labels are 60 of 59 examples"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_files_that_cannot_be_read_are_one_line(spoil, message, tmp_path):
    name, _ = written(tmp_path, ARRAYS["features"])
    spoil(tmp_path / "inputs.npy")
    with pytest.raises(InputError, match=message) as error:
        load_dataset(name)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("spoil", [cut, forged, lambda file: file.write_text("inputs")])
def test_npz_files_that_are_damaged_are_one_line(spoil, tmp_path):
    _, name = written(tmp_path, ARRAYS["features"])
    spoil(tmp_path / "all.npz")
    with pytest.raises(InputError, match=r"all.npz cannot be read: .*correct it"):
        load_dataset(name)
