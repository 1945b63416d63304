"""Running sums of what draws predict: model averages that take no more memory with more draws."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ensemble import target_rows
from ensemble.likelihood import Likelihood
from ensemble.sharding import transfer
from ensemble.sharding.transfer import PlacedSplit

_HUGE = 1e30  # Of the logarithm of nothing.


class PredictiveSums(struct.PyTreeNode):
    """Sums over draws, of each chain, with what rounding has added to them (Kahan 1965).

    They are of the same bits in whatever chunks the draws are taken.

    Attributes:
        top: [C, N, ...], the largest logarithm so far of the entry `Likelihood.relative`, which is
            summed relative to it: alone, a density or a probability could vanish.
        totals: the entries of `Likelihood.draw_terms` [C, N, ...], and of `Likelihood.draw_scores`
            [C], means over the split's examples.
        excess: the same.
    """

    top: jax.Array
    totals: dict[str, jax.Array]
    excess: dict[str, jax.Array]


def zero_sums(likelihood: Likelihood, num_chains: int, split: PlacedSplit) -> PredictiveSums:
    """The sums over no draws.

    Args:
        likelihood: of the task.
        num_chains: C.
        split: on the devices, of which only the shapes count.
    """
    outputs = jax.ShapeDtypeStruct(
        (num_chains, *split.mask.shape, likelihood.num_outputs), jnp.float32
    )
    own = jax.eval_shape(likelihood.init, jax.eval_shape(jax.random.key, 0))

    def evaluate(own: Mapping[str, jax.Array], outputs: jax.Array, split: PlacedSplit) -> dict:
        predicted = jax.vmap(likelihood.predict, in_axes=(None, 0))(own, outputs)
        return evaluate_draws(likelihood, predicted, split)

    terms = jax.eval_shape(evaluate, own, outputs, split)
    totals = {name: jnp.zeros(term.shape) for name, term in terms.items()}
    top = jnp.full(terms[likelihood.relative].shape, -_HUGE)
    return PredictiveSums(top, totals, jax.tree.map(jnp.zeros_like, totals))


def evaluate_draws(
    likelihood: Likelihood, predicted: Mapping[str, jax.Array], split: PlacedSplit
) -> dict[str, jax.Array]:
    """What one draw of every chain says of a split.

    Args:
        likelihood: of the task.
        predicted: [C, N, ...].
        split: of the N examples.

    Returns:
        The terms of `PredictiveSums.totals`; the entry `relative` is a logarithm.
    """

    def mean(name: str) -> jax.Array:
        counts = target_rows.scored(name, split.targets, split.mask)
        return jnp.sum(jnp.where(counts, scores[name], 0), axis=-1) / jnp.sum(counts)

    scores = likelihood.example_scores(predicted, split.targets)
    return {
        **likelihood.draw_terms(predicted, split.targets),
        **{name: mean(name) for name in likelihood.draw_scores},
    }


def add_draws(
    likelihood: Likelihood, sums: PredictiveSums, terms: Mapping[str, jax.Array]
) -> PredictiveSums:
    """Adds one draw of every chain to the sums, by compensated summation."""
    relative = likelihood.relative
    top = jnp.maximum(sums.top, terms[relative])
    rescale = jnp.exp(sums.top - top)
    terms = {**terms, relative: jnp.exp(terms[relative] - top)}
    totals, excess = {}, {}
    for name, total in sums.totals.items():
        before, extra = total, sums.excess[name]
        if name == relative:
            before, extra = before * rescale, extra * rescale
        term = terms[name] - extra
        totals[name] = before + term
        excess[name] = (totals[name] - before) - term
    return PredictiveSums(top, totals, excess)


def averages(
    likelihood: Likelihood, sums: PredictiveSums, num_draws: int, num_examples: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Fetches the averages over draws.

    Args:
        likelihood: of the task.
        sums: over the draws.
        num_draws: how many, at least one.
        num_examples: N of the split, without padding.

    Returns:
        The predictions of the chains [C, N, ...], by `Likelihood.average`, and the mean scores of
        single draws [C], by name.
    """
    top, sum_of, excess_of = transfer.fetch((sums.top, sums.totals, sums.excess))
    means: dict[str, np.ndarray] = {
        name: (total.astype(np.float64) - excess_of[name].astype(np.float64)) / num_draws
        for name, total in sum_of.items()
    }
    scores = {name: means.pop(name) for name in likelihood.draw_scores}
    with np.errstate(divide="ignore"):  # Some class may have had no probability in any draw.
        means[likelihood.relative] = top.astype(np.float64) + np.log(means[likelihood.relative])
    return likelihood.average({name: one[:, :num_examples] for name, one in means.items()}), scores
