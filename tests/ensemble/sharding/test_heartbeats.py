"""Four real processes of which one hangs, is slow or has a full disk: the others, in a line."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, fill, free_port, started
from small_runs import result_of, small_arguments

NUM_PROCESSES = 4
HEARTBEAT_SECONDS = 30
"""Within which the others end, as docs/devices.md says."""
SLACK_SECONDS = 15
"""Of a machine that has more processes than cores."""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Of train.py: small data, a small network."""
    return small_arguments(tmp_path_factory.mktemp("data"))


@contextlib.contextmanager
def four(arguments, workdir, variables=None, programs=None):
    """Processes by hand, which no launcher watches.

    Args:
        arguments: of train.py.
        workdir: of the run.
        variables: of the environment of one, by its number.
        programs: what one runs in place of train.py, by its number.
    """
    address = f"--coordinator_address=127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                started(
                    [
                        sys.executable, str((programs or {}).get(k, ROOT / "train.py")),
                        *arguments, address,
                        f"--num_processes={NUM_PROCESSES}", f"--process_id={k}",
                        f"--workdir={workdir}", "--join_seconds=120",
                    ],
                    env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", **(variables or {}).get(k, {})},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            )
            for k in range(NUM_PROCESSES)
        ]  # fmt: skip


def steps_of(workdir):
    return sorted(int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdecimal())


def wait_for_step(workdir, processes, before=()):
    """Waits until a run has taken another checkpoint than the last ones before."""
    deadline = time.monotonic() + 400
    while steps_of(workdir)[-1:] == list(before):
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def check_survivors(processes, lost, began):
    """All but one end in time, with a line of their own and the status that means: go on."""
    for k, process in enumerate(processes):
        if k == lost:
            continue
        left = began + HEARTBEAT_SECONDS + SLACK_SECONDS - time.monotonic()
        _, errors = process.communicate(timeout=max(left, 0.1))
        assert process.returncode == 75, (k, errors)
        assert "Traceback" not in errors
        assert "*** " not in errors  # Of a death in C++.
        lines = [line for line in errors.splitlines() if line.startswith("train.py: ")]
        assert lines, errors
        assert re.search(rf"process {k} of 4 has (not heard of|lost) ", lines[-1])
        assert "the same command, for all, goes on from the last checkpoint" in lines[-1]


@pytest.mark.parametrize(
    "lost",
    [pytest.param(2, marks=pytest.mark.check), pytest.param(0, marks=pytest.mark.soak)],
)
def test_where_one_hangs_the_others_end_with_a_line(arguments, tmp_path, lost):
    endless = [*arguments, "--config.num_epochs=100000"]
    with four(endless, tmp_path / "run") as processes:
        wait_for_step(tmp_path / "run", processes)
        processes[lost].send_signal(signal.SIGSTOP)
        check_survivors(processes, lost, time.monotonic())


@pytest.mark.soak
def test_where_the_disk_of_the_run_is_full_all_end_with_a_line(arguments, small_disk):
    workdir = small_disk / "run"
    with four([*arguments, "--config.num_epochs=100000"], workdir) as processes:
        wait_for_step(workdir, processes)
        fill(small_disk)
        _, errors = processes[0].communicate(timeout=100)
        assert processes[0].returncode == 2
        assert errors.splitlines()[-1].startswith("train.py: ")
        assert "cannot be written: No space left on device" in errors.splitlines()[-1]
        check_survivors(processes, 0, time.monotonic())


ELSEWHERE = """
import pathlib, sys
sys.path.insert(0, {root!r})
from ensemble.commands.train import run
from ensemble.storage import part_files

created = part_files._created

async def elsewhere(value, info):
    part = pathlib.Path(info.parent_dir) / "ocdbt.process_{lost}"
    step = int(part.parents[1].name.partition(".")[0])
    if step > {step} and not part.is_symlink():
        part.symlink_to({disk!r})
    return await created(value, info)

part_files._created = elsewhere
if __name__ == "__main__":
    sys.exit(run())
"""
"""train.py, whose part of each checkpoint after a step lies on another disk."""


@pytest.mark.soak
def test_where_one_cannot_write_its_part_all_end_with_a_line(arguments, small_disk, tmp_path):
    """The disk of process 2 alone is full, from the third checkpoint on."""
    lost, arguments = 2, [*arguments, "--config.num_epochs=4"]
    program = tmp_path / "elsewhere.py"
    values = {"root": str(ROOT), "lost": lost, "step": 18, "disk": str(small_disk)}
    program.write_text(ELSEWHERE.format(**values))
    fill(small_disk)
    with four(arguments, tmp_path / "run", programs={lost: program}) as processes:
        _, errors = processes[lost].communicate(timeout=400)
        began = time.monotonic()
        assert processes[lost].returncode == 2, errors
        last = errors.splitlines()[-1]
        assert last.startswith(f"train.py: {tmp_path / 'run'} cannot be written: No space left on")
        check_survivors(processes, lost, began)
    assert steps_of(tmp_path / "run")[-1] == 18
    (link,) = (tmp_path / "run").glob(f"checkpoints/27.*/*/ocdbt.process_{lost}")
    link.unlink()  # A resume reads no links out of a workdir.
    for name in ("run", "straight"):
        with four(arguments, tmp_path / name) as processes:
            for process in processes:
                _, errors = process.communicate(timeout=400)
                assert process.returncode == 0, errors
    assert result_of(tmp_path / "run") == result_of(tmp_path / "straight")  # To the bit.


@pytest.mark.soak
def test_a_slow_process_and_one_with_a_full_disk_change_nothing(arguments, small_disk, tmp_path):
    """One is stopped again and again, for less than a heartbeat; one can keep nothing compiled."""
    arguments = [*arguments, "--config.num_epochs=12"]
    full = {"JAX_COMPILATION_CACHE_DIR": str(small_disk / "xla"), "TMPDIR": str(small_disk)}
    fill(small_disk)
    for name, variables in (("slow", {3: full}), ("quick", {})):
        with four(arguments, tmp_path / name, variables) as processes:
            for _ in range(3 if name == "slow" else 0):
                wait_for_step(tmp_path / name, processes, steps_of(tmp_path / name)[-1:])
                processes[2].send_signal(signal.SIGSTOP)
                time.sleep(8)
                processes[2].send_signal(signal.SIGCONT)
            for process in processes:
                _, errors = process.communicate(timeout=400)
                assert process.returncode == 0, errors
                assert "Traceback" not in errors
    predictions = []
    for name in ("slow", "quick"):
        with np.load(tmp_path / name / "predictions" / "test.npz") as found:
            predictions.append(found["log_probs"])
    np.testing.assert_array_equal(*predictions)  # To the bit.
