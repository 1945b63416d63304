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

from ensemble.data.source import in_memory
from ensemble.errors import InputError
from ensemble.priors import Prior, sample_prior
from ensemble.recommendation import ranking
from ensemble.recommendation.baselines import fit_popularity
from ensemble.recommendation.datasets import WATCHED, Names, RatingDataset, WatchDataset

if TYPE_CHECKING:
    from ensemble.recommendation.watch_task import Factorisation

NUM_RECOMMENDED = 20
Interacted = WatchDataset | RatingDataset
"""What is recommended from."""
Link = Callable[[np.ndarray], np.ndarray]
"""From a factorisation's outputs to what a user reads: probabilities, or ratings."""
_USERS_PER_BLOCK = 256
_TAIL = 0.05  # Of the draws, below and above an interval.
_NEW_STREAM = 2**32 - 3  # What the seed is folded with to draw new users and items.


class Recommendation(NamedTuple):
    """One item for one user.

    Attributes:
        item: its id in the data.
        title: as the data have it; the id where nobody says it.
        genre: its first one, or nothing.
        share: of the draws whose best unseen item it is.
        mean: over the draws: the probability of watching it, or the expected rating.
        low: 5% of the draws have a lower one.
        high: 5% have a higher one.
    """

    item: str
    title: str
    genre: str
    share: float
    mean: float
    low: float
    high: float


@jax.jit
def logits_of(draws: Any, users: jax.Array) -> jax.Array:
    """Log-odds [K, B, M] of some users watching each item, by every draw.

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


def choose_first(draws: Any, dataset: Interacted, user: int) -> np.ndarray:
    """Returns the item [K] that each draw recommends first: the best one not watched or rated."""
    return _best_unseen(_logits_of_one(draws, user), dataset.seen(user))


def _logits_of_one(draws: Any, user: int) -> np.ndarray:
    """Log-odds [K, M] of one user, by every draw."""
    return np.asarray(logits_of(draws, np.array([user]))[:, 0])


def _best_unseen(logits: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return np.where(seen, -np.inf, logits).argmax(axis=1)


def recommended(
    draws: Any,
    names: Names,
    seen: np.ndarray,
    user: int,
    top: int = NUM_RECOMMENDED,
    link: Link = scipy.special.expit,
    item: int | None = None,
) -> list[Recommendation]:
    """Recommends items that a user has not watched or rated, the best first.

    Args:
        draws: parameters [K, ...].
        names: of the items.
        seen: whether the user has watched or rated each item [M].
        user: number of the user.
        top: how many at most, positive.
        link: from the draws' outputs to what is recommended by.
        item: the number of one, seen or not, that alone is asked for.

    Raises:
        InputError: the draws give no probabilities.
    """
    logits = _logits_of_one(draws, user)
    is_good = np.isfinite(logits).all(axis=1)
    if not is_good.all():
        raise InputError(
            f"{np.sum(~is_good)} of {len(logits)} draws predict NaN or infinite values for this "
            "user, and every draw counts; sample again in a new workdir"
        )
    values = link(logits)
    mean = values.mean(axis=0)
    low, high = np.quantile(values, [_TAIL, 1 - _TAIL], axis=0)
    counts = collections.Counter(_best_unseen(logits, seen).tolist())
    unseen = np.flatnonzero(~seen)
    order = unseen[np.argsort(-mean[unseen], kind="stable")][:top]
    return [
        Recommendation(
            item=names.item_ids[one],
            title=names.titles[one],
            genre=names.genres[one],
            share=counts[int(one)] / len(values),
            mean=float(mean[one]),
            low=float(low[one]),
            high=float(high[one]),
        )
        for one in (order if item is None else [item])
    ]


def with_new(draws: Any, priors: tuple[Prior, ...], kind: str, seed: int) -> Any:
    """Puts one more user, or one more item, at the end of draws, drawn from the prior for each.

    Nothing is known of it but what is known of all, so that its posterior is the prior.

    Args:
        draws: parameters [K, ...].
        priors: of the run.
        kind: `user` or `movie`.
        seed: of the draws.
    """
    names = {name: draws[name] for name in (f"{kind}_embeddings", f"{kind}_bias")}
    shapes = {
        name: jax.ShapeDtypeStruct((1, *leaf.shape[2:]), np.float32) for name, leaf in names.items()
    }
    # A new user and a new item are drawn independently.
    stream = _NEW_STREAM - ("user", "movie").index(kind)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), stream), num_of(draws))
    new = jax.vmap(lambda key: sample_prior(key, priors, shapes))(keys)
    joined = {name: np.concatenate([leaf, new[name]], axis=1) for name, leaf in names.items()}
    return {**draws, **joined}


def num_of(draws: Any) -> int:
    """K, the number of draws."""
    return len(draws["user_bias"])


def extreme_users(dataset: Interacted) -> dict[str, int]:
    """The numbers of the users who have watched or rated most and fewest items."""
    return {"most": int(dataset.counts.argmax()), "fewest": int(dataset.counts.argmin())}


def recommendation_section(dataset: Interacted, draws: Any, scores: Any) -> dict[str, Any]:
    """The report's entry `recommendation`.

    Args:
        dataset: what was learned.
        draws: parameters [K, ...] of the posterior.
        scores: of the posterior and of simpler models, by name.

    Returns:
        `num_draws`; `held_out`, the scores; `first_choices`: of the users who watched or rated most
        and fewest, how many items that are, and how many of the draws recommend what first.
    """
    names, choices = dataset.names, {}
    counted = "num_watched" if isinstance(dataset, WatchDataset) else "num_rated"
    for which, user in extreme_users(dataset).items():
        movies = choose_first(draws, dataset, user)
        choices[which] = {
            "user": names.user_ids[user],
            counted: int(dataset.counts[user]),
            "titles": _counted(names.titles, movies),
            "genres": _counted(names.genres, movies),
        }
    return {"num_draws": num_of(draws), "held_out": scores, "first_choices": choices}


def _counted(names: Sequence[str], movies: np.ndarray) -> dict[str, int]:
    """How often each title or genre is among items, most first."""
    return dict(collections.Counter(names[movie] for movie in movies).most_common())


def score_models(task: Factorisation, draws: Any, map_params: Any) -> dict[str, dict[str, float]]:
    """Scores the posterior's mean and simpler models on the held-out pairs of watches.

    Returns:
        Log likelihood in nats a pair, AUC and recall@20 of the mean over draws, of the MAP, of a
        bias for each user and item, and of popularity; of generated data also the RMSE of the
        watch probabilities.
    """
    observed = task.observed
    popularity = fit_popularity(observed, task.excess)
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
