"""What earlier versions wrote is read in the form of this one, and stays as it was on disk.

`python -m tests.ensemble.storage.test_old` adds the workdirs of a release to `TODAY`. It never
changes those that are there: what was read of them once is read of them by every later version.
"""

import json
import logging
import pathlib
import shutil
import tempfile

import numpy as np
import pytest

from ensemble import UserError
from ensemble.config import all_keys, flatten
from ensemble.config_rules import validate
from ensemble.draws.store import Draws
from ensemble.storage import identity, old, schema
from ensemble.storage.old import validate_stored
from ensemble.storage.workdir import Workdir

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
ARCHIVE = GOLDEN / "workdirs" / "1.0.0" / "hmc.zip"
TODAY = "upgraded.json"
"""A file beside `workdirs`, of what is read of each: keys that it wrote, and shapes of arrays."""

BINDING = {"split": "SPLIT", "fingerprint": "FINGERPRINT"}
FILES = sorted(GOLDEN.parent.glob(f"*/{TODAY}"))
RECORDED = {name: one for file in FILES for name, one in json.loads(file.read_text()).items()}


def archives():
    """Workdirs by the names that `TODAY` has for them."""
    found = sorted(GOLDEN.parent.glob("*/workdirs/*/*.zip"))
    return {f"{one.parent.name} {one.stem}": one for one in found}


def upgraded(work):
    """What is read of a workdir, by its files."""
    config, report = work.read_config(), work.read_report()
    metas = sorted(work.checkpoints.glob("*/meta/metadata"), key=lambda one: int(one.parts[-3]))
    meta = schema.checked_meta(json.loads(metas[-1].read_text()))
    assert meta["config"] == report["config"] == config
    written, values = flatten(old.in_todays_words(stored(work)["config"])), flatten(config)
    assert all(values[key] == all_keys()[key].default for key in values.keys() - written.keys())
    predictions = {}
    for path in sorted(work.predictions.glob("*.npz")):
        with np.load(path) as arrays:
            found = old.predictions(dict(arrays), BINDING)
        assert old.predictions(found, BINDING) == found
        predictions[path.stem] = {
            name: str(one) if name in ("identity", *BINDING) else list(one.shape)
            for name, one in sorted(found.items())
        }
    assert old.with_notes(report) == report
    counters = old.checkpoint({}, meta["counters"], "runs/mine")[1]
    assert old.checkpoint({}, counters, "runs/mine")[1] == counters
    return {
        "identity": work.identity(),
        "config": {key: one for key, one in values.items() if key in written},
        "report": {name: report[name] for name in ("identity", "notes")},
        "checkpoint": {name: meta[name] for name in ("identity", "notes")} | {"counters": counters},
        "draws": Draws(work.draws, work.identity()).end,
        "predictions": predictions,
    }


@pytest.mark.parametrize("name", sorted({*archives(), *RECORDED}))
def test_all_that_was_ever_written_is_read_in_the_form_of_today(name, tmp_path):
    shutil.unpack_archive(archives()[name], tmp_path / "run")
    work = Workdir(tmp_path / "run")
    config = work.read_config()
    assert validate(config).to_dict() == validate_stored(config).to_dict() == config
    assert upgraded(work) == RECORDED[name]


def test_a_run_that_cannot_say_which_it_is_says_so_once(work, caplog):
    content = stored(work)
    del content["identity"]
    for _ in range(2):
        assert old.identity_of(content, work.path) == identity.UNKNOWN
    assert len(caplog.messages) == 1
    assert old.flags(content) == {}
    assert old.as_it_began(content, {"sampler": 1}) == {**content, "config": {"sampler": 1}}


def test_members_that_had_not_joined_are_left_out_and_said_of_a_run_that_goes_on(caplog):
    arrays = {"params": {"kernel": np.arange(6).reshape(3, 2)}, "totals": np.ones(1)}
    counters = {"step": 5, "ticks": 5, "num_members": 3, "num_waiting": 2, "waiting_step": 8}
    joined, left = old.checkpoint(arrays, counters, "runs/mine")
    assert caplog.messages == []
    np.testing.assert_array_equal(joined.pop("params")["kernel"], [[0, 1], [2, 3]])
    assert joined == {}
    assert left == {
        "step": 8,
        "begun": 8,
        "num_members": 2,
        "member_devices": 1,
        "last_step": 2**31 - 1,
    }
    old.checkpoint(arrays, counters, "runs/mine", is_resumed=True)
    assert caplog.messages == [
        "runs/mine was growing: the members that had not joined start again."
    ]
    assert "begun" not in old.checkpoint(arrays, {"step": 5}, "mine")[1]
    with pytest.raises(ValueError, match="more members are waiting"):
        old.checkpoint(arrays, {**counters, "num_waiting": 3}, "runs/mine")


