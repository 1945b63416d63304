"""What the draws of a matrix factorisation recommend, and how they do beside simpler models."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ensemble.errors import UserError
from ensemble.recommendation import ranking
from ensemble.recommendation.baselines import fit_popularity
from ensemble.recommendation.movielens import WATCHED, WatchDataset
from ensemble.source import in_memory

if TYPE_CHECKING:
    from ensemble.recommendation.watch_task import Factorisation

NUM_RECOMMENDED = 20
_USERS_PER_BLOCK = 256
_TAIL = 0.05  # Of the draws, below and above an interval.


class Recommendation(NamedTuple):
    """One movie for one user.

    Attributes:
        movie: its number.
        title: as the data have it.
        genre: its first one.
        share: of the draws whose best unwatched movie it is.
        probability: of watching it, the mean over draws.
        low: 5% of the draws have a lower probability.
        high: 5% have a higher one.
    """

    movie: int
    title: str
    genre: str
    share: float
    probability: float
    low: float
    high: float


@jax.jit
def logits_of(draws: Any, users: jax.Array) -> jax.Array:
    """Log-odds [K, B, M] of some users watching each movie, by every draw.

    Args:
        draws: parameters [K, ...].
        users: [B], their numbers.
    """
    with jax.default_matmul_precision("highest"):
        products = jnp.einsum(
            "kbd,kmd->kbm", draws["user_embeddings"][:, users], draws["movie_embeddings"]
        )
    return products + draws["user_bias"][:, users, None] + draws["movie_bias"][:, None, :]


@jax.jit
def watch_probabilities(draws: Any, users: jax.Array) -> jax.Array:
    """Probabilities [B, M] of watching, the mean over draws, one draw at a time."""
    num_draws = len(draws["user_bias"])
    shape = (len(users), draws["movie_bias"].shape[1])

    def add(total: jax.Array, draw: Any) -> tuple[jax.Array, None]:
        one = jax.tree.map(lambda leaf: leaf[None], draw)
        return total + jax.nn.sigmoid(logits_of(one, users)[0]), None

    return jax.lax.scan(add, jnp.zeros(shape), draws)[0] / num_draws


def choose_first(draws: Any, dataset: WatchDataset, user: int) -> np.ndarray:
    """Returns the movie [K] that each draw recommends first: the likeliest one not watched."""
    return _best_unwatched(_logits_of_one(draws, user), dataset, user)


def _logits_of_one(draws: Any, user: int) -> np.ndarray:
    """Log-odds [K, M] of one user, by every draw."""
    return np.asarray(logits_of(draws, np.array([user]))[:, 0])


def _best_unwatched(logits: np.ndarray, dataset: WatchDataset, user: int) -> np.ndarray:
    is_watched = dataset.watches.watched[user] == WATCHED
    return np.where(is_watched, -np.inf, logits).argmax(axis=1)


def recommend(
    draws: Any, dataset: WatchDataset, user: int, top: int = NUM_RECOMMENDED
) -> list[Recommendation]:
    """Recommends movies that a user has not watched, the likeliest first.

    Args:
        draws: parameters [K, ...].
        dataset: whose users and movies they are of; held-out movies count as what they are.
        user: number of the user.
        top: how many at most, positive.

    Raises:
        UserError: the draws give no probabilities.
    """
    logits = _logits_of_one(draws, user)
    if not np.isfinite(logits).all():
        raise UserError("the draws hold NaN, infinities or as much; sample in a new --workdir")
    probabilities = scipy.special.expit(logits)
    mean = probabilities.mean(axis=0)
    low, high = np.quantile(probabilities, [_TAIL, 1 - _TAIL], axis=0)
    counts = collections.Counter(_best_unwatched(logits, dataset, user).tolist())
    unwatched = np.flatnonzero(dataset.watches.watched[user] != WATCHED)
    order = unwatched[np.argsort(-mean[unwatched], kind="stable")][:top]
    return [
        Recommendation(
            movie=int(movie),
            title=dataset.watches.movie_titles[movie],
            genre=dataset.watches.movie_genres[movie],
            share=counts[int(movie)] / len(probabilities),
            probability=float(mean[movie]),
            low=float(low[movie]),
            high=float(high[movie]),
        )
        for movie in order
    ]


def find_user(dataset: WatchDataset, user_id: str) -> int:
    """Returns a user's number.

    Raises:
        UserError: the data have no such user.
    """
    ids = dataset.watches.user_ids
    if user_id not in ids:
        raise UserError(
            f"user {user_id!r} is unknown in {dataset.name}; of its {len(ids):,} users the first "
            f"is {ids[0]!r}, the last {ids[-1]!r}"
        )
    return ids.index(user_id)


def extreme_users(dataset: WatchDataset) -> dict[str, int]:
    """The numbers of the users who have watched most and fewest movies."""
    counts = dataset.watches.watched.sum(axis=1, dtype=np.int64)
    return {"most": int(counts.argmax()), "fewest": int(counts.argmin())}


def recommendation_section(task: Factorisation, draws: Any, map_params: Any) -> dict[str, Any]:
    """The report's entry `recommendation`.

    Args:
        task: what was learned.
        draws: parameters [K, ...] of the posterior.
        map_params: at its maximum.

    Returns:
        `num_draws`; `held_out`: log likelihood in nats a pair, AUC and recall@20 of the mean over
        draws, of the MAP, of a bias for each user and movie, and of popularity, and of generated
        data the RMSE of the watch probabilities; `first_choices`: of the users who watched most
        and fewest, their number of watches, and how many of the draws recommend what first.
    """
    dataset = task.dataset
    watches, choices = dataset.watches, {}
    for which, user in extreme_users(dataset).items():
        movies = choose_first(draws, dataset, user)
        choices[which] = {
            "user": watches.user_ids[user],
            "num_watched": int(watches.watched[user].sum(dtype=np.int64)),
            "titles": _counted(watches.movie_titles, movies),
            "genres": _counted(watches.movie_genres, movies),
        }
    return {
        "num_draws": len(draws["user_bias"]),
        "held_out": score_models(task, draws, map_params),
        "first_choices": choices,
    }


def _counted(names: Sequence[str], movies: np.ndarray) -> dict[str, int]:
    """How often each title or genre is among movies, most first."""
    return dict(collections.Counter(names[movie] for movie in movies).most_common())


def score_models(task: Factorisation, draws: Any, map_params: Any) -> dict[str, dict[str, float]]:
    """Scores the posterior's mean and simpler models on the held-out pairs."""
    observed = task.observed
    popularity = fit_popularity(observed)
    user_bias, movie_bias = task.biases["user_bias"], task.biases["movie_bias"]
    maximum = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], map_params)
    scores: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
        "posterior": lambda users: _logit(np.asarray(watch_probabilities(draws, users))),
        "map": lambda users: np.asarray(logits_of(maximum, users)[0]),
        "biases": lambda users: user_bias[users, None] + movie_bias,
        "popularity": lambda users: np.broadcast_to(popularity, (len(users), len(popularity))),
    }
    return {name: _score(task, of_users) for name, of_users in scores.items()}


