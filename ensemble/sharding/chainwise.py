"""Likelihoods that bring a gradient of their own, or a way of computing many chains at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from ensemble.sharding.mesh import ENSEMBLE


def with_own_gradient(
    value_and_grad: Callable[[Any, Any], tuple[Array, Any]], data: Any
) -> Callable[[Any], Array]:
    """Returns `(params) -> value`, whose derivative is what came with it, in one pass.

    Args:
        value_and_grad: `(params, data) -> (value [], gradient)`.
        data: that it is of.
    """

    @jax.custom_vjp
    def value(params: Any) -> Array:
        return value_and_grad(params, data)[0]

    value.defvjp(
        lambda params: value_and_grad(params, data),
        lambda grads, cotangent: (jax.tree.map(lambda leaf: cotangent * leaf, grads),),
    )
    return value


def make_chainwise(
    of_chains: Callable[[Any, Any, str | None], Any], mesh: Mesh
) -> Callable[[Any, Any], Any]:
    """Returns `(params, data) -> result` of one chain, whose vmap is `of_chains`.

    Args:
        of_chains: `(params [C, ...], data, leading) -> result [C, ...]`; `leading` says how the
            chains are to lie: "chain", or None, on all devices alike, where these do not divide
            their number.
        mesh: of the devices.
    """

    @jax.custom_batching.custom_vmap
    def of_chain(params: Any, data: Any) -> Any:
        one_chain = jax.tree.map(lambda leaf: leaf[None], params)
        return jax.tree.map(lambda leaf: leaf[0], of_chains(one_chain, data, None))

    @of_chain.def_vmap
    def of_batch(num_chains: int, in_batched: Any, params: Any, data: Any) -> Any:
        params_batched, data_batched = in_batched
        if any(jax.tree.leaves(data_batched)):
            raise NotImplementedError("chains share their data")
        params = jax.tree.map(
            lambda leaf, batched: leaf if batched else jnp.stack([leaf] * num_chains),
            params,
            params_batched,
        )
        divides = num_chains % mesh.shape[ENSEMBLE] == 0
        result = of_chains(params, data, "chain" if divides else None)
        return result, jax.tree.map(lambda _: True, result)

    return of_chain
