"""The tables of tables.py: how their files are read, and which rows test each split."""

import argparse
import csv
import io
import json
import pathlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
UCI = ROOT.parent / "shared" / "uci"
"""`NAME.npz` with `inputs` [N, F], `targets` [N] and `test_indices` [S, T]."""

UCI_TABLES = ("yacht", "energy", "concrete", "wine", "kin8nm", "power", "naval", "protein")
BDE_TABLES = ("airfoil", "bike")
PACKAGE = "sklearn-contrib-bde"
VERSION = "1.0.2"
"""Has `BDE_TABLES`."""
FEW_TARGETS = ("wine", "naval")
"""Tables of few distinct targets, in which a density's NLL measures the variance's floor."""
WIDE = ("protein",)
"""Tables for which the literature takes hidden layers of 100 units in place of 50."""

BDE_FILES = {"airfoil": "bde/data/airfoil.csv", "bike": "bde/data/bike_sharing_dataset/hour.csv"}
_NOT_INPUTS = ("casual", "registered", "instant", "dteday")
_TEST_SHARE = 0.2
NUM_BDE_SPLITS = 11
"""The published split, and ten others."""


class Split(NamedTuple):
    """A table's rows in one split, as raw as they are: inputs [N, F] and targets [N], float64."""

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray


def num_splits(table: str) -> int:
    """How many splits a table has."""
    if table in BDE_TABLES:
        return NUM_BDE_SPLITS
    with np.load(UCI / f"{table}.npz") as file:
        return len(file["test_indices"])


def read_split(table: str, number: int, wheel: str) -> Split:
    """Reads a table, and takes it apart.

    Args:
        table: its name.
        number: of the split.
        wheel: the package `sklearn-contrib-bde`, which has `BDE_TABLES`, or the folder in which it
            is installed.
    """
    if table in BDE_TABLES:
        inputs, targets = _read_csv(wheel, BDE_FILES[table])
        from sklearn.model_selection import train_test_split  # As the published split was made.

        parts = train_test_split(inputs, targets, test_size=_TEST_SHARE, random_state=number)
        return standardised(Split(parts[0], parts[2], parts[1], parts[3]))
    with np.load(UCI / f"{table}.npz") as file:
        inputs = file["inputs"]
        targets = file["targets"]
        test = file["test_indices"][number]
    is_test = np.zeros(len(targets), bool)
    is_test[test] = True
    return Split(inputs[~is_test], targets[~is_test], inputs[is_test], targets[is_test])


def held_out(arrays: Mapping[str, np.ndarray], share: float, seed: int) -> dict[str, np.ndarray]:
    """Splits training rows alone, for choosing settings: test rows are not looked at.

    Args:
        arrays: `train_inputs` and so on; others are left out.
        share: of the training rows, which take the place of the test rows.
        seed: of their order.
    """
    names = [name.removeprefix("train_") for name in arrays if name.startswith("train_")]
    order = np.random.default_rng(seed).permutation(len(arrays["train_inputs"]))
    first = round(share * len(order))
    rows = {"train": order[first:], "test": order[:first]}
    return {
        f"{split}_{name}": arrays[f"train_{name}"][of]
        for split, of in rows.items()
        for name in names
    }


def standardised(split: Split) -> Split:
    """Every column by its mean and standard deviation on the training rows, the targets too."""

    def transform(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shift = train.mean(axis=0)
        scale = train.std(axis=0)
        scale = np.where(scale > 0, scale, 1)
        return (train - shift) / scale, (test - shift) / scale

    train_inputs, test_inputs = transform(split.train_inputs, split.test_inputs)
    train_targets, test_targets = transform(split.train_targets, split.test_targets)
    return Split(train_inputs, train_targets, test_inputs, test_targets)


def packages_of(python: str) -> str:
    """The folder in which an interpreter finds the library bde, and its tables."""
    line = (
        "from importlib import metadata, util; "
        f"assert metadata.version('{PACKAGE}') == '{VERSION}'; print(util.find_spec('bde').origin)"
    )
    try:
        found = subprocess.check_output([python, "-P", "-c", line], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        sys.exit(f"{python} must be an interpreter that has {PACKAGE}=={VERSION}; see --help")
    return str(pathlib.Path(found.decode().strip()).parent.parent)


def _read_csv(wheel: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a file in a wheel or a folder; the last column is the target."""
    folder = pathlib.Path(wheel)
    root = folder if folder.is_dir() else zipfile.Path(wheel)
    columns, *rows = csv.reader(io.StringIO((root / name).read_text()))
    kept = [i for i, column in enumerate(columns) if column not in _NOT_INPUTS]
    values = np.array([[float(row[i]) for i in kept] for row in rows])
    return values[:, :-1], values[:, -1]


def work(
    parser: argparse.ArgumentParser,
    methods: Iterable[str],
    score: Callable[[str, str, Split, list[str]], Mapping[str, float]],
) -> None:
    """Scores the splits that the command line names, a line of JSON for each.

    Args:
        parser: of the worker's own options.
        methods: that it has.
        score: of a method on a table's split, by what else is on the command line.
    """
    parser.add_argument("method", choices=methods)
    parser.add_argument("table")
    parser.add_argument("wheel")
    parser.add_argument("splits", type=int, nargs="+")
    parser.set_defaults(held_out=0)
    args, others = parser.parse_known_args()
    if others and not args.held_out:
        parser.error("settings are tried on held-out training rows: give --held_out")
    for number in args.splits:
        split = read_split(args.table, number, args.wheel)
        if args.held_out:
            split = Split(**held_out(split._asdict(), args.held_out, number))
        start = time.perf_counter()
        cpu = time.process_time()
        line = {
            **score(args.method, args.table, split, others),
            "split": number,
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
        }
        print(json.dumps(line), flush=True)
