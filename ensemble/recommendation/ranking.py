"""Scores of watch predictions on held-out pairs of a user and a movie, and of recommendations.

A prediction is the log-odds of watching, or the two log-probabilities of not watching and of
watching. A movie that is held out was neither seen as watched nor as unwatched.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ensemble.metrics import ranking

Floats = NDArray[np.float64]


def watch_log_probs(logits: ArrayLike) -> Floats:
    """Log-probabilities of not watching and of watching: log sigmoid(-x), log sigmoid(x).

    Those of a posterior are the log mean exp of these over draws, [S, P] log-odds.

    Args:
        logits: `[...]`, log-odds x of watching.

    Returns:
        `[..., 2]`, exact however large the log-odds are.
    """
    logits = np.asarray(logits, np.float64)
    return -np.logaddexp(0.0, np.stack([logits, -logits], axis=-1))


def held_out_log_likelihood(log_probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean log-likelihood of pairs, minus the logarithmic score of Good 1952.

    Args:
        log_probs: `[P, 2]`, log-probabilities of not watching and of watching.
        labels: `[P]`, 1 where the user watched the movie, else 0.

    Returns:
        mean of y log p + (1 - y) log(1 - p), in nats a pair; `-inf` where what happened had
        probability 0.
    """
    return float(np.take_along_axis(np.asarray(log_probs), np.asarray(labels)[:, None], 1).mean())


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Area under the ROC curve: the Mann-Whitney U over its maximum (Hanley & McNeil 1982).

    The probability that a watched pair scores higher than an unwatched one, ties counting half.
    Pairs of all users are compared with each other.

    Args:
        scores: `[P]`, higher where watching is likelier.
        labels: `[P]`, 1 where the user watched the movie, else 0; both occur.
    """
    return float(ranking.auroc(scores, np.asarray(labels) == 1).mean())


def recalls(scores: ArrayLike, seen: NDArray, relevant: NDArray, k: int = 20) -> Floats:
    """Recall of the k movies recommended to each user (Liang et al. 2018, arXiv:1802.05814, 4.2).

    Of a user with relevant movies R, the share |R & top k| / min(k, |R|), which is 1 at best. The
    top k are the highest scores among movies that the user was not seen to watch. Movies that tie
    for the last places share them: the result is the mean over all orders of the ties.

    Args:
        scores: `[N, M]`, higher is likelier, not NaN.
        seen: bool `[N, M]`, what each user was seen to watch, which is not recommended.
        relevant: int `[P, 2]`, (user, movie): what each user watched, too; not seen, no pair twice.
        k: number of recommendations, positive.

    Returns:
        `[U]`, the recall of every user who has relevant movies, in the order of the users.

    Raises:
        ValueError: `k` is not positive, scores have another shape or are not finite, or what is
            relevant is empty, seen, or given twice.
    """
    num_users, num_movies = seen.shape
    users, movies = np.asarray(relevant).T
    if k < 1:
        raise ValueError(f"k={k} must be positive")
    if not len(users) or seen[users, movies].any():
        raise ValueError(f"relevant, {len(users)} pairs, must not be empty, nor be seen")
    if len(np.unique(users * np.int64(num_movies) + movies)) < len(users):
        raise ValueError("relevant must hold no pair twice")
    hits = np.zeros(num_users)
    np.add.at(hits, users, _places(scores, seen, k)[users, movies])
    counts = np.bincount(users, minlength=num_users)
    has_any = counts > 0
    return hits[has_any] / np.minimum(k, counts[has_any])


def _places(scores: ArrayLike, seen: NDArray, k: int) -> Floats:
    """The probability `[B, M]` that a movie is among a user's top k, ties in random order."""
    values = np.array(scores, np.float64)
    if values.shape != seen.shape or not np.isfinite(values).all():
        raise ValueError(f"scores of shape {values.shape} must be {seen.shape}, and finite")
    values[seen] = -np.inf
    num_places = min(k, values.shape[1])
    last = np.partition(values, -num_places, axis=1)[:, [-num_places]]
    above, ties = values > last, values == last
    left = num_places - above.sum(axis=1, keepdims=True)
    return above + ties * (left / ties.sum(axis=1, keepdims=True))
