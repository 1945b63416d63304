"""What members predict of the rows that they hold out, and how wide their mixture must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """Predictions of N rows by M members, some of which have not learned them.

    Attributes:
        holds: [M, N] bool: whether a member lives and holds a row out.
        arrays: Predictions of each member's K estimators, [M, K, N, ...] by name.
        targets: [N].
        weights: [N], how much rows count; None: all the same.
        likelihood: Of the targets.
    """

    holds: np.ndarray
    arrays: Mapping[str, np.ndarray]
    targets: np.ndarray
    weights: np.ndarray | None
    likelihood: Any

    def mixtures(self, number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Rows [n] that so many members hold out, or more, and what the first of them predict.

        These are arrays [number * K, n, ...], of the estimators of one member after the other.
        """
        rows = np.flatnonzero(self.holds.sum(axis=0) >= number)
        members = np.argsort(~self.holds[:, rows], axis=0, kind="stable")[:number]
        found = {name: one[members, :, rows].swapaxes(1, 2) for name, one in self.arrays.items()}
        return rows, {name: np.concatenate(one) for name, one in found.items()}

    def losses(self) -> np.ndarray:
        """The loss [N] of each row by one member that holds it out, or two; else NaN."""
        losses = np.full(len(self.targets), np.nan)
        for number in (1, 2):
            rows, arrays = self.mixtures(number)
            if len(rows):
                p = self.likelihood.predictive(arrays)
                losses[rows] = metrics_of(p)[self.likelihood.loss].terms(p, self.targets[rows])
        return losses


def fitted_factor(held: HeldPredictions, num_members: int) -> float:
    """How much wider the predictions of members must be for those of their mixture to be right.

    On rows that two members hold out, the factor of one and the factor of their mixture tell by
    extrapolation in 1 / M how the one of the whole mixture, which nobody holds rows out of, differs
    from that of one member, for which all rows that are held out speak. Of classes it is a
    temperature.

    Args:
        held: Of the members.
        num_members: M.

    Returns:
        1 where no two of several members hold out a row, or predictions have no width.
    """
    rows, pairs = held.mixtures(min(num_members, 2))
    if not held.likelihood.can_be_tempered or not len(rows):
        return 1.0
    shrinkage = 1.0
    if num_members > 1:
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
