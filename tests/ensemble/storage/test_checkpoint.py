"""Checkpoints: whole or refused, the newest few kept."""

import asyncio
import contextlib
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from conftest import ROOT
from etils import epath
from jax.experimental import multihost_utils

from ensemble import UserError
from ensemble.storage import part_files
from ensemble.storage.checkpoint import Checkpointer, check_shapes


def arrays(number):
    return {"params": {"w": np.full((2, 3), number, np.float32)}, "step": np.array([number] * 2)}


@pytest.fixture
def directory(tmp_path):
    path = epath.Path(tmp_path) / "checkpoints"
    checkpointer = Checkpointer(path, keep=2)
    for number in (10, 20, 30):
        checkpointer.save(number, arrays(number), {"number": number})
    checkpointer.close()
    return path


def damage(directory, number):
    for path in (directory / str(number) / "state").glob("*"):
        path.rmtree() if path.is_dir() else path.unlink()


def test_the_newest_is_read_and_the_newest_few_are_kept(directory):
    restored, meta = Checkpointer(directory).restore_latest()
    np.testing.assert_array_equal(restored["params"]["w"], arrays(30)["params"]["w"])
    assert meta["number"] == 30
    assert sorted(path.name for path in directory.iterdir()) == ["20", "30"]


def test_nothing_yet(tmp_path):
    assert Checkpointer(epath.Path(tmp_path) / "none").restore_latest() is None


def test_read_only_leaves_a_damaged_one_where_it_is(directory):
    damage(directory, 30)
    checkpointer = Checkpointer(directory)
    assert checkpointer.restore_latest(read_only=True)[1]["number"] == 20
    checkpointer.close()
    assert (directory / "30").exists()


def test_a_reader_follows_a_run_that_replaces_its_checkpoints(directory, monkeypatch, caplog):
    writer, reader = Checkpointer(directory, keep=2), Checkpointer(directory)
    restore = reader._restore

    def restore_late(number):
        if number == 30:
            for newer in (40, 50):
                writer.save(newer, arrays(newer), {"number": newer})
            writer.wait()
        return restore(number)

    monkeypatch.setattr(reader, "_restore", restore_late)
    assert reader.restore_latest(read_only=True)[1]["number"] == 50
    assert "cannot be read" not in caplog.text
    for checkpointer in (writer, reader):
        checkpointer.close()


def test_a_damaged_one_is_moved_aside_and_can_be_saved_again(directory):
    damage(directory, 30)
    checkpointer = Checkpointer(directory, keep=2)
    assert checkpointer.restore_latest()[1]["number"] == 20
    assert (directory.parent / "unreadable_checkpoints" / "30").exists()
    checkpointer.save(30, arrays(30), {"number": 30})
    checkpointer.close()
    assert Checkpointer(directory).restore_latest()[1]["number"] == 30


def test_when_all_are_damaged_nothing_is_silently_lost(directory):
    for number in (20, 30):
        damage(directory, number)
    with pytest.raises(UserError, match="none of the 2 "):
        Checkpointer(directory).restore_latest()


def test_another_format_is_refused_with_the_remedy(directory):
    path = directory / "30" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(UserError, match=r"format 99.* format 1\b"):
        Checkpointer(directory).restore_latest()


def test_an_unfinished_save_is_not_seen(directory):
    shutil.copytree(directory / "30", directory / "40.orbax-checkpoint-tmp")
    assert Checkpointer(directory).restore_latest()[1]["number"] == 30


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "d"),
        ValueError('NOT_FOUND: Error opening "zarr" driver'),
        ValueError("Checkpoint directory does not exist: state.orbax-checkpoint-tmp"),
        ValueError("Path is not a directory: 9.orbax-checkpoint-tmp"),
    ],
    ids=["Python", "TensorStore", "Orbax's handler", "Orbax's end"],
)
def test_a_folder_that_is_being_removed_is_said_to_be(directory, monkeypatch, error):
    """What came while `rm -r` had not come to the run's first file yet."""

    def fail(*_, **__):
        raise error

    (directory.parent / "config.json").write_text("{}")
    checkpointer = Checkpointer(directory)
    checkpointer.save(40, arrays(40), {})
    monkeypatch.setattr(checkpointer._manager, "wait_until_finished", fail)
    with pytest.raises(UserError, match="was removed "):
        checkpointer.wait()


SAVE_ON_A_FULL_DISK = """
import pathlib, sys
from etils import epath
from conftest import fill
from test_checkpoint import Checkpointer, UserError, arrays

disk = pathlib.Path(sys.argv[1])
checkpointer = Checkpointer(epath.Path(disk) / "checkpoints")
checkpointer._check_disk = lambda num_bytes: None  # It was there, and is gone.
checkpointer.save(10, arrays(10), {})
checkpointer.wait()
fill(disk)
checkpointer.save(20, arrays(20), {})
try:
    checkpointer.close()
except UserError as error:
    print(error)
"""


