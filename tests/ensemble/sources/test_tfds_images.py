"""Decoding prepared TFDS sets of images: small ones in every state."""

import importlib.util
import json
import os
import struct
import subprocess
import sys

import cv2
import numpy as np
import pytest
import tfds_sets
from conftest import ROOT
from tensorflow_datasets.core import features

from ensemble import UserError
from ensemble.sources import catalogue, image_memory, load_dataset, tfds_images, tfds_records


@pytest.mark.parametrize("shape", [(6, 5, 1), (6, 5, 3)])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_reads_what_was_written(tmp_path, shape, num_shards):
    splits = tfds_sets.random_splits(shape)
    directory = tfds_sets.write_set(tmp_path, "mnist", splits, num_shards=num_shards)

    for split, (images, labels) in splits.items():
        found, classes = tfds_sets.read(directory, split)
        np.testing.assert_array_equal(found, images)
        np.testing.assert_array_equal(classes, labels)
        assert found.dtype == np.uint8
        assert classes.dtype == np.int32
    prepared = tfds_records.PreparedSet(directory)
    assert tfds_images.read_features(prepared).class_names == tuple("0123456789")


def test_a_set_that_was_converted_still_says_tfrecord(tmp_path):
    splits = tfds_sets.random_splits()
    directory = tfds_sets.write_set(tmp_path, "mnist", splits)
    text = (directory / "dataset_info.json").read_text()
    (directory / "dataset_info.json").write_text(text.replace("array_record", "tfrecord"))
    np.testing.assert_array_equal(tfds_sets.read(directory, "test")[0], splits["test"][0])


def test_more_records_than_are_decoded_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_images, "_BYTES_AT_ONCE", 7 * 30)
    splits = tfds_sets.random_splits()
    directory = tfds_sets.write_set(tmp_path, "mnist", splits, num_shards=3)
    for found, given in zip(tfds_sets.read(directory, "train"), splits["train"], strict=True):
        np.testing.assert_array_equal(found, given)


def test_class_names_come_from_the_labels_file(tmp_path):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    names = ["T-shirt/top", "ankle boot", *"cdefghij"]
    (directory / "label.labels.txt").write_text("\n".join(names) + "\n")
    prepared = tfds_records.PreparedSet(directory)
    assert tfds_images.read_features(prepared).class_names == tuple(names)

    (directory / "label.labels.txt").write_text("\n".join(names[:9]))
    with pytest.raises(UserError, match=r"label.labels.txt does not name 10 classes"):
        tfds_images.read_features(tfds_records.PreparedSet(directory))


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


