"""The source that most data are: arrays in host memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble.errors import UserError
from ensemble.network_keys import NUM_QUANTILES
from ensemble.source import Examples, Request, Source
from ensemble.sources.batches import normalise
from ensemble.sources.splitting import assign_splits, stratified_split

if TYPE_CHECKING:
    from ensemble.sources.own_arrays import OwnData

_NORMAL_QUARTILES = 1.349
"""Standard deviations of a normal distribution between its quartiles."""
_HEAVY = 1.25
"""Standard deviations by quartiles, of a feature with heavy tails."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(Source):
    """A data set whose splits are arrays in host memory.

    Attributes:
        name: as `load_dataset` was given it.
        splits: `train`, and those of `validation`, `calibration` and `test` that there are, in
            this order.
        class_names: one per class; None where targets are real values.
        shift: float32, broadcastable to an example; see `normalise`.
        scale: float32, broadcastable to an example; see `normalise`.
        train_weights: see `Source`.
        squash: see `Source`.
        quantiles: see `Source`.
    """

    name: str
    splits: Mapping[str, Examples]
    class_names: tuple[str, ...] | None
    shift: np.ndarray
    scale: np.ndarray
    train_weights: np.ndarray | None = dataclasses.field(default=None, kw_only=True)
    squash: np.ndarray | None = dataclasses.field(default=None, kw_only=True)
    quantiles: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example's inputs: (H, W, C) or (F,)."""
        return self._any_split.inputs.shape[1:]

    @property
    def input_dtype(self) -> np.dtype:
        """The type of inputs."""
        return self._any_split.inputs.dtype

    @property
    def target_dtype(self) -> np.dtype:
        """The type of targets."""
        return self._any_split.targets.dtype

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split."""
        return {name: len(split.targets) for name, split in self.splits.items()}

    def read(self, split: str, indices: np.ndarray | slice) -> Examples:
        """Takes examples out of the arrays of a split; a slice is a view."""
        inputs, targets = self.splits[split]
        return Examples(inputs[indices], targets[indices])

    def targets(self, split: str) -> np.ndarray:
        """All targets [N] of a split."""
        return self.splits[split].targets

    @property
    def _any_split(self) -> Examples:
        return next(iter(self.splits.values()))


def with_robust_scaling(dataset: Dataset) -> Dataset:
    """The same feature vectors, normalised such that few far values decide nothing.

    A feature whose standard deviation is far more than its quartiles say has its median as shift, a
    scale by its quartiles, or by its deviation where these are alike, and is squashed. Others are
    standardised, and a feature of two values becomes 0 and 1.

    Args:
        dataset: any; pictures stay as they are.
    """
    if len(dataset.input_shape) != 1:
        return dataset
    inputs = dataset.splits["train"].inputs
    shift, scale, squash = (np.zeros(inputs.shape[1], np.float32) for _ in range(3))
    for i in range(inputs.shape[1]):
        column = inputs[:, i].astype(np.float64)
        low, first, middle, third, high = np.quantile(column, [0, 0.25, 0.5, 0.75, 1])
        deviation, by_quartiles = column.std(), (third - first) / _NORMAL_QUARTILES
        if ((column == low) | (column == high)).all():
            shift[i], scale[i] = low, 1 / ((high - low) or 1)
        elif deviation > _HEAVY * by_quartiles:
            shift[i], scale[i], squash[i] = middle, 1 / (by_quartiles or deviation), 1
        else:
            shift[i], scale[i] = column.mean(), 1 / deviation
    return dataclasses.replace(dataset, shift=shift, scale=scale, squash=squash)


def with_quantiles(dataset: Dataset) -> Dataset:
    """The same with quantiles of the features [F] of training examples, as networks see them.

    Args:
        dataset: any; other inputs have none.
    """
    if len(dataset.input_shape) != 1:
        return dataset
    rows = dataset.splits["train"].inputs
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
        name: of the data set.
        splits: the last one is the test split.
        class_names: one per class.
        scale: what the images are multiplied by.
        hold_out: if not, all but the test split is joined for training, in order.
    """
    if not hold_out:
        *parts, test = splits.values()
        train = Examples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        splits = {"train": train, "test": test}
    return Dataset(
        name, splits, class_names, np.zeros((), np.float32), np.asarray(scale, np.float32)
    )


