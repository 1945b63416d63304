"""Data sets, splits, batch order, augmentation, class weights."""

import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
import sklearn.datasets
import sklearn.utils.class_weight
import tfds_sets
from conftest import ROOT

import input_pipeline
from ensemble import UserError
from ensemble.sources import catalogue, image_sets

SPLITS = ["train", "validation", "calibration", "test"]


def _arrays(num_examples, num_classes=3, shape=(2,), seed=0):
    """Examples that are all different (their first value is their number)."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_examples, *shape)).astype(np.float32)
    inputs.reshape(num_examples, -1)[:, 0] = np.arange(num_examples)
    return {"inputs": inputs, "labels": rng.integers(0, num_classes, num_examples)}


def _numbers(split):
    """The numbers of a split's examples, where `_arrays` made them."""
    return split.inputs.reshape(len(split.inputs), -1)[:, 0].astype(int)


def test_digits_are_scikit_learns():
    dataset = input_pipeline.load_dataset("digits")
    splits = dataset.splits
    assert list(splits) == SPLITS
    assert [len(split.targets) for split in splits.values()] == [1197, 150, 150, 300]
    assert dataset.input_shape == (8, 8, 1)
    assert len(dataset.class_names) == 10
    assert dataset.class_names == tuple("0123456789")

    inputs = np.concatenate([split.inputs for split in splits.values()])
    labels = np.concatenate([split.targets for split in splits.values()])
    assert inputs.dtype == np.uint8
    assert labels.dtype == np.int32
    bundled = sklearn.datasets.load_digits()
    rows = np.column_stack([inputs.reshape(-1, 64), labels])
    expected = np.column_stack([bundled.data, bundled.target])
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])

    scaled = input_pipeline.normalise(inputs, dataset.shift, dataset.scale)
    assert scaled.dtype == jnp.float32
    assert (scaled.min(), scaled.max()) == (0, 1)


def test_digits_are_stratified_and_the_same_for_every_seed():
    splits = input_pipeline.load_dataset("digits", seed=0).splits
    counts = np.array([np.bincount(split.targets, minlength=10) for split in splits.values()])
    share = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    assert np.abs(counts - share).max() <= 1
    other = input_pipeline.load_dataset("digits", seed=5)
    assert other.fingerprint == input_pipeline.load_dataset("digits").fingerprint


@pytest.mark.check
def test_digits_import_no_scikit_learn():
    code = (
        "import sys, input_pipeline; input_pipeline.load_dataset('digits'); "
        "print(*{'sklearn', 'scipy', 'cv2', 'PIL', 'tensorflow'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "sklearn" not in output
    assert "cv2" not in output
    assert "tensorflow" not in output


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "mean_pixel", "class_name"),
    [("mnist", 0.1307, "9"), ("fashion_mnist", 0.2860, "Ankle boot")],
)
def test_real_sets(name, mean_pixel, class_name):
    """The published means are those of all 60,000 training images; TFDS shuffles the order."""
    dataset = input_pipeline.load_dataset(name, tfds_sets.real_data_dir(name))
    splits = dataset.splits
    assert list(splits) == SPLITS
    assert [len(split.targets) for split in splits.values()] == [50_000, 5_000, 5_000, 10_000]
    assert dataset.input_shape == (28, 28, 1)
    assert dataset.class_names[9] == class_name
    images = np.concatenate([splits[split_name].inputs for split_name in SPLITS[:3]])
    assert images.dtype == np.uint8
    np.testing.assert_allclose(images.mean() / 255, mean_pixel, atol=5e-5)
    counts = np.bincount(np.concatenate([splits[split_name].targets for split_name in SPLITS[:3]]))
    mnist_counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(counts, mnist_counts if name == "mnist" else [6000] * 10)
    scaled = input_pipeline.normalise(splits["test"].inputs[:100], dataset.shift, dataset.scale)
    assert (scaled.min(), scaled.max()) == (0, 1)


@pytest.fixture
def small_mnist(monkeypatch, tmp_path):
    """A prepared `mnist` of 50 training and 20 test images; returns (data_dir, its arrays)."""
    monkeypatch.setitem(image_sets.TFDS_SIZES, "mnist", (40, 7, 3, 20))
    splits = tfds_sets.random_splits()
    tfds_sets.write_set(tmp_path, "mnist", splits)
    return tmp_path, splits


