"""Chains of draws, for tests, without what a run does beside."""

from typing import Any

import jax
import jax.numpy as jnp

from ensemble.methods.kernels import Chain, DrawInfo, Sampler


def advance(
    sampler: Sampler, rng_key: jax.Array, chain: Chain, first: jax.Array, num_draws: int
) -> tuple[Chain, tuple[Any, DrawInfo]]:
    """Takes draws in one scan.

    Args:
        sampler: of the chain.
        rng_key: of the chain.
        chain: before the draws.
        first: number of the first draw.
        num_draws: T.

    Returns:
        The chain, and positions [T, ...] with their diagnostics [T]; a rejected proposal repeats
        the position.
    """

    def body(chain: Chain, t: jax.Array) -> tuple[Chain, tuple[Any, DrawInfo]]:
        chain, info = sampler.step(rng_key, chain, t)
        return chain, (chain.state.position, info)

    return jax.lax.scan(body, chain, first + jnp.arange(num_draws))
