"""Runs in real processes: killed at any moments, they end with the same bits."""

import collections
import functools
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, make_blobs
from etils import epath
from kills import MOMENTS, kill_often

from ensemble.draws.draws import Draws
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.workdir import Workdir

CONFIG = """
from ensemble import default_config


def get_config():
    config = default_config()
    config.dataset = "npz:{npz}"
    config.model = "logistic_regression"
    config.prior = "normal(1)"
    config.num_devices = 2
    config.log_every_steps = 5
    config.eval_every_epochs = 8
    return config
"""
SAMPLER = ["--config.num_chains=2", "--config.hmc.num_warmup=20", "--config.hmc.num_samples=100"]
METHODS = {
    "sgd": ["--config.ensemble_size=3", "--config.num_steps=200", "--config.batch_size=16"],
    "hmc": SAMPLER,
    "mclmc": SAMPLER,
}
SOAK_KILLS = {"sgd": 70, "hmc": 70, "mclmc": 60}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    """A small experiment of the user's own; it saves every five steps or draws."""
    folder = tmp_path_factory.mktemp("own")
    np.savez(folder / "blobs.npz", **make_blobs())
    (folder / "config.py").write_text(CONFIG.format(npz=folder / "blobs.npz"))
    return folder / "config.py"


def command(config_file, workdir, method):
    return [
        sys.executable, str(ROOT / "train.py"), f"--config={config_file}", f"--workdir={workdir}",
        f"--config.method={method}", *METHODS[method],
    ]  # fmt: skip


def result_of(workdir):
    """All that a run leaves of its last state, its draws and its predictions."""
    checkpointer = Checkpointer(epath.Path(workdir) / "checkpoints")
    arrays, meta = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    draws = Draws(Workdir(workdir).draws)
    with np.load(workdir / "predictions" / "test.npz") as predictions:
        return {
            "counters": meta["counters"],
            "state": arrays,
            "scalars": draws.scalars(),
            "positions": draws.positions(),
            "log_probs": predictions["log_probs"],
        }


def assert_same(workdir, expected):
    np.testing.assert_equal(result_of(workdir), expected)  # To the bit, a NaN for a NaN.


def kill_a_run(config_file, folder, method, num_kills):
    """Kills a run, and compares it with one left alone; returns the moments of the kills."""
    subprocess.run(command(config_file, folder / "whole", method), check=True, capture_output=True)
    check = functools.partial(assert_same, folder / "killed", result_of(folder / "whole"))
    killed = command(config_file, folder / "killed", method)
    return kill_often(killed, folder / "killed", num_kills, len(method), check)


def test_killed_at_random_moments_it_ends_with_the_same_bits(config_file, tmp_path):
    moments = kill_a_run(config_file, tmp_path, "hmc", 3)
    assert all(moments[moment] for moment in MOMENTS)


@pytest.mark.soak
def test_killed_two_hundred_times_they_end_with_the_same_bits(config_file, tmp_path, capsys):
    moments = collections.Counter()
    for method, num_kills in SOAK_KILLS.items():
        moments += kill_a_run(config_file, tmp_path / method, method, num_kills)
    with capsys.disabled():
        print(f"\n{moments.total()} kills: {dict(moments)}")
    assert moments.total() == 200
    assert moments["saving"]
