"""Functions of log-probabilities `[..., B, C]`, in JAX."""

from typing import Any

import jax
import jax.numpy as jnp


def at_labels(log_probs: jax.Array, targets: Any) -> jax.Array:
    """The entries [..., B] of log-probabilities [..., B, C] at the labels [B]."""
    labels = jnp.broadcast_to(targets, log_probs.shape[:-1])[..., None]
    return jnp.take_along_axis(log_probs, labels, axis=-1)[..., 0]


def is_right(log_probs: jax.Array, targets: Any) -> jax.Array:
    """Whether the most probable class [..., B] is the label [B], 0 or 1."""
    return (jnp.argmax(log_probs, axis=-1) == targets).astype(jnp.float32)


def entropies(log_probs: jax.Array) -> jax.Array:
    """Entropy over the last axis, nats, with 0 log 0 = 0."""
    return -jnp.sum(jnp.exp(log_probs) * jnp.where(jnp.isneginf(log_probs), 0, log_probs), axis=-1)
