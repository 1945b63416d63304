"""Records in a bucket: copied whole to a disk once, with every fault in one line."""

import errno
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, Bucket
from object_store import emulated
from programs import run_here

from ensemble import UserError
from ensemble.sources import in_memory, load_dataset
from ensemble.sources.records import bucket as copies
from ensemble.sources.records import index, shards

PLACE = "gs://bucket/data/r"
INPUTS = np.random.default_rng(0).integers(0, 200, (60, 5, 4, 3), np.uint8)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where copies come to, of small shards that are read in small pieces."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shards, "SHARD_BYTES", 30 * 76)
    monkeypatch.setattr(copies, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(copies, "_LINE_SECONDS", -1.0)
    return tmp_path / "cache" / "flax-ensembles" / "records"


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "all.npz", inputs=INPUTS, labels=np.arange(60) % 3)
    return tmp_path / "all.npz"


@pytest.fixture
def uploaded(bucket, cache, npz):
    """The name of records that the program has written to the bucket."""
    done = run_here("ensemble.__main__", "convert", npz, PLACE)
    assert done.returncode == 0, done.stderr
    assert f"{PLACE}: 60 examples" in done.stdout
    assert f"train with --config.dataset=records:{PLACE}" in done.stdout
    return f"records:{PLACE}"


def _objects():
    return {path.rpartition("/")[2]: path for path in Bucket().find(PLACE)}


def _read(name):
    return in_memory(load_dataset(name, hold_out=False), "train")


