"""Rows that methods.py predicts beside those that test: shifted rows, and rows unlike the data.

The kinds of shift are those of `ensemble evaluate`. The first rows that test are shifted, each by
one kind: the kinds take turns. Rows unlike the data are MNIST's digits for Fashion-MNIST and, for
digits, the images of Fashion-MNIST, shrunk to 8x8. For a table they are test rows whose numbers are
replaced: the new ones lie beyond the training range of their column, by one range at most.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
SHIFTED, OTHERS = "shifted", "others"
SEVERITY, NUM_KINDS = 3, 5
"""The severity, of five, and the number of kinds."""
_MOST = 2000
"""The most rows of each sort that are predicted."""


def kinds_of(is_image: bool) -> tuple[str, ...]:
    """The names of the kinds of shift, in their turns."""
    from ensemble.evaluation.shift import SHIFTS  # The driver starts without the package.
    from ensemble.evaluation.table_shift import TABLE_SHIFTS

    return tuple(SHIFTS if is_image else TABLE_SHIFTS)


def with_other_images(arrays: Arrays, data_dir: str) -> dict[str, Any]:
    """Adds shifted and other images to digits of 8x8 pixels or to Fashion-MNIST.

    Args:
        arrays: by the keys of `ensemble.sources.own_arrays`; inputs are [N, H, W, 1].
        data_dir: of prepared image sets.
    """
    from ensemble.evaluation.shift import shift_images
    from ensemble.sources.catalogue import load_test_inputs

    train, test = arrays["train_inputs"], arrays["test_inputs"][:_MOST]
    low_high = float(train.min()), float(train.max())
    shifted = _in_turns(
        test,
        kinds_of(is_image=True),
        lambda kind: shift_images(test, kind, SEVERITY, value_range=low_high),
    )
    name = "mnist" if test.shape[1] == 28 else "fashion_mnist"
    others = np.asarray(load_test_inputs(name, data_dir)[: len(test)])
    if test.shape[1] == 8:  # Each pixel counts the dots of a block of 4x4, as in the digits.
        around = np.pad(others, ((0, 0), (2, 2), (2, 2), (0, 0)))
        small = around.reshape(-1, 8, 4, 8, 4, 1).mean(axis=(2, 4))
        others = np.rint(small * (16 / 255)).astype(test.dtype)
    return _added(arrays, shifted, others)


def with_other_rows(arrays: Arrays, column: np.ndarray | None) -> dict[str, Any]:
    """Adds shifted and other rows to a table.

    Args:
        arrays: by the keys of `ensemble.sources.own_arrays`; inputs are [N, F].
        column: [F], the number of the table's column that each input is of: those of a category
            share one. None: the inputs are the columns.
    """
    from ensemble.evaluation import table_shift
    from ensemble.source import Request
    from ensemble.sources.data_forms import recognise

    test = arrays["test_inputs"][:_MOST]
    source = recognise(dict(arrays), None, "").source(Request(seed=0))
    columns = table_shift.columns_of(source)
    if column is not None:
        columns = columns._replace(group=column, is_number=np.bincount(column)[column] == 1)
    shifted = _in_turns(
        test,
        kinds_of(is_image=False),
        lambda kind: table_shift.shift_table(test, kind, SEVERITY, columns),
    )
    beyond = table_shift.box(columns, len(test), 1.0, test.dtype)
    return _added(arrays, shifted, np.where(columns.is_number, beyond, test))


def _in_turns(
    test: np.ndarray, kinds: Iterable[str], shift: Callable[[str], np.ndarray]
) -> np.ndarray:
    """Test rows, each shifted by the kind whose turn it is."""
    found = np.empty_like(test)
    for k, kind in enumerate(kinds):
        found[k::NUM_KINDS] = shift(kind)[k::NUM_KINDS]
    return found


def _added(arrays: Arrays, shifted: np.ndarray, others: np.ndarray) -> dict[str, Any]:
    """Adds rows with targets; nobody scores those of rows unlike the data."""
    what = "targets" if "test_targets" in arrays else "labels"
    targets = arrays[f"test_{what}"]
    return {
        **arrays,
        f"{SHIFTED}_inputs": shifted,
        f"{SHIFTED}_{what}": targets[: len(shifted)],
        f"{OTHERS}_inputs": others,
        f"{OTHERS}_{what}": targets[: len(others)],
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
