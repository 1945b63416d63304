"""Worker of comparisons: this project, through the loop that train.py drives.

python benchmarks/train_ours.py cnn|table|sghmc NUM_MEMBERS
python benchmarks/train_ours.py fit
python benchmarks/train_ours.py tabm|tabm_mini|batch_ensemble|packed [cnn]
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import rates

from ensemble.sharding import startup

BATCH_SIZE = 128
TABLE_BATCH_SIZE = 256
NUM_TABLE_MEMBERS = 10
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
    "train_on_all": True,
}

ESTIMATORS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "tabm": (32, {"method": "batch_ensemble", "adapters": "tabm"}),
    "tabm_mini": (32, {"method": "batch_ensemble", "adapters": "tabm_mini"}),
    "batch_ensemble": (4, {"method": "batch_ensemble"}),
    "packed": (4, {"method": "packed_ensemble", "packed_ensemble.alpha": 2.0}),
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


def create_loop(settings: Mapping[str, Any], data: Any = None) -> Any:
    """Makes the loop of a run that shows and saves nothing.

    Args:
        settings: Settings of the configuration.
        data: Arrays by split; None: the data set of the configuration.

    Returns:
        An `ensemble.runtime.loop.Loop`.
    """
    startup.configure(method=settings.get("method", "deep_ensemble"))
    from ensemble.config import checked
    from ensemble.data.data_forms import recognise
    from ensemble.run.loop import create_method, create_task
    from ensemble.runtime.loop import Loop, Periods

    config = checked(settings)
    method = create_method(config, create_task(config, None if data is None else recognise(data)))
    numbers = range(method.num_members)
    placed = method.place(len(numbers))
    periods = Periods(config.log_every_steps, 0, 0)
    answers = {"evaluate.return_value": False, "stops.return_value": False, "save_seconds": 0.0}
    observer = mock.Mock(**answers)
    return Loop(method.algorithm(placed, numbers), placed, numbers, 0, periods, observer)


def advance(
    config: dict[str, Any], data: dict[str, np.ndarray], seconds: float, step_size: int
) -> dict[str, float]:
    """Takes steps for some seconds, `log_every_steps` at a time.

    Args:
        config: Settings of the run.
        data: Arrays by split.
        seconds: Least duration.
        step_size: Count of a step.

    Returns:
        `rate` and `cpu_rate`, `compile_seconds` of the first chunk, `cold_seconds` of it with the
        set-up, and `chunk_seconds` of a later one.
    """
    begin = time.perf_counter()
    loop = create_loop(config, data)
    loop.start()

    def work() -> int:
        before = loop.step
        loop.go(before + config.get("log_every_steps", 50))
        return (loop.step - before) * step_size

    laps = [time.perf_counter()]
    for _ in range(3):
        work()
        laps.append(time.perf_counter())
    return rates.measure(work, seconds) | {
        "compile_seconds": laps[1] - laps[0],
        "cold_seconds": laps[1] - begin,
        "chunk_seconds": laps[3] - laps[2],
    }


def fit() -> dict[str, float]:
    """Fits the default regressor, imports and compilation included."""
    import ensemble

    data = generate_table(1_000, 8)
    ensemble.EnsembleRegressor().fit(data["train_inputs"], data["train_targets"])
    return {"seconds": time.monotonic() - rates.process_started()}


def estimators(what: str, network: str = "table") -> dict[str, float]:
    """Trains one member of estimators, on one core."""
    rates.stay_on_one_core()
    size, config = ESTIMATORS[what]
    config = {**SGD, **config, "ensemble_size": 1, "num_estimators": size}
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
