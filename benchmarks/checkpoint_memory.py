"""The host memory that a checkpoint and a resume take, beside the part of a process.

    PYTHONPATH=. python benchmarks/checkpoint_memory.py \\
        --out=benchmarks/results/checkpoint_memory.json

Four processes of one CPU device each hold eight multilayer perceptrons, or one over all of them.
They take a step, save, and end. Four others resume. Each process says how far its resident memory
rises above what it was before (VmHWM, which is reset), and how many bytes its part of the state
has. The state on a CPU device is host memory as well, and a resume begins without it: so a rise of
1 is the state itself there, and the copy that is on its way to the disk in a save. `gathered` is
how processes without a common folder do it. --quick takes small networks, to see that it runs.

Some 50 MB of a checkpoint and 75 MB of a resume do not depend on the state. So the bound of 1.3
holds where the part of a process has more than about 170 MB, and of a resume more than 260 MB.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
from typing import Any

import side_by_side

NUM_PROCESSES = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "8 members, own parts": {"members": 8, "member_devices": 1, "width": 4096, "shared": True},
    "1 member on 4 devices, own parts": {
        "members": 1,
        "member_devices": 4,
        "width": 10240,
        "shared": True,
    },
    "8 members, gathered": {"members": 8, "member_devices": 1, "width": 2048, "shared": False},
}


def main() -> None:
    """Measures each setting, prints it, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--quick", action="store_true", help="small networks")
    parser.add_argument("--only", help="one setting")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(**json.loads(args.worker))), flush=True)
        os._exit(0)  # An orderly end would wait for the slowest.
    found = {}
    for name, setting in SETTINGS.items():
        if args.only in (None, name):
            chosen = {**setting, "width": 256 if args.quick else setting["width"]}
            found[name] = {**chosen, **run(**chosen)}
            print(name, json.dumps(found[name], indent=1), flush=True)
    rows = [
        side_by_side.compare(
            f"rise of memory, {what}", name, "own parts", [one[what]["largest_rise_by_own_part"]]
        )
        for name, one in found.items()
        for what in WORK
    ]
    side_by_side.report(rows, args.out, more={"settings": found})


def run(**setting: Any) -> dict[str, Any]:
    """Saves in some processes and resumes in others; returns the worst of each."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for what in WORK:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
            workers = [
                subprocess.Popen(
                    [sys.executable, __file__, "--worker", json.dumps(
                        {"what": what, "root": root, "port": port, "number": k, **setting}
                    )],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for k in range(NUM_PROCESSES)
            ]  # fmt: skip
            outputs = [worker.communicate()[0] for worker in workers]
            if any(worker.returncode for worker in workers):
                raise SystemExit(f"a process has failed: {setting}")
            rows = [json.loads(output.splitlines()[-1]) for output in outputs]
            found["own_part_bytes"] = [row["own"] for row in rows]
            found[what] = {
                "rise_bytes": [row["rise"] for row in rows],
                "largest_rise_by_own_part": round(max(row["rise"] / row["own"] for row in rows), 3),
            }
    return found


def measure(*, what: str, root: str, port: int, number: int, **setting: Any) -> dict[str, int]:
    """Saves or resumes as one of the processes.

    Args:
        what: `checkpoint` or `resume`.
        root: the workdir.
        port: of process 0.
        number: of this process.
        **setting: one of `SETTINGS`; `shared` is whether each process writes and reads its own
            part.

    Returns:
        Bytes of its part of the state, and of the rise of its resident memory.
    """
    # JAX starts with the settings of this process.
    from ensemble.sharding import startup

    startup.configure_devices(1)
    import jax

    from ensemble.sharding import processes
    from ensemble.storage.checkpoint import Checkpointer
    from ensemble.storage.workdir import Workdir

    processes.start(f"127.0.0.1:{port}", NUM_PROCESSES, number, {})
    method, work = make_method(setting), Workdir(root)
    checkpointer = Checkpointer(work.checkpoints, is_shared=setting["shared"])
    before, state = WORK[what](method, work, checkpointer)
    checkpointer.wait()
    rise = peak() - before
    own = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(state)
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        for shard in leaf.addressable_shards
    )
    processes.wait_for_all("measured")
    checkpointer.close()
    return {"own": own, "rise": rise}


def make_method(setting: dict[str, Any]) -> Any:
    """SGD of multilayer perceptrons, as a setting says."""
    import numpy as np

    from ensemble.config_rules import validate
    from ensemble.methods.members.sgd import SGD
    from ensemble.sources.data_forms import recognise
    from ensemble.tasks.supervised import create

    config = validate(
        {
            "model": "mlp",
            "mlp.widths": "{width},{width}".format(**setting),
            "ensemble_size": setting["members"],
            "member_devices": setting["member_devices"],
            "batch_size": 16,
            "num_steps": 2,
            "hold_out": False,
        }
    )
    images = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)
    given = recognise({"inputs": images, "labels": np.arange(32) % 10})
    return SGD(config, create(config, given))


def save(method: Any, work: Any, checkpointer: Any) -> tuple[int, Any]:
    """Takes a step and two checkpoints; returns the resident bytes before them, and the state."""
    import jax

    from ensemble.run import resume
    from ensemble.run.progress import Clock
    from ensemble.run.writer import NoWriter
    from ensemble.sharding import processes

    state, _ = method.advance(method.init(jax.random.key(0)), 1)
    jax.block_until_ready(state)
    processes.from_main(lambda: resume.write_config(work, method))
    before = resident()
    for _ in range(2):  # The second while the first may still be on its way.
        resume.save(work, checkpointer, method, state, NoWriter(), Clock(0.0))
    return before, state


def restore(method: Any, work: Any, checkpointer: Any) -> tuple[int, Any]:
    """Reads the newest checkpoint; returns the resident bytes before, and the state."""
    import jax

    from ensemble.run import resume

    before = resident()
    saved = resume.restore(work, checkpointer, method)
    assert saved is not None
    state = method.from_host(jax.random.key(0), saved.arrays, saved.counters)
    jax.block_until_ready(state)
    return before, state


WORK = {"checkpoint": save, "resume": restore}


def resident() -> int:
    """Bytes of resident memory; what is free is given back, and the peak begins here."""
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most bytes that were resident since."""
    return _status("VmHWM")


def _status(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
