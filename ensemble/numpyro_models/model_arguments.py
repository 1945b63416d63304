"""The arguments of a model: arrays, which compiled programs take, and what else is given."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Arguments:
    """Arguments of a model whose arrays can be replaced.

    Args:
        args: of the model.
        kwargs: of the model.

    Attributes:
        leaves: of the trees of arguments.
        arrays: those that are arrays, by their number.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None):
        self.leaves, self._structure = jax.tree.flatten((args, dict(kwargs or {})))
        self.arrays: dict[str, Any] = {
            str(i): leaf
            for i, leaf in enumerate(self.leaves)
            if isinstance(leaf, np.ndarray | jax.Array)
        }

    def having(self, arrays: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and keyword arguments with other arrays; those not given are their own."""
        # Arrays of NumPy cannot be indexed by what is traced, as a scan does.
        of_jax = {
            i: jnp.asarray(one) if isinstance(one, np.ndarray) else one for i, one in arrays.items()
        }
        leaves = [of_jax.get(str(i), leaf) for i, leaf in enumerate(self.leaves)]
        args, kwargs = jax.tree.unflatten(self._structure, leaves)
        return args, kwargs

    @property
    def form(self) -> str:
        """How arguments are nested."""
        return str(self._structure)
