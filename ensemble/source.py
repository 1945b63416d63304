"""The contract of data: splits of examples that are read by their indices.

`ensemble.sources` has the implementations: arrays in memory, image sets, folders, memory maps.
Nothing outside that folder knows where examples lie. The order in which they are read is ours, a
function of the seed (`ensemble.sources.batches`). The targets of a split fit in memory; nothing
says that its inputs do, so they are read in batches. What truly needs a whole split in memory says
so by `in_memory`, which refuses what memory cannot hold.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ensemble.storage.memory import check_memory

if TYPE_CHECKING:
    import jax

_BLOCK_VALUES = 1 << 22
"""Values of a block: few enough that float64 copies of it take 32 MiB."""


class Examples(NamedTuple):
    """Some examples, or all of a split.

    Attributes:
        inputs: images `[N, H, W, C]`, uint8 or (own data that is float) float32, or feature vectors
            `[N, F]`; not normalised.
        targets: int32 `[N]`, classes 0..C-1, or float32, real values `[N]` or several `[N, D]`, or
            rows of `ensemble.target_rows`.
    """

    inputs: np.ndarray
    targets: np.ndarray


class Strata(NamedTuple):
    """What the rows of a split are split by, so that scores can be told by it.

    Attributes:
        column: its name.
        kind: `group` or `time`.
        values: [N], of groups texts; of times float64, days since 1970 of dates, else the numbers.
        has_dates: whether times are dates.
        season: rows of a season, of times; 0: none.
    """

    column: str
    kind: str
    values: np.ndarray
    has_dates: bool = False
    season: int = 0

    @property
    def lags(self) -> dict[str, int]:
        """How many rows before a row a simple forecast finds its value; none of groups."""
        lags = {"last_value": 1, "last_season": self.season}
        return {name: lag for name, lag in lags.items() if lag and self.kind == "time"}

    @property
    def groups(self) -> np.ndarray | None:
        """The group of each row [N]; None of times."""
        return self.values if self.kind == "group" else None

    def at(self, rows: np.ndarray | None) -> Strata:
        """Takes some rows; None: all."""
        return self if rows is None else self._replace(values=self.values[rows])


class Feature(NamedTuple):
    """What one input of a table is.

    Attributes:
        name: such as `size`, `town=here` or `size is missing`.
        column: the number of its column among those that become inputs, from 0.
        moves: whether it is the whole of a column's value, so that it can move by itself.
        shift: the column's value is the input times `scale` plus `shift`.
        scale: see `shift`.
        is_number: whether it is a number of the table, and not made of a date or a category.
        is_flag: whether it says that the column's value is missing.
    """

    name: str
    column: int
    moves: bool = False
    shift: float = 0.0
    scale: float = 1.0
    is_number: bool = False
    is_flag: bool = False


class Table(Protocol):
    """How tables with named columns become inputs."""

    @property
    def content(self) -> dict[str, Any]:
        """JSON-ready; `ensemble.storage.table_schema` has its form."""

    def encode(self, data: Any) -> np.ndarray:
        """Makes inputs [N, F] of a data frame, a mapping of columns, rows, or all columns [N, C].

        Raises:
            UserError: a column is not there, or holds what it cannot.
        """

    @property
    def features(self) -> Sequence[Feature]:
        """What each input [F] is."""

    def rows(self, inputs: np.ndarray) -> list[dict[str, str]]:
        """The inverse of `encode`: texts by the columns that became inputs [N, F]."""

    def lines(self) -> list[str]:
        """What was made of each column, a line each."""


class Source(Protocol):
    """Data that members learn from and are scored on.

    Attributes:
        name: what `config.dataset` says.
        class_names: one per class, if the targets are classes; a likelihood reads it.
        shift: float32, broadcastable to an example; inputs are normalised by it on the device.
        scale: float32, likewise: `(inputs - shift) * scale`.
        squash: float32, likewise, 1 of features whose far values come nearer, else 0: see
            `ensemble.sources.batches.normalise`; None: none do.
        quantiles: float32 [F, 65], of each feature as networks see it, over the training examples;
            None where the network asks for none.
        train_weights: float32 [N], how much each training example counts in the loss; None: all the
            same.
        table: how a user's tables become inputs; None where inputs are given as they are.
        reads_ahead: whether reading takes so long that training has threads read coming batches.
    """

    name: str
    class_names: tuple[str, ...] | None
    shift: np.ndarray
    scale: np.ndarray
    squash: np.ndarray | None = None
    quantiles: np.ndarray | None = None
    train_weights: np.ndarray | None = None
    table: Table | None = None
    reads_ahead: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example's inputs: (H, W, C) or (F,)."""

    @property
    def input_dtype(self) -> np.dtype:
        """The type of inputs as `read` returns them."""

    @property
    def target_dtype(self) -> np.dtype:
        """The type of targets: int32 of classes, float32 of real values, or that of rows."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Examples of each split: `train` first, then those of the others that there are."""

    def read(self, split: str, indices: np.ndarray | slice) -> Examples:
        """Reads examples of a split, in the order of the indices.

        Args:
            split: a key of `sizes`.
            indices: any array of whole numbers from 0 to below the split's size, or a slice of
                consecutive ones. What is read may be a view, and is not to be written to.

        Returns:
            Inputs `[*indices.shape, *input_shape]` and targets `[*indices.shape]`.
        """

    def targets(self, split: str) -> np.ndarray:
        """All targets [N] of a split."""

    def strata(self, split: str) -> Strata | None:
        """The groups or times of a split's rows [N]; None where rows are split at random."""
        return None

    def value_range(self, split: str) -> tuple[float, float]:
        """The least and the largest value of a split's inputs."""
        found = [(block.inputs.min(), block.inputs.max()) for block in blocks(self, split)]
        low, high = zip(*found, strict=True)
        return min(low).item(), max(high).item()

    def hashed(self, split: str) -> Iterator[np.ndarray]:
        """What fingerprints are of: a split's inputs in order, or what differs where they do."""
        return (block.inputs for block in blocks(self, split))

    @property
    def has_pictures(self) -> bool:
        """Whether an example is an image (H, W, C)."""
        return len(self.input_shape) == 3

    # Where inputs are features that a frozen backbone makes of others.

    @property
    def raw(self) -> Source:
        """The source of the inputs as users have them; mostly this one."""
        return self

    def of_raw(self, inputs: Inputs) -> Inputs:
        """Makes inputs as `read` returns them of raw ones [N, ...], in slices."""
        return inputs

    def of_raw_traced(self, inputs: jax.Array) -> jax.Array:
        """The same of a batch [B, ...] in a program of JAX.

        Raises:
            UserError: what makes them can be in none.
        """
        return inputs

    def describe_features(self) -> dict[str, Any]:
        """What a program that predicts must know beside what it knows of `raw`, JSON-ready."""
        return {}

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change when any split's content does."""
        return fingerprint(self, self.sizes)

    @functools.cached_property
    def test_fingerprint(self) -> str | None:
        """The same of the test split alone; None where there is none."""
        return fingerprint(self, ["test"]) if "test" in self.sizes else None


