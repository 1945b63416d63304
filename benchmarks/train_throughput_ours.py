"""Worker of train_throughput.py: this project, through the method that train.py drives.

python benchmarks/train_throughput_ours.py ENSEMBLE_SIZE
"""

import json
import sys
import time

import numpy as np

from ensemble.sharding import startup

BATCH_SIZE = 128
SECONDS = 4.0


def create_method(num_members: int):
    """The method `sgd` at the default settings, on generated images of MNIST's shape."""
    startup.configure(method="sgd")
    from ensemble import networks
    from ensemble.config_rules import validate
    from ensemble.methods.members.sgd import SGD
    from ensemble.sources.dataset import dataset_from_arrays
    from ensemble.tasks.supervised import classification

    rng = np.random.default_rng(0)

    def split(name: str, size: int):
        images = rng.integers(0, 256, (size, 28, 28, 1), dtype=np.uint8)
        return {f"{name}_inputs": images, f"{name}_labels": np.arange(size) % 10}

    dataset = dataset_from_arrays(split("train", 100 * BATCH_SIZE) | split("test", 10_000))
    config = validate(
        {"ensemble_size": num_members, "num_steps": 10**6, "batch_size": BATCH_SIZE, "model": "cnn"}
    )
    return SGD(
        config, classification(dataset, networks.create("cnn", len(dataset.class_names or ())))
    )


def train(num_members: int) -> dict[str, float]:
    """Trains for some seconds, fetching each chunk's metrics during the next, as train.py does."""
    import jax

    method = create_method(num_members)
    state = jax.block_until_ready(method.init(jax.random.key(0)))
    start = time.perf_counter()
    state, info = method.advance(state)
    method.scalars(info)
    compile_seconds = time.perf_counter() - start
    state, info = method.advance(state)
    jax.block_until_ready(state)

    first, start = state.step, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        previous = info
        state, info = method.advance(state)
        method.scalars(previous)
    jax.block_until_ready(state)
    images = (state.step - first) * BATCH_SIZE * num_members
    return {
        "rate": images / (time.perf_counter() - start),
        "compile_seconds": compile_seconds,
    }


if __name__ == "__main__":
    print(json.dumps(train(int(sys.argv[1]))))
