"""A run's directory: what a kill has left there, and what is said where it cannot be written."""

import errno
import os
import shutil

import pytest
from etils import epath

from ensemble import InputError
from ensemble.storage.workdir import Workdir, cannot_write

FULL, MISSING, DENIED = map(os.strerror, (errno.ENOSPC, errno.ENOENT, errno.EACCES))
LARGE = os.strerror(errno.EFBIG)


@pytest.fixture
def workdir(tmp_path):
    path = epath.Path(tmp_path) / "run"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def everything(workdir):
    shutil.rmtree(workdir)


def the_first_file(workdir):
    (workdir / "config.json").unlink()


def nothing(workdir):
    pass


@pytest.mark.parametrize(
    ("removed", "reason", "line"),
    [
        (nothing, FULL, f"cannot be written: {FULL}; free space or fix"),
        (nothing, LARGE, f"cannot be written: {LARGE}; free space or fix"),
        (nothing, DENIED, f"cannot be written: {DENIED}; free space or fix that there"),
        (nothing, f"[Errno 2] {MISSING}: 'manifest'", "was removed while the run wrote to it"),
        (the_first_file, FULL, f"cannot be written: {FULL}; free space or fix"),
        (the_first_file, DENIED, "was removed while the run wrote to it"),
        (everything, FULL, "was removed while the run wrote to it"),
        (everything, DENIED, "was removed while the run wrote to it"),
    ],
)
def test_a_full_disk_and_a_removed_directory_are_told_apart(workdir, removed, reason, line):
    removed(workdir)
    said = str(cannot_write(workdir, reason))
    assert said.startswith(str(workdir))
    assert line in said


def test_checkpoints_that_a_kill_interrupted_are_removed_under_the_lock(workdir):
    inner = ("checkpoints", "new_members/checkpoints")
    left = [workdir / folder / "5.orbax-checkpoint-tmp" for folder in inner]

    def begin():
        for path in left:
            (path / "state").mkdir(parents=True)
        (workdir / ".a.0123abcd.part").write_text("of a kill")

    begin()
    (workdir / "checkpoints" / "4").mkdir()
    with Workdir(workdir).opened():
        assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["4"]
        assert not left[1].exists()
        assert not (workdir / ".a.0123abcd.part").exists()
        begin()
        with pytest.raises(InputError, match="in use"):
            Workdir(workdir).opened().__enter__()
        assert all(path.exists() for path in left)


def cannot_lock(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("place", ["a disk", "a bucket"])
def test_where_nothing_can_be_locked_that_is_said(place, workdir, monkeypatch, request, caplog):
    if place == "a disk":
        monkeypatch.setattr("fcntl.flock", cannot_lock)
    else:
        workdir = request.getfixturevalue("bucket").path / "run"
    unfinished = workdir / "checkpoints" / "5.orbax-checkpoint-tmp"
    unfinished.mkdir(parents=True)
    (unfinished / "a").write_text("of a run that may be going on")
    with Workdir(workdir).opened():
        assert (unfinished / "a").exists()
    assert f"{workdir} cannot be locked" in caplog.text
