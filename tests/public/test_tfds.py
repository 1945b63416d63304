"""Sets that TensorFlow Datasets prepared: read without TensorFlow, refused in one line."""

import importlib.util
import json
import os
import subprocess
import sys
import time

import names
import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds
import tfds_sets
from conftest import ROOT
from programs import run_here
from small import refused, run_command, train

from input_pipeline import in_memory, load_dataset

REAL = {
    ("mnist", True): ("9a579764561a1e87", "f18f38fa58096b83", (50_000, 5_000, 5_000, 10_000)),
    ("mnist", False): ("d789b04b4ae3b37c", "f18f38fa58096b83", (60_000, 10_000)),
    ("fashion_mnist", False): ("b56e22fc7d05d585", "55a8e7f7f0c34812", (60_000, 10_000)),
    ("tfds:mnist", True): ("bba7b4e5cdf05642", "f18f38fa58096b83", (48_000, 6_000, 6_000, 10_000)),
}  # fmt: skip
"""Digests of all inputs and targets, and sizes."""


@pytest.mark.check
@pytest.mark.parametrize("case", REAL)
def test_real_sets_have_their_pixels_and_splits(case):
    name, hold_out = case
    fingerprint, test_fingerprint, sizes = REAL[case]
    data_dir = tfds_sets.real_data_dir(name.removeprefix("tfds:"))
    dataset = load_dataset(name, data_dir, seed=1, hold_out=hold_out)
    assert (dataset.fingerprint, dataset.test_fingerprint) == (fingerprint, test_fingerprint)
    assert tuple(dataset.sizes.values()) == sizes


def split(size, shape=(6, 5, 3), seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (size, *shape), np.uint8), np.arange(size) % 10


@pytest.mark.parametrize("shape", [(6, 5, 1), (6, 5, 3)])
def test_splits_of_its_own_are_taken_and_the_others_drawn(tmp_path, shape):
    given = {"train": split(100, shape), "validation": split(20, shape, 1)}
    given |= {"test": split(30, shape, 2), "extra": split(5, shape, 3)}
    directory = tfds_sets.write_set(tmp_path, "beans/small", given, num_shards=2)
    (directory / "label.labels.txt").write_text("\n".join(f"kind {i}" for i in range(10)))
    dataset = load_dataset("tfds:beans/small", str(tmp_path))
    assert dataset.sizes == {"train": 90, "validation": 20, "calibration": 10, "test": 30}
    assert dataset.class_names[9] == "kind 9"
    for name in ("validation", "test"):
        for found, array in zip(in_memory(dataset, name), given[name], strict=True):
            np.testing.assert_array_equal(found, array)
    drawn = [in_memory(dataset, name).inputs for name in ("train", "calibration")]
    images = {image.tobytes() for image in np.concatenate(drawn)}
    assert images == {image.tobytes() for image in given["train"][0]}
    refused(lambda: load_dataset("tfds:beans", str(tmp_path)), "beans/small")


def test_secret_labels_are_no_split(tmp_path):
    images, labels = split(30)
    tfds_sets.write_set(tmp_path, "own", {"train": split(100), "test": (images, labels * 0 - 1)})
    assert load_dataset("tfds:own", str(tmp_path)).sizes["test"] == 10
    tfds_sets.write_set(tmp_path, "other", {"test": (images, labels)})
    refused(lambda: load_dataset("tfds:other", str(tmp_path)), "no split 'train'")


def test_images_of_several_sizes_are_resized_as_those_of_folders(tmp_path):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (8 + i % 3, 9 + i % 5, 3), np.uint8) for i in range(40)]
    labels = np.arange(40) % 2
    tfds_sets.write_set(tmp_path, "pets", {"train": (images, labels)}, shape=(None, None, 3))
    for i, image in enumerate(images):
        (tmp_path / "folder" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image).save(tmp_path / "folder" / str(i % 2) / f"{i:02}.png")
    options = {"resize": "7x6", "hold_out": False}
    found = [
        sorted(image.tobytes() for image in in_memory(load_dataset(*place, **options), "train")[0])
        for place in (("tfds:pets", str(tmp_path)), (f"folder:{tmp_path / 'folder'}",))
    ]
    assert found[0] == found[1]
    refused(lambda: load_dataset("tfds:pets", str(tmp_path)), "9x10", "8x9", "resize")


def test_what_is_learned_from_what_the_set_says(tmp_path):
    """Two labels, and other names than image and label."""
    coarse = {"coarse": tfds.features.ClassLabel(num_classes=2), "id": tfds.features.Text()}
    keys = ("photo", "fine")
    splits = {"train": split(60)}
    directory = tfds_sets.write_set(tmp_path, "own", splits, keys=keys, more_features=coarse)
    assert len(load_dataset("tfds:own", str(tmp_path)).class_names) == 10
    info = json.loads((directory / "dataset_info.json").read_text())
    del info["supervisedKeys"]
    (directory / "dataset_info.json").write_text(json.dumps(info))
    refused(lambda: load_dataset("tfds:own", str(tmp_path)), "class label")


