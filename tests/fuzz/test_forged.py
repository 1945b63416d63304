"""Checkpoints and draws that somebody has made: sound in themselves, and not of their run."""

import shutil
import sys

import jax
import numpy as np
import pytest
from conftest import small_config
from etils import epath

import ensemble
from ensemble import UserError
from ensemble.storage import checkpoint
from ensemble.storage.checkpoint import Checkpointer


def forge(path, source, change):
    """Copies a run, and saves its newest checkpoint anew with a change."""
    shutil.copytree(source, path)
    checkpointer = Checkpointer(epath.Path(path) / "checkpoints")
    arrays, meta = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    (path / "report.json").unlink()  # A run in training.
    shutil.rmtree(path / "checkpoints")
    arrays, step = jax.tree.map(np.array, arrays), meta["counters"]["step"]
    change(arrays, meta)
    checkpointer = Checkpointer(epath.Path(path) / "checkpoints")
    checkpointer.save(step, arrays, meta)
    checkpointer.close()
    return path


def set_shape(shape):
    def change(arrays, meta):
        meta["dataset"] |= {"input_shape": shape, "shift": 0, "scale": 1}

    return change


def map_params(function):
    def change(arrays, meta):
        arrays["params"] = jax.tree.map(function, arrays["params"])

    return change


def set_model(name):
    def change(arrays, meta):
        meta["config"]["model"] = name

    return change


UNPREDICTABLE = {
    "inputs of no dimension that the network has": (set_shape([1]), "give the config file of"),
    "inputs of too many": (set_shape([2, 8, 8, 1]), "give the config file of"),
    "huge inputs": (set_shape([2**20, 2**20]), "is larger than an example can be"),
    "another network": (set_model("logistic_regression"), "other parameters than config.model="),
    "numbers that are whole": (map_params(np.int8), "other parameters than config.model="),
    "members of lengths that differ": (map_params(lambda leaf: leaf[:2]), "is not a file of"),
}


@pytest.mark.parametrize(("change", "line"), UNPREDICTABLE.values(), ids=UNPREDICTABLE)
def test_what_predicts_by_a_forged_checkpoint_says_one_line(
    blobs_run, blobs, tmp_path, change, line
):
    path = forge(tmp_path / "forged", blobs_run, change)
    with pytest.raises(UserError) as caught:
        ensemble.load(path)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UserError):
        ensemble.evaluate(path, data=blobs, datasets=[])


def change_counters(**counters):
    def change(arrays, meta):
        meta["counters"] |= counters

    return change


def change_status(arrays, meta):
    arrays["status"][:] = 99


def change_clock(**clock):
    def change(arrays, meta):
        meta["clock"] |= clock

    return change


UNTRAINABLE = {
    "another clock": change_clock(hours=1),
    "no seconds": change_clock(seconds_before=None),
    "whole numbers": map_params(np.int8),
    "complex numbers": map_params(np.complex64),
    "no known status": change_status,
    "more waiting than there are": change_counters(num_waiting=2**40, waiting_step=5),
    "parameters of other shapes": map_params(lambda leaf: leaf[..., :1]),
}


@pytest.mark.parametrize("change", UNTRAINABLE.values(), ids=UNTRAINABLE)
def test_training_goes_on_from_no_forged_checkpoint(blobs_run, tmp_path, blobs, change):
    path = forge(tmp_path / "forged", blobs_run, change)
    with pytest.raises(UserError, match="file of this program"):
        ensemble.train(small_config(num_epochs=4), data=blobs, workdir=str(path))


def test_arrays_that_claim_more_than_the_memory_are_not_restored(blobs_run, monkeypatch):
    monkeypatch.setattr(checkpoint, "memory_bytes", lambda: 100)
    with pytest.raises(UserError, match=r"none of the .* checkpoints can be read"):
        ensemble.load(blobs_run)


@pytest.mark.parametrize("content", ["[]", '{"item_handlers": ' + "[" * 5000])
def test_a_list_of_checkpoints_that_is_none_is_one_line(blobs_run, tmp_path, content):
    shutil.copytree(blobs_run, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    (newest / "_CHECKPOINT_METADATA").write_text(content)
    # Python 3.12 and later do not give up on so deep a list, and Orbax does without it.
    if content != "[]" and sys.version_info >= (3, 12):
        found, expected = (
            ensemble.load(path).fitted.sets for path in (tmp_path / "run", blobs_run)
        )
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        return
    with pytest.raises(UserError, match=r"checkpoints.*remove what"):
        ensemble.load(tmp_path / "run")
