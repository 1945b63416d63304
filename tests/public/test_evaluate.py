"""`evaluate.py`: what a user sees of it."""

import json
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, fill, started
from programs import run_here

CONFIG = """
import flax.linen as nn
import models
from ensemble import default_config


class Mine(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(x.reshape((len(x), -1)) / 255)


models.register("mine", Mine)


def get_config():
    config = default_config()
    config.update(dataset="digits", model="mine", num_epochs=1, ensemble_size=2)
    return config
"""


@pytest.fixture(scope="module")
def own_network(tmp_path_factory):
    """A config file with a network of its own, and a run of it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(CONFIG)
    done = run_here("train.py", f"--config={folder}/mine.py", f"--workdir={folder}/run")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.check
def test_a_network_of_ones_own_is_evaluated_with_its_config(own_network, tmp_path):
    workdir = own_network / "run"
    done = run_here("evaluate.py", f"--workdir={workdir}", f"--out={tmp_path}/out")
    assert done.returncode == 2
    assert "--config=FILE" in done.stderr.splitlines()[-1]
    config = own_network / "mine.py"
    done = run_here(
        "evaluate.py", f"--workdir={workdir}", f"--out={tmp_path}/out", f"--config={config}"
    )
    assert done.returncode == 0, done.stderr
    assert f"Report: {tmp_path}/out/report.html" in done.stdout
    evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert list(evaluation["out_of_distribution"]) == ["uniform", "constant"]
    assert evaluation["findings"][0]["text"] in done.stdout
    assert "predicted constant, 27 of 27" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--workdir"),
        (["--workdir=/nowhere"], "/nowhere"),
        (["--workdir=x", "--num_devices=0"], "num_devices"),
        (["--workdir=x", "--config=/nowhere.py"], "/nowhere.py"),
        (["--workdir=x", "--abstain=2%"], "abstain='2%'"),
        (["--workdir=x", "y"], "'y'"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, named):
    done = run_here("evaluate.py", *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("evaluate.py: ")
    assert named in line
    assert done.stdout == ""


@pytest.mark.check
def test_arrays_that_a_program_gave_are_given_again(blobs, blobs_run, tmp_path):
    np.savez(tmp_path / "blobs.npz", **blobs)
    flags = [f"--workdir={blobs_run}", f"--out={tmp_path}/out", "--datasets=uniform"]
    refused = run_here("evaluate.py", *flags)
    assert refused.returncode == 2
    assert "ensemble.evaluate(workdir, data=...)" in refused.stderr.splitlines()[-1]
    assert "ensemble evaluate --data=FILE.npz" in refused.stderr.splitlines()[-1]
    done = run_here("evaluate.py", *flags, f"--data={tmp_path}/blobs.npz", "--exact_sets")
    assert done.returncode == 0, done.stderr
    evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert list(evaluation["out_of_distribution"]) == ["uniform"]
    assert evaluation["conformal"]["sets"]["nonempty"] is False


def test_scores_that_are_asked_for_have_a_line_each(blobs_run, tmp_path):
    flags = [f"--workdir={blobs_run}", f"--out={tmp_path}/out", "--datasets=none"]
    done = run_here("evaluate.py", *flags, "--scores=auroc:1,auprc:1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:9] for line in lines if line.startswith("au")] == ["auroc:1: ", "auprc:1: "]


@pytest.mark.check
def test_ctrl_c_is_one_line_and_status_130(own_network, tmp_path):
    command = [sys.executable, str(ROOT / "evaluate.py"), f"--workdir={own_network / 'run'}"]
    command += [f"--out={tmp_path}/out", f"--config={own_network / 'mine.py'}"]
    with started(command, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not any((tmp_path / "out").glob("**/*.npz")):
            time.sleep(0.01)  # Until the first of 27 predictions is there.
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 130
    assert rest.splitlines()[-1].startswith("evaluate.py: interrupted")
    assert "Traceback" not in rest
    assert not (tmp_path / "out" / "evaluation.json").exists()


@pytest.mark.check
def test_a_file_that_may_not_grow_is_one_line(blobs_run, tmp_path):
    """`ulimit -f`: the system says EFBIG."""
    command = [sys.executable, str(ROOT / "evaluate.py"), f"--workdir={blobs_run}"]
    limited = f"ulimit -f 8; exec {shlex.join(command)} --out={tmp_path}/out"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"{tmp_path}/out" in last
    assert "File too large" in last
    assert "Traceback" not in done.stderr


def test_a_full_disk_leaves_no_half_written_results(blobs_run, small_disk):
    fill(small_disk, free=16_000)
    done = run_here("evaluate.py", f"--workdir={blobs_run}", f"--out={small_disk}/out")
    assert done.returncode == 2
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (small_disk / "out" / "report.html").exists()
    assert not (small_disk / "out" / "evaluation.json").exists()
