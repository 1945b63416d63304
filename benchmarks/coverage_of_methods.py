"""How often 90% intervals of methods around networks cover: on simulated tables, one after another.

    python benchmarks/coverage_of_methods.py --out=benchmarks/results/coverage_of_methods.json

Each table has 300 rows to learn from, 60 to validate and 2,000 to test, of four inputs; the target
is a smooth function of them with normal noise, whose deviation grows with one input. All methods
train the same MLP with a Gaussian likelihood. An interval
covers less than it says where a network believes too much, or knows its noise badly. The same
command goes on where it was interrupted.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
from rows import Results, Row

TABLES = range(20)
RECIPE = {
    "likelihood": "gaussian",
    "model": "mlp",
    "mlp.widths": "32,32",
    "num_devices": 1,
    "num_epochs": 60,
    "batch_size": 32,
    "optimizer": "adam",
    "learning_rate": 5e-3,
    "schedule": "cosine",
    "weight_decay": 1e-3,
    "eval_every_epochs": 1000,
    "plot_every_epochs": 1000,
    "checkpoint_every_epochs": 1000,
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "sgd, 1 member": {"ensemble_size": 1},
    "sgd, 4 members": {"ensemble_size": 4},
    "varied, 4 members": {"method": "varied", "ensemble_size": 4},
    "snapshots": {"method": "snapshots", "ensemble_size": 1},
    "swag": {"method": "swag", "ensemble_size": 1},
    "mc_dropout": {"method": "mc_dropout", "ensemble_size": 1, "mlp.dropout": 0.1},
    "laplace": {"method": "laplace", "ensemble_size": 1},
    "laplace, kronecker": {
        "method": "laplace",
        "ensemble_size": 1,
        "laplace.structure": "kronecker",
    },
}
_OF_LAPLACE = ("likelihood", "model", "mlp.widths", "num_devices", "batch_size")
_OF_SCHEDULE = ("schedule",)


def table_of(number: int) -> dict[str, np.ndarray]:
    """Inputs and targets by split."""
    rng = np.random.default_rng(number)
    directions = rng.normal(size=(3, 4))
    found: dict[str, np.ndarray] = {}
    for split, size in {"train": 300, "validation": 60, "test": 2000}.items():
        inputs = rng.normal(size=(size, 4))
        mean = np.sin(inputs @ directions.T).sum(axis=1)
        noise = 0.3 * np.exp(0.5 * inputs[:, 0]) * rng.normal(size=size)
        found[f"{split}_inputs"] = inputs.astype(np.float32)
        found[f"{split}_targets"] = (mean + noise).astype(np.float32)
    return found


def run(table: int, method: str) -> dict[str, float]:
    """Trains on a table, and scores."""
    import ensemble

    own, data = METHODS[method], table_of(table)
    with tempfile.TemporaryDirectory() as folder:
        config = {**RECIPE, **own, "seed": table, "hold_out": False}
        name = config.get("method", "sgd")
        if name == "laplace":
            start = {**RECIPE, "ensemble_size": 1, "seed": table, "hold_out": False}
            ensemble.train(start, data, f"{folder}/start", show_progress=False)
            config = {key: RECIPE[key] for key in _OF_LAPLACE} | dict(own)
            config |= {"seed": table, "hold_out": False, "init_from": f"{folder}/start"}
        elif name in ("swag", "snapshots"):  # Their rates have a course of their own.
            config = {key: one for key, one in config.items() if key not in _OF_SCHEDULE}
        report = ensemble.train(config, data, f"{folder}/run", show_progress=False).report
    scores = report["test"]["scores"]
    return {name: scores[name]["value"] for name in ("coverage_90", "nll", "crps")}


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over tables, with 95% intervals by Student's t; the NLL less that of one member."""
    by = {(row["table"], row["method"]): row for row in rows}
    found: dict[str, Any] = {}
    for method in METHODS:
        tables = [t for t in TABLES if {(t, method), (t, "sgd, 1 member")} <= by.keys()]
        if len(tables) < 2:
            continue
        ours = [by[t, method] for t in tables]
        alone = [by[t, "sgd, 1 member"]["nll"] for t in tables]
        found[method] = {
            "tables": len(tables),
            "coverage_90": _interval([row["coverage_90"] for row in ours]),
            "nll_less_member": _interval(np.subtract([row["nll"] for row in ours], alone).tolist()),
        }
    return {"summary": found}


def _interval(values: Sequence[float]) -> dict[str, float]:
    mean, error = float(np.mean(values)), scipy.stats.sem(values)
    margin = float(scipy.stats.t.ppf(0.975, len(values) - 1) * error)
    return {"mean": mean, "low": mean - margin, "high": mean + margin}


def main() -> None:
    """Makes the rows that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="JSON file to write")
    args = parser.parse_args()
    results = Results(args.out, summarise, benchmark=__doc__.splitlines()[0])
    results.fill([{"table": t, "method": m} for t in TABLES for m in METHODS], run)


if __name__ == "__main__":
    main()
