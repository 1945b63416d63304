"""Several real processes on this machine: stopped, killed, misused."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, fill, free_port, make_blobs, started
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


@pytest.mark.soak
def test_stopped_and_killed_it_ends_as_the_undisturbed_run(arguments, tmp_path):
    workdir = tmp_path / "run"
    for_long = [*arguments, f"--config.num_epochs={100 * EPOCHS}"]
    with launch(for_long, workdir, "--max_restarts=0") as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        os.kill(children(launcher)[1], signal.SIGTERM)  # To one alone.
        _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 75, errors
    stopped = steps_of(workdir)[-1]
    for k in (0, 1):
        log = (tmp_path / "logs" / f"process_{k}.log").read_text()
        assert f"train.py: interrupted at step {stopped} of" in log
        assert "resume with: " in log
        assert "Traceback" not in log
    assert "go on with: " in errors

    steps_per_epoch = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    num_epochs = int(stopped * steps_per_epoch["epoch"] / steps_per_epoch["step"]) + EPOCHS
    arguments = [*arguments, f"--config.num_epochs={num_epochs}"]
    with launch(arguments, workdir, "--max_restarts=2", logs=tmp_path / "again") as launcher:
        wait_for_checkpoints(workdir, stopped, launcher)
        kill_one(launcher, 1)
        wait_for_checkpoints(workdir, steps_of(workdir)[-1], launcher)
        kill_one(launcher, 0)
        output, errors = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, errors
    assert "process 1 was ended by SIGKILL" in errors
    assert "process 0 was ended by SIGKILL" in errors
    assert "launch_local.py: restart 2 of 2" in errors
    assert "ensemble of 4 " in output
    first, second = ((tmp_path / "again" / f"process_{k}.log").read_text() for k in (0, 1))
    # By what they wait for: each other's numbers, or a line of process 1.
    noticed = "has lost another one, whose log says why|has not heard of process 1 for 20 s"
    assert re.search(f"train.py: process 0 of 2 ({noticed})", first)
    assert "[0/2] step" in first
    assert "step" not in second
    assert "The ensemble" not in second

    undisturbed = command(arguments, tmp_path / "undisturbed")
    subprocess.run(undisturbed, check=True, capture_output=True)
    assert result_of(workdir) == result_of(tmp_path / "undisturbed")  # To the bit.


@pytest.mark.soak
def test_ctrl_c_stops_all_after_a_checkpoint(arguments, tmp_path):
    workdir = tmp_path / "run"
    with launch([*arguments, f"--config.num_epochs={100 * EPOCHS}"], workdir) as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        launcher.send_signal(signal.SIGINT)
        _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    assert "go on with: " in errors
    assert "restart" not in errors


@pytest.mark.soak
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(arguments, small_disk, tmp_path):
    workdir, logs = small_disk / "run", tmp_path / "logs"
    for_long = [*arguments, f"--config.num_epochs={1000 * EPOCHS}"]
    with launch(for_long, workdir, logs=logs) as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        before = steps_of(workdir)[-1]
        ballast = fill(small_disk)
        check_end_of_workdir(launcher, logs, "cannot be written: No space left on device")
    ballast.unlink()
    last = steps_of(workdir)[-1]  # Saves go on until the disk is full.
    with launch(for_long, workdir, "--max_restarts=0", logs=tmp_path / "again") as launcher:
        wait_for_checkpoints(workdir, last, launcher)
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    again = (tmp_path / "again" / "process_0.log").read_text()
    assert int(re.search(r"Resuming .* step (\d+) ", again)[1]) >= before


@pytest.mark.soak
def test_a_workdir_that_is_removed_is_one_line(arguments, tmp_path):
    workdir = tmp_path / "run"
    with launch([*arguments, f"--config.num_epochs={1000 * EPOCHS}"], workdir) as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        shutil.rmtree(workdir, ignore_errors=True)  # It writes meanwhile.
        check_end_of_workdir(launcher, tmp_path / "logs", "was removed while the run wrote to it")


def check_end_of_workdir(launcher, logs, reason):
    """Process 0 says what is wrong with the workdir, the others whom they lost; no restart."""
    output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 2, errors
    assert "restart" not in errors
    assert "Traceback" not in output
    last = output.splitlines()[-1]
    assert last.startswith("train.py: ")
    assert reason in last
    other = (logs / "process_1.log").read_text()
    assert "train.py: process 1 of 2 has lost " in other
    assert "Traceback" not in other


HOLDS = """
import subprocess, sys
held = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print("held by", held.pid)
"""
LAUNCH = """
import pathlib, sys
from scripts import launch_local
launch_local.ROOT, launch_local.LAST_SECONDS = pathlib.Path(sys.argv.pop(1)), 0.3
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


