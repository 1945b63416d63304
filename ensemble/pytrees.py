"""Trees of arrays, such as parameters: their entries, rows and choices among them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

ByName = dict[str, Any]
"""Values by name."""
Function = Callable[..., Any]


def size(tree: Any) -> int:
    """Counts the entries of all arrays, or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def at(tree: Any, index: Any) -> Any:
    """Indexes every array: takes a row or some rows, or adds an axis where the index is None."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def merged(tree: Any) -> Any:
    """Joins the first two axes of every array."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def without(tree: Any, *names: str) -> ByName:
    """Returns all entries but some."""
    return {name: one for name, one in tree.items() if name not in names}


def where(condition: Any, new: Any, old: Any) -> Any:
    """Chooses between two trees, by a condition that suits all of their arrays."""
    return jax.tree.map(lambda one, other: jnp.where(condition, one, other), new, old)


def keys_of(key: Array, numbers: Any) -> Array:
    """Folds one key with numbers [N], each for itself."""
    return jax.vmap(random.fold_in, (None, 0))(key, numbers)


def standard_normal(rng_key: Array, shapes: Any) -> Any:
    """Draws a tree of independent standard normal variables."""
    leaves, structure = jax.tree.flatten(shapes)
    keys = random.split(rng_key, len(leaves))
    drawn = [random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)
