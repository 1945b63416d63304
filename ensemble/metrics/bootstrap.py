"""Bootstrap intervals over examples (Efron 1979): what another test set might have said.

The members stay as they are: an interval says how much a score would move with another test set of
this size, not with another training run. ECE is biased upwards in small samples and more so in
resamples, so its interval can lie above the estimate.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble.metrics.mixture import ensemble_log_probs
from ensemble.metrics.scores import terms

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


def bootstrap_interval(
    log_probs: ArrayLike,
    labels: ArrayLike,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
) -> Intervals:
    """Intervals of an ensemble's `scores`.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.
        num_resamples: number of test sets drawn with replacement.
        seed: seed of the draws.
        level: probability that the interval should cover.

    Returns:
        (low, high) by name of score.
    """
    one = terms(ensemble_log_probs(log_probs), labels)
    return intervals(
        lambda counts: one.resampled(counts).scores(),
        len(one.order),
        num_resamples=num_resamples,
        seed=seed,
        level=level,
    )


def mean_intervals(values: Mapping[str, ArrayLike], **kwargs: int | float) -> Intervals:
    """Intervals of means over the examples.

    Args:
        values: `[N]` by name.
        **kwargs: as of `intervals`.
    """
    names, matrix = list(values), np.stack([np.asarray(each, float) for each in values.values()])

    def means(counts: NDArray) -> dict[str, float]:
        return dict(zip(names, matrix @ counts / counts.sum(), strict=True))

    return intervals(means, matrix.shape[1], **kwargs)  # type: ignore[arg-type]
