"""What holds of every run: devices, interruption, growth, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT
from programs import run_here
from runs import MEMBERS, METHODS, classes

import ensemble

INPUTS = classes()["inputs"][:9]
CONFIG = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "public")!r})
import runs
import ensemble


def get_config():
    config = ensemble.default_config()
    config.update_from_flattened_dict(runs.METHODS[CHOSEN])
    config.dataset = "npz:DATA"
    return config
"""


def predicted(workdir):
    return ensemble.load(workdir)(INPUTS).member_log_probs


SHORT = {
    "num_epochs": 2,
    "num_chains": 2,
    "log_every_steps": 2,
    "sampler.num_warmup": 0,
    "sampler.step_size": 0.01,
    "sampler.num_samples": 3,
    "sgmcmc.num_burn_in": 2,
    "sgmcmc.num_samples": 4,
}
"""Few steps: sums over shards of the data round differently, and chains amplify it."""


def _short(method):
    """The keys of few steps that a method has."""
    found = {key: value for key, value in SHORT.items() if key in METHODS[method]}
    return {**found, "sampler.thin": 1} if "sampler.num_samples" in found else found


@pytest.mark.check
@pytest.mark.parametrize("method", METHODS)
def test_one_two_or_four_devices_sample_alike(method, tmp_path):
    found = {}
    for devices in (1, 2, 4):
        config = {**METHODS[method], **_short(method), "num_devices": devices}
        workdir = tmp_path / str(devices)
        ensemble.train(config, classes(), str(workdir), show_progress=False)
        found[devices] = predicted(workdir)
    for devices in (2, 4):
        np.testing.assert_allclose(found[1], found[devices], atol=1e-3)


@pytest.mark.check
@pytest.mark.parametrize("method", ["sgd", "hmc"])
def test_two_processes_of_two_devices_are_one_of_four(method, arguments, tmp_path):
    short = [f"--config.{key}={value}" for key, value in _short(method).items()]
    launcher = [sys.executable, str(ROOT / "scripts" / "launch_local.py"), "--num_processes=2"]
    launcher += ["--devices_per_process=2", f"--logs={tmp_path / 'logs'}", "--"]
    found = []
    for command in ([sys.executable, str(ROOT / "train.py")], launcher):
        workdir = str(len(found))
        flags = [*arguments(method, workdir), "--config.num_devices=4", *short]
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "4"}
        done = subprocess.run([*command, *flags], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        with np.load(tmp_path / workdir / "predictions" / "test.npz") as predictions:
            found.append(predictions["log_probs"])
    np.testing.assert_allclose(*found, atol=1e-3)


@pytest.mark.parametrize("num_devices", [1, pytest.param(8, marks=pytest.mark.check)])
def test_the_number_of_devices_changes_no_member(num_devices, tmp_path):
    for devices in (2, num_devices):
        config = {**MEMBERS, "num_devices": devices}
        ensemble.train(config, classes(), str(tmp_path / str(devices)), show_progress=False)
    one, other = predicted(tmp_path / "2"), predicted(tmp_path / str(num_devices))
    np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.fixture
def arguments(tmp_path):
    """Makes the arguments of `train.py` for a method of `METHODS`."""
    np.savez(tmp_path / "data.npz", **classes())

    def arguments(method, workdir):
        path = tmp_path / f"{method}.py"
        text = CONFIG.replace("CHOSEN", repr(method)).replace("DATA", str(tmp_path / "data.npz"))
        path.write_text(text)
        return [f"--config={path}", f"--workdir={tmp_path / workdir}"]

    return arguments


@pytest.mark.check
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_killed_ends_as_if_nothing_had_happened(method, arguments, tmp_path):
    command = [sys.executable, str(ROOT / "train.py")]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    killed = subprocess.Popen(
        [*command, *arguments(method, "killed")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    checkpoints = tmp_path / "killed" / "checkpoints"
    while killed.poll() is None and not any(checkpoints.glob("[0-9]*")):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "report.json").exists()
    for workdir in ("killed", "whole"):
        run = [*command, *arguments(method, workdir)]
        done = subprocess.run(run, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    with (
        np.load(tmp_path / "killed" / "predictions" / "test.npz") as one,
        np.load(tmp_path / "whole" / "predictions" / "test.npz") as other,
    ):
        np.testing.assert_array_equal(one["log_probs"], other["log_probs"])


@pytest.mark.check
def test_members_that_join_leave_the_others_as_they_are(tmp_path):
    config = {**MEMBERS, "ensemble_size": 2}
    ensemble.train(config, classes(), str(tmp_path / "run"), show_progress=False)
    before = predicted(tmp_path / "run")
    config = {**MEMBERS, "ensemble_size": 4}
    ensemble.train(config, classes(), str(tmp_path / "run"), show_progress=False)
    after = predicted(tmp_path / "run")
    assert len(after) == 4
    np.testing.assert_allclose(after[:2], before, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"ensemble_size": 0}, "ensemble_size"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"method": "sdg"}, "sdg"),
        ({"model": "no_such"}, "no_such"),
        ({"likelihood": "no_such"}, "no_such"),
        ({"batchsize": 3}, "batchsize"),
        ({"num_steps": 5}, "num_steps"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(overrides, named):
    with pytest.raises(ensemble.UserError) as caught:
        ensemble.train({**MEMBERS, **overrides}, data=classes(), show_progress=False)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("program", "flags", "named"),
    [
        ("train.py", ["--config=no_such.py", "--workdir=x"], "no_such.py"),
        ("train.py", ["--config=configs/digits_ensemble.py", "--config.no_such=1"], "no_such"),
        ("evaluate.py", ["--workdir=no_such"], "no_such"),
        ("predict.py", ["--workdir=no_such", "x.csv"], "no_such"),
        ("predict.py", ["--workdir"], "--workdir"),
        ("ensemble.__main__", ["traim"], "traim"),
        ("ensemble.__main__", ["train", "--config=no_such.py", "--workdir=x"], "no_such.py"),
        ("ensemble.__main__", ["export", "--workdir=no_such", "--out=m.bin"], "no_such"),
        ("ensemble.__main__", ["convert", "no_such", "out"], "no_such"),
        ("ensemble.__main__", ["distill", "--workdir=no_such", "--out=out"], "no_such"),
        ("scripts/launch_local.py", ["--num_processes=0", "--", "x"], "--num_processes=0"),
    ],
)
def test_a_program_ends_with_status_2_and_one_line(program, flags, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    done = run_here(program, *flags)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.check
def test_data_that_differ_are_no_continuation(tmp_path):
    ensemble.train(
        {**MEMBERS, "num_epochs": 1}, classes(), str(tmp_path / "r"), show_progress=False
    )
    before = json.loads((tmp_path / "r" / "report.json").read_text())
    with pytest.raises(ensemble.UserError):
        ensemble.train(MEMBERS, classes(151), str(tmp_path / "r"), show_progress=False)
    assert json.loads((tmp_path / "r" / "report.json").read_text()) == before