def test_sums_over_draws_are_left_out_and_it_is_said_once(caplog):
    sums = {"test": {"top": np.zeros(3)}}
    chains = {"num_moves": np.zeros(2), "sums": sums}
    assert old.checkpoint(chains, {"step": 5}, "sums/a")[0].keys() == {"num_moves"}
    by_batches = {"drawn": {"energy": np.zeros(2), "sums": sums}}
    left, _ = old.checkpoint(by_batches, {"step": 5}, "sums/b")
    assert left["drawn"].keys() == {"energy"}
    old.checkpoint(by_batches, {"step": 6}, "sums/b")
    assert sum("was begun before kept draws predicted" in line for line in caplog.messages) == 2


def test_targets_of_classes_had_another_name():
    arrays = {"labels": np.arange(3), "identity": np.array("mine")}
    assert old.predictions(arrays, BINDING).keys() == {"targets", "identity"}


class Split:
    """Data whose fingerprint says how they are split."""

    def __init__(self, copies_together=True):
        self.fingerprint = "now" if copies_together else "before"


@pytest.mark.parametrize("then", ["now", "before", "other"])
def test_data_are_split_as_the_run_had_them(then, caplog):
    found = old.as_it_was_split(Split, then, "runs/mine")
    assert found.fingerprint == ("before" if then == "before" else "now")
    assert len(caplog.messages) == (then == "before")


@pytest.fixture
def work(tmp_path):
    """A workdir of HMC by 1.0.0."""
    shutil.unpack_archive(ARCHIVE, tmp_path / "run")
    return Workdir(tmp_path / "run")


def stored(work):
    return json.loads(work.config.read_text())


def test_blocks_of_keys_are_read_by_the_names_of_today(work):
    before = stored(work)["config"]["hmc"]
    assert work.read_config()["sampler"] == before
    assert work.read_report()["config"]["sampler"] == before


def test_a_run_keeps_the_names_that_its_identity_was_made_of(work):
    before, identity = stored(work), work.identity()
    config = work.read_config()
    config["sampler"]["num_samples"] += 25
    work.write_config(validate_stored(config))
    after = stored(work)
    before["config"]["hmc"]["num_samples"] += 25
    assert after["identity"] == before["identity"]
    assert after["config"]["hmc"] == before["config"]["hmc"]
    assert "sampler" not in after["config"]
    assert Workdir(work.path).identity() == identity
    assert Workdir(work.path).read_config() == config


def test_checkpoints_and_their_notes_are_read_by_the_names_of_today(work):
    files = sorted((work.path / "checkpoints").glob("*/meta/metadata"))
    meta = json.loads(files[-1].read_text())
    meta["notes"] = ["Raise config.hmc.num_samples=50, or config.hmc.num_warmup=30."]
    found = schema.checked_meta(meta)
    assert found["config"]["sampler"] == meta["config"]["hmc"]
    assert found["notes"] == [
        "Raise config.sampler.num_samples=50, or config.sampler.num_warmup=30."
    ]


def test_a_block_by_both_names_is_refused(work):
    content = stored(work)
    content["config"]["sampler"] = content["config"]["hmc"]
    work.config.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"config\.json .*both config\.hmc and config\.sampler"):
        work.read_config()


def test_probabilities_with_class_weights_were_not_corrected():
    assert old.in_todays_words({"class_weights": "balanced"})["correct_class_weights"] is False
    assert "correct_class_weights" not in old.in_todays_words({"class_weights": "none"})
    now = {"class_weights": "balanced", "correct_class_weights": True}
    assert old.in_todays_words(now) == now


@pytest.mark.parametrize(("method", "kept"), [("sgd", "w.npz"), ("hmc", "map"), (None, "w.npz")])
def test_of_the_keys_of_every_method_that_of_its_own_start_is_kept(method, kept):
    written = {"ensemble_size": 2, "num_chains": 4, "rwm": {}}
    written |= {"pretrained": "w.npz", "init_from": "map"}
    written |= {} if method is None else {"method": method}
    found = old.in_todays_words(written)
    assert found["init_from"] == kept
    assert "pretrained" not in found
    early = {key: value for key, value in written.items() if key != "pretrained"}
    assert old.in_todays_words(early).get("init_from") == ("map" if method == "hmc" else None)


def test_of_the_keys_of_every_method_those_that_nobody_has_today_are_left_out():
    written = {"ensemble_size": 2, "num_chains": 4, "walks_of_old": {"scale": 2.0}}
    assert old.in_todays_words(written) == {"ensemble_size": 2, "num_chains": 4}
    # Of another run they stay, to be refused.
    assert "walks_of_old" in old.in_todays_words({"num_chains": 4, "walks_of_old": {}})


def _record():
    """Adds the workdirs that are not there yet."""
    logging.disable()
    for name, archive in archives().items():
        with tempfile.TemporaryDirectory() as folder:
            shutil.unpack_archive(archive, folder)
            if name in RECORDED:
                continue
            file = archive.parents[2] / TODAY
            recorded = json.loads(file.read_text()) if file.exists() else {}
            recorded[name] = upgraded(Workdir(folder))
            file.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    _record()