def test_tfds_splits_are_consecutive(small_mnist):
    data_dir, written = small_mnist
    splits = input_pipeline.load_dataset("mnist", str(data_dir)).splits
    for split_name, part in (
        ("train", slice(0, 40)),
        ("validation", slice(40, 47)),
        ("calibration", slice(47, 50)),
    ):
        np.testing.assert_array_equal(splits[split_name].inputs, written["train"][0][part])
        np.testing.assert_array_equal(splits[split_name].targets, written["train"][1][part])
    np.testing.assert_array_equal(splits["test"].inputs, written["test"][0])


def test_tfds_directory_by_variable_and_relative_path(small_mnist, monkeypatch):
    data_dir, _ = small_mnist
    expected = input_pipeline.load_dataset("mnist", str(data_dir)).fingerprint
    monkeypatch.chdir(data_dir.parent)
    assert input_pipeline.load_dataset("mnist", data_dir.name).fingerprint == expected
    monkeypatch.setenv("HOME", str(data_dir.parent))
    monkeypatch.setenv("TFDS_DATA_DIR", f"~/{data_dir.name}")
    assert input_pipeline.load_dataset("mnist").fingerprint == expected


def test_tfds_set_of_another_size_is_refused(small_mnist, monkeypatch):
    data_dir, _ = small_mnist
    monkeypatch.setitem(image_sets.TFDS_SIZES, "mnist", (41, 7, 3, 20))
    with pytest.raises(UserError, match=r"'train': 50.*'train': 51") as error:
        input_pipeline.load_dataset("mnist", str(data_dir))
    assert "delete this directory" in str(error.value)


def test_a_damaged_set_that_nobody_asked_for_is_left_out(small_mnist, caplog):
    data_dir, shape = small_mnist[0], (28, 28, 1)
    assert "mnist" in catalogue.sets_of_shape(shape, str(data_dir))
    next(data_dir.rglob("dataset_info.json")).write_text("{")
    with caplog.at_level(logging.WARNING):
        assert "mnist" not in catalogue.sets_of_shape(shape, str(data_dir))
    assert "mnist is left out " in caplog.text
    caplog.clear()
    assert catalogue.sets_of_shape(shape, "gs://bucket/tfds") == []
    assert "must be a local directory" in caplog.text


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("minst", "did you mean mnist?"),
        ("fashion-mnist", "did you mean fashion_mnist?"),
        ("npz:", "npz:PATH"),
        (
            "",
            "digits, clutter, grouped_clutter, mnist, fashion_mnist, kmnist, cifar10, diabetes",
        ),
        ("tar:x", "known are"),
    ],
)
def test_unknown_names_list_the_known(name, hint):
    with pytest.raises(UserError, match="is unknown; known are digits") as error:
        input_pipeline.load_dataset(name)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mine.xlsx", "table.*CSV.*csv:PATH"),
        ("mine.csv", "is a path; write csv:mine.csv"),
        ("mine.npz", "is a path; write npz:mine.npz"),
        (os.path.dirname(__file__), f"is a path; write folder:{os.path.dirname(__file__)}"),
    ],
    ids=["a table", "CSV", "npz", "a folder"],
)
def test_paths_without_a_prefix_are_told_how_to_write_them(name, hint):
    with pytest.raises(UserError, match=hint):
        input_pipeline.load_dataset(name)
    with pytest.raises(UserError, match=hint):
        catalogue.complete({"dataset": name, "likelihood": "auto"}, None)


@pytest.mark.parametrize("name", ["npz:PATH", "folder:PATH", "csv:PATH"])
def test_a_place_for_a_path_is_not_looked_for(name):
    prefix = name.partition(":")[0]
    with pytest.raises(UserError, match=rf"--config.dataset={prefix}:\.\.\."):
        input_pipeline.load_dataset(name)


