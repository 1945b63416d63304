"""What a checkpoint claims to hold, compared with the memory, and with what a run expects.

TensorStore and Orbax would end the process where files or arrays are too large.
"""

import math
import os
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from ensemble.errors import UserError
from ensemble.storage.npz import memory_bytes
from ensemble.storage.paths import is_remote

_MAX_DESCRIPTION = 100_000_000
"""Bytes of a file of a checkpoint that holds no arrays; ours have some kilobytes."""


class TooLarge(ValueError):
    """A checkpoint that this machine cannot hold, be it sound or not."""


def check_listing(directory: epath.Path) -> None:
    """Refuses what Orbax reads of all checkpoints at once, where that is huge.

    Args:
        directory: of all checkpoints.

    Raises:
        UserError: it is.
    """
    if is_remote(directory):
        return
    for path in (*directory.glob("_*"), *directory.glob("*/_*")):
        if path.is_file() and path.stat().length > _MAX_DESCRIPTION:
            raise UserError(
                f"{path} has {path.stat().length:,} bytes, more than {_MAX_DESCRIPTION:,}; "
                "remove it, or choose another --workdir"
            )


def check_sizes(checkpoint: epath.Path) -> None:
    """Raises ValueError where files are larger than ours are.

    Args:
        checkpoint: the folder of one.
    """
    if is_remote(checkpoint):
        return
    limit = memory_bytes() // 2
    for folder, folders, names in os.walk(checkpoint):
        for name in (*names, *folders):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                raise ValueError(f"{name} is a link")
        for name in names:
            path = os.path.join(folder, name)
            size = os.stat(path).st_size
            most = limit if os.path.basename(folder) == "d" else _MAX_DESCRIPTION
            if size > most:
                raise TooLarge(f"{name} has {size:,} bytes, more than {most:,}")


def check_arrays(state: epath.Path, whole: bool) -> None:
    """Raises ValueError where memory cannot hold the arrays.

    Args:
        state: the folder of the arrays of a checkpoint.
        whole: whether all will be read, and not a piece at a time.
    """
    described = ocp.StandardCheckpointHandler().metadata(state)
    leaves = jax.tree.leaves(described.tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))
    sizes = [
        max(math.prod(leaf.shape) if whole else 1, math.prod(leaf.storage.chunk_shape))
        * np.dtype(leaf.dtype).itemsize
        for leaf in leaves
        if hasattr(leaf, "shape")
    ]
    claimed = sum(sizes) if whole else max(sizes, default=0)
    if claimed > memory_bytes() // 2:
        raise TooLarge(f"its arrays claim {claimed:,} bytes, more than this machine has for it")


def check_shapes(arrays: Any, template: Any, of_members: bool = False) -> None:
    """Refuses restored arrays that are not as a state has them, such as those of a forged file.

    Args:
        arrays: a tree.
        template: of the same structure, with shapes and types; keys are not looked at.
        of_members: whether the leading axes count members, which may be others.

    Raises:
        ValueError: they are not.
    """
    for leaf, one in zip(jax.tree.leaves(arrays), jax.tree.leaves(template), strict=True):
        is_key = jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key)
        if not is_key and np.shape(leaf)[of_members:] != one.shape[of_members:]:
            raise ValueError(f"an array has the shape {np.shape(leaf)}, not {one.shape}")
        if not is_key and _dtype(leaf) != one.dtype:
            raise ValueError(f"an array is of {_dtype(leaf)}, not {one.dtype}")


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
