"""How chains disagree: whether each stays in a mode of its own, or all of them crawl."""

from collections.abc import Mapping

import numpy as np

from ensemble.draws.diagnostics import summarise

_STATIONARY = 1.1
"""R-hat of a chain's halves, below which it is taken to stay where it is."""


def modes_apart(scalars: Mapping[str, np.ndarray]) -> tuple[str, list[list[int]]] | None:
    """Looks for a scalar whose values lie apart between chains that each stay where they are.

    Args:
        scalars: [C, T] each, by name, the most telling first.

    Returns:
        The first such scalar, and the chains of each mode by their places in C; None if there is
        none.
    """
    for name, values in scalars.items():
        groups = _groups(values) if np.isfinite(values).all() else []
        if len(groups) > 1 and all(_is_stationary(one) for one in values):
            return name, groups
    return None


def _groups(values: np.ndarray) -> list[list[int]]:
    """Chains of [C, T] that lie together: between groups, the middle 90% do not overlap."""
    low, high = np.quantile(values, [0.05, 0.95], axis=1)
    order = np.argsort(low, kind="stable")
    begins = low[order][1:] > np.maximum.accumulate(high[order])[:-1]
    return [sorted(one.tolist()) for one in np.split(order, np.flatnonzero(begins) + 1)]


def _is_stationary(chain: np.ndarray) -> bool:
    """Whether a chain stays where it is; of one that is stuck, R-hat is not known."""
    return summarise({"": chain[None]}).rhat_max < _STATIONARY
