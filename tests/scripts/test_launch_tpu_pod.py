"""The TPU launcher, with stand-ins for what it talks to: `tests/tpu_stand_ins.py`."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading

import pytest
from conftest import ROOT, started
from tpu_stand_ins import WORKERS, Stage, wait_for

TPU = ["--zone=us-central1-a", "--quiet"]
ALIVE = ["--ssh-flag=-o ServerAliveInterval=20", "--ssh-flag=-o ServerAliveCountMax=3"]
OPTIONS = [
    "--name=pod",
    "--zone=us-central1-a",
    "--accelerator_type=v5litepod-8",
    "--runtime_version=v2-alpha-tpuv5-lite",
]
PLAIN = ["--config=c.py", "--workdir=gs://bucket/run"]
AWKWARD = [
    "--config=my  configs/it's.py",
    "--config.note=\"quoted\" $HOME `id` \\ & ; * 'two'\n lines --worker=$worker é",
    "",
    "--workdir=gs://bucket/a run",
]
LONG = "for _ in $(seq 1500); do sleep 1; done"  # Half a minute, as long as stand-ins sleep.
ONCE = 'if mkdir "$STAGE/once-$WORKER" 2>/dev/null; then {}; fi\n'
TAKE_AWAY = 'echo PREEMPTED > "$STAGE/node"; echo SUSPENDED > "$STAGE/request"; exit 255'


def lines(process):
    return [line.removeprefix("launch_tpu_pod.sh: ") for line in process.stderr.splitlines()]


DELETE_LINE = "scripts/launch_tpu_pod.sh --name=pod --zone=us-central1-a --delete"


def is_billed(line, state):
    """Whether a line says of a pod in a state that it costs money, and how to end that."""
    costs = "billed" in line.lower() and "no TPU is billed" not in line
    return state in line and costs and line.endswith(f"delete it: {DELETE_LINE}")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run that nothing disturbs."""
    stage = Stage(tmp_path_factory.mktemp("plain"))
    process = stage.launch(*OPTIONS, "--spot", "--", *PLAIN)
    assert process.returncode == 0, process.stderr
    return stage, process


def test_a_tpu_is_created_as_it_was_asked_for(plain):
    stage, _ = plain
    assert stage.verbs() == ["create"]
    (create,) = (call for call in stage.calls()[0] if call[1] == "create")
    assert create[:3] == ["queued-resources", "create", "pod"]
    assert {
        *TPU,
        "--node-id=pod",
        "--accelerator-type=v5litepod-8",
        "--runtime-version=v2-alpha-tpuv5-lite",
        "--spot",
    } == {*create[3:]}


def test_every_worker_gets_the_code_what_it_needs_and_the_run(plain):
    stage, process = plain
    assert stage.trained_with(0) == stage.trained_with(1) == [PLAIN]
    for worker in range(WORKERS):
        folder = stage.worker(worker) / stage.commit
        assert (folder / "train.py").read_text() == (stage.repo / "train.py").read_text()
        venv, install = stage.installed(worker)
        assert venv[:1] + venv[-1:] == ["venv", ".venv"]
        assert install[:2] == ["pip", "install"]
        assert "requirements.txt" in install
        assert f"step 1 of worker {worker}" in stage.log(worker)
        # ssh notices a machine that was taken away, and asks nobody.
        for call in stage.calls()[1][worker]:
            assert "--quiet" in call
            assert call[1] != "ssh" or {*ALIVE} < {*call}
    assert "step 1 of worker 0" in process.stdout  # Echoed, as only worker 0 is.
    assert "step 1 of worker 1" not in process.stdout
    finished, billing = lines(process)[-2:]
    assert finished == "finished: gs://bucket/run"
    assert is_billed(billing, "READY")
    assert "tensorboard --logdir=gs://bucket/run --host=localhost" in process.stderr


