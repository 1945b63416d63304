"""Worker of streaming.py: this project.

python benchmarks/streaming_ours.py reading FOLDER
python benchmarks/streaming_ours.py waiting FOLDER MODEL
python benchmarks/streaming_ours.py in_memory FOLDER MODEL
python benchmarks/streaming_ours.py memory FOLDER MODEL NUM_STEPS
python benchmarks/streaming_ours.py predicting FOLDER
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.sharding import startup

BATCH_SIZE = 128
SECONDS = 6.0


def read(folder: str) -> dict[str, float]:
    """Reads shuffled batches for some seconds, as training does."""
    from ensemble.config_rules import validate
    from ensemble.methods.members.batching import Batches
    from ensemble.sources import load_dataset

    source = load_dataset(f"records:{folder}", hold_out=False)
    config = validate({"batch_size": BATCH_SIZE, "num_steps": 10**6})
    ahead = Batches(config, source, BATCH_SIZE, config.num_steps).ahead((0,))
    steps, began, cpu = 0, time.perf_counter(), os.times()
    while time.perf_counter() - began < SECONDS:
        assert ahead.get(steps).inputs.dtype == np.uint8
        steps += 1
    elapsed, now = time.perf_counter() - began, os.times()
    used = now.user + now.system - cpu.user - cpu.system
    count = steps * BATCH_SIZE
    return {"rate": count / elapsed, "cpu_microseconds": used / count * 1e6}


def wait(folder: str, model: str, is_in_memory: bool = False) -> dict[str, float]:
    """Trains four members for some seconds; returns the share of the time that it waits."""
    startup.configure(method="sgd")
    import jax

    from ensemble.config_rules import validate
    from ensemble.methods.members.sgd import SGD
    from ensemble.source import in_memory
    from ensemble.sources import load_dataset
    from ensemble.tasks.supervised import create

    config = validate(
        {
            "dataset": f"records:{folder}",
            "ensemble_size": 4,
            "num_steps": 10**6,
            "batch_size": BATCH_SIZE,
            "model": model,
            "log_every_steps": 8,
        }
    )
    data = None
    if is_in_memory:
        examples = in_memory(load_dataset(f"records:{folder}", hold_out=False), "train")
        data = {"inputs": examples.inputs, "labels": examples.targets}
    method = SGD(config, create(config, data))
    state = method.init(jax.random.key(0))
    for _ in range(2):  # The first compiles.
        state, info = method.advance(state)
        method.scalars(info)
    ahead = method.batches.ahead(method.indices)
    waited, first, began = ahead.seconds_waited, state.step, time.perf_counter()
    while time.perf_counter() - began < 2 * SECONDS:
        previous = info
        state, info = method.advance(state)
        method.scalars(previous)
    jax.block_until_ready(state)
    elapsed = time.perf_counter() - began
    return {
        "share": (ahead.seconds_waited - waited) / elapsed,
        "rate": (state.step - first) * BATCH_SIZE * 4 / elapsed,
    }


def wait_for_memory(folder: str, model: str) -> dict[str, float]:
    """The same as `wait`, from arrays in memory."""
    return wait(folder, model, is_in_memory=True)


def _settings(folder: str, model: str, num_steps: int) -> dict[str, Any]:
    """Two members; the MLP has 32 hidden units."""
    config = {"dataset": f"records:{folder}", "model": model, "ensemble_size": 2}
    config |= {"batch_size": BATCH_SIZE, "num_steps": num_steps}
    return config | ({"mlp.widths": "32"} if model == "mlp" else {})


def train(folder: str, model: str, num_steps: str) -> dict[str, float]:
    """Trains two members; returns the largest resident size."""
    import ensemble

    config = _settings(folder, model, int(num_steps))
    report = ensemble.train(config, show_progress=False).report
    return {
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 * 1.024,
        "seconds": report["timing"]["seconds_total"],
        "examples": int(num_steps) * BATCH_SIZE,
    }


def predict(folder: str) -> dict[str, float]:
    """Predicts all examples into a file, with two MLPs; returns the program's size and seconds."""
    import ensemble

    with tempfile.TemporaryDirectory() as root:
        config = _settings(folder, "mlp", 50)
        ensemble.train(config, workdir=f"{root}/run", show_progress=False)
        command = [sys.executable, "-m", "ensemble", "predict", f"--workdir={root}/run"]
        began = time.perf_counter()
        subprocess.run([*command, f"records:{folder}", f"--out={root}/all.jsonl"], check=True)
        seconds = time.perf_counter() - began
        with open(f"{root}/all.jsonl", "rb") as lines:
            count = sum(1 for _ in lines)
    size = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"gigabytes": size / 1e6 * 1.024, "seconds": seconds, "lines": count}


WORK: dict[str, Callable[..., dict[str, float]]] = {
    "reading": read,
    "waiting": wait,
    "in_memory": wait_for_memory,
    "memory": train,
    "predicting": predict,
}


if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](*sys.argv[2:])))
