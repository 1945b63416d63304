"""Bootstrap intervals over examples (Efron 1979): what another test set might have said.

The members stay as they are: an interval says how much a statistic would move with another test set
of this size, not with another training run. Scores of one predictor have intervals by formula, in
`score_intervals.py`; these are for what has none. Biased statistics such as the ECE are more so in
resamples: their intervals do not hold.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

Statistic = Callable[[NDArray], Mapping[str, float]]
"""Maps counts `[N]`, how often each example was drawn, to named values."""

Intervals = dict[str, tuple[float, float]]

NUM_RESAMPLES = 1000


def intervals(
    statistic: Statistic,
    *num_examples: int,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> Intervals:
    """Percentile intervals of whatever can be computed from a resample.

    Args:
        statistic: of the counts `[N]`.
        *num_examples: of each stratum: with several, every one keeps its size, and the counts of
            all come one after the other.
        num_resamples: number of test sets drawn with replacement.
        seed: of the draws: equal seeds and sizes give equal resamples, so differences are paired.
        level: probability that the interval should cover.

    Returns:
        (low, high) by name, in the units of the statistic.
    """
    if num_resamples < 1 or not 0 < level < 1:
        raise ValueError(
            f"num_resamples={num_resamples} must be positive and level={level} between 0 and 1"
        )
    draws = [statistic(counts) for counts in _resamples(num_examples, num_resamples, seed)]
    names = list(draws[0])
    values = np.array([[draw[name] for name in names] for draw in draws])
    # Order statistics, because interpolating between infinite scores would give NaN.
    tails = (1 - level) / 2, (1 + level) / 2
    low, high = np.quantile(values, tails, axis=0, method="inverted_cdf")
    return dict(zip(names, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def _resamples(sizes: tuple[int, ...], num_resamples: int, seed: int) -> Iterator[NDArray]:
    rng = np.random.default_rng(seed)
    for _ in range(num_resamples):
        parts = [np.bincount(rng.integers(n, size=n), minlength=n) for n in sizes]
        yield np.concatenate(parts)
