"""Checkpoints: whole or refused, the newest few kept."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from etils import epath

from ensemble import InputError
from ensemble.storage.checkpoint import Checkpointer


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
    restored, meta = Checkpointer(directory).restore()
    np.testing.assert_array_equal(restored["params"]["w"], arrays(30)["params"]["w"])
    assert meta["number"] == 30
    assert sorted(path.name for path in directory.iterdir()) == ["20", "30"]


def test_nothing_yet(tmp_path):
    assert Checkpointer(epath.Path(tmp_path) / "none").restore() is None


def test_read_only_leaves_a_damaged_one_where_it_is(directory):
    damage(directory, 30)
    checkpointer = Checkpointer(directory)
    assert checkpointer.read_latest()[1]["number"] == 20
    checkpointer.close()
    assert (directory / "30").exists()


def test_a_reader_follows_a_run_that_replaces_its_checkpoints(directory, monkeypatch, caplog):
    writer = Checkpointer(directory, keep=2)
    reader = Checkpointer(directory)
    newest = reader._newest
    late = []

    def newest_late():
        found = newest()
        if not late:
            late.append(found)
            for newer in (40, 50):
                writer.save(newer, arrays(newer), {"number": newer})
            writer.wait()
        return found

    monkeypatch.setattr(reader, "_newest", newest_late)
    assert reader.read_latest()[1]["number"] == 50
    assert "damaged" not in caplog.text
    for checkpointer in (writer, reader):
        checkpointer.close()


def test_a_damaged_one_is_moved_aside_and_can_be_saved_again(directory):
    damage(directory, 30)
    checkpointer = Checkpointer(directory, keep=2)
    assert checkpointer.restore()[1]["number"] == 20
    assert (directory.parent / "corrupt_checkpoints" / "30").exists()
    checkpointer.save(30, arrays(30), {"number": 30})
    checkpointer.close()
    assert Checkpointer(directory).restore()[1]["number"] == 30


def test_when_all_are_damaged_nothing_is_silently_lost(directory):
    for number in (20, 30):
        damage(directory, number)
    for _ in range(2):  # A second call must not find an empty folder, and start again.
        with pytest.raises(InputError, match=f"none of the 2 .*; restore {directory / '30'} from "):
            Checkpointer(directory).restore()


def test_an_unfinished_save_is_not_seen(directory):
    shutil.copytree(directory / "30", directory / "40.orbax-checkpoint-tmp")
    assert Checkpointer(directory).restore()[1]["number"] == 30


SAVE_ON_A_FULL_DISK = """
import pathlib, sys
from etils import epath
from conftest import fill
from test_checkpoint import Checkpointer, InputError, arrays

disk = pathlib.Path(sys.argv[1])
checkpointer = Checkpointer(epath.Path(disk) / "checkpoints")
checkpointer.save(10, arrays(10), {"number": 10})
checkpointer.wait()
fill(disk)
checkpointer.save(20, arrays(20), {})
try:
    checkpointer.close()
except InputError as error:
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
    said = f"{small_disk} cannot be written: No space left on device; free space or fix that"
    assert done.stdout.startswith(said)
    _, meta = Checkpointer(epath.Path(small_disk) / "checkpoints").restore()
    assert "number" in meta
