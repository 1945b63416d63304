"""The likelihood of ratings and its gradient: by pairs, or by blocks of users.

By pairs, the rows of the factors are gathered for each rating, and their gradients are scattered,
which CPUs do slowly. Where a good share of all pairs is rated, products of matrices are faster: a
block of users times all items has the means of far more pairs than are rated, and the rated ones
are single numbers to pick. A block exists alone, so that nothing is as large as users times items.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ensemble.likelihoods.likelihood import Likelihood
from ensemble.network import Network
from ensemble.recommendation import watch_likelihood
from ensemble.sharding import transfer
from ensemble.sharding.chainwise import make_chainwise
from ensemble.sharding.mesh import DATA, named_sharding, spec
from ensemble.tasks.supervised import OWN

_ENTRIES_PER_RATING = 64
"""How many pairs there may be for each that is rated; with more, blocks take longer than pairs."""


class Ratings(NamedTuple):
    """Ratings to learn from; what pads them on devices weighs nothing.

    Attributes:
        where: int32 [P, 2], pairs of a user and an item, each pair once; of blocks of users int32
            [B, P], which entry of the block's R x M matrix each rating is.
        targets: float32 [P] or [B, P].
        weights: likewise, how often each counts.
        reference: likewise, log densities by the biases alone, nats.
    """

    where: Any
    targets: Any
    weights: Any
    reference: Any


Blocks = tuple[jax.Array, Ratings]
"""Numbers of the users of blocks, int32 [B, R], 0 pads; and their ratings."""


def is_by_blocks(num_ratings: int, num_users: int, num_items: int) -> bool:
    """Whether blocks are faster than pairs."""
    return num_users * num_items <= _ENTRIES_PER_RATING * num_ratings


def place_pairs(ratings: Ratings, mesh: Mesh) -> Ratings:
    """Spreads ratings over the shards; what pads them weighs nothing."""
    size = transfer.padded_size(len(ratings.targets), mesh, DATA)
    padded = Ratings(*(transfer.pad(np.asarray(one), size) for one in ratings))
    return transfer.put(padded, named_sharding(mesh, "example"))


def place_blocks(ratings: Ratings, num_users: int, num_items: int, mesh: Mesh) -> Blocks:
    """Spreads ratings over the shards in blocks of users that have about as many each.

    Users are dealt to blocks by how much they rate. As none rates more than all items, blocks
    differ by at most so many ratings.
    """
    num_shards = mesh.shape[DATA]
    max_rows = watch_likelihood.rows_of_block(mesh, num_items)
    num_blocks = num_shards * -(-num_users // (num_shards * max_rows))
    user, item = np.asarray(ratings.where).T
    dealt = np.argsort(-np.bincount(user, minlength=num_users), kind="stable")
    place = np.empty(num_users, np.int64)
    place[dealt] = np.arange(num_users)
    block = place % num_blocks
    row = place // num_blocks
    users = np.zeros((num_blocks, -(-num_users // num_blocks)), np.int32)
    users[block, row] = np.arange(num_users)

    order = np.lexsort([item, row[user], block[user]])
    counts = np.bincount(block[user], minlength=num_blocks)

    def blocks_of(values: np.ndarray) -> np.ndarray:
        parts = np.split(values[order], np.cumsum(counts)[:-1])
        return np.stack([transfer.pad(part, int(counts.max())) for part in parts])

    entries = (row[user] * num_items + item).astype(np.int32)
    blocks = Ratings(*(blocks_of(np.asarray(one)) for one in (entries, *ratings[1:])))
    return transfer.put((users, blocks), named_sharding(mesh, "example"))


def by_pairs(likelihood: Likelihood, network: Network, mesh: Mesh) -> Any:
    """Returns `(params, Ratings) -> (weighted log density less the reference, its gradient)`."""

    def total(params: Any, data: Ratings) -> jax.Array:
        return _sum(likelihood, params, network.apply({"params": params}, data.where)[0], data)

    return jax.shard_map(
        functools.partial(_value_and_grad, total),
        mesh=mesh,
        in_specs=(spec(), spec("example")),
        out_specs=spec(),
        check_vma=True,
    )


def by_blocks(likelihood: Likelihood, mesh: Mesh) -> Any:
    """Returns the same function of `Blocks`."""

    def total(params: Any, data: Blocks) -> jax.Array:
        users, items = watch_likelihood.join_biases(params)
        items = items.T

        def add(total: jax.Array, block: Blocks) -> tuple[jax.Array, None]:
            here, ratings = block
            means = watch_likelihood.contract(users[here], items, 1, 0).ravel()
            outputs = means.at[ratings.where].get(mode="promise_in_bounds")[:, None]
            return total + _sum(likelihood, params, outputs, ratings), None

        return jax.lax.scan(add, jnp.zeros_like(items[0, 0]), data)[0]

    def on_shard(params: Any, data: Blocks) -> Any:
        # One chain after another: what one block of one chain needs is all that the cache holds.
        return jax.lax.map(lambda one: _value_and_grad(total, one, data), params)

    def of_chains(params: Any, data: Blocks, chains: str | None) -> Any:
        mapped = jax.shard_map(
            on_shard,
            mesh=mesh,
            in_specs=(spec(chains), spec("example")),
            out_specs=spec(chains),
            check_vma=True,
        )
        return mapped(params, data)

    return make_chainwise(of_chains, mesh)


def _sum(likelihood: Likelihood, params: Any, outputs: jax.Array, data: Ratings) -> jax.Array:
    """Relative to the biases: the sum is nearer to zero then, where float32 keeps more."""
    found = likelihood.log_prob(params[OWN], outputs, data.targets)
    return jnp.sum(data.weights * (found - data.reference))


def _value_and_grad(total: Callable[[Any, Any], jax.Array], params: Any, data: Any) -> Any:
    # Varying, so that the gradient is this shard's own.
    params = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, DATA, to="varying"), params)
    return jax.lax.psum(jax.value_and_grad(total)(params, data), DATA)
