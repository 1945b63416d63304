"""Cells of methods.py that plain networks come first of: chains that start there, and students."""

import functools
import math
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

Settings = dict[str, Any]
TEACHERS = 2
"""Networks that a student learns from."""
_AWAY = 1000
MOST_DRAWS = 20
"""Networks by which a chain predicts."""
_RATES = (3e-4, 1e-1)
"""Learning rates of chains, which AdamW's, `methods_cells.RATES`, are stretched to."""


def chain_rate(rate: float, rates: tuple[float, float]) -> float:
    """The learning rate of chains that is as far in `_RATES` as a rate is in others."""
    share = math.log(rate / rates[0]) / math.log(rates[1] / rates[0])
    return float(_RATES[0] * (_RATES[1] / _RATES[0]) ** share)


def chain_keys(rate: float, steps: int) -> Settings:
    """The configuration of chains: a quarter of the steps leaves no draws, then 20 at most.

    Args:
        rate: as of `chain_rate`.
        steps: that they take.
    """
    draws = min(MOST_DRAWS, max(1, steps // 2))
    apart = max(1, (steps - steps // 4) // draws)
    return {
        "num_chains": 1,
        "log_every_steps": steps,
        "learning_rate": rate,
        "sgmcmc.schedule": "cyclical",
        "sgmcmc.num_burn_in": max(0, steps - draws * apart),
        "sgmcmc.num_samples": draws,
        "sgmcmc.steps_per_draw": apart,
    }


def timed_keys(steps: int) -> Settings:
    """Keys of chains whose draws, which predict the validation split, come after all else."""
    return {
        "sgmcmc.num_burn_in": steps - 1,
        "sgmcmc.num_samples": 1,
        "sgmcmc.steps_per_draw": 1,
    }


def chains(
    method: Any, rng_key: Any, params: Any, splits: Sequence[str]
) -> tuple[Any, Mapping[str, Any], int]:
    """Moves chains from networks to their end.

    Args:
        method: of chains, one for each network.
        rng_key: of their noise.
        params: [C, ...] of the networks.
        splits: that are predicted.

    Returns:
        The last state, what the draws say by split, and the bytes of all that predict.
    """
    from etils import epath

    from ensemble.draws.store import Draws

    state = method.init(rng_key)
    state = state._replace(members=method._engine.init(rng_key, {"params": params}))
    with tempfile.TemporaryDirectory() as folder:
        draws = Draws(epath.Path(folder) / "draws")
        while not method.finished(state):
            state, info = method.advance(state)
            method.record(info, draws)
        said = {split: method.predict_split(state, split, draws) for split in splits}
        chains_of = range(len(method.status(state)))
        return state, said, method.fitted(state, chains_of, draws).num_bytes


class Teachers:
    """Ensembles that students learn from, each trained where it is first asked for.

    Args:
        values: configuration of one plain network, flat.
        arrays: rows by split.
    """

    def __init__(self, values: Mapping[str, Any], arrays: Any):
        self._values, self._arrays = dict(values), arrays
        self._folder = tempfile.TemporaryDirectory()

    @functools.lru_cache(maxsize=64)  # noqa: B019  # There is one for each data set.
    def of(self, rate: float, decay: float, steps: int, seed: int) -> str:
        """The workdir of an ensemble of plain networks that have trained so long.

        They start elsewhere than a student of the same seed.
        """
        import ensemble

        path = pathlib.Path(self._folder.name) / str(len(os.listdir(self._folder.name)))
        own = {"learning_rate": rate, "weight_decay": decay, "num_steps": steps, "num_epochs": 0}
        values = {**self._values, **own, "ensemble_size": TEACHERS, "seed": _AWAY + seed}
        ensemble.train(values, self._arrays, str(path), show_progress=False)
        return str(path)
