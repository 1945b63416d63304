"""The mixture of members that are spread over devices, of which some may have failed."""

import jax
import jax.numpy as jnp

from ensemble.likelihood import Reduce


def mixture_log_density(log_density: jax.Array, live: jax.Array, over: Reduce) -> jax.Array:
    """Log density [B, ...] of the equally weighted mixture of the live members.

    Args:
        log_density: [slots, B, ...] of this device's members.
        live: [slots] bool.
        over: the groups of devices that hold other members.
    """
    live = live.reshape(-1, *[1] * (log_density.ndim - 1))
    log_density = jnp.where(live, log_density, -jnp.inf)
    top = over.max(jnp.max(log_density, axis=0))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = over.sum(jnp.sum(jnp.exp(log_density - top), axis=0))
    count = over.sum(jnp.sum(live.astype(jnp.float32)))
    return jnp.log(total) + top - jnp.log(count)
