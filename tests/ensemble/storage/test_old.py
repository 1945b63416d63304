"""What earlier versions wrote is read in the words of this one, and stays as it was on disk."""

import json
import pathlib
import shutil

import pytest
from run_parts import config_of, identity_of, workdir_of

from ensemble import UserError
from ensemble.config_rules import validate_stored
from ensemble.storage import schema

ARCHIVE = pathlib.Path(__file__).parents[2] / "golden" / "workdirs" / "1.0.0" / "hmc.zip"


@pytest.fixture
def work(tmp_path):
    """A workdir of HMC by 1.0.0."""
    shutil.unpack_archive(ARCHIVE, tmp_path / "run")
    return workdir_of(tmp_path / "run")


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
    assert identity_of(work.path) == identity
    assert config_of(work.path) == config


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
