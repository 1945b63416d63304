"""Any TFDS set of images and class labels, by its own description."""

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tfds_sets

from ensemble import UserError
from ensemble.sources import catalogue, load_dataset, tfds_records
from ensemble.sources.catalogue import load_test_inputs

SPLITS = ["train", "validation", "calibration", "test"]


def _split(size, shape=(6, 5, 3), seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (size, *shape), np.uint8), np.arange(size) % 10


def _varying(size):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (8 + i % 3, 9 + i % 5, 3), np.uint8) for i in range(size)]
    return images, np.arange(size) % 10


def test_splits_of_its_own_are_taken_and_the_others_carved(tmp_path):
    given = {"train": _split(100), "validation": _split(20, seed=1), "test": _split(30, seed=2)}
    given["extra"] = _split(5, seed=3)
    directory = tfds_sets.write_set(tmp_path, "beans", given, num_shards=2)
    (directory / "label.labels.txt").write_text("\n".join(f"kind {i}" for i in range(10)))
    dataset = load_dataset("tfds:beans", str(tmp_path))
    assert dataset.sizes == dict(zip(SPLITS, (90, 20, 10, 30), strict=True))
    assert dataset.class_names[9] == "kind 9"
    for split in ("validation", "test"):
        np.testing.assert_array_equal(dataset.splits[split].inputs, given[split][0])
        np.testing.assert_array_equal(dataset.splits[split].targets, given[split][1])
    carved = np.concatenate([dataset.splits[split].inputs for split in ("train", "calibration")])
    assert {image.tobytes() for image in carved} == {image.tobytes() for image in given["train"][0]}
    assert dataset.scale * 255 == pytest.approx(1)
    inputs = load_test_inputs("tfds:beans", str(tmp_path))
    np.testing.assert_array_equal(inputs[:], given["test"][0])


def test_a_set_with_training_examples_alone_is_a_pool(tmp_path):
    tfds_sets.write_set(tmp_path, "emnist/letters", {"train": _split(100, (4, 4, 1))})
    dataset = load_dataset("tfds:emnist/letters", str(tmp_path))
    assert list(dataset.sizes.values()) == [70, 10, 10, 10]
    assert dataset.input_shape == (4, 4, 1)
    assert len(load_test_inputs("tfds:emnist/letters", str(tmp_path))) == 100
    assert list(load_dataset("tfds:emnist/letters", str(tmp_path), hold_out=False).sizes) == [
        "train"
    ]
    assert load_dataset("tfds:emnist/letters", str(tmp_path), 5).fingerprint != dataset.fingerprint
    with pytest.raises(UserError, match=r"configurations.*letters"):
        load_dataset("tfds:emnist", str(tmp_path))


def test_images_of_any_size_become_one(tmp_path):
    tfds_sets.write_set(tmp_path, "pets", {"train": _varying(60)}, shape=(None, None, 3))
    with pytest.raises(UserError, match=r"8x9.*9x10.*config\.resize"):
        load_dataset("tfds:pets", str(tmp_path))
    dataset = load_dataset("tfds:pets", str(tmp_path), resize="7x6")
    assert dataset.input_shape == (7, 6, 3)
    assert dataset.sizes["train"] == 42


def test_a_resized_image_is_that_of_a_folder(tmp_path):
    import PIL.Image

    images, labels = _varying(20)
    tfds_sets.write_set(tmp_path, "pets", {"train": (images, labels % 2)}, shape=(None, None, 3))
    for i, image in enumerate(images):
        (tmp_path / "folder" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image).save(tmp_path / "folder" / str(i % 2) / f"{i:02}.png")
    rows = [
        np.sort([image.tobytes() for image in load_test_inputs(name, str(tmp_path), (7, 6))[:]])
        for name in ("tfds:pets", f"folder:{tmp_path / 'folder'}")
    ]
    np.testing.assert_array_equal(*rows)


def test_sizes_that_happen_to_be_equal_need_no_resizing(tmp_path):
    images, labels = _split(40)
    tfds_sets.write_set(
        tmp_path, "pets", {"train": (images, labels)}, shape=(None, None, 3), num_shards=3
    )
    assert load_dataset("tfds:pets", str(tmp_path)).input_shape == (6, 5, 3)


