"""Matrix factorisation: who watches what."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class MatrixFactorisation(nn.Module):
    """The logit of user i watching movie j is U_i V_j' + u_i + v_j.

    Its parameters are `user_embeddings` [N, D], `user_bias` [N], `movie_embeddings` [M, D] and
    `movie_bias` [M]. It says nothing of how they start: `ensemble.tasks.factorisation` knows their
    sizes. Of a user or a movie that there is not, the logit is NaN.

    Attributes:
        num_classes: 2, not watched and watched.
    """

    num_classes: int = 2

    @nn.compact
    def __call__(self, pairs: jax.Array) -> jax.Array:
        """Maps pairs [P, 2], the numbers of a user and of a movie, to logits [P, 2]."""
        users, movies = pairs.astype(jnp.int32).T

        def rows(name: str, index: jax.Array) -> jax.Array:
            values = jnp.asarray(self.get_variable("params", name))
            index = jnp.where(index < 0, len(values), index)  # Not counted from the end.
            return values.at[index].get(mode="fill", fill_value=jnp.nan)

        products = rows("user_embeddings", users) * rows("movie_embeddings", movies)
        logits = products.sum(axis=-1) + rows("user_bias", users) + rows("movie_bias", movies)
        return jnp.stack([jnp.zeros_like(logits), logits], axis=-1)