def test_it_is_learned_predicted_and_converted(tmp_path):
    images, labels = split(60)
    tfds_sets.write_set(tmp_path, "own", {"train": (images, labels), "test": split(20, seed=1)})
    run_command("convert", "tfds:own", tmp_path / "new", f"--data_dir={tmp_path}")
    predictions = []
    for name in ("tfds:own", f"records:{tmp_path / 'new'}"):
        workdir = tmp_path / name[:4]
        train({"dataset": name, "data_dir": str(tmp_path)}, None, workdir)
        out = workdir / "all.jsonl"
        run_command("predict", f"--workdir={workdir}", name, f"--out={out}")
        predictions.append(out.read_text())
        assert names.report(workdir)["dataset"]["num_examples"]["test"] == 20
    assert predictions[0] == predictions[1]
    assert len(predictions[0].splitlines()) == 80


IMAGE = tfds.features.Image(shape=(6, 5, 3))
LABEL = tfds.features.ClassLabel(num_classes=2)
OTHERS = {
    "text": ({"text": tfds.features.Text(), "label": LABEL}, "label (ClassLabel), text (Text)"),
    "boxes": ({"image": IMAGE, "objects": tfds.features.Sequence({"x": LABEL})}, "image (Image)"),
    "floats": (
        {"image": tfds.features.Image(shape=(6, 5, 1), dtype=np.float32), "label": LABEL},
        "8 bits per channel",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_set_of_another_kind_is_named(tmp_path, case):
    features, words = OTHERS[case]
    directory = tfds_sets.write_set(tmp_path, "other", {"train": split(20)})
    tfds.features.FeaturesDict(features).save_config(directory)
    assert "delete" not in refused(lambda: load_dataset("tfds:other", str(tmp_path)), words)


# Damage.

SHARD = "own-train.array_record-00000-of-00001"
PNG = tfds_sets.encode_png(np.zeros((6, 5, 3), np.uint8))


def _write(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def _records(*records):
    found = [tfds_sets.serialise(PNG, 1)] * 20
    found[7 : 7 + len(records)] = records
    return lambda directory: tfds_sets.write_array_record(directory / SHARD, found)


def _flip(directory):
    file = directory / SHARD
    encoded = tfds_sets.encode_png(split(20)[0][7])
    file.write_bytes(file.read_bytes().replace(encoded[60:90], bytes(30)))


DAMAGES = {
    "no info": (lambda directory: (directory / "dataset_info.json").unlink(), "dataset_info.json"),
    "garbage": (_write("dataset_info.json", b"{"), "dataset_info.json"),
    "a list": (_write("dataset_info.json", b"[]"), "dataset_info.json"),
    "no features": (lambda directory: (directory / "features.json").unlink(), "features.json"),
    "odd features": (_write("features.json", b'{"featuresDict": 1}'), ""),
    "no shard": (lambda directory: (directory / SHARD).unlink(), SHARD, "missing"),
    "an empty shard": (_write(SHARD, b""), ""),
    "a flipped record": (_flip, "record 7"),
    "no example": (_records(b"\xff"), "decoded"),
    "a cut image": (_records(tfds_sets.serialise(PNG[:30], 1)), "decoded"),
    "an image of another size": (
        _records(tfds_sets.serialise(tfds_sets.encode_png(np.zeros((1, 5, 3), np.uint8)), 1)),
        "1x5",
        "6x5",
    ),
    "a label beyond": (_records(tfds_sets.serialise(PNG, 10)), "label"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_set_is_one_line(tmp_path, case):
    spoil, *words = DAMAGES[case]
    directory = tfds_sets.write_set(tmp_path, "own", {"train": split(20)})
    spoil(directory)
    refused(lambda: load_dataset("tfds:own", str(tmp_path)), str(directory), *words)


def test_damaged_images_may_be_left_out_of_records(tmp_path):
    directory = tfds_sets.write_set(tmp_path, "own", {"train": split(20)})
    _flip(directory)
    flags = [f"--data_dir={tmp_path}", "--skip_damaged"]
    done = run_command("convert", "tfds:own", tmp_path / "new", *flags)
    assert "19 examples, 1 damaged" in done.stdout


STRANGE = {
    "feature": {"pythonClassName": "stranger.Feature"},
    "old": {"type": "stranger.Feature", "content": {}},
    "text": {"jsonFeature": {"json": '{"feature": {"type": "stranger.Feature", "content": {}}}'}},
}


@pytest.mark.parametrize("case", STRANGE)
def test_no_code_of_a_set_is_run(tmp_path, monkeypatch, case):
    """TFDS imports the module of a feature's class: one that it has not, is refused."""
    (tmp_path / "stranger.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.syspath_prepend(str(tmp_path))
    directory = tfds_sets.write_set(tmp_path, "own", {"train": split(20)})
    content = json.loads((directory / "features.json").read_text())
    content["featuresDict"]["features"]["more"] = STRANGE[case]
    (directory / "features.json").write_text(json.dumps(content))
    refused(lambda: load_dataset("tfds:own", str(tmp_path)), str(directory), "stranger.Feature")


# What is not prepared as it should be.


def without_tensorflow(name, find_spec=importlib.util.find_spec):
    return None if name == "tensorflow" else find_spec(name)


@pytest.mark.parametrize("name", ["mnist", "tfds:beans", "movielens/1m-ratings"])
def test_an_absent_set_is_one_line_at_once(tmp_path, monkeypatch, name):
    for variable in ("HOME", "TFDS_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    began = time.monotonic()
    monkeypatch.setattr(importlib.util, "find_spec", without_tensorflow)
    command = f"python -m ensemble.data.prepare_dataset {name.removeprefix('tfds:')} --data_dir="
    refused(lambda: load_dataset(name, str(tmp_path)), str(tmp_path), command)
    assert time.monotonic() - began < 5
    assert not list(tmp_path.iterdir())


def test_a_set_as_tfrecord_is_said_to_be_whole(tmp_path, monkeypatch):
    directory = tfds_sets.write_set(tmp_path, "own", {"train": split(20)})
    (directory / SHARD).rename(directory / SHARD.replace("array_record", "tfrecord"))
    monkeypatch.setattr(importlib.util, "find_spec", without_tensorflow)
    command = "python -m ensemble.data.prepare_dataset own --data_dir="
    refused(lambda: load_dataset("tfds:own", str(tmp_path)), "whole", "TFRecord", command)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    done = prepare(tmp_path)
    assert done.returncode == 2
    assert "needs tensorflow: pip install -r requirements-prepare.txt" in done.stdout


def test_no_network_is_waited_for(tmp_path, monkeypatch):
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("HOME", "TFDS_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    done = prepare(tmp_path)
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert "own is not in" in done.stdout
    assert "on a machine with a network" in done.stdout


def prepare(data_dir):
    return run_here("ensemble.data.prepare_dataset", "own", f"--data_dir={data_dir}")


def test_a_prepared_set_is_left_alone(tmp_path):
    directory = tfds_sets.write_set(tmp_path, "own", {"train": split(20)})
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert prepare(tmp_path).stdout == f"{directory}\n"
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_a_set_as_tfrecord_is_converted(tmp_path):
    pytest.importorskip("tensorflow", reason="the conversion was NOT tested")
    directory = tfds_sets.write_set(tmp_path, "own", {"train": split(20)}, num_shards=2)
    code = f"""
import pathlib, tensorflow as tf
from array_record.python.array_record_module import ArrayRecordReader
for shard in pathlib.Path({str(directory)!r}).glob("*array_record*"):
    with tf.io.TFRecordWriter(str(shard).replace("array_record", "tfrecord")) as writer:
        for record in ArrayRecordReader(str(shard)).read_all():
            writer.write(record)
    shard.unlink()
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    found = in_memory(load_dataset("tfds:own", str(tmp_path), hold_out=False), "train")
    np.testing.assert_array_equal(found.inputs, split(20)[0])


@pytest.mark.parametrize("name", ["tfds:../own", "tfds:own/3.0.1", "tfds:", "tfds:a b"])
def test_names_that_no_set_has_are_refused(tmp_path, name):
    refused(lambda: load_dataset(name, str(tmp_path)), "NAME")


@pytest.mark.check
def test_tensorflow_is_never_imported_and_tfds_only_for_its_sets(tmp_path):
    tfds_sets.write_set(tmp_path, "own", {"train": split(20)})
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub/tensorflow.py").write_text("raise SystemExit('TensorFlow is imported')")
    code = f"""
import sys, input_pipeline
input_pipeline.load_dataset("digits")
assert "tensorflow_datasets" not in sys.modules
input_pipeline.load_dataset("tfds:own", {str(tmp_path)!r})
assert "tensorflow_datasets" in sys.modules
assert "tensorflow" not in sys.modules
"""
    command = [sys.executable, "-W", "error", "-c", code]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "stub")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_what_memory_cannot_hold_is_to_be_converted(tmp_path):
    tfds_sets.write_set(tmp_path, "own", {"train": split(99)}, shape=(60_000, 60_000, 3))
    refused(lambda: load_dataset("tfds:own", str(tmp_path)), "bytes of memory", "ensemble convert")