def test_npz_and_folder_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", **_arrays(40))
    dataset = input_pipeline.load_dataset(f"npz:{tmp_path / 'a.npz'}")
    assert dataset.name == f"npz:{tmp_path / 'a.npz'}"
    assert dataset.input_shape == (2,)

    for index in range(10):
        file = tmp_path / "pictures" / "ab"[index % 2] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((4, 3), index, np.uint8)).save(file)
    dataset = input_pipeline.load_dataset(f"folder:{tmp_path / 'pictures'}")
    assert dataset.class_names == ("a", "b")
    assert dataset.input_shape == (4, 3, 1)
    for split in dataset.splits.values():
        np.testing.assert_array_equal(split.inputs[:, 0, 0, 0] % 2, split.targets)
    with pytest.raises(UserError, match=r"no\.npz"):
        input_pipeline.load_dataset(f"npz:{tmp_path / 'no.npz'}")


def test_own_pool_is_split_70_10_10_10():
    arrays = _arrays(200)
    dataset = input_pipeline.dataset_from_arrays(arrays, seed=3)
    assert list(dataset.splits) == SPLITS
    assert [len(split.targets) for split in dataset.splits.values()] == [140, 20, 20, 20]
    numbers = np.concatenate([_numbers(split) for split in dataset.splits.values()])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(200))
    for split in dataset.splits.values():
        np.testing.assert_array_equal(split.inputs, arrays["inputs"][_numbers(split)])
        np.testing.assert_array_equal(split.targets, arrays["labels"][_numbers(split)])


def test_own_split_depends_on_the_seed_alone():
    arrays = _arrays(200)
    prints = [input_pipeline.dataset_from_arrays(arrays, seed=s).fingerprint for s in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
    with pytest.raises(UserError, match="seed=-1 "):
        input_pipeline.dataset_from_arrays(arrays, seed=-1)


def test_what_is_not_given_is_carved_from_train():
    train, test = _arrays(100), _arrays(7, seed=1)
    arrays = {f"train_{key}": value for key, value in train.items()}
    arrays |= {f"test_{key}": value for key, value in test.items()}
    dataset = input_pipeline.dataset_from_arrays(arrays)
    assert [len(split.targets) for split in dataset.splits.values()] == [80, 10, 10, 7]
    np.testing.assert_array_equal(dataset.splits["test"].inputs, test["inputs"])
    numbers = np.concatenate([_numbers(dataset.splits[split]) for split in SPLITS[:3]])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(100))

    for split_name in SPLITS[1:]:
        arrays |= {f"{split_name}_{key}": value for key, value in test.items()}
    dataset = input_pipeline.dataset_from_arrays(arrays)
    assert list(dataset.splits) == SPLITS
    for split_name in SPLITS:  # As given, order included.
        given = train if split_name == "train" else test
        np.testing.assert_array_equal(dataset.splits[split_name].inputs, given["inputs"])
        np.testing.assert_array_equal(dataset.splits[split_name].targets, given["labels"])


def test_few_examples():
    for num_examples in (4, 5, 7, 11):
        arrays = _arrays(num_examples, 2) | {"labels": np.arange(num_examples) % 2}
        splits = input_pipeline.dataset_from_arrays(arrays).splits
        assert sum(len(split.targets) for split in splits.values()) == num_examples
        assert min(len(split.targets) for split in splits.values()) >= 1
    arrays = {"inputs": np.zeros((3, 2)), "labels": [0, 1, 0]}
    with pytest.raises(UserError, match=r"3 examples.*validation"):
        input_pipeline.dataset_from_arrays(arrays)


def test_an_absent_training_class_is_a_warning(caplog):
    arrays = _arrays(40) | {"class_names": ["a", "b", "c", "never"]}
    with caplog.at_level("WARNING"):
        dataset = input_pipeline.dataset_from_arrays(arrays, name="mine")
    assert len(dataset.class_names) == 4
    assert ": never." in caplog.text


