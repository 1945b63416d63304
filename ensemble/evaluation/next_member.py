"""Is one more member worth its cost? Scores against the number of members, and what comes next."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import logsumexp

from ensemble import metrics
from ensemble.evaluation.class_predictions import LabelledPredictions

MAX_SUBSETS = 70
"""Subsets scored per size: all of them up to 8 members, a seeded sample beyond, but always all
of one member and of all members but one."""

BAND = (0.05, 0.95)
SMALL_SHARE = 0.01
"""Whoever gains less than this share of the NLL may stop."""

SMALL_GAIN = 0.01
"""The same in nats, where the NLL is that of a density and has no shares."""

FEWEST = 3
"""Members from which anything can be told of others: two differ in one way only."""
OVER = "members, on these test examples"
"""What the interval of the gain is over."""

Subset = tuple[int, ...]


def score_sizes(predictions: LabelledPredictions) -> dict[str, Any]:
    """Scores ensembles of 1..M members, and what one more is expected to bring.

    Args:
        predictions: of M live members.

    Returns:
        `sizes` 1..M; `num_subsets` scored of each; by score `mean`, `low` and `high` [M] over the
        subsets (the band from 5% to 95%; the single subset of all M has none); `expected_gain` of
        one more member by score, positive for better, None where it cannot be said;
        `gain_interval`, which holds the gain in NLL, nats, on these test examples, of 95% of single
        further members, None where it cannot be said; `gain_over`, what it is over; `sentence`.
    """
    labels, mixtures = predictions.targets, Mixtures(predictions.log_probs)
    rows = np.arange(len(labels))
    return sizes_section(
        len(predictions.log_probs),
        len(labels),
        lambda subset: metrics.scores(mixtures.mean(subset), labels),
        lambda subset: mixtures.mean(subset)[rows, labels],
    )


def sizes_section(
    num_members: int,
    num_examples: int,
    scores: Callable[[Subset], Mapping[str, float]],
    log_prob: Callable[[Subset], NDArray],
    small: float | None = None,
) -> dict[str, Any]:
    """The same for any predictions.

    Args:
        num_members: M.
        num_examples: N.
        scores: of the mixture of some members, `nll` among them; lower is better, but of accuracy.
        log_prob: [N] of the targets under this mixture, nats.
        small: who gains less nats than this may stop; None: a share of the NLL, which must then be
            that of probabilities.

    Returns:
        As `score_sizes`.
    """
    by_size = [
        [scores(subset) for subset in _subsets(num_members, size)]
        for size in range(1, num_members + 1)
    ]
    names = list(by_size[0][0])
    curves = {
        name: [np.array([one[name] for one in scored]) for scored in by_size] for name in names
    }
    mean = {name: [float(np.mean(each)) for each in curve] for name, curve in curves.items()}
    gain = {name: _expected_gain(mean[name], "accuracy" not in name) for name in names}
    can_tell = gain["nll"] is not None and num_examples > 1
    interval = _gain_interval(log_prob, num_members) if can_tell else None
    return {
        "sizes": list(range(1, num_members + 1)),
        "num_subsets": [len(scored) for scored in by_size],
        "mean": mean,
        "low": {name: _quantiles(curve, BAND[0]) for name, curve in curves.items()},
        "high": {name: _quantiles(curve, BAND[1]) for name, curve in curves.items()},
        "expected_gain": gain,
        "gain_interval": interval,
        "gain_over": OVER,
        "sentence": _sentence(num_members, gain["nll"], interval, mean["nll"][-1], small),
    }


class Mixtures:
    """Mean predictions of many subsets of members, without a logarithm for each.

    Args:
        log_probs: [M, N, C].
    """

    def __init__(self, log_probs: NDArray):
        self._log_probs = np.asarray(log_probs, np.float64)
        top = self._log_probs.max(axis=0)
        self._top = np.where(np.isneginf(top), 0.0, top)
        self._scaled = np.exp(self._log_probs - self._top)  # In 0..1; some member has 1.

    def mean(self, subset: tuple[int, ...]) -> NDArray:
        """Log of the mean probabilities [N, C] of some members."""
        total = sum(self._scaled[k] for k in subset)
        with np.errstate(divide="ignore"):
            mean = np.log(total) + self._top - np.log(len(subset))
        lost = np.asarray(total == 0)  # Impossible, or far below what another member says.
        if lost.any():
            parts = self._log_probs[list(subset)][:, lost]
            mean[lost] = logsumexp(parts, axis=0) - np.log(len(subset))
        return mean


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


def _gain_interval(log_prob: Callable[[Subset], NDArray], num_members: int) -> tuple[float, float]:
    """95% prediction interval of the gain in NLL, nats, by one single further member.

    Each member's gain over the others, scaled to the next, is a draw of the gain of a member on
    these examples. Their mean is never negative, by Jensen's inequality; a single one may be. The
    interval is that of a further draw, by Student's t on M - 1 degrees of freedom.
    """
    whole = log_prob(tuple(range(num_members)))
    less = [log_prob(subset) for subset in _subsets(num_members, num_members - 1)]
    gains = np.array([np.mean(whole - one) for one in less]) * _next_over_last(num_members)
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
