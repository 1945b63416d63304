"""Folders of records: the same data as in memory, every damage named, all or nothing is written."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tfds_sets
from array_record.python.array_record_module import ArrayRecordReader
from conftest import ROOT
from programs import PEAK, run_here
from run_parts import examples_of, read_in_blocks_of, records_of

from ensemble import UserError
from ensemble.sources import in_memory, load_dataset
from ensemble.sources.on_disk import OnDisk
from ensemble.sources.own_arrays import OwnData
from ensemble.sources.records import conversion, index, shards
from ensemble.sources.splitting import SPLITS
from ensemble.storage.schema import checksum, to_json

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 3
FEATURES = RNG.normal(3, 2, (60, 4))
PICTURES = RNG.integers(0, 200, (60, 5, 4, 3), np.uint8)
PICTURES[7] = PICTURES[50]

ARRAYS = {
    "features": {"inputs": FEATURES, "labels": LABELS, "sample_weight": 1.0 + LABELS},
    "pictures": {"inputs": PICTURES, "labels": np.array(["a", "b", "c"])[LABELS]},
    "bright pictures": {"train_inputs": PICTURES * 1.5, "train_labels": LABELS},
    "targets": {"inputs": FEATURES, "targets": FEATURES[:, :2] ** 2},
    "censored": {"inputs": FEATURES, "targets": FEATURES[:, 0], "censored": LABELS == 1},
    "splits": {
        **{f"{split}_inputs": PICTURES[:20] for split in ("train", "validation", "test")},
        **{f"{split}_labels": LABELS[:20] for split in ("train", "validation", "test")},
    },
}


def _write(folder, case="pictures"):
    """Writes arrays as an npz file and as records; returns the names of both."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "all.npz", **ARRAYS[case])
    npz = f"npz:{folder / 'all.npz'}"
    return records_of(npz), npz


@pytest.mark.parametrize("case", ARRAYS)
def test_they_are_the_same_data_as_in_memory(tmp_path, case, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 400)
    monkeypatch.setattr(shards, "_AT_ONCE_BYTES", 300)
    read_in_blocks_of(monkeypatch, 7 * 4)
    names = _write(tmp_path, case)
    assert len(list((tmp_path / "records").glob("*.array_record"))) > 3
    stored, loaded = (load_dataset(name, seed=3) for name in names)
    assert stored.sizes == loaded.sizes
    assert stored.class_names == loaded.class_names
    assert stored.input_shape == loaded.input_shape
    for name in ("shift", "scale", "train_weights"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(loaded, name))
    for split, size in loaded.sizes.items():
        assert stored.value_range(split) == loaded.value_range(split)
        indices = np.random.default_rng(1).integers(0, size, (3, 5))
        for where in (indices, slice(1, 6), slice(None), slice(0, 0), indices[0]):
            for ours, theirs in zip(stored.read(split, where), loaded.read(split, where), strict=1):
                assert ours.dtype == theirs.dtype
                np.testing.assert_array_equal(ours, theirs)


def test_what_a_kill_has_left_stops_no_later_attempt(tmp_path):
    """In a container each attempt has the same process id."""
    left = tmp_path / f"records.incomplete-{os.getpid()}"
    left.mkdir()
    name, _ = _write(tmp_path)
    assert len(in_memory(load_dataset(name, hold_out=False), "train").targets) == 60
    assert list(tmp_path.glob("*.incomplete-*")) == [left]


def test_their_fingerprint_is_of_the_content_alone(tmp_path):
    first, again = (load_dataset(_write(tmp_path / name)[0]) for name in ("one", "two"))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != load_dataset(first.name, seed=1).fingerprint
    copy, _ = _write(tmp_path / "three", "bright pictures")
    assert load_dataset(copy).test_fingerprint != first.test_fingerprint


def _edit(file, old, new):
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))


