"""The contract of data: splits of examples that are read by their indices.

Nothing outside `ensemble.data` knows where examples lie. The order in which they are read is ours,
a function of the seed (`ensemble.data.batches`). The targets of a split fit in memory; nothing says
that its inputs do, so they are read in batches. What truly needs a whole split in memory says so by
`in_memory`, which refuses what memory cannot hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ensemble.data.image_form import Size
from ensemble.errors import InputError
from ensemble.storage.memory import check_memory

if TYPE_CHECKING:
    from ensemble.data.tables.table import TableForm

Array = np.ndarray
Shape = tuple[int, ...]
_BLOCK_VALUES = 1 << 22
"""Values of a block: few enough that float64 copies of it take 32 MiB."""


class Examples(NamedTuple):
    """Some examples, or all of a split.

    Attributes:
        inputs: images `[N, H, W, C]`, uint8 or (own data that is float) float32, or feature vectors
            `[N, F]`; not normalised.
        targets: int32 `[N]`, classes 0..C-1, or float32, real values `[N]` or several `[N, D]`.
    """

    inputs: Any
    targets: Array


Splits = dict[str, Examples]
"""Examples of each split, in the order of `splitting.SPLITS`."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Examples as they are given, before they are split.

    Attributes:
        parts: Inputs and targets of each given split, or of `POOL` alone. Before they are checked
            inputs may be data frames or mappings of columns, and targets columns of these.
        is_table: Whether inputs are frames or mappings.
        kind: `labels` of classes or `targets`, numbers.
        class_names: One per class, in the order of the labels; None: none are given.
        weights: [N], how much each example of the pool, or of `train`, counts; None: all the same.
    """

    parts: Splits
    is_table: bool = False
    kind: str = "labels"
    class_names: Any = None
    weights: Any = None


class Strata(NamedTuple):
    """What the rows of a split are split by, so that scores can be told by it.

    Attributes:
        column: its name.
        kind: `group` or `time`.
        values: [N], of groups texts; of times float64, days since 1970 of dates, else the numbers.
    """

    column: str
    kind: str
    values: Array

    @property
    def groups(self) -> Array | None:
        """The group of each row [N]; None of times."""
        return self.values if self.kind == "group" else None

    def part(self, rows: Array) -> Strata:
        """The same of some rows."""
        return self._replace(values=self.values[rows])


@dataclass(frozen=True, eq=False)
class Source:
    """Data that members learn from and are scored on.

    Attributes:
        name: what `config.dataset` says.
        splits: examples of `train`, and of those of `validation`, `calibration` and `test` that
            there are, in this order. Inputs are arrays or `Stored`, targets arrays.
        class_names: one per class; None if targets are real values.
        shift: float32, broadcastable to an example; inputs are normalised by it on the device.
        scale: float32, likewise: `(inputs - shift) * scale`.
        train_weights: float32 [N], how much each training example counts in the loss; None: all the
            same.
        squash: float32, broadcastable to an example, 1 of features whose far values come nearer,
            else 0: see `ensemble.data.batches.normalise`; None: none do.
        quantiles: float32 [F, 65], of each feature as networks see it, over the training examples;
            None where the network asks for none.
        groups: what rows are split by, of each split that is by something.
        table: how a user's tables become inputs; None where inputs are given as they are.
        content: digests of the raw rows of each split of a table.
    """

    name: str
    splits: Splits
    class_names: tuple[str, ...] | None
    _: KW_ONLY
    shift: Any = 0.0
    scale: Any = 1.0
    train_weights: Array | None = None
    squash: Array | None = None
    quantiles: Array | None = None
    groups: Mapping[str, Strata] = field(default_factory=dict)
    table: TableForm | None = None
    content: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split."""
        return {name: len(split.targets) for name, split in self.splits.items()}

    def read(self, split: str, indices: Array | slice) -> Examples:
        """Reads examples of a split, in the order of the indices.

        Args:
            split: a key of `splits`.
            indices: any array of whole numbers from 0 to below the split's size, or a slice of
                consecutive ones. What is read may be a view, and is not to be written to.

        Returns:
            Inputs `[*indices.shape, *input_shape]` and targets `[*indices.shape]`.
        """
        return Examples(*(values[indices] for values in self.splits[split]))

    def targets(self, split: str) -> Array:
        """All targets [N] of a split."""
        return self.splits[split].targets

    @property
    def input_shape(self) -> Shape:
        """The shape of one example's inputs: (H, W, C) or (F,)."""
        return next(iter(self.splits.values())).inputs.shape[1:]

    @property
    def input_dtype(self) -> np.dtype:
        """The type of inputs as `read` returns them."""
        return next(iter(self.splits.values())).inputs.dtype

    def strata(self, split: str) -> Strata | None:
        """The groups or times of a split's rows [N]; None if rows are split at random."""
        return self.groups.get(split)

    def summary(self, split: str) -> Summary | None:
        """The summary of a split's inputs, if it is known without reading them."""
        return getattr(self.splits[split].inputs, "known", None)

    def value_range(self, split: str) -> tuple[float, float]:
        """The least and the largest value of a split's inputs."""
        known = self.summary(split)
        ends: Any = [known[1:]] if known else [(x.min(), x.max()) for x, _ in blocks(self, split)]
        lows, highs = zip(*ends, strict=True)
        return np.min(lows).item(), np.max(highs).item()

    @property
    def reads_ahead(self) -> bool:
        """Whether reading takes so long that training has threads read coming batches."""
        return self.summary("train") is not None  # Records have one.

    @property
    def has_pictures(self) -> bool:
        """Whether an example is an image (H, W, C)."""
        return len(self.input_shape) == 3

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when any split's content, or the form of a table, does."""
        found = fingerprint(self, self.sizes)
        if self.table is None:
            return found
        whole = json.dumps([found, self.table.content, dict(self.content)])
        return blake2b(whole.encode(), digest_size=8).hexdigest()

    @cached_property
    def test_fingerprint(self) -> str | None:
        """The same of the test split alone, whatever is made of its rows; None if there is none."""
        if self.table is None and "test" in self.sizes:
            return fingerprint(self, ["test"])
        return self.content.get("test")


