"""How far the distributions are that two ensembles predict for numbers."""

import numpy as np
from numpy.typing import NDArray

from ensemble.evaluation import halves
from ensemble.number_likelihood import NumberDistribution

_NUM_POINTS = 200
_TAIL = 5e-4
"""Probability beyond either end of where distributions are compared."""


def distances(
    ours: NumberDistribution, num_ours: int, theirs: NumberDistribution, num_theirs: int
) -> dict[str, float | dict[str, float] | None]:
    """Wasserstein distances of order 1, in standard deviations of what the reference predicts.

    It is the integral of the absolute difference of two CDFs, here over the values that either has
    with a probability of 99.9%.

    Args:
        ours: what one ensemble says.
        num_ours: M, its members.
        theirs: the reference.
        num_theirs: its members.

    Returns:
        `wasserstein`: mean over examples of that between the two; `halves`: of two halves of the
        reference; `wasserstein_by_chance`, as `halves.by_chance` says.
    """
    ends = np.array([_TAIL, 1 - _TAIL])
    both = np.stack([one.quantiles(ends) for one in (ours, theirs)])
    grid = np.linspace(both[:, 0].min(axis=0), both[:, 1].max(axis=0), _NUM_POINTS)  # [G, N]
    weights = [halves.split_weights(one) for one in (num_ours, num_theirs)]
    of_two = np.zeros(grid.shape[1])
    of_halves = [np.zeros((len(one), grid.shape[1])) for one in weights]
    for values in grid:
        cdfs = [one.member_cdfs(values) for one in (ours, theirs)]
        of_two += np.abs(cdfs[0].mean(axis=0) - cdfs[1].mean(axis=0))
        for total, pairs, cdf in zip(of_halves, weights, cdfs, strict=True):
            total += np.abs((pairs[:, 0] - pairs[:, 1]) @ cdf)
    _, noise, disagreement = theirs.moments()
    width = (grid[1] - grid[0]) / np.sqrt(noise + disagreement)
    apart, reference = (_mean(width * one) for one in of_halves)
    return {
        "wasserstein": _mean(width * of_two),
        "halves": None if reference is None else {"wasserstein": reference},
        "wasserstein_by_chance": halves.by_chance(apart, num_ours, reference, num_theirs),
    }


def _mean(values: NDArray) -> float | None:
    return float(values.mean()) if values.size else None