def test_features_are_standardised_by_the_training_split():
    arrays = _arrays(100, shape=(4,))
    arrays["inputs"][:, 2] = 0.1  # constant
    arrays["inputs"][:, 3] = 1e6 + arrays["inputs"][:, 1]
    dataset = input_pipeline.dataset_from_arrays(arrays)
    scaled = {
        split_name: input_pipeline.normalise(split.inputs, dataset.shift, dataset.scale)
        for split_name, split in dataset.splits.items()
    }
    np.testing.assert_allclose(scaled["train"].mean(0)[:3], 0, atol=1e-6)
    np.testing.assert_allclose(scaled["train"].std(0), [1, 1, 0, 1], atol=1e-2)
    assert abs(float(scaled["test"].mean(0)[0])) > 1e-4  # The test split has a mean of its own.
    assert all(np.isfinite(values).all() for values in scaled.values())
    assert dataset.shift.dtype == dataset.scale.dtype == np.float32


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1 / 239), (np.float32, 1 / 239)])
def test_own_images_are_scaled_by_type(dtype, scale):
    inputs = np.arange(20 * 12).reshape(20, 2, 6, 1)[::-1].astype(dtype)
    inputs[:] = np.maximum(inputs, 239 * (np.arange(12) == 0).reshape(2, 6, 1))  # In every split.
    dataset = input_pipeline.dataset_from_arrays({"inputs": inputs, "labels": [0, 1] * 10})
    assert dataset.splits["train"].inputs.dtype == dtype
    np.testing.assert_allclose(
        input_pipeline.normalise(inputs, dataset.shift, dataset.scale), inputs * scale, rtol=1e-6
    )


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 2), (-1, 1), (-12, 15)])
def test_own_float_images_of_a_usual_range_stay_as_they_are(low, high):
    inputs = np.linspace(low, high, 240, dtype=np.float32).reshape(20, 2, 6, 1)
    dataset = input_pipeline.dataset_from_arrays({"inputs": inputs, "labels": [0, 1] * 10})
    assert (dataset.shift, dataset.scale) == (0, 1)


def test_fingerprint_changes_with_content():
    arrays = _arrays(40, shape=(2, 3, 1))
    expected = input_pipeline.dataset_from_arrays(arrays).fingerprint
    assert len(expected) == 16
    assert input_pipeline.dataset_from_arrays(arrays, name="renamed").fingerprint == expected
    changed = arrays | {"inputs": arrays["inputs"].copy()}
    changed["inputs"][7, 1, 2] += 1
    assert input_pipeline.dataset_from_arrays(changed).fingerprint != expected
    changed = arrays | {"labels": 2 - arrays["labels"]}
    assert input_pipeline.dataset_from_arrays(changed).fingerprint != expected
    changed = arrays | {"inputs": arrays["inputs"].reshape(40, 3, 2, 1)}
    assert input_pipeline.dataset_from_arrays(changed).fingerprint != expected


def test_stratified_split_of_rare_classes():
    labels = np.array([0] * 100 + [1] * 10 + [2] * 2 + [3])
    parts = input_pipeline.stratified_split(labels, (80, 11, 11, 11), seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(113))
    assert set(labels[parts[0]]) == {0, 1, 2, 3}
    for part in parts:
        counts = np.bincount(labels[part], minlength=4)
        assert np.abs(counts - np.array([100, 10, 2, 1]) * len(part) / 113).max() <= 1.5


