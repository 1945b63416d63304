"""Runs in real processes: killed at any moments, they end with the same bits."""

import collections
import functools
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, make_blobs
from kills import MOMENTS, assert_same, kill_often, result_of

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
SAMPLER = ["--config.num_chains=2", "--config.hmc.num_warmup=20", "--config.hmc.num_samples=60"]
METHODS = {
    "sgd": ["--config.ensemble_size=3", "--config.num_steps=100", "--config.batch_size=16"],
    "hmc": SAMPLER,
    "mclmc": SAMPLER,
    "rwm": [
        "--config.num_devices=2",
        "--config.num_chains=64",
        "--config.log_every_steps=64",
        "--config.rwm.num_warmup=96",
        "--config.rwm.num_samples=1024",
    ],
}
SOAK_KILLS = {"sgd": 60, "hmc": 60, "mclmc": 50, "rwm": 30}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    """A small experiment of the user's own; it saves every five steps or draws."""
    folder = tmp_path_factory.mktemp("own")
    np.savez(folder / "blobs.npz", **make_blobs())
    (folder / "config.py").write_text(CONFIG.format(npz=folder / "blobs.npz"))
    return folder / "config.py"


def command(config_file, workdir, method):
    if method == "rwm":  # It has no data.
        config_file = ROOT / "configs" / "mixture_rwm.py"
    return [
        sys.executable, str(ROOT / "train.py"), f"--config={config_file}", f"--workdir={workdir}",
        f"--config.method={method}", *METHODS[method],
    ]  # fmt: skip


def kill_a_run(config_file, folder, method, num_kills):
    """Kills a run, and compares it with one left alone; returns the moments of the kills."""
    subprocess.run(command(config_file, folder / "whole", method), check=True, capture_output=True)
    check = functools.partial(assert_same, folder / "killed", result_of(folder / "whole"))
    killed = command(config_file, folder / "killed", method)
    return kill_often(killed, folder / "killed", num_kills, len(method), check)


@pytest.mark.check
@pytest.mark.parametrize("method", ["sgd", "hmc", "rwm"])  # All: `make soak`.
def test_killed_at_random_moments_it_ends_with_the_same_bits(config_file, tmp_path, method):
    moments = kill_a_run(config_file, tmp_path, method, 3)
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
