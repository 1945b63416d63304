"""Scores of draws of a factorisation next to simpler models, on held-out watches or ratings."""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ensemble.data.source import Examples, in_memory
from ensemble.metrics.ranking import auroc
from ensemble.recommendation.interactions import probabilities

if TYPE_CHECKING:
    from ensemble.recommendation.factorisation import Factorisation

NUM_RECOMMENDED = 20
_USERS_PER_BLOCK = 256
_LEAST = 1e-37  # A probability in float32.


def section(task: Factorisation, draws: Any, maximum: Any) -> dict[str, Any]:
    """The section `recommendation` of results.json.

    Args:
        task: Task that was learned.
        draws: Parameters [K, ...] of the posterior.
        maximum: Parameters at the MAP.

    Returns:
        `num_draws`; `held_out`, scores by model; and `first_choices` of the users who have watched
        or rated most and fewest items: how many that are, and how many draws recommend what first.
    """
    dataset, found, choices = task.dataset, task.dataset.interactions, {}
    counts = np.bincount(found.rows.drop_duplicates(["user", "item"])["user"])
    for which, user in (("most", counts.argmax()), ("fewest", counts.argmin())):
        chosen = best_unseen(outputs_of(draws, user), dataset.seen(user))
        items = [found.items[one] for one in chosen]
        choices[which] = {
            "user": found.user_ids[user],
            "num_rated" if task.of_ratings else "num_watched": int(counts[user]),
            "titles": _counted([one.title for one in items]),
            "genres": _counted([one.genre for one in items]),
        }
    score = _score_ratings if task.of_ratings else _score_watches
    single = {"map": maximum} | task.baselines
    models = {"posterior": draws} | {
        name: jax.tree.map(lambda leaf: np.asarray(leaf)[None], one) for name, one in single.items()
    }
    held_out = {name: score(task, params) for name, params in models.items()}
    return {"num_draws": num_of(draws), "held_out": held_out, "first_choices": choices}


def _counted(names: list[str]) -> dict[str, int]:
    """How often each name is there, most first."""
    return dict(collections.Counter(names).most_common())


def num_of(draws: Any) -> int:
    """Number K of draws."""
    return len(draws["user_bias"])


def outputs_of(draws: Any, user: int) -> np.ndarray:
    """Log-odds of watching, or standardised ratings, [K, M], of one user by every draw."""
    return np.asarray(_outputs_of_draws(draws, np.array([user]))[:, 0])


