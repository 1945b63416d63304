"""Worker of streaming: this project.

python benchmarks/streaming_ours.py write FOLDER NUM_EXAMPLES
python benchmarks/streaming_ours.py reading FOLDER
python benchmarks/streaming_ours.py waiting FOLDER MODEL
python benchmarks/streaming_ours.py in_memory FOLDER MODEL
python benchmarks/streaming_ours.py memory FOLDER MODEL NUM_STEPS
python benchmarks/streaming_ours.py predicting FOLDER
"""

import functools
import itertools
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rates
import train_ours

BATCH_SIZE = 128
SECONDS = 6.0
SHAPE = (64, 64, 3)


class Pictures:
    """Pictures [N, 64, 64, 3] that are generated as they are read: a pattern of a class, noise."""

    dtype = np.dtype(np.uint8)

    def __init__(self, labels: np.ndarray):
        self._labels = labels
        self._patterns = np.random.default_rng(0).integers(0, 192, (10, *SHAPE), np.uint8)
        self.shape = (len(labels), *SHAPE)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, where: slice) -> np.ndarray:
        labels = self._labels[where]
        rng = np.random.default_rng(where.start or 0)
        return self._patterns[labels] + rng.integers(0, 64, (len(labels), *SHAPE), np.uint8)


def write(folder: str, num_examples: str) -> dict[str, float]:
    """Writes the records, unless they are there from before."""
    from ensemble.data.records import write_records
    from ensemble.data.source import Examples, Parts
    from ensemble.data.splitting import POOL

    if not pathlib.Path(folder).is_dir():
        labels = np.random.default_rng(1).integers(0, 10, int(num_examples), np.int32)
        classes = tuple(map(str, range(10)))
        pictures: Any = Pictures(labels)  # It has what of an array is needed.
        given = Parts({POOL: Examples(pictures, labels)}, class_names=classes)
        write_records(given, pathlib.Path(folder))
    return {}


def create_loop(folder: str, model: str, data: Any = None) -> Any:
    """Makes the loop of four members."""
    config = {"dataset": f"records:{folder}", "model": model, "ensemble_size": 4}
    own = {"num_steps": 10**6, "batch_size": BATCH_SIZE, "log_every_steps": 8}
    return train_ours.create_loop(config | own, data)


def read(folder: str) -> dict[str, float]:
    """Reads shuffled batches for some seconds, as training does."""
    feed = create_loop(folder, "logistic_regression").algorithm.feed
    steps = itertools.count()

    def read_batch() -> int:
        assert feed.read_ahead(next(steps), 1)["inputs"].dtype == np.uint8
        return BATCH_SIZE

    found = rates.measure(read_batch, SECONDS)
    return found | {"cpu_microseconds": 1e6 / found["cpu_rate"]}


def wait(folder: str, model: str, is_in_memory: bool = False) -> dict[str, float]:
    """Trains four members for some seconds; returns the share of the time that it waits."""
    data = None
    if is_in_memory:
        from ensemble.data import load_dataset
        from ensemble.data.source import in_memory

        examples = in_memory(load_dataset(f"records:{folder}", hold_out=False), "train")
        data = {"inputs": examples.inputs, "labels": examples.targets}
    loop = create_loop(folder, model, data)
    loop.start()
    loop.go(16)  # The first program compiles.
    waits = [0.0]
    if not is_in_memory:
        feed = loop.algorithm.feed
        get = feed.read_ahead

        def timed(first: int, count: int) -> Any:
            began = time.perf_counter()
            found = get(first, count)
            waits.append(time.perf_counter() - began)
            return found

        feed.read_ahead = timed
    first = loop.step
    began = time.perf_counter()
    while time.perf_counter() - began < 2 * SECONDS:
        loop.go(loop.step + 64)
    elapsed = time.perf_counter() - began
    return {
        "share": sum(waits) / elapsed,
        "rate": (loop.step - first) * BATCH_SIZE * 4 / elapsed,
    }


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
        "gigabytes": rates.peak_memory() * 2**30 / 1e9,
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
    size = rates.peak_memory(resource.RUSAGE_CHILDREN) * 2**30 / 1e9
    return {"gigabytes": size, "seconds": seconds, "lines": count}


WORK: dict[str, Callable[..., dict[str, float]]] = {
    "write": write,
    "reading": read,
    "waiting": wait,
    "in_memory": functools.partial(wait, is_in_memory=True),
    "memory": train,
    "predicting": predict,
}


if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](*sys.argv[2:])))
