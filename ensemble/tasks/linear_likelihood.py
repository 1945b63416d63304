"""The likelihood of multinomial logistic regression and its gradient, fast.

The general way computes what it need not: most pixels of most images are zero, and so are their
products with the weights. On CPUs the examples are grouped such that the inputs of a group are zero
at the same features, and a group keeps only the columns of the others: on MNIST every second one
goes. Groups of one shape are a block, and one program computes them one after the other: XLA
compiles as many programs as there are shapes (decision 0085). A block is stored both ways round,
for XLA:CPU multiplies fastest what is contracted over its rows. All chains of a device share one
product. Accelerators, which are fast at plain products, get one group with every feature.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from numpy.typing import NDArray

from ensemble.data.batches import normalise
from ensemble.data.source import Examples, Source
from ensemble.pytrees import Function
from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA, by_rows, named_sharding, spec
from ensemble.sharding.transfer import make_chainwise

EXAMPLES_PER_GROUP = 2048
"""On all shards together. More share fewer zeros; fewer cost more calls."""
_MIN_ROWS = 256  # Of a group, on one shard.
_MIN_SHARE = 0.8  # Of the columns of a block, in each of its groups.
_TAKEN = 2**30  # More than features.
_SMALLEST_LOG = -60.0  # Against a sum of at least 1, nothing in float32.

Group = tuple[NDArray, NDArray]
"""Numbers of examples, and of the features that are active in any of them, ascending."""


class Block(NamedTuple):
    """G groups of examples. The inputs of a group are zero outside some features.

    Attributes:
        features: [G, K], which of the F + 1 rows of the weights, the last of which is the bias.
        inputs: [G, B, K] float32, normalised, 1 for the bias; zero in the rows that pad.
        inputs_transposed: [G, K, B]; None for `inputs` with its last axes swapped.
        targets: [G, B] int32; -1 in the rows that pad.
    """

    features: Array
    inputs: Array
    inputs_transposed: Array | None
    targets: Array


def place_blocks(
    dataset: Source, split: Examples, mesh: Mesh, in_blocks: bool | None = None
) -> Any:
    """Normalises the examples, groups them, and spreads every group evenly over the shards.

    Args:
        dataset: whose normalisation it is.
        split: the N examples.
        mesh: of the devices.
        in_blocks: whether to group them, or make one group of all; None: as suits the devices.
    """
    in_blocks = mesh.devices.flat[0].platform == "cpu" if in_blocks is None else in_blocks
    normalised = partial(with_bias, dataset, split)
    num_examples = len(split.targets)
    num_features = normalised(slice(1)).shape[1]
    groups = [(np.arange(num_examples), np.arange(num_features))]
    if in_blocks:
        size = max(EXAMPLES_PER_GROUP, _MIN_ROWS * mesh.shape[DATA])
        # Some at a time: copies of all, in float32, would take longer than the groups.
        firsts = range(0, num_examples, size)
        active = [normalised(slice(first, first + size)) != 0 for first in firsts]
        groups = group_by_support(np.concatenate(active), size)
    over_examples = named_sharding(mesh, None, "example")

    def place_block(alike: list[Group]) -> Block:
        pad = partial(transfer.pad, size=transfer.padded_size(len(alike[0][0]), mesh, DATA))
        put = transfer.put
        rows = np.stack([pad(normalised(examples)[:, features]) for examples, features in alike])
        labels = [pad(split.targets[one].astype(np.int32), fill=-1) for one, _ in alike]
        numbers = np.stack([features for _, features in alike]).astype(np.int32)
        transposed: Any = None
        if in_blocks:
            transposed = np.ascontiguousarray(rows.swapaxes(1, 2))
            transposed = put(transposed, named_sharding(mesh, None, None, "example"))
        by_example = over_examples if in_blocks else by_rows(over_examples, 3)
        return Block(
            put(numbers, named_sharding(mesh)),
            put(rows, by_example),
            transposed,
            put(np.stack(labels), over_examples),
        )

    return tuple(place_block(alike) for alike in round_up(groups, num_features))


def with_bias(dataset: Source, split: Examples, examples: Any) -> NDArray:
    """Returns the inputs [n, F + 1] of some examples, normalised; the last is 1, for the bias."""
    inputs = normalise(split.inputs[examples], dataset.shift, dataset.scale, dataset.squash)
    rows = np.asarray(inputs, np.float32).reshape(len(inputs), -1)
    return np.pad(rows, ((0, 0), (0, 1)), constant_values=1)


def make_value_and_grad(mesh: Mesh) -> Function:
    """Returns `(params, blocks) -> (log likelihood of all examples, its gradient)`.

    Vmapped over chains, the function computes all of them at once, spread over the mesh of
    `place_blocks`.
    """

    rows: Any = spec(None, "example")
    of_block: Any = spec(), rows, spec(None, None, "example"), rows

    def of_chains(params, blocks, chains):
        mapped = jax.shard_map(
            _value_and_grad_on_shard,
            mesh=mesh,
            in_specs=(spec(chains), (Block(*of_block),) * len(blocks)),
            out_specs=spec(chains),
            check_vma=True,
        )
        value, grads = mapped(jax.vmap(join_bias)(params), blocks)
        return value, jax.vmap(lambda matrix: split_bias(matrix, params))(grads)

    return make_chainwise(of_chains, mesh)


def join_bias(params: Any) -> Array:
    """The parameters of a logistic regression as one matrix [F + 1, C], the bias last."""
    (layer,) = params.values()
    return jnp.concatenate([layer["kernel"], layer["bias"][None]])


def split_bias(matrix: Array, like: Any) -> Any:
    """The inverse of `join_bias`: a tree whose layer has the name that it has in another one."""
    (name,) = like
    return {name: {"kernel": matrix[:-1], "bias": matrix[-1]}}


def _value_and_grad_on_shard(params: Array, blocks):
    """The log likelihood [c] of c chains and its gradient [c, F + 1, C], of params like it."""
    num_chains, num_rows, num_outputs = params.shape
    # Classes before chains: what is summed over classes is then added up in whole vectors.
    weights = params.transpose(1, 2, 0).reshape(num_rows, -1)
    weights = lax.pcast(weights, DATA, to="varying")
    found = jnp.zeros_like(weights[0, :num_chains]), jnp.zeros_like(weights)
    for block in blocks:
        if len(block.features) == 1:
            found = _add_group(found, weights, *jax.tree.map(lambda leaf: leaf[0], block))
        else:
            step = lambda sums, group: (_add_group(sums, weights, *group), None)  # noqa: E731
            found, _ = lax.scan(step, found, block)
    value, grads = lax.psum(found, DATA)
    return value, grads.reshape(num_rows, num_outputs, num_chains).transpose(2, 0, 1)


def _add_group(
    sums,
    weights: Array,
    features: Array,
    inputs: Array,
    inputs_transposed: Array | None,
    targets: Array,
):
    """Adds the log likelihood [c] and the gradient [F + 1, C * c] of a group to those before.

    Args:
        sums: of the groups before.
        weights: [F + 1, C * c].
        features: as of `Block`, of one group, like the next three.
        inputs: this.
        inputs_transposed: this.
        targets: this.
    """
    value, grads = sums
    num_chains = len(value)
    if inputs_transposed is None:
        inputs_transposed = inputs.T
    logits = _contract_rows(weights[features], inputs_transposed)
    logits = logits.reshape(-1, num_chains, len(targets))
    shifted = logits - jnp.max(logits, axis=0)
    # No smaller: products of subnormal numbers take CPUs ten times as long.
    exponentials = jnp.exp(jnp.maximum(shifted, _SMALLEST_LOG))
    total = jnp.sum(exponentials, axis=0)
    is_label = jnp.arange(len(logits))[:, None, None] == targets
    chosen = jnp.broadcast_to(jnp.maximum(targets, 0), (1, *total.shape))
    log_probs = jnp.take_along_axis(shifted, chosen, axis=0)[0] - jnp.log(total)
    # A plain sum: a NaN must show.
    value += jnp.sum(jnp.where(targets >= 0, log_probs, 0), axis=-1)
    # Of rows that pad it is not zero, but their inputs are.
    residuals = (is_label - exponentials / total).reshape(-1, len(targets))
    # The barrier keeps XLA from folding the transposition into a product that is slower.
    product = lax.optimization_barrier(_contract_rows(residuals.T, inputs))
    grads = grads.at[features].add(
        product.T, indices_are_sorted=True, unique_indices=True, mode="promise_in_bounds"
    )
    return value, grads


def _contract_rows(left: Array, right: Array) -> Array:
    """left' right. TPUs and TF32 would round the products to some 3 digits, which are nats here."""
    return lax.dot_general(left, right, (((0,), (0,)), ((), ())), precision="highest")


