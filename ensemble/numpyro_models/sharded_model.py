"""NumPyro models whose rows are split over devices, beside variables that all devices share.

A model is written once, with `sharded_plate` where NumPyro has `plate`. Run as it is, that is an
ordinary plate: the whole model, for draws. Inside `jax.shard_map` it is a shard's part of the rows,
and log densities are summed over the shards. `make_model` puts the two together for samplers.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import Predictive, init_to_uniform
from numpyro.infer.util import compute_log_probs, constrain_fn, potential_energy, unconstrain_fn

from ensemble.errors import InputError, in_own_code
from ensemble.numpyro_models.model_arguments import Arguments
from ensemble.numpyro_models.sharded_distributions import (
    MARK,
    ShardsPart,
    dim_of,
    total_sizes,
    varies,
)
from ensemble.sharding import transfer
from ensemble.sharding.chainwise import with_own_gradient
from ensemble.sharding.layout import Layout
from ensemble.sharding.mesh import DATA

Params = Mapping[str, Any]


class Rows(NamedTuple):
    """The axis of an array that counts its rows.

    Attributes:
        size: how many there are, without padding.
        axis: that counts them, from the left.
    """

    size: int
    axis: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedModel:
    """What a model gives to samplers; made by `make_model`.

    Parameters are a dict by site, unconstrained: a sharded latent is one global array whose rows
    are spread over the mesh, padded to a multiple of the shards. Draws are a dict by site too, in
    the model's own values, without padding.

    Attributes:
        model: as it was given.
        mesh: on which the rows lie.
        axis_name: of the mesh's axis that rows are spread over.
        sizes: rows of every sharded plate.
        rows: of every latent site; None for one that all shards share.
        arguments: of the model, on the host.
        data_rows: where arrays among the arguments have rows; None for those that all shards share.
    """

    model: Callable[..., Any]
    mesh: Mesh
    axis_name: str
    sizes: dict[str, int]
    rows: dict[str, Rows | None]
    arguments: Arguments
    data_rows: dict[str, Rows | None]

    @functools.cached_property
    def data(self) -> dict[str, jax.Array]:
        """Arrays among the arguments, on the devices; those with rows are padded."""
        with jax.ensure_compile_time_eval():  # What is traced may be the first to ask.
            return self.place()

    def place(self) -> dict[str, jax.Array]:
        """Puts the arrays among the arguments on the devices."""
        arrays = self.arguments.arrays.items()
        padded = {name: self._pad(np.asarray(leaf), self.data_rows[name]) for name, leaf in arrays}
        return dict(transfer.put(padded, self._data_shardings))

    @property
    def _data_shardings(self) -> dict[str, NamedSharding]:
        specs = self._specs(self.data_rows)
        return {name: NamedSharding(self.mesh, spec) for name, spec in specs.items()}

    @property
    def mask(self) -> dict[str, np.ndarray]:
        """For `leafwise_metric`: of a sharded latent false for rows that pad; [] of others."""

        def of_site(rows: Rows | None) -> np.ndarray:
            if rows is None:
                return np.ones((), bool)
            is_row = np.arange(self._num_places(rows)) < rows.size
            return is_row.reshape((1,) * rows.axis + (-1,))

        return {site: of_site(rows) for site, rows in self.rows.items()}

    @property
    def shardings(self) -> dict[str, NamedSharding]:
        """Says where the parameters of one chain lie."""
        specs = self._specs(self.rows)
        return {site: NamedSharding(self.mesh, spec) for site, spec in specs.items()}

    @property
    def layout(self) -> Layout:
        """Says where samplers may keep the parameters; all whole where it has no words for the
        rows."""
        split = {site: rows for site, rows in self.rows.items() if rows is not None}
        if len(set(split.values())) != 1 or self.axis_name != DATA:
            return Layout()
        [rows] = set(split.values())
        if rows.axis:
            return Layout()
        return Layout(tuple(split), rows.size, self._num_places(rows), "row")

    def pad(self, params: Params) -> dict[str, Any]:
        """Pads sharded latents by their last row, which is a valid one."""
        return {site: self._pad(leaf, self.rows[site]) for site, leaf in params.items()}

    def prior(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Draws all latent variables; the same on any number of shards.

        Raises:
            InputError: a prior is improper, so that nothing can be drawn from it.
        """
        with _drawn():
            return self._jitted["prior"](rng_key, self.data)

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Parameters where a chain may start: a draw from the prior, spread over the mesh.

        Raises:
            InputError: as `prior`.
        """
        with _drawn():
            return self._jitted["init"](rng_key, self.data)

    def bind(self, data: Any) -> Callable[[Params], jax.Array]:
        """The log density of the parameters given `self.data`, nats, as samplers see it.

        A jitted program takes the data as an argument and binds them inside: closed over, they
        would be a constant of it, whole on every device. Chains are vmapped, with the mesh's
        other axis as `spmd_axis_name` if they are spread too. It can be differentiated once, in
        reverse; value and gradient are one pass over the rows, and one sum over the shards.
        """
        return with_own_gradient(self._mapped(self._value_and_grad_on_shard, is_grad=True), data)

    def log_density(self, params: Params) -> jax.Array:
        """log p(data, params), nats, the bijectors' Jacobians included: `bind(self.data)`."""
        return self._jitted["log_density"](params, self.data)

    def constrain(self, params: Params) -> dict[str, jax.Array]:
        """The model's own values of the parameters of one draw, without padding."""
        return self._jitted["constrain"](params, self.data)

    def predictive(
        self, rng_key: jax.Array, params: Params, *args: Any, **kwargs: Any
    ) -> dict[str, jax.Array]:
        """Draws what is not latent, given draws of the parameters: NumPyro's `Predictive`.

        Args:
            rng_key: of the predictions.
            params: [T, ...] each.
            *args: of the model; as in NumPyro, those that are observed are left out, and others
                may be new.
            **kwargs: likewise.

        Returns:
            [T, ...] by site, deterministic ones included.
        """
        predict = Predictive(self.model, jax.vmap(self.constrain)(params), parallel=True)
        return predict(rng_key, *args, **kwargs)

    # How arrays lie.

    def _num_places(self, rows: Rows) -> int:
        return transfer.padded_size(rows.size, self.mesh, self.axis_name)

    def _pad(self, leaf: Any, rows: Rows | None) -> Any:
        return leaf if rows is None else transfer.pad(leaf, self._num_places(rows), rows.axis, None)

    def _strip(self, leaf: Any, rows: Rows | None) -> Any:
        return leaf if rows is None else transfer.strip(leaf, rows.size, rows.axis)

    def _spec(self, rows: Rows | None) -> PartitionSpec:
        axes = [] if rows is None else [*[None] * rows.axis, self.axis_name]
        return PartitionSpec(*axes)

    def _specs(self, rows: Mapping[str, Rows | None]) -> dict[str, PartitionSpec]:
        return {name: self._spec(one) for name, one in rows.items()}

    def _whole(self, data: Any) -> Any:
        """Arguments of the model without padding."""
        return self.arguments.having(
            {name: self._strip(leaf, self.data_rows[name]) for name, leaf in data.items()}
        )

    # Programs.

    @functools.cached_property
    def _jitted(self) -> dict[str, Any]:
        names = ("prior", "init", "constrain")
        programs = {name: jax.jit(getattr(self, f"_{name}")) for name in names}
        return programs | {"log_density": jax.jit(lambda params, data: self.bind(data)(params))}

    def _prior(self, rng_key: jax.Array, data: Any) -> dict[str, jax.Array]:
        args, kwargs = self._whole(data)
        sites = handlers.trace(handlers.seed(self.model, rng_key)).get_trace(*args, **kwargs)
        return {site: sites[site]["value"] for site in self.rows}

    def _init(self, rng_key: jax.Array, data: Any) -> dict[str, jax.Array]:
        draw = self._prior(rng_key, data)
        params = self.pad(unconstrain_fn(self.model, *self._whole(data), draw))
        return jax.lax.with_sharding_constraint(params, self.shardings)

    def _constrain(self, params: Params, data: Any) -> dict[str, jax.Array]:
        whole = {site: self._strip(leaf, self.rows[site]) for site, leaf in params.items()}
        return constrain_fn(self.model, *self._whole(data), whole)

    def _mapped(self, function: Callable[..., Any], is_grad: bool) -> Callable[..., Any]:
        """A function of parameters and data, on every shard."""
        of_params = self._specs(self.rows)
        mapped = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(of_params, self._specs(self.data_rows)),
            out_specs=(PartitionSpec(), of_params) if is_grad else PartitionSpec(),
            check_vma=True,
        )
        return lambda params, data: mapped(dict(params), data)

    def _value_and_grad_on_shard(self, params: Params, data: Any) -> tuple[jax.Array, Params]:
        def part(params: Params) -> jax.Array:
            model = ShardsPart(self.model, self.sizes, self.axis_name)
            args, kwargs = self.arguments.having(data)
            # TPUs and TF32 would round the products to some 3 digits, which are nats here.
            with jax.default_matmul_precision("highest"):
                return -jnp.asarray(potential_energy(model, args, kwargs, params))

        # Varying, so that the gradient is this shard's own: of parameters that all shards share
        # it would be summed already, once for each place where they are used.
        own = {
            site: leaf if self.rows[site] else jax.lax.pcast(leaf, self.axis_name, to="varying")
            for site, leaf in params.items()
        }
        with self._on_shard():
            value, grads = jax.value_and_grad(part)(own)
        shared = {site: grad for site, grad in grads.items() if self.rows[site] is None}
        value, shared = jax.lax.psum((value, shared), self.axis_name)
        return value, {**grads, **shared}

    @contextlib.contextmanager
    def _on_shard(self) -> Iterator[None]:
        """Sharded plates have the rows of one shard."""
        token = total_sizes.set(self.sizes)
        try:
            yield
        finally:
            total_sizes.reset(token)

    def _check_parts(self, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        """Refuses a model that does not run on a shard's rows, or is no sum over the shards."""

        def check(params: Params, data: Any) -> jax.Array:
            args, kwargs = self.arguments.having(data)
            with self._on_shard():
                values = constrain_fn(self.model, args, kwargs, params)
                terms, sites = compute_log_probs(self.model, args, kwargs, values)
            differing = [
                repr(name)
                for name, term in terms.items()
                if MARK not in sites[name]["infer"] and varies(jnp.asarray(term))
            ]
            if differing:
                raise InputError(
                    f"the log density of {', '.join(differing)} differs from shard to shard; what "
                    "depends on rows must be inside the sharded_plate"
                )
            return jnp.float32(0)

        params = jax.eval_shape(self.pad, shapes)
        with transfer.described():
            described = self.place()
        try:
            jax.eval_shape(lambda params, data: self.bind(data)(params), params, described)
            jax.eval_shape(self._mapped(check, is_grad=False), params, described)
        except InputError:
            raise
        except Exception as error:  # A model is a program, and may raise anything.
            raise InputError(
                f"the model runs on all rows, but failed on those of one shard {in_own_code(error)}"
                "; data with rows must be arrays among its arguments, which are split"
            ) from error


def make_model(model: Callable[..., Any], mesh: Mesh, *args: Any, **kwargs: Any) -> ShardedModel:
    """Spreads a NumPyro model and its data over a mesh.

    Args:
        model: with a `sharded_plate`, whose axis the mesh has.
        mesh: of axes of type Auto, such as `sharding.mesh.create_mesh`'s.
        *args: of the model: arrays, or trees of them. An array whose first axis is as long as a
            sharded plate is split as the plate is. All shards share the others, what is no array,
            and what the model closes over.
        **kwargs: likewise.

    Raises:
        InputError: the model or its arguments cannot be split so, or a latent site is discrete.
    """
    sites, shapes = _trace(model, args, kwargs)
    marks = {name: site["infer"][MARK] for name, site in sites.items() if MARK in site["infer"]}
    axis_names = {axis_name for _, axis_name in marks.values()}
    if len(axis_names) != 1 or not axis_names <= set(mesh.axis_names):
        raise InputError(
            f"the axes of the model's sharded plates are {sorted(axis_names)}; there must be one, "
            f"of the mesh's {list(mesh.axis_names)}"
        )
    [axis_name] = axis_names
    sizes = {plate: sites[plate]["args"][0] for plate, _ in marks.values()}
    for plate, size in sizes.items():
        if size < mesh.shape[axis_name]:
            raise InputError(
                f"{size} rows of {plate!r} cannot be spread over {mesh.shape[axis_name]} shards; "
                f"use at most {size} devices"
            )
    rows: dict[str, Rows | None] = {}
    for name in shapes:
        site = sites[name]
        rows[name] = None
        if name in marks:
            plate, _ = marks[name]
            rows[name] = Rows(sizes[plate], len(site["fn"].batch_shape) + dim_of(site, plate))
    arguments = Arguments(args, kwargs)
    data_rows = {
        name: Rows(leaf.shape[0]) if leaf.shape[:1] and leaf.shape[0] in sizes.values() else None
        for name, leaf in arguments.arrays.items()
    }
    found = ShardedModel(model, mesh, axis_name, sizes, rows, arguments, data_rows)
    found._check_parts(shapes)
    return found


def _trace(model: Callable[..., Any], args: Any, kwargs: Any) -> tuple[dict[str, Any], Any]:
    """The sites of the whole model, of which no value is computed, and shapes of its parameters."""
    found: dict[str, Any] = {}

    def run(args: Any, kwargs: Any) -> dict[str, jax.Array]:
        seeded = handlers.seed(model, jax.random.key(0))
        started = handlers.substitute(seeded, substitute_fn=init_to_uniform())
        for name, site in handlers.trace(started).get_trace(*args, **kwargs).items():
            found[name] = {"infer": {}, **site}
        latent = {
            name: site
            for name, site in found.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        for name, site in latent.items():
            if site["fn"].support.is_discrete:
                raise InputError(
                    f"latent site {name!r} is discrete, which no gradient moves, and is not summed "
                    "out by shards; observe it, sum it out, or use numpyro.plate"
                )
        return {
            name: biject_to(site["fn"].support).inv(site["value"]) for name, site in latent.items()
        }

    arguments = Arguments(args, kwargs)
    shapes = jax.eval_shape(lambda arrays: run(*arguments.having(arrays)), arguments.arrays)
    # JAX sorts names; a model has an order of its own.
    return found, {name: shapes[name] for name in found if name in shapes}


@contextlib.contextmanager
def _drawn() -> Iterator[None]:
    """Says in words that a prior cannot be drawn from."""
    try:
        yield
    except NotImplementedError as error:
        raise InputError(
            "a prior of the model is improper, so that nothing can be drawn from it; give it a "
            "proper one, or use ensemble.sample, which starts elsewhere"
        ) from error
