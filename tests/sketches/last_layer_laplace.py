"""The Laplace approximation of a network's last layer: a prediction that is no member's.

The variables are those of the MAP, with a root of the covariance of the last layer's weights.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ensemble.network import Variables
from ensemble.task import PredictingTask
from sketches.wrapped import Wrapped


@dataclasses.dataclass(frozen=True)
class LastLayerLaplace(Wrapped):
    """Predicts by the mixture over draws of the last layer, the same ones every time."""

    layer: str
    num_draws: int = 64

    def predict(self, variables: Variables, inputs: jax.Array) -> dict[str, jax.Array]:
        params, root = variables["params"], variables["laplace"]["root"]
        kernel = params[self.layer]["kernel"]

        def one_draw(rng_key: jax.Array) -> dict[str, jax.Array]:
            moved = kernel + (root @ jax.random.normal(rng_key, (len(root),))).reshape(kernel.shape)
            layer = {**params[self.layer], "kernel": moved}
            return self.task.predict({"params": {**params, self.layer: layer}}, inputs)

        draws = jax.lax.map(one_draw, jax.random.split(jax.random.key(0), self.num_draws))
        mean = jax.nn.logsumexp(draws["log_probs"], axis=0) - jnp.log(self.num_draws)
        return {"log_probs": mean}


def predictive(laplace: LastLayerLaplace) -> PredictingTask:
    """For the type checker."""
    return laplace
