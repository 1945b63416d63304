"""State of a run on disk, read without the method that has trained it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from ensemble import pytrees
from ensemble.config import predicts, trait
from ensemble.config.pieces import resolve
from ensemble.draws.store import Draws
from ensemble.errors import InputError
from ensemble.fitted import Fitted
from ensemble.pytrees import ByName
from ensemble.runtime.algorithm import FAILURES
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.workdir import Workdir, purpose_of

VARIABLES = "state/variables/"
"""Beginning of the names of members' variables in a checkpoint."""
PARAMETERS = "parameters"
"""The entry of a checkpoint with what predicts, where it is no part of the members' states."""


@dataclass(frozen=True, eq=False)
class Saved:
    """State of a run, from its newest checkpoint.

    Attributes:
        work: Directory of the run.
        config: Its configuration.
        description: Description of its data, by `Task.describe`.
        arrays: Arrays of the checkpoint.
        counters: Numbers of the checkpoint.
        live: Numbers of the members that have not failed.
        draws: Parameters that the run has kept; none if its method keeps none.
        failed_members: Numbers of the members that failed, and why.
    """

    work: Workdir
    config: ByName
    description: ByName
    arrays: ByName
    counters: ByName
    live: Sequence[int]
    draws: Draws
    failed_members: Any = None

    @cached_property
    def fitted(self) -> Any:
        """Parameters of the live members, a `Fitted`.

        Raises:
            InputError: There are none yet, or a file of the run is missing or damaged.
        """
        with self.work.checkpoint_errors():
            return resolve(trait("method", self.config["method"], "result"))(self)

    @cached_property
    def task(self) -> Any:
        """Task of the run, without its data.

        Raises:
            InputError: The network cannot be loaded, or has other parameters.
        """
        make = resolve(trait("task", self.config["task"], "restore"))
        return make(self.config, self.description, self.fitted.sets["params"])


def restore(work: Workdir) -> Saved:
    """Reads the newest checkpoint of a workdir; changes nothing there.

    Args:
        work: Directory of the run.

    Raises:
        InputError: There is no run, checkpoint or live member; or the workdir is a selection.
    """
    config = config_of(work)
    if work.selected():
        raise InputError(f"{work.path} selects members of several runs; name one of these runs")
    if not predicts(config):
        raise InputError(f"{work.path} has sampled a density, which predicts nothing")
    found = Checkpointer(work.checkpoints).read_latest()
    if found is None:
        raise InputError(f"{work.path} has no checkpoint yet; wait for the first")
    arrays, meta = found
    silent = work.read_report().get("failed_members", {})
    with work.checkpoint_errors():
        counters = meta["counters"]
        status = enumerate(arrays["members"]["status"][: counters["num_members"]])
        became = {k: silent.get(str(k), FAILURES.get(one)) for k, one in status}
        failed = {k: one for k, one in became.items() if one}
        live = [k for k in became if k not in failed]
        if not live:
            raise InputError(
                f"{work.path} has no live member; train again with another configuration"
            )
        data = meta["dataset"]
        return Saved(work, config, data, arrays, counters, live, Draws(work.draws), failed)


def config_of(work: Workdir) -> ByName:
    """Configuration of the run in a workdir.

    Raises:
        InputError: There is no config.json, or one of another format.
    """
    if config := work.read_config():
        return config
    if purpose := purpose_of(work):
        raise InputError(
            f"{work.path} holds a {purpose}, with nothing chosen yet. Name one of its runs in "
            f"{work.path}/runs, or resume it"
        )
    raise InputError(f"{work.path} is not a workdir: it has no config.json")


def fitted(saved: Saved, **more: Any) -> Fitted:
    """The live members, by what they keep on disk, their parameters or their states' variables.

    Args:
        saved: State of the run.
        **more: Fields of the result.

    Raises:
        InputError: They predict nothing yet, or draws are missing.
    """
    number, there = saved.counters["num_kept"], len(saved.draws.kept)
    if there < number:
        raise InputError(
            f"{saved.draws.directory} has {there} draws of {number}: files were removed; restore "
            "them, or sample again in a new --workdir"
        )
    if there:
        most = saved.config.get("max_draws_per_chain") or number
        return fitted_draws(saved.draws, saved.live, most)
    sets = saved.arrays.get(PARAMETERS)
    if sets is None:
        flat = {
            name.removeprefix(VARIABLES): pytrees.at(leaf, np.s_[:, None])
            for name, leaf in saved.arrays.get("members", {}).items()
            if name.startswith(VARIABLES)
        }
        sets = unflatten_dict(flat, sep="/")
    if not sets:
        raise InputError(
            f"the members have taken {saved.counters['step']} steps, and predict nothing yet; "
            "wait for it"
        )
    sets = pytrees.at(sets, [*saved.live])
    member_of = np.repeat(np.arange(len(saved.live)), jax.tree.leaves(sets)[0].shape[1])
    is_split = bool(saved.counters["is_split"])
    return Fitted(pytrees.merged(sets), member_of, is_split=is_split, **more)


def fitted_draws(kept: Draws, live: Sequence[int], most: int) -> Fitted:
    """Reads the parameters of the draws that predict, chain by chain.

    Args:
        kept: Draws of the run.
        live: Numbers of the chains to take them from.
        most: Most draws of a chain, as of `Draws.predicting`.
    """
    positions, numbers = kept.positions(kept.predicting(most))
    flat = pytrees.merged(pytrees.at(positions, list(live)))
    return Fitted(flat, np.repeat(np.arange(len(live)), len(numbers)))
