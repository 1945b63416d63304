"""The likelihood of multinomial logistic regression and its gradient, fast.

The general way computes what it need not: most pixels of most images are zero, and so are their
products with the weights. On CPUs the examples are grouped into blocks whose inputs are zero at the
same features, and a block keeps only the columns of the others: on MNIST every second one goes. A
block is stored both ways round, for XLA:CPU multiplies fastest what is contracted over its rows.
All chains of a device share one product. Accelerators, which are fast at plain products, get one
block with every feature.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ensemble.sharding import transfer
from ensemble.sharding.chainwise import make_chainwise
from ensemble.sharding.mesh import DATA, by_rows, named_sharding, spec
from ensemble.source import Examples, Source
from ensemble.sources.batches import normalise

EXAMPLES_PER_BLOCK = 2048
"""On all shards together. More share fewer zeros; fewer cost more calls, and longer compilation."""
_MIN_ROWS = 256  # Of a block, on one shard.
_SMALLEST_LOG = -60.0  # Against a sum of at least 1, nothing in float32.


class Block(NamedTuple):
    """Examples whose inputs are zero outside some features.

    Attributes:
        features: [K], which of the F + 1 rows of the weights, the last of which is the bias.
        inputs: [B, K] float32, normalised, 1 for the bias; zero in the rows that pad.
        inputs_transposed: [K, B]; None for `inputs.T`.
        targets: [B] int32; -1 in the rows that pad.
    """

    features: jax.Array
    inputs: jax.Array
    inputs_transposed: jax.Array | None
    targets: jax.Array


def place_blocks(
    dataset: Source, split: Examples, mesh: Mesh, in_blocks: bool | None = None
) -> tuple[Block, ...]:
    """Normalises the examples, groups them, and spreads every block evenly over the shards.

    Args:
        dataset: whose normalisation it is.
        split: the N examples.
        mesh: of the devices.
        in_blocks: whether to group them, or make one block of all; None: as suits the devices.
    """
    in_blocks = mesh.devices.flat[0].platform == "cpu" if in_blocks is None else in_blocks
    normalised = normalise(split.inputs, dataset.shift, dataset.scale, dataset.squash)
    inputs = np.asarray(normalised, np.float32)
    inputs = inputs.reshape(len(inputs), -1)
    with_bias = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    groups = [(np.arange(len(inputs)), np.arange(with_bias.shape[1]))]
    if in_blocks:
        size = max(EXAMPLES_PER_BLOCK, _MIN_ROWS * mesh.shape[DATA])
        groups = group_by_support(with_bias != 0, size)
    over_examples = named_sharding(mesh, "example")

    def place_block(examples: np.ndarray, features: np.ndarray) -> Block:
        num_places = transfer.padded_size(len(examples), mesh, DATA)
        rows = transfer.pad(with_bias[np.ix_(examples, features)], num_places)
        labels = transfer.pad(split.targets[examples].astype(np.int32), num_places, fill=-1)
        transposed = np.ascontiguousarray(rows.T)
        return Block(
            features=transfer.put(features.astype(np.int32), named_sharding(mesh)),
            inputs=transfer.put(rows, over_examples if in_blocks else by_rows(over_examples)),
            inputs_transposed=transfer.put(transposed, named_sharding(mesh, None, "example"))
            if in_blocks
            else None,
            targets=transfer.put(labels, over_examples),
        )

    return tuple(place_block(*group) for group in groups)


def block_specs() -> Any:
    """How the arrays of a block lie on the shards: a `Block` of their specs."""
    specs: Any = Block  # Whose fields are not arrays here.
    return specs(
        features=spec(),
        inputs=spec("example"),
        inputs_transposed=spec(None, "example"),
        targets=spec("example"),
    )


def make_value_and_grad(
    mesh: Mesh,
) -> Callable[[Any, tuple[Block, ...]], tuple[jax.Array, Any]]:
    """Returns `(params, blocks) -> (log likelihood of all examples, its gradient)`.

    Vmapped over chains, the function computes all of them at once, spread over the mesh of
    `place_blocks`.
    """

    def of_chains(params: Any, blocks: tuple[Block, ...], chains: str | None) -> Any:
        mapped = jax.shard_map(
            _value_and_grad_on_shard,
            mesh=mesh,
            in_specs=(spec(chains), (block_specs(),) * len(blocks)),
            out_specs=spec(chains),
            check_vma=True,
        )
        value, grads = mapped(jax.vmap(join_bias)(params), blocks)
        return value, jax.vmap(lambda matrix: split_bias(matrix, params))(grads)

    return make_chainwise(of_chains, mesh)


def join_bias(params: Any) -> jax.Array:
    """The parameters of a logistic regression as one matrix [F + 1, C], the bias last."""
    (layer,) = params.values()
    return jnp.concatenate([layer["kernel"], layer["bias"][None]])


def split_bias(matrix: jax.Array, like: Any) -> Any:
    """The inverse of `join_bias`: a tree whose layer has the name that it has in another one."""
    (name,) = like
    return {name: {"kernel": matrix[:-1], "bias": matrix[-1]}}


def _value_and_grad_on_shard(
    params: jax.Array, blocks: tuple[Block, ...]
) -> tuple[jax.Array, jax.Array]:
    """The log likelihood [c] of c chains and its gradient [c, F + 1, C], of params like it."""
    num_chains, num_rows, num_outputs = params.shape
    # Classes before chains: what is summed over classes is then added up in whole vectors.
    weights = params.transpose(1, 2, 0).reshape(num_rows, -1)
    weights = jax.lax.pcast(weights, DATA, to="varying")
    value, grads = jnp.zeros_like(weights[0, :num_chains]), jnp.zeros_like(weights)
    for block in blocks:
        logits = _contract_rows(weights[block.features], _transposed_inputs(block))
        logits = logits.reshape(num_outputs, num_chains, -1)
        shifted = logits - jnp.max(logits, axis=0)
        # No smaller: products of subnormal numbers take CPUs ten times as long.
        exponentials = jnp.exp(jnp.maximum(shifted, _SMALLEST_LOG))
        total = jnp.sum(exponentials, axis=0)
        is_label = jnp.arange(num_outputs)[:, None, None] == block.targets
        chosen = jnp.broadcast_to(jnp.maximum(block.targets, 0), (1, *total.shape))
        log_probs = jnp.take_along_axis(shifted, chosen, axis=0)[0] - jnp.log(total)
        # A plain sum: a NaN must show.
        value += jnp.sum(jnp.where(block.targets >= 0, log_probs, 0), axis=-1)
        # Of rows that pad it is not zero, but their inputs are.
        residuals = (is_label - exponentials / total).reshape(num_outputs * num_chains, -1)
        # The barrier keeps XLA from folding the transposition into a product that is slower.
        product = jax.lax.optimization_barrier(_contract_rows(residuals.T, block.inputs))
        grads = grads.at[block.features].add(
            product.T,
            indices_are_sorted=True,
            unique_indices=True,
            mode="promise_in_bounds",
        )
    value, grads = jax.lax.psum((value, grads), DATA)
    return value, grads.reshape(num_rows, num_outputs, num_chains).transpose(2, 0, 1)


def _transposed_inputs(block: Block) -> jax.Array:
    return block.inputs.T if block.inputs_transposed is None else block.inputs_transposed


def _contract_rows(left: jax.Array, right: jax.Array) -> jax.Array:
    """left' right. TPUs and TF32 would round the products to some 3 digits, which are nats here."""
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), precision="highest")


