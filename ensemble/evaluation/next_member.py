"""Is one more member worth its cost? Scores against the number of members, and what comes next."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.scoring.score import Score, scores_of
from ensemble.scoring.sections import terms_of
from ensemble.scoring.view import NumberView, View

MAX_SUBSETS = 70
"""Subsets scored per size: all of them up to 8 members, a seeded sample beyond, but always all
of one member and of all members but one."""

BAND = (0.05, 0.95)
SMALL_SHARE = 0.01
"""Whoever gains less than this share of the NLL may stop."""


FEWEST = 3
"""Members from which anything can be told of others: two differ in one way only."""
OVER = "members, on these test examples"
"""What the interval of the gain is over."""

Subset = tuple[int, ...]


def score_sizes(view: View) -> dict[str, Any]:
    """Scores ensembles of 1..M members, and what one more is expected to bring.

    Args:
        view: of M live members.

    Returns:
        `sizes` 1..M; `num_subsets` scored of each; by score `mean`, `low` and `high` [M] over the
        subsets (the band from 5% to 95%; the single subset of all M has none); `expected_gain` of
        one more member by score, positive for better, None where it cannot be said;
        `gain_interval`, which holds the gain in NLL, nats, on these test examples, of 95% of single
        further members, None where it cannot be said; `gain_over`, what it is over; `small_gain`,
        nats: who gains less may stop; None: `SMALL_SHARE` of the NLL. Empty where there is no NLL,
        and of members with weights, who were chosen and not drawn.
    """
    num_members, number = view.num_members, view.num_rows
    scores = {name: one for name, one in scores_of(view).items() if name in view.sizes}
    if not scores or view.weights is not None:
        return {}
    subsets = [list(_subsets(num_members, size)) for size in range(1, num_members + 1)]
    curves = {
        name: [np.array(list(map(value, some))) for some in subsets]
        for name, value in _values(view, scores).items()
    }
    mean = {name: [float(np.mean(each)) for each in curve] for name, curve in curves.items()}
    gain = {name: _expected_gain(mean[name], scores[name].better == "lower") for name in scores}
    can_tell = gain["nll"] is not None and number > 1
    interval = _gain_interval(view) if can_tell else None
    return {
        "sizes": list(range(1, num_members + 1)),
        "num_subsets": list(map(len, subsets)),
        "mean": mean,
        "low": {name: _quantiles(curve, BAND[0]) for name, curve in curves.items()},
        "high": {name: _quantiles(curve, BAND[1]) for name, curve in curves.items()},
        "expected_gain": gain,
        "gain_interval": interval,
        "gain_over": OVER,
        "small_gain": view.small_gain,
    }


def _values(view: View, scores: dict[str, Score]) -> dict[str, Callable[[Subset], float]]:
    """What scores a subset of the members, by score."""

    def directly(score: Score) -> Callable[[Subset], float]:
        return lambda subset: score.value(view.members(subset))

    found = {name: directly(one) for name, one in scores.items()}
    if isinstance(view, NumberView) and "crps" in scores:
        found["crps"] = _of_pairs(view, found["crps"])
    return found


def _of_pairs(view: View, value: Callable[[Subset], float]) -> Callable[[Subset], float]:
    """The CRPS of mixtures of members, by that of each member and each pair of them.

    With weights w of the members it is sum_i w_i c_i - sum_{i < j} w_i w_j d_ij, where d_ij is the
    integral of the squared difference of two CDFs. So what takes long, the CRPS of a mixture, is
    needed for pairs alone.

    Args:
        view: of M members, of equal weight.
        value: the CRPS of some members.

    Returns:
        The CRPS of some members, in ascending order.
    """
    num_members = view.num_members
    single = np.array([value((k,)) for k in range(num_members)])
    distances = np.zeros((num_members, num_members))
    for pair in itertools.combinations(range(num_members), 2):
        distances[pair] = 4 * (single[list(pair)].mean() - value(pair))

    def of(subset: Subset) -> float:
        apart = distances[np.ix_(subset, subset)].sum() / len(subset) ** 2
        return float(single[list(subset)].mean() - apart)

    return of


def _subsets(num_members: int, size: int) -> Iterator[Subset]:
    if size in (1, num_members - 1) or math.comb(num_members, size) <= MAX_SUBSETS:
        return itertools.combinations(range(num_members), size)
    rng = np.random.default_rng([num_members, size])
    chosen: dict[tuple[int, ...], None] = {}  # A set that keeps its order.
    while len(chosen) < MAX_SUBSETS:
        chosen[tuple(sorted(rng.choice(num_members, size, replace=False).tolist()))] = None
    return iter(chosen)


def _expected_gain(means: list[float], lower_is_better: bool) -> float | None:
    """What member M + 1 is expected to bring, from what the last one brought.

    A score that goes on as a + b / size falls by b / (M (M - 1)) with member M, and by
    b / (M (M + 1)) with the next. So does the Brier score of exchangeable members exactly, by the
    variance of a mean, and other scores nearly.
    """
    if len(means) < FEWEST or not np.isfinite(means[-2:]).all():
        return None
    change = (means[-1] - means[-2]) * _next_over_last(len(means))
    return -change if lower_is_better else change


def _next_over_last(num_members: int) -> float:
    """The gain by member M + 1 as a share of the gain by member M."""
    return (num_members - 1) / (num_members + 1)


def _gain_interval(view: View) -> tuple[float, float]:
    """95% prediction interval of the gain in NLL, nats, by one single further member.

    Each member's gain over the others, scaled to the next, is a draw of the gain of a member on
    these examples. Their mean is never negative, by Jensen's inequality; a single one may be. The
    interval is that of a further draw, by Student's t on M - 1 degrees of freedom.
    """
    num_members = view.num_members
    whole = terms_of(view, "nll")
    less = [
        terms_of(view.members(subset), "nll") for subset in _subsets(num_members, num_members - 1)
    ]
    gains = np.array([np.mean(one - whole) for one in less]) * _next_over_last(num_members)
    error = float(gains.std(ddof=1)) * math.sqrt(1 + 1 / num_members)
    half_width = float(scipy.stats.t.ppf(0.975, num_members - 1)) * error
    return float(gains.mean()) - half_width, float(gains.mean()) + half_width


def _quantiles(curve: list[NDArray], level: float) -> list[float]:
    """The quantile of each size's values; an infinite one stays infinite."""
    return [float(np.quantile(values, level, method="inverted_cdf")) for values in curve]
