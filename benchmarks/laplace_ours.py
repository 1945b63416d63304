"""Worker of `laplace`: this project's Laplace approximations around a network.

python benchmarks/laplace_ours.py train FOLDER
python benchmarks/laplace_ours.py last_layer|last_layer_kronecker FOLDER
"""

import json
import pathlib
import sys
import time
from typing import Any

import numpy as np
import rates

from ensemble.sharding import startup

SIZES = {"train": 4000, "validation": 500, "test": 2000}
PRIOR_PRECISION = 10.0
NETWORK = {
    "model": "cnn",
    "ensemble_size": 1,
    "num_devices": 1,
    "batch_size": 128,
    "hold_out": False,
}


def images() -> dict[str, np.ndarray]:
    """Ten patterns of MNIST's shape under much noise, by split."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(10, 28, 28, 1))
    found: dict[str, np.ndarray] = {}
    for name, size in SIZES.items():
        labels = np.arange(size) % 10
        noisy = 0.1 * patterns[labels] + rng.normal(size=(size, 28, 28, 1))
        found[f"{name}_inputs"] = (0.5 * noisy).astype(np.float32)
        found[f"{name}_labels"] = labels
    return found


def train(folder: pathlib.Path) -> dict[str, float]:
    """Trains the network, and leaves its parameters and the data for the peer."""
    import ensemble

    config = {**NETWORK, "num_epochs": 6, "learning_rate": 0.05}
    data = images()
    result = ensemble.train(config, data, str(folder / "run"), show_progress=False)
    dataset = result.predictor.task.dataset
    shift, scale = (np.asarray(one, np.float32) for one in (dataset.shift, dataset.scale))
    arrays: dict[str, Any] = {
        name: (one - shift) * scale if name.endswith("inputs") else one
        for name, one in data.items()
    }
    for layer, leaves in result.predictor.fitted.sets["params"].items():
        arrays |= {f"{layer}/{name}": leaf[0] for name, leaf in leaves.items()}
    np.savez(folder / "network.npz", **arrays)
    return {"nll": result.report["test"]["scores"]["nll"]["value"]}


def fit(structure: str, folder: pathlib.Path) -> dict[str, float]:
    """Fits and predicts, after a first time that compiles."""
    startup.configure(method="laplace")
    import jax

    from ensemble import registry
    from ensemble.config_rules import validate
    from ensemble.predictor import Predictor
    from ensemble.sources.data_forms import recognise
    from ensemble.tasks import supervised

    config = validate(
        {
            **NETWORK,
            "method": "laplace",
            "init_from": str(folder / "run"),
            "laplace.structure": structure,
            "laplace.prior_precision": str(PRIOR_PRECISION),
        }
    )
    data = images()
    task = supervised.create(config, recognise(data))
    method = registry.load(registry.METHODS["laplace"].factory)(config, task)
    seconds: list[float] = []
    for _ in range(4):
        state = jax.block_until_ready(method.init(jax.random.key(0)))
        start = time.process_time()
        while not method.finished(state):
            state, _ = method.advance(state)
        jax.block_until_ready(state.posterior)
        seconds.append(time.process_time() - start)
    predictor = Predictor(task, method.fitted(state, [0], None), [0])
    inputs = data["test_inputs"]
    probs = predictor(inputs).probs
    np.save(folder / f"{structure}.npy", probs)

    def predict() -> int:
        predictor.member_arrays(inputs)
        return len(inputs)

    found = rates.measure(predict, 3.0)
    return {
        "fit_seconds": min(seconds[1:]),
        "first_fit_seconds": seconds[0],
        "predictions": found["cpu_rate"],
        "nll": -float(np.log(probs[np.arange(len(inputs)), data["test_labels"]]).mean()),
    }


if __name__ == "__main__":
    what, where = sys.argv[1], pathlib.Path(sys.argv[2])
    print(json.dumps(train(where) if what == "train" else fit(what, where)))