class Request(NamedTuple):
    """How data are asked for.

    Attributes:
        data_dir: where TFDS sets lie; None for where they lie by default.
        seed: of the split of data that come without splits.
        hold_out: whether to hold validation and calibration data out of the training data.
        stops_early: whether a validation split is carved even if nothing is held out.
        only_test: whether only the test split is needed; a loader may leave out others.
        size: (height, width) in pixels to which pictures are resized; None leaves them as they are.
        target: of a table, the column to learn; empty where targets are given beside it.
        column_types: of a table, as of `ensemble.config.builtin.column_types`; None: by the values.
        split_by: of a table, `group:COLUMN`, `time:COLUMN`, or empty.
        na_values: of a table, texts that stand for a missing value.
        kind: `labels` or `targets`, what the likelihood takes.
        own: what the configuration of a task says of data that only it learns; None: nothing.
    """

    data_dir: str | None = None
    seed: int = 0
    hold_out: bool = True
    stops_early: bool = False
    only_test: bool = False
    size: Size | None = None
    target: str = ""
    column_types: str | None = None
    split_by: str = ""
    na_values: Sequence[str] | None = None
    kind: str = "labels"
    own: Any = None


class Summary(NamedTuple):
    """Properties of inputs that are known without reading them.

    Attributes:
        digests: uint64 [N], by `splitting.digest_examples`.
        low: Least value of each example, [N].
        high: Largest value of each example, [N].
    """

    digests: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Stored:
    """Inputs [N, ...] on disk, which are read by a slice or by indices when they are used.

    Attributes:
        rows: Places of the inputs in what is read, int [N].
        example: Shape of one.
        dtype: Type of the inputs as they are learned.
        read: Reads inputs [n, ...] of ascending places int [n].
        known: Their summary, if there is one.
        is_encoded: Whether they are images that are decoded once, before training.
    """

    rows: Array
    example: Shape
    dtype: np.dtype
    read: Callable[[Array], Array]
    known: Summary | None = None
    is_encoded: bool = False

    @property
    def shape(self) -> Shape:
        """(N, ...)."""
        return len(self.rows), *self.example

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: Array | slice) -> Stored:
        """Some of the inputs."""
        known = self.known and Summary(*(column[rows] for column in self.known))
        return replace(self, rows=self.rows[rows], known=known)

    def __getitem__(self, where: Any, /) -> Array:
        """Reads inputs by a slice or by indices of any shape."""
        chosen = self.rows[where]
        places = chosen.ravel()
        order = np.argsort(places, kind="stable")  # The disk is read forwards.
        inputs = np.empty((len(places), *self.example), self.dtype)
        for here in slices(len(order), self.example):
            inputs[order[here]] = self.read(places[order[here]])
        return inputs.reshape(*chosen.shape, *self.example)


