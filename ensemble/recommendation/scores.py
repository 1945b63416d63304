"""Scores of draws of a factorisation next to simpler models, on held-out watches or ratings."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ensemble.data.source import Examples, in_memory
from ensemble.metrics.ranking import auroc
from ensemble.recommendation.interactions import PAIR

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
    counts = np.bincount(found.rows.drop_duplicates(PAIR)["user"])
    for which, user in (("most", counts.argmax()), ("fewest", counts.argmin())):
        outputs = outputs_of(of_users(draws, slice(user, user + 1)))
        items = found.items.iloc[best_unseen(outputs, dataset.seen(user))]
        choices[which] = {
            "user": found.user_ids[user],
            "num_rated" if task.of_ratings else "num_watched": int(counts[user]),
            "titles": items["title"].value_counts().to_dict(),
            "genres": items["genre"].value_counts().to_dict(),
        }
    score = _score_ratings if task.of_ratings else _score_watches
    single = {"map": maximum, **task.baselines}
    models = {
        name: jax.tree.map(lambda leaf: np.asarray(leaf)[None], single[name]) for name in single
    }
    held_out = {name: score(task, one) for name, one in {"posterior": draws, **models}.items()}
    return {"num_draws": num_of(draws), "held_out": held_out, "first_choices": choices}


def num_of(draws: Any) -> int:
    """Number K of draws."""
    return len(draws["user_bias"])


def of_users(draws: Any, users: slice) -> dict[str, Any]:
    """Draws [K, ...] of the parameters of all items and of some users alone."""
    own = {name: draws[name][:, users] for name in ("user_embeddings", "user_bias")}
    return {**draws, **own}


def outputs_of(draws: Any) -> np.ndarray:
    """Log-odds of watching, or standardised ratings, [K, M], by draws of one user's parameters."""
    return np.asarray(_outputs_of_draws(draws)[:, 0])


def best_unseen(outputs: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The item [K] that each draw recommends first, of outputs [K, M] and items seen, bool [M]."""
    return np.where(seen, -np.inf, outputs).argmax(axis=1)


def _outputs(params: Any) -> jax.Array:
    """Outputs [B, M] by one draw of some users' parameters."""
    with jax.default_matmul_precision("highest"):
        products = params["user_embeddings"] @ params["movie_embeddings"].T
    return products + params["user_bias"][:, None] + params["movie_bias"]


_outputs_of_draws = jax.jit(jax.vmap(_outputs))


@jax.jit
def mean_probabilities(draws: Any) -> jax.Array:
    """Means over draws of probabilities of not watching and of watching, [2, B, M]."""

    def add(total: jax.Array, params: Any) -> tuple[jax.Array, None]:
        logits = _outputs(params)
        return total + jax.nn.sigmoid(jnp.stack([-logits, logits])), None

    shape = 2, draws["user_bias"].shape[1], draws["movie_bias"].shape[1]
    return jax.lax.scan(add, jnp.zeros(shape), draws)[0] / num_of(draws)


def _score_watches(task: Factorisation, draws: Any) -> dict[str, float]:
    """Log likelihood in nats a pair, AUC and recall@20 of the mean over draws."""
    (pairs, labels), signs = in_memory(task.dataset, "test"), task.dataset.signs
    log_odds, log_probs, recalled = np.zeros(len(labels)), np.zeros(len(labels)), []
    for start in range(0, len(signs), _USERS_PER_BLOCK):
        users = slice(start, start + _USERS_PER_BLOCK)
        p = np.asarray(mean_probabilities(of_users(draws, users)), np.float64)
        logs = np.log(np.maximum(p, _LEAST))
        scores = logs[1] - logs[0]
        here = pairs[:, 0] // _USERS_PER_BLOCK == start // _USERS_PER_BLOCK
        rows, items = pairs[here, 0] - start, pairs[here, 1]
        log_odds[here], log_probs[here] = scores[rows, items], logs[labels[here], rows, items]
        relevant = np.stack([rows, items], axis=1)[labels[here] == 1]
        recalled.append(recalls(scores, signs[users] > 0, relevant))
    return {
        "log_likelihood": float(log_probs.mean()),
        "auc": float(auroc(log_odds, labels == 1).mean()),
        f"recall_at_{NUM_RECOMMENDED}": float(np.concatenate(recalled).mean()),
    }


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
    mean, log_density = np.zeros(len(split.targets)), np.full(len(split.targets), -np.inf)
    number = num_of(draws)
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
