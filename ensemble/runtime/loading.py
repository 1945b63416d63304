"""What predicts, by a checkpoint and the draws of a run, without the method that has trained it."""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from ensemble import pytrees
from ensemble.draws.store import fitted_draws
from ensemble.errors import InputError
from ensemble.fitted import Fitted, OnDisk

VARIABLES = "state/variables/"
"""Beginning of the names of members' variables in a checkpoint."""
PARAMETERS = "parameters"
"""The entry of a checkpoint with what predicts, where it is no part of the members' states."""


def fitted(saved: OnDisk) -> Fitted:
    """The members of a checkpoint, by what it has for predictions or the variables of their states.

    Where parameters are kept on disk, these predict.
    """
    if saved.counters["num_kept"]:
        return snapshots(saved)
    if PARAMETERS in saved.arrays:
        return parameters(saved)
    members = saved.arrays["members"]
    names = [name for name in members if name.startswith(VARIABLES)]
    flat = {name.removeprefix(VARIABLES): members[name][:, None] for name in names}
    return _flattened(saved, unflatten_dict(flat, sep="/"))


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
    return _flattened(saved, saved.arrays[PARAMETERS], **more)


def draws(saved: OnDisk) -> Fitted:
    """The draws of chains, or the snapshots of members.

    Raises:
        InputError: There are fewer than the checkpoint says, or none yet.
    """
    kept = saved.draws
    number = saved.counters["num_kept"]
    found = fitted_draws(kept, saved.live, saved.config.get("max_draws_per_chain", number))
    if len(kept.kept) < number or not found.num_sets:
        raise InputError(
            f"{kept.directory} has {len(kept.kept)} draws of {number}: wait for the first, or, if "
            "files were removed, restore them or sample again in a new --workdir"
        )
    return found


def snapshots(saved: OnDisk) -> Fitted:
    """The same of members, whose sets are snapshots."""
    return dataclasses.replace(draws(saved), nouns=("member", "snapshot"))


def _flattened(saved: OnDisk, sets: Any, **more: Any) -> Fitted:
    """Sets [M, K, ...] of the live members, member by member."""
    rows = [*saved.live]
    number = jax.tree.leaves(sets)[0].shape[1]
    member_of = np.repeat(np.arange(len(rows)), number)
    is_split = bool(saved.counters["is_split"])
    return Fitted(pytrees.merged(pytrees.at(sets, rows)), member_of, is_split=is_split, **more)
