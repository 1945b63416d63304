"""How chains disagree: whether each stays in a mode of its own, or all of them crawl."""

from collections.abc import Mapping

import numpy as np

from ensemble.draws.diagnostics import split_rhat

_STATIONARY = 1.1
"""R-hat of a chain's halves, below which it is taken to stay where it is."""


def modes_apart(scalars: Mapping[str, np.ndarray]) -> tuple[str, list[list[int]]] | None:
    """Finds a scalar whose values lie apart between chains that each stay where they are.

    Args:
        scalars: Scalars [C, T] by name, the most telling first.

    Returns:
        The first such scalar, and the chains of each mode by their places in C; None if there is
        none.
    """
    for name, values in scalars.items():
        if not np.isfinite(values).all():
            continue
        # Between modes, the middle 90% do not overlap.
        low, high = np.quantile(values, [0.05, 0.95], axis=1)
        order = np.argsort(low, kind="stable")
        begins = low[order][1:] > np.maximum.accumulate(high[order])[:-1]
        groups = [sorted(one.tolist()) for one in np.split(order, np.flatnonzero(begins) + 1)]
        if len(groups) > 1 and all(split_rhat(chain[None]) < _STATIONARY for chain in values):
            return name, groups
    return None
