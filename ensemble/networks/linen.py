"""What is asked of a Linen module."""

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def takes_train(model: nn.Module) -> bool:
    """Whether the model distinguishes training: whether its call has an argument `train`."""
    return "train" in inspect.signature(type(model).__call__).parameters


def init_variables(
    rng_key: jax.Array, model: nn.Module, input_shape: tuple[int, ...]
) -> dict[str, Any]:
    """Starts a module's variables, `params` and its other collections.

    Args:
        rng_key: typed or raw; `model.init` takes it as it is.
        model: from [B, *input_shape] to logits [B, C].
        input_shape: of one example.
    """
    kwargs: dict[str, Any] = {"train": False} if takes_train(model) else {}
    return dict(model.init(rng_key, jnp.ones((1, *input_shape)), **kwargs))
