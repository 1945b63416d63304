"""Scores of one predictor, from log-probabilities `[N, C]` and integer labels `[N]` in 0..C-1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble.metrics.checks import Floats, as_log_probs, as_predictions

NUM_BINS = 15
COVERAGE = 0.8
SCORES = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "aurc", "accuracy_at_80")


class ReliabilityBins(NamedTuple):
    """Top-label calibration per bin of confidence, `[num_bins]` each.

    Attributes:
        counts: number of examples in the bin.
        confidence: mean probability of the predicted class; NaN where the bin is empty.
        accuracy: share of right predictions; NaN where the bin is empty.
    """

    counts: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats


class Terms(NamedTuple):
    """What the scores need to know of N predictions, the most confident first, `[N]` each.

    Attributes:
        order: index of the example.
        confidence: probability of the predicted class.
        hit: 1 where the predicted class is the label, else 0.
        surprisal: -log p[label], nats.
        squared_error: sum over classes of (p - onehot)^2.
    """

    order: NDArray[np.intp]
    confidence: Floats
    hit: Floats
    surprisal: Floats
    squared_error: Floats

    def ece(self) -> float:
        """`ece` of `scores` alone."""
        return _ece(_bins(self.confidence, self.hit, NUM_BINS))

    def scores(self) -> dict[str, float]:
        """All scores, as the function `scores` returns them."""
        shared_hit = mean_of_ties(self.confidence, self.hit)
        # Of the k most confident, k = 1..N, the share of wrong ones.
        risk = np.cumsum(1 - shared_hit) / np.arange(1, len(shared_hit) + 1)
        return {
            "accuracy": float(np.mean(self.hit)),
            "nll": float(np.mean(self.surprisal)),
            "brier": float(np.mean(self.squared_error)),
            "ece": self.ece(),
            "adaptive_ece": _adaptive_ece(self.confidence, shared_hit, NUM_BINS),
            "aurc": float(np.mean(risk)),
            "accuracy_at_80": float(1 - risk[num_covered(len(risk), COVERAGE) - 1]),
        }


def terms(log_probs: ArrayLike, labels: ArrayLike) -> Terms:
    """Sorts the predictions by confidence, once for all scores and resamples.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.
    """
    log_probs, labels = as_predictions(log_probs, labels)
    confidence = _confidences(log_probs)
    order = np.argsort(-confidence, kind="stable")
    parts = (
        confidence,
        _hits(log_probs, labels).astype(np.float64),
        surprisals(log_probs, labels),
        squared_errors(log_probs, labels),
    )
    return Terms(order, *(part[order] for part in parts))


def scores(log_probs: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """All scores of one predictor.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        `accuracy` (0..1), `nll` (nats), `brier` (0..2), `ece` and `adaptive_ece` (0..1, 15 bins),
        `aurc` (0..1, lower is better) and `accuracy_at_80` (0..1, at 80% coverage).
    """
    return terms(log_probs, labels).scores()


def accuracy(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Share of examples whose most probable class is the label; the lowest index wins a tie.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        mean of 1[argmax_c p_nc = label_n], in 0..1.
    """
    return float(np.mean(_hits(*as_predictions(log_probs, labels))))