def _score(task: Factorisation, of_users: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
    """Held-out scores of log-odds [B, M] of watching, which are asked for by blocks of users.

    Where the data were generated, also the root mean squared error of the watch probabilities of
    all pairs: factors are not identified, probabilities are.
    """
    truth, observed = task.dataset.watches.truth, task.observed
    (pairs, labels), num_users = in_memory(task.dataset, "test"), len(observed)
    logits, recalls, squares = np.zeros(len(labels)), [], 0.0
    for start in range(0, num_users, _USERS_PER_BLOCK):
        users = np.arange(start, min(start + _USERS_PER_BLOCK, num_users))
        values = of_users(users)
        here = (pairs[:, 0] >= start) & (pairs[:, 0] <= users[-1])
        rows, movies = pairs[here, 0] - start, pairs[here, 1]
        logits[here] = values[rows, movies]
        relevant = np.stack([rows, movies], axis=1)[labels[here] == 1]
        if len(relevant):
            seen = observed[users] == WATCHED
            recalls.append(ranking.recalls(values, seen, relevant, NUM_RECOMMENDED))
        if truth is not None:
            errors = scipy.special.expit(values) - truth.probabilities(users)
            squares += float(np.sum(errors**2, dtype=np.float64))
    log_probs = ranking.watch_log_probs(logits)
    return {
        "log_likelihood": ranking.held_out_log_likelihood(log_probs, labels),
        "auc": ranking.auc(logits, labels),
        f"recall_at_{NUM_RECOMMENDED}": float(np.mean(np.concatenate(recalls))),
        **({"rmse": math.sqrt(squares / observed.size)} if truth is not None else {}),
    }


def _logit(probabilities: np.ndarray) -> np.ndarray:
    """Log-odds of probabilities, finite where float32 has rounded them to 0 or 1."""
    inside = np.clip(probabilities.astype(np.float64), 1e-12, 1 - 1e-12)
    return np.log(inside) - np.log1p(-inside)
