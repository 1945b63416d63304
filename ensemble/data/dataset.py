"""The source that most data are: examples in host memory, or inputs that stay on disk."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble.config.builtin import NUM_QUANTILES
from ensemble.data.batches import normalise
from ensemble.data.source import (
    Examples,
    OnDisk,
    Parts,
    Request,
    Source,
    Stored,
    Strata,
    Summary,
)
from ensemble.data.splitting import assign_splits
from ensemble.errors import InputError

if TYPE_CHECKING:
    from ensemble.data.tables.table_form import TableForm

_NORMAL_QUARTILES = 1.349
"""Standard deviations of a normal distribution between its quartiles."""
_HEAVY = 1.25
"""Standard deviations by quartiles, of a feature with heavy tails."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(Source):
    """A data set whose splits are arrays in host memory, or inputs `OnDisk` beside targets.

    Attributes:
        name: Name, as `load_dataset` was given it.
        splits: `train`, and those of `validation`, `calibration` and `test` that there are, in
            this order.
        class_names: One per class; None if targets are real values.
        shift: float32, broadcastable to an example; see `normalise`.
        scale: float32, broadcastable to an example; see `normalise`.
        train_weights: See `Source`.
        squash: See `Source`.
        quantiles: See `Source`.
        groups: What rows are split by, of each split that is by something.
        table: See `Source`.
        content: Digests of the raw rows of each split of a table.
    """

    name: str
    splits: Mapping[str, Examples]
    class_names: tuple[str, ...] | None
    _: dataclasses.KW_ONLY
    shift: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((), np.float32))
    scale: np.ndarray = dataclasses.field(default_factory=lambda: np.ones((), np.float32))
    train_weights: np.ndarray | None = None
    squash: np.ndarray | None = None
    quantiles: np.ndarray | None = None
    groups: Mapping[str, Strata] = dataclasses.field(default_factory=dict)
    table: TableForm | None = None
    content: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split."""
        return {name: len(split.targets) for name, split in self.splits.items()}

    def read(self, split: str, indices: np.ndarray | slice) -> Examples:
        """Takes examples of a split; a slice of arrays is a view."""
        return Examples(*(values[indices] for values in self.splits[split]))

    def targets(self, split: str) -> np.ndarray:
        """All targets [N] of a split."""
        return self.splits[split].targets

    def strata(self, split: str) -> Strata | None:
        """The groups or times of a split's rows [N]; None if rows are split at random."""
        return self.groups.get(split)

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits; of a table they change with its columns and with what is made of them."""
        found = super().fingerprint
        if self.table is None:
            return found
        whole = json.dumps([found, self.table.content, dict(self.content)])
        return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()

    @functools.cached_property
    def test_fingerprint(self) -> str | None:
        """The same of the rows to test alone, whatever is made of them."""
        return super().test_fingerprint if self.table is None else self.content.get("test")

    def summary(self, split: str) -> Summary | None:
        """The summary of a split's inputs, if it is known without reading them."""
        return getattr(self.splits[split].inputs, "known", None)


def with_robust_scaling(dataset: Dataset) -> Dataset:
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
    return dataclasses.replace(dataset, shift=shift, scale=scale, squash=squash)


def with_quantiles(dataset: Dataset) -> Dataset:
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
    return dataclasses.replace(dataset, quantiles=quantiles)


def make_dataset(
    name: str,
    splits: Mapping[str, Examples],
    class_names: tuple[str, ...],
    scale: float,
    hold_out: bool = True,
) -> Dataset:
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
    return Dataset(name, splits, class_names, scale=np.asarray(scale, np.float32))


def join_for_training(splits: Mapping[str, Examples]) -> dict[str, Examples]:
    """Joins all splits but the last one, of the test examples, for training, in order."""
    *parts, test = splits.values()
    return {"train": Examples(*map(np.concatenate, zip(*parts, strict=True))), "test": test}


def dataset_from_arrays(
    arrays: Any, name: str = "arrays", seed: int = 0, hold_out: bool = True, kind: str | None = None
) -> Dataset:
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
        kind: `labels` or `targets`: what y is if it is called so; None: by its values.

    Raises:
        InputError: The arrays cannot be used, or are too few to be split.
    """
    from ensemble.data.data_forms import recognise  # Only for data in such a form.
    from ensemble.data.own_arrays import check_arrays

    given = check_arrays(recognise(arrays, kind, name=name), name)
    return carved(given, name, Request(seed=seed, hold_out=hold_out))


def carved(given: Parts, name: str, request: Request) -> Dataset:
    """Makes a data set of checked examples: carves splits that are not given.

    Args:
        given: Examples.
        name: Name of the data set, also for messages.
        request: How they are asked for.

    Raises:
        InputError: There are too few examples to be split, or images cannot be decoded.
    """
    # Only for own data.
    from ensemble.data import own_arrays
    from ensemble.data.copies import digest_examples

    parts = dict(given.parts)
    splits = dict[str, Examples]()
    own_arrays.check_size([inputs for inputs, _ in parts.values()], name)
    for part, (inputs, targets) in given.parts.items():
        if isinstance(inputs, Stored) and inputs.is_encoded:
            parts[part] = Examples(inputs[:], targets)
    places = assign_splits(
        parts,
        name,
        request,
        lambda part: digest_examples(parts[part].inputs, parts[part].inputs.dtype),
    )
    for split, (part, rows) in places.items():
        inputs, targets = parts[part]
        is_stored = isinstance(inputs, Stored)
        taken: Any = OnDisk(inputs, np.arange(len(targets))[rows]) if is_stored else inputs[rows]
        splits[split] = Examples(taken, targets[rows])
    weights = None if given.weights is None else given.weights[places["train"][1]]
    raw = Dataset(name, splits, given.class_names, train_weights=weights)
    shift, scale = own_arrays.shift_and_scale(raw)
    own_arrays.warn_of_absent_classes(raw)
    return dataclasses.replace(raw, shift=shift, scale=scale)


def refuse_arrays(name: str, request: Request) -> Dataset:
    """Says that the arrays which a program gave to a run are only there.

    Raises:
        InputError: Always.
    """
    raise InputError(
        "its data were arrays or data frames, which a workdir does not keep; give the same ones "
        "again: ensemble.train(config, data=...), ensemble.evaluate(workdir, data=...) or, arrays "
        "written by numpy.savez, ensemble evaluate --data=FILE.npz"
    )