def nll(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Negative log-likelihood, the logarithmic score of Good 1952 ("Rational decisions").

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        mean of -log p_n[label_n], in nats an example; `inf` where a label has probability 0.
    """
    return float(np.mean(surprisals(*as_predictions(log_probs, labels))))


def brier(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Multi-class score of Brier 1950 ("Verification of forecasts"), summed over classes.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        mean over n of sum_c (p_nc - 1[c = label_n])^2, in 0..2.
    """
    return float(np.mean(squared_errors(*as_predictions(log_probs, labels))))


def ece(log_probs: ArrayLike, labels: ArrayLike, num_bins: int = NUM_BINS) -> float:
    """Expected calibration error of the top label (Guo et al. 2017, arXiv:1706.04599, eq. 3).

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.
        num_bins: number of bins (lo, hi] of equal width over the confidences 0..1.

    Returns:
        sum over bins of count / N * |accuracy - mean confidence|, in 0..1.
    """
    return _ece(reliability_bins(log_probs, labels, num_bins))


def reliability_bins(
    log_probs: ArrayLike, labels: ArrayLike, num_bins: int = NUM_BINS
) -> ReliabilityBins:
    """Accuracy against confidence of the top label, in bins (lo, hi] of equal width.

    The data of the reliability diagram in Guo et al. 2017 (arXiv:1706.04599), section 2.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.
        num_bins: number of bins over the confidences 0..1.

    Returns:
        counts, mean confidence and accuracy of every bin, `[num_bins]` each.
    """
    log_probs, labels = as_predictions(log_probs, labels)
    return _bins(_confidences(log_probs), _hits(log_probs, labels), num_bins)


def adaptive_ece(log_probs: ArrayLike, labels: ArrayLike, num_bins: int = NUM_BINS) -> float:
    """`ece` with bins of equal mass (Nixon et al. 2019, arXiv:1904.01685, for the top label).

    Sorted by confidence, the examples are cut into bins whose sizes differ by at most one. Examples
    of equal confidence share their mean accuracy, so that their order does not matter.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.
        num_bins: number of bins; those beyond N stay empty.

    Returns:
        sum over bins of count / N * |accuracy - mean confidence|, in 0..1.
    """
    one = terms(log_probs, labels)
    return _adaptive_ece(one.confidence, mean_of_ties(one.confidence, one.hit), num_bins)


def aurc(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Area under the risk-coverage curve (Geifman et al. 2019, arXiv:1805.08206, eq. 1).

    Confidence is the probability of the predicted class; examples of equal confidence share their
    mean risk, which is the mean over their orders.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        mean over k = 1..N of the share of errors among the k most confident examples, in 0..1.
    """
    return terms(log_probs, labels).scores()["aurc"]


def accuracy_at_coverage(
    log_probs: ArrayLike, labels: ArrayLike, coverage: float = COVERAGE
) -> float:
    """Accuracy of the most confident examples (El-Yaniv & Wiener 2010, selective accuracy).

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.
        coverage: share of the examples to answer, above 0 and at most 1.

    Returns:
        accuracy of the ceil(coverage * N) most confident, in 0..1; ties share their accuracy.
    """
    one = terms(log_probs, labels)
    number = num_covered(len(one.hit), coverage)
    return float(np.mean(mean_of_ties(one.confidence, one.hit)[:number]))


def confusion_matrix(log_probs: ArrayLike, labels: ArrayLike) -> NDArray[np.int64]:
    """Counts of (label, predicted class).

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        `[C, C]`: rows are labels, columns predictions.
    """
    log_probs, labels = as_predictions(log_probs, labels)
    num_classes = log_probs.shape[1]
    cells = labels * num_classes + log_probs.argmax(axis=-1)
    counts = np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def recall(confusion: ArrayLike) -> Floats:
    """Share of each class's examples that are found.

    Args:
        confusion: `[C, C]`, as `confusion_matrix` returns it.

    Returns:
        `[C]` in 0..1; NaN for a class without examples. Their mean over the other classes is the
        balanced accuracy (Brodersen et al. 2010).
    """
    confusion = np.asarray(confusion)
    counts = confusion.sum(axis=1)
    return np.diag(confusion) / np.where(counts > 0, counts, np.nan)


def entropies(log_probs: ArrayLike) -> Floats:
    """Entropy of each prediction, -sum_c p_c log p_c with 0 log 0 = 0 (Shannon 1948).

    Args:
        log_probs: `[N, C]` log-probabilities.

    Returns:
        `[N]`, nats.
    """
    log_probs = as_log_probs(log_probs, ndim=2)
    log_probs_or_zero = np.where(np.isneginf(log_probs), 0.0, log_probs)
    return -np.sum(np.exp(log_probs) * log_probs_or_zero, axis=-1)


def _hits(log_probs: Floats, labels: NDArray) -> NDArray[np.bool_]:
    return log_probs.argmax(axis=-1) == labels


def surprisals(log_probs: Floats, labels: NDArray) -> Floats:
    """-log p[label], `[N]` nats, of predictions that have been checked."""
    return -log_probs[np.arange(len(labels)), labels]


def squared_errors(log_probs: Floats, labels: NDArray) -> Floats:
    """Sum over classes of (p - onehot)^2, `[N]`, of predictions that have been checked."""
    errors = np.exp(log_probs)
    errors[np.arange(len(labels)), labels] -= 1.0
    return np.sum(errors**2, axis=-1)


def _confidences(log_probs: Floats) -> Floats:
    """Probability of the predicted class, `[N]`; a rounding excess over 1 is cut."""
    return np.minimum(np.exp(log_probs.max(axis=-1)), 1.0)


def bin_ids(confidence: Floats, num_bins: int) -> NDArray[np.intp]:
    """In which of the bins (lo, hi] of equal width over 0..1 each confidence lies, `[N]`."""
    return np.searchsorted(np.linspace(0.0, 1.0, num_bins + 1), confidence, side="left") - 1


def _bins(confidence: Floats, hit: NDArray, num_bins: int) -> ReliabilityBins:
    if num_bins < 1:
        raise ValueError(f"num_bins={num_bins} must be positive")
    ids = bin_ids(confidence, num_bins)
    counts = np.bincount(ids, minlength=num_bins)
    divisors = np.where(counts > 0, counts, np.nan)
    sums = (np.bincount(ids, weights=each, minlength=num_bins) for each in (confidence, hit))
    return ReliabilityBins(counts, *(each / divisors for each in sums))


def _ece(bins: ReliabilityBins) -> float:
    occupied = bins.counts > 0
    gaps = np.abs(bins.accuracy - bins.confidence)
    return float(np.average(gaps[occupied], weights=bins.counts[occupied]))


def _adaptive_ece(confidence: Floats, shared_hit: Floats, num_bins: int) -> float:
    """From sorted confidences and the mean hits of ties, `[N]` each."""
    if num_bins < 1:
        raise ValueError(f"num_bins={num_bins} must be positive")
    num_examples = len(confidence)
    starts = np.unique(np.arange(num_bins) * num_examples // num_bins)
    return float(np.abs(np.add.reduceat(shared_hit - confidence, starts)).sum() / num_examples)


def mean_of_ties(sorted_keys: Floats, values: Floats) -> Floats:
    """Gives examples of equal key the mean of their values, `[N]`."""
    starts = np.flatnonzero(np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]]))
    counts = np.diff(np.append(starts, len(values)))
    return np.repeat(np.add.reduceat(values, starts) / counts, counts)


def num_covered(num_examples: int, coverage: float) -> int:
    """How many of the examples are answered at a coverage."""
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage={coverage} must be above 0 and at most 1")
    return int(np.ceil(coverage * num_examples - 1e-9))  # .07 * 100 is a hair above 7.


# The same scores of confidences and hits `[N]`, the most confident first.


def ece_of(confidence: Floats, hit: Floats) -> float:
    """`ece`."""
    return _ece(_bins(confidence, hit, NUM_BINS))


def adaptive_ece_of(confidence: Floats, hit: Floats) -> float:
    """`adaptive_ece`."""
    return _adaptive_ece(confidence, mean_of_ties(confidence, hit), NUM_BINS)


def aurc_of(confidence: Floats, hit: Floats) -> float:
    """`aurc`."""
    wrong = np.cumsum(1 - mean_of_ties(confidence, hit))
    return float(np.mean(wrong / np.arange(1, len(hit) + 1)))


def aurc_influence(confidence: Floats, hit: Floats) -> Floats:
    """By how much an example moves the AURC, times N; their mean is 0.

    AURC is the mean of error * -log(share of more confident examples), which draws move too.
    Examples of equal confidence share what their places among each other would make of them.
    """
    error, by_rank = 1 - hit, 1 / np.arange(1, len(hit) + 1)
    log_share = mean_of_ties(confidence, np.cumsum(by_rank[::-1])[::-1])
    less_confident = np.cumsum((mean_of_ties(confidence, error) * by_rank)[::-1])[::-1]
    less_confident = mean_of_ties(confidence, less_confident)
    risk = error * log_share
    return risk - float(np.mean(risk)) - less_confident + float(np.mean(error))


def accuracy_of_covered(confidence: Floats, hit: Floats) -> float:
    """`accuracy_at_coverage`, at `COVERAGE`."""
    number = num_covered(len(hit), COVERAGE)
    return float(np.mean(mean_of_ties(confidence, hit)[:number]))


def covered_influence(confidence: Floats, hit: Floats) -> Floats:
    """By how much an example moves it: the threshold moves too, to neighbours' accuracy."""
    number = num_covered(len(hit), COVERAGE)
    reach = max(5, int(np.sqrt(len(hit))))
    shared_hit = mean_of_ties(confidence, hit)
    at_threshold = float(np.mean(shared_hit[max(0, number - reach) : number + reach]))
    share = float(np.mean(shared_hit[:number]))
    return _covered(confidence) * (hit - at_threshold) / COVERAGE - (share - at_threshold)


def errors_of_covered(confidence: Floats, hit: Floats) -> tuple[Floats, float]:
    """Minus the errors among the covered, `[N]`, and what turns their mean into a share of these.

    The accuracies of two predictors differ by the difference of these.
    """
    return -_covered(confidence) * (1 - hit), len(hit) / num_covered(len(hit), COVERAGE)


def _covered(confidence: Floats) -> Floats:
    """Whether an example is among the covered; of ties, how probable that is."""
    number = num_covered(len(confidence), COVERAGE)
    return mean_of_ties(confidence, (np.arange(len(confidence)) < number).astype(np.float64))