def test_the_workers_install_what_the_docs_say(plain):
    devices = (ROOT / "docs" / "devices.md").read_text()
    requirement = re.search(r"^\| TPU \| `pip install \"(.*?)\"`", devices, re.MULTILINE)
    assert requirement
    for worker in range(WORKERS):
        assert {requirement[1], "gcsfs"} < {*plain[0].installed(worker)[1]}
    assert "pip install gcsfs" in (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.check
@pytest.mark.parametrize("saves", [True, False], ids=["which saves", "which hangs"])
def test_an_earlier_start_is_ended_before_the_next(saves, tmp_path):
    """As one is left by a lost connection; two would write to the same run."""
    stage = Stage(
        tmp_path, 'grep -qs train.py /proc/$(cat "$STAGE/left")/cmdline && echo both; echo alone\n'
    )
    trap = f"trap 'touch {stage.path}/asked; {'exit 75' if saves else ':'}' TERM"
    forever = f"{trap}; echo; while true; do /bin/sleep 0.02; done"
    command = ["bash", "-c", forever, "train.py"]
    with started(command, stdout=subprocess.PIPE) as left:
        left.stdout.readline()
        reaper = threading.Thread(target=left.wait)  # Else its number would be taken for it.
        reaper.start()
        stage.worker(0).mkdir(parents=True)
        for path in (stage.worker(0) / "pid", stage.path / "left"):
            path.write_text(f"{left.pid}\n")
        process = stage.launch(*OPTIONS, "--", *PLAIN)
        reaper.join(timeout=30)
    assert process.returncode == 0, process.stderr
    assert (stage.path / "asked").exists()
    assert left.returncode == (75 if saves else -signal.SIGKILL)
    assert "alone" in stage.log(0)
    assert "both" not in stage.log(0)


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """A run whose arguments have all that a shell could spoil; and the same one as a dry run."""
    stage = Stage(tmp_path_factory.mktemp("awkward"))
    options = [*OPTIONS, "--create_flag=--description=a 'b' $c", "--delete", "--", *AWKWARD]
    dry = stage.launch("--dry_run", *options)
    assert stage.calls() == ([], [[], []])
    process = stage.launch(*options)
    assert (dry.returncode, process.returncode) == (0, 0), dry.stderr + process.stderr
    return stage, dry, process


def test_arguments_survive_every_shell(awkward):
    stage, _, _ = awkward
    for worker in range(WORKERS):
        assert stage.trained_with(worker) == [AWKWARD]
    assert "--description=a 'b' $c" in stage.calls()[0][1]


def test_a_dry_run_prints_commands_that_do_the_same_when_they_are_pasted(awkward, tmp_path):
    stage, dry, _ = awkward
    pasted = Stage(tmp_path)
    commands = dry.stdout.replace(stage.commit, pasted.commit)
    subprocess.run(["bash", "-euc", commands], cwd=pasted.repo, env=pasted.env, check=True)
    for worker in range(WORKERS):
        assert pasted.trained_with(worker) == [AWKWARD]
        assert "step 1" in pasted.log(worker)
    assert pasted.verbs() == stage.verbs() == ["create", "delete"]
    expected = json.dumps(stage.calls()[1]).replace("1700000000-0", "$(date +%s)")
    assert json.dumps(pasted.calls()[1]) == expected.replace(stage.commit, pasted.commit)


def test_a_second_run_reuses_the_tpu_and_what_is_installed(tmp_path):
    stage = Stage(tmp_path)
    for _ in range(2):
        # The clock of the stand-ins stands still, and a start runs but once.
        for worker in range(WORKERS):
            shutil.rmtree(stage.worker(worker) / "starts", ignore_errors=True)
        assert stage.launch(*OPTIONS, "--", *PLAIN).returncode == 0
    assert stage.verbs() == ["create"]
    assert stage.trained_with() == [PLAIN, PLAIN]
    assert [command[0] for command in stage.installed(1)] == ["venv", "pip"]  # Once.


def test_a_start_runs_once_though_gcloud_repeats_it(tmp_path):
    """After a lost connection gcloud sends its command again, while the first may still run."""
    stage = Stage(tmp_path)
    assert stage.launch(*OPTIONS, "--", *PLAIN).returncode == 0
    command = stage.calls()[1][0][-1][-1].removeprefix("--command=")
    env = {**stage.env, "HOME": str(stage.path / "worker-0"), "WORKER": "0"}
    again = subprocess.run(["bash", "-c", command], env=env, capture_output=True)
    assert again.returncode == 75
    assert stage.trained_with() == [PLAIN]


@pytest.mark.parametrize(
    ("play", "commands", "why"),
    [
        (TAKE_AWAY, ["create", "delete", "create"], "pod is SUSPENDED and no longer READY"),
        ("exit 75", ["create"], "ended with exit status 75 in train"),
        ("exit 255", ["create"], "ended with exit status 255 in train"),
    ],
    ids=["preempted", "stopped", "connection lost"],
)
def test_interrupted_once_is_resumed(play, commands, why, tmp_path):
    stage = Stage(tmp_path, ONCE.format(play) + "echo resumed")
    process = stage.launch(*OPTIONS, "--", *PLAIN)
    assert process.returncode == 0, process.stderr
    assert stage.verbs() == commands
    assert stage.trained_with(0) == stage.trained_with(1) == [PLAIN, PLAIN]
    (restart,) = (line for line in lines(process) if "restart 1 of 5" in line)
    assert why in restart
    for worker in range(WORKERS):
        starts = sorted(path.name for path in (stage.worker(worker) / "starts").iterdir())
        assert starts == ["1700000000-0", "1700000000-1"]


@pytest.mark.check
@pytest.mark.parametrize("status", [1, 2, 126, 127])
def test_a_worker_that_fails_is_named_with_its_last_lines(status, tmp_path):
    fails = f"echo 'ValueError: boom'; touch $STAGE/failed; exit {status}"
    has_ended = "[ -e $STAGE/failed ] && [ $STAGE/ended-1 -nt $STAGE/failed ]"
    follows = f"until {has_ended}; do sleep 1; done; /bin/sleep 1; exit 134"
    stage = Stage(tmp_path, f"if [ $WORKER = 1 ]; then {fails}; else {follows}; fi")
    process = stage.launch(*OPTIONS, "--", *PLAIN)
    assert process.returncode == status
    assert "  | ValueError: boom" in process.stderr
    (ended,) = (line for line in lines(process) if "runs/launch-pod/worker-1.log" in line)
    assert ended.startswith("worker 1 ")
    assert f" {status} in train " in ended
    assert any(is_billed(line, "READY") for line in lines(process))
    assert stage.verbs() == ["create"]
    assert stage.trained_with() == [PLAIN]  # No restart: it would fail again.


def test_ctrl_c_stops_the_workers_and_says_what_is_billed(tmp_path):
    play = "trap 'touch $STAGE/saved-$WORKER; exit 75' TERM; touch $STAGE/runs-$WORKER\n"
    stage = Stage(tmp_path, play + LONG)
    process = stage.start(*OPTIONS, "--delete", "--", *PLAIN)
    try:
        wait_for(lambda: len(list(stage.path.glob("runs-*"))) == WORKERS)
        assert len(stage.alive()) == WORKERS
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert not stage.alive()
    assert len(list(stage.path.glob("saved-*"))) == WORKERS
    said = [line.removeprefix("launch_tpu_pod.sh: ") for line in err.splitlines()]
    command = " ".join([*OPTIONS, "--delete", "--", *PLAIN])
    ends, interrupted, billing, resume = said[-4:]
    assert "Ctrl-C" in ends
    assert interrupted == "interrupted"
    assert is_billed(billing, "READY")
    assert resume.endswith(f" gs://bucket/run: scripts/launch_tpu_pod.sh {command}")
    assert stage.verbs() == ["create"]


def test_delete_by_itself(tmp_path):
    stage = Stage(tmp_path)
    (stage.path / "request").write_text("ACTIVE")
    (stage.path / "node").write_text("READY")
    process = stage.launch(*OPTIONS[:2], "--delete")
    assert process.returncode == 0
    assert stage.verbs() == ["delete"]
    (delete,) = (call for call in stage.calls()[0] if call[1] == "delete")
    assert not (stage.path / "node").exists()
    assert "none is billed" in lines(process)[-1]
    dry = stage.launch(*OPTIONS[:2], "--delete", "--dry_run")
    assert shlex.split(dry.stdout) == ["gcloud", "compute", "tpus", *delete]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*OPTIONS, "--", "--workdir=runs/x"], "--workdir=runs/x would be a disk of each worker"),
        ([*OPTIONS, "--", "--config=c.py"], "use --workdir=gs://BUCKET/RUN"),
        (OPTIONS, "train.py's arguments are missing; try -- --config=FILE"),
        ([*OPTIONS[1:], "--", "--workdir=gs://b/r"], "--name= is not a name"),
        ([*OPTIONS[:2], "--", "--workdir=gs://b/r"], "--accelerator_type is missing"),
        ([*OPTIONS, "--spott"], "--spott is not an option"),
        ([*OPTIONS, "--commit=none", "--", "--workdir=gs://b/r"], "--commit=none is not a commit"),
        ([*OPTIONS, "--max_restarts=x", "--", "--workdir=gs://b/r"], "--max_restarts=x is not a"),
    ],
)
def test_mistakes_end_in_one_line_before_google_is_asked(arguments, message, repository):
    process = repository.launch(*arguments)
    assert process.returncode == 2
    (line,) = lines(process)
    assert message in line
    assert repository.calls() == ([], [[], []])


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return Stage(tmp_path_factory.mktemp("mistakes"))


def test_a_changed_tree_is_refused_unless_the_commit_is_said(tmp_path):
    stage = Stage(tmp_path)
    (stage.repo / "mine.py").write_text("# Not committed.\n")
    process = stage.launch(*OPTIONS, "--dry_run", "--", *PLAIN)
    assert process.returncode == 2
    assert "(mine.py)" in process.stderr
    process = stage.launch(*OPTIONS, "--commit=HEAD", "--dry_run", "--", *PLAIN)
    assert process.returncode == 0
    assert f"git archive --format=tar.gz --output=runs/launch-pod/code.tar.gz {stage.commit}" in (
        process.stdout.splitlines()
    )
