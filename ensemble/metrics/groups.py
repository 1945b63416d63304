"""Intervals of what is known of groups of examples only, such as a difference of two summaries."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.analytic_intervals import Interval, mean_interval

NUM_GROUPS = 20


def group_intervals(
    means: Callable[[NDArray], dict[str, float]], num_examples: int
) -> dict[str, Interval]:
    """95% intervals of means over examples, by the spread of the means of groups (batch means).

    Args:
        means: from indices of examples to means over them, by name; NaN: there is none of them.
        num_examples: N, which are divided at random into twenty groups.

    Returns:
        (low, high) by name; infinite ends with fewer than two groups.
    """
    order = np.random.default_rng(0).permutation(num_examples)
    groups = np.array_split(order, min(NUM_GROUPS, num_examples))
    found = [means(np.sort(group)) for group in groups]
    intervals: dict[str, Interval] = {}
    for name in found[0]:
        values = np.array([one[name] for one in found])
        values = values[~np.isnan(values)]
        is_enough = len(values) > 1
        intervals[name] = mean_interval(values) if is_enough else (-math.inf, math.inf)
    return intervals
