"""Real processes that are killed, told to end, or several: the results are the same bits."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import names
import numpy as np
import pytest
from conftest import ROOT, free_port, run_all, started
from kills import kill, outcome
from runs import classes
from small import refused_command, run_command

pytestmark = pytest.mark.check

CONFIG = """
from ensemble import default_config


def get_config():
    config = default_config()
    config.update_from_flattened_dict({values})
    return config
"""
MODEL = """
import numpyro
import numpyro.distributions as dist


def mean_of(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)
"""
MEMBERS = {
    "model": "mlp",
    "mlp.widths": "8",
    "ensemble_size": 2,
    "num_epochs": 24,
    "batch_size": 32,
    "log_every_steps": 5,
}
CHAINS = {
    "method": "hmc",
    "prior": "normal(1)",
    "init_from": "prior",
    "num_chains": 2,
    "log_every_steps": 10,
    "sampler.num_warmup": 20,
    "sampler.num_samples": 80,
    "sampler.thinning": 2,
    "sampler.num_leapfrog_steps": 4,
}
DATA = {"dataset": "npz:{folder}/data.npz"}
KINDS = {
    "members": {**DATA, "method": "deep_ensemble", **MEMBERS},
    "walk": {
        "method": "rwm",
        "density": "gaussian_mixture",
        "num_chains": 256,
        "sampler.num_warmup": 48,
        "sampler.num_samples": 20_000,
        "log_every_steps": 500,
    },
    "numpyro": {
        "model": "numpyro:{folder}/model.py:mean_of",
        "data": "{folder}/data.json",
        "method": "nuts",
        "init_from": "uniform",
        "num_chains": 2,
        "sampler.num_warmup": 50,
        "sampler.num_samples": 250,
        "log_every_steps": 20,
    },
    "factorisation": {
        "dataset": "watches:41x17",
        "model": "matrix_factorisation",
        "num_factors": 2,
        **CHAINS,
    },
}
"""One for each kind of loop."""
OFTEN = {"checkpoint_every_epochs": 1, "num_devices": 2}


@pytest.fixture
def command(tmp_path):
    """Makes the arguments of `train.py` for a kind, and a folder's name."""
    np.savez(tmp_path / "data.npz", **classes())
    (tmp_path / "data.json").write_text(json.dumps({"y": [2.1, 1.2, 3.3, 2.4]}))
    (tmp_path / "model.py").write_text(MODEL)

    def command(kind, name, **more):
        values = names.config({**OFTEN, **KINDS[kind], **more})
        values = {
            key: value.format(folder=tmp_path) if isinstance(value, str) else value
            for key, value in values.items()
        }
        path = tmp_path / f"{name}.py"
        path.write_text(CONFIG.format(values=values))
        return [str(ROOT / "train.py"), f"--config={path}", f"--workdir={tmp_path / name}"]

    return command


def steps_of(workdir):
    return {path.name for path in (workdir / "checkpoints").glob("[0-9]*") if path.name.isdigit()}


@contextlib.contextmanager
def begun(command):
    """A run in a process of its own, which does not outlive its block."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with started([sys.executable, *command], env=environment, **quiet) as process:
        yield process


def wait_for_checkpoints(process, workdir, number):
    """Waits until a run has saved so often since now, or has ended."""
    before = steps_of(workdir)
    while process.poll() is None and len(steps_of(workdir) - before) < number:
        time.sleep(0.005)


def test_a_model_that_is_killed_leaves_the_same_bits(command, tmp_path):
    run_command("train", *command("numpyro", "whole")[1:])
    run = command("numpyro", "killed")
    workdir = tmp_path / "killed"
    with begun(run) as process:
        wait_for_checkpoints(process, workdir, 1)
        assert process.poll() is None, process.stderr.read()
        process.kill()
    assert not names.file(workdir, "results.json").exists()
    run_command("train", *run[1:])
    np.testing.assert_equal(outcome(workdir), outcome(tmp_path / "whole"))  # NaN equals NaN.


def test_members_are_locked_killed_told_to_end_and_damaged_and_leave_the_same_bits(
    command, tmp_path
):
    run_command("train", *command("members", "whole")[1:])
    run = command("members", "stopped")
    workdir = tmp_path / "stopped"
    with begun(run) as process:
        wait_for_checkpoints(process, workdir, 1)
        refused_command("train", run[1:], (str(workdir), "in use by another run"))
        process.kill()
    with begun(run) as process:
        wait_for_checkpoints(process, workdir, 1)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    assert not names.file(workdir, "results.json").exists()
    newest = max(steps_of(workdir), key=int)
    for path in (workdir / "checkpoints" / newest).rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    run_command("train", *run[1:])
    assert any(newest in path.name for path in names.file(workdir, "corrupt_checkpoints").iterdir())
    np.testing.assert_equal(outcome(workdir), outcome(tmp_path / "whole"))


@pytest.mark.parametrize("number", range(5, 195, 19))
def test_a_kill_at_any_moment_loses_no_bit(number, tmp_path):
    kill(number, tmp_path)


FEW = {
    "members": {"num_epochs": 2},
    "walk": {"sampler.num_samples": 200, "log_every_steps": 50},
    "numpyro": {"sampler.num_warmup": 4, "sampler.num_samples": 20, "log_every_steps": 5},
    "factorisation": {
        "sampler.num_warmup": 0,
        "sampler.num_samples": 6,
        "log_every_steps": 2,
    },
}
"""Few steps: sums over shards of the data round differently, and chains amplify it."""


@pytest.mark.parametrize("kind", FEW)
def test_two_processes_of_two_devices_are_one_of_four(kind, command, tmp_path):
    few = {"num_devices": 4, **FEW[kind]}
    run_command("train", *command(kind, "one", **few)[1:])
    launcher = [str(ROOT / "scripts" / "launch_local.py"), "--num_processes=2"]
    launcher += ["--devices_per_process=2", f"--logs={tmp_path / 'logs'}", "--"]
    words = [sys.executable, *launcher, *command(kind, "two", **few)[1:]]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (outcome(tmp_path / name) for name in ("one", "two"))
    assert first.keys() == second.keys()
    for name in first:
        if name.endswith(".npz"):
            for key, values in first[name].items():
                np.testing.assert_allclose(second[name][key], values, atol=1e-3, err_msg=key)
        else:
            expected = names.floats(first[name])
            assert names.floats(second[name]) == pytest.approx(expected, rel=0.01, abs=1e-3)


STUCK = """
import time


def block(step, metrics):
    if step >= 20:
        time.sleep(10**6)
"""


def test_where_one_process_is_stuck_the_others_end_and_name_it(command, tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    run = command("members", "run", on_metrics="{folder}/stuck.py:block")
    run += [f"--coordinator_address=127.0.0.1:{free_port()}", "--num_processes=2"]
    run += ["--progress_timeout=20"]
    statuses, outputs = run_all(
        [[sys.executable, *run, f"--process_id={k}"] for k in range(2)],
        [{"JAX_NUM_CPU_DEVICES": "2"}] * 2,
        stderr=subprocess.STDOUT,
    )
    assert statuses == [75, 75], outputs
    line = r"train.py: process 0 is stuck at step \d+, and process 1 of 2 has waited \d+ seconds, "
    assert re.search(line, outputs[1]), outputs
    assert "train.py: process 1 has ended, whose log says why; " in outputs[0]
