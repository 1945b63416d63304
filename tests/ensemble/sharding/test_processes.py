"""Several real processes do what one does: every method, resumed on other numbers of them."""

import json
import os
import re
import subprocess
import sys

import jax
import many_processes
import numpy as np
import pytest
from conftest import ROOT, free_port, run_all
from jax.errors import JaxRuntimeError
from run_parts import draws_of

from ensemble import UserError
from ensemble.sharding import processes, rendezvous

NAMES = [name for name in many_processes.runs("whole") if name != many_processes.STUCK]


def run_processes(root, stage, num_devices, num_processes=2):
    """Runs all of `many_processes` to a stage; returns what each process printed."""
    address = f"127.0.0.1:{free_port()}"
    worker = [sys.executable, str(ROOT / "tests" / "many_processes.py"), address]
    statuses, outputs = run_all(
        [
            [*worker, str(num_processes), str(k), str(num_devices), str(root), stage]
            for k in range(num_processes)
        ],
        [{"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}] * num_processes,
        stderr=subprocess.STDOUT,
    )
    assert statuses == [0] * num_processes, outputs
    return outputs


def numbers_of(workdir):
    """What a run says: predictions, posterior, draws."""
    report = json.loads((workdir / "report.json").read_text())
    found = {}
    for path in sorted((workdir / "predictions").glob("*.npz")):
        with np.load(path) as predictions:
            found[path.name] = predictions["log_probs"]
    if "posterior" in report and not found:
        found |= {name: report["posterior"][name] for name in ("mean", "variance", "scale")}
    if (workdir / "draws").exists():
        found |= draws_of(workdir).scalars()
    if "live_members" in report:
        found["live_members"] = report["live_members"]
    assert found
    return found


@pytest.mark.soak
@pytest.mark.parametrize("num_devices", [2, 4])
def test_processes_and_resumptions_change_nothing(tmp_path, num_devices):
    """Two processes, one of two devices, again two processes: against one with all their devices.

    One test: what it compares takes long.
    """
    straight, interrupted = tmp_path / "straight", tmp_path / "interrupted"
    for name in NAMES:
        many_processes.train(name, "whole", straight, num_devices=2 * num_devices)
    run_processes(interrupted, "first", num_devices)
    for name in many_processes.RESUMED:
        many_processes.train(name, "more", interrupted, num_devices=2)
    run_processes(interrupted, "whole", num_devices)
    for name in NAMES:
        expected, found = numbers_of(straight / name), numbers_of(interrupted / name)
        assert expected.keys() == found.keys()
        for key, values in expected.items():
            message = f"{name}: {key}"
            np.testing.assert_allclose(found[key], values, atol=1e-4, rtol=1e-4, err_msg=message)
    check_failures(straight / "failing_members", interrupted / "failing_members", "non-finite")


@pytest.mark.soak
def test_a_stuck_chain_is_left_out_by_all(tmp_path):
    many_processes.train(many_processes.STUCK, "stuck", tmp_path / "one", num_devices=4)
    run_processes(tmp_path / "two", "stuck", 2)
    one, two = (tmp_path / folder / many_processes.STUCK for folder in ("one", "two"))
    check_failures(one, two, "stuck")


def check_failures(one, two, reason):
    """What fails in one process is left out in both, which have 0-3 and 4-7."""
    reports = [json.loads((workdir / "report.json").read_text()) for workdir in (one, two)]
    failed = reports[1]["failed_members"]
    assert failed == reports[0]["failed_members"]
    assert min(map(int, failed)) < 4 <= max(reports[1]["live_members"])
    assert set(failed.values()) == {reason}


JOIN = """
import json, sys
def tell(*words):
    print('TOLD', *words, flush=True)
from ensemble.sharding import startup
startup.configure_devices(int(sys.argv[3]))
from ensemble.sharding import processes
from ensemble import UserError
try:
    processes.start(None, None, None, {"seed": sys.argv[1]}, join_seconds=60)
except UserError as error:
    tell(error)
    processes.end(2)
    sys.exit(2)
"""
TELL = "tell(processes.is_main(), processes.count(), processes.from_main(lambda: sys.argv[2]))\n"
SEND = """
import ml_dtypes
import numpy as np
processes._PIECE_BYTES = 5
half = np.array([1.5], ml_dtypes.bfloat16)
got = processes.arrays_from_main({"half": half} if processes.is_main() else None)["half"]
assert got.dtype == half.dtype and got[0] == 1.5
tree = {"a": {"b": np.array([11]), "c": np.float32(3.5)}, "d": np.zeros((0, 3)), "e": {}, "f": None}
got = processes.arrays_from_main(tree if processes.is_main() else None)
a, b = got["a"]["b"], got["a"]["c"]
tell([int(a[0]), float(b)], a.dtype, b.dtype, list(got["d"].shape), got["e"], got["f"])
rounded = {"of/a site": np.float32([processes.is_main(), 2]), "none": None}
found = processes.tree_from_main(rounded)
tell({name: None if leaf is None else leaf.tolist() for name, leaf in found.items()})
"""
HOLD = """
import jax, numpy as np
from ensemble.sharding import transfer
from ensemble.sharding.mesh import create_mesh, named_sharding
from ensemble.sharding.placement import Placement
devices = processes.devices()
processes._PIECE_BYTES = 100
members = np.arange(8 * 3).reshape(8, 3)
placement = Placement.create(8, devices)
placed = placement.place_members(members)
rows = transfer.put(members, named_sharding(create_mesh(1, 4, devices), "example"))
both = transfer.put(members[:, :2], named_sharding(create_mesh(2, 2, devices), "member", "example"))
assert (placement.gather_members(placed) == members).all()
assert (transfer.fetch(rows) == members).all()
assert (transfer.fetch(both) == members[:, :2]).all()
own = [np.concatenate([one.data for one in array.addressable_shards]) for array in (placed, rows)]
tell(json.dumps([one.tolist() for one in own]))
"""


def run_tasks(code, seeds=(0, 0), devices=(2, 2)):
    """Starts tasks as Slurm does: with its variables alone."""
    statuses, outputs = run_all(
        [
            [sys.executable, "-c", JOIN + code, str(seed), f"I am {k}", str(devices[k])]
            for k, seed in enumerate(seeds)
        ],
        [
            {
                "SLURM_JOB_ID": str(os.getpid()),
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_NTASKS": str(len(seeds)),
                "SLURM_PROCID": str(k),
                "SLURM_LOCALID": str(k),
            }
            for k in range(len(seeds))
        ],
        seconds=120,
        cwd=ROOT,
    )
    return statuses, [re.findall("TOLD (.*)", one) for one in outputs]  # Gloo talks in between.


SLOW = """
import time
if not processes.is_main():
    while not processes.is_posted("ensemble/far_ahead"):
        time.sleep(0.01)
heard = [processes.tell(number if processes.is_main() else -1) for number in range(320)]
processes.post("ensemble/far_ahead")
processes.wait_for_all("read")
heard += [processes.tell(number if processes.is_main() else -1) for number in range(320, 400)]
processes.wait_for_all("read again")
tell(heard == list(range(400)), len(processes.client().key_value_dir_get("ensemble/told/")) <= 100)
"""
DIFFER = """
try:
    processes.check_same('data', sys.argv[2])
except UserError as error:
    tell(error)
"""


@pytest.fixture(scope="module")
def told():
    """What each of two processes tells: of their cluster, what is sent, held, said, and differs."""
    statuses, outputs = run_tasks(TELL + SEND + HOLD + SLOW + DIFFER)
    assert statuses == [0, 0]
    return [list(column) for column in zip(*outputs, strict=True)]


@pytest.mark.check
def test_a_cluster_is_detected(told):
    assert told[0] == ["True 2 I am 0", "False 2 I am 0"]


@pytest.mark.parametrize(("per_task", "devices"), [(None, [3]), ("1", None), ("2", None)])
def test_a_task_of_slurm_takes_all_gpus_that_it_is_shown(monkeypatch, per_task, devices):
    slurm = {
        "JOB_ID": "1", "STEP_NODELIST": "n[1-2]", "NTASKS": "8", "PROCID": "7", "LOCALID": "3",
        "GPUS_PER_TASK": per_task,
    }  # fmt: skip
    for name, value in slurm.items():
        if value is not None:
            monkeypatch.setenv(f"SLURM_{name}", value)
    address, number, process_id, found = processes._detect(1)
    assert (address.split(":")[0], number, process_id, found) == ("n1", 8, 7, devices)


@pytest.mark.check
def test_what_process_0_sends_in_pieces_arrives_whole(told):
    assert told[1] == ["[11, 3.5] int64 float32 [0, 3] {} None"] * 2


def test_what_all_have_computed_is_process_0_s(told):
    assert told[2] == ["{'none': None, 'of/a site': [1.0, 2.0]}"] * 2


def test_a_process_holds_its_own_members_and_rows_alone(told):
    members = np.arange(8 * 3).reshape(8, 3)
    for line, expected in zip(told[3], (members[:4], members[4:]), strict=True):
        for held in json.loads(line):
            np.testing.assert_array_equal(held, expected)


def test_a_process_far_behind_is_told_everything_and_what_all_have_read_is_deleted(told):
    """Process 1 listens when process 0 has said 320 numbers: it has read 300 of 400 at least."""
    assert told[4] == ["True True"] * 2


def test_data_that_differ_are_noticed(told):
    expected = "the data of process 1 are not those of process 0; start all processes with the"
    assert [line[: len(expected)] for line in told[5]] == [expected] * 2


@pytest.mark.check
def test_in_a_cluster_settings_that_differ_are_noticed():
    statuses, outputs = run_tasks(TELL, seeds=(0, 7))
    assert statuses == [2, 2]
    assert outputs[0] == outputs[1]
    assert outputs[0][0].startswith("config.seed is '7' in process 1, and '0' ")


@pytest.mark.check
def test_processes_of_unequal_devices_are_refused():
    statuses, outputs = run_tasks(TELL, devices=(1, 2))
    assert statuses == [2, 2]
    assert outputs[0] == outputs[1]
    assert outputs[0][0].startswith("the processes have 1, 2 devices")


@pytest.mark.check
def test_the_others_have_time_to_say_that_process_0_has_ended():
    """JAX aborts them as soon as its coordinator is gone, whatever they are about to say."""
    statuses, outputs = run_tasks(
        """
import time
from ensemble.errors import PeerLost
processes.wait_for_all("once")
if processes.is_main():
    processes.end(2)
try:
    with processes.losses_noticed():
        processes.wait_for_all("never")
except PeerLost as error:
    time.sleep(0.7)
    tell(error)
    processes.end(75)
"""
    )
    assert statuses == [2, 75]
    assert outputs[0] == []
    assert outputs[1][0].startswith("process 1 of 2 has lost ")


@pytest.mark.soak
def test_chains_start_alike_where_processes_factorise_differently():
    """Eigenvectors are known up to their signs, which another machine's library may choose."""
    statuses, outputs = run_tasks(
        """
import numpy as np
if not processes.is_main():
    eigh = np.linalg.eigh
    np.linalg.eigh = lambda matrix: tuple(one * sign for one, sign in zip(eigh(matrix), (1, -1)))
import sys
sys.path.insert(0, "tests")
from run_parts import validated
from ensemble import networks
from ensemble.methods.mcmc.sampling import Sampling
from ensemble.priors import parse_prior
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.supervised import classification
rng = np.random.default_rng(0)
data = {"inputs": rng.normal(size=(60, 4)), "labels": rng.integers(2, size=60)}
task = classification(
    dataset_from_arrays(data), networks.create("logistic_regression", 2), parse_prior("normal(1)")
)
config = {
    "method": "hmc", "model": "logistic_regression", "prior": "normal(1)", "init_from": "map",
    "num_chains": 2, "sampler.mass": "kronecker",
}
import jax
coordinates = Sampling(validated(config), task).init(jax.random.key(0)).coordinates
own = [np.asarray(one.addressable_data(0)) for one in coordinates]
tell([round(float(np.sum(one * np.cos(np.arange(one.size).reshape(one.shape)))), 4) for one in own])
"""
    )
    assert statuses == [0, 0]
    assert outputs[0] == outputs[1]


def test_jax_is_told_how_long_to_wait(monkeypatch):
    """Its own waits are of minutes."""
    told = {}
    monkeypatch.setattr(rendezvous, "meet", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: told.update(options))
    processes.start("127.0.0.1:1", 2, 0, {}, join_seconds=20)
    assert told["initialization_timeout"] == 20
    assert told["heartbeat_timeout_seconds"] == processes.HEARTBEAT_SECONDS <= 45
    assert told["shutdown_timeout_seconds"] <= 60


def test_only_what_looks_like_a_loss_is_one():
    assert processes._is_loss(ValueError("UNKNOWN: Gloo AllGather failed: Connection reset"))
    assert processes._is_loss(JaxRuntimeError("UNAVAILABLE: failed to connect"))
    assert not processes._is_loss(JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))
    assert not processes._is_loss(JaxRuntimeError("INTERNAL: CpuCallback error: ZeroDivision"))
    assert not processes._is_loss(UserError("Connection reset is no word of ours"))


NCCL = "INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:216: NCCL operation {} failed: {}"
LAST = (
    "(run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) "
)


@pytest.mark.parametrize(
    ("message", "is_loss"),
    [
        ("remote process exited or there was a network error", True),
        (f"unhandled system error {LAST}'socketTryAccept: Accept failed: Bad file'", True),
        (f"internal error {LAST}'Net : Connection closed by remote peer node2<42830>'", True),
        (f"unhandled cuda error {LAST}'Cuda failure 2 'out of memory''", False),
        (f"unhandled system error {LAST}'failed to extend /dev/shm/nccl-1 to 9 bytes'", False),
        ("invalid usage", False),
    ],
)
def test_a_loss_under_nccl_has_words_of_its_own(message, is_loss):
    error = JaxRuntimeError(NCCL.format("async_err", message))
    assert processes._is_loss(error) == is_loss
