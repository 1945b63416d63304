"""Distributions of NumPyro whose values lie over devices, and a plate of sharded rows."""

import contextvars
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions import Distribution

from ensemble.errors import UserError

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
            UserError: under `pmap`, without `check_vma`, or JAX cannot draw from this distribution
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
            raise UserError(
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


class _ShardedRows(Sharded):
    """Rows of a plate: one number crosses the devices, not one a row."""

    def log_prob(self, value: Any, intermediates: Any = None) -> Any:
        log_prob = self.base_dist.log_prob(value)
        _check_rows(log_prob.shape, self.batch_shape)
        return jax.lax.psum(jnp.sum(log_prob), self.axis_name)


class sharded_plate(numpyro.plate):
    """NumPyro's `plate`, with rows that are split over the devices of a mesh's axis.

    Outside `shard_map` it is an ordinary plate. Inside, a shard has `ceil(size / shards)` rows;
    what is over in the last shards is masked: it adds nothing to a log density.

    A row's distribution may depend on the row and on what is shared, but on no statistic over rows:
    inside, there are those of one shard only.

    Unlike `plate` it hands out no indices, for a model's arguments are split already. NumPyro's
    `reparam` does not see through it: write the site in its other form by hand.

    Args:
        name: of the plate.
        size: rows in all, of all shards together.
        axis_name: of the mesh.
        dim: of the plate, negative; the rightmost free one if it is not given.
    """

    def __init__(self, name: str, size: int, axis_name: str, dim: int | None = None):
        self.axis_name = axis_name
        self._mask = None
        try:
            index = _shard_index(axis_name)
        except NameError:
            super().__init__(name, size, dim=dim)
            return
        size = total_sizes.get({}).get(name, size)
        num_rows = math.ceil(size / jax.lax.axis_size(axis_name))
        self._mask = index * num_rows + jnp.arange(num_rows) < size
        super().__init__(name, num_rows, dim=dim)

    def __enter__(self) -> None:
        super().__enter__()

    def process_message(self, msg: Any) -> None:
        super().process_message(msg)
        is_inside = any(frame.name == self.name for frame in msg.get("cond_indep_stack", ()))
        if msg["type"] != "sample" or not is_inside:
            return
        if MARK in msg["infer"] or isinstance(msg["fn"], Sharded):
            raise UserError(
                f"site {msg['name']!r} is sharded twice; leave out all but one sharded_plate or "
                "Sharded"
            )
        msg["infer"] = {**msg["infer"], MARK: (self.name, self.axis_name)}
        if self._mask is not None:
            _check_rows(msg["fn"].batch_shape[self.dim], self.size)
            mask = self._mask.reshape((-1,) + (1,) * (-self.dim - 1))
            msg["fn"] = _ShardedRows(msg["fn"].mask(mask), self.axis_name)


def _check_rows(found: Any, expected: Any) -> None:
    # Of one row a shard, broadcasting would make many.
    if found != expected:
        raise UserError(
            f"a site of a sharded_plate is of shape {found}, a shard's rows are {expected}; data "
            "must be arguments of the model, which are split, or have the shard's rows"
        )


def _shard_index(axis_name: str) -> jax.Array:
    """The number of this shard; a NameError of JAX's where there are none."""
    index = jax.lax.axis_index(axis_name)
    if not varies(index):
        raise UserError(
            f"what is sharded over {axis_name!r} must be inside jax.shard_map with check_vma=True: "
            "under pmap, or without it, gradients would be wrong"
        )
    return index


def varies(value: Any) -> bool:
    """Whether a value may differ from shard to shard."""
    return bool(jax.typeof(value).manual_axis_type.varying)
