"""NumPyro models whose variables are split over devices, beside others that all devices share.

A model is written once, with `sharded_plate` where NumPyro has `plate`. Run as it is, that is an
ordinary plate: the whole model, for draws. Inside `jax.shard_map` it is a shard's part of the rows,
and log densities are summed over the shards. `make_model` puts the two together for samplers.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.util import compute_log_probs, constrain_fn, potential_energy, unconstrain_fn

from ensemble.errors import UserError
from ensemble.sharding import transfer
from ensemble.tasks.sharded_distributions import MARK, total_sizes, varies


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
        plates: of every latent site; None for one that all shards share.
        data: arguments and keyword arguments of the model, padded and on the devices.
        num_rows: the same trees, of their rows without padding.
    """

    model: Callable[..., Any]
    mesh: Mesh
    axis_name: str
    sizes: dict[str, int]
    plates: dict[str, str | None]
    data: Any
    num_rows: Any

    @property
    def mask(self) -> dict[str, np.ndarray]:
        """For `leafwise_metric`: of a sharded latent [rows], false for padding; [] of others."""
        num_shards = self.mesh.shape[self.axis_name]
        return {
            site: np.ones((), bool) if plate is None else _pad(self.sizes[plate], num_shards)[1]
            for site, plate in self.plates.items()
        }

    def prior(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Draws all latent variables; the same on any number of shards."""
        return self._jitted["prior"](rng_key, self.data)

    def init(self, rng_key: jax.Array) -> dict[str, jax.Array]:
        """Parameters where a chain may start: a draw from the prior, spread over the mesh."""
        return self._jitted["init"](rng_key, self.data)

    def bind(self, data: Any) -> Callable[[dict[str, jax.Array]], jax.Array]:
        """The log density of the parameters given `self.data`, nats, as samplers see it.

        A jitted program takes the data as an argument and binds them inside: closed over, they
        would be a constant of it, whole on every device. Chains are vmapped, with the mesh's
        other axis as `spmd_axis_name` if they are spread too.
        """
        specs = {
            site: PartitionSpec() if plate is None else PartitionSpec(self.axis_name)
            for site, plate in self.plates.items()
        }
        mapped = jax.shard_map(
            self._log_density_on_shard,
            mesh=self.mesh,
            in_specs=(specs, PartitionSpec(self.axis_name)),
            out_specs=PartitionSpec(),
            check_vma=True,
        )
        return lambda params: mapped(params, data)

    def log_density(self, params: dict[str, jax.Array]) -> jax.Array:
        """log p(data, params), nats, the bijectors' Jacobians included: `bind(self.data)`."""
        return self._jitted["log_density"](params, self.data)

    def constrain(self, params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """The model's own values of the parameters of one draw, without padding."""
        return self._jitted["constrain"](params, self.data)

    def predictive(
        self, rng_key: jax.Array, params: dict[str, jax.Array], *args: Any, **kwargs: Any
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

    def _whole(self, data: Any) -> Any:
        """Arguments of the model without padding."""
        return jax.tree.map(lambda leaf, num_rows: leaf[:num_rows], data, self.num_rows)

    @functools.cached_property
    def _jitted(self) -> dict[str, Any]:
        names = ("prior", "init", "constrain")
        programs = {name: jax.jit(getattr(self, f"_{name}")) for name in names}
        return programs | {"log_density": jax.jit(lambda params, data: self.bind(data)(params))}

    def _prior(self, rng_key: jax.Array, data: Any) -> dict[str, jax.Array]:
        args, kwargs = self._whole(data)
        sites = handlers.trace(handlers.seed(self.model, rng_key)).get_trace(*args, **kwargs)
        return {site: sites[site]["value"] for site in self.plates}

    def _init(self, rng_key: jax.Array, data: Any) -> dict[str, jax.Array]:
        draw = self._prior(rng_key, data)
        params = unconstrain_fn(self.model, *self._whole(data), draw)

        def place(site: str, leaf: jax.Array) -> jax.Array:
            plate, spec = self.plates[site], PartitionSpec()
            if plate is not None:
                index, _ = _pad(len(leaf), self.mesh.shape[self.axis_name])
                leaf, spec = leaf[index], PartitionSpec(self.axis_name)
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, spec))

        return {site: place(site, leaf) for site, leaf in params.items()}

    def _constrain(self, params: dict[str, jax.Array], data: Any) -> dict[str, jax.Array]:
        whole = {
            site: leaf if (plate := self.plates[site]) is None else leaf[: self.sizes[plate]]
            for site, leaf in params.items()
        }
        return constrain_fn(self.model, *self._whole(data), whole)

    def _log_density_on_shard(self, params: dict[str, jax.Array], data: Any) -> jax.Array:
        args, kwargs = data
        token = total_sizes.set(self.sizes)
        try:
            # TPUs and TF32 would round the products to some 3 digits, which are nats here.
            with jax.default_matmul_precision("highest"):
                log_density = -potential_energy(self.model, args, kwargs, params)
            if varies(log_density):
                values = constrain_fn(self.model, args, kwargs, params)
                terms, _ = compute_log_probs(self.model, args, kwargs, values)
                sites = ", ".join(repr(name) for name, term in terms.items() if varies(term))
                raise UserError(
                    f"the log density of {sites} differs from shard to shard; what depends on "
                    "sharded variables must be inside the sharded_plate"
                )
        finally:
            total_sizes.reset(token)
        return log_density


def make_model(model: Callable[..., Any], mesh: Mesh, *args: Any, **kwargs: Any) -> ShardedModel:
    """Spreads a NumPyro model and its data over a mesh.

    Args:
        model: with a `sharded_plate`, whose axis the mesh has.
        mesh: of axes of type Auto, such as `sharding.mesh.create_mesh`'s.
        *args: of the model: arrays with a row for every row of a sharded plate, or trees of them.
            They are split as the plate is. What all shards share the model closes over.
        **kwargs: likewise.

    Raises:
        UserError: the model or its arguments cannot be split so, or a latent site is discrete.
    """
    sites = _trace(model, args, kwargs)
    marks = {name: site["infer"][MARK] for name, site in sites.items() if MARK in site["infer"]}
    axis_names = {axis_name for _, axis_name in marks.values()}
    if len(axis_names) != 1 or not axis_names <= set(mesh.axis_names):
        raise UserError(
            f"the axes of the model's sharded plates are {sorted(axis_names)}; there must be one, "
            f"of the mesh's {list(mesh.axis_names)}"
        )
    [axis_name] = axis_names
    sizes = {plate: sites[plate]["args"][0] for plate, _ in marks.values()}
    for plate, size in sizes.items():
        if size < mesh.shape[axis_name]:
            raise UserError(
                f"{size} rows of {plate!r} cannot be spread over {mesh.shape[axis_name]} shards; "
                f"use at most {size} devices"
            )
    plates: dict[str, str | None] = {}
    for name, site in sites.items():
        if site["type"] == "sample" and not site["is_observed"]:
            plates[name], _ = marks.get(name, (None, None))
            _check_latent(name, site, plates[name])
    sharding = NamedSharding(mesh, PartitionSpec(axis_name))

    def count(leaf: Any) -> int:
        shape = np.shape(leaf)
        if not shape or shape[0] not in sizes.values():
            raise UserError(
                f"an argument of the model has the shape {shape}, the rows of sharded plates are "
                f"{sizes}; arguments are split, what all shards share must be closed over"
            )
        return shape[0]

    def place(leaf: Any, num_rows: int) -> jax.Array:
        index, _ = _pad(num_rows, mesh.shape[axis_name])
        return transfer.put(np.asarray(leaf)[index], sharding)

    num_rows = jax.tree.map(count, (args, kwargs))
    data = jax.tree.map(place, (args, kwargs), num_rows)
    return ShardedModel(model, mesh, axis_name, sizes, plates, data, num_rows)


def _trace(model: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The sites of the whole model, of which no value is computed."""
    found: dict[str, Any] = {}

    def run(args: Any, kwargs: Any) -> None:
        seeded = handlers.seed(model, jax.random.key(0))
        for name, site in handlers.trace(seeded).get_trace(*args, **kwargs).items():
            found[name] = {"infer": {}, **site}

    jax.eval_shape(run, args, kwargs)
    return found


def _check_latent(name: str, site: dict[str, Any], plate: str | None) -> None:
    if site["fn"].support.is_discrete:
        raise UserError(
            f"latent site {name!r} is discrete, which no gradient moves; observe it, or sum it out"
        )
    dims = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
    if plate is not None and -dims[plate] != len(site["fn"].batch_shape):
        raise UserError(
            f"site {name!r} must have the rows of {plate!r} as its first axis; make that the "
            f"outermost plate, by dim={-len(site['fn'].batch_shape)}"
        )


def _pad(num_rows: int, num_shards: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows, and whether each is a real one; the last row pads, for it is valid."""
    places = np.arange(num_rows + -num_rows % num_shards)
    return np.minimum(places, num_rows - 1), places < num_rows