def test_records_of_a_bucket_are_copied_once(uploaded, npz, cache, monkeypatch, caplog):
    caplog.set_level("INFO", "ensemble")
    expected = load_dataset(f"npz:{npz}", seed=3)
    found = load_dataset(uploaded, seed=3)
    assert found.name == uploaded
    for split in expected.sizes:
        for ours, theirs in zip(in_memory(found, split), in_memory(expected, split), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert "s left" in caplog.text
    (copy,) = (one for one in cache.iterdir() if one.is_dir())
    assert {one.name for one in copy.iterdir()} == set(_objects())
    assert copy.name.startswith(json.loads((copy / index.INDEX).read_text())["tag"])

    read = []
    whole = Bucket.cat_file
    monkeypatch.setattr(
        Bucket, "cat_file", lambda self, path, **k: read.append(path) or whole(self, path, **k)
    )
    assert load_dataset(uploaded, seed=3).fingerprint == found.fingerprint
    assert [one.rpartition("/")[2] for one in read] == [index.INDEX]

    # What is not whole, as after a kill, is completed; nothing else is read again.
    first, second, *_ = sorted(copy.glob("*.array_record"))
    first.write_bytes(first.read_bytes()[:-1])
    (copy / f".{second.name}.123.part").write_bytes(b"some")
    del read[:]
    np.testing.assert_array_equal(_read(uploaded).inputs, INPUTS)
    assert {one.rpartition("/")[2] for one in read} == {index.INDEX, first.name}
    assert not list(copy.glob(".*"))


def test_another_version_has_another_copy(uploaded, cache, npz, tmp_path):
    assert len(_read(uploaded).targets) == 60
    for path in _objects().values():
        Bucket().rm(path)
    np.savez(npz, inputs=INPUTS[:30], labels=np.arange(30) % 3)
    assert run_here("ensemble.__main__", "convert", npz, PLACE).returncode == 0
    old = [one for one in cache.iterdir() if one.is_dir()]
    assert len(_read(uploaded).targets) == 30
    assert len([one for one in cache.iterdir() if one.is_dir()]) == 2
    shutil.rmtree(old[0])
    assert copies.is_copied(uploaded)  # By its newest copy.


def test_another_bucket_s_copy_is_not_taken_for_it(uploaded, cache, npz):
    """Its index, and the sizes of its files, may be the same."""
    assert len(_read(uploaded).targets) == 60
    for name, path in _objects().items():
        content = Bucket().cat_file(path)
        if name.startswith("pool-00001"):
            content = content[: -len(content) // 2] + bytes(len(content) // 2)
        Bucket().pipe_file(path.replace("data/r", "other/r"), content)
    with pytest.raises(UserError, match=r"pool-00001.array_record (is|holds|: rec)"):
        _read("records:gs://bucket/other/r")
    assert len(_read(uploaded).targets) == 60
    assert len([one for one in cache.iterdir() if one.is_dir()]) == 2


@pytest.mark.parametrize("file", ["pool-00001.array_record", index.EXAMPLES])
def test_a_damaged_copy_is_removed_and_not_the_bucket_s_file_restored(uploaded, cache, file):
    load_dataset(uploaded)
    (copy,) = (one for one in cache.iterdir() if one.is_dir())
    whole = (copy / file).read_bytes()
    (copy / file).write_bytes(bytes(len(whole)))
    with pytest.raises(UserError, match=rf"{copy}.*copied again$") as error:
        _read(uploaded)
    assert "restore" not in str(error.value)
    shutil.rmtree(copy)
    np.testing.assert_array_equal(_read(uploaded).inputs, INPUTS)


def test_programs_take_what_is_in_a_bucket(uploaded, tmp_path):
    for source in (PLACE, uploaded):  # With and without its prefix.
        new = tmp_path / f"new{len(source)}"
        done = run_here("ensemble.__main__", "convert", source, new)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(_read(f"records:{new}").inputs, INPUTS)
    with pytest.raises(UserError, match=f"records:{PLACE}"):
        load_dataset(PLACE)


def _forget(name):
    Bucket().rm(_objects()[name])


FAULTS = {
    "index": (lambda: _forget(index.INDEX), "holds no records.json; check the path"),
    "shard": (lambda: _forget("pool-00001.array_record"), "pool-00001.array_record is missing"),
    "examples": (lambda: _forget(index.EXAMPLES), "examples.npz is missing; upload it again"),
    "forged": (lambda: Bucket().pipe_file(_objects()[index.INDEX], b"{}"), "is damaged"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_not_whole_in_a_bucket_is_one_line(uploaded, cache, case):
    spoil, message = FAULTS[case]
    spoil()
    with pytest.raises(UserError, match=message) as error:
        load_dataset(uploaded)
    assert "\n" not in str(error.value)
    assert not cache.exists()


def test_no_room_for_a_copy_is_one_line(uploaded, cache, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
        with pytest.raises(UserError, match=r"MB.*space.*\$XDG_CACHE"):
            load_dataset(uploaded)

    def pieces(*_):
        yield b"some"
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(copies, "_pieces", pieces)
        with pytest.raises(UserError, match=r"copied.*\(No.*device\)"):
            load_dataset(uploaded)
    assert not [one for one in cache.rglob("*.*") if one.name != next(cache.glob("*.lock")).name]
    assert len(_read(uploaded).targets) == 60


def test_what_is_in_a_bucket_is_not_written_over(uploaded, npz, caplog):
    before = {name: Bucket().cat_file(path) for name, path in _objects().items()}
    done = run_here("ensemble.__main__", "convert", npz, PLACE)
    assert done.returncode == 2
    assert f"{PLACE} is there " in done.stderr
    assert {name: Bucket().cat_file(path) for name, path in _objects().items()} == before
    _forget(index.INDEX)  # As an upload that was killed leaves it.
    done = run_here("ensemble.__main__", "convert", npz, PLACE)
    assert done.returncode == 0
    assert "holds part of a folder" in done.stderr
    assert len(_read(uploaded).targets) == 60


def test_the_index_is_uploaded_last(bucket, cache, npz, monkeypatch):
    put = []
    whole = Bucket.put_file

    def fail_at_the_third(self, local, path, **k):
        put.append(path)
        if len(put) == 3:
            raise OSError("the store is away")
        return whole(self, local, path, **k)

    monkeypatch.setattr(Bucket, "put_file", fail_at_the_third)
    done = run_here("ensemble.__main__", "convert", npz, PLACE)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"{PLACE} cannot be written: the store is away")
    with pytest.raises(UserError, match=r"holds no records\.json"):
        load_dataset(f"records:{PLACE}")
    del put[:]
    monkeypatch.setattr(Bucket, "put_file", lambda self, *a, **k: put.append(a[1]))
    assert run_here("ensemble.__main__", "convert", npz, PLACE).returncode == 0
    assert put[-1].endswith(index.INDEX)


LOAD = "import sys; from ensemble.sources import load_dataset\nprint(load_dataset(sys.argv[1]).{})"


@pytest.mark.check
def test_a_real_store_that_fails_now_and_then(cache, npz, tmp_path):
    """Three processes ask for the same records at once; then the programs learn and predict."""
    workdir = f"--workdir={tmp_path / 'run'}"
    name = "records:gs://bucket/data/r"
    with emulated(tmp_path) as store:
        env = {**store.env, "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}

        def run(*arguments, status=0):
            command = [sys.executable, *map(str, arguments)]
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            assert done.returncode == status, done.stderr
            assert "Traceback" not in done.stderr
            return done

        np.savez(npz, inputs=np.tile(INPUTS, (100, 1, 1, 1)), labels=np.arange(6000) % 3)
        run("-m", "ensemble", "convert", npz, "gs://bucket/data/r")
        store.failing = 0.3
        command = [sys.executable, "-c", LOAD.format("fingerprint"), name]
        processes = [
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        assert len({one.communicate(timeout=200)[0] for one in processes}) == 1
        assert {one.returncode for one in processes} == {0}
        assert store.num_failed > 0
        store.failing = 0.0
        (copy,) = (one for one in cache.iterdir() if one.is_dir())
        assert {one.name for one in copy.iterdir()} == {
            one.rpartition("/")[2] for one in store.names("data/r/")
        }
        (copy / "pool-00000.array_record").unlink()
        config = ROOT / "configs/images.py"
        flags = (
            "--config.model=mlp",
            "--config.num_epochs=0",
            "--config.num_steps=3",
            "--config.ensemble_size=2",
        )
        done = run("train.py", f"--config={config}", workdir, f"--config.dataset={name}", *flags)
        assert "took" in done.stderr
        assert f"copying {name} to {copy}" in done.stderr
        done = run("predict.py", workdir, name, f"--out={tmp_path / 'out.jsonl'}")
        assert "predictions of 6,000 inputs" in done.stdout
        for wrong in ("gs://nobody/r", "gs://bucket/data"):
            done = run("-m", "ensemble", "convert", wrong, tmp_path / "new", status=2)
            assert done.stderr.splitlines()[-1].startswith(f"ensemble convert: records:{wrong}")
        done = run("-m", "ensemble", "convert", npz, "gs://nobody/r", status=2)
        assert "gs://nobody/r " in done.stderr.splitlines()[-1]
