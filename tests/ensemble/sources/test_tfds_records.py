"""Reading prepared TFDS sets: small ones in every state, and the real ones where they are."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tfds_sets
from conftest import ROOT

from ensemble.errors import UserError
from ensemble.sources import tfds_records


@pytest.mark.parametrize("shape", [(6, 5, 1), (6, 5, 3)])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_reads_what_was_written(tmp_path, shape, num_shards):
    splits = tfds_sets.random_splits(shape)
    directory = tfds_sets.write_set(tmp_path, "mnist", splits, num_shards=num_shards)

    records = tfds_records.read_records(directory)

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

    assert tfds_records.read_records(directory).class_names == tuple(names)

    (directory / "label.labels.txt").write_text("\n".join(names[:9]))
    with pytest.raises(UserError, match="does not name 10 classes"):
        tfds_records.read_records(directory)


def test_the_newest_version_is_found_and_leftovers_are_not(tmp_path):
    assert tfds_records.find_prepared("mnist", tmp_path) is None
    (tmp_path / "mnist" / "incomplete.ABC123_3.0.1").mkdir(parents=True)
    assert tfds_records.find_prepared("mnist", tmp_path) is None
    for version in ("3.0.9", "3.0.10", "2.9.9"):
        tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits(), version)

    assert tfds_records.find_prepared("mnist", tmp_path) == tmp_path / "mnist" / "3.0.10"


def test_a_tfrecord_set_counts_as_not_prepared(tmp_path):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    test_shard = directory / "mnist-test.array_record-00000-of-00001"
    for shard in (test_shard, directory / "mnist-train.array_record-00000-of-00001"):
        (directory / shard.name.replace("array_record", "tfrecord")).touch()

    test_shard.unlink()  # A conversion that was interrupted: half in either format.
    assert tfds_records.find_prepared("mnist", tmp_path) is None

    (directory / "mnist-test.tfrecord-00000-of-00001").unlink()
    with pytest.raises(UserError, match=r"mnist-test.array_record-00000-of-00001 is missing"):
        tfds_records.find_prepared("mnist", tmp_path)


def test_a_runs_data_dir_is_only_read(tmp_path):
    """A set that would have to be prepared there is not looked for there."""
    assert tfds_records.data_dir_of_run("mnist", "") is None
    assert tfds_records.data_dir_of_run("mnist", str(tmp_path / "nowhere")) is None
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    assert tfds_records.data_dir_of_run("mnist", str(tmp_path)) == str(tmp_path)
    for shard in directory.glob("*array_record*"):
        shard.rename(directory / shard.name.replace("array_record", "tfrecord"))
    assert tfds_records.data_dir_of_run("mnist", str(tmp_path)) is None


@pytest.mark.parametrize("key", ["name", "split"])
def test_names_that_lead_elsewhere_are_refused(tmp_path, key):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    info = json.loads((directory / "dataset_info.json").read_text())
    (info if key == "name" else info["splits"][0])["name"] = "../../elsewhere"
    (directory / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="does not list splits and shards"):
        tfds_records.read_shards(directory)


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
        tfds_records.read_records(tfds_records.find_prepared("mnist", tmp_path))

    assert str(directory) in str(error.value)
    assert "delete this directory" in str(error.value)
    assert "\n" not in str(error.value)


def test_data_directory_expands_and_defaults(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    assert tfds_records.data_directory(None) == tmp_path / "tensorflow_datasets"
    assert tfds_records.data_directory("~/sets") == tmp_path / "sets"
    monkeypatch.setenv("TFDS_DATA_DIR", "~/elsewhere")
    assert tfds_records.data_directory(None) == tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path)
    assert tfds_records.data_directory("here") == tmp_path / "here"
    with pytest.raises(UserError, match="gs://bucket must be a local directory"):
        tfds_records.data_directory("gs://bucket")


@pytest.mark.parametrize("module", ["ensemble.sources.tfds_records", "input_pipeline"])
def test_reading_imports_no_tensorflow(tmp_path, module):
    directory = tfds_sets.write_set(tmp_path, "mnist", tfds_sets.random_splits())
    code = (
        f"import json, sys, pathlib, {module}; from ensemble.sources import tfds_records; "
        f"tfds_records.read_records(pathlib.Path({str(directory)!r})); "
        f"print(json.dumps(sorted(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    modules = set(json.loads(output))
    assert "cv2" in modules
    assert not modules & {"tensorflow", "tensorflow_datasets", "sklearn", "PIL"}
