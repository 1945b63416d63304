"""What steps have said and is not on disk yet: rows of scalars, and parameters that are kept.

They leave at the next line of metrics. A checkpoint between two lines holds them, so that a run
that was interrupted writes the same lines.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

Arrays = Mapping[str, np.ndarray]


class Period(NamedTuple):
    """What the steps `first` to `end` - 1 have said, on the host.

    Attributes:
        first: First step.
        end: Number after the last step.
        scalars: [steps, M] by name, or [steps, M, n].
        of_all: [steps] by name, of all members together.
        kept: Parameters [n, M, K, ...] that are to be kept; None: none.
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

    def append(self, count: int, scalars: Arrays, of_all: Arrays, kept: Any) -> None:
        """Adds the rows of `count` steps."""
        self.end += count
        self._parts.append((scalars, of_all, kept))

    def joined(self) -> Period:
        """Joins all rows."""
        kept = [kept for _, _, kept in self._parts if kept is not None]
        return Period(
            self.first,
            self.end,
            _joined([scalars for scalars, _, _ in self._parts if scalars]),
            _joined([of_all for _, of_all, _ in self._parts if of_all]),
            _joined(kept) if kept else None,
        )

    def take(self) -> Period:
        """Joins all rows, and forgets them."""
        period = self.joined()
        self.first, self._parts = self.end, []
        return period

    def saved(self) -> dict[str, Any]:
        """Returns what a checkpoint holds of the rows: a tree of arrays."""
        period = self.joined()
        return {k: v for k, v in period._asdict().items() if k not in ("first", "end") and v}

    @classmethod
    def restored(cls, first: int, end: int, saved: Mapping[str, Any]) -> "Rows":
        """Returns the rows of a checkpoint."""
        rows = cls(first)
        if end > first:
            rows.append(
                end - first, saved.get("scalars", {}), saved.get("of_all", {}), saved.get("kept")
            )
        return rows


def _joined(trees: list[Any]) -> Any:
    if not trees:
        return {}
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
