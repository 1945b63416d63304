"""Is one more member worth its cost? Scores against the number of members, and what comes next."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ensemble.scoring.score import scores_of
from ensemble.scoring.sections import terms_of
from ensemble.scoring.view import View

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
        further members, None where it cannot be said; `gain_over`, what it is over; `sentence`.
        Where there is no NLL, the sentence alone, and it is empty.
    """
    num_members, number = view.num_members, view.num_rows
    scores = {name: one for name, one in scores_of(view).items() if name in view.sizes}
    if not scores:
        return {"sentence": ""}
    by_size = [
        [
            {name: one.value(some) for name, one in scores.items()}
            for some in map(view.members, _subsets(num_members, size))
        ]
        for size in range(1, num_members + 1)
    ]
    curves = {
        name: [np.array([one[name] for one in scored]) for scored in by_size] for name in scores
    }
    mean = {name: [float(np.mean(each)) for each in curve] for name, curve in curves.items()}
    gain = {name: _expected_gain(mean[name], scores[name].better == "lower") for name in scores}
    can_tell = gain["nll"] is not None and number > 1
    interval = _gain_interval(view) if can_tell else None
    return {
        "sizes": list(range(1, num_members + 1)),
        "num_subsets": [len(scored) for scored in by_size],
        "mean": mean,
        "low": {name: _quantiles(curve, BAND[0]) for name, curve in curves.items()},
        "high": {name: _quantiles(curve, BAND[1]) for name, curve in curves.items()},
        "expected_gain": gain,
        "gain_interval": interval,
        "gain_over": OVER,
        "sentence": _sentence(num_members, gain["nll"], interval, mean["nll"][-1], view.small_gain),
    }


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
    """Of each size's values; an infinite one stays infinite."""
    return [float(np.quantile(values, level, method="inverted_cdf")) for values in curve]


def _sentence(
    num_members: int,
    gain: float | None,
    interval: tuple[float, float] | None,
    nll: float,
    small: float | None = None,
) -> str:
    if num_members == 1:
        return f"One member says nothing of what a second would bring: train at least {FEWEST}."
    if num_members < FEWEST:
        return "The gain of a third member cannot be known from two: train one more to be told."
    if gain is None or interval is None:
        return (
            "What one more member would bring cannot be said: there is one test example, or with "
            "fewer members the NLL is infinite."
        )
    low, high = interval
    who = f"Member {num_members + 1}"
    share = f" ({gain / nll:.1%})" if nll > 0 and small is None else ""  # Of a density it is none.
    what = f"{plain(gain)} nats{share}"
    least = f"{SMALL_SHARE:.0%}" if small is None else f"{plain(small)} nats"
    spread = f"[{plain(low)}, {plain(high)}] for a single further member on these examples"
    if high < (SMALL_SHARE * nll if small is None else small):
        return f"{who} would lower the NLL by less than {least} ({spread}): stop here."
    if low > 0:
        return f"{who} would lower the NLL by {what} on average ({spread}): more members pay."
    return (
        f"{who} would lower the NLL by {what} on average, but whether a single one would "
        f"cannot be told ({spread})."
    )


def plain(value: float, digits: int = 2) -> str:
    """A number with so many significant digits, never in powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
