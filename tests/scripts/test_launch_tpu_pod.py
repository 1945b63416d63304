"""The TPU launcher, with stand-ins for what it talks to: `tests/tpu_stand_ins.py`."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess

import pytest
from conftest import ROOT
from tpu_stand_ins import WORKERS, Stage, wait_for

SCRIPT = ROOT / "scripts" / "launch_tpu_pod.sh"
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


def ssh(worker, command):
    return ["tpu-vm", "ssh", "pod", f"--worker={worker}", *TPU, *ALIVE, f"--command={command}"]


def lines(process):
    return [line.removeprefix("launch_tpu_pod.sh: ") for line in process.stderr.splitlines()]


CREATE = ["queued-resources", "create", "pod", "--node-id=pod", *TPU]
CREATE += ["--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5-lite"]
REQUEST = ["queued-resources", "describe", "pod", *TPU, "--format=value(state.state)"]
NODE = ["tpu-vm", "describe", "pod", *TPU]
DELETE = ["queued-resources", "delete", "pod", "--force", *TPU]
DELETE_LINE = "scripts/launch_tpu_pod.sh --name=pod --zone=us-central1-a --delete"


def set_up(worker, commit):
    return ssh(
        worker,
        f"set -eu; mkdir -p ~/flax-ensembles/{commit}; cd ~/flax-ensembles/{commit}; "
        f"if [ -e .ready ]; then exit 0; fi; tar -xzf ~/{commit}.tar.gz; "
        "curl -LsSf https://astral.sh/uv/0.13.8/install.sh | "
        "env UV_UNMANAGED_INSTALL=$HOME/flax-ensembles/uv sh; "
        "~/flax-ensembles/uv/uv venv --quiet --clear --python 3.11 .venv; "
        "~/flax-ensembles/uv/uv pip install --quiet --python .venv/bin/python "
        "-r requirements.txt -r requirements-prepare.txt 'jax[tpu]>=0.10.2,<0.11' gcsfs; "
        "touch .ready",
    )


STOP = (
    "pid=$(cat ~/flax-ensembles/pid 2>/dev/null || echo 0); "
    "ours() { grep -qs train.py /proc/$pid/cmdline; }; if ours; then kill $pid || true; fi; "
    "for _ in $(seq 60); do if ours; then sleep 1; fi; done; if ours; then kill -9 $pid; fi"
)


def train(worker, commit, arguments, start=0):
    return ssh(
        worker,
        f"set -eu; cd ~/flax-ensembles/{commit}; mkdir -p ../starts; "
        f"mkdir ../starts/1700000000-{start} || exit 75; {STOP}; echo $$ > ../pid; "
        f"exec .venv/bin/python train.py {arguments}",
    )


def test_a_run_is_these_commands(tmp_path):
    stage = Stage(tmp_path)
    process = stage.launch(*OPTIONS, "--spot", "--", "--config=c.py", "--workdir=gs://bucket/run")
    assert process.returncode == 0, process.stderr
    rest, workers = stage.calls()
    ready = [REQUEST, [*NODE, "--format=value(state)"]]
    count = [*NODE, "--format=value(networkEndpoints.len())"]
    assert rest == [REQUEST, [*CREATE, "--spot"], *ready, count, *ready]
    for worker in range(WORKERS):
        code = [f"pod:{stage.commit}.tar.gz", f"--worker={worker}", *TPU]
        assert workers[worker] == [
            *([ssh(0, "true")] if worker == 0 else []),
            ["tpu-vm", "scp", "runs/launch-pod/code.tar.gz", *code],
            set_up(worker, stage.commit),
            train(worker, stage.commit, "--config=c.py --workdir=gs://bucket/run"),
        ]
        assert f"step 1 of worker {worker}" in stage.log(worker)
    assert "step 1 of worker 0" in process.stdout  # Echoed, as only worker 0 is.
    assert "step 1 of worker 1" not in process.stdout
    assert lines(process)[-2:] == [
        "finished: gs://bucket/run",
        f"pod is READY: IT IS BILLED until you delete it: {DELETE_LINE}",
    ]
    assert "TensorBoard: tensorboard --logdir=gs://bucket/run --host=localhost" in lines(process)


def test_the_workers_install_what_the_docs_say():
    devices = (ROOT / "docs" / "devices.md").read_text()
    requirement = re.search(r"^\| TPU \| `pip install \"(.*?)\"`", devices, re.MULTILINE)
    assert requirement
    assert f"'{requirement[1]}'" in SCRIPT.read_text()
    assert "pip install gcsfs" in (ROOT / "docs" / "configuration.md").read_text()


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


def test_delete_at_the_end_of_a_run(awkward):
    _, _, process = awkward
    assert lines(process)[-1] == "there is no TPU pod: none is billed; what lies in gs:// is"


def test_a_second_run_reuses_the_tpu_and_what_is_installed(tmp_path):
    stage = Stage(tmp_path)
    for _ in range(2):
        # The clock of the stand-ins stands still, and a start runs but once.
        shutil.rmtree(stage.path / "worker-0" / "flax-ensembles" / "starts", ignore_errors=True)
        shutil.rmtree(stage.path / "worker-1" / "flax-ensembles" / "starts", ignore_errors=True)
        assert stage.launch(*OPTIONS, "--", *PLAIN).returncode == 0
    assert stage.verbs() == ["create"]
    assert stage.trained_with() == [PLAIN, PLAIN]
    assert (stage.path / "worker-1" / "uv.log").read_text().splitlines() == [
        "venv --quiet --clear --python 3.11 .venv",
        "pip install --quiet --python .venv/bin/python -r requirements.txt "
        "-r requirements-prepare.txt jax[tpu]>=0.10.2,<0.11 gcsfs",
    ]


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
    assert stage.calls()[1][1][-1] == train(1, stage.commit, " ".join(PLAIN), start=1)


def test_preempted_always_ends_when_the_restarts_are_used_up(tmp_path):
    stage = Stage(tmp_path, TAKE_AWAY)
    process = stage.launch(*OPTIONS, "--max_restarts=2", "--", *PLAIN)
    assert process.returncode == 75
    assert stage.verbs() == ["create", "delete", "create", "delete", "create"]
    used_up, billing, resume = lines(process)[-3:]
    assert used_up == "pod is SUSPENDED and no longer READY; all --max_restarts=2 are used up"
    assert billing == (
        f"no TPU is billed: pod is SUSPENDED; its request remains; delete it: {DELETE_LINE}"
    )
    command = " ".join([*OPTIONS, "--max_restarts=2", "--", *PLAIN])
    assert resume == (
        f"the same command resumes from gs://bucket/run: scripts/launch_tpu_pod.sh {command}"
    )


def test_taken_away_again_and_again_before_it_is_ready(tmp_path):
    stage = Stage(tmp_path)
    (stage.path / "never").touch()
    process = stage.launch(*OPTIONS, "--max_restarts=1", "--", *PLAIN)
    assert process.returncode == 75
    assert stage.verbs() == ["create", "delete", "create"]
    assert "pod was taken away before it was ready; all --max_restarts=1 are used up" in (
        lines(process)
    )


@pytest.mark.parametrize("status", [1, 2, 126, 127])
def test_a_worker_that_fails_is_named_with_its_last_lines(status, tmp_path):
    fails = f"echo 'ValueError: boom'; touch $STAGE/failed; exit {status}"
    has_ended = "[ -e $STAGE/failed ] && [ $STAGE/ended-1 -nt $STAGE/failed ]"
    follows = f"until {has_ended}; do sleep 1; done; /bin/sleep 1; exit 134"
    stage = Stage(tmp_path, f"if [ $WORKER = 1 ]; then {fails}; else {follows}; fi")
    process = stage.launch(*OPTIONS, "--", *PLAIN)
    assert process.returncode == status
    assert "  | ValueError: boom" in process.stderr
    assert (
        f"worker 1 ended with exit status {status} in train (log: runs/launch-pod/worker-1.log)"
    ) in lines(process)
    assert f"pod is READY: IT IS BILLED until you delete it: {DELETE_LINE}" in lines(process)
    assert stage.verbs() == ["create"]
    assert stage.trained_with() == [PLAIN]  # No restart: it would fail again.


def test_a_worker_that_hangs_after_another_failed_is_stopped(tmp_path):
    hangs = "trap 'exit 75' TERM; " + LONG
    stage = Stage(tmp_path, f"if [ $WORKER = 1 ]; then exit 1; fi; {hangs}")
    assert stage.launch(*OPTIONS, "--", *PLAIN).returncode == 1
    assert ssh(0, STOP) in stage.calls()[1][0]
    assert not stage.alive()


def test_a_set_up_that_fails_says_so(tmp_path):
    stage = Stage(tmp_path)
    (stage.path / "bin" / "uv").write_text("#!/bin/sh\necho 'no such package'; exit 1\n")
    process = stage.launch(*OPTIONS, "--max_restarts=1", "--", *PLAIN)
    assert process.returncode == 75
    assert "  | no such package" in process.stderr
    (line,) = (line for line in lines(process) if line.endswith("--max_restarts=1 are used up"))
    assert "ended with exit status 1 in set_up (log: runs/launch-pod/worker-" in line


QUOTA = "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0"


@pytest.mark.parametrize("when", ["refusal", "message"])
def test_no_quota(when, tmp_path):
    """Google says so at once, or lets the request wait and fail."""
    stage = Stage(tmp_path)
    (stage.path / when).write_text(f"RESOURCE_EXHAUSTED: {QUOTA}")
    process = stage.launch(*OPTIONS, "--", *PLAIN)
    assert process.returncode == 69
    (line,) = (line for line in lines(process) if QUOTA in line)
    assert line.startswith("no quota for v5litepod-8 in us-central1-a (")
    assert "https://console.cloud.google.com/iam-admin/quotas" in line
    assert [
        line for line in lines(process) if "none is billed" in line or "no TPU is billed" in line
    ]
    assert stage.verbs() == ["create"]


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
    assert said[-4:] == [
        "train.py saves a checkpoint and ends; Ctrl-C again does not wait",
        "interrupted",
        f"pod is READY: IT IS BILLED until you delete it: {DELETE_LINE}",
        f"the same command resumes from gs://bucket/run: scripts/launch_tpu_pod.sh {command}",
    ]
    assert stage.verbs() == ["create"]


def gclouds(stage):
    """The processes of `gcloud` that still run."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # It may end meanwhile.
            found += [path] if f"{stage.path}/bin/gcloud\0" in path.read_text() else []
    return found


