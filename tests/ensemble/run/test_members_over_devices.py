"""A run whose members are split over devices, as users start it: killed, resumed on others."""

import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import ROOT, started
from run_parts import checkpoints_of

import ensemble

SETTINGS = (
    "--config=configs/digits_ensemble.py",
    "--config.model=mlp",
    "--config.ensemble_size=2",
    "--config.num_epochs=4",
    "--config.schedule=constant",
    "--config.augment.shift=0",
    "--config.batching=shared",
    "--config.log_every_steps=10",
)
LAUNCH = ("scripts/launch_local.py", "--num_processes=2", "--devices_per_process=2", "--")


def command(workdir, member_devices, *program):
    return [
        *(sys.executable, *(program or ("train.py",))),
        *SETTINGS,
        f"--workdir={workdir}",
        f"--config.member_devices={member_devices}",
    ]


def params_of(workdir):
    checkpointer = checkpoints_of(workdir)
    arrays, meta = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    return jax.tree.leaves(arrays["params"]), meta["counters"]


@pytest.mark.soak
def test_killed_on_eight_devices_resumed_by_two_processes_and_by_one_device(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = {"cwd": ROOT, "stderr": subprocess.PIPE, "text": True}

    def finish(arguments):
        done = subprocess.run(arguments, stdout=subprocess.DEVNULL, timeout=400, **options)
        assert done.returncode == 0, done.stderr

    finish([*command(whole, 1), "--config.num_devices=1"])
    arguments = [*command(killed, 2), "--config.num_devices=8"]
    with started(arguments, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not any(path.name.isdecimal() for path in (killed / "checkpoints").glob("*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    loaded = ensemble.load(killed)
    assert params_of(killed)[1]["member_devices"] == 2
    kernel = loaded._placed_variables()["params"]["Dense_1"]["kernel"]
    assert kernel.addressable_shards[0].data.size < 256 * 256  # It is larger than a device, too.
    finish([*command(killed, 4, *LAUNCH), "--config.num_epochs=3"])
    assert params_of(killed)[1]["member_devices"] == 4
    finish([*command(killed, 1), "--config.num_devices=1"])
    (found, counters), (expected, others) = params_of(killed), params_of(whole)
    assert counters == others
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    with np.load(whole / "predictions" / "test.npz") as test:
        stored = test["log_probs"]
    with np.load(killed / "predictions" / "test.npz") as test:
        np.testing.assert_allclose(test["log_probs"], stored, atol=1e-2)
