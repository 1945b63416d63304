"""A package that is installed, `tests/rockpools`, has a tenant of every kind, and nothing names it.

It is built and installed into a folder of its own. Shells that import nothing use it by the
command line alone.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT
from markdown_pages import blocks, training_commands

PAGE = ROOT / "docs" / "extending.md"
PACKAGE = ROOT / "tests" / "rockpools"
TRAIN = (
    "train",
    "--config=arrays",
    "--config.dataset=pools:400",
    "--config.likelihood=zero_inflated_poisson",
    "--config.model=sines",
    "--config.sines.width=32",
    "--config.prior=logistic(1)",
    "--config.power.exponent=0.9",
    "--config.batching=independent",
    "--config.ensemble_size=3",
    "--config.num_devices=1",
    "--config.early_stopping_epochs=0",
    "--config.checkpoint_every_epochs=1",
    "--config.num_epochs=60",
)
METHOD = "--config.method=same_start"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the package installs in `site`."""
    found = tmp_path_factory.mktemp("extending")
    shutil.copytree(PACKAGE, found / "source")
    where = ["--no-index", f"--find-links={found}", f"--target={found / 'site'}"]
    for command in (
        ["build", "--wheel", "--outdir", str(found), str(found / "source")],
        ["pip", "install", "--no-deps", *where, "rockpools"],
    ):
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return found


