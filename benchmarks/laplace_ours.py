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
import train_ours

SIZES = {"train": 4000, "validation": 500, "test": 2000}
PRIOR_PRECISION = 10.0
NETWORK = {
    "model": "cnn",
    "ensemble_size": 1,
    "num_devices": 1,
    "batch_size": 128,
    "train_on_all": True,
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
    return {"nll": result.report["metrics"]["test"]["nll"]["value"]}


def fit(structure: str, folder: pathlib.Path) -> dict[str, float]:
    """Fits and predicts, after a first time that compiles."""
    config = {
        **NETWORK,
        "method": "laplace",
        "init_from": str(folder / "run"),
        "laplace.structure": structure,
        "laplace.prior_precision": str(PRIOR_PRECISION),
    }
    data = images()
    seconds: list[float] = []
    for _ in range(4):
        loop = train_ours.create_loop(config, data)
        loop.start()
        start = time.process_time()
        loop.go()
        seconds.append(time.process_time() - start)
    import ensemble

    predictor: Any = ensemble.train(config, data, show_progress=False).predictor
    inputs = data["test_inputs"]
    said: Any = predictor(inputs)
    probs = said.probs
    np.save(folder / f"{structure}.npy", probs)

    def predict() -> int:
        predictor(inputs)
        return len(inputs)

    found = rates.measure(predict, 3.0)
    return {
        "fit_seconds": min(seconds[1:]),
        "first_fit_seconds": seconds[0],
        "predictions": found["cpu_rate"],
        "nll": -float(np.log(probs[np.arange(len(inputs)), data["test_labels"]]).mean()),
    }


if __name__ == "__main__":
    what = sys.argv[1]
    where = pathlib.Path(sys.argv[2])
    print(json.dumps(train(where) if what == "train" else fit(what, where)))
