"""Decoding prepared TFDS sets of images: small ones in every state."""

import json
import struct
import subprocess
import sys

import cv2
import numpy as np
import pytest
import tfds_sets
from conftest import ROOT

from ensemble import UserError
from ensemble.sources import image_memory, tfds_images, tfds_records


@pytest.mark.parametrize("shape", [(6, 5, 1), (6, 5, 3)])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_reads_what_was_written(tmp_path, shape, num_shards):
    splits = tfds_sets.random_splits(shape)
    directory = tfds_sets.write_set(tmp_path, "mnist", splits, num_shards=num_shards)

    records = tfds_images.read_records(directory)

    assert list(records.splits) == ["train", "test"]
    for split, (images, labels) in splits.items():
        np.testing.assert_array_equal(records.splits[split][0], images)
        np.testing.assert_array_equal(records.splits[split][1], labels)
        assert records.splits[split][0].dtype == np.uint8
        assert records.splits[split][1].dtype == np.int32
    assert records.class_names == tuple("0123456789")


def test_class_names_come_from_the_labels_file(tmp_path):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    names = ["T-shirt/top", "ankle boot", *"cdefghij"]
    (directory / "label.labels.txt").write_text("\n".join(names) + "\n")

    assert tfds_images.read_records(directory).class_names == tuple(names)

    (directory / "label.labels.txt").write_text("\n".join(names[:9]))
    with pytest.raises(UserError, match="does not name 10 classes"):
        tfds_images.read_records(directory)


def _rewrite(name, text):
    return lambda directory: (directory / name).write_text(text)


def _folder(name):
    def damage(directory):
        (directory / name).unlink()
        (directory / name).mkdir()

    return damage


def _features(dimensions, num_classes=10):
    def damage(directory):
        features = json.loads((directory / "features.json").read_text())
        fields = features["featuresDict"]["features"]
        fields["image"]["image"]["shape"]["dimensions"] = dimensions
        fields["label"]["classLabel"]["numClasses"] = num_classes
        (directory / "features.json").write_text(json.dumps(features))

    return damage


def _truncate(size):
    def damage(directory):
        file = directory / "mnist-train.array_record-00000-of-00001"
        file.write_bytes(file.read_bytes()[:size])

    return damage


def _replace_records(records):
    return lambda directory: tfds_sets.write_array_record(
        directory / "mnist-test.array_record-00000-of-00001", records
    )


def _wrong_count(directory):
    tfds_sets.write_json_files(directory, {"train": [50], "test": [21]}, (6, 5, 1))


