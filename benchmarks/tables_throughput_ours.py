"""Worker of tables_throughput.py: this project, through the method that train.py drives.

python benchmarks/tables_throughput_ours.py rate|fit
"""

import json
import sys
import time

import numpy as np

from ensemble.sharding import startup

NUM_MEMBERS, BATCH_SIZE, SECONDS = 10, 256, 5.0
CONFIG = {
    "likelihood": "gaussian",
    "model": "mlp",
    "mlp.widths": "128,128,128",
    "ensemble_size": NUM_MEMBERS,
    "batch_size": BATCH_SIZE,
    "num_steps": 10**6,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "hold_out": False,
}


def generate_table(num_rows: int, num_columns: int = 20) -> dict[str, np.ndarray]:
    """Rows of normal inputs, and targets that depend on three columns."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_rows, num_columns)).astype(np.float32)
    noise = 0.1 * np.exp(inputs[:, 2]) * rng.normal(size=num_rows)
    return {"train_inputs": inputs, "train_targets": np.sin(inputs[:, 0]) + inputs[:, 1] + noise}


def rate() -> dict[str, float]:
    """Trains for some seconds, fetching each chunk's metrics during the next, as train.py does."""
    startup.configure(method="sgd")
    import jax

    from ensemble.config_rules import validate
    from ensemble.methods.members.sgd import SGD
    from ensemble.tasks import supervised

    config = validate(CONFIG)
    method = SGD(config, supervised.create(config, generate_table(10_000)))
    state = jax.block_until_ready(method.init(jax.random.key(0)))
    for _ in range(3):
        state, info = method.advance(state)
        method.scalars(info)
    first, start = state.step, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        previous = info
        state, info = method.advance(state)
        method.scalars(previous)
    jax.block_until_ready(state)
    rows = (state.step - first) * BATCH_SIZE * NUM_MEMBERS
    return {"rate": rows / (time.perf_counter() - start)}


def fit() -> dict[str, float]:
    """Fits the default regressor, imports and compilation included."""
    import ensemble

    data = generate_table(1_000, 8)
    ensemble.EnsembleRegressor().fit(data["train_inputs"], data["train_targets"])
    return {"seconds": time.monotonic() - startup.process_started()}


if __name__ == "__main__":
    print(json.dumps({"rate": rate, "fit": fit}[sys.argv[1]]()))
