"""The ensemble as the mixture of its members, and how far they differ: `log_probs` [M, N, C]."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from ensemble.metrics.checks import Floats, as_log_probs
from ensemble.metrics.scores import entropies


def ensemble_log_probs(log_probs: ArrayLike, weights: Floats | None = None) -> Floats:
    """Log of the members' mean probabilities: logsumexp over M of log p_m, minus log M.

    The equally weighted mixture of Lakshminarayanan et al. 2017 (arXiv:1612.01474), section 2.4.
    One member comes back bit for bit, and the order of the members never changes a bit.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        weights: `[M]` of the members, of sum 1; None: all the same.

    Returns:
        `[N, C]` log-probabilities of the ensemble.

    Raises:
        ValueError: `log_probs` is not a float array `[M, N, C]` of normalised log-probabilities.
    """
    log_probs = as_log_probs(log_probs, ndim=3)
    if weights is not None:
        return logsumexp(log_probs + np.log(weights)[:, None, None], axis=0)
    # Sums depend on order by rounding, which would decide exact ties between classes: sort first.
    return logsumexp(np.sort(log_probs, axis=0), axis=0) - np.log(len(log_probs))


def disagreements(log_probs: ArrayLike) -> Floats:
    """Share of member pairs that predict different classes (Fort et al. 2019, arXiv:1912.02757).

    Counts votes: v members that agree on a class make v (v - 1) agreeing ordered pairs, so the
    cost is O(M N + N C) beyond the argmax, not O(M^2 N).

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.

    Returns:
        `[N]`, mean over pairs i < j of 1[argmax p_i != argmax p_j], in 0..1; 0 for M = 1.
    """
    return disagreements_of(as_log_probs(log_probs, ndim=3).argmax(axis=-1))


def disagreements_of(votes: NDArray) -> Floats:
    """The same, from the members' classes `[M, N]`."""
    num_members, num_examples = votes.shape
    if num_members == 1:
        return np.zeros(num_examples)
    num_classes = int(votes.max()) + 1
    cells = np.arange(num_examples) * num_classes + votes
    counts = np.bincount(cells.ravel(), minlength=num_examples * num_classes)
    agreeing = np.sum((counts * (counts - 1)).reshape(num_examples, num_classes), axis=1)
    return 1 - agreeing / (num_members * (num_members - 1))


def disagreement(log_probs: ArrayLike) -> float:
    """Mean of `disagreements` over the examples, in 0..1."""
    return float(np.mean(disagreements(log_probs)))


def disagreement_matrix(log_probs: ArrayLike) -> Floats:
    """Share of examples on which two members predict different classes.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.

    Returns:
        `[M, M]` in 0..1, symmetric, 0 on the diagonal; the mean off the diagonal is `disagreement`.
    """
    predicted = as_log_probs(log_probs, ndim=3).argmax(axis=-1)
    return np.stack([(predicted != one).mean(axis=1) for one in predicted])


def uncertainty(
    log_probs: ArrayLike,
    member_entropies: ArrayLike | None = None,
    weights: Floats | None = None,
) -> dict[str, Floats]:
    """Splits the predictive entropy of every example into aleatoric and epistemic parts.

    With H(p) = -sum_c p_c log p_c and 0 log 0 = 0, as in Depeweg et al. 2018 (arXiv:1710.07283):
    total = H(mean_m p_m), aleatoric = mean_m H(p_m), and epistemic = total - aleatoric, the mutual
    information of label and member.

    Args:
        log_probs: `[M, N, C]` log-probabilities of the members.
        member_entropies: `[M, N]` nats, where a member is itself an average over draws: the mean
            entropy of its draws, which are then what the uncertainty is split over.
        weights: `[M]` of the members, of sum 1; None: all the same.

    Returns:
        `total`, `aleatoric` and `epistemic`, `[N]` each, in nats.
    """
    log_probs = as_log_probs(log_probs, ndim=3)
    total = entropies(ensemble_log_probs(log_probs, weights))
    if member_entropies is None:
        member_entropies = [entropies(member) for member in log_probs]
    if weights is None:  # Sorted, so that the order of the members does not change a bit.
        aleatoric = np.sort(member_entropies, axis=0).mean(axis=0, dtype=np.float64)
    else:
        aleatoric = np.tensordot(weights, np.asarray(member_entropies, np.float64), axes=1)
    # Entropy is concave, so only rounding can take the difference below zero.
    return {
        "total": total,
        "aleatoric": aleatoric,
        "epistemic": np.maximum(total - aleatoric, 0.0),
    }


def agreement(log_probs: ArrayLike, reference: ArrayLike) -> float:
    """Share of examples on which two predictors say the same class (Izmailov et al. 2021, 4.1).

    Args:
        log_probs: `[N, C]` log-probabilities.
        reference: the same, of another predictor.

    Returns:
        mean of 1[argmax p = argmax q], in 0..1.
    """
    p, q = _same_shape(log_probs, reference)
    return float(np.mean(p.argmax(axis=-1) == q.argmax(axis=-1)))


def total_variation(log_probs: ArrayLike, reference: ArrayLike) -> float:
    """Mean total variation distance (Izmailov et al. 2021, arXiv:2104.14421, section 4.1).

    Args:
        log_probs: `[N, C]` log-probabilities.
        reference: the same, of another predictor.

    Returns:
        mean over examples of sum_c |p_c - q_c| / 2, in 0..1.
    """
    p, q = _same_shape(log_probs, reference)
    return float(np.mean(np.abs(np.exp(p) - np.exp(q)).sum(axis=-1) / 2))


def _same_shape(log_probs: ArrayLike, reference: ArrayLike) -> tuple[NDArray, NDArray]:
    p, q = as_log_probs(log_probs, ndim=2), as_log_probs(reference, ndim=2)
    if p.shape != q.shape:
        raise ValueError(f"log_probs {p.shape} and reference {q.shape} must have one shape")
    return p, q
