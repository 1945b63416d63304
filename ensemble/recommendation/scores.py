"""Scores of draws of a factorisation next to simpler models, on held-out watches or ratings."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ensemble.data.source import in_memory
from ensemble.metrics.ranking import auroc
from ensemble.recommendation.interactions import PAIR
from ensemble.recommendation.watch_likelihood import USERS, contract, join_biases

if TYPE_CHECKING:
    from ensemble.recommendation.factorisation import Factorisation

NUM_RECOMMENDED = 20
_USERS_PER_BLOCK = 256


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
    dataset = task.dataset
    found = task.dataset.interactions
    choices = {}
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
    single = {"map": maximum, **task.baselines}
    models = {
        name: jax.tree.map(lambda leaf: np.asarray(leaf)[None], single[name]) for name in single
    }
    held_out = {name: _score(task, one) for name, one in {"posterior": draws, **models}.items()}
    return {"num_draws": num_of(draws), "held_out": held_out, "first_choices": choices}


def num_of(draws: Any) -> int:
    """Number K of draws."""
    return len(draws["user_bias"])


def of_users(draws: Any, users: slice) -> dict[str, Any]:
    """Draws [K, ...] of the parameters of all items and of some users alone."""
    return {**draws, **{name: draws[name][:, users] for name in USERS}}


def outputs_of(draws: Any) -> np.ndarray:
    """Log-odds of watching, or standardised ratings, [K, M], by draws of one user's parameters."""
    return np.asarray(_outputs_of_draws(draws)[:, 0])


def best_unseen(outputs: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The item [K] that each draw recommends first, of outputs [K, M] and items seen, bool [M]."""
    return np.where(seen, -np.inf, outputs).argmax(axis=1)


def _outputs(params: Any) -> jax.Array:
    """Outputs [B, M] by one draw of some users' parameters."""
    return contract(*join_biases(params), 1, 1)


_outputs_of_draws = jax.jit(jax.vmap(_outputs))


def _score(task: Factorisation, draws: Any) -> dict[str, float]:
    """Log likelihood in nats a pair of the mixture of draws, and how its mean does.

    That is AUC and recall@20 of watches, or RMSE of ratings; of generated watches, also RMSE of the
    probabilities of all pairs.
    """
    split = in_memory(task.dataset, "test")
    mean, log_density = (np.asarray(one, np.float64) for one in mixture(task, draws, split))
    found = {"log_likelihood": log_density.mean()}
    if task.of_ratings:
        found["rmse"] = np.mean((mean - split.targets) ** 2) ** 0.5
    else:
        found["auc"] = auroc(mean, split.targets == 1).mean()
        is_seen = task.dataset.signs > 0
        truth = task.dataset.interactions.truth
        relevant = np.zeros_like(is_seen)
        recalled = []
        squares = 0.0
        relevant[tuple(split.inputs[split.targets == 1].T)] = True
        for start in range(0, len(relevant), _USERS_PER_BLOCK):
            users = slice(start, start + _USERS_PER_BLOCK)
            p = np.asarray(_mean_probabilities(of_users(draws, users)))
            recalled.append(recalls(p, is_seen[users], relevant[users]))
            if truth is not None:
                squares += np.mean((p - truth[users]) ** 2, axis=1, dtype=np.float64).sum()
        found[f"recall_at_{NUM_RECOMMENDED}"] = np.concatenate(recalled).mean()
        if truth is not None:
            found["rmse"] = (squares / len(truth)) ** 0.5
    return {name: float(value) for name, value in found.items()}


@functools.partial(jax.jit, static_argnums=0)
def mixture(task: Factorisation, draws: Any, split: Any) -> tuple[jax.Array, jax.Array]:
    """Predictions of the pairs [P] of a split by the mixture of draws.

    Returns:
        Means of ratings, or probabilities of watching; and log densities of the targets, nats.
    """

    def add(total: Any, params: Any) -> Any:
        log_prob, aux = task.log_likelihood({"params": params}, *split)
        mean = (
            aux.predicted["loc"] if task.of_ratings else jnp.exp(aux.predicted["log_probs"][:, 1])
        )
        return (total[0] + mean, jnp.logaddexp(total[1], log_prob)), None

    start = jnp.zeros(len(split.targets)), jnp.full(len(split.targets), -jnp.inf)
    mean, log_density = jax.lax.scan(add, start, draws)[0]
    return mean / num_of(draws), log_density - jnp.log(num_of(draws))


@jax.jit
def _mean_probabilities(draws: Any) -> jax.Array:
    """Means over draws of the probabilities of watching, [B, M]."""

    def add(total: jax.Array, params: Any) -> tuple[jax.Array, None]:
        return total + jax.nn.sigmoid(_outputs(params)), None

    shape = draws["user_bias"].shape[1], draws["movie_bias"].shape[1]
    return jax.lax.scan(add, jnp.zeros(shape), draws)[0] / num_of(draws)


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
        relevant: Whether an item that was not seen is watched, too, bool [N, M].
        k: Number of recommendations, positive.

    Returns:
        Recalls of the users who have relevant items, [U], in the order of the users.
    """
    values = np.where(seen, -np.inf, scores)
    num_places = min(k, values.shape[1])
    last = np.partition(values, -num_places, axis=1)[:, [-num_places]]
    above = values > last
    ties = values == last
    left = num_places - above.sum(axis=1, keepdims=True)
    places = above + ties * (left / ties.sum(axis=1, keepdims=True))
    hits = (places * relevant).sum(axis=1)
    counts = relevant.sum(axis=1)
    return hits[counts > 0] / np.minimum(k, counts[counts > 0])
