"""Finding prepared TFDS sets, complete ones and others."""

import json

import pytest
import tfds_sets

from ensemble import UserError
from ensemble.sources import tfds_records


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
    with pytest.raises(UserError, match=r"mnist-test.array_record-00000-of-00001"):
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
    with pytest.raises(UserError, match="is half-prepared or damaged") as error:
        tfds_records.PreparedSet(directory)
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
