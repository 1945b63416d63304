"""A run's directory: what a kill has left there, and what happens where it cannot be locked."""

import errno
import os

import pytest
from etils import epath

from ensemble import InputError
from ensemble.storage.workdir import Workdir


@pytest.fixture
def workdir(tmp_path):
    path = epath.Path(tmp_path) / "run"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


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
def test_where_nothing_can_be_locked_nothing_is_removed(place, workdir, monkeypatch, request):
    if place == "a disk":
        monkeypatch.setattr("fcntl.flock", cannot_lock)
    else:
        workdir = request.getfixturevalue("bucket").path / "run"
    unfinished = workdir / "checkpoints" / "5.orbax-checkpoint-tmp"
    unfinished.mkdir(parents=True)
    (unfinished / "a").write_text("of a run that may be going on")
    with Workdir(workdir).opened():
        assert (unfinished / "a").exists()