class TableKeys(NamedTuple):
    """What the configuration says of a table.

    Attributes:
        target: the column to learn; empty where targets are given beside the table.
        columns: kinds of columns, as of `ensemble.sources.tables.column_kinds.parse_columns`.
        split: as of `ensemble.sources.tables.row_splits.parse_split`; empty: at random.
        kind: `labels` or `targets`, what the likelihood takes; None: by the target's values.
        date_format: of texts that are dates, beside ISO 8601, as `strptime` has it; or empty.
        na_values: as of `ensemble.sources.tables.column_kinds.parse_na_values`.
        season: rows of a season, where rows are split by time; 0: none.
    """

    target: str = ""
    columns: Any = None
    split: str = ""
    kind: str | None = None
    date_format: str = ""
    na_values: Any = None
    season: int = 0

    @property
    def keys(self) -> list[str]:
        """The keys of the configuration that are set."""
        names = ("target", "columns", "split", "date_format", "na_values", "season")
        return [f"config.{key}" for key in names if getattr(self, key)]


NO_TABLE = TableKeys()
"""Nothing is said of a table."""


class Request(NamedTuple):
    """How data are asked for.

    Attributes:
        data_dir: where TFDS sets lie; None for where they lie by default.
        seed: of the split of data that come without splits.
        hold_out: whether to hold validation and calibration data out of the training data.
        only_test: whether only the test split is needed; a loader may leave out others.
        size: (height, width) in pixels to which pictures are resized; None leaves them as they are.
        copies_together: whether splits are carved so that equal inputs come into one. Only
            `ensemble.storage.old` asks for the other way, in which runs before 1.0 were split.
        table: what is said of a table.
        own: what the configuration of a task says of data that only it learns; None: nothing.
    """

    data_dir: str | None = None
    seed: int = 0
    hold_out: bool = True
    only_test: bool = False
    size: tuple[int, int] | None = None
    copies_together: bool = True
    table: TableKeys = NO_TABLE
    own: Any = None


