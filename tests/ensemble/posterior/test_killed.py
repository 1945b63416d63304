"""Sampling in real processes: killed at any moment, it resumes to the same bits."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT

from ensemble.posterior.draws import Draws
from ensemble.workdir import Workdir

ARGUMENTS = [
    "--config.dataset=digits",
    "--config.num_chains=2",
    "--config.num_devices=2",
    "--config.log_every_steps=25",
    "--config.hmc.num_warmup=50",
    "--config.hmc.num_samples=200",
    "--config.hmc.num_leapfrog_steps=8",
]


def command(workdir, method):
    return [
        sys.executable,
        ROOT / "train.py",
        f"--config={ROOT / 'configs' / 'digits_logreg_hmc.py'}",
        f"--workdir={workdir}",
        *ARGUMENTS,
        f"--config.method={method}",
        # What finds the mass is the same for both.
        *(["--config.init_from=prior", "--config.hmc.mass=identity"] if method == "mclmc" else []),
    ]


def result_of(workdir):
    draws = Draws(Workdir(workdir).draws)
    with np.load(workdir / "predictions" / "test.npz") as predictions:
        return draws.scalars(), draws.positions()[0], predictions["log_probs"]


@pytest.mark.parametrize(
    ("method", "num_kills"), [("hmc", 1), pytest.param("mclmc", 1, marks=pytest.mark.soak)]
)
def test_killed_at_random_moments_it_resumes_to_the_same_bits(method, num_kills, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole, method), check=True, capture_output=True)
    rng = random.Random(method)
    kills = 0
    for kill in range(num_kills):
        with subprocess.Popen(
            command(killed, method), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            # mclmc's first kill is before its first draw: while it starts, or is tuned.
            awaited = "config.json" if (method, kill) == ("mclmc", 0) else "draws/*.npz"
            before = len(list(killed.glob(awaited)))
            while process.poll() is None and len(list(killed.glob(awaited))) <= before:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.3))
            process.kill()
            process.wait()
            kills += process.returncode == -signal.SIGKILL
    assert kills
    done = subprocess.run(command(killed, method), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected, found = result_of(whole), result_of(killed)
    for name, values in expected[0].items():
        np.testing.assert_array_equal(found[0][name], values, name)
    for leaf, other in zip(
        expected[1]["Dense_0"].values(), found[1]["Dense_0"].values(), strict=True
    ):
        np.testing.assert_array_equal(other, leaf)
    np.testing.assert_array_equal(found[2], expected[2])
