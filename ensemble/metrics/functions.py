"""Metrics as functions of a predictive and targets [N]: each returns terms [N], whose mean it is.

Calibration errors are no means of terms. Chance raises them by more than they vary, so they have no
interval; `ece_by_chance` says what calibrated predictions would give.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ensemble.metrics import ranking

Floats = NDArray[np.float64]
NUM_BINS = 15
_DRAWS = 400
MIN_ERRORS = 5
"""With fewer wrong predictions the NLL has no interval: a few surprising rows decide it."""


# Any predictive with a density or a probability.


def nll(p, y: NDArray) -> Floats:
    """-log p(y), nats: the logarithmic score (Good 1952); inf if a target has probability 0."""
    return -p.log_prob(y)


# Classes.


def accuracy(p, y: NDArray) -> Floats:
    """1 if the most probable class is the label; the lowest class wins a tie."""
    return (p.labels == y).astype(np.float64)


def balanced_accuracy(p, y: NDArray) -> Floats:
    """Mean recall of the classes that have rows, plus its influence function."""
    hit = accuracy(p, y)
    counts = np.bincount(y)
    recalls = np.bincount(y, hit) / np.maximum(counts, 1)
    present = counts > 0
    value = recalls[present].mean()
    return value + (hit - recalls[y]) * len(y) / (counts[y] * present.sum())


def brier(p, y: NDArray) -> Floats:
    """Sum over classes of (p - onehot)^2, 0 to 2 (Brier 1950)."""
    return p.scores(y)["brier"]


def overconfidence(p, y: NDArray) -> Floats:
    """Confidence - accuracy, -1 to 1."""
    return p.confidence - accuracy(p, y)


def disagreement(p, y: NDArray) -> Floats:
    """Share of member pairs that predict different classes (Fort et al. 2019, arXiv:1912.02757)."""
    number = p.num_members
    apart = sum((p.votes != one).sum(axis=0) for one in p.votes)
    return apart / max(1, number * (number - 1))


def aurc(p, y: NDArray) -> Floats:
    """Area under the risk-coverage curve: `ranking.aurc`."""
    return ranking.aurc(p.confidence, accuracy(p, y))


def accuracy_at_80(p, y: NDArray) -> Floats:
    """Accuracy of the 80% most confident rows: `ranking.at_coverage`."""
    return ranking.at_coverage(p.confidence, accuracy(p, y))


def auroc(p, y: NDArray, label: int = 1) -> Floats:
    """AUROC of the odds of a class: `ranking.auroc`."""
    return ranking.auroc(_log_odds(p, label), y == label)


def average_precision(p, y: NDArray, label: int = 1) -> np.float64:
    """Average precision of the odds of a class: `ranking.average_precision`."""
    return ranking.average_precision(_log_odds(p, label), y == label)


def _log_odds(p, label: int) -> Floats:
    others = np.logaddexp.reduce(np.delete(p.log_probs, label, axis=-1), axis=-1)
    with np.errstate(invalid="ignore"):
        return p.log_probs[:, label] - others


# Numbers, from a distribution or from quantiles.


def squared_error(p, y: NDArray) -> Floats:
    """Squared error of the mean; of quantiles, of the median."""
    return (p.point - y) ** 2


def rmse(p, y: NDArray) -> Floats:
    """Root of the mean of `squared_error`, plus its influence function."""
    squares = squared_error(p, y)
    root = np.sqrt(squares.mean())
    return root / 2 + squares / (2 * root) if 0 < root < np.inf else squares


def mae(p, y: NDArray) -> Floats:
    """|y - median|."""
    return np.abs(p.median - y)


def r2(p, y: NDArray) -> float:
    """1 - mean squared error / variance of the targets.

    No interval: a few skewed targets, as prices are, decide the variance. By simulation of
    log-normal targets, influence functions cover 86 to 92% in place of 95%.
    """
    spread = np.var(y)
    return float(1 - squared_error(p, y).mean() / spread) if spread > 0 else math.nan


def crps(p, y: NDArray) -> Floats:
    """Continuous ranked probability score, in the target's unit (Gneiting and Raftery 2007).

    From quantiles it is twice the pinball loss, integrated over levels; each level stands for those
    that are nearest to it (Gneiting and Ranjan 2011, equation 10).
    """
    return p.crps(y)


def nll_by_moments(p, y: NDArray) -> Floats:
    """NLL of a normal distribution with the mixture's mean and variance, as in some papers."""
    variance = p.uncertainty["total"]
    return 0.5 * ((y - p.point) ** 2 / variance + np.log(2 * np.pi * variance))


