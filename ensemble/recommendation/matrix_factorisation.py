"""Matrix factorisation: who watches what, or rates what how."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble.errors import InputError
from ensemble.network import Variables


@dataclasses.dataclass(frozen=True)
class MatrixFactorisation:
    """The logit of user i watching item j, or the rating, is U_i V_j' + u_i + v_j.

    Its parameters are `user_embeddings` [N, D], `user_bias` [N], `movie_embeddings` [M, D] and
    `movie_bias` [M]. `ensemble.recommendation` starts them, for it knows their sizes. The
    logit of an unknown user or item is NaN.

    Attributes:
        num_outputs: 2, not watched and watched; or 1, the standardised rating.
    """

    num_outputs: int = 2

    def init(self, rng_key: jax.Array, inputs: jax.Array) -> Variables:
        """Never called: the inputs do not tell how many users and items there are."""
        raise NotImplementedError("a factorisation is started by its task")

    def apply(
        self,
        variables: Variables,
        inputs: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Maps pairs [P, 2], the numbers of a user and of an item, to outputs [P, K]."""
        users, movies = inputs.astype(jnp.int32).T

        def rows(name: str, index: jax.Array) -> jax.Array:
            values = jnp.asarray(variables["params"][name])
            index = jnp.where(index < 0, len(values), index)  # Not counted from the end.
            return values.at[index].get(mode="fill", fill_value=jnp.nan)

        products = rows("user_embeddings", users) * rows("movie_embeddings", movies)
        logits = products.sum(axis=-1) + rows("user_bias", users) + rows("movie_bias", movies)
        if self.num_outputs == 1:
            return logits[:, None], {}
        return jnp.stack([jnp.zeros_like(logits), logits], axis=-1), {}

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Refuses pairs [P, 2] that are not numbers of users and of items.

        Args:
            inputs: to predict.
            params: of members, [M, ...].

        Raises:
            InputError: as said.
        """
        for column, kind in ((0, "user"), (1, "movie")):
            count, numbers = params[f"{kind}_bias"].shape[1], inputs[:, column]
            noun = {"movie": "item"}.get(kind, kind)
            unknown = (numbers < 0) | (numbers >= count) | (numbers != np.floor(numbers))
            if unknown.any():
                raise InputError(
                    f"{noun} {numbers[unknown][0]} is unknown: the {noun}s are the whole numbers "
                    f"from 0 to {count - 1}"
                )
