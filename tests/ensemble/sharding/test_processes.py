"""Several real processes: how they meet, what they send, and how they end together."""

import json
import os
import re
import sys

import numpy as np
import pytest
from conftest import ROOT, run_all
from jax.errors import JaxRuntimeError

from ensemble import InputError
from ensemble.sharding import processes

JOIN = """
import json, os, sys
import jax
def tell(*words):
    os.write(1, f"\\nTOLD {' '.join(map(str, words))}\\n".encode())
from ensemble.sharding import startup
startup.configure_devices(int(sys.argv[3]))
from ensemble.sharding import processes
from ensemble import InputError
try:
    processes.start(None, None, None, {"seed": sys.argv[1]}, initialization_timeout=60)
except InputError as error:
    tell(error)
    processes.end(2)
    sys.exit(2)
"""
TELL = "tell(processes.is_main(), processes.count(), processes.from_main(lambda: sys.argv[2]))\n"
SEND = """
import ml_dtypes
import numpy as np
half = np.array([1.5], ml_dtypes.bfloat16)
rounded = {"of/a site": np.float32([processes.is_main(), -2]), "none": None, "half": half}
found = processes.tree_from_main(rounded)
tell([(leaf.tolist(), leaf.dtype.name) for leaf in jax.tree.leaves(found)])
"""
HOLD = """
import jax, numpy as np
from ensemble.sharding import transfer
from ensemble.sharding.mesh import create_mesh, named_sharding
from ensemble.runtime.devices import Devices
devices = processes.devices()
members = np.arange(8 * 3).reshape(8, 3)
place = Devices(8, devices)
placed = place.put_members(members)
rows = transfer.put(members, named_sharding(create_mesh(1, 4, devices), "example"))
both = transfer.put(members[:, :2], named_sharding(create_mesh(2, 2, devices), "member", "example"))
assert (place.fetch_members(placed) == members).all()
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


MANY = """
processes._KEPT_VALUES = 50
heard = []
for first in range(0, 200, 40):
    heard += [processes.tell(k if processes.is_main() else -1) for k in range(first, first + 40)]
    processes.wait_for_all(str(first))
tell(heard == list(range(200)), len(processes.client().key_value_dir_get("ensemble/told/")) <= 100)
"""
DIFFER = """
try:
    processes.check_same('data', sys.argv[2])
except InputError as error:
    tell(error)
"""


@pytest.fixture(scope="module")
def told():
    """What each of two processes tells: of their cluster, what is sent, held, said, and differs."""
    statuses, outputs = run_tasks(TELL + SEND + HOLD + MANY + DIFFER)
    assert statuses == [0, 0]
    assert [len(lines) for lines in outputs] == [5, 5], outputs
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
def test_what_all_have_computed_is_process_0_s(told):
    assert told[1] == ["[([1.5], 'bfloat16'), ([1.0, -2.0], 'float32')]"] * 2


def test_a_process_holds_its_own_members_and_rows_alone(told):
    members = np.arange(8 * 3).reshape(8, 3)
    for line, expected in zip(told[2], (members[:4], members[4:]), strict=True):
        for held in json.loads(line):
            np.testing.assert_array_equal(held, expected)


def test_everything_is_told_and_what_is_old_is_deleted(told):
    assert told[3] == ["True True"] * 2


def test_data_that_differ_are_noticed(told):
    expected = "the data of process 1 are not those of process 0; start all processes with the"
    assert [line[: len(expected)] for line in told[4]] == [expected] * 2


@pytest.mark.check
def test_in_a_cluster_settings_that_differ_are_noticed():
    statuses, outputs = run_tasks(TELL, seeds=(0, 7))
    assert statuses == [2, 2]
    assert outputs[0] == outputs[1]
    assert outputs[0][0].startswith("the settings of process 1 are not those of process 0;")


@pytest.mark.check
def test_processes_of_unequal_devices_are_refused():
    statuses, outputs = run_tasks(TELL, devices=(1, 2))
    assert statuses == [2, 2]
    assert outputs[0] == outputs[1]
    assert outputs[0][0].startswith("the numbers of devices of process 1 are not")


@pytest.mark.check
def test_processes_of_unequal_speed_meet_at_the_same_places(tmp_path):
    """How many programs may be in flight goes by process 0's clock, as does all that it decides."""
    statuses, outputs = run_tasks(
        f"""
sys.path.append("tests")
import ensemble
from ensemble.runtime.loop import Pace
from small_runs import make_blobs, small_config
Pace.programs = property(lambda self: 1 if processes.is_main() else 3, lambda self, value: None)
ensemble.train(small_config(), data=make_blobs(), workdir="{tmp_path}/run")
tell("trained")
"""
    )
    assert statuses == [0, 0]
    assert outputs == [["trained"], ["trained"]]


@pytest.mark.check
def test_the_others_have_time_to_say_that_process_0_has_ended():
    """JAX aborts them as soon as its coordinator is gone, whatever they are about to say."""
    statuses, outputs = run_tasks(
        """
from ensemble.sharding import signals
sys.stderr = sys.stdout
processes.wait_for_all("once")
if processes.is_main():
    processes.end(2)
signals.program = "TOLD train.py"
with signals.stop_signals():
    processes.wait_for_all("never")
"""
    )
    assert statuses == [2, 75]
    assert outputs[0] == []
    assert outputs[1][0].startswith("train.py: process 0 has ended, whose log says why; ")


def test_only_what_looks_like_a_loss_is_one():
    assert processes._is_loss(ValueError("UNKNOWN: Gloo AllGather failed: Connection reset"))
    assert processes._is_loss(JaxRuntimeError("UNAVAILABLE: failed to connect"))
    assert not processes._is_loss(JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))
    assert not processes._is_loss(JaxRuntimeError("INTERNAL: CpuCallback error: ZeroDivision"))
    assert not processes._is_loss(InputError("Connection reset is no word of ours"))


NCCL = "INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:216: NCCL operation {} failed: {}"
LAST = (
    "(run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) "
)


@pytest.mark.parametrize(
    ("message", "is_loss"),
    [
        ("remote process exited or there was a network error", True),
        (f"unhandled system error {LAST}'socketTryAccept: Accept failed: Bad file'", True),
        (f"unhandled system error {LAST}'failed to extend /dev/shm/nccl-1 to 9 bytes'", False),
        (f"internal error {LAST}'Net : Connection closed by remote peer node2<42830>'", True),
        (f"unhandled cuda error {LAST}'Cuda failure 2 'out of memory''", False),
        ("invalid usage", False),
    ],
)
def test_a_loss_under_nccl_has_words_of_its_own(message, is_loss):
    error = JaxRuntimeError(NCCL.format("async_err", message))
    assert processes._is_loss(error) == is_loss
