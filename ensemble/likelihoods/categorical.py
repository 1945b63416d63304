"""Classes by softmax: one output for each."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ensemble.likelihoods.classes import Classes


class Categorical(Classes):
    """The outputs are the logits of C classes."""

    name = "categorical"

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """C, one logit for each class."""
        return self.num_classes

    def class_log_probs(self, outputs: jax.Array) -> jax.Array:
        """The logarithm of softmax, float32."""
        return jax.nn.log_softmax(outputs.astype(jnp.float32))
