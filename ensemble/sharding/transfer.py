"""Arrays from the host to the devices and back, and what pads them on the way.

A dimension that is spread over devices must be a multiple of their number. It is padded before
`put`, and what pads is stripped after `fetch`: files hold none, for other devices pad otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.experimental import multihost_utils
from jax.sharding import Mesh, Sharding
from numpy.typing import NDArray

from ensemble.sharding import processes
from ensemble.sharding.mesh import DATA, ENSEMBLE, named_sharding


def put(tree: Any, shardings: Any) -> Any:
    """Puts arrays, which every process has whole, where the shardings say.

    Args:
        tree: Arrays of NumPy or JAX.
        shardings: One, or a tree of them.
    """
    if processes.count() == 1:
        return jax.device_put(tree, shardings)
    if isinstance(shardings, Sharding):
        shardings = jax.tree.map(lambda _: shardings, tree)
    return jax.tree.map(_put_one, tree, shardings)


def _put_one(leaf, sharding: Sharding) -> Array:
    if isinstance(leaf, Array):
        if not leaf.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return random.wrap_key_data(_put_one(random.key_data(leaf), sharding))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def fetch(tree: Any) -> Any:
    """Copies arrays to the host of every process, whole, wherever their parts are."""

    def one(leaf) -> NDArray:
        if not isinstance(leaf, Array) or leaf.is_fully_addressable:
            return np.array(leaf)  # A copy: a device may reuse its buffer.
        if leaf.is_fully_replicated:
            return np.array(leaf.addressable_data(0))
        processes.arrive()
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(one, tree)


def padded_size(size: int, mesh: Mesh, axis: str) -> int:
    """The smallest multiple of the devices along an axis of the mesh that is at least `size`."""
    return size + -size % mesh.shape[axis]


def pad(array: Any, size: int, axis: int = 0, fill: float | None = 0) -> Any:
    """Pads an axis up to a size.

    Args:
        array: of NumPy or JAX.
        size: of the axis, at least what it is.
        axis: that is padded.
        fill: what pads; None repeats the last row, for zeros may be no example.
    """
    if array.shape[axis] == size:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    backend = np if isinstance(array, np.ndarray) else jnp
    how = {"mode": "edge"} if fill is None else {"constant_values": fill}
    return backend.pad(array, widths, **how)


def strip(array: Any, size: int, axis: int = 0) -> Any:
    """The inverse of `pad`: the first `size` places of an axis."""
    return array[(slice(None),) * axis + (slice(size),)]


class PlacedSplit(NamedTuple):
    """A split whose examples are spread over the shards; the mask is false for padding."""

    inputs: Array
    targets: Any
    mask: Array


def place_split(
    inputs: NDArray,
    targets: NDArray,
    mesh: Mesh,
    prepare: Callable[[Array], Array] | None = None,
    whole_inputs: bool = False,
    num_blocks: int = 1,
) -> PlacedSplit:
    """Puts a split on the devices; the last example pads, for zeros may be no input.

    Args:
        inputs: [N, ...].
        targets: [N].
        mesh: of the devices.
        prepare: of the inputs, example by example, computed where they lie.
        whole_inputs: whether every shard has all inputs; targets and mask are spread all the same.
        num_blocks: equal ones, into which the examples of a shard can be divided.
    """
    num_places = padded_size(-(-len(targets) // num_blocks), mesh, DATA) * num_blocks
    arrays = jax.tree.map(
        lambda one: pad(np.asarray(one), num_places, fill=None), (inputs, targets)
    )
    spread = named_sharding(mesh, "example")
    of_inputs = named_sharding(mesh) if whole_inputs else spread
    mask = np.arange(num_places) < len(targets)
    placed = PlacedSplit(*put((*arrays, mask), (of_inputs, spread, spread)))
    if prepare is None:
        return placed
    return placed._replace(inputs=_prepared(prepare, placed.inputs))


def _prepared(prepare: Callable[[Array], Array], inputs: Array) -> Array:
    return jax.jit(prepare)(inputs)


class Layout(NamedTuple):
    """Which parameters are split over the shards of the data.

    Their rows are padded to a number that the shards divide. Padded rows are zero, and stay so:
    the likelihood does not know them, a prior has no slope there, and they get no momentum.

    Attributes:
        names: of the parameters that are split, by their first axis; the others are whole.
        num_rows: of each of them, the same for all.
        num_places: the same with the padding.
    """

    names: tuple[str, ...] = ()
    num_rows: int = 0
    num_places: int = 0

    def is_split(self, path: Sequence[Any]) -> bool:
        """Whether the leaf at a path of `jax.tree_util` belongs to a split parameter."""
        return any(str(getattr(key, "key", "")) in self.names for key in path)

    def pad(self, tree: Any, axis: int = 0) -> Any:
        """Pads the split leaves of a tree with zeros, from `num_rows` on that axis."""
        return self._map(lambda leaf: pad(leaf, self.num_places, axis), tree)

    def strip(self, tree: Any, axis: int = 0) -> Any:
        """The inverse of `pad`."""
        return self._map(lambda leaf: strip(leaf, self.num_rows, axis), tree)

    def mask(self, tree: Any) -> Any:
        """Marks what is no padding in every leaf: [num_places] if it is split, else [], true."""
        rows = np.arange(self.num_places) < self.num_rows
        whole = np.ones((), bool)
        return jax.tree_util.tree_map_with_path(
            lambda path, _: rows if self.is_split(path) else whole, tree
        )

    def _map(self, function, tree):
        if self.num_places == self.num_rows:
            return tree
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: function(leaf) if self.is_split(path) else leaf, tree
        )


def with_own_gradient(
    value_and_grad: Callable[[Any, Any], tuple[Array, Any]], data: Any
) -> Callable[[Any], Array]:
    """Returns `(params) -> value`, whose derivative is what came with it, in one pass.

    Args:
        value_and_grad: `(params, data) -> (value [], gradient)`.
        data: that it is of.
    """

    @jax.custom_vjp
    def value(params) -> Array:
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
    def of_chain(params, data):
        one_chain = jax.tree.map(lambda leaf: leaf[None], params)
        return jax.tree.map(lambda leaf: leaf[0], of_chains(one_chain, data, None))

    @of_chain.def_vmap
    def of_batch(num_chains: int, in_batched, params, data):
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
