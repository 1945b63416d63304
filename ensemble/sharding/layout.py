"""The parameters of a posterior lie whole on every shard, or row by row by their data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ensemble.sharding import transfer


class Layout(NamedTuple):
    """Which parameters are split over the shards of the data.

    Their rows are padded to a number that the shards divide. Padded rows are zero, and stay so:
    the likelihood does not know them, a prior has no slope there, and they get no momentum.

    Attributes:
        names: of the parameters that are split, by their first axis; the others are whole.
        num_rows: of each of them, the same for all.
        num_places: the same with the padding.
    """

    names: tuple[str, ...] = ()
    num_rows: int = 0
    num_places: int = 0

    def is_split(self, path: Sequence[Any]) -> bool:
        """Whether the leaf at a path of `jax.tree_util` belongs to a split parameter."""
        return any(str(getattr(key, "key", "")) in self.names for key in path)

    def pad(self, tree: Any, axis: int = 0) -> Any:
        """Pads the split leaves of a tree with zeros, from `num_rows` on that axis."""
        return self._map(lambda leaf: transfer.pad(leaf, self.num_places, axis), tree)

    def strip(self, tree: Any, axis: int = 0) -> Any:
        """The inverse of `pad`."""
        return self._map(lambda leaf: transfer.strip(leaf, self.num_rows, axis), tree)

    def mask(self, tree: Any) -> Any:
        """Marks what is no padding in every leaf: [num_places] if it is split, else [], true."""
        rows = np.arange(self.num_places) < self.num_rows
        whole = np.ones((), bool)
        return jax.tree_util.tree_map_with_path(
            lambda path, _: rows if self.is_split(path) else whole, tree
        )

    def _map(self, function: Any, tree: Any) -> Any:
        if self.num_places == self.num_rows:
            return tree
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: function(leaf) if self.is_split(path) else leaf, tree
        )
