"""An ensemble that gets more members: as a fresh run has them, also after a kill."""

import collections
import json
import re
import shutil

import jax
import numpy as np
import pytest
from conftest import small_config
from run_parts import checkpoints_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ensemble
from ensemble import InputError
from ensemble.runtime.run import Run


def records_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def tags_of(events):
    accumulator = EventAccumulator(str(events), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator.Tags()["scalars"]


def checkpoint_of(path):
    checkpointer = checkpoints_of(path)
    saved = checkpointer.read_latest()
    checkpointer.close()
    return saved


@pytest.fixture(scope="module")
def finished(blobs, tmp_path_factory):
    """A workdir and the result of a run of 4 members."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, ensemble.train(small_config(), data=blobs, workdir=str(workdir))


@pytest.fixture
def workdir(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def killed(workdir, blobs, monkeypatch):
    """The workdir, killed after the first checkpoint of members 4 to 6."""
    save = Run.save

    def save_once(run, *args):
        save(run, *args)
        run.where.checkpointer.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Run, "save", save_once)
        with pytest.raises(KeyboardInterrupt):
            ensemble.train(small_config(ensemble_size=7), data=blobs, workdir=str(workdir))
    return workdir


def check_whole(workdir):
    """Nothing is left of the growing, and every score of a member is there once."""
    assert not (workdir / "new_members").exists()
    new_members = [record for record in records_of(workdir) if "members" in record]
    assert new_members
    assert all(record["members"] == [4, 6] for record in new_members)
    seen = collections.Counter(
        (record["step"], tag)
        for record in records_of(workdir)
        for tag in record
        if re.search(r"/(member_\d+|ensemble)/", tag)
    )
    assert [key for key, count in seen.items() if count > 1] == []


@pytest.mark.check
def test_the_joined_checkpoint_is_the_newest_and_the_run_goes_on_from_it(workdir, blobs):
    step = checkpoint_of(workdir)[1]["counters"]["step"]
    ensemble.train(small_config(ensemble_size=5), data=blobs, workdir=str(workdir))
    counters = checkpoint_of(workdir)[1]["counters"]
    assert (counters["step"], counters["num_members"]) == (step, 5)
    config = small_config(ensemble_size=6, num_epochs=5)
    result = ensemble.train(config, data=blobs, workdir=str(workdir))
    assert result.report["active_members"] == list(range(6))
    assert records_of(workdir)[-1]["epoch"] == 5
    assert "members" not in records_of(workdir)[-1]


@pytest.mark.check
def test_a_kill_while_growing_changes_no_bit(killed, finished, blobs, tmp_path):
    assert ensemble.load(killed).members == (0, 1, 2, 3)
    assert not (killed / "results.json").exists()
    assert checkpoint_of(killed / "new_members")[1]["counters"]["num_members"] == 3
    config = small_config(ensemble_size=7)
    result = ensemble.train(config, data=blobs, workdir=str(killed))
    check_whole(killed)
    shutil.copytree(finished[0], tmp_path / "straight")
    straight = ensemble.train(config, data=blobs, workdir=str(tmp_path / "straight"))
    assert result.report["metrics"]["test"] == straight.report["metrics"]["test"]
    jax.tree.map(
        np.testing.assert_array_equal,
        checkpoint_of(killed)[0],
        checkpoint_of(tmp_path / "straight")[0],
    )


@pytest.mark.check
def test_new_members_that_have_not_joined_can_be_dropped(killed, finished, blobs):
    result = ensemble.train(small_config(), data=blobs, workdir=str(killed))
    assert result.report["metrics"]["test"] == finished[1].report["metrics"]["test"]
    assert not (killed / "new_members").exists()


@pytest.mark.check
@pytest.mark.parametrize("size", [6, 9])
def test_an_ensemble_grows_to_one_size_at_a_time(killed, blobs, size):
    before = (killed / "config.json").read_text()
    with pytest.raises(
        InputError, match=r"number of new members is \d in this configuration, and 3 in"
    ):
        ensemble.train(small_config(ensemble_size=size), data=blobs, workdir=str(killed))
    assert (killed / "config.json").read_text() == before


@pytest.mark.check
def test_new_members_that_all_fail_do_not_end_the_others(blobs, tmp_path):
    config = small_config(
        model="small_runs:Explosive", ensemble_size=3, learning_rate=0.002, num_epochs=2
    )
    before = ensemble.train(config, data=blobs, workdir=str(tmp_path)).report
    assert before["active_members"] == [0, 1, 2]
    # Member 3 explodes, as in `test_loop`, and is the only new member.
    after = ensemble.train({**config, "ensemble_size": 4}, data=blobs, workdir=str(tmp_path)).report
    assert after["active_members"] == [0, 1, 2]
    assert after["failed_members"] == {3: "non-finite"}
    assert after["metrics"] == before["metrics"]


@pytest.mark.check
def test_new_members_that_all_stop_early_join_and_the_run_goes_on(blobs, tmp_path):
    config = small_config(num_epochs=60, early_stopping_epochs=2, learning_rate=0.8)
    before = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    step = checkpoint_of(tmp_path)[1]["counters"]["step"]
    config |= {"ensemble_size": 6}
    after = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert after.report["stopped_early"] == [0, 1, 2, 3, 4, 5]
    assert after.report["metrics"]["test"]["nll"]["members"][:4] == pytest.approx(
        before.report["metrics"]["test"]["nll"]["members"], rel=1e-5
    )
    assert checkpoint_of(tmp_path)[1]["counters"]["step"] >= step