PIXELS = np.zeros((6, 5, 1), np.uint8)
GOOD_PNG = tfds_sets.encode_png(PIXELS)
DAMAGES = {
    "no info": (lambda d: (d / "dataset_info.json").unlink(), "dataset_info.json is missing"),
    "garbage info": (_rewrite("dataset_info.json", "{"), "dataset_info.json is not readable"),
    "binary info": (
        lambda d: (d / "dataset_info.json").write_bytes(b"\xff\xfe\x80"),
        "dataset_info.json is not readable",
    ),
    "list info": (_rewrite("dataset_info.json", "[]"), "does not list splits"),
    "odd info": (
        _rewrite("dataset_info.json", '{"splits": [{"name": 1}]}'),
        "does not list splits",
    ),
    "deep info": (_rewrite("dataset_info.json", "[" * 200_000), "is not readable"),
    "long info": (_rewrite("dataset_info.json", " " * 10_000_001), "more than 10,000,000 bytes"),
    "folder for info": (_folder("dataset_info.json"), "dataset_info.json is missing"),
    "endless info": (
        _rewrite("dataset_info.json", '{"splits": [{"name": "train", "shardLengths": [1e400]}]}'),
        "does not list splits",
    ),
    "no splits": (_rewrite("dataset_info.json", '{"splits": []}'), "lists no shards"),
    "no features": (lambda d: (d / "features.json").unlink(), "features.json is missing"),
    "odd features": (_rewrite("features.json", '{"featuresDict": 1}'), "no image and label"),
    "negative sides": (_features([-8, 8, 1]), "has images of shape"),
    "endless sides": (_features([float("inf"), 8, 1]), "no image and label"),
    "huge sides": (_features([2**16, 2**16, 3]), "more than this machine's memory"),
    "huger sides": (_features([10**12, 10**12, 1]), "has images of shape"),
    "many classes": (_features([6, 5, 1], 10**10), "has 10000000000 classes"),
    "missing shard": (
        lambda d: (d / "mnist-train.array_record-00000-of-00001").unlink(),
        "mnist-train.array_record-00000-of-00001 is missing",
    ),
    "truncated shard": (
        _truncate(70_000),
        "mnist-train.array_record-00000-of-00001 cannot be read",
    ),
    "empty shard": (_truncate(0), "mnist-train.array_record-00000-of-00001 cannot be read"),
    "wrong count": (_wrong_count, "holds 20 examples, dataset_info.json says 21"),
    "no protos": (_replace_records([b"\xff"] * 20), "cannot be decoded"),
    "no features in proto": (_replace_records([b""] * 20), "cannot be decoded"),
    "no png": (_replace_records([tfds_sets.serialise(b"png", 1)] * 20), "cannot be decoded"),
    "empty png": (_replace_records([tfds_sets.serialise(b"", 1)] * 20), "cannot be decoded"),
    "cut png": (
        _replace_records([tfds_sets.serialise(GOOD_PNG[:30], 1)] * 20),
        "cannot be decoded",
    ),
    "wrong size": (
        _replace_records([tfds_sets.serialise(tfds_sets.encode_png(PIXELS[:1]), 1)] * 20),
        "cannot be decoded",
    ),
    "label": (_replace_records([tfds_sets.serialise(GOOD_PNG, 10)] * 20), "label outside 0..9"),
    "big label": (_replace_records([tfds_sets.serialise(GOOD_PNG, 2**40)] * 20), "cannot be"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_set_is_one_clear_line(tmp_path, damage, message):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    damage(directory)

    with pytest.raises(UserError, match=message) as error:
        tfds_images.read_records(tfds_records.find_prepared("mnist", tmp_path))

    assert str(directory) in str(error.value)
    assert "delete this directory" in str(error.value)
    assert "\n" not in str(error.value)


FORGED = {
    "size": ((6, 5, 1), None, "holds an example that cannot be decoded"),
    "sizes": ((-1, -1, 1), None, "the largest image of .* has 400,000,000 pixels, which take"),
    "resized": ((6, 5, 1), (4, 4), "the largest image of .* has 400,000,000 pixels, which take"),
}


@pytest.mark.parametrize("case", FORGED)
def test_an_image_that_memory_cannot_hold_is_not_decoded(tmp_path, monkeypatch, case):
    shape, size, message = FORGED[case]
    splits = {"train": (np.zeros((3, 6, 5, 1), np.uint8), np.arange(3))}
    directory = tfds_sets.write_set(tmp_path, "mnist", splits, shape=shape)
    forged = GOOD_PNG[:16] + struct.pack(">II", 20_000, 20_000) + GOOD_PNG[24:]
    records = [tfds_sets.serialise(one, 1) for one in (forged, GOOD_PNG, GOOD_PNG)]
    tfds_sets.write_array_record(next(directory.glob("*array_record*")), records)
    monkeypatch.setattr(image_memory, "memory_bytes", lambda: 10**9)
    decode = cv2.imdecode

    def imdecode(encoded, flags):
        assert encoded.tobytes() == GOOD_PNG
        return decode(encoded, flags)

    monkeypatch.setattr(cv2, "imdecode", imdecode)
    with pytest.raises(UserError, match=message) as error:
        tfds_images.read_records(directory, size=size)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("module", ["ensemble.sources.tfds_images", "input_pipeline"])
def test_reading_imports_no_tensorflow(tmp_path, module):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    code = (
        f"import json, sys, pathlib, {module}; from ensemble.sources import tfds_images; "
        f"tfds_images.read_records(pathlib.Path({str(directory)!r})); "
        f"print(json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    modules = set(json.loads(output))
    assert "cv2" in modules
    assert not modules & {"tensorflow", "tensorflow_datasets", "sklearn", "PIL"}