def test_what_is_learned_from_what_the_set_says(tmp_path):
    """Two labels, and other names than image and label."""
    coarse = {"coarse": tfds.features.ClassLabel(num_classes=2), "id": tfds.features.Text()}
    splits = {"train": _split(60)}
    directory = tfds_sets.write_set(
        tmp_path, "cifar100", splits, keys=("photo", "fine"), more_features=coarse
    )
    assert load_dataset("tfds:cifar100", str(tmp_path)).sizes["train"] == 42
    info = json.loads((directory / "dataset_info.json").read_text())
    info["supervisedKeys"] = {"input": "photo", "output": "fine"}  # As older versions write it.
    (directory / "dataset_info.json").write_text(json.dumps(info))
    assert len(load_dataset("tfds:cifar100", str(tmp_path)).class_names) == 10
    del info["supervisedKeys"]
    (directory / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="class label"):
        load_dataset("tfds:cifar100", str(tmp_path))


IMAGE = tfds.features.Image(shape=(6, 5, 3))
LABEL = tfds.features.ClassLabel(num_classes=2)
OTHERS = {
    "reviews": (
        {"text": tfds.features.Text(), "label": LABEL},
        r"it holds label \(ClassLabel\), text \(Text\); take another set",
    ),
    "boxes": (
        {"image": IMAGE, "objects": tfds.features.Sequence({"name": tfds.features.Text()})},
        r"it holds image \(Image\), objects \(Sequence\)",
    ),
    "floats": (
        {"image": tfds.features.Image(shape=(6, 5, 1), dtype=np.float32), "label": LABEL},
        "has images of float32, not of 8 bits per channel",
    ),
}


@pytest.mark.parametrize(("features", "message"), OTHERS.values(), ids=OTHERS)
def test_a_set_of_another_kind_is_named(tmp_path, features, message):
    directory = tfds_sets.write_set(tmp_path, "other", {"train": _split(20)})
    tfds.features.FeaturesDict(features).save_config(directory)
    with pytest.raises(UserError, match=message) as error:
        load_dataset("tfds:other", str(tmp_path))
    assert "delete" not in str(error.value)
    assert "\n" not in str(error.value)


def test_secret_labels_and_sets_without_training_examples(tmp_path, caplog):
    images, labels = _split(30, seed=1)
    splits = {"train": _split(60), "test": (images, np.full(30, -1))}
    tfds_sets.write_set(tmp_path, "contest", splits)
    assert load_dataset("tfds:contest", str(tmp_path)).sizes["test"] == 6
    assert "the split test has no labels, and is not used" in caplog.text
    tfds_sets.write_set(tmp_path, "corrupted", {"test": (images, labels)})
    with pytest.raises(UserError, match=r"corrupted.*training.*test"):
        load_dataset("tfds:corrupted", str(tmp_path))
    assert len(load_test_inputs("tfds:corrupted", str(tmp_path))) == 30
    labels = np.where(labels > 5, -1, labels)
    tfds_sets.write_set(tmp_path, "partly", {"train": _split(60), "test": (images, labels)})
    with pytest.raises(UserError, match="only some examples of test have a label"):
        load_dataset("tfds:partly", str(tmp_path))


def test_a_runs_directory_is_found_for_any_set(tmp_path):
    tfds_sets.write_set(tmp_path, "beans", {"train": _split(20)})
    assert tfds_records.data_dir_of_run("tfds:beans", str(tmp_path)) == str(tmp_path)
    assert tfds_records.data_dir_of_run("tfds:peas", str(tmp_path)) is None
    assert catalogue.find_entry("tfds:beans").can_resize


@pytest.mark.check
@pytest.mark.parametrize("name", ["mnist", pytest.param("fashion_mnist", marks=pytest.mark.soak)])
def test_a_known_set_by_either_name_has_the_same_pixels(name):
    data_dir = tfds_sets.real_data_dir(name)
    known, any_set = load_dataset(name, data_dir), load_dataset(f"tfds:{name}", data_dir)
    assert list(any_set.sizes.values()) == [48_000, 6_000, 6_000, 10_000]
    assert any_set.class_names == known.class_names
    for part in zip(known.splits["test"], any_set.splits["test"], strict=True):
        np.testing.assert_array_equal(*part)
    totals = [
        np.sum(
            [one.splits[split].inputs.sum(axis=0, dtype=np.int64) for split in SPLITS[:3]], axis=0
        )
        for one in (known, any_set)
    ]
    np.testing.assert_array_equal(*totals)
