"""Files are whole or absent: after a power cut, after a kill, and with several writers."""

import errno
import os
import shutil
import stat
import subprocess
import threading

import numpy as np
import pytest
from etils import epath
from run_parts import draws_of

from ensemble.storage import files


@pytest.fixture
def disk(tmp_path):
    """A disk with a journal, whose file has what would be there after a power cut."""
    image = tmp_path / "image"
    with open(image, "wb") as opened:
        os.truncate(opened.fileno(), 32 << 20)
    with _mounted(image, tmp_path / "disk", "mkfs.ext4", "-q", image) as mounted:
        yield mounted


class _mounted:
    def __init__(self, image, folder, *make):
        self._image = image
        self._folder = folder
        self._make = make

    def __enter__(self):
        self._folder.mkdir()
        mount = ["mount", "-o", "loop", self._image, self._folder]
        for command in filter(None, (self._make, mount)):
            missing = not shutil.which(command[0])
            if missing or subprocess.run(command, capture_output=True).returncode:
                pytest.skip(f"{command[0]} needs root: a power cut was NOT tested")
        return epath.Path(self._folder)

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self._folder], check=True)


def write_draws(disk):
    draws = draws_of(disk)
    draws.append(9, {"log_density": np.ones((1, 9))}, {"w": np.ones((1, 9, 100))}, range(9))


def read_draws(disk):
    return draws_of(disk).end


def test_what_is_written_survives_a_power_cut(disk, tmp_path):
    write_draws(disk)
    (disk / "other").touch()
    files.flush(disk / "other")  # Whoever does so brings all names to the disk, of empty files too.
    shutil.copy(tmp_path / "image", tmp_path / "after")
    with _mounted(tmp_path / "after", tmp_path / "again") as again:
        assert read_draws(again) == 9


def test_content_and_names_are_flushed_in_this_order(tmp_path, monkeypatch):
    """As above, where nothing can be mounted."""
    path = epath.Path(tmp_path) / "a"
    flushed = []

    def flush(number):
        flushed.append((os.fstat(number), path.exists()))

    monkeypatch.setattr(os, "fsync", flush)
    files.write_file(path, lambda file: file.write(b"some"))
    (content, was_there), (folder, is_there) = flushed
    assert (content.st_ino, content.st_size, was_there) == (os.stat(path).st_ino, 4, False)
    assert (folder.st_ino, is_there) == (os.stat(tmp_path).st_ino, True)


def test_a_folder_that_its_disk_does_not_flush_is_no_error(tmp_path, monkeypatch):
    def flush(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", flush)
    files.write_file(epath.Path(tmp_path) / "a", "some")


def test_two_that_write_one_file_at_once_both_write_it_whole(tmp_path):
    path = epath.Path(tmp_path) / "a"

    def write(file):
        file.write(b"first ")
        other = threading.Thread(target=files.write_file, args=(path, "of the other"))
        other.start()
        other.join()
        assert path.read_text() == "of the other"
        file.write(b"second")

    files.write_file(path, write)
    assert path.read_text() == "first second"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_is_not_made_with_one_that_was_removed(tmp_path):
    for _ in range(2):
        files.make_folder(epath.Path(tmp_path) / "plots")
    with pytest.raises(FileNotFoundError):
        files.make_folder(epath.Path(tmp_path) / "run" / "plots")
