"""Several real processes on this machine: stopped, killed, misused."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, free_port, make_blobs, started
from programs import run_here
from small_runs import result_of, small_arguments

from scripts import launch_local

EPOCHS = 16


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Of train.py: small data, a small network."""
    return small_arguments(tmp_path_factory.mktemp("data"))


def command(arguments, workdir, *flags, logs=None):
    return [
        sys.executable, str(ROOT / "scripts" / "launch_local.py"), "--num_processes=2",
        "--devices_per_process=2", f"--logs={logs or workdir.parent / 'logs'}", *flags, "--",
        *arguments, f"--workdir={workdir}",
    ]  # fmt: skip


def launch(*args, **kwargs):
    return started(command(*args, **kwargs), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def children(launcher):
    """The processes of a launcher, by their number."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It may end meanwhile.
            is_child = f"\nPPid:\t{launcher.pid}\n" in (process / "status").read_text()
            arguments = (process / "cmdline").read_text()
            if is_child and (match := re.search(r"--process_id=(\d+)", arguments)):
                found[int(match[1])] = int(process.name)
    return found


def wait_for_checkpoints(workdir, beyond, launcher):
    """Waits until a run has taken checkpoints after a step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert launcher.poll() is None, launcher.communicate()
        if any(step > beyond for step in steps_of(workdir)):
            return
        time.sleep(0.02)
    raise TimeoutError(workdir)


def steps_of(workdir):
    return sorted(int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdecimal())


def kill_one(launcher, k):
    """Kills a process; the others end within a minute."""
    killed = time.monotonic()
    before = children(launcher)
    os.kill(before[k], signal.SIGKILL)
    others = [pid for one, pid in before.items() if one != k]
    while any(is_running(pid) for pid in others):
        assert time.monotonic() < killed + 60
        time.sleep(0.05)


@pytest.mark.check
def test_all_stop_where_one_is_asked_to(arguments, tmp_path):
    workdir = tmp_path / "run"
    for_long = [*arguments, f"--config.num_epochs={100 * EPOCHS}"]
    with launch(for_long, workdir, "--max_restarts=0") as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        os.kill(children(launcher)[1], signal.SIGTERM)
        _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 75, errors
    stopped = steps_of(workdir)[-1]
    for k in (0, 1):
        log = (tmp_path / "logs" / f"process_{k}.log").read_text()
        assert f"train.py: interrupted at step {stopped} of" in log
        assert "resume with: " in log
        assert "Traceback" not in log
    assert "go on with: " in errors


@pytest.mark.check
def test_killed_it_ends_as_the_undisturbed_run(arguments, tmp_path):
    workdir = tmp_path / "run"
    arguments = [*arguments, f"--config.num_epochs={2 * EPOCHS}"]
    with launch(arguments, workdir, "--max_restarts=2") as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        kill_one(launcher, 1)
        wait_for_checkpoints(workdir, steps_of(workdir)[-1], launcher)
        kill_one(launcher, 0)
        output, errors = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, errors
    assert "process 1 was ended by SIGKILL" in errors
    assert "process 0 was ended by SIGKILL" in errors
    assert "launch_local.py: restart 2 of 2" in errors
    assert "ensemble of 4 " in output
    first, second = ((tmp_path / "logs" / f"process_{k}.log").read_text() for k in (0, 1))
    # By what they wait for: each other's numbers, or a line of process 1.
    noticed = "process 0 of 2 has lost another one, whose log says why|JAX distributed service"
    assert re.search(noticed, first)
    assert "training: step" in first
    assert "step" not in second
    assert "The ensemble" not in second

    undisturbed = ["--config.num_devices=4", f"--workdir={tmp_path / 'undisturbed'}"]
    assert run_here("train.py", *arguments, *undisturbed).returncode == 0
    assert result_of(workdir) == result_of(tmp_path / "undisturbed")  # To the bit.


HOLDS = """
import subprocess, sys
held = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print("held by", held.pid)
"""
LAUNCH = """
import pathlib, sys
from scripts import launch_local
launch_local.ROOT, launch_local.LAST_SECONDS = pathlib.Path(sys.argv.pop(1)), 0.3
launch_local.GRACE_SECONDS = 2
sys.exit(launch_local.main(sys.argv[1:]))
"""


def test_a_child_that_outlives_process_0_is_not_waited_for(tmp_path):
    """It has inherited the pipe that is shown, as one that downloads a data set."""
    (tmp_path / "train.py").write_text(HOLDS)
    flags = ["--num_processes=1", f"--logs={tmp_path}", "--", "--x"]
    with started(
        [sys.executable, "-c", LAUNCH, str(tmp_path), *flags],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as launcher:  # fmt: skip
        held = int(launcher.stdout.readline().removeprefix("held by "))
        try:
            _, errors = launcher.communicate(timeout=30)
        finally:
            os.kill(held, signal.SIGKILL)
    assert launcher.returncode == 0, errors
    assert errors == f"launch_local.py: logs: {tmp_path}/process_*.log\n"


def by_hand(arguments, workdir, k, port, **kwargs):
    """One of two processes that nobody watches."""
    flags = [f"--coordinator_address=127.0.0.1:{port}", "--num_processes=2", f"--process_id={k}"]
    return started(
        [sys.executable, str(ROOT / "train.py"), *arguments, *flags, f"--workdir={workdir}"],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"}, stderr=subprocess.PIPE, **kwargs,
    )  # fmt: skip


@pytest.mark.check
def test_data_that_differ_are_one_line_in_both(arguments, tmp_path):
    arguments = [*arguments, "--config.dataset=npz:data.npz"]
    folders = [tmp_path / "0", tmp_path / "1"]
    for k, folder in enumerate(folders):
        folder.mkdir()
        np.savez(folder / "data.npz", **make_blobs(num_examples=200 + k))
    port = free_port()
    run = tmp_path / "run"
    with (
        by_hand(arguments, run, 0, port, cwd=folders[0]) as first,
        by_hand(arguments, run, 1, port, cwd=folders[1]) as second,
    ):
        for process in (first, second):
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 2, errors
            assert "train.py: the data of process 1 " in errors


@pytest.mark.check
def test_a_process_that_hangs_is_given_up(arguments, tmp_path):
    workdir = tmp_path / "run"
    for_long = [*arguments, f"--config.num_epochs={100 * EPOCHS}"]
    flags = command(for_long, workdir, "--max_restarts=0")[2:]
    with started(
        [sys.executable, "-c", LAUNCH, str(ROOT), *flags],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as launcher:  # fmt: skip
        wait_for_checkpoints(workdir, 0, launcher)
        before = children(launcher)
        os.kill(before[1], signal.SIGSTOP)
        stopped = time.monotonic()
        while is_running(before[0]):
            assert time.monotonic() < stopped + 60
            time.sleep(0.1)
        _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 75, errors
    assert "process 1 was ended by SIGKILL" in errors
    assert "go on with: " in errors


def is_running(pid):
    try:
        return ") Z " not in (pathlib.Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return False


@pytest.mark.check
def test_what_is_wrong_is_not_tried_again(arguments, tmp_path):
    with launch([*arguments, "--config.batch_size=0"], tmp_path / "run") as launcher:
        output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 2
    assert "train.py: config.batch_size=0 must be" in output
    assert "exit status 2; log:" in errors
    assert "restart" not in errors


@pytest.mark.check
def test_of_a_process_that_fails_alone_the_last_line_is_shown(arguments, tmp_path):
    config = tmp_path / "config.py"
    fails = "import sys\nassert '--process_id=1' not in sys.argv, 'only here'\n"
    config.write_text(f"{fails}from ensemble import default_config as get_config\n")
    began = time.monotonic()
    with launch([f"--config={config}", "--config.num_epochs=1"], tmp_path / "run") as launcher:
        _, errors = launcher.communicate(timeout=60)
    assert time.monotonic() - began < launch_local.GRACE_SECONDS / 2
    assert "process 0 was ended by SIGTERM" in errors  # It waited for process 1.
    assert launcher.returncode == 2
    says = f"cannot be loaded at {config}:2 (AssertionError: only here)"
    line = f"it says: train.py: --config={config} {says}"
    assert line in errors
    assert "restart" not in errors


def test_flags_of_a_process_are_checked(arguments, tmp_path):
    by_hand = [*arguments, f"--workdir={tmp_path}"]
    flags = ["--coordinator_address=127.0.0.1:1", "--num_processes=2"]
    for more, given in (
        ([], "--process_id=None"),
        (["--process_id=2"], "--process_id=2"),
        (["--process_id=1", "--coordinator_address=here"], "--coordinator_address=here"),
    ):
        result = run_here("train.py", *by_hand, *flags, *more)
        assert result.returncode == 2
        assert result.stderr.startswith("train.py: --coordinator_address=")
        assert given in result.stderr.partition("must be HOST:PORT")[0]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--num_processes=0", "--", "x"], "--num_processes=0 must be at least 1"),
        (["--num_processes=two", "--", "x"], "invalid int value: 'two'"),
        (["--num_processes=2", "--max_restarts=-1", "--", "x"], "must be at least 0"),
        (["--num_processes=2"], "arguments of train.py are missing: put them after --"),
        (["--", "x"], "--num_processes"),
        (["--num_processes=2", "--gpus=2", "--", "x"], "--gpus=2"),
        (
            ["--num_processes=2", "--logs=/dev/null", "--", "x"],
            "--logs=/dev/null must be a directory",
        ),
        (
            ["--num_processes=2", "--logs=/proc", "--", "x"],
            "--logs=/proc must be a directory that can",
        ),
    ],
)
def test_bad_flags_are_one_line(flags, line, capsys):
    with pytest.raises(SystemExit) as ended:
        launch_local.main(flags)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("launch_local.py: ")
    assert line in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [([0, 0], 0), ([75, -9], -9), ([2, 75, -9], 2), ([75, 1], 1), ([0, 75], 75)],
)
def test_the_error_of_a_run_outweighs_what_it_does_to_the_others(statuses, worst):
    assert launch_local._worst(statuses) == worst


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Makes a machine with so many GPUs, and JAX with its plug-in for them."""

    def gpus(number):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        lines = [f"GPU {k}: NVIDIA L4 (UUID: GPU-{k})" for k in range(number)]
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        program.chmod(0o755)
        plug_in = tmp_path / "site" / "fake-1.0.dist-info"
        plug_in.mkdir(parents=True, exist_ok=True)
        (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
        (plug_in / "entry_points.txt").write_text("[jax_plugins]\nxla_cuda13 = fake\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return gpus


def shares(num_processes):
    return [one.get("CUDA_VISIBLE_DEVICES") for one in launch_local.share_gpus(num_processes)]


def test_processes_share_the_gpus_out(gpus, monkeypatch, capsys):
    gpus(4)
    assert shares(2) == ["0,1", "2,3"]
    assert shares(1) == [None]  # One takes all that there are.
    assert capsys.readouterr().err == ""
    assert shares(3) == ["0", "1", "2"]
    line = "launch_local.py: GPU 3 stays idle: each of 3 processes has 1\n"
    assert capsys.readouterr().err == line
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    assert shares(2) == ["3", "GPU-5"]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert shares(2) == [None, None]


def test_without_gpus_or_jax_for_them_nothing_is_shared(gpus, monkeypatch):
    gpus(0)
    assert shares(2) == [None, None]
    gpus(4)
    monkeypatch.setattr(launch_local.importlib.metadata, "entry_points", lambda group: [])
    assert shares(2) == [None, None]


def test_more_processes_than_gpus_are_refused(gpus, capsys):
    gpus(2)
    with pytest.raises(SystemExit) as ended:
        launch_local.share_gpus(3)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("launch_local.py: --num_processes=3 must be at most the 2 GPU(s) here")


def test_each_process_sees_its_own_gpus(gpus, tmp_path):
    gpus(4)
    says = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['JAX_NUM_CPU_DEVICES'])"
    (tmp_path / "train.py").write_text(says)
    flags = ["--num_processes=2", f"--logs={tmp_path / 'logs'}", "--", "--x"]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(tmp_path), *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [(tmp_path / "logs" / f"process_{k}.log").read_text().splitlines() for k in (0, 1)]
    assert [lines[-1] for lines in said] == ["0,1 1", "2,3 1"]
