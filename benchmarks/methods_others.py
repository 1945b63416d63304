"""Rows that methods.py predicts beside those that test: shifted ones, and some unlike the data.

Each shifted row is a test row under one of the kinds of `ensemble evaluate`, at the middle of five
severities; the kinds take turns. Unlike the data are MNIST's digits for Fashion-MNIST, its images
in the form of digits for these, and for tables rows that lie beyond the training range in each
column, by one range at most.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
SHIFTED, OTHERS = "shifted", "others"
_SEVERITY, _MOST = 3, 2000
"""The severity, of five, and the most rows that are predicted."""


def with_others(arrays: Arrays, data_dir: str) -> dict[str, Any]:
    """Adds rows of both kinds to those of a data set.

    Args:
        arrays: by the keys of `ensemble.sources.own_arrays`; inputs are [N, F] or [N, H, W, C].
        data_dir: of prepared image sets.
    """
    what = "targets" if "test_targets" in arrays else "labels"
    train, test = arrays["train_inputs"], arrays["test_inputs"][:_MOST]
    if test.ndim == 2:
        shifted, others = _of_table(arrays, test)
    else:
        shifted, others = _shifted_images(train, test), _other_images(test, data_dir)
    return {
        **arrays,
        f"{SHIFTED}_inputs": shifted,
        f"{SHIFTED}_{what}": arrays[f"test_{what}"][:_MOST],
        f"{OTHERS}_inputs": others,
        f"{OTHERS}_{what}": arrays[f"test_{what}"][: len(others)],  # Which nobody scores.
    }


def joined(arrays: Arrays) -> tuple[dict[str, Any], dict[str, slice]]:
    """Puts the rows of both kinds behind those that test, for whatever predicts a split.

    Returns:
        Arrays with the splits of the package, and where its test split has which rows.
    """
    parts = [one for one in ("test", SHIFTED, OTHERS) if f"{one}_inputs" in arrays]
    ends = np.cumsum([0, *(len(arrays[f"{one}_inputs"]) for one in parts)]).tolist()
    where = {one: slice(*ends[k : k + 2]) for k, one in enumerate(parts)}
    found = {key: one for key, one in arrays.items() if key.partition("_")[0] not in parts}
    for what in {key.partition("_")[2] for key in arrays if key.startswith("test_")}:
        found[f"test_{what}"] = np.concatenate([arrays[f"{one}_{what}"] for one in parts])
    return found, where


def _in_turns(test: np.ndarray, kinds: Mapping[str, Callable[[np.ndarray], np.ndarray]]) -> Any:
    """Shifts rows, every row by the kind whose turn it is."""
    found = np.empty_like(test)
    for k, shift in enumerate(kinds.values()):
        found[k :: len(kinds)] = shift(test)[k :: len(kinds)]
    return found


def _shifted_images(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    from ensemble.evaluation.shift import SHIFTS, shift_images

    low_high = float(train.min()), float(train.max())

    def by(name: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda images: shift_images(images, name, _SEVERITY, value_range=low_high)

    return _in_turns(test, {name: by(name) for name in SHIFTS})


def _other_images(test: np.ndarray, data_dir: str) -> np.ndarray:
    from ensemble.sources.catalogue import load_test_inputs

    if test.shape[1] == 28:
        return np.asarray(load_test_inputs("mnist", data_dir)[: len(test)])
    clothes = np.asarray(load_test_inputs("fashion_mnist", data_dir)[: len(test)])
    around = np.pad(clothes, ((0, 0), (2, 2), (2, 2), (0, 0)))  # Digits were of 32x32 pixels.
    small = around.reshape(-1, 8, 4, 8, 4, 1).mean(axis=(2, 4))
    return np.rint(small * (16 / 255)).astype(test.dtype)


def _of_table(arrays: Arrays, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from ensemble.evaluation import table_shift
    from ensemble.source import Request
    from ensemble.sources.data_forms import recognise

    source = recognise(dict(arrays), None, "").source(Request(seed=0))
    columns = table_shift.columns_of(source)

    def by(name: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda rows: table_shift.shift_table(rows, name, _SEVERITY, columns)

    shifted = _in_turns(test, {name: by(name) for name in table_shift.shifts_of(columns)})
    return shifted, table_shift.box(columns, len(test), 1.0, test.dtype)
