"""Scores of an ensemble's predictions: one definition per number, on host arrays, in float64.

Everything starts from log-probabilities `log_probs`: `[M, N, C]` for M members, N examples and C
classes, or `[N, C]` for one predictor. Labels are integers `[N]` in `[0, C)`. The ensemble's
prediction is the mean of the members' probabilities, so it is scored as one more predictor.
Members that failed (NaN) are for the caller to leave out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

_NORMALISATION_TOLERANCE = 1e-2  # wide enough for float16, far too narrow for logits

Floats = NDArray[np.float64]


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


def ensemble_log_probs(log_probs: ArrayLike) -> Floats:
    """Log of the members' mean probabilities: logsumexp over M of log p_m, minus log M.

    The equally weighted mixture of Lakshminarayanan et al. 2017 (arXiv:1612.01474), section 2.4.
    One member comes back bit for bit, and the order of the members never changes a bit.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.

    Returns:
        `[N, C]` log-probabilities of the ensemble.

    Raises:
        ValueError: `log_probs` is not a float array `[M, N, C]` of normalised log-probabilities.
    """
    log_probs = _as_log_probs(log_probs, ndim=3)
    # Sums depend on order by rounding, which would decide exact ties between classes: sort first.
    return logsumexp(np.sort(log_probs, axis=0), axis=0) - np.log(len(log_probs))


def accuracy(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Share of examples whose most probable class is the label; the lowest index wins a tie.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        mean of 1[argmax_c p_nc = label_n], in 0..1.
    """
    return float(np.mean(_hits(*_as_predictions(log_probs, labels))))


