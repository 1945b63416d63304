"""What surrounds a run: the system's refusals end in one line."""

import errno
import os

import pytest
from run_parts import validated

from ensemble import InputError
from ensemble.run import loop


def test_a_disk_that_is_full_when_checkpoints_are_opened_is_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(loop, "Checkpointer", refuse)
    config = validated({"num_epochs": 1})
    with (
        pytest.raises(InputError, match="free space"),
        loop.opened(config, str(tmp_path / "run"), False),
    ):
        pass


def test_a_file_of_the_user_s_is_named_and_not_the_workdir(tmp_path):
    with (
        pytest.raises(InputError, match=r"/elsewhere/rows.npy cannot be used: No such file"),
        loop.opened(validated({"num_epochs": 1}), str(tmp_path / "run"), False),
    ):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/elsewhere/rows.npy")
