"""Worker of sghmc.py: this project, through the method that train.py drives.

python benchmarks/sghmc_ours.py NUM_CHAINS
"""

import json
import sys
import time

import numpy as np

from ensemble.sharding import startup

BATCH_SIZE = 128
SECONDS = 6.0


def create_method(num_chains: int):
    """The method `sghmc` on generated images of MNIST's shape, with no draw within the time."""
    startup.configure(method="sghmc")
    from ensemble import networks
    from ensemble.config_rules import validate
    from ensemble.methods.minibatch.minibatch_sampling import MinibatchSampling
    from ensemble.priors import parse_prior
    from ensemble.sources.dataset import dataset_from_arrays
    from ensemble.tasks.supervised import classification

    rng = np.random.default_rng(0)

    def split(name: str, size: int):
        images = rng.integers(0, 256, (size, 28, 28, 1), dtype=np.uint8)
        return {f"{name}_inputs": images, f"{name}_labels": np.arange(size) % 10}

    dataset = dataset_from_arrays(split("train", 100 * BATCH_SIZE) | split("test", 1000))
    config = validate(
        {
            "method": "sghmc",
            "num_chains": num_chains,
            "batch_size": BATCH_SIZE,
            "learning_rate": 1e-3,
            "model": "cnn",
            "log_every_steps": 5,
            "sgmcmc.num_burn_in": 10**6,
        }
    )
    network = networks.create("cnn", len(dataset.class_names or ()))
    return MinibatchSampling(config, classification(dataset, network, parse_prior(config.prior)))


def sample(num_chains: int) -> dict[str, float]:
    """Takes steps for some seconds, fetching each chunk's metrics during the next."""
    import jax

    method = create_method(num_chains)
    state = method.init(jax.random.key(0))
    for _ in range(2):
        state, info = method.advance(state)
        method.scalars(info)

    first, start = state.step, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        previous = info
        state, info = method.advance(state)
        method.scalars(previous)
    method.scalars(info)
    return {"rate": (state.step - first) * num_chains / (time.perf_counter() - start)}


if __name__ == "__main__":
    print(json.dumps(sample(int(sys.argv[1]))))