def coverage(p, y: NDArray, level: float = 0.9) -> Floats:
    """1 if the central interval of a level contains the target; both ends are included."""
    low, high = p.central(level)
    return ((y >= low) & (y <= high)).astype(np.float64)


def width(p, y: NDArray, level: float = 0.9) -> Floats:
    """Width of central intervals, in the target's unit."""
    low, high = p.central(level)
    return high - low


def interval_score(p, y: NDArray, level: float = 0.9) -> Floats:
    """Width + 2 / (1 - level) times the miss (Gneiting and Raftery 2007, section 6.2)."""
    low, high = p.central(level)
    return high - low + 2 / (1 - level) * (np.maximum(low - y, 0) + np.maximum(y - high, 0))


def pinball(p, y: NDArray) -> Floats:
    """Pinball loss, mean over the levels (Koenker and Bassett 1978)."""
    return p.scores(y)["pinball"]


# Both.


def uncertainty(p, y: NDArray, part: str) -> Floats:
    """Total, aleatoric or epistemic uncertainty, of which the first is the sum.

    Entropies of classes, in nats; variances of numbers, in squares of the target's unit. Aleatoric
    is the mean over members, epistemic their disagreement.
    """
    return p.uncertainty[part]


# By how much one further row can move a metric: `Metric.row_weight`.


def smooth_if_errors(p, y: NDArray) -> float | None:
    """No pseudo-rows; None if fewer than `MIN_ERRORS` predicted classes are wrong."""
    return 0.0 if np.sum(p.labels != y) >= MIN_ERRORS else None


def auroc_weight(p, y: NDArray, label: int = 1) -> float | None:
    """Half the weight of a row of the rarer side; None if that has fewer than two rows.

    Simulated intervals with the whole weight cover 97 to 99% in place of 95%.
    """
    rarer = min(np.sum(y == label), np.sum(y != label))
    return None if rarer < 2 else len(y) / (2 * rarer)


def balanced_weight(p, y: NDArray) -> float:
    """Weight of a row of the rarest class."""
    counts = np.bincount(y)
    counts = counts[counts > 0]
    return len(y) / (counts.min() * len(counts))


# Calibration errors: values, not terms.


def ece(p, y: NDArray) -> float:
    """Top-label calibration error of 15 equal-width bins (Guo et al. 2017, eq. 3), 0 to 1."""
    return _error_of(_bin_of(p.confidence), overconfidence(p, y))


def adaptive_ece(p, y: NDArray, number: int = NUM_BINS) -> float:
    """The same with 15 bins of equal mass (Nixon et al. 2019); ties share their accuracy."""
    order = np.argsort(-p.confidence, kind="stable")
    confidence = p.confidence[order]
    hit = ranking.mean_of_ties(confidence, accuracy(p, y)[order])
    starts = np.unique(np.arange(number) * len(y) // number)
    return float(np.abs(np.add.reduceat(hit - confidence, starts)).sum() / len(y))


def ece_by_chance(p) -> float:
    """95% quantile of the ECE of labels drawn from the predictions (Broecker and Smith 2007)."""
    places = _bin_of(p.confidence)
    order = np.argsort(places, kind="stable")
    places = places[order]
    confidence = p.confidence[order]
    rng = np.random.default_rng(0)
    single = confidence.astype(np.float32)
    drawn = (rng.random(len(single), np.float32) < single for _ in range(_DRAWS))
    chance = [_error_of(places, confidence - hits) for hits in drawn]
    return float(np.quantile(chance, 0.95))


def _error_of(places: NDArray, overconfidence: Floats) -> float:
    return float(np.abs(np.bincount(places, overconfidence)).sum() / len(places))


def _bin_of(confidence: Floats) -> NDArray:
    inner = np.linspace(0, 1, NUM_BINS + 1)[1:-1]
    return np.searchsorted(inner, confidence)
