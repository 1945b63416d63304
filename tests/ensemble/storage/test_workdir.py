"""A run's directory: what is said of one that cannot be written any more."""

import errno
import os
import shutil

import pytest
from etils import epath

from ensemble.storage.workdir import cannot_write

FULL, MISSING, DENIED = map(os.strerror, (errno.ENOSPC, errno.ENOENT, errno.EACCES))


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
        (nothing, FULL, f"cannot be written: {FULL}; free space there"),
        (nothing, DENIED, f"cannot be written: {DENIED}; mend that there"),
        (nothing, f"[Errno 2] {MISSING}: 'manifest'", "was removed while the run wrote to it"),
        (the_first_file, FULL, f"cannot be written: {FULL}; free space there"),
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
