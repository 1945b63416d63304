"""Eleven methods on this machine's devices, and how fast members train and predict there.

    python benchmarks/on_device.py --out=benchmarks/results/on_device.json

Digits of 8x8 by each method, whose NLL is that of another platform up to rounding; then the
how-to's CNN on noise of MNIST's size, in batches of 128, for ensembles of several sizes. A minute a
row, of which compilation takes most. A method that fails is a row with its error.
"""

import argparse
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from rows import Results

FEW = {"eval_every_epochs": 100, "plot_every_epochs": 100, "checkpoint_every_epochs": 100}
MEMBERS = {"model": "cnn", "ensemble_size": 4, "num_epochs": 10, "batch_size": 64, **FEW}
LAPLACE = {"model": "cnn", "ensemble_size": 4, "batch_size": 64, "method": "laplace"}
CHAINS = {"model": "mlp", "mlp.widths": "16", "num_chains": 4}
DRAWS = {**CHAINS, "sampler.num_warmup": 50, "sampler.num_samples": 50}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "sgd": MEMBERS,
    "varied": {**MEMBERS, "method": "varied", "varied.dropout": "0,0.3"},
    "snapshots": {**MEMBERS, "method": "snapshots"},
    "swag": {**MEMBERS, "method": "swag"},
    "mc_dropout": {**MEMBERS, "method": "mc_dropout", "cnn.dropout": 0.2},
    "batch_ensemble": {**MEMBERS, "method": "batch_ensemble"},
    "cross_fitted": {**MEMBERS, "method": "cross_fitted"},
    "laplace": LAPLACE,
    "laplace_kronecker_draws": {
        **LAPLACE,
        "laplace.structure": "kronecker",
        "laplace.predictive": "draws",
    },
    "hmc": {**DRAWS, "method": "hmc"},
    "mclmc": {**DRAWS, "method": "mclmc"},
    "sghmc": {
        **CHAINS,
        "method": "sghmc",
        "sgmcmc.num_burn_in": 200,
        "sgmcmc.num_samples": 50,
        "sgmcmc.steps_per_draw": 5,
    },
}
SIZES = (1, 8, 64)
_NUM_ROUNDS, _NUM_PREDICTED = 5, 20_000


def digits() -> dict[str, np.ndarray]:
    """scikit-learn's."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return {"inputs": (found.images[..., None] * 15).astype(np.uint8), "labels": found.target}


def noise() -> dict[str, np.ndarray]:
    """Images and labels of MNIST's shape and number."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (60_000, 28, 28, 1), dtype=np.uint8)
    return {"inputs": images, "labels": rng.integers(0, 10, len(images))}


def run(config: Mapping[str, Any], data: Mapping[str, np.ndarray], workdir: str) -> dict[str, Any]:
    """Trains, loads and predicts; what it found, or the error."""
    import ensemble

    try:
        report = ensemble.train(dict(config), dict(data), workdir, show_progress=False).report
        ensemble.load(workdir)(data["inputs"][:64])
    except Exception as error:  # A row says so, and the others go on.
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"nll": report["test"]["scores"]["nll"]["value"], **report["timing"]}


def predictions(folder: pathlib.Path, images: np.ndarray) -> dict[str, Any]:
    """Images a second by size, in alternating rounds, and the share of 1/M that they are."""
    import ensemble

    ensembles = {size: ensemble.load(folder / f"train_{size}") for size in SIZES}
    rates: dict[int, list[float]] = {size: [] for size in SIZES}
    for k in range(1 + _NUM_ROUNDS):
        for size, one in ensembles.items():
            began = time.perf_counter()
            one.member_arrays(images)
            if k:  # The first one compiles.
                rates[size].append(len(images) / (time.perf_counter() - began))
    return {
        f"M={size}": {
            "images_per_second": statistics.median(each),
            "share_of_one_over_M": statistics.median(
                [size * ours / one for ours, one in zip(each, rates[1], strict=True)]
            ),
        }
        for size, each in rates.items()
    }


def main() -> None:
    """Makes the rows that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="JSON file to write")
    args = parser.parse_args()
    import jax

    devices = f"{jax.devices()}, JAX {jax.__version__}"
    results = Results(args.out, benchmark=__doc__.splitlines()[0], devices=devices)
    folder = pathlib.Path(tempfile.mkdtemp())
    cases = {name: (config, digits) for name, config in METHODS.items()}
    for size in SIZES:
        epochs = {"num_epochs": 3 if size < 64 else 2, "learning_rate": 0.01, "batch_size": 128}
        cases[f"train_{size}"] = ({**MEMBERS, **epochs, "ensemble_size": size}, noise)
    for name, (config, data_of) in cases.items():
        if config.get("method") == "laplace":
            config = {**config, "init_from": str(folder / "sgd")}
        found = run(config, data_of(), str(folder / name))
        print(results.add({"case": name}, found), flush=True)
    found = predictions(folder, noise()["inputs"][:_NUM_PREDICTED])
    print(results.add({"case": "predictions"}, found), flush=True)


if __name__ == "__main__":
    main()
