"""Makes data sets of arrays and checked examples, and scales them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ensemble.config.builtin import NUM_QUANTILES
from ensemble.data.batches import normalise
from ensemble.data.source import Examples, Parts, Request, Source, Splits
from ensemble.data.splitting import carve
from ensemble.errors import InputError

_NORMAL_QUARTILES = 1.349
"""Standard deviations of a normal distribution between its quartiles."""
_HEAVY = 1.25
"""Standard deviations by quartiles, of a feature with heavy tails."""


def with_robust_scaling(dataset: Source) -> Source:
    """The same feature vectors, normalised such that few far values decide nothing.

    A feature whose standard deviation is far more than its quartiles say has its median as shift, a
    scale by its quartiles, or by its deviation where these are alike, and is squashed. Others are
    standardised, and a feature of two values becomes 0 and 1.

    Args:
        dataset: Any data set; pictures stay as they are.
    """
    if len(dataset.input_shape) != 1:
        return dataset
    found = []
    for values in dataset.splits["train"].inputs[:].T:
        column = values.astype(np.float64)
        low, first, middle, third, high = np.quantile(column, [0, 0.25, 0.5, 0.75, 1])
        deviation = column.std()
        by_quartiles = (third - first) / _NORMAL_QUARTILES
        if ((column == low) | (column == high)).all():
            found.append((low, 1 / ((high - low) or 1), 0))
        elif deviation > _HEAVY * by_quartiles:
            found.append((middle, 1 / (by_quartiles or deviation), 1))
        else:
            found.append((column.mean(), 1 / deviation, 0))
    shift, scale, squash = np.array(found, np.float32).T.copy()
    return replace(dataset, shift=shift, scale=scale, squash=squash)


def with_quantiles(dataset: Source) -> Source:
    """The same with quantiles of the features [F] of training examples, as networks see them.

    Args:
        dataset: Any data set; other inputs have none.
    """
    if len(dataset.input_shape) != 1:
        return dataset
    rows = dataset.splits["train"].inputs[:]
    seen = normalise(rows, dataset.shift, dataset.scale, dataset.squash)
    levels = np.linspace(0, 1, NUM_QUANTILES)
    # Values that are there: between those of a flag lies nothing.
    quantiles = np.quantile(np.asarray(seen), levels, axis=0, method="lower").T.astype(np.float32)
    return replace(dataset, quantiles=quantiles)


def make_dataset(
    name: str,
    splits: Splits,
    class_names: tuple[str, ...],
    scale: float,
    hold_out: bool,
) -> Source:
    """Makes a data set of images that are multiplied by a scale.

    Args:
        name: Name of the data set.
        splits: Splits; the last one is the test split.
        class_names: One per class.
        scale: Factor of the images.
        hold_out: If False, all but the test split is joined for training, in order.
    """
    if not hold_out:
        splits = join_for_training(splits)
    return Source(name, splits, class_names, scale=np.asarray(scale, np.float32))


def join_for_training(splits: Splits) -> Splits:
    """Joins all splits but the last one, of the test examples, for training, in order."""
    *parts, test = splits.values()
    return {"train": Examples(*map(np.concatenate, zip(*parts, strict=True))), "test": test}


def dataset_from_arrays(
    arrays: Any, name: str = "arrays", seed: int = 0, hold_out: bool = True
) -> Source:
    """Makes a data set of the user's own arrays.

    Args:
        arrays: `inputs` and `labels`, to be split 70 / 10 / 10 / 10; or `train_inputs` and
            `train_labels` with any of `validation_*`, `calibration_*` and `test_*`, where each
            split that is not given is carved from the training data, a tenth of it. Optionally
            `class_names`. Inputs are feature vectors `[N, F]` or images `[N, H, W]` or
            `[N, H, W, C]`; `[N, C, H, W]` are turned if they can be nothing else. Labels `[N]` are
            numbers or texts. `targets` in place of `labels` are numbers.
            `ensemble.data.data_forms` has the other forms, such as `(X, y)`.
        name: Name of the data set, also for messages.
        seed: Seed of the carving, which is stratified: every split has its share of every class.
        hold_out: If False, splits that are not given do not exist.

    Raises:
        InputError: The arrays cannot be used, or are too few to be split.
    """
    from ensemble.data.data_forms import recognise  # Only for data in such a form.
    from ensemble.data.own_arrays import check_arrays

    given = check_arrays(recognise(arrays, name=name), name)
    return carved(given, name, Request(seed=seed, hold_out=hold_out))


def carved(given: Parts, name: str, request: Request) -> Source:
    """Makes a data set of checked examples: carves splits that are not given.

    Args:
        given: Examples.
        name: Name of the data set, also for messages.
        request: How they are asked for.

    Raises:
        InputError: There are too few examples to be split, or images cannot be decoded.
    """
    from ensemble.data import own_arrays  # Only for own data.

    own_arrays.check_size((x for x, _ in given.parts.values()), name)
    parts = {
        part: Examples(x.read(x.rows) if getattr(x, "is_encoded", False) else x, targets)
        for part, (x, targets) in given.parts.items()
    }
    splits, weights = carve(replace(given, parts=parts), name, request)
    raw = Source(name, splits, given.class_names, train_weights=weights)
    shift, scale = own_arrays.shift_and_scale(raw)
    return replace(raw, shift=shift, scale=scale)


def refuse_arrays(name: str, request: Request) -> Source:
    """Says that the arrays which a program gave to a run are only there.

    Raises:
        InputError: Always.
    """
    raise InputError(
        "its data were arrays or data frames, which a workdir does not keep; give the same ones "
        "again: ensemble.train(config, data=...), ensemble.evaluate(workdir, data=...) or, arrays "
        "written by numpy.savez, ensemble evaluate --data=FILE.npz"
    )
