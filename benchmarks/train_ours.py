"""Worker of comparisons: this project, through the methods that train.py drives.

python benchmarks/train_ours.py cnn|table|sghmc NUM_MEMBERS
python benchmarks/train_ours.py fit
python benchmarks/train_ours.py tabm|tabm_mini|batch_ensemble|packed [cnn]
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import rates

from ensemble.sharding import startup

BATCH_SIZE, TABLE_BATCH_SIZE, NUM_TABLE_MEMBERS = 128, 256, 10
NUM_IMAGES = 100 * BATCH_SIZE
CNN = {"model": "cnn", "batch_size": BATCH_SIZE}
SGD = {"num_steps": 10**6}
SGHMC = {
    "method": "sghmc",
    "learning_rate": 1e-3,
    "log_every_steps": 5,
    "sgmcmc.num_burn_in": 10**6,  # No draw within the time.
}
TABLE = {
    "likelihood": "gaussian",
    "model": "mlp",
    "mlp.widths": "128,128,128",
    "batch_size": TABLE_BATCH_SIZE,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "hold_out": False,
}

ESTIMATORS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "tabm": (32, {"method": "batch_ensemble", "batch_ensemble.adapters": "tabm"}),
    "tabm_mini": (32, {"method": "batch_ensemble", "batch_ensemble.adapters": "tabm_mini"}),
    "batch_ensemble": (4, {"method": "batch_ensemble"}),
    "packed": (4, {"method": "packed", "packed.alpha": 2.0}),
}
"""What members of estimators are, and of how many."""


def generate_images(**sizes: int) -> dict[str, np.ndarray]:
    """Noise of MNIST's shape, with labels, by split."""
    rng = np.random.default_rng(0)
    data: dict[str, np.ndarray] = {}
    for name, size in sizes.items():
        data[f"{name}_inputs"] = rng.integers(0, 256, (size, 28, 28, 1), dtype=np.uint8)
        data[f"{name}_labels"] = np.arange(size) % 10
    return data


def generate_table(num_rows: int, num_columns: int = 20) -> dict[str, np.ndarray]:
    """Rows of normal inputs, and targets that depend on three columns."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_rows, num_columns)).astype(np.float32)
    noise = 0.1 * np.exp(inputs[:, 2]) * rng.normal(size=num_rows)
    return {"train_inputs": inputs, "train_targets": np.sin(inputs[:, 0]) + inputs[:, 1] + noise}


def advance(
    config: dict[str, Any],
    data: dict[str, np.ndarray],
    seconds: float,
    step_size: int,
    fetched: Callable[[Any], Any] = lambda info: None,
) -> dict[str, float]:
    """Takes steps for some seconds, fetching each chunk's metrics during the next.

    Args:
        config: of the run.
        data: arrays by split.
        seconds: at least.
        step_size: what a step counts.
        fetched: what else is fetched of a chunk.

    Returns:
        `rate` and `cpu_rate`, `compile_seconds` of the first chunk, `cold_seconds` of it with the
        set-up, without imports, and `chunk_seconds` of a later one.
    """
    startup.configure(method=config.get("method", "sgd"))
    import jax

    from ensemble import registry
    from ensemble.config_rules import validate
    from ensemble.sources.data_forms import recognise
    from ensemble.tasks import supervised

    make_method = registry.load(registry.METHODS[config.get("method", "sgd")].factory)
    begin = time.perf_counter()
    checked = validate(config)
    method = make_method(checked, supervised.create(checked, recognise(data)))
    state = jax.block_until_ready(method.init(jax.random.key(0)))
    start = time.perf_counter()
    state, info = method.advance(state)
    method.scalars(info)
    now = time.perf_counter()
    found = {"compile_seconds": now - start, "cold_seconds": now - begin}
    for _ in range(2):
        start = time.perf_counter()
        state, info = method.advance(state)
        method.scalars(info)
    found["chunk_seconds"] = time.perf_counter() - start

    def work() -> int:
        nonlocal state, info
        previous, before = info, state.step
        state, info = method.advance(state)
        jax.device_get(fetched(previous))
        method.scalars(previous)
        return (state.step - before) * step_size

    return rates.measure(work, seconds, lambda: method.scalars(info)) | found


def fit() -> dict[str, float]:
    """Fits the default regressor, imports and compilation included."""
    import ensemble

    data = generate_table(1_000, 8)
    ensemble.EnsembleRegressor().fit(data["train_inputs"], data["train_targets"])
    return {"seconds": time.monotonic() - startup.process_started()}


def estimators(what: str, network: str = "table") -> dict[str, float]:
    """Trains one member of estimators, on one core."""
    rates.stay_on_one_core()
    size, config = ESTIMATORS[what]
    config = {**SGD, **config, "ensemble_size": 1, f"{config['method']}.num_estimators": size}
    if network == "cnn":
        images = generate_images(train=20 * BATCH_SIZE, test=1000)
        return advance({**CNN, **config, "log_every_steps": 5}, images, 3.0, BATCH_SIZE * size)
    return advance({**TABLE, **config}, generate_table(10_000), 3.0, TABLE_BATCH_SIZE * size)


def main(what: str, size: int = NUM_TABLE_MEMBERS) -> dict[str, float]:
    """Measures; a rate is of all members or chains together."""
    if what == "fit":
        return fit()
    if what == "cnn":
        config = {**CNN, **SGD, "ensemble_size": size}
        return advance(
            config, generate_images(train=NUM_IMAGES, test=10_000), 4.0, BATCH_SIZE * size
        )
    if what == "sghmc":  # Steps are counted.
        return advance(
            {**CNN, **SGHMC, "num_chains": size},
            generate_images(train=NUM_IMAGES, test=1000),
            6.0,
            size,
        )
    config = {**TABLE, **SGD, "ensemble_size": size}
    return advance(config, generate_table(10_000), 5.0, TABLE_BATCH_SIZE * size)


if __name__ == "__main__":
    if sys.argv[1] in ESTIMATORS:
        print(json.dumps(estimators(*sys.argv[1:])))
    else:
        print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
