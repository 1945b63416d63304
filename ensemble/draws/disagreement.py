"""How chains disagree: whether each stays in a mode of its own, or all of them crawl."""

from collections.abc import Mapping

import numpy as np

from ensemble.draws import diagnostics

_STATIONARY = 1.1
"""R-hat of a chain's halves, below which it is taken to stay where it is."""
_MIN_DRAWS = 20


def modes_apart(scalars: Mapping[str, np.ndarray]) -> tuple[str, list[list[int]]] | None:
    """Looks for a scalar whose values lie apart between chains that each stay where they are.

    Args:
        scalars: [C, T] each, by name, the most telling first.

    Returns:
        The first such scalar, and the chains of each mode by their places in C; None if there is
        none.
    """
    for name, values in scalars.items():
        values = np.asarray(values, np.float64)
        if values.shape[1] < _MIN_DRAWS or not np.isfinite(values).all():
            continue
        groups = _groups(values)
        if len(groups) > 1 and all(_is_stationary(one) for one in values):
            return name, groups
    return None


def _groups(values: np.ndarray) -> list[list[int]]:
    """Chains of [C, T] that lie together: between groups, the middle 90% do not overlap."""
    low, high = np.quantile(values, [0.05, 0.95], axis=1)
    groups: list[list[int]] = []
    reached = -np.inf
    for k in np.argsort(low, kind="stable"):
        if not groups or low[k] > reached:
            groups.append([])
        groups[-1].append(int(k))
        reached = max(reached, high[k])
    return [sorted(one) for one in groups]


def _is_stationary(chain: np.ndarray) -> bool:
    if np.all(chain == chain[0]):
        return False  # It is stuck, which is something else.
    return diagnostics.summarise({"": chain[None]}).rhat_max < _STATIONARY