def test_what_process_0_has_said_is_shown_to_a_slow_reader_too(tmp_path):
    (tmp_path / "train.py").write_text("print('\\n'.join(map(str, range(19_000))))")
    flags = ["--num_processes=1", f"--logs={tmp_path}", "--", "--x"]
    with started(
        [sys.executable, "-c", LAUNCH, str(tmp_path), *flags], cwd=ROOT, stdout=subprocess.PIPE
    ) as launcher:
        lines = [launcher.stdout.readline()]
        time.sleep(1)  # As in a pager: its pipe is full, and so is half of process 0's, which ends.
        lines += launcher.stdout
    assert [int(line) for line in lines] == [*range(19_000)]


@pytest.mark.soak
def test_what_it_cannot_show_or_log_stops_nothing(arguments, small_disk, tmp_path):
    """A reader that has enough, such as `head`, and a full disk under the logs."""
    arguments = [*arguments, "--config.num_epochs=40", "--config.checkpoint_every_epochs=40"]
    (small_disk / "logs").mkdir()
    with launch(arguments, tmp_path / "run", logs=small_disk / "logs") as launcher:
        launcher.stdout.readline()
        launcher.stdout.close()
        fill(small_disk)
        launcher.stdout = None
        _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors
    assert "(Broken pipe)" in errors
    assert "process_0.log cannot be written" in errors
    assert "Traceback" not in errors
    assert (tmp_path / "run" / "report.json").exists()


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
    port, run = free_port(), tmp_path / "run"
    with (
        by_hand(arguments, run, 0, port, cwd=folders[0]) as first,
        by_hand(arguments, run, 1, port, cwd=folders[1]) as second,
    ):
        for process in (first, second):
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 2, errors
            assert "train.py: the data of process 1 " in errors


@pytest.mark.soak
def test_ctrl_c_to_one_of_two_that_were_started_by_hand_stops_both(arguments, tmp_path):
    for_long, port = [*arguments, f"--config.num_epochs={100 * EPOCHS}"], free_port()
    run = tmp_path / "run"
    with by_hand(for_long, run, 0, port) as first, by_hand(for_long, run, 1, port) as second:
        wait_for_checkpoints(run, 0, first)
        second.send_signal(signal.SIGINT)
        for process in (first, second):
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 75
            assert f"interrupted at step {steps_of(run)[-1]} of" in errors
    assert "SIGINT: all processes " in errors


@pytest.mark.soak
def test_a_process_that_hangs_is_given_up(arguments, tmp_path):
    workdir = tmp_path / "run"
    with launch([*arguments, f"--config.num_epochs={10 * EPOCHS}"], workdir) as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        before = children(launcher)
        os.kill(before[1], signal.SIGSTOP)
        stopped = time.monotonic()
        while is_running(before[0]):
            assert time.monotonic() < stopped + 60
            time.sleep(0.1)
        _, errors = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, errors
    assert "process 1 was ended by SIGKILL" in errors
    assert "launch_local.py: restart 1 of 3" in errors


@pytest.mark.soak
def test_no_process_outlives_a_launcher_that_is_killed(arguments, tmp_path):
    workdir = tmp_path / "run"
    with launch([*arguments, f"--config.num_epochs={1000 * EPOCHS}"], workdir) as launcher:
        wait_for_checkpoints(workdir, 0, launcher)
        left = list(children(launcher).values())
        assert len(left) == 2
        launcher.kill()
        deadline = time.monotonic() + 60
        while any(is_running(pid) for pid in left) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(is_running(pid) for pid in left)
    assert "resume with" in (tmp_path / "logs/process_1.log").read_text()


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
    says = f"cannot be loaded (at {config}:2): AssertionError: only here"
    line = f"it says: train.py: --config={config} {says}"
    assert line in errors
    assert "restart" not in errors


def test_a_process_alone_says_whom_it_waited_for(arguments, tmp_path):
    by_hand = [*arguments, f"--workdir={tmp_path}"]
    flags = ["--coordinator_address=127.0.0.1:1", "--num_processes=2", "--process_id=1"]
    result = run_here("train.py", *by_hand, *flags, "--join_seconds=1")
    assert result.returncode == 75
    assert result.stderr.startswith("train.py: process 1 ")
    assert len(result.stderr.splitlines()) == 1
    result = run_here("train.py", *by_hand, *flags[:2])
    assert result.returncode == 2
    assert result.stderr.startswith("train.py: --process_id is missing")


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


def test_a_reserved_port_is_for_process_0_alone():
    with launch_local.reserve_port() as reserved, socket.socket() as other:
        port = reserved.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.create_server(("", port)):  # As process 0 does.
            socket.create_connection(("127.0.0.1", port)).close()


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
