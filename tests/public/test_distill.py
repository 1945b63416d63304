"""`ensemble distill`: what a user sees of it."""

import json

import numpy as np
import pytest
from programs import run_here
from runs import classes

COMMAND = ("ensemble.__main__", "distill")
CONFIG = """
import runs  # Which registers the network.
from ensemble import default_config


def get_config():
    config = default_config()
    config.update(dataset="npz:{npz}", model="public_small", ensemble_size=3, num_devices=2)
    config.update(num_epochs=2, batch_size=29, log_every_steps=100)
    return config
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a config file, and a run of it."""
    folder = tmp_path_factory.mktemp("own")
    np.savez(folder / "blobs.npz", **classes())
    (folder / "config.py").write_text(CONFIG.format(npz=folder / "blobs.npz"))
    done = run_here("train.py", f"--config={folder}/config.py", f"--workdir={folder}/run")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.soak
def test_a_network_is_laid_beside_its_teacher(run, tmp_path):
    flags = (f"--workdir={run}/run", f"--out={tmp_path}/one", "--config.num_epochs=3")
    done = run_here(*COMMAND, *flags)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if "examples/s" in line)
    assert [line.split("  ")[0] for line in lines[start + 2 : start + 5]] == [
        "teacher, 3 networks",
        "its average member",
        "student",
    ]
    assert f"Results: {tmp_path}/one/report.json" in done.stdout
    report = json.loads((tmp_path / "one" / "report.json").read_text())
    assert report["config"]["num_epochs"] == 3
    assert report["config"]["batch_size"] == 29
    assert report["num_members"] == 1


@pytest.mark.check
def test_a_file_says_what_a_student_is(run, tmp_path):
    flags = (f"--workdir={run}/run", f"--out={tmp_path}/two", f"--config={run}/config.py")
    done = run_here(*COMMAND, *flags, "--config.ensemble_size=2")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "two" / "report.json").read_text())
    assert report["num_members"] == report["distillation"]["student"]["num_networks"] == 2


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((), "--workdir"),
        (("--workdir=nowhere", "--out=out"), "nowhere"),
        (("--config.epochs=3",), "config.epochs"),
    ],
)
def test_a_mistake_is_one_line(flags, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_here(*COMMAND, *flags)
    assert done.returncode == 2
    assert named in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