def group_by_support(active: np.ndarray, group_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Groups examples such that the features that are active within a group are few.

    Greedily: a group starts with the example of the fewest features, and takes on those that add
    the fewest, a part of the group at a time.

    Args:
        active: [N, F], whether an example's feature is not zero.
        group_size: examples in a group, but for a smaller last one.

    Returns:
        Groups: numbers of their examples, and of the features active in any of them, ascending.
    """
    left = np.arange(len(active))
    active = np.asfortranarray(active)  # Columns are what is read.
    groups = []
    while len(left):
        num_outside = active.sum(axis=1, dtype=np.int32)  # Features that an example would add.
        is_taken = np.zeros(len(left), bool)
        is_feature = np.zeros(active.shape[1], bool)
        size = min(group_size, len(left))
        taken = np.argsort(num_outside, kind="stable")[:1]
        while True:
            is_taken[taken] = True
            added = active[taken].any(axis=0) & ~is_feature
            is_feature |= added
            missing = size - is_taken.sum()
            if not missing:
                break
            for feature in np.flatnonzero(added):
                num_outside -= active[:, feature]
            candidates = np.where(is_taken, active.shape[1] + 1, num_outside)
            number = min(missing, max(1, group_size // 256))
            taken = np.argpartition(candidates, number - 1)[:number]
        groups.append((left[is_taken], np.flatnonzero(is_feature)))
        left, active = left[~is_taken], np.asfortranarray(active[~is_taken])
    return groups
