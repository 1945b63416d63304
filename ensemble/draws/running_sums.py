"""Running sums of what draws predict: model averages that take no more memory with more draws."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ensemble.sharding import processes
from ensemble.sharding.mesh import PlacedSplit
from ensemble.storage.predictions import MemberPredictions

DRAW_SCORES = ("accuracy", "nll", "brier")
_HUGE = 1e30  # Of a probability's logarithm: nothing.


class PredictiveSums(struct.PyTreeNode):
    """Sums over draws, of each chain, with what rounding has added to them (Kahan 1965).

    They are of the same bits in whatever chunks the draws are taken.

    Attributes:
        top: [C, N, K], the largest log-probability of each of K classes so far; probabilities are
            summed relative to it, for alone they could all vanish.
        totals: `probs` [C, N, K], `entropies` [C, N] in nats, and `DRAW_SCORES` [C], means over the
            split's examples.
        excess: the same.
    """

    top: jax.Array
    totals: dict[str, jax.Array]
    excess: dict[str, jax.Array]


def zero_sums(num_chains: int, num_places: int, num_classes: int) -> PredictiveSums:
    """The sums over no draws; `num_places` counts a split's padding."""
    totals = {
        "probs": jnp.zeros((num_chains, num_places, num_classes)),
        "entropies": jnp.zeros((num_chains, num_places)),
        **{name: jnp.zeros(num_chains) for name in DRAW_SCORES},
    }
    top = jnp.full((num_chains, num_places, num_classes), -_HUGE)
    return PredictiveSums(top, totals, jax.tree.map(jnp.zeros_like, totals))


def evaluate_draws(log_probs: jax.Array, split: PlacedSplit) -> dict[str, jax.Array]:
    """What one draw of every chain says of a split.

    Args:
        log_probs: [C, N, K].
        split: of the N examples.

    Returns:
        `log_probs`, and beside the probabilities the terms of `PredictiveSums.totals`.
    """
    probs = jnp.exp(log_probs)
    of_label = jnp.take_along_axis(log_probs, split.targets[None, :, None], axis=-1)[..., 0]
    squares = jnp.sum(probs**2, axis=-1) - 2 * jnp.exp(of_label) + 1
    num_examples = jnp.sum(split.mask)

    def mean(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(split.mask, values, 0), axis=-1) / num_examples

    return {
        "log_probs": log_probs,
        "entropies": -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0), axis=-1),
        "accuracy": mean((jnp.argmax(log_probs, axis=-1) == split.targets).astype(jnp.float32)),
        "nll": mean(-of_label),
        "brier": mean(squares),
    }


def add_draws(sums: PredictiveSums, terms: Mapping[str, jax.Array]) -> PredictiveSums:
    """Adds one draw of every chain to the sums, by compensated summation."""
    log_probs = terms["log_probs"]
    top = jnp.maximum(sums.top, log_probs)
    rescale = jnp.exp(sums.top - top)
    terms = {**terms, "probs": jnp.exp(log_probs - top)}
    totals, excess = {}, {}
    for name, total in sums.totals.items():
        before, extra = total, sums.excess[name]
        if name == "probs":
            before, extra = before * rescale, extra * rescale
        term = terms[name] - extra
        totals[name] = before + term
        excess[name] = (totals[name] - before) - term
    return PredictiveSums(top, totals, excess)


def averages(
    sums: PredictiveSums, num_draws: int, num_examples: int
) -> tuple[MemberPredictions, dict[str, np.ndarray]]:
    """Fetches the averages over draws.

    Args:
        sums: over the draws.
        num_draws: how many, at least one.
        num_examples: N of the split, without padding.

    Returns:
        Model averages [C, N, K] of the chains with the mean entropies of their draws [C, N], and
        the mean scores of single draws [C], by name.
    """
    top, sum_of, excess_of = processes.fetch((sums.top, sums.totals, sums.excess))
    totals: dict[str, np.ndarray] = {
        name: (total.astype(np.float64) - excess_of[name].astype(np.float64)) / num_draws
        for name, total in sum_of.items()
    }
    with np.errstate(divide="ignore"):  # A class may have had no probability in any draw.
        log_probs = top.astype(np.float64) + np.log(totals["probs"])
    log_probs = log_probs[:, :num_examples].astype(np.float32)
    predictions = MemberPredictions(
        log_probs, totals["entropies"][:, :num_examples].astype(np.float32)
    )
    return predictions, {name: totals[name] for name in DRAW_SCORES}
