"""Worker of evaluation: this project.

python benchmarks/evaluation_ours.py prepare WORKDIR ENSEMBLE_SIZE
python benchmarks/evaluation_ours.py predict|evaluate|rescore WORKDIR
"""

import json
import pathlib
import resource
import sys
import time
from typing import Any

import numpy as np

NUM_EXAMPLES = {"train": 1280, "validation": 100, "calibration": 5000, "test": 10_000}


def generate_data(workdir: pathlib.Path) -> pathlib.Path:
    """Writes noise of MNIST's shape with labels, beside the workdir."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, number in NUM_EXAMPLES.items():
        arrays[f"{split}_inputs"] = rng.integers(0, 256, (number, 28, 28, 1), np.uint8)
        arrays[f"{split}_labels"] = np.arange(number) % 10
    path = workdir.with_suffix(".npz")
    np.savez(path, **arrays)
    return path


def prepare(workdir: pathlib.Path, num_members: int) -> dict[str, float]:
    """Trains an ensemble for one epoch."""
    import ensemble

    config = {
        "dataset": f"npz:{generate_data(workdir)}",
        "ensemble_size": num_members,
        "num_epochs": 1,
    }
    ensemble.train(config, workdir=str(workdir))
    return {}


def predict(workdir: pathlib.Path) -> dict[str, float]:
    """Loads the ensemble and predicts the test images, as raw as they are."""
    import ensemble
    from ensemble.sharding import startup

    with np.load(workdir.with_suffix(".npz")) as arrays:
        images = arrays["test_inputs"]
    predictor = ensemble.load(workdir)
    predictor(images[:1])
    first = time.monotonic() - startup.process_started()
    rates = []
    for _ in range(4):
        start = time.perf_counter()
        predictor(images)
        rates.append(len(predictor.members) * len(images) / (time.perf_counter() - start))
    return {
        "rate": float(np.median(rates[1:])),
        "first_prediction_seconds": first,
        "peak_memory": peak_memory(),
    }


def evaluate(workdir: pathlib.Path) -> dict[str, float]:
    """Evaluates what has no stored predictions: a run whose report is not written yet."""
    report = workdir / "report.json"
    aside = report.rename(workdir / "aside.json")
    try:
        return rescore(workdir)
    finally:
        aside.rename(report)


def rescore(workdir: pathlib.Path) -> dict[str, float]:
    """Evaluates the stored predictions."""
    import ensemble
    from ensemble.sharding import startup

    ensemble.evaluate(workdir, datasets=[])
    seconds = time.monotonic() - startup.process_started()
    return {"seconds": seconds, "peak_memory": peak_memory()}


def peak_memory() -> float:
    """Peak memory of this process, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    mode, folder, *rest = sys.argv[1:]
    if mode == "prepare":
        print(json.dumps(prepare(pathlib.Path(folder), int(rest[0]))))
    else:
        run = {"predict": predict, "evaluate": evaluate, "rescore": rescore}[mode]
        print(json.dumps(run(pathlib.Path(folder))))