def environment(folder, *, installed=True):
    """Of a shell, in which the package is installed or not."""
    path = [str(ROOT), *([str(folder / "site")] if installed else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def command(folder, *arguments, installed=True):
    """Runs `ensemble` in a shell; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "ensemble", *arguments],
        cwd=folder,
        env=environment(folder, installed=installed),
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == installed, done.stderr
    return done.stdout if installed else done.stderr.splitlines()[-1]


def kill_after_a_checkpoint(arguments, folder, workdir):
    """Begins a run in a shell, and kills it after its first checkpoint."""
    process = subprocess.Popen(
        arguments, cwd=folder, env=environment(folder), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 200
    while not any((workdir / "checkpoints").glob("[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (workdir / "report.json").exists()


@pytest.fixture(scope="module")
def killed(folder):
    """The workdir of a run that was killed after its first checkpoints, and went on."""
    workdir = folder / "killed"
    arguments = [sys.executable, "-m", "ensemble", *TRAIN, METHOD, f"--workdir={workdir}"]
    kill_after_a_checkpoint(arguments, folder, workdir)
    command(folder, *TRAIN, METHOD, f"--workdir={workdir}")
    return workdir


def report_of(workdir):
    return json.loads((workdir / "report.json").read_text())


@pytest.mark.check
def test_it_is_listed_by_its_kinds(folder):
    for kind, name in (("methods", "same_start"), ("sources", "pools:NUMBER"), ("scores", "bias")):
        rows = [line.split() for line in command(folder, "list", kind).splitlines()]
        assert [name, "rockpools", "1.0"] in rows


@pytest.mark.check
def test_a_config_file_and_flags_set_its_keys(folder):
    text = """
import ensemble


def get_config():
    config = ensemble.default_config()
    config.method, config.model, config.dataset = "same_start", "sines", "pools:50"
    config.likelihood, config.num_epochs = "zero_inflated_poisson", 3
    return config
"""
    (folder / "mine.py").write_text(text)
    flags = ("train", "--config=mine.py", "--explain")
    assert "  sines.width = 64\n" in command(folder, *flags)
    assert "* sines.width = 16\n" in command(folder, *flags, "--config.sines.width=16")
    assert "* power.exponent = 2.0\n" in command(folder, *flags, "--config.power.exponent=2.0")


@pytest.mark.check
def test_killed_and_resumed_it_ends_with_the_same_bits(folder, killed):
    command(folder, *TRAIN, METHOD, f"--workdir={folder / 'whole'}")
    whole, again = report_of(folder / "whole"), report_of(killed)
    assert again["test"] == whole["test"]
    assert again["config"]["power"] == {"exponent": 0.9}
    members = whole["test"]["scores"]["nll"]["members"]
    assert len(set(members)) == 3  # By their batches alone.
    packages = json.loads((killed / "config.json").read_text())["packages"]
    assert {one["kind"] for one in packages} == {
        *("method", "task", "network", "likelihood", "source", "prior")
    }


@pytest.mark.check
def test_another_process_loads_it_and_its_export_needs_nothing(folder, killed):
    np.savez(folder / "new.npz", inputs=np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
    command(folder, "export", f"--workdir={killed}", f"--out={folder / 'pools.bin'}")
    load = "import ensemble; found = ensemble.load('killed')(inputs).mean"
    read = "from jax import export; found = export.deserialize(open('pools.bin', 'rb').read())"
    means = []
    for code, path in (
        (load, environment(folder)["PYTHONPATH"]),
        (f"{read}.call(inputs)['mean']", ""),
    ):
        program = f"import numpy as np; inputs = np.load('new.npz')['inputs']; {code}"
        done = subprocess.run(
            [sys.executable, "-c", f"{program}; print(np.asarray(found).tolist())"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        means.append(json.loads(done.stdout))
    np.testing.assert_allclose(*means, rtol=1e-5)
    rows = json.loads(command(folder, "predict", f"--workdir={killed}", "new.npz", "--json"))
    predicted = sorted(one["mean"] for one in rows["predictions"])
    np.testing.assert_allclose(predicted, sorted(means[0]), rtol=1e-5)


@pytest.mark.check
def test_it_is_evaluated_and_compared(folder, killed):
    other = folder / "other"
    command(folder, *TRAIN, "--config.method=sgd", f"--workdir={other}")
    printed = command(
        folder, "evaluate", f"--workdir={killed}", "--scores=bias", f"--compare={other}"
    )
    assert re.search(r"^bias: -?\d", printed, re.MULTILINE)
    evaluation = json.loads((killed / "evaluation" / "evaluation.json").read_text())
    score = evaluation["test"]["scores"]["bias"]
    assert score["interval"][0] < score["value"] < score["interval"][1]
    (record,) = evaluation["packages"]
    assert record == {"kind": "score", "name": "bias", "package": "rockpools", "version": "1.0"}
    assert "The mean error of predicted numbers" not in printed
    assert "Predictions less targets" in (killed / "evaluation" / "report.html").read_text()
    (compared,) = evaluation["compare"]
    assert "bias" in json.dumps(compared)
    assert "bias" not in report_of(killed)["test"]["scores"]


@pytest.mark.check
def test_where_it_is_not_installed_one_line_says_so(folder, killed):
    for arguments in (
        ("predict", "new.npz"),
        ("evaluate",),
        (*TRAIN[:2], METHOD, "--config.num_epochs=61"),
    ):
        line = command(folder, *arguments, f"--workdir={killed}", installed=False)
        assert "the prior 'logistic' of the package rockpools 1.0, and nothing here is" in line


@pytest.mark.check
def test_its_tenants_keep_their_promises(folder):
    tests = folder / "source" / "tests"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=folder,
        env={**environment(folder), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_nothing_else_names_it():
    own = (PACKAGE, PAGE, ROOT / "tests" / "test_extending.py")
    for folder in ("ensemble", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert (
                path.is_relative_to(PACKAGE) or path in own or "rockpools" not in path.read_text()
            )


def test_the_page_shows_its_files_and_they_are_short():
    shown = [text for _, text in blocks(PAGE)]
    files = sorted(PACKAGE.glob("rockpools/[a-z]*.py"))
    assert len(files) == 9
    for path in files:
        text = path.read_text()
        assert f"# {path.relative_to(PACKAGE)}\n{text}" in shown
        assert text.count("\n") <= 37
    tests = PACKAGE / "tests" / "test_tenants.py"
    assert f"# {tests.relative_to(PACKAGE)}\n{tests.read_text()}" in shown
    _, flags = training_commands(PAGE)
    for flag in shlex.split(flags)[2:]:
        assert flag in (*TRAIN, METHOD) or flag.startswith("--workdir=")
    project = (PACKAGE / "pyproject.toml").read_text()
    points = project[project.index("[project.entry-points") : project.index("[tool.")]
    assert points.strip() + "\n" in shown


@pytest.mark.check
def test_pieces_of_the_config_file_of_the_page_keep_their_promises(tmp_path):
    (text,) = [text for _, text in blocks(PAGE, "python") if text.startswith("# mine.py\n")]
    text += """

from ensemble import testing

testing.check_augmentation("noise", (8, 8, 1))
testing.check_writer("csv")
"""
    (tmp_path / "mine.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path,
        env=environment(tmp_path, installed=False),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.check
def test_the_config_file_of_the_page_trains_goes_on_and_evaluates(tmp_path):
    (text,) = [text for _, text in blocks(PAGE, "python") if text.startswith("# mine.py\n")]
    (tmp_path / "mine.py").write_text(text)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train = ("train", "--config=mine.py")
    command(tmp_path, *train, f"--workdir={whole}")
    arguments = [sys.executable, "-m", "ensemble", *train, f"--workdir={killed}"]
    kill_after_a_checkpoint(arguments, tmp_path, killed)
    assert (killed / "metrics.csv").read_text()
    command(tmp_path, *train, f"--workdir={killed}")
    assert report_of(whole)["test"] == report_of(killed)["test"]
    rows = [
        [line for line in (one / "metrics.csv").read_text().splitlines() if "_second," not in line]
        for one in (whole, killed)
    ]
    assert rows[0] == rows[1]
    lines = (whole / "metrics.jsonl").read_text().splitlines()
    assert len(rows[0]) > len(lines) > 10
    evaluate = ("evaluate", "--config=mine.py", "--scores=certainty")
    printed = command(tmp_path, *evaluate, f"--workdir={killed}")
    assert re.search(r"^certainty: 0\.\d", printed, re.MULTILINE)
    listed = command(tmp_path, "list", "writers", "--config=mine.py")
    assert listed.split() == ["csv", "registered"]