def _promise(size):
    def damage(directory):
        text = (directory / "dataset_info.json").read_text()
        (directory / "dataset_info.json").write_text(text.replace('"20"', f'"{size}"'))

    return damage


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
    "odd info": (_rewrite("dataset_info.json", '{"splits": [1]}'), "does not list splits"),
    "deep info": (_rewrite("dataset_info.json", "[" * 200_000), "is not readable"),
    "long info": (_rewrite("dataset_info.json", " " * 10_000_001), "more than 10,000,000 bytes"),
    "folder for info": (_folder("dataset_info.json"), "dataset_info.json is missing"),
    "endless info": (
        _rewrite("dataset_info.json", '{"splits": [{"name": "train", "shardLengths": [1e400]}]}'),
        "does not list splits",
    ),
    "no splits": (
        _rewrite("dataset_info.json", '{"name": "mnist", "splits": []}'),
        "lists no shards",
    ),
    "no features": (lambda d: (d / "features.json").unlink(), "features.json is missing"),
    "odd features": (_rewrite("features.json", '{"featuresDict": 1}'), "TFDS cannot read it"),
    "deep features": (_rewrite("features.json", "[" * 900 + "]" * 900), "TFDS cannot read it"),
    "negative sides": (_features([-8, 8, 1]), "TFDS cannot read it"),
    "endless sides": (_features([float("inf"), 8, 1]), "TFDS cannot read it"),
    "pipe for names": (lambda d: os.mkfifo(d / "label.labels.txt"), "labels.txt is no file"),
    "long names": (_rewrite("label.labels.txt", "x" * 10_000_001), "more than 10,000,000 bytes"),
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
    "too few": (_promise(21), "holds 20 examples, dataset_info.json says 21"),
    "too many": (_promise(19), "holds 20 examples, dataset_info.json says 19"),
    "negative": (_promise(-20), "holds 20 examples, dataset_info.json says -20"),
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
        "images of 1x5 pixels, not 6x5",
    ),
    "label": (_replace_records([tfds_sets.serialise(GOOD_PNG, 10)] * 20), "label outside 0..9"),
    "big label": (_replace_records([tfds_sets.serialise(GOOD_PNG, 2**40)] * 20), "outside 0..9"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_set_is_one_clear_line(tmp_path, damage, message):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    damage(directory)

    with pytest.raises(UserError, match=message) as error:
        load_dataset("tfds:mnist", str(tmp_path))

    assert str(directory) in str(error.value)
    assert "delete this directory" in str(error.value)
    assert "\n" not in str(error.value)


FORGED = {
    "size": ((6, 5, 1), None, "record 0 of .* an image larger than features.json says"),
    "sizes": ((None, None, 1), None, "an image of .* has 400,000,000 pixels, which take"),
    "resized": ((6, 5, 1), (4, 4), "record 0 of .* has 400,000,000 pixels, which take"),
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
        tfds_sets.read(directory, "train", size)
    assert "\n" not in str(error.value)


STRANGE = {
    "feature": {"pythonClassName": "stranger.Feature"},
    "other name": {"python_class_name": "stranger.Feature"},
    "old": {"type": "stranger.Feature", "content": {}},
    "text": {"jsonFeature": {"json": '{"feature": {"type": "stranger.Feature", "content": {}}}'}},
    "TFDS's tests": {"pythonClassName": "tensorflow_datasets.core.features.stranger.Feature"},
}


@pytest.mark.parametrize("feature", STRANGE.values(), ids=STRANGE)
def test_no_code_of_a_set_is_run(tmp_path, monkeypatch, feature):
    """TFDS imports the module of a feature's class: one that it has not, is refused."""
    for folder in (tmp_path, tmp_path / "package"):
        folder.mkdir(exist_ok=True)
        (folder / "stranger.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(features, "__path__", [*features.__path__, str(tmp_path / "package")])
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    content = json.loads((directory / "features.json").read_text())
    content["featuresDict"]["features"]["more"] = feature
    (directory / "features.json").write_text(json.dumps(content))
    with pytest.raises(
        UserError, match=r"class .*stranger\.Feature, which is not of tensorflow_datasets"
    ) as error:
        tfds_records.PreparedSet(directory)
    assert str(directory) in str(error.value)
    assert "\n" not in str(error.value)


def test_files_elsewhere_are_not_read(tmp_path):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    file = "mnist-train.array_record-00000-of-00001"
    (directory / file).rename(tmp_path / file)
    info = json.loads((directory / "dataset_info.json").read_text())
    template = "../../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    info["splits"][0]["filepathTemplate"] = template
    (directory / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="would lie elsewhere"):
        tfds_records.PreparedSet(directory)


def test_one_damaged_record_is_named_and_the_others_are_read(tmp_path):
    """Its checksum is wrong."""
    splits = tfds_sets.random_splits((20, 20, 3))
    directory = tfds_sets.write_set(tmp_path, "mnist", splits, num_shards=2)
    file = directory / "mnist-train.array_record-00001-of-00002"
    encoded = tfds_sets.encode_png(splits["train"][0][35])
    content = file.read_bytes()
    assert content.count(encoded[60:100]) == 1
    file.write_bytes(content.replace(encoded[60:100], bytes(40)))
    prepared = tfds_records.PreparedSet(directory)
    stored = tfds_images.PreparedImages(prepared, tfds_images.read_features(prepared), "train")
    with pytest.raises(UserError, match=f"record 10 of {file.name}: ") as error:
        stored[:]
    assert "\n" not in str(error.value)
    rows = np.array([40, 3, 34, 36])
    np.testing.assert_array_equal(stored[rows], splits["train"][0][rows])


def test_without_tfds_the_extra_is_named(tmp_path, monkeypatch):
    tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    for name in ("mnist", "tfds:mnist"):
        with pytest.raises(UserError, match=r"pip install 'flax-ensembles\[tfds\]'") as error:
            load_dataset(name, str(tmp_path))
        assert "\n" not in str(error.value)
    assert catalogue.sets_of_shape((28, 28, 1), str(tmp_path)) == []


@pytest.mark.check
def test_reading_imports_no_tensorflow_and_tfds_only_where_a_set_is_asked_for(tmp_path):
    tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    broken = tmp_path / "stub"
    broken.mkdir()
    (broken / "tensorflow.py").write_text("raise SystemExit('TensorFlow is imported')")
    code = f"""
import sys, input_pipeline, ensemble.sources.image_sets
input_pipeline.load_dataset("digits")
assert ensemble.sources.image_sets.is_prepared("mnist", {str(tmp_path)!r})
assert "tensorflow_datasets" not in sys.modules
input_pipeline.load_dataset("tfds:mnist", {str(tmp_path)!r})
assert "tensorflow_datasets" in sys.modules
assert "tensorflow" not in sys.modules
sys.modules.pop("tensorflow", None)
try:
    import tensorflow
except SystemExit:
    pass
else:
    raise AssertionError("the stub is not in the way")
"""
    command = [sys.executable, "-W", "error", "-c", code]
    variables = {**os.environ, "PYTHONPATH": str(broken)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr == done.stdout == ""
