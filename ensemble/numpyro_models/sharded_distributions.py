"""Distributions of NumPyro whose values lie over devices, and a plate of sharded rows."""

import contextvars
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions import Distribution
from numpyro.primitives import Messenger

from ensemble.errors import InputError, calling_place
from ensemble.sharding.mesh import DATA

MARK = "sharded_plate"  # In a site's `infer`: the name of its sharded plate, and the axis.
total_sizes: contextvars.ContextVar[dict[str, int]] = contextvars.ContextVar("total_sizes")


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

    @property
    def has_rsample(self) -> bool:
        return self.base_dist.has_rsample

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draws this shard's sample.

        Args:
            key: the same on all shards.
            sample_shape: of independent draws, in front.

        Raises:
            InputError: under `pmap`, without `check_vma`, or JAX cannot draw from this distribution
                there.
        """
        key = jax.random.fold_in(key, _shard_index(self.axis_name))
        try:
            return self.base_dist.sample(key, sample_shape)
        except TypeError as error:
            if "manual axis types" not in str(error):
                raise
            innermost: Any = self.base_dist
            while hasattr(innermost, "base_dist"):
                innermost = innermost.base_dist
            raise InputError(
                f"{type(innermost).__name__} cannot be drawn by shards: its sampler starts a "
                "loop from values that all shards share, which check_vma does not allow; draw it "
                "outside shard_map, where sharded_plate is an ordinary plate"
            ) from error

    rsample = sample

    def log_prob(self, value: Any, intermediates: Any = None) -> Any:
        """The sum of the shards' log densities, nats, of the batch shape."""
        _shard_index(self.axis_name)
        return jax.lax.psum(self.base_dist.log_prob(value), self.axis_name)

    def expand(self, batch_shape: tuple[int, ...]) -> "Sharded":
        return type(self)(self.base_dist.expand(batch_shape), self.axis_name)

    def mask(self, mask: Any) -> "Sharded":
        # Before the sum: a shard masks its own variables.
        return type(self)(self.base_dist.mask(mask), self.axis_name)

    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> "Sharded":
        return type(self)(self.base_dist.to_event(reinterpreted_batch_ndims), self.axis_name)


class sharded_plate(numpyro.plate):
    """NumPyro's `plate`, with rows that are split over the devices of a mesh's axis.

    Run as it is, it is an ordinary plate. `sharded_model.make_model` and `ensemble.sample` run the
    model once on every shard, with `ceil(size / shards)` rows, and leave out of the density what is
    over in the last shards.

    A row's distribution may depend on the row and on what is shared, but on no other row.

    Unlike `plate` it hands out no indices, for a model's arguments are split already.

    Args:
        name: of the plate.
        size: rows in all, of all shards together.
        axis_name: of the mesh; that of `ensemble.sample` if it is not given.
        dim: of the plate, negative; the rightmost free one if it is not given.
        subsample_size: of NumPyro's plate; less than all rows is refused.

    Raises:
        InputError: inside a `shard_map` of somebody else, who does not know of the padding; or
            `subsample_size` asks for some rows, and a posterior needs all.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "sharded_plate":
        # NumPyro's enumeration leaves a `plate.__new__` behind that makes plates of all subclasses.
        return object.__new__(cls)

    def __init__(
        self,
        name: str,
        size: int,
        axis_name: str = DATA,
        dim: int | None = None,
        *,
        subsample_size: int | None = None,
    ):
        if subsample_size not in (None, size):
            raise InputError(
                f"sharded_plate {name!r} takes subsample_size={subsample_size} of {size} rows at "
                "random, and a posterior needs all; leave subsample_size out"
            )
        self.axis_name = axis_name
        sizes = total_sizes.get({})
        if name in sizes:
            size = rows_of_shard(sizes[name], axis_name)
        elif not sizes and _is_mapped(axis_name):
            raise InputError(
                f"sharded_plate {name!r} is inside a shard_map that does not know its padding; use "
                "make_model or ensemble.sample, which map the model themselves"
            )
        super().__init__(name, size, dim=dim)

    def __enter__(self) -> None:
        super().__enter__()

    def process_message(self, msg: Any) -> None:
        super().process_message(msg)
        is_inside = any(frame.name == self.name for frame in msg.get("cond_indep_stack", ()))
        if msg["type"] != "sample" or not is_inside:
            return
        if MARK in msg["infer"] or isinstance(msg["fn"], Sharded):
            raise InputError(
                f"site {msg['name']!r} is sharded twice; leave out all but one sharded_plate or "
                "Sharded"
            )
        msg["infer"] = {**msg["infer"], MARK: (self.name, self.axis_name)}


class ShardsPart(Messenger):
    """Leaves of a model's density what one shard adds to the sum over the shards.

    That is its own rows, without those that pad, and on the first shard what all share. It comes
    outside of all handlers of the model, so that these see what they see of an ordinary plate.

    Args:
        fn: the model.
        sizes: rows of every sharded plate.
        axis_name: of the mesh.
    """

    def __init__(self, fn: Any, sizes: Mapping[str, int], axis_name: str):
        super().__init__(fn)
        self._sizes, self._axis_name = sizes, axis_name

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "sample":
            return
        shard = _shard_index(self._axis_name)
        if MARK not in msg["infer"]:
            msg["fn"] = msg["fn"].mask(shard == 0)
            return
        plate, _ = msg["infer"][MARK]
        dim = dim_of(msg, plate)
        num_rows = rows_of_shard(self._sizes[plate], self._axis_name)
        whole = msg["fn"].shape()
        found = whole if msg["value"] is None else jnp.shape(msg["value"])
        if msg["fn"].batch_shape[dim] != num_rows or not _fits(found, whole):
            raise InputError(
                f"site {msg['name']!r} at {calling_place()} has the shape {found}, and a shard "
                f"has {num_rows} rows of {plate!r}; data with rows must be arrays among the "
                "model's arguments, which are split"
            )
        is_row = shard * num_rows + jnp.arange(num_rows) < self._sizes[plate]
        msg["fn"] = msg["fn"].mask(is_row.reshape((-1,) + (1,) * (-dim - 1)))


def dim_of(site: Mapping[str, Any], plate: str) -> int:
    """The negative axis that a plate has among the batch axes of a site in it."""
    [dim] = [frame.dim for frame in site["cond_indep_stack"] if frame.name == plate]
    return int(dim)


def rows_of_shard(size: int, axis_name: str) -> int:
    """Rows that each shard has of a plate, the padding included."""
    return math.ceil(size / jax.lax.axis_size(axis_name))


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether values of a shape can be of a site that has another; of none they can."""
    # Of one row a shard, broadcasting would make many.
    try:
        return jnp.broadcast_shapes(shape, whole) == tuple(whole)
    except ValueError:
        return False


def _is_mapped(axis_name: str) -> bool:
    try:
        jax.lax.axis_index(axis_name)
    except NameError:
        return False
    return True


def _shard_index(axis_name: str) -> jax.Array:
    """The number of this shard; a NameError of JAX's where there are none."""
    index = jax.lax.axis_index(axis_name)
    if not varies(index):
        raise InputError(
            f"what is sharded over {axis_name!r} must be inside jax.shard_map with check_vma=True: "
            "under pmap, or without it, gradients would be wrong"
        )
    return index


def varies(value: Any) -> bool:
    """Whether a value may differ from shard to shard."""
    return bool(jax.typeof(value).manual_axis_type.varying)
