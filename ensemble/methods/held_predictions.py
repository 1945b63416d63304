"""What members predict of the rows that they hold out, and how wide their mixture must be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from ensemble.metrics import metrics_of

_SEARCHED = (0.4, 3.0)
"""Factors among which the best is searched."""
_NARROWEST, _WIDEST = 0.8, 1.5
_DEVIATION = 0.1
"""The prior deviation of the factor's logarithm, before any row is seen: few rows, or rows of which
nothing is known, hardly tell it."""


class HeldPredictions(NamedTuple):
    """Predictions of rows by the members that have not learned them.

    Attributes:
        rows: of each member, ascending.
        arrays: of each member's K estimators, [K, n, ...] by name.
        targets: [N] of all training rows.
        weights: [N], how much these count; None: all the same.
        likelihood: of the targets.
    """

    rows: Sequence[np.ndarray]
    arrays: Sequence[dict[str, np.ndarray]]
    targets: np.ndarray
    weights: np.ndarray | None
    likelihood: Any

    def mixtures(self, number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Rows [n] that so many members hold out, or more, and what the first of them predict.

        These are arrays [number * K, n, ...], of the estimators of one member after the other.
        """
        rows = np.concatenate(self.rows)
        order = np.argsort(rows, kind="stable")
        found, starts, counts = np.unique(rows[order], return_index=True, return_counts=True)
        found, starts = found[counts >= number], starts[counts >= number]
        places = order[starts + np.arange(number)[:, None]]
        whole = {
            name: np.concatenate([one[name] for one in self.arrays], axis=1)
            for name in self.arrays[0]
        }
        return found, {
            name: one[:, places].swapaxes(0, 1).reshape(len(one) * number, *one[0, places[0]].shape)
            for name, one in whole.items()
        }

    def losses(self) -> np.ndarray:
        """The loss [N] of each row by one member that holds it out, or two; else NaN."""
        losses = np.full(len(self.targets), np.nan)
        for number in (1, 2):
            rows, arrays = self.mixtures(number)
            if len(rows):
                p = self.likelihood.predictive(arrays)
                losses[rows] = metrics_of(p)[self.likelihood.loss].terms(p, self.targets[rows])
        return losses


def has_factor(held: HeldPredictions, num_members: int) -> bool:
    """Whether `fitted_factor` finds one."""
    if not held.likelihood.can_be_tempered or not held.rows:
        return False
    return num_members == 1 or len(held.mixtures(2)[0]) > 0


def fitted_factor(held: HeldPredictions, num_members: int) -> float | None:
    """How much wider the predictions of members must be for those of their mixture to be right.

    On rows that two members hold out, the factor of one and the factor of their mixture tell by
    extrapolation in 1 / M how the one of the whole mixture, which nobody holds rows out of, differs
    from that of one member, for which all rows that are held out speak. Of classes it is a
    temperature.

    Args:
        held: of the live members.
        num_members: M.

    Returns:
        None where no two of several members hold out a row, or predictions have no width.
    """
    if not has_factor(held, num_members):
        return None
    shrinkage = 1.0
    if num_members > 1:
        rows, pairs = held.mixtures(2)
        first = {name: one[: len(one) // 2] for name, one in pairs.items()}
        one, two = (_best(held, rows, arrays) ** 2 for arrays in (first, pairs))
        limit = 2 * two - one
        shrinkage = (limit + (one - limit) / num_members) / one
    square = shrinkage * _best(held, *held.mixtures(1)) ** 2
    return math.sqrt(np.clip(square, _NARROWEST**2, _WIDEST**2))


def _best(held: HeldPredictions, rows: np.ndarray, arrays: dict[str, np.ndarray]) -> float:
    """The most probable factor of mixtures [m, n, ...] of rows [n], with weights of mean 1."""
    targets, likelihood = held.targets[rows], held.likelihood
    weights = None if held.weights is None else held.weights[rows]
    tempered = jax.jit(likelihood.tempered)

    def loss(log_factor: float) -> float:
        wide = jax.tree.map(np.asarray, tempered(arrays, math.exp(log_factor)))
        nll = -likelihood.predictive(wide).log_prob(targets)
        mean = np.average(nll, weights=weights)
        return float(len(rows) * mean + (log_factor / _DEVIATION) ** 2 / 2)

    bounds = tuple(map(math.log, _SEARCHED))
    found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
    return math.exp(found.x)
