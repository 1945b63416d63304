"""Recalibration on data that trained and stopped nothing: one temperature, and conformal sets."""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from ensemble.metrics.checks import Floats, as_log_probs, as_predictions
from ensemble.metrics.scores import NUM_BINS, Terms, bin_ids

TEMPERATURES = (0.05, 20.0)
"""The range in which a temperature is sought; examples that are all predicted rightly would take it
to 0."""


class ByChance(NamedTuple):
    """What labels that are drawn from the predictions give.

    Attributes:
        ece_quantile: 95% of their ECEs lie below it.
        p_overconfidence: how probable a mean confidence less accuracy is that is as far from 0.
        p_ece: how probable an ECE is that is as large.
    """

    ece_quantile: float
    p_overconfidence: float
    p_ece: float


def calibration_by_chance(terms: Terms, num_draws: int = 400, seed: int = 0) -> ByChance:
    """Tests whether labels could be draws from the predictions, by drawing them.

    The two p-values are those of Monte Carlo tests (Davison & Hinkley 1997, section 4.2), which
    hold at any number of examples. Both together: double the smaller one.

    Args:
        terms: of the predictions.
        num_draws: how often all labels are drawn.
        seed: of the draws.
    """
    rng, num = np.random.default_rng(seed), len(terms.hit)
    _, starts = np.unique(-bin_ids(terms.confidence, NUM_BINS), return_index=True)
    confidences = np.add.reduceat(terms.confidence, starts)
    rows = max(1, 1_000_000 // num)
    hits = [np.add.reduceat(terms.hit[None], starts, axis=1)]
    for start in range(0, num_draws, rows):
        shape = min(rows, num_draws - start), num
        drawn = rng.random(shape, np.float32) < terms.confidence.astype(np.float32)
        hits.append(np.add.reduceat(drawn, starts, axis=1, dtype=np.float64))
    gaps = confidences - np.concatenate(hits)  # Of the labels, then of the draws; by bin.
    overconfidence, ece = gaps.sum(axis=1).round(9), np.abs(gaps).sum(axis=1).round(9)

    def share(is_as_far: NDArray) -> float:
        return float((1 + np.sum(is_as_far)) / (1 + num_draws))

    one_sided = (
        share(overconfidence[1:] >= overconfidence[0]),
        share(overconfidence[1:] <= overconfidence[0]),
    )
    return ByChance(
        ece_quantile=float(np.quantile(ece[1:], 0.95)) / num,
        p_overconfidence=min(1.0, 2 * min(one_sided)),
        p_ece=share(ece[1:] >= ece[0]),
    )


def fit_temperature(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Temperature T of the lowest NLL of softmax(log p / T) (Guo et al. 2017, section 4.2).

    Args:
        log_probs: `[N, C]` log-probabilities on the calibration split; of an ensemble, of its mean.
        labels: `[N]` integer labels.

    Returns:
        T within `TEMPERATURES`; above 1 where the predictor was overconfident.

    Raises:
        ValueError: a label has probability 0, so that no temperature gives a finite NLL; or the
            best temperature lies outside `TEMPERATURES`: so few or so easy examples determine none.
    """
    log_probs, labels = as_predictions(log_probs, labels)
    rows = np.arange(len(labels))
    if np.isneginf(log_probs[rows, labels]).any():
        raise ValueError("a label has probability 0, which no temperature can correct")

    def nll(log_temperature: float) -> float:  # Of `apply_temperature`, at the labels alone.
        logits = log_probs / np.exp(log_temperature)
        logits -= logits.max(axis=-1, keepdims=True)
        return -(logits[rows, labels] - np.log(np.exp(logits).sum(axis=-1))).mean()

    found = scipy.optimize.minimize_scalar(nll, bounds=np.log(TEMPERATURES), method="bounded")
    if nll(0.0) - found.fun <= 1e-12:
        return 1.0  # Nothing is better than no temperature, though it may be as good.
    low, high = TEMPERATURES
    if min(nll(np.log(low)), nll(np.log(high))) <= found.fun + 1e-12:
        raise ValueError(
            f"so few or so easy examples, {len(labels)}, determine no temperature within "
            f"{low:g}..{high:g}"
        )
    return float(np.exp(found.x))


def apply_temperature(log_probs: ArrayLike, temperature: float) -> Floats:
    """Returns log softmax(log p / T), `[N, C]`; impossible classes stay impossible.

    Args:
        log_probs: `[N, C]` log-probabilities.
        temperature: T, positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")
    return log_softmax(as_log_probs(log_probs, ndim=2) / temperature, axis=-1)
