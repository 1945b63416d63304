"""NumPyro models whose rows lie over the devices of a mesh, with variables that all share.

A model is written once, with `sharded_plate` where NumPyro has `plate`, and means the same on any
number of devices. Latents in the plate and data with as many rows are placed row by row, and the
compiler divides what is computed of them, with a sum over the devices where rows meet.
"""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro import handlers
from numpyro.infer.util import constrain_fn, unconstrain_fn

from ensemble.numpyro_models.model import Arrays, Model
from ensemble.numpyro_models.sites import Rows
from ensemble.pytrees import Function
from ensemble.sharding import transfer
from ensemble.sharding.mesh import DATA
from ensemble.sharding.transfer import Layout


def _with_data(method):
    """Compiles a method of an argument and the data, and gives it the model's own."""
    program = jax.jit(method, static_argnums=0)
    return wraps(method)(lambda self, argument: program(self, argument, self.data))


class ShardedModel:
    """What a model gives to samplers; made by `make_model`.

    Parameters are a dict by site, unconstrained: a sharded latent is one global array whose rows
    are spread over the mesh, padded to a multiple of the devices. Draws are a dict by site too, in
    the model's own values, without padding.

    Args:
        model: The model.
        mesh: Mesh on which the rows lie.

    Attributes:
        layout: Places where samplers may keep the parameters; whole where it cannot name the rows.
    """

    def __init__(self, model: Model, mesh: Mesh):
        self._model = model
        self._mesh = mesh
        axis_names = {rows.size: rows.axis_name for rows in model.rows.values()}
        latents = {name: rows for name, rows in model.rows.items() if name in model.shapes}
        self._rows = {**latents}  # And those of arrays among the arguments, by number.
        for number, array in model.arrays.items():
            if array.ndim and len(array) in axis_names:
                self._rows[number] = Rows(len(array), 0, axis_names[len(array)])
        self.layout = Layout()
        kinds = set(latents.values())
        for rows in kinds:
            if kinds == {Rows(rows.size, 0, DATA)}:
                self.layout = Layout(tuple(latents), rows.size, self._num_places(rows))

    @cached_property
    def data(self) -> Arrays:
        """Arrays among the arguments, on the devices; those with rows are padded."""
        with jax.ensure_compile_time_eval():  # What is traced may be the first to ask.
            return self.place()

    def place(self) -> Arrays:
        """Puts the arrays among the arguments on the devices."""
        arrays = {number: np.asarray(leaf) for number, leaf in self._model.arrays.items()}
        placed: Arrays = transfer.put(*self._padded(arrays))
        return placed

    @_with_data
    def init(self, rng_key: Array, data: Arrays) -> Arrays:
        """Draws parameters where a chain may start from the prior, the same on any mesh."""
        bound = self._model.bound(self._stripped(data))
        sites = handlers.trace(handlers.seed(bound, rng_key)).get_trace()
        draw = {name: sites[name]["value"] for name in self._model.shapes}
        placed: Arrays = lax.with_sharding_constraint(
            *self._padded(unconstrain_fn(bound, (), {}, draw))
        )
        return placed

    def bind(self, data: Arrays) -> Callable[[Arrays], Array]:
        """Returns the log density of the parameters given `self.data`, nats, as samplers see it.

        A jitted program takes the data as an argument and binds them inside: closed over, they
        would be a constant of it, whole on every device. Chains are vmapped, with the mesh's
        other axis as `spmd_axis_name` if they are spread too. Sharded latents may be padded or not.
        """
        return lambda params: self._model.log_density(self._stripped(params), self._stripped(data))

    def bind_reference(self, data: Arrays, sd: float) -> Callable[[Arrays], Array]:
        """Returns `Model.log_reference`, as `bind`."""
        return lambda params: self._model.log_reference(
            self._stripped(params), self._stripped(data), sd
        )

    @_with_data
    def log_density(self, params: Arrays, data: Arrays) -> Array:
        """Returns log p(data, params), nats, with the Jacobians: `bind(self.data)(params)`."""
        return self.bind(data)(params)

    @_with_data
    def constrain(self, params: Arrays, data: Arrays) -> Arrays:
        """Returns the model's own values of the parameters of one draw, without padding."""
        bound = self._model.bound(self._stripped(data))
        values: Arrays = constrain_fn(bound, (), {}, self._stripped(params))
        return values

    def _stripped(self, arrays: Arrays) -> Arrays:
        """Takes the padding from arrays, whose rows stay where they are."""
        result = dict(arrays)
        for name, rows in self._rows.items():
            if name in arrays:
                whole = transfer.strip(arrays[name], rows.size, rows.axis)
                result[name] = lax.with_sharding_constraint(whole, self._sharding(rows))
        return result

    def _padded(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        """Returns arrays whose rows are padded, and where all of them lie."""
        padded = dict(arrays)
        where = dict.fromkeys(arrays, NamedSharding(self._mesh, PartitionSpec()))
        for name, rows in self._rows.items():
            if name in arrays:
                padded[name] = transfer.pad(arrays[name], self._num_places(rows), rows.axis, None)
                where[name] = self._sharding(rows)
        return padded, where

    def _num_places(self, rows: Rows) -> int:
        return transfer.padded_size(rows.size, self._mesh, rows.axis_name)

    def _sharding(self, rows: Rows) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*[None] * rows.axis, rows.axis_name))


def make_model(model: Function, mesh: Mesh, *args: Any, **kwargs: Any) -> ShardedModel:
    """Spreads a NumPyro model and its data over a mesh.

    Args:
        model: Model with a `sharded_plate`, whose axis the mesh has.
        mesh: Mesh with axes of type Auto, such as `sharding.mesh.create_mesh`'s.
        *args: Arguments of the model: arrays, or trees of them. An array whose first axis is as
            long as a sharded plate is split as the plate is. All devices share the others, what is
            no array, and what the model closes over.
        **kwargs: Keyword arguments, likewise.

    Raises:
        InputError: The model cannot be sampled.
    """
    return ShardedModel(Model(model, args, kwargs), mesh)
