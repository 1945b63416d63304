"""Arrays on disk, of which a process reads what it needs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """An array on disk.

    Attributes:
        shape: Shape of the whole.
        dtype: Type of the whole.
        read: From slices of all axes to what lies there.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[tuple[slice, ...]], np.ndarray]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Reads all of it."""
        found = self.read((slice(None),) * len(self.shape))
        return found if dtype is None else found.astype(dtype)

    def put(self, rows: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
        """Puts some rows on the devices; each process reads what lies on its own.

        Args:
            rows: Ascending, int [R].
            sharding: Of [R, ...].
        """

        def part(index: Any) -> np.ndarray:
            own = rows[index[0]]
            found = self.read((slice(own[0], own[-1] + 1), *index[1:]))
            return found[own - own[0]]

        return jax.make_array_from_callback((len(rows), *self.shape[1:]), sharding, part)