def _swap(folder, other):
    shutil.copy(other / "pool-00000.array_record", folder / "pool-00000.array_record")


def _exchange(folder, _):
    first, second = (folder / f"pool-0000{i}.array_record" for i in range(2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def _truncate(folder, _):
    file = folder / "pool-00001.array_record"
    file.write_bytes(file.read_bytes()[:-70_000])


FAULTS = {
    "flipped": (
        lambda f, _: _edit(f / "pool-00001.array_record", PICTURES[35].tobytes()[:20], bytes(20)),
        r"record 7 is damaged \(chunk data hash mismatch, chunk at \d+ with length \d+; at byte \d",
    ),
    "another folder's": (_swap, r"pool-00000.array_record: record \d+ is of another folder"),
    "exchanged": (_exchange, r"array_record: record \d+ is record \d+ of the folder, not \d+"),
    "truncated": (
        _truncate,
        r"pool-00001.array_record holds 0 records where 28 belong: it is truncated",
    ),
    "missing": (
        lambda f, _: (f / "pool-00001.array_record").unlink(),
        "is missing; restore the file",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_record_that_is_wrong_is_named(tmp_path, case, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 30 * 76)
    name, _ = _write(tmp_path / "one")
    other, _ = _write(tmp_path / "two")
    spoil, message = FAULTS[case]
    spoil(tmp_path / "one/records", tmp_path / "two/records")
    source = load_dataset(name, hold_out=False)
    for _ in range(2):  # The same again: a reader that has failed is not asked twice.
        with pytest.raises(UserError, match=message) as error:
            in_memory(source, "train")
        assert "\n" not in str(error.value)
    assert len(in_memory(load_dataset(other), "train").targets)


def test_damaged_records_are_counted_and_left_out(tmp_path, caplog):
    _write(tmp_path)
    records, new = tmp_path / "records", tmp_path / "new"
    for i in (3, 10):
        _edit(records / "pool-00000.array_record", PICTURES[i].tobytes()[:20], bytes(20))
    done = run_here("ensemble.__main__", "convert", records, new)
    assert done.returncode == 2
    assert re.search(r"record 3 .*_damaged$", done.stderr)
    assert not list(tmp_path.glob("new*"))
    done = run_here("ensemble.__main__", "convert", records, new, "--skip_damaged")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("left out: ") == 2
    assert re.search(r"left out: .* record 3 .* byte \d+\)\n", done.stderr)
    assert "58 examples, 2 damaged" in done.stdout
    kept = np.delete(np.arange(60), [3, 10])
    found = in_memory(load_dataset(f"records:{new}", hold_out=False), "train")
    np.testing.assert_array_equal(found.inputs, PICTURES[kept])
    np.testing.assert_array_equal(found.targets, LABELS[kept])
    done = run_here("ensemble.__main__", "convert", records, new)
    assert done.returncode == 2
    assert "/new " in done.stderr


@pytest.mark.parametrize("case", ["missing", "truncated"])
def test_a_shard_that_is_gone_is_left_out_and_told_once(tmp_path, case, monkeypatch):
    """Its index is at its end: of a truncated file not one record can be read."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 30 * 76)
    _write(tmp_path)
    records, new = tmp_path / "records", tmp_path / "new"
    FAULTS[case][0](records, None)
    done = run_here("ensemble.__main__", "convert", records, new, "--skip_damaged")
    assert done.returncode == 0, done.stderr
    assert "32 examples, 28 damaged" in done.stdout
    assert done.stderr.count("left out: ") == 1
    assert done.stderr.count("pool-00001.array_record") == 1
    assert "skip_damaged" not in done.stderr
    found = in_memory(load_dataset(f"records:{new}", hold_out=False), "train")
    np.testing.assert_array_equal(
        np.sort(found.inputs, 0), np.sort(np.delete(PICTURES, np.s_[28:56], 0), 0)
    )


def _forge(folder, **changes):
    file = folder / index.INDEX
    content = {**json.loads(file.read_text()), **changes}
    del content["checksum"]
    file.write_text(to_json({**content, "checksum": checksum(content)}))


FORGED = {
    "no index": (lambda f: (f / index.INDEX).unlink(), "holds no records.json"),
    "text": (lambda f: (f / index.INDEX).write_text("{"), "is damaged"),
    "edited": (lambda f: _edit(f / index.INDEX, b"60", b"61"), "checksum"),
    "size": (lambda f: _forge(f, lengths={"pool": [61]}), "pool_targets has shape"),
    "parts": (lambda f: _forge(f, lengths={"../x": [60]}), "its parts are ../x"),
    "no parts": (lambda f: _forge(f, lengths={}), "how many records"),
    "shape": (lambda f: _forge(f, input_shape=[5, -4, 3]), "is no shape of an example"),
    "lengths": (lambda f: _forge(f, lengths={"pool": "60"}), "how many records"),
    "names": (lambda f: _forge(f, class_names=["a", "b"]), "not of its classes"),
    "key": (lambda f: _forge(f, more=1), "is damaged"),
    "tag": (lambda f: _forge(f, tag=[1]), "its tag is none"),
    "examples": (lambda f: _edit(f / index.EXAMPLES, b"pool", b"poll"), "is not that of"),
    "no examples": (lambda f: (f / index.EXAMPLES).unlink(), "examples.npz is missing"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_damaged_index_is_refused_in_a_line(tmp_path, case):
    name, _ = _write(tmp_path)
    spoil, message = FORGED[case]
    spoil(tmp_path / "records")
    with pytest.raises(UserError, match=message) as error:
        load_dataset(name)
    assert "\n" not in str(error.value)


def _check_decoded(name, data_dir, module, monkeypatch, caplog):
    """Images that are too large for the memory are the same data, decoded when they are read."""
    theirs = load_dataset(name, data_dir)
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.max_data_bytes", lambda: 1000)
        ours = load_dataset(name, data_dir)
    assert isinstance(ours, OnDisk)
    assert ours.reads_ahead
    assert "ensemble convert" in caplog.text
    assert ours.fingerprint == theirs.fingerprint
    assert ours.scale == theirs.scale
    indices = np.array([[2, 0, 2], [1, 2, 0]])
    for split in theirs.sizes:
        for where in (indices, slice(None)):
            for one, other in zip(ours.read(split, where), theirs.read(split, where), strict=True):
                np.testing.assert_array_equal(one, other)


def test_pictures_are_written_without_being_held(tmp_path, monkeypatch, caplog):
    import PIL.Image  # Only here.

    for i, picture in enumerate(PICTURES[:30]):
        folder = tmp_path / "pictures" / "abc"[LABELS[i]]
        folder.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(picture).save(folder / f"{i:02d}.png")
    arguments = ("ensemble.__main__", "convert", tmp_path / "pictures", tmp_path / "records")
    assert run_here(*arguments).returncode == 0
    ours, theirs = (
        in_memory(load_dataset(name, hold_out=False), "train")
        for name in (f"records:{tmp_path / 'records'}", f"folder:{tmp_path / 'pictures'}")
    )
    np.testing.assert_array_equal(ours.inputs, theirs.inputs)
    np.testing.assert_array_equal(ours.targets, theirs.targets)

    name = f"folder:{tmp_path / 'pictures'}"
    _check_decoded(name, None, "ensemble.sources.folders", monkeypatch, caplog)

    shutil.rmtree(tmp_path / "records")
    (tmp_path / "pictures/b/01.png").write_bytes(b"no picture")
    done = run_here(*arguments)
    assert done.returncode == 2
    assert "b/01.png is damaged" in done.stderr
    done = run_here(*arguments, "--skip_damaged")
    assert "29 examples, 1 damaged" in done.stdout


@pytest.mark.parametrize("given", [("train",), ("train", "test")])
def test_a_prepared_set_is_written_without_being_held(tmp_path, given, monkeypatch, caplog):
    read_in_blocks_of(monkeypatch, 7 * 60)
    splits = dict.fromkeys(given, (PICTURES, LABELS))
    directory = tfds_sets.write_set(tmp_path, "beans", splits, num_shards=2)
    command = ("ensemble.__main__", "convert", "tfds:beans", tmp_path / "records")
    done = run_here(*command, f"--data_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    ours = load_dataset(f"records:{tmp_path / 'records'}")
    theirs = load_dataset("tfds:beans", str(tmp_path))
    assert ours.sizes == theirs.sizes
    assert ours.class_names == theirs.class_names
    for split in theirs.sizes:
        for one, other in zip(in_memory(ours, split), in_memory(theirs, split), strict=True):
            np.testing.assert_array_equal(one, other)

    _check_decoded("tfds:beans", str(tmp_path), "ensemble.sources.image_sets", monkeypatch, caplog)

    file = directory / "beans-train.array_record-00001-of-00002"
    records = ArrayRecordReader(str(file)).read_all()
    records[4] = tfds_sets.serialise(b"no picture", 1)
    tfds_sets.write_array_record(file, records)
    done = run_here(*command[:-1], tmp_path / "new", f"--data_dir={tmp_path}")
    assert done.returncode == 2
    assert f"record 4 of {file.name}: " in done.stderr
    done = run_here(*command[:-1], tmp_path / "new", f"--data_dir={tmp_path}", "--skip_damaged")
    assert "1 damaged left out" in done.stdout


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(UserError, match=r"'digits'.*npz:PATH"):
        examples_of("digits")
    done = run_here("ensemble.__main__", "convert", tmp_path / "none", tmp_path / "records")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("name", ["folder:gs://bucket/p", "npz:gs://b/a", "npy:gs://b/a"])
def test_other_data_in_a_bucket_are_refused_with_what_to_do(name, tmp_path):
    message = r"gs://b.* is not on a disk.*: copy it there.*, or write records to the bucket"
    with pytest.raises(UserError, match=message):
        load_dataset(name)
    done = run_here("ensemble.__main__", "convert", name, tmp_path / "new")
    assert done.returncode == 2
    assert "is not on a disk" in done.stderr
    assert len(done.stderr.splitlines()) == 1


class Zeros:
    """Pictures [N, 32, 32, 1] that are nowhere."""

    dtype = np.dtype(np.uint8)

    def __init__(self, count):
        self.shape = (count, 32, 32, 1)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, where):
        return np.zeros((len(range(*where.indices(len(self)))), *self.shape[1:]), np.uint8)


TRAIN = (
    PEAK
    + """
import sys
import ensemble
config = {"dataset": sys.argv[1], "model": "mlp", "ensemble_size": 2, "num_steps": 50,
          "batch_size": 64, "num_devices": 1}
result = ensemble.train(config, show_progress=False)
print(result.report["num_train_examples"], peak_bytes())
"""
)


@pytest.mark.soak
def test_what_is_larger_than_the_memory_of_the_process_is_learned(tmp_path):
    """Counted is what is resident: threads of the reader reserve more than they use."""
    counts = dict.fromkeys(SPLITS, 20) | {"train": 2**20}
    inputs = {split: Zeros(counts[split]) for split in SPLITS}
    targets = {split: np.arange(counts[split], dtype=np.int32) % 2 for split in SPLITS}
    given = OwnData(inputs, targets, Zeros.dtype, ("a", "b"))
    conversion.write_records(given, tmp_path / "records")
    command = [sys.executable, "-c", TRAIN, f"records:{tmp_path / 'records'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    num_examples, peak = map(int, done.stdout.split())
    assert num_examples == 2**20
    assert peak < 2**30 * 3 // 4  # Of the 2**30 that the pictures are.
