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


def fitted(saved: OnDisk, **more: Any) -> Fitted:
    """The live members of a checkpoint, by its parameters or the variables of their states.

    Where parameters are kept on disk, these predict.

    Args:
        saved: Of the run.
        **more: Fields of the result.

    Raises:
        InputError: They predict nothing yet.
    """
    if saved.counters["num_kept"]:
        return snapshots(saved)
    sets = saved.arrays.get(PARAMETERS)
    if sets is None:
        members = saved.arrays.get("members", {})
        flat = {
            name.removeprefix(VARIABLES): pytrees.at(leaf, np.s_[:, None])
            for name, leaf in members.items()
            if name.startswith(VARIABLES)
        }
        sets = unflatten_dict(flat, sep="/")
    if not sets:
        raise InputError(
            f"the members have taken {saved.counters['step']} steps, and predict nothing yet; "
            "wait for it"
        )
    rows = [*saved.live]
    member_of = np.repeat(np.arange(len(rows)), jax.tree.leaves(sets)[0].shape[1])
    is_split = bool(saved.counters["is_split"])
    return Fitted(pytrees.merged(pytrees.at(sets, rows)), member_of, is_split=is_split, **more)


def draws(saved: OnDisk) -> Fitted:
    """The draws of chains, or the snapshots of members.

    Raises:
        InputError: There are fewer than the checkpoint says, or none yet.
    """
    number = saved.counters["num_kept"]
    found = fitted_draws(saved.draws, saved.live, saved.config.get("max_draws_per_chain", number))
    there = len(saved.draws.kept)
    if there < number or not found.num_sets:
        raise InputError(
            f"{saved.draws.directory} has {there} draws of {number}: wait for the first, or, if "
            "files were removed, restore them or sample again in a new --workdir"
        )
    return found


def snapshots(saved: OnDisk) -> Fitted:
    """The same of members, whose sets are snapshots."""
    return dataclasses.replace(draws(saved), nouns=("member", "snapshot"))