def test_a_second_ctrl_c_does_not_wait_and_says_so(tmp_path):
    play = "trap 'touch $STAGE/asked' TERM; touch $STAGE/runs-$WORKER\n"
    ends = "[ ! -e $STAGE/end ] || exit; /bin/sleep 0.02"
    stage = Stage(tmp_path, play + LONG.replace("sleep 1", ends))
    # What waits on the workers for the end of train.py does so for longer than this test.
    long = 'if [ -e "$STAGE/asked" ]; then exec /bin/sleep 60; fi'
    (stage.path / "bin" / "sleep").write_text(f"#!/bin/sh\n{long}\nexec /bin/sleep 0.02\n")
    process = stage.start(*OPTIONS, "--", *PLAIN)
    try:
        wait_for(lambda: len(list(stage.path.glob("runs-*"))) == WORKERS)
        os.killpg(process.pid, signal.SIGINT)
        wait_for((stage.path / "asked").exists)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    wait_for(lambda: not gclouds(stage))  # They are ended too, whatever they wait for.
    (stage.path / "end").touch()
    assert "interrupted twice: train.py may still run on the workers" in err
    assert f"pod is READY: IT IS BILLED until you delete it: {DELETE_LINE}" in err
    wait_for(lambda: not stage.alive())


def test_ctrl_c_in_the_queue_says_that_it_will_be_billed(tmp_path):
    stage = Stage(tmp_path)
    (stage.path / "request").write_text("WAITING_FOR_RESOURCES")
    process = stage.start(*OPTIONS, "--", *PLAIN)
    try:
        assert any("WAITING" in line for line in process.stderr)  # Up to the first of them.
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (
        "pod is WAITING_FOR_RESOURCES: it is billed from the moment that it is there, until you "
        f"delete it: {DELETE_LINE}"
    ) in err


def test_delete_by_itself(tmp_path):
    stage = Stage(tmp_path)
    (stage.path / "request").write_text("ACTIVE")
    (stage.path / "node").write_text("READY")
    process = stage.launch(*OPTIONS[:2], "--delete")
    assert process.returncode == 0
    assert DELETE in stage.calls()[0]
    assert lines(process)[-1].startswith("there is no TPU pod: none is billed")
    dry = stage.launch(*OPTIONS[:2], "--delete", "--dry_run")
    assert shlex.split(dry.stdout) == ["gcloud", "compute", "tpus", *DELETE]


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
    assert "the working tree has what no commit has (mine.py); commit it" in process.stderr
    process = stage.launch(*OPTIONS, "--commit=HEAD", "--dry_run", "--", *PLAIN)
    assert process.returncode == 0
    assert f"git archive --format=tar.gz --output=runs/launch-pod/code.tar.gz {stage.commit}" in (
        process.stdout.splitlines()
    )


def test_help_lists_every_option():
    text = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    options = re.findall(r"^    (--\w+)(?:=\*)?\)", SCRIPT.read_text(), re.MULTILINE)
    assert len(options) == 11
    assert [option for option in options if option != "--help" and option not in text] == []