def test_every_prefix_of_a_split_is_stratified():
    labels = np.repeat(np.arange(5), 40)
    train = input_pipeline.stratified_split(labels, (150, 50), seed=1)[0]
    for size in (5, 20, 60):
        assert set(np.bincount(labels[train[:size]])) == {size // 5}


@pytest.mark.parametrize("num_examples", [1, 5, 8, 13, 97])
@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_every_example_once_an_epoch(num_examples, batch_size):
    indices, weights = input_pipeline.epoch_batches(num_examples, batch_size, seed=0, epoch=2)
    assert indices.shape == weights.shape == (-(-num_examples // batch_size), batch_size)
    assert indices.dtype == np.int32
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(np.sort(indices[weights == 1]), np.arange(num_examples))
    assert weights.sum() == num_examples
    assert (weights[:-1] == 1).all()


def test_padding_repeats_the_last_batchs_own_examples():
    indices, weights = input_pipeline.epoch_batches(13, 8, seed=0, epoch=0)
    np.testing.assert_array_equal(weights[1], [1, 1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(indices[1, 5:], indices[1, :3])
    indices, weights = input_pipeline.epoch_batches(2, 5, seed=0, epoch=0)
    np.testing.assert_array_equal(indices[0], indices[0, [0, 1, 0, 1, 0]])


@pytest.mark.check
def test_order_is_a_function_of_seed_epoch_and_member():
    def order(*args):
        return tuple(input_pipeline.epoch_batches(50, 50, *args)[0][0])

    streams = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert len({order(*stream) for stream in streams}) == len(streams)
    assert all(order(*stream) == order(*stream) for stream in streams)
    code = "import input_pipeline as p; print(*p.epoch_batches(50, 50, 1, 2, 3)[0][0])"
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert tuple(map(int, output.split())) == order(1, 2, 3)


@pytest.mark.parametrize(
    ("args", "message"),
    [((0, 8, 0, 0), "num_examples=0"), ((8, 0, 0, 0), "batch_size=0"), ((8, 8, -1, 0), "seed=-1")],
)
def test_batches_that_are_refused(args, message):
    with pytest.raises(UserError, match=f"{message} must"):
        input_pipeline.epoch_batches(*args)


_augment = jax.jit(input_pipeline.augment, static_argnums=(2, 3))


def _keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@pytest.mark.parametrize("shape", [(6, 7, 1), (5, 5, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_augment_keeps_shape_and_type(shape, dtype):
    images = jnp.ones((4, *shape), dtype)
    augmented = _augment(_keys(4), images, 2, True)
    assert augmented.shape == images.shape
    assert augmented.dtype == images.dtype


@pytest.mark.check
def test_augment_shifts_with_zeros_up_to_the_limit():
    """One bright pixel in the middle ends up everywhere within the limit, and nowhere else."""
    images = jnp.zeros((500, 9, 9, 1), jnp.uint8).at[:, 4, 4].set(200)
    moved = np.asarray(_augment(_keys(500), images, 2, False))
    np.testing.assert_array_equal(moved.sum((1, 2, 3)), 200)
    _, rows, columns, _ = np.nonzero(moved)
    assert {*zip(rows, columns, strict=True)} == {(r, c) for r in range(2, 7) for c in range(2, 7)}

    edge = jnp.zeros((500, 3, 3, 1), jnp.uint8).at[:, 0, 0].set(200)
    sums = np.asarray(_augment(_keys(500), edge, 1, False)).sum((1, 2, 3))
    assert set(sums) == {0, 200}  # What leaves on one side does not come back on the other.


def test_augment_flips_half_of_the_images_left_to_right():
    image = jnp.arange(12, dtype=jnp.uint8).reshape(3, 4, 1)
    flipped = np.asarray(_augment(_keys(400), jnp.stack([image] * 400), 0, True))
    is_same = (flipped == np.asarray(image)).all((1, 2, 3))
    is_mirrored = (flipped == np.asarray(image)[:, ::-1]).all((1, 2, 3))
    assert (is_same ^ is_mirrored).all()
    assert 140 < is_mirrored.sum() < 260  # 6 standard deviations


def test_augment_uses_one_key_per_image():
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (6, 8, 8, 1), np.uint8))
    keys = _keys(6)
    together = _augment(keys, images, 3, True)
    np.testing.assert_array_equal(together[::-1], _augment(keys[::-1], images[::-1], 3, True))
    assert not (together == _augment(_keys(6, seed=1), images, 3, True)).all()


def test_digits_that_hold_nothing_out_train_on_all_but_the_test_split():
    held = input_pipeline.load_dataset("digits").splits
    dataset = input_pipeline.load_dataset("digits", hold_out=False)
    assert list(dataset.splits) == ["train", "test"]
    np.testing.assert_array_equal(dataset.splits["test"].inputs, held["test"].inputs)
    joined = [held[name].inputs for name in ("train", "validation", "calibration")]
    np.testing.assert_array_equal(dataset.splits["train"].inputs, np.concatenate(joined))


def test_own_data_that_hold_nothing_out_keep_the_splits_they_have():
    inputs, labels = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    pool = {"inputs": inputs, "labels": labels}
    dataset = input_pipeline.dataset_from_arrays(pool, hold_out=False)
    assert list(dataset.splits) == ["train"]
    np.testing.assert_array_equal(dataset.splits["train"].targets, labels)
    given = {f"{s}_{k}": v for s in ("train", "test") for k, v in pool.items()}
    dataset = input_pipeline.dataset_from_arrays(given, hold_out=False)
    assert {name: len(split.targets) for name, split in dataset.splits.items()} == {
        "train": 20,
        "test": 20,
    }


def test_augment_without_shift_and_flip_changes_nothing():
    images = jnp.arange(18, dtype=jnp.uint8).reshape(2, 3, 3, 1)
    np.testing.assert_array_equal(_augment(_keys(2), images, 0, False), images)