def best_unseen(outputs: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The item [K] that each draw recommends first, of outputs [K, M] and items seen, bool [M]."""
    return np.where(seen, -np.inf, outputs).argmax(axis=1)


def _outputs(params: Any, users: jax.Array) -> jax.Array:
    """Outputs [B, M] of some users by one draw."""
    with jax.default_matmul_precision("highest"):
        products = params["user_embeddings"][users] @ params["movie_embeddings"].T
    return products + params["user_bias"][users, None] + params["movie_bias"]


_outputs_of_draws = jax.jit(jax.vmap(_outputs, (0, None)))


@jax.jit
def mean_probabilities(draws: Any, users: jax.Array) -> jax.Array:
    """Means over draws of the probabilities of not watching and of watching, [2, B, M]."""

    def add(total: jax.Array, params: Any) -> tuple[jax.Array, None]:
        logits = _outputs(params, users)
        return total + jax.nn.sigmoid(jnp.stack([-logits, logits])), None

    zeros = jnp.zeros((2, len(users), draws["movie_bias"].shape[1]))
    return jax.lax.scan(add, zeros, draws)[0] / num_of(draws)


def _score_watches(task: Factorisation, draws: Any) -> dict[str, float]:
    """Log likelihood in nats a pair, AUC and recall@20 of the mean over draws.

    Of generated watches, also the RMSE of the probabilities of all pairs: factors are not
    identified, probabilities are.
    """
    (pairs, labels), signs = in_memory(task.dataset, "test"), task.dataset.signs
    truth = task.dataset.interactions.truth
    log_odds, log_probs = np.zeros((2, len(labels)))
    recalled, squares = [], 0.0
    for start in range(0, len(signs), _USERS_PER_BLOCK):
        users = np.arange(start, min(start + _USERS_PER_BLOCK, len(signs)))
        p = np.asarray(mean_probabilities(draws, users), np.float64)
        logs = np.log(np.maximum(p, _LEAST))
        scores = logs[1] - logs[0]
        here = np.isin(pairs[:, 0], users)
        rows, items = pairs[here, 0] - start, pairs[here, 1]
        log_odds[here], log_probs[here] = scores[rows, items], logs[labels[here], rows, items]
        relevant = np.stack([rows, items], axis=1)[labels[here] == 1]
        recalled.append(recalls(scores, signs[users] > 0, relevant))
        if truth is not None:
            squares += np.sum((p[1] - probabilities(truth, users)) ** 2)
    found = {
        "log_likelihood": log_probs.mean(),
        "auc": auroc(log_odds, labels == 1).mean(),
        f"recall_at_{NUM_RECOMMENDED}": np.concatenate(recalled).mean(),
        **({"rmse": np.sqrt(squares / signs.size)} if truth is not None else {}),
    }
    return {name: float(value) for name, value in found.items()}


def recalls(
    scores: NDArray, seen: NDArray, relevant: NDArray, k: int = NUM_RECOMMENDED
) -> NDArray[np.float64]:
    """Recall of the k items recommended to each user (Liang et al. 2018, arXiv:1802.05814, 4.2).

    Of a user with relevant items R, the share |R & top k| / min(k, |R|), which is 1 at best. The
    top k are the highest scores among items that the user was not seen to watch. Items that tie for
    the last places share them: the result is the mean over all orders of the ties.

    Args:
        scores: [N, M], finite; higher is likelier.
        seen: Whether each user was seen to watch each item, bool [N, M]; these are not recommended.
        relevant: Pairs of a user and an item that is watched, too, and not seen, int [P, 2].
        k: Number of recommendations, positive.

    Returns:
        Recalls of the users who have relevant items, [U], in the order of the users.
    """
    values = np.where(seen, -np.inf, scores)
    num_places = min(k, values.shape[1])
    last = np.partition(values, -num_places, axis=1)[:, [-num_places]]
    above, ties = values > last, values == last
    left = num_places - above.sum(axis=1, keepdims=True)
    places = above + ties * (left / ties.sum(axis=1, keepdims=True))
    users, items = relevant.T
    hits = np.bincount(users, places[users, items], len(values))
    counts = np.bincount(users, minlength=len(values))
    return hits[counts > 0] / np.minimum(k, counts[counts > 0])


def _score_ratings(task: Factorisation, draws: Any) -> dict[str, float]:
    """Log likelihood in nats a rating of the mixture of draws, and RMSE of its mean."""
    split = in_memory(task.dataset, "test")
    mean, log_density, number = 0.0, -np.inf, num_of(draws)
    for k in range(number):  # One at a time: all of them may be more than memory holds.
        one = jax.tree.map(lambda leaf, k=k: leaf[k], draws)
        means, log_densities_ = log_densities(task, one, split)
        mean = mean + means / number
        log_density = np.logaddexp(log_density, log_densities_ - np.log(number))
    errors = mean - split.targets
    return {
        "log_likelihood": float(np.mean(log_density)),
        "rmse": float(np.sqrt(np.mean(errors**2))),
    }


def log_densities(task: Factorisation, params: Any, split: Examples) -> tuple[NDArray, NDArray]:
    """Means and log densities [P] of ratings by one draw, float64."""
    found = _predict(task, params, split.inputs)
    mean, sd = (np.asarray(found[name], np.float64) for name in ("loc", "scale"))
    errors = (split.targets - mean) / sd
    return mean, -0.5 * (errors**2 + np.log(2 * np.pi)) - np.log(sd)


@functools.partial(jax.jit, static_argnums=0)
def _predict(task: Factorisation, params: Any, pairs: Any) -> Any:
    return task.predict({"params": params}, pairs)
