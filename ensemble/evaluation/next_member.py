"""Is one more member worth its cost? Scores against the number of members, and what comes next."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ensemble import metrics
from ensemble.predictions import StoredPredictions

MAX_SUBSETS = 70
"""Subsets scored per size: all of them up to 8 members, a seeded sample beyond."""

BAND = (0.05, 0.95)
UNITS = {"accuracy": "", "nll": " nats", "brier": ""}
LOWER_IS_BETTER = {"accuracy": False, "nll": True, "brier": True}


def score_sizes(predictions: StoredPredictions, interval: Mapping[str, Any]) -> dict[str, Any]:
    """Scores ensembles of 1..M members, and what one more is expected to bring.

    Args:
        predictions: of M live members.
        interval: (low, high) of the whole ensemble, by score.

    Returns:
        `sizes` 1..M; `num_subsets` scored of each; by score `mean`, `low` and `high` [M] over the
        subsets (the band from 5% to 95%; a single subset of all M has none); `expected_gain` of one
        more member by score, positive for better, None for M = 1; `sentence`.
    """
    log_probs, labels, _ = predictions
    num_members = len(log_probs)
    mixtures = _Mixtures(log_probs)
    by_size = [
        [metrics.scores(mixtures.mean(subset), labels) for subset in _subsets(num_members, size)]
        for size in range(1, num_members + 1)
    ]
    curves = {
        name: [np.array([one[name] for one in scored]) for scored in by_size]
        for name in metrics.SCORES
    }
    mean = {name: [float(np.mean(each)) for each in curve] for name, curve in curves.items()}
    gain = {name: _expected_gain(mean[name], LOWER_IS_BETTER[name]) for name in UNITS}
    return {
        "sizes": list(range(1, num_members + 1)),
        "num_subsets": [len(scored) for scored in by_size],
        "mean": mean,
        "low": {name: _quantiles(curve, BAND[0]) for name, curve in curves.items()},
        "high": {name: _quantiles(curve, BAND[1]) for name, curve in curves.items()},
        "expected_gain": gain,
        "sentence": _sentence(num_members, gain["nll"], mean["nll"][-1], interval["nll"]),
    }


class _Mixtures:
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


def _subsets(num_members: int, size: int) -> Iterator[tuple[int, ...]]:
    if math.comb(num_members, size) <= MAX_SUBSETS:
        return itertools.combinations(range(num_members), size)
    rng = np.random.default_rng([num_members, size])
    return (
        tuple(rng.choice(num_members, size, replace=False).tolist()) for _ in range(MAX_SUBSETS)
    )


def _expected_gain(means: list[float], lower_is_better: bool) -> float | None:
    """What member M + 1 is expected to bring, if the score goes on as a + b / size.

    So does the Brier score of exchangeable members exactly, by the variance of a mean, and other
    scores nearly. The law is fitted to the larger half of the sizes.
    """
    num_members = len(means)
    if num_members < 2 or not np.isfinite(means).all():
        return None
    sizes = np.arange(max(1, num_members // 2), num_members + 1)
    slope = np.polyfit(1 / sizes, np.array(means)[sizes - 1], 1)[0]
    change = float(slope * (1 / (num_members + 1) - 1 / num_members))
    return -change if lower_is_better else change


def _quantiles(curve: list[NDArray], level: float) -> list[float]:
    """Of each size's values; an infinite one stays infinite."""
    return [float(np.quantile(values, level, method="inverted_cdf")) for values in curve]


def _sentence(
    num_members: int, gain: float | None, nll: float, interval: tuple[float, float]
) -> str:
    if num_members == 1:
        return "One member says nothing of what a second would bring: train at least two."
    if gain is None:
        return "What one more member would bring cannot be said: the NLL is infinite."
    half_width = (interval[1] - interval[0]) / 2
    share = f" ({abs(gain) / nll:.1%})" if nll > 0 else ""
    if gain <= 0:
        return (
            f"Member {num_members + 1} is not expected to lower the NLL: more members of this kind "
            "bring nothing here."
        )
    verdict = (
        "less than this test set can resolve"
        if gain < half_width
        else "which this test set can resolve"
    )
    return (
        f"Member {num_members + 1} is expected to lower the NLL by {gain:.2g} nats{share}, "
        f"{verdict} (±{half_width:.2g})."
    )
