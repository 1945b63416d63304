"""What predicts, read from a workdir without the method that has trained it."""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from ensemble.draws.store import fitted_draws
from ensemble.errors import InputError
from ensemble.fitted import Fitted, OnDisk

_VARIABLES = "state/variables/"
PARAMETERS = "parameters"
"""The entry of a checkpoint with what predicts, where it is no part of the members' states."""


def fitted(saved: OnDisk) -> Fitted:
    """The members of a checkpoint, by the variables of their states."""
    members = saved.arrays["members"]
    names = [name for name in members if name.startswith(_VARIABLES)]
    flat = {name.removeprefix(_VARIABLES): members[name][:, None] for name in names}
    is_split = bool(saved.counters.get("is_split"))
    return flattened(unflatten_dict(flat, sep="/"), list(saved.live), is_split=is_split)


def parameters(saved: OnDisk, **more: Any) -> Fitted:
    """What a checkpoint has for predictions beside the members' states.

    Args:
        saved: Of the run.
        **more: Fields of the result.

    Raises:
        InputError: They predict nothing yet.
    """
    if PARAMETERS not in saved.arrays:
        raise InputError(
            f"the members have taken {saved.counters['step']} steps, and predict nothing yet; "
            "wait for it"
        )
    return flattened(saved.arrays[PARAMETERS], list(saved.live), **more)


def draws(saved: OnDisk) -> Fitted:
    """The draws of chains, or the snapshots of members.

    Raises:
        InputError: There are fewer than the checkpoint says, or none yet.
    """
    kept, number = saved.draws, saved.counters["num_kept"]
    if len(kept.kept) < number:
        raise InputError(
            f"{kept.directory} has {len(kept.kept)} draws of {number}: files were removed; "
            "restore them, or sample again in a new --workdir"
        )
    found = fitted_draws(kept, saved.live, saved.config.get("max_draws_per_chain", number))
    if not found.num_sets:
        raise InputError(f"{kept.directory} has no draw yet; wait for the first")
    return found


def snapshots(saved: OnDisk) -> Fitted:
    """The same of members, whose sets are snapshots."""
    return dataclasses.replace(draws(saved), nouns=("member", "snapshot"))


def flattened(sets: Any, rows: list[int], **more: Any) -> Fitted:
    """Sets [M, K, ...] of some members, member by member."""
    number = jax.tree.leaves(sets)[0].shape[1]
    flat = jax.tree.map(lambda leaf: leaf[rows].reshape(-1, *leaf.shape[2:]), sets)
    return Fitted(flat, np.repeat(np.arange(len(rows)), number), **more)
