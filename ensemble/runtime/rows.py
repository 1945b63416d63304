"""What steps have said and is not on disk yet: rows of scalars, and parameters that are kept.

They leave at the next line of metrics. A checkpoint between two lines holds them, so that a run
that was interrupted writes the same lines.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

Arrays = Mapping[str, np.ndarray]
EMPTY: Arrays = {}


class Period(NamedTuple):
    """What the steps `first` to `end` - 1 have said, on the host.

    Attributes:
        first: First step.
        end: Number after the last step.
        scalars: [steps, M] by name, or [steps, M, n].
        of_all: [steps] by name, of all members together.
        kept: Parameters [n, M, K, ...] that are to be kept; empty: none.
    """

    first: int
    end: int
    scalars: Arrays
    of_all: Arrays
    kept: Any


class Rows:
    """Rows since the last line of metrics.

    Args:
        first: Step of the first row that is to come.

    Attributes:
        first: Step of the first row that is here.
        end: Step of the next row.
    """

    def __init__(self, first: int = 0):
        self.first = self.end = first
        self._parts: list[tuple[Arrays, Arrays, Any]] = []

    def append(
        self, count: int, scalars: Arrays = EMPTY, of_all: Arrays = EMPTY, kept: Any = EMPTY
    ) -> None:
        """Adds the rows of `count` steps."""
        self.end += count
        self._parts.append((scalars, of_all, kept))

    def take(self) -> Period:
        """Joins all rows, and forgets them."""
        period = Period(self.first, self.end, **self.saved())
        self.first = self.end
        self._parts = []
        return period

    def saved(self) -> dict[str, Any]:
        """Returns what a checkpoint holds of the rows: trees of arrays by kind."""
        columns = zip(*self._parts, strict=True) if self._parts else ((), (), ())
        return dict(zip(("scalars", "of_all", "kept"), map(_joined, columns), strict=True))


def _joined(trees: Any) -> Any:
    """Trees of arrays, of which some may be empty, joined along their first axis."""
    some = [tree for tree in trees if jax.tree.leaves(tree)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *some) if some else {}
