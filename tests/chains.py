"""Chains of draws, for tests, without what a run does beside."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.methods.mcmc.kernels import Chain, DrawInfo, Sampler
from ensemble.target_rows import on_devices


def advance(
    sampler: Sampler, chain: Chain, first: jax.Array, num_draws: int
) -> tuple[Chain, tuple[Any, DrawInfo]]:
    """Takes draws in one scan.

    Args:
        sampler: of the chain.
        chain: before the draws.
        first: number of the first draw.
        num_draws: T.

    Returns:
        The chain, and positions [T, ...] with their diagnostics [T]; a rejected proposal repeats
        the position.
    """

    def body(chain: Chain, t: jax.Array) -> tuple[Chain, tuple[Any, DrawInfo]]:
        chain, info = sampler.step(chain, t)
        return chain, (chain.state.position, info)

    return jax.lax.scan(body, chain, first + jnp.arange(num_draws))


def mixture_of_draws(
    likelihood: Any, arrays: Mapping[str, np.ndarray], targets: np.ndarray
) -> Mapping[str, np.ndarray]:
    """What one chain predicts whose draws are members, as its running sums make it.

    Args:
        likelihood: of numbers.
        arrays: predictions of the members, [M, N, ...].
        targets: [N].

    Returns:
        Predictions [1, N, ...], which have been checked.
    """
    terms = jax.jit(likelihood.draw_terms)(arrays, on_devices(targets))
    means = {
        key: np.asarray(one, np.float64).mean(axis=0)[None]
        for key, one in terms.items()
        if key != likelihood.relative
    }
    density = np.exp(np.asarray(terms[likelihood.relative], np.float64)).mean(axis=0)[None]
    chain = likelihood.average({**means, likelihood.relative: np.log(density)})
    likelihood.check_predictions(chain, targets)
    return chain
