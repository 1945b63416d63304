"""Embeddings of numbers, and estimators that share weights, beside ensembles of plain networks.

    PYTHONPATH=. python benchmarks/shared_weights.py --data=../shared \
        --out=benchmarks/results/shared_weights.json

Six tables: four of ../shared/uci and ../shared/tables with many rows, and two made ones, of jumps
and of a smooth function among columns of noise. At most 5,000 rows are learned from. All entries
but `configs/tabular.py` have the same optimiser, hidden layers and patience, near the defaults of
TabM's repository, and nothing was chosen on these tables but that file's sizes, on two of them. CPU
seconds are those of a run from data to report, compilation and early stopping included.
`--only=0/4` takes every fourth row from the first on, so that four processes can share the work.
"""

import argparse
import logging
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from rows import Results

import ensemble
from ensemble.config import flatten
from ensemble.configs import tabular

TABLES = {"kin8nm": "uci", "protein": "uci", "pol": "tables", "elevators": "tables"}
MADE = ("jumps", "smooth among noise")
FOLDS = (0, 1)
_MOST_TRAIN, _MOST_TEST = 5_000, 5_000
_COMMON = {
    "likelihood": "gaussian",
    "scaling": "robust",
    "optimizer": "adamw",
    "learning_rate": 2e-3,
    "weight_decay": 3e-4,
    "batch_size": 256,
    "num_epochs": 200,
    "early_stopping_epochs": 16,
    "num_devices": 1,
    "log_every_steps": 10_000,
    "plot_every_epochs": 10_000,
    "checkpoint_every_epochs": 10_000,
}
_PLAIN = {"model": "mlp", "mlp.widths": "256,256"}
_EMBEDDED = {"model": "embedded_mlp", "embedded_mlp.widths": "256,256"}
_PERIODIC = {**_EMBEDDED, "embedded_mlp.embedding": "periodic"}
_OF_8 = {"method": "sgd", "ensemble_size": 8}


def _estimators(adapters: str, num_members: int, num_estimators: int) -> Mapping[str, Any]:
    return {
        "method": "batch_ensemble",
        "ensemble_size": num_members,
        "batch_ensemble.num_estimators": num_estimators,
        "batch_ensemble.adapters": adapters,
    }


DEFAULT = "the default of tables"
ENTRIES: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    "8 networks": {**_PLAIN, **_OF_8},
    "8 networks, piecewise linear": {**_EMBEDDED, **_OF_8},
    "8 networks, periodic": {**_PERIODIC, **_OF_8},
    "BatchEnsemble, 2 of 4": {**_PLAIN, **_estimators("rank_one", 2, 4)},
    "TabM, 32": {**_PLAIN, **_estimators("tabm", 1, 32)},
    "TabM-mini, 32": {**_PLAIN, **_estimators("tabm_mini", 1, 32)},
    "TabM-mini, 32, piecewise linear": {**_EMBEDDED, **_estimators("tabm_mini", 1, 32)},
}


def table(
    name: str, fold: int, folder: pathlib.Path, most_train: int = _MOST_TRAIN
) -> dict[str, np.ndarray]:
    """The rows of a fold, by the keys of `ensemble.train`; at most so many are learned."""
    rng = np.random.default_rng(fold)
    if name in MADE:
        inputs = rng.normal(size=(most_train + _MOST_TEST, 8 if name == "jumps" else 24))
        if name == "jumps":
            targets = np.sign(np.sin(5 * inputs[:, 0])) * (inputs[:, 1] > 0.3) + inputs[:, 2]
        else:
            targets = np.sin(inputs[:, 0]) * inputs[:, 1] + 0.5 * inputs[:, 2] ** 2
        targets = targets + 0.2 * rng.normal(size=len(targets))
        is_test = np.arange(len(targets)) >= most_train
    else:
        with np.load(folder / TABLES[name] / f"{name}.npz") as file:
            inputs, targets = file["inputs"], file["targets"]
            if "test_fold" in file:
                is_test = file["test_fold"] == fold
            else:
                is_test = np.isin(np.arange(len(targets)), file["test_indices"][fold])
    train, test = (rng.permutation(np.flatnonzero(which)) for which in (~is_test, is_test))
    rows = {"train": train[:most_train], "test": test[:_MOST_TEST]}
    return {
        f"{split}_{key}": array[which].astype(np.float32)
        for split, which in rows.items()
        for key, array in (("inputs", inputs), ("targets", targets))
    }


def config_of(entry: str) -> dict[str, Any]:
    """The configuration of an entry."""
    if entry == DEFAULT:
        found = flatten(tabular.get_config())
        return {**found, "dataset": "arrays", "likelihood": "gaussian", "num_devices": 1}
    return {**_COMMON, **ENTRIES[entry]}


def main() -> None:
    """Makes the rows that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="JSON file to write")
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of the tables")
    parser.add_argument("--only", default="0/1", help="which part of the rows, such as 0/4")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    results = Results(args.out, benchmark=__doc__.splitlines()[0])

    def run(table_name: str, fold: int, entry: str) -> dict[str, Any]:
        began = time.process_time()
        data = table(table_name, fold, args.data)
        report = ensemble.train(config_of(entry), data, show_progress=False).report
        scores = report["test"]["scores"]
        return {
            **{name: scores[name]["value"] for name in ("nll", "crps", "rmse")},
            "member_nll": scores["nll"]["mean"],
            "cpu_seconds": time.process_time() - began,
        }

    part, num_parts = map(int, args.only.split("/"))
    keys = [
        {"table_name": name, "fold": fold, "entry": entry}
        for fold in FOLDS
        for name in (*TABLES, *MADE)
        for entry in ENTRIES
    ]
    results.fill(keys[part::num_parts], run)


if __name__ == "__main__":
    main()