@pytest.mark.check
def test_a_disk_that_fills_up_in_a_save_is_said_at_the_close(small_disk):
    """In a process of its own: threads of TensorStore's complain of it whenever they like."""
    done = subprocess.run(
        [sys.executable, "-c", SAVE_ON_A_FULL_DISK, str(small_disk)],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'ensemble' / 'storage'}",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = f"{small_disk} cannot be written: No space left on device; free space there and run"
    assert done.stdout.startswith(said)
    _, meta = Checkpointer(epath.Path(small_disk) / "checkpoints").restore_latest()
    assert meta["whole_checksum"]


def test_a_folder_that_was_removed_is_not_made_again(directory):
    checkpointer = Checkpointer(directory)
    checkpointer.save(40, arrays(40), {})
    checkpointer.wait()
    (directory.parent / "config.json").write_text("{}")
    directory.rmtree()
    with pytest.raises(UserError, match="was removed "):
        checkpointer.save(50, arrays(50), {})
    checkpointer.close()
    assert not directory.exists()


def test_a_failure_is_told_when_nothing_is_written_any_more(directory, monkeypatch):
    calls, ended = itertools.count(), []

    async def fail(*_):
        if next(calls):  # The others take longer than the first.
            await asyncio.sleep(0.3)
            ended.append(True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(part_files, "_created", fail)
    checkpointer = Checkpointer(directory)
    checkpointer.save(40, arrays(40), {})
    with pytest.raises(UserError):
        checkpointer.wait()
    assert ended
    assert len(ended) == next(calls) - 1
    with contextlib.suppress(UserError):
        checkpointer.close()


@pytest.mark.parametrize("is_slower", [False, True])
def test_nothing_is_left_where_a_workdir_was_moved_from(directory, monkeypatch, is_slower):
    """Orbax goes on writing there, and TensorStore makes the folders anew."""
    workdir, moved = directory.parent / "run", directory.parent / "moved"
    workdir.mkdir()
    (workdir / "config.json").write_text("{}")
    write, begin = part_files._write, ocp.PyTreeCheckpointHandler.async_save
    is_moved, has_ended, failing = threading.Event(), threading.Event(), []

    class Failing:
        def result(self, timeout=None):
            is_moved.wait(timeout)
            raise FileNotFoundError(os.strerror(errno.ENOENT))

    async def fail_first(self, *args, **kwargs):
        return [*failing, *await begin(self, *args, **kwargs)]

    async def write_late(*args):
        workdir.rename(moved)
        is_moved.set()
        await asyncio.sleep(0.5 * is_slower)  # Orbax learns of what has failed.
        try:
            await write(*args)
        finally:
            has_ended.set()

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "async_save", fail_first)
    checkpointer = Checkpointer(workdir / "checkpoints")
    checkpointer.save(40, arrays(40), {})
    checkpointer.wait()
    monkeypatch.setattr(part_files, "_write", write_late)
    failing += [Failing()] * is_slower
    checkpointer.save(50, arrays(50), {})
    with pytest.raises(UserError, match="was removed "):
        checkpointer.wait()
    with contextlib.suppress(UserError):
        checkpointer.close()
    assert has_ended.wait(10)
    assert not workdir.exists()
    arrays_there, _ = Checkpointer(moved / "checkpoints").restore_latest()
    np.testing.assert_array_equal(arrays_there["step"], arrays(40)["step"])


def test_steps_of_checkpoints_are_not_told_where_chunks_are_counted(directory, monkeypatch):
    """At JAX's preemption sync point, which would move to a chunk of that number."""

    def refuse(step):
        raise AssertionError(step)

    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", refuse)
    checkpointer = Checkpointer(directory)
    checkpointer.save(40, arrays(40), {})
    checkpointer.close()
    assert Checkpointer(directory).restore_latest()[1]["format"]


def test_a_folder_that_cannot_be_made_holds_nothing_up(directory):
    checkpointer = Checkpointer(directory)
    checkpointer.save(40, arrays(40), {})
    checkpointer.wait()
    before = set(threading.enumerate())
    directory.rmtree()
    directory.write_text("A file has taken the place of the folder.")
    with pytest.raises(UserError, match="was removed"):
        checkpointer.save(50, arrays(50), {})
    checkpointer.close()
    deadline = time.monotonic() + 10
    while held := [t for t in set(threading.enumerate()) - before if "asyncio" not in t.name]:
        assert time.monotonic() < deadline, held  # The process would wait for these.
        time.sleep(0.01)


def test_arrays_of_other_shapes_are_refused():
    template = {"a": np.zeros((2, 3, 4)), "key": jax.random.split(jax.random.key(0), 2)}
    check_shapes({"a": np.zeros((2, 3, 4)), "key": np.zeros((2, 2))}, template)
    check_shapes({"a": np.zeros((7, 3, 4)), "key": np.zeros((7, 2))}, template, of_members=True)
    with pytest.raises(ValueError, match=r"the shape \(2, 3, 5\), not \(2, 3, 4\)"):
        check_shapes({"a": np.zeros((2, 3, 5)), "key": np.zeros((2, 2))}, template)
    with pytest.raises(ValueError, match=r"the shape \(7, 3, 5\), not \(2, 3, 4\)"):
        check_shapes({"a": np.zeros((7, 3, 5)), "key": np.zeros((7, 2))}, template, of_members=True)