class Sliced:
    """Inputs [N, ...] that a function reads or makes slice by slice."""

    def __init__(self, num_examples: int, read: Callable[[slice], Array]):
        self._num_examples = num_examples
        self._read = read

    def __len__(self) -> int:
        return self._num_examples

    def __getitem__(self, where: slice, /) -> Array:
        return self._read(where)


class MadeInputs(Sliced):
    """Inputs [N, ...] that are made piece by piece, and are never in memory together.

    Slices are to be asked for in order: one before the last one makes the inputs anew.

    Args:
        num_examples: N.
        make: yields them in order, in pieces of any size, and the same ones at every call.
    """

    def __init__(self, num_examples: int, make: Callable[[], Iterator[Array]]):
        super().__init__(num_examples, self._made)
        self._make, self._start = make, num_examples + 1  # Of those held: nothing is made yet.

    def _made(self, where: slice) -> Array:
        start, stop, _ = where.indices(len(self))
        if start < self._start:
            self._pieces = self._make()
            self._start = 0
            self._held = next(self._pieces)
        while self._start + len(self._held) < stop:
            self._held = np.concatenate([self._held, next(self._pieces)])
        self._held = self._held[start - self._start :]
        self._start = start
        return self._held[: stop - start]


AnyStored = Array | Stored
AnyInputs = AnyStored | MadeInputs
Inputs = AnyStored | Sliced
"""Inputs [N, ...] that are read in slices; arrays may be maps of files."""


def in_memory(source: Source, split: str) -> Examples:
    """All examples of a split at once, for what cannot do with batches.

    Raises:
        InputError: memory cannot hold them.
    """
    num_values = source.sizes[split] * math.prod(source.input_shape)
    check_memory(
        num_values * source.input_dtype.itemsize,
        f"the inputs of the split {split!r} of {source.name}, which are needed all at once,",
        "the number of examples, or choose what reads batches",
    )
    return source.read(split, slice(None))


def blocks(source: Source, split: str) -> Iterator[Examples]:
    """All examples of a split in order, in blocks that fit in memory."""
    for here in slices(source.sizes[split], source.input_shape):
        yield source.read(split, here)


def slices(number: int, input_shape: Shape) -> list[slice]:
    """Slices of N examples that fit in memory."""
    size = block_size(input_shape)
    return [slice(start, start + size) for start in range(0, number, size)]


def block_size(input_shape: Shape) -> int:
    """Examples of one block."""
    return max(1, _BLOCK_VALUES // math.prod(input_shape))


def check_same_data(
    where: str,
    learned: str,
    here: str,
    remedy: str = "give the data, config.seed and config.train_on_all of its run",
) -> None:
    """Refuses a run on other data.

    Args:
        where: The run, for the message.
        learned: Fingerprint of what it has learned.
        here: Fingerprint of the data that it must have learned.
        remedy: What to do.

    Raises:
        InputError: The fingerprints differ.
    """
    if learned != here:
        raise InputError(
            f"{where} has learned other data than are here, or other splits of them; {remedy}"
        )


def fingerprint(source: Source, splits: Iterable[str]) -> str:
    """16 hex digits that depend on the content of splits, wherever it lies."""
    digest = blake2b(digest_size=8)

    def update(values: Array) -> None:
        digest.update(np.ascontiguousarray(values).data)

    for split in splits:
        shape = (source.sizes[split], *source.input_shape)
        digest.update(f"{split} {source.input_dtype} {shape};".encode())
        known = source.summary(split)
        for values in [known.digests] if known else (one.inputs for one in blocks(source, split)):
            update(values)
        targets = source.targets(split)
        digest.update(f"{split} {targets.dtype} {targets.shape};".encode())
        update(targets)
        if split == "train" and source.train_weights is not None:
            update(source.train_weights)
    return digest.hexdigest()
