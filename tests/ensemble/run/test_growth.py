"""An ensemble that gets more members: as a fresh run has them, also after a kill."""

import collections
import json
import re
import shutil
import time

import jax
import numpy as np
import pytest
from conftest import small_config
from run_parts import checkpoints_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ensemble
from ensemble import UserError
from ensemble.run import loop
from ensemble.scoring.sections import values_in


def records_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def tags_of(events):
    accumulator = EventAccumulator(str(events), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator.Tags()["scalars"]


def checkpoint_of(path):
    checkpointer = checkpoints_of(path)
    saved = checkpointer.restore_latest(read_only=True)
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
    save = loop.save

    def save_once(work, checkpointer, *args):
        save(work, checkpointer, *args)
        checkpointer.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loop, "save", save_once)
        with pytest.raises(KeyboardInterrupt):
            ensemble.train(small_config(ensemble_size=7), data=blobs, workdir=str(workdir))
    return workdir


def check_whole(workdir):
    """Nothing is left of the growing, and every score of a member is there once."""
    assert not (workdir / "newcomers").exists()
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
def test_more_members_join(finished, workdir, blobs):
    began = time.monotonic()
    result = ensemble.train(small_config(ensemble_size=7), data=blobs, workdir=str(workdir))
    elapsed = time.monotonic() - began
    fresh = ensemble.train(small_config(ensemble_size=7), data=blobs)
    for split in ("validation", "test"):
        for score, values in values_in(fresh.report[split], "members").items():
            np.testing.assert_allclose(
                result.report[split]["scores"][score]["members"], values, atol=1e-4
            )
    assert result.report["test"]["scores"]["nll"]["members"][:4] == pytest.approx(
        finished[1].report["test"]["scores"]["nll"]["members"], rel=1e-5
    )
    check_whole(workdir)
    assert "train/member_04/loss" in tags_of(workdir / "events" / "members_04-06")
    assert "train/member_04/loss" not in tags_of(workdir / "events")
    # The time of the new members counts too, and once.
    timing, before = result.report["timing"], finished[1].report["timing"]
    assert 0 < timing["seconds_total"] - before["seconds_total"] <= elapsed
    assert ensemble.load(workdir).members == tuple(range(7))


@pytest.mark.check
def test_the_joined_checkpoint_is_the_newest_and_the_run_goes_on_from_it(workdir, blobs):
    step = checkpoint_of(workdir)[1]["counters"]["step"]
    ensemble.train(small_config(ensemble_size=5), data=blobs, workdir=str(workdir))
    expected = {"step": step, "begun": step, "last_step": step}
    expected |= {"num_members": 5, "member_devices": 1}
    assert checkpoint_of(workdir)[1]["counters"] == expected
    config = small_config(ensemble_size=6, num_epochs=5)
    result = ensemble.train(config, data=blobs, workdir=str(workdir))
    assert result.report["live_members"] == list(range(6))
    assert records_of(workdir)[-1]["epoch"] == 5
    assert "members" not in records_of(workdir)[-1]


@pytest.mark.check
def test_a_kill_while_growing_changes_no_bit(killed, finished, blobs, tmp_path):
    assert ensemble.load(killed).members == (0, 1, 2, 3)
    assert not (killed / "report.json").exists()
    assert checkpoint_of(killed / "newcomers")[1]["counters"]["num_members"] == 3
    config = small_config(ensemble_size=7)
    result = ensemble.train(config, data=blobs, workdir=str(killed))
    check_whole(killed)
    shutil.copytree(finished[0], tmp_path / "straight")
    straight = ensemble.train(config, data=blobs, workdir=str(tmp_path / "straight"))
    assert result.report["test"] == straight.report["test"]
    jax.tree.map(
        np.testing.assert_array_equal,
        checkpoint_of(killed)[0],
        checkpoint_of(tmp_path / "straight")[0],
    )


@pytest.mark.check
def test_new_members_that_have_not_joined_can_be_dropped(killed, finished, blobs):
    result = ensemble.train(small_config(), data=blobs, workdir=str(killed))
    assert result.report["test"] == finished[1].report["test"]
    assert not (killed / "newcomers").exists()


@pytest.mark.parametrize(
    ("size", "line"),
    [(9, "still growing from 4 to 7; let it finish with 7 first"), (6, "7 members")],
)
def test_an_ensemble_grows_to_one_size_at_a_time(killed, blobs, size, line):
    before = (killed / "config.json").read_text()
    with pytest.raises(UserError, match=line):
        ensemble.train(small_config(ensemble_size=size), data=blobs, workdir=str(killed))
    assert (killed / "config.json").read_text() == before


@pytest.mark.check
def test_new_members_that_all_fail_do_not_end_the_others(blobs, tmp_path):
    config = small_config(model="explosive", ensemble_size=3, learning_rate=0.002, num_epochs=2)
    before = ensemble.train(config, data=blobs, workdir=str(tmp_path)).report
    assert before["live_members"] == [0, 1, 2]
    # Member 3 explodes, as in `test_loop`, and is the only new member.
    after = ensemble.train({**config, "ensemble_size": 4}, data=blobs, workdir=str(tmp_path)).report
    assert after["live_members"] == [0, 1, 2]
    assert after["failed_members"] == {3: "non-finite"}
    assert after["test"] == before["test"]


@pytest.mark.check
def test_new_members_that_all_stop_early_join_and_the_run_goes_on(blobs, tmp_path):
    config = small_config(num_epochs=60, early_stopping_epochs=2, learning_rate=0.8)
    before = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    step = checkpoint_of(tmp_path)[1]["counters"]["step"]
    config |= {"ensemble_size": 6}
    after = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert after.report["stopped_early"] == [0, 1, 2, 3, 4, 5]
    assert after.report["test"]["scores"]["nll"]["members"][:4] == pytest.approx(
        before.report["test"]["scores"]["nll"]["members"], rel=1e-5
    )
    assert checkpoint_of(tmp_path)[1]["counters"]["step"] >= step


@pytest.mark.check
def test_a_workdir_of_an_earlier_version_that_was_growing_goes_on(killed, finished, blobs, caplog):
    """It kept the new members in the checkpoint of the others, and counted its steps in `ticks`."""
    arrays, meta = checkpoint_of(killed)
    new_members, counters = checkpoint_of(killed / "newcomers")[0], meta["counters"]
    shutil.rmtree(killed / "newcomers")
    arrays, new_members = (
        {k: v for k, v in one.items() if k != "totals"} for one in (arrays, new_members)
    )
    old = {"step": 2, "begun": 2, "ticks": counters["step"] + 2, "num_members": 7}
    old |= {"num_waiting": 4, "waiting_step": counters["step"]}
    checkpointer = checkpoints_of(killed)
    checkpointer.save(
        old["ticks"],
        jax.tree.map(lambda *leaves: np.concatenate(leaves), arrays, new_members),
        {**meta, "counters": old},
    )
    checkpointer.close()
    assert ensemble.load(killed).members == (0, 1, 2, 3)
    result = ensemble.train(small_config(ensemble_size=7), data=blobs, workdir=str(killed))
    assert "was growing: the members that had not joined start again" in caplog.text
    assert result.report["live_members"] == list(range(7))
    assert result.report["test"]["scores"]["nll"]["members"][:4] == pytest.approx(
        finished[1].report["test"]["scores"]["nll"]["members"], rel=1e-5
    )
    check_whole(killed)