def nll(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Negative log-likelihood, the logarithmic score of Good 1952 ("Rational decisions").

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        mean of -log p_n[label_n], in nats an example; `inf` where a label has probability 0.
    """
    return float(np.mean(_surprisals(*_as_predictions(log_probs, labels))))


def brier(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Multi-class score of Brier 1950 ("Verification of forecasts"), summed over classes.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        mean over n of sum_c (p_nc - 1[c = label_n])^2, in 0..2.
    """
    return float(np.mean(_squared_errors(*_as_predictions(log_probs, labels))))


def ece(log_probs: ArrayLike, labels: ArrayLike, num_bins: int = 15) -> float:
    """Expected calibration error of the top label (Guo et al. 2017, arXiv:1706.04599, eq. 3).

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.
        num_bins: number of bins (lo, hi] of equal width over the confidences 0..1.

    Returns:
        sum over bins of count / N * |accuracy - mean confidence|, in 0..1.
    """
    bins = reliability_bins(log_probs, labels, num_bins)
    gaps = np.abs(bins.accuracy - bins.confidence)
    occupied = bins.counts > 0
    return float(np.average(gaps[occupied], weights=bins.counts[occupied]))


def reliability_bins(
    log_probs: ArrayLike, labels: ArrayLike, num_bins: int = 15
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
    log_probs, labels = _as_predictions(log_probs, labels)
    bin_ids = _bin_ids(log_probs, num_bins)
    counts = np.bincount(bin_ids, minlength=num_bins)
    confidence_sums = np.bincount(bin_ids, weights=_confidences(log_probs), minlength=num_bins)
    hit_sums = np.bincount(bin_ids, weights=_hits(log_probs, labels), minlength=num_bins)
    divisors = np.where(counts > 0, counts, np.nan)
    return ReliabilityBins(counts, confidence_sums / divisors, hit_sums / divisors)


def scores(log_probs: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """All scores of one predictor.

    Args:
        log_probs: `[N, C]` log-probabilities.
        labels: `[N]` integer labels.

    Returns:
        `accuracy` (0..1), `nll` (nats), `brier` (0..2) and `ece` (0..1, 15 bins).
    """
    return {
        "accuracy": accuracy(log_probs, labels),
        "nll": nll(log_probs, labels),
        "brier": brier(log_probs, labels),
        "ece": ece(log_probs, labels),
    }


def disagreement(log_probs: ArrayLike) -> float:
    """Share of member pairs that predict different classes (Fort et al. 2019, arXiv:1912.02757).

    Counts votes: v members that agree on a class make v (v - 1) agreeing ordered pairs, so the
    cost is O(M N + N C) beyond the argmax, not O(M^2 N).

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.

    Returns:
        mean over examples and pairs i < j of 1[argmax p_i != argmax p_j], in 0..1; 0 for M = 1.
    """
    log_probs = _as_log_probs(log_probs, ndim=3)
    num_members, num_examples, num_classes = log_probs.shape
    if num_members == 1:
        return 0.0
    cells = np.arange(num_examples) * num_classes + log_probs.argmax(axis=-1)
    votes = np.bincount(cells.ravel(), minlength=num_examples * num_classes)
    num_pairs = num_examples * num_members * (num_members - 1)
    return float((num_pairs - np.sum(votes * (votes - 1))) / num_pairs)


def uncertainty(log_probs: ArrayLike) -> dict[str, Floats]:
    """Splits the predictive entropy of every example into aleatoric and epistemic parts.

    With H(p) = -sum_c p_c log p_c and 0 log 0 = 0, as in Depeweg et al. 2018 (arXiv:1710.07283):
    total = H(mean_m p_m), aleatoric = mean_m H(p_m), and epistemic = total - aleatoric, the mutual
    information of label and member.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.

    Returns:
        `total`, `aleatoric` and `epistemic`, `[N]` each, in nats.
    """
    log_probs = _as_log_probs(log_probs, ndim=3)
    total = _entropies(ensemble_log_probs(log_probs))
    aleatoric = _entropies(log_probs).mean(axis=0)
    # Entropy is concave, so only rounding can take the difference below zero.
    return {
        "total": total,
        "aleatoric": aleatoric,
        "epistemic": np.maximum(total - aleatoric, 0.0),
    }


def summarise(log_probs: ArrayLike, labels: ArrayLike) -> dict[str, dict]:
    """All scores of an ensemble and its members, as plain floats ready for JSON.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.

    Returns:
        `ensemble`: the `scores` of the members' mean; `members`: the same names, a list of M values
        each; `diversity`: `disagreement`, and `total`, `aleatoric` and `epistemic` uncertainty in
        nats, means over the examples.
    """
    log_probs = _as_log_probs(log_probs, ndim=3)
    member_scores = [scores(member, labels) for member in log_probs]
    return {
        "ensemble": scores(ensemble_log_probs(log_probs), labels),
        "members": {name: [one[name] for one in member_scores] for name in member_scores[0]},
        "diversity": {
            "disagreement": disagreement(log_probs),
            **{name: float(np.mean(each)) for name, each in uncertainty(log_probs).items()},
        },
    }


def bootstrap_interval(
    log_probs: ArrayLike,
    labels: ArrayLike,
    num_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap over examples (Efron 1979) for the ensemble's scores.

    The members stay as they are: the interval says how much the scores would move with another
    test set of this size, not with another training run. ECE is biased upwards in small samples
    and more so in resamples, so its interval can lie above the estimate.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        labels: `[N]` integer labels.
        num_resamples: number of test sets drawn with replacement.
        seed: seed of the draws.
        level: probability that the interval should cover.

    Returns:
        (low, high) for each of `accuracy`, `nll`, `brier` and `ece`, in the units of `scores`.
    """
    if num_resamples < 1 or not 0 < level < 1:
        raise ValueError(
            f"num_resamples={num_resamples} must be positive and level={level} between 0 and 1"
        )
    terms = _score_terms(*_as_predictions(ensemble_log_probs(log_probs), labels))
    num_examples = len(terms)
    rng = np.random.default_rng(seed)
    means = np.stack(
        [
            terms[rng.integers(num_examples, size=num_examples)].mean(axis=0)
            for _ in range(num_resamples)
        ]
    )
    draws = {
        "accuracy": means[:, 0],
        "nll": means[:, 1],
        "brier": means[:, 2],
        "ece": np.abs(means[:, 3:]).sum(axis=1),
    }
    # Order statistics, because interpolating between infinite scores would give NaN.
    tails = (1 - level) / 2, (1 + level) / 2
    low, high = np.quantile(list(draws.values()), tails, axis=1, method="inverted_cdf")
    return dict(zip(draws, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def _score_terms(log_probs: Floats, labels: NDArray, num_bins: int = 15) -> Floats:
    """Per-example terms `[N, 3 + num_bins]` whose means give every score.

    Accuracy, NLL and Brier score are the means of the first three columns; ECE is the sum of the
    absolute means of the rest, which hold accuracy minus confidence in the column of the bin.
    """
    hits = _hits(log_probs, labels)
    gaps = np.zeros((len(labels), num_bins))
    gaps[np.arange(len(labels)), _bin_ids(log_probs, num_bins)] = hits - _confidences(log_probs)
    return np.column_stack(
        [hits, _surprisals(log_probs, labels), _squared_errors(log_probs, labels), gaps]
    )


def _hits(log_probs: Floats, labels: NDArray) -> NDArray[np.bool_]:
    return log_probs.argmax(axis=-1) == labels


def _surprisals(log_probs: Floats, labels: NDArray) -> Floats:
    return -log_probs[np.arange(len(labels)), labels]


def _squared_errors(log_probs: Floats, labels: NDArray) -> Floats:
    errors = np.exp(log_probs)
    errors[np.arange(len(labels)), labels] -= 1.0
    return np.sum(errors**2, axis=-1)


def _confidences(log_probs: Floats) -> Floats:
    """Probability of the predicted class, `[N]`; a rounding excess over 1 is cut."""
    return np.minimum(np.exp(log_probs.max(axis=-1)), 1.0)


def _bin_ids(log_probs: Floats, num_bins: int) -> NDArray[np.intp]:
    """Index of the bin (lo, hi] that holds the confidence, `[N]`."""
    if num_bins < 1:
        raise ValueError(f"num_bins={num_bins} must be positive")
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    return np.searchsorted(edges, _confidences(log_probs), side="left") - 1


def _entropies(log_probs: Floats) -> Floats:
    """Entropy over the last axis, in nats, with 0 log 0 = 0."""
    log_probs_or_zero = np.where(np.isneginf(log_probs), 0.0, log_probs)
    return -np.sum(np.exp(log_probs) * log_probs_or_zero, axis=-1)


def _as_log_probs(log_probs: ArrayLike, ndim: int) -> Floats:
    """Checks log-probabilities `[N, C]` (ndim 2) or `[M, N, C]` (ndim 3) and makes them float64."""
    array = np.asarray(log_probs)
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(
            f"log_probs has dtype {array.dtype}, must be float16, float32 or float64; cast it"
        )
    if array.ndim != ndim or array.size == 0:
        axes = "[M, N, C]" if ndim == 3 else "[N, C]"
        raise ValueError(f"log_probs has shape {array.shape}, must be {axes} with no empty axis")
    array = array.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):  # logits of a thousand: reported below
        sums = np.exp(array).sum(axis=-1)
    unnormalised = ~(np.abs(sums - 1.0) <= _NORMALISATION_TOLERANCE)  # NaN counts
    if unnormalised.any():
        raise ValueError(
            f"probabilities must sum to 1 over the classes, but log_probs give "
            f"{sums[unnormalised][0]:.4g} at index {np.argwhere(unnormalised)[0].tolist()}; "
            f"apply log_softmax, and leave out members that are not finite"
        )
    return array


def _as_predictions(log_probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.intp]]:
    """Checks log-probabilities `[N, C]` and labels `[N]` against each other."""
    array = _as_log_probs(log_probs, ndim=2)
    num_examples, num_classes = array.shape
    classes = np.asarray(labels)
    if not np.issubdtype(classes.dtype, np.integer):
        raise ValueError(f"labels has dtype {classes.dtype}, must be integer; use class indices")
    if classes.shape != (num_examples,):
        raise ValueError(
            f"labels has shape {classes.shape}, must be ({num_examples},) to match log_probs "
            f"{array.shape}"
        )
    if classes.min() < 0 or classes.max() >= num_classes:
        raise ValueError(
            f"labels span {classes.min()}..{classes.max()}, must be within 0..{num_classes - 1}, "
            f"the classes of log_probs"
        )
    return array, classes.astype(np.intp)
