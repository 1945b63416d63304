"""`scripts/slurm.sbatch` on a real Slurm of two nodes: preempted, killed, out of time."""

import json
import pathlib
import re
import shutil
import subprocess
import time

import numpy as np
import pytest
from conftest import ROOT, free_port, started
from small_runs import small_arguments

BOOT = pathlib.Path(__file__).with_name("slurm_cluster.sh")
SBATCH = (
    "sbatch --parsable --partition=low --nodes=2 --ntasks-per-node=1 --gpus-per-task=0"
    " --cpus-per-task=1"
)
ENDLESS = 100_000


class Cluster:
    """A Slurm cluster in namespaces of its own, under `root` there."""

    def __init__(self, pid, root, scratch):
        self.scratch = scratch
        self._enter = ["nsenter", f"--target={pid}", "--mount", "--pid", "chroot", root, "bash"]

    def run(self, command):
        """What a command prints, in the copy of the repository."""
        done = subprocess.run(
            [*self._enter, "-c", f"cd {ROOT}\n{command}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, arguments, workdir, flags="--time=30:00"):
        """Queues the script; returns the job's number."""
        threads = "JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=1 XLA_FLAGS="
        arguments = " ".join(arguments)
        command = f"{threads} {SBATCH} {flags} scripts/slurm.sbatch {arguments}"
        return self.run(f"mkdir -p runs && {command} --workdir={workdir}")

    def show(self, job):
        """What Slurm says of a job, by name."""
        text = self.run(f"scontrol show job {job}")
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def log(self, job):
        """The log of the script and of its tasks."""
        return self.run(f"cat runs/slurm-{job}*.log")

    def wait(self, job, reached, seconds=300):
        """Waits until what Slurm says of a job is as `reached` wants it."""
        deadline = time.monotonic() + seconds
        while not reached(found := self.show(job)):
            state = found["JobState"], found["Restarts"], found["Reason"]
            assert time.monotonic() < deadline, f"{state}\n{self.log(job)[-3000:]}"
            time.sleep(0.5)
        return found

    def kill_node(self, name):
        """Kills all that runs on a node; its other half is what Slurm makes of it."""
        self.run(
            f'kill -9 "$(cat /run/slurmd-{name}.pid)"\n'
            f"for pid in $(grep -l --null-data '^SLURMD_NODENAME={name}$' /proc/[0-9]*/environ "
            "2>/dev/null | cut -d/ -f3); do\n"
            "  parent=$(cut -d' ' -f4 /proc/$pid/stat 2>/dev/null) || continue\n"
            "  kill -9 $pid 2>/dev/null\n"
            "  grep -q slurmstepd /proc/$parent/cmdline 2>/dev/null && kill -9 $parent\n"
            "done; true"
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Skips where there can be none: no root, no namespaces, no packages."""
    scratch = tmp_path_factory.mktemp("slurm")
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    able = shutil.which("unshare") and shutil.which("apt-get")
    if not able or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("needs root, namespaces and Debian's packages: Slurm was NOT tested")
    boot = [*command, "bash", str(BOOT), str(scratch), *(str(free_port()) for _ in range(3))]
    with (scratch / "boot.log").open("w") as log, started(boot, stderr=log) as process:
        deadline = time.monotonic() + 300
        while not (scratch / "ready").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                logs = [path.read_text()[-500:] for path in sorted(scratch.glob("*.log"))]
                pytest.skip(f"no cluster of Slurm can start, it was NOT tested: {logs}")
            time.sleep(0.2)
        (child,) = (
            pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
        yield Cluster(child, (scratch / "ready").read_text().strip(), scratch)


@pytest.fixture(scope="module")
def arguments(cluster):
    """Of train.py: small data, a small network."""
    return small_arguments(cluster.scratch, num_members=2)


def steps_of(workdir):
    return sorted(int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdecimal())


def wait_for_step(cluster, job, workdir, beyond=0):
    """Waits until a run has taken checkpoints after a step; returns the last one's."""
    cluster.wait(job, lambda _: any(step > beyond for step in steps_of(workdir)))
    return steps_of(workdir)[-1]


def goes_on(cluster, job, workdir, number, seconds=300):
    """Waits until a job that has been queued again so often takes checkpoints; returns its log."""
    again = str(number), "RUNNING"
    cluster.wait(job, lambda found: (found["Restarts"], found["JobState"]) == again, seconds)
    wait_for_step(cluster, job, workdir, steps_of(workdir)[-1])
    log = cluster.log(job)
    assert log.count("Resuming") >= number
    assert "Traceback" not in log
    return log


@pytest.mark.check
def test_a_job_that_is_stopped_is_queued_again_and_ends(cluster, arguments):
    workdir = cluster.scratch / "stopped"
    job = cluster.submit([*arguments, f"--config.num_epochs={ENDLESS}"], workdir)
    wait_for_step(cluster, job, workdir)
    cluster.run(f"scancel --signal=TERM {job}")
    log = goes_on(cluster, job, workdir, 1)
    assert "slurm.sbatch: stopped; queued again (1 of 20)" in log
    assert "all processes will stop in some seconds, after a checkpoint" in log
    cluster.run(f"scancel {job}")


@pytest.mark.soak
def test_preempted_killed_and_out_of_time_it_ends_as_the_undisturbed_run(cluster, arguments):
    workdir = cluster.scratch / "run"
    endless = [*arguments, f"--config.num_epochs={ENDLESS}"]
    job = cluster.submit(endless, workdir)
    wait_for_step(cluster, job, workdir)
    # A job of more importance takes the nodes: Slurm signals ours, and queues it again.
    cluster.run("sbatch --partition=high --nodes=2 --output=/dev/null --wrap='sleep 5'")
    assert "after a checkpoint" in goes_on(cluster, job, workdir, 1)
    # A node is lost, and comes back.
    cluster.kill_node("n2")
    cluster.wait(job, lambda found: found["JobState"] != "RUNNING")
    cluster.run("slurmd -N n2")
    goes_on(cluster, job, workdir, 2)
    cluster.run(f"scancel {job}")
    cluster.wait(job, lambda found: found["JobState"] == "CANCELLED")
    # Its time is over.
    job = cluster.submit(endless, workdir, "--time=2 --signal=TERM@60")
    log = goes_on(cluster, job, workdir, 1, seconds=240)
    assert "slurm.sbatch: stopped; queued again (1 of 20)" in log
    cluster.run(f"scancel {job}")
    cluster.wait(job, lambda found: found["JobState"] == "CANCELLED")

    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    num_epochs = int(steps_of(workdir)[-1] * last["epoch"] / last["step"]) + 16
    arguments = [*arguments, f"--config.num_epochs={num_epochs}"]
    ends = [(cluster.submit(arguments, path), path) for path in (workdir, cluster.scratch / "un")]
    for job, _ in ends:
        cluster.wait(job, lambda found: found["JobState"] == "COMPLETED", seconds=300)
    predictions = []
    for _, path in ends:
        with np.load(path / "predictions" / "test.npz") as found:
            predictions.append(found["log_probs"])
    np.testing.assert_array_equal(*predictions)  # To the bit.
