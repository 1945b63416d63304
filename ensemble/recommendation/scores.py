"""Scores of draws of a factorisation next to simpler models, on held-out watches or ratings."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ensemble.metrics.ranking import auroc
from ensemble.pytrees import ByName
from ensemble.recommendation.likelihood import USERS, outputs_of
from ensemble.report.sections import Section, grid

NUM_RECOMMENDED = 20
_USERS_PER_BLOCK = 256


def of_users(draws: Any, users: slice) -> ByName:
    """Draws [K, ...] of the parameters of all items and of some users alone."""
    return {**draws, **{name: draws[name][:, users] for name in USERS}}


def score(task: Any, draws: Any) -> dict[str, float]:
    """Scores a mixture of draws on the pairs that a `Factorisation` holds out.

    Args:
        task: `Factorisation` that was learned.
        draws: Parameters [K, ...].

    Returns:
        Log likelihood in nats a pair; and AUC and recall@20 of watches, or RMSE of ratings.
    """
    test = task.dataset.splits["test"]
    mean, log_density = (np.asarray(one, np.float64) for one in _mixture(task, draws, test))
    found = {"log_likelihood": log_density.mean()}
    if task.of_ratings:
        found["rmse"] = np.mean((mean - test.targets) ** 2) ** 0.5
    else:
        signs = task.dataset.signs
        relevant = np.zeros(signs.shape, bool)
        relevant[tuple(test.inputs[test.targets == 1].T)] = True
        recalled = []
        for start in range(0, len(signs), _USERS_PER_BLOCK):
            users = slice(start, start + _USERS_PER_BLOCK)
            best = _best(of_users(draws, users), signs[users] > 0)
            recalled.append(recalls(np.asarray(best), relevant[users]))
        found["auc"] = auroc(mean, test.targets == 1).mean()
        found[f"recall_at_{NUM_RECOMMENDED}"] = np.concatenate(recalled).mean()
    return {name: float(value) for name, value in found.items()}


@functools.partial(jax.jit, static_argnums=0)
def _mixture(task: Any, draws: Any, split: Any) -> tuple[jax.Array, jax.Array]:
    """Predictions of the pairs [P] of a split by the mixture of draws.

    Returns:
        Means of ratings, or probabilities of watching; and log densities of the targets, nats.
    """

    def add(total: Any, params: Any) -> Any:
        log_prob, aux = task.log_likelihood({"params": params}, *split)
        found = aux.predicted
        mean = found["loc"] if task.of_ratings else jnp.exp(found["log_probs"][:, 1])
        return (total[0] + mean, jnp.logaddexp(total[1], log_prob)), None

    number = len(draws["user_bias"])
    zeros = jnp.zeros(len(split.targets))
    mean, log_density = jax.lax.scan(add, (zeros, zeros - jnp.inf), draws)[0]
    return mean / number, log_density - jnp.log(number)


@jax.jit
def _best(draws: Any, seen: jax.Array) -> jax.Array:
    """Numbers of the items recommended to users [B, k] who have seen some, bool [B, M].

    They are the likeliest by the mixture of draws; of equal ones the first.
    """

    def add(total: jax.Array, params: Any) -> tuple[jax.Array, None]:
        return total + jax.nn.sigmoid(outputs_of(params)), None

    total, _ = jax.lax.scan(add, jnp.zeros(seen.shape), draws)
    number = min(NUM_RECOMMENDED, seen.shape[1])
    return jax.lax.top_k(jnp.where(seen, -jnp.inf, total), number)[1]


def recalls(best: NDArray, relevant: NDArray) -> NDArray[np.float64]:
    """Recall of the items recommended to each user (Liang et al. 2018, arXiv:1802.05814, 4.2).

    Of a user with relevant items R and k recommendations, the share |R & best| / min(k, |R|), which
    is 1 at best.

    Args:
        best: Numbers of the items that are recommended, int [N, k], of those that were not seen.
        relevant: Whether an item that was not seen is watched, too, bool [N, M].

    Returns:
        Recalls of the users who have relevant items, [U], in the order of the users.
    """
    hits = np.take_along_axis(relevant, best, axis=1).sum(axis=1)
    counts = relevant.sum(axis=1)
    has_some = counts > 0
    return hits[has_some] / np.minimum(best.shape[1], counts[has_some])


_TITLES = {"log_likelihood": "nats", "auc": "AUC", "recall_at_20": "recall@20", "rmse": "RMSE"}


def _contents(report: ByName) -> list[str]:
    """Shows the draws that were kept next to simpler models, by the pairs that were held out."""
    found = report["recommendation"]["held_out"]
    rows = [[model, *(f"{one:.4f}" for one in found[model].values())] for model in found]
    return ["", grid(["held out", *(_TITLES[name] for name in found["posterior"])], rows)]


SECTION = Section(_contents)