def group_by_support(active: NDArray, group_size: int) -> list[Group]:
    """Groups examples such that the features that are active within a group are few.

    Greedily: a group starts with the example of the fewest features, and takes on those that add
    the fewest, a part of the group at a time; of equals, the first.

    Args:
        active: [N, F], whether an example's feature is not zero.
        group_size: examples in a group, but for a smaller last one.

    Returns:
        Groups: numbers of their examples, and of the features active in any of them, ascending.
    """
    by_feature = np.ascontiguousarray(active.T)
    num_active = active.sum(axis=1, dtype=np.int32)
    is_left = np.ones(len(active), bool)
    numbers = np.arange(len(active))  # Of the examples that are looked through.
    groups = []
    while is_left.any():
        missing = min(group_size, int(is_left.sum()))
        if 3 * is_left.sum() < 2 * len(is_left):
            numbers = numbers[is_left]
            num_active = num_active[is_left]
            by_feature = np.compress(is_left, by_feature, axis=1)
            is_left = is_left[is_left]
        num_outside = np.where(is_left, num_active, _TAKEN)  # Features that an example would add.
        is_feature = np.zeros(active.shape[1], bool)
        examples: list[NDArray] = []
        while missing:
            size = max(1, group_size // 256) if examples else 1
            taken = _smallest(num_outside, min(missing, size))
            is_left[taken] = False
            num_outside[taken] = _TAKEN
            examples.append(numbers[taken])
            missing -= len(taken)
            added = active[examples[-1]].any(axis=0) & ~is_feature
            is_feature |= added
            for feature in np.flatnonzero(added):
                num_outside -= by_feature[feature]
        groups.append((np.sort(np.concatenate(examples)), np.flatnonzero(is_feature)))
    return groups


def _smallest(values: NDArray, number: int) -> NDArray:
    """Finds the smallest of many values [N] of which few are small; of equals, the first."""
    level = values.min()
    while len(found := np.flatnonzero(values <= level)) < number:
        level = values[values > level].min()
    return found[np.argsort(values[found], kind="stable")][:number]


def round_up(groups: list[Group], num_features: int) -> list[list[Group]]:
    """Makes groups of about as many features equal, by features that are active in none of them.

    Args:
        groups: of `group_by_support`.
        num_features: in all.

    Returns:
        The groups, those with as many examples and features together.
    """
    alike: Any = {}
    size = 0
    for examples, features in sorted(groups, key=lambda group: -len(group[1])):
        if len(features) < _MIN_SHARE * size or not size:
            size = len(features)
        others = np.setdiff1d(np.arange(num_features), features)[: size - len(features)]
        joined = np.sort(np.concatenate([features, others]))
        alike.setdefault((len(examples), size), []).append((examples, joined))
    return list(alike.values())
