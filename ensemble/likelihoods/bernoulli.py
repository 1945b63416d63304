"""Two classes by one output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.errors import UserError
from ensemble.likelihoods.classes import Classes


class Bernoulli(Classes):
    """The output is the logit of the second class."""

    name = "bernoulli"
    num_outputs = 1

    @classmethod
    def of_data(cls, targets: np.ndarray, class_names: Sequence[str], **_: Any) -> Classes:
        """Makes the likelihood of labels [N].

        Raises:
            UserError: there are not two classes.
        """
        if class_names and len(class_names) != 2:
            raise UserError(
                f"config.likelihood='bernoulli' is for two classes, and the data have "
                f"{len(class_names)}: set config.likelihood='categorical'"
            )
        return super().of_data(targets, class_names)

    def class_log_probs(self, outputs: jax.Array) -> jax.Array:
        """Log of 1 - sigmoid and of sigmoid, float32."""
        logits = outputs.astype(jnp.float32)
        return jnp.concatenate([jax.nn.log_sigmoid(-logits), jax.nn.log_sigmoid(logits)], axis=-1)