def divide(examples: Examples, sizes: Mapping[str, int], seed: int) -> dict[str, Examples]:
    """Splits examples at random, every split with its share of every class."""
    parts = stratified_split(examples.targets, [*sizes.values()], seed)
    return {
        split: Examples(examples.inputs[part], examples.targets[part])
        for split, part in zip(sizes, parts, strict=True)
    }


def dataset_from_arrays(
    arrays: Any,
    name: str = "arrays",
    seed: int = 0,
    hold_out: bool = True,
    kind: str | None = None,
    copies_together: bool = True,
) -> Dataset:
    """Makes a data set of the user's own arrays.

    Args:
        arrays: `inputs` and `labels`, to be split 70 / 10 / 10 / 10; or `train_inputs` and
            `train_labels` with any of `validation_*`, `calibration_*` and `test_*`, where each
            split that is not given is carved from the training data, a tenth of it. Optionally
            `class_names`. Inputs are feature vectors `[N, F]` or images `[N, H, W]` or
            `[N, H, W, C]`; `[N, C, H, W]` are turned if they can be nothing else. Labels `[N]` are
            numbers or texts. `targets` in place of `labels` are numbers.
            `ensemble.sources.data_forms` has the other forms, such as `(X, y)`.
        name: of the data set, also for messages.
        seed: of the carving, which is stratified: every split has its share of every class.
        hold_out: whether to carve at all; if not, splits that are not given do not exist.
        kind: `labels` or `targets`: what y is where it is called so; None: by its values.
        copies_together: whether equal inputs are carved into one split.

    Raises:
        UserError: if the arrays cannot be used, or are too few to be split.
    """
    from ensemble.sources.data_forms import recognise  # Where somebody has data in such a form.

    request = Request(seed=seed, hold_out=hold_out, copies_together=copies_together)
    return own_dataset(recognise(arrays, kind).arrays, name, request)


def own_dataset(arrays: Mapping[str, Any], name: str, request: Request) -> Dataset:
    """Makes a data set of arrays by the keys of `own_arrays`.

    Args:
        arrays: as said.
        name: of the data set, also for messages.
        request: how they are asked for.

    Raises:
        UserError: as `dataset_from_arrays`.
    """
    from ensemble.sources import own_arrays  # What checks them, where somebody has such.

    given = own_arrays.check_arrays(arrays, name)
    inputs = {part: given.convert(values[:]) for part, values in given.inputs.items()}
    splits = {}
    digests = given.digests if request.copies_together else None
    places = assign_splits(given.targets, name, request.seed, request.hold_out, digests)
    for split, (part, rows) in places.items():
        whole = Examples(inputs[part], given.targets[part])
        splits[split] = whole if rows is None else Examples(*(array[rows] for array in whole))
    zero, one = np.zeros((), np.float32), np.ones((), np.float32)
    raw = Dataset(name, splits, given.class_names, zero, one)
    shift, scale = own_arrays.shift_and_scale(raw)
    own_arrays.warn_of_absent_classes(raw)
    weights = given.train_weights(places["train"].indices)
    return dataclasses.replace(raw, shift=shift, scale=scale, train_weights=weights)


def refuse_arrays(name: str, request: Request) -> Dataset:
    """Says that the arrays which a program gave to a run are only there.

    Raises:
        UserError: always.
    """
    raise UserError(
        "its data were arrays or data frames, which a workdir does not keep; give the same ones "
        "again: ensemble.train(config, data=...), ensemble.evaluate(workdir, data=...) or, arrays "
        "written by numpy.savez, ensemble evaluate --data=FILE.npz"
    )


def load_npz(name: str, request: Request) -> Dataset:
    """Makes a data set of the arrays of an npz file."""
    return own_dataset(_read_npz(name), name, request)


def given_npz(name: str, request: Request) -> OwnData:
    """The examples of an npz file, as they are given."""
    from ensemble.sources import own_arrays  # As in `own_dataset`.

    return own_arrays.check_arrays(_read_npz(name), name)


def _read_npz(name: str) -> Mapping[str, Any]:
    """Arrays of an npz file by the keys of `own_arrays`."""
    # As in `own_dataset`.
    from ensemble.sources import own_arrays
    from ensemble.sources.data_forms import recognise

    return recognise(own_arrays.read_npz(name.partition(":")[2])).arrays