class Inputs(Protocol):
    """Inputs [N, ...] that are read in slices: an array, `SplitInputs` or `MadeInputs`."""

    def __len__(self) -> int:
        """N."""

    def __getitem__(self, where: slice, /) -> np.ndarray:
        """Some of them."""


class Stored(Protocol):
    """Inputs [N, ...] that are read by their indices: an array, a map of a file, records."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, ...)."""

    @property
    def dtype(self) -> np.dtype:
        """The type of the inputs as they are read."""

    def __len__(self) -> int:
        """N."""

    def __getitem__(self, where: slice | np.ndarray, /) -> np.ndarray:
        """Some of them, by a slice or by indices [n]."""


@dataclasses.dataclass(frozen=True)
class SplitInputs:
    """The inputs of a split, read from the source as they are asked for."""

    source: Source
    split: str

    def __len__(self) -> int:
        return self.source.sizes[self.split]

    def __getitem__(self, where: slice, /) -> np.ndarray:
        return self.source.read(self.split, where).inputs


class MadeInputs:
    """Inputs [N, ...] that are made piece by piece, and are never in memory together.

    Slices are to be asked for in order: one before the last one makes the inputs anew.

    Args:
        num_examples: N.
        make: yields them in order, in pieces of any size, and the same ones at every call.
    """

    def __init__(self, num_examples: int, make: Callable[[], Iterator[np.ndarray]]):
        self._num_examples, self._make = num_examples, make
        self._pieces: Iterator[np.ndarray] | None = None
        self._held: list[np.ndarray] = []
        self._start = self._end = 0  # Of what is held.

    def __len__(self) -> int:
        return self._num_examples

    def __getitem__(self, where: slice, /) -> np.ndarray:
        start, stop, _ = where.indices(self._num_examples)
        if self._pieces is None or start < self._start:
            self._pieces, self._held, self._start, self._end = self._make(), [], 0, 0
        while self._end < max(stop, 1):
            self._held.append(next(self._pieces))
            self._end += len(self._held[-1])
            while self._start + len(self._held[0]) <= start and len(self._held) > 1:
                self._start += len(self._held.pop(0))
        return np.concatenate(self._held)[start - self._start : stop - self._start]

    def through(self, function: Callable[[np.ndarray], np.ndarray]) -> MadeInputs:
        """What a function makes of every piece."""
        return MadeInputs(self._num_examples, lambda: map(function, self._make()))


AnyInputs = np.ndarray | SplitInputs | MadeInputs


def in_memory(source: Source, split: str) -> Examples:
    """All examples of a split at once, for what cannot do with batches.

    Raises:
        UserError: memory cannot hold them.
    """
    check_in_memory(source, split)
    return source.read(split, slice(None))


def check_in_memory(source: Source, split: str) -> None:
    """Refuses to have all inputs of a split, or as many others, in memory at once.

    Raises:
        UserError: memory cannot hold them.
    """
    num_values = source.sizes[split] * math.prod(source.input_shape)
    check_memory(
        num_values * source.input_dtype.itemsize,
        f"the inputs of the split {split!r} of {source.name}, which are needed all at once,",
        "the number of examples, or choose what reads batches",
    )


def blocks(source: Source, split: str) -> Iterator[Examples]:
    """All examples of a split in order, in blocks that fit in memory."""
    size = block_size(source.input_shape)
    for start in range(0, source.sizes[split], size):
        yield source.read(split, slice(start, start + size))


def block_size(input_shape: tuple[int, ...]) -> int:
    """Examples of one block."""
    return max(1, _BLOCK_VALUES // math.prod(input_shape))


def fingerprint(source: Source, splits: Iterable[str]) -> str:
    """16 hex digits that depend on the content of splits, wherever it lies."""
    digest = hashlib.blake2b(digest_size=8)
    for split in splits:
        shape = (source.sizes[split], *source.input_shape)
        digest.update(f"{split} {source.input_dtype} {shape};".encode())
        for inputs in source.hashed(split):
            digest.update(np.ascontiguousarray(inputs).data)
        targets = source.targets(split)
        digest.update(f"{split} {targets.dtype} {targets.shape};".encode())
        digest.update(np.ascontiguousarray(targets).data)
        if split == "train" and source.train_weights is not None:
            digest.update(np.ascontiguousarray(source.train_weights).data)
    return digest.hexdigest()
