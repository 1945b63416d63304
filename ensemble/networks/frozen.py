"""Networks that are heads on the features of a frozen function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ensemble.network import Network, Variables


@dataclasses.dataclass(frozen=True)
class FrozenBackbone:
    """A head on features; see `ensemble.networks.on_features`.

    Attributes:
        function: From raw inputs [B, ...] to features [B, F], in JAX.
        head: From features to outputs [B, K].
    """

    function: Callable[[jax.Array], Any]
    head: Network
    takes_raw_inputs = True

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Starts the variables of the head."""
        return self.head.init(rng_key, self._features(inputs))

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps inputs to outputs; only the head has noise and state."""
        return self.head.apply(variables, self._features(inputs), train, rng_key)

    def _features(self, inputs: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(jnp.asarray(self.function(inputs), jnp.float32))
