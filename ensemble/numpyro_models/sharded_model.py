"""NumPyro models whose rows lie over the devices of a mesh, with variables that all share.

A model is written once, with `sharded_plate` where NumPyro has `plate`, and means the same on any
number of devices. Latents in the plate and data with as many rows are placed row by row, and the
compiler divides what is computed of them, with a sum over the devices where rows meet.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro import handlers
from numpyro.infer.util import constrain_fn, unconstrain_fn

from ensemble.errors import InputError
from ensemble.numpyro_models.model import Model, Params
from ensemble.sharding import transfer
from ensemble.sharding.layout import Layout
from ensemble.sharding.mesh import DATA


class Rows(NamedTuple):
    """The axis of an array that counts its rows.

    Attributes:
        size: Number of rows, without padding.
        axis: Axis that counts them, from the left.
        axis_name: Axis of the mesh that they are spread over.
    """

    size: int
    axis: int
    axis_name: str


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedModel:
    """What a model gives to samplers; made by `make_model`.

    Parameters are a dict by site, unconstrained: a sharded latent is one global array whose rows
    are spread over the mesh, padded to a multiple of the devices. Draws are a dict by site too, in
    the model's own values, without padding.

    Attributes:
        model: The model as it was given.
        mesh: Mesh on which the rows lie.
        rows: Rows of the sharded latents, by site.
        data_rows: Rows of arrays among the arguments, by number.
    """

    model: Model
    mesh: Mesh
    rows: dict[str, Rows]
    data_rows: dict[str, Rows]

    @functools.cached_property
    def data(self) -> dict[str, jax.Array]:
        """Arrays among the arguments, on the devices; those with rows are padded."""
        with jax.ensure_compile_time_eval():  # What is traced may be the first to ask.
            return self.place()

    def place(self) -> dict[str, jax.Array]:
        """Puts the arrays among the arguments on the devices."""
        arrays = {number: np.asarray(leaf) for number, leaf in self.model.arrays.items()}
        padded = self._pad(arrays, self.data_rows)
        return dict(transfer.put(padded, self._shardings(padded, self.data_rows)))

    @property
    def layout(self) -> Layout:
        """Places where samplers may keep the parameters; whole where it cannot name the rows."""
        if len(set(self.rows.values())) == 1:
            [rows] = set(self.rows.values())
            if rows.axis == 0 and rows.axis_name == DATA:
                return Layout(tuple(self.rows), rows.size, self._num_places(rows))
        return Layout()

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Draws parameters where a chain may start from the prior, the same on any mesh.

        Raises:
            InputError: A prior is improper, so that nothing can be drawn from it.
        """
        if any(site.is_flat for site in self.model.sites.values()):
            raise InputError(
                "a prior of the model is improper, so that nothing can be drawn from it; give it a "
                "proper one, or use ensemble.sample, which starts elsewhere"
            )
        return self._init(rng_key, self.data)

    @functools.partial(jax.jit, static_argnums=0)
    def _init(self, rng_key: jax.Array, data: Any) -> dict[str, jax.Array]:
        bound = self.model.bound(self.stripped({}, data)[1])
        sites = handlers.trace(handlers.seed(bound, rng_key)).get_trace()
        draw = {name: sites[name]["value"] for name in self.model.shapes}
        params = self._pad(unconstrain_fn(bound, (), {}, draw), self.rows)
        return jax.lax.with_sharding_constraint(params, self._shardings(params, self.rows))

    def bind(self, data: Any) -> Callable[[Params], jax.Array]:
        """Returns the log density of the parameters given `self.data`, nats, as samplers see it.

        A jitted program takes the data as an argument and binds them inside: closed over, they
        would be a constant of it, whole on every device. Chains are vmapped, with the mesh's
        other axis as `spmd_axis_name` if they are spread too. Sharded latents may be padded or not.
        """
        return lambda params: self.model.log_density(*self.stripped(params, data))

    def bind_reference(self, data: Any, sd: float) -> Callable[[Params], jax.Array]:
        """Returns `Model.log_reference`, as `bind`."""
        return lambda params: self.model.log_reference(*self.stripped(params, data), sd)

    def log_density(self, params: Params) -> jax.Array:
        """Returns log p(data, params), nats, with the Jacobians: `bind(self.data)`."""
        return self._log_density(params, self.data)

    @functools.partial(jax.jit, static_argnums=0)
    def _log_density(self, params: Params, data: Any) -> jax.Array:
        return self.bind(data)(params)

    def constrain(self, params: Params) -> dict[str, jax.Array]:
        """Returns the model's own values of the parameters of one draw, without padding."""
        return self._constrain(params, self.data)

    @functools.partial(jax.jit, static_argnums=0)
    def _constrain(self, params: Params, data: Any) -> dict[str, jax.Array]:
        params, arrays = self.stripped(params, data)
        return constrain_fn(self.model.bound(arrays), (), {}, params)

    def stripped(self, params: Params, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns parameters and arrays without padding, whose rows stay where they are."""

        def strip(arrays: Params, all_rows: Mapping[str, Rows]) -> dict[str, Any]:
            rows = {
                name: jax.lax.with_sharding_constraint(
                    transfer.strip(arrays[name], one.size, one.axis), self._sharding(one)
                )
                for name, one in all_rows.items()
                if name in arrays
            }
            return {**arrays, **rows}

        return strip(params, self.rows), strip(data, self.data_rows)

    def _num_places(self, rows: Rows) -> int:
        return transfer.padded_size(rows.size, self.mesh, rows.axis_name)

    def _pad(self, arrays: Params, rows: Mapping[str, Rows]) -> dict[str, Any]:
        padded = {
            name: transfer.pad(arrays[name], self._num_places(one), one.axis, None)
            for name, one in rows.items()
        }
        return {**arrays, **padded}

    def _sharding(self, rows: Rows) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*[None] * rows.axis, rows.axis_name))

    def _shardings(self, arrays: Params, rows: Mapping[str, Rows]) -> dict[str, NamedSharding]:
        whole = dict.fromkeys(arrays, NamedSharding(self.mesh, PartitionSpec()))
        return whole | {name: self._sharding(one) for name, one in rows.items()}


def make_model(model: Callable[..., Any], mesh: Mesh, *args: Any, **kwargs: Any) -> ShardedModel:
    """Spreads a NumPyro model and its data over a mesh.

    Args:
        model: Model with a `sharded_plate`, whose axis the mesh has.
        mesh: Mesh with axes of type Auto, such as `sharding.mesh.create_mesh`'s.
        *args: Arguments of the model: arrays, or trees of them. An array whose first axis is as
            long as a sharded plate is split as the plate is. All devices share the others, what is
            no array, and what the model closes over.
        **kwargs: Keyword arguments, likewise.

    Raises:
        InputError: The model cannot be sampled, or the mesh lacks an axis.
    """
    return split_rows(Model(model, args, kwargs), mesh)


def split_rows(model: Model, mesh: Mesh) -> ShardedModel:
    """Spreads the rows of a model's sharded plates over a mesh, as `make_model`."""
    for plate, (_, axis_name) in model.plates.items():
        if axis_name not in mesh.axis_names:
            raise InputError(
                f"{model.name} has a sharded_plate {plate!r} with axis_name={axis_name!r}; use one "
                f"of the mesh's {list(mesh.axis_names)}"
            )
    axis_names = dict(model.plates.values())
    rows = {}
    for name, site in model.sites.items():
        if site.rows and name in model.shapes:
            size, axis_name = model.plates[site.rows[0]]
            rows[name] = Rows(size, site.rows[1], axis_name)
    data_rows = {
        number: Rows(len(array), 0, axis_names[len(array)])
        for number, array in model.arrays.items()
        if array.ndim and len(array) in axis_names
    }
    return ShardedModel(model, mesh, rows, data_rows)
