"""Distributions of NumPyro whose values lie over devices, and a plate of sharded rows."""

from typing import Any

import jax
import numpyro
from jax import lax
from numpyro.distributions import Distribution

from ensemble.errors import InputError
from ensemble.sharding.mesh import DATA

MARK = "sharded_plate"  # In a site's `infer`: the name of its sharded plate, and the axis.


class Sharded(Distribution):
    """Variables that are split over the shards of `jax.shard_map(check_vma=True)`.

    Every shard draws its own sample from the same key. The log density is the sum over the shards,
    the same on all of them; its gradient is right for what is split and for what is shared. Under
    `pmap` or without `check_vma` the gradient would be wrong, without an error: refused there.

    Args:
        base_dist: of the variables of one shard.
        axis_name: of the mesh.
    """

    pytree_data_fields = ("base_dist",)
    pytree_aux_fields = ("axis_name",)

    def __init__(self, base_dist: Distribution, axis_name: str):
        self.base_dist = base_dist
        self.axis_name = axis_name
        super().__init__(base_dist.batch_shape, base_dist.event_shape)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draws this shard's sample.

        Args:
            key: Key, the same on all shards.
            sample_shape: Shape of independent draws, in front.

        Raises:
            InputError: It is called under `pmap`, or without `check_vma`.
        """
        key = jax.random.fold_in(key, _shard_index(self.axis_name))
        return self.base_dist.sample(key, sample_shape)

    def log_prob(self, value: Any, intermediates: Any = None) -> Any:
        """The sum of the shards' log densities, nats, of the batch shape."""
        _shard_index(self.axis_name)
        return lax.psum(self.base_dist.log_prob(value), self.axis_name)

    def expand(self, batch_shape: tuple[int, ...]) -> "Sharded":
        return type(self)(self.base_dist.expand(batch_shape), self.axis_name)

    def mask(self, mask: Any) -> "Sharded":
        # Before the sum: a shard masks its own variables.
        return type(self)(self.base_dist.mask(mask), self.axis_name)

    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> "Sharded":
        return type(self)(self.base_dist.to_event(reinterpreted_batch_ndims), self.axis_name)


class sharded_plate(numpyro.plate):
    """NumPyro's `plate`, whose rows are spread over the devices of a mesh's axis.

    It is the same model on any number of devices: `ensemble.sample` and `make_model` place latents
    in the plate, and arrays among the arguments that are as long, row by row, and the compiler
    divides what is computed of them.

    Args:
        name: Name of the plate.
        size: Number of rows.
        axis_name: Axis of the mesh; by default that of `ensemble.sample`.
        dim: Axis of the plate, negative; by default the rightmost free one.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "sharded_plate":
        # NumPyro's enumeration leaves a `plate.__new__` behind that makes plates of all subclasses.
        return object.__new__(cls)

    def __init__(self, name: str, size: int, axis_name: str = DATA, dim: int | None = None):
        self.axis_name = axis_name
        super().__init__(name, size, dim=dim)

    def process_message(self, msg: Any) -> None:
        super().process_message(msg)
        if msg["type"] == "sample":
            msg["infer"] = {**msg["infer"], MARK: (self.name, self.axis_name)}


def _shard_index(axis_name: str) -> jax.Array:
    """The number of this shard; a NameError of JAX's where there are none."""
    index = lax.axis_index(axis_name)
    if not jax.typeof(index).manual_axis_type.varying:
        raise InputError(
            f"what is sharded over {axis_name!r} must be inside jax.shard_map with check_vma=True: "
            "under pmap, or without it, gradients would be wrong"
        )
    return index
