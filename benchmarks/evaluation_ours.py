"""Worker of evaluation: this project.

python benchmarks/evaluation_ours.py prepare WORKDIR ENSEMBLE_SIZE
python benchmarks/evaluation_ours.py predict|evaluate|rescore WORKDIR
"""

import json
import pathlib
import sys
import time
from typing import Any

import numpy as np
import rates
import train_ours

NUM_EXAMPLES = {"train": 1280, "validation": 100, "calibration": 5000, "test": 10_000}


def prepare(workdir: pathlib.Path, num_members: int) -> dict[str, float]:
    """Trains an ensemble for one epoch, on data that it writes beside the workdir."""
    import ensemble

    data = workdir.with_suffix(".npz")
    arrays: dict[str, Any] = train_ours.generate_images(**NUM_EXAMPLES)
    np.savez(data, **arrays)
    config = {"dataset": f"npz:{data}", "ensemble_size": num_members, "num_epochs": 1}
    ensemble.train(config, workdir=str(workdir))
    return {}


def predict(workdir: pathlib.Path) -> dict[str, float]:
    """Loads the ensemble and predicts the test images, as raw as they are."""
    import ensemble

    with np.load(workdir.with_suffix(".npz")) as arrays:
        images = arrays["test_inputs"]
    predictor = ensemble.load(workdir)
    predictor(images[:1])
    first = time.monotonic() - rates.process_started()
    seen = []
    for _ in range(4):
        start = time.perf_counter()
        predictor(images)
        seen.append(len(predictor.members) * len(images) / (time.perf_counter() - start))
    return {
        "rate": float(np.median(seen[1:])),
        "first_prediction_seconds": first,
        "peak_memory": rates.peak_memory(),
    }


def evaluate(workdir: pathlib.Path) -> dict[str, float]:
    """Evaluates what has no stored predictions: a run whose report is not written yet."""
    report = workdir / "results.json"
    aside = report.rename(workdir / "aside.json")
    try:
        return rescore(workdir)
    finally:
        aside.rename(report)


def rescore(workdir: pathlib.Path) -> dict[str, float]:
    """Evaluates the stored predictions."""
    import ensemble

    ensemble.evaluate(workdir, datasets=[])
    seconds = time.monotonic() - rates.process_started()
    return {"seconds": seconds, "peak_memory": rates.peak_memory()}


if __name__ == "__main__":
    mode, folder, *rest = sys.argv[1:]
    if mode == "prepare":
        print(json.dumps(prepare(pathlib.Path(folder), int(rest[0]))))
    else:
        run = {"predict": predict, "evaluate": evaluate, "rescore": rescore}[mode]
        print(json.dumps(run(pathlib.Path(folder))))
