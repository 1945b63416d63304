"""Chains that sample a posterior by all its data: HMC, NUTS, MCLMC and parallel tempering.

A step is one draw of every chain, those of the warm-up first. Of the draws after it every
`config.sampler.thinning`-th is kept on disk, and the chains predict with these.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from ensemble import pytrees
from ensemble.config import trait
from ensemble.data.source import in_memory
from ensemble.draws.predictions import draw_scalars
from ensemble.draws.store import VALUE
from ensemble.errors import InputError
from ensemble.methods import low_rank_mass
from ensemble.methods.chain_report import ChainReport
from ensemble.methods.coordinates import to_params
from ensemble.methods.kernels import Chain, FreeDraws, Sampler, Settings, make_sampler
from ensemble.methods.leafwise_metric import leafwise_metric
from ensemble.methods.log_density import make_log_density
from ensemble.methods.start import starting_points
from ensemble.methods.warmup import window_ends
from ensemble.networks.layers import mapped_over_networks
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start, every
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
from ensemble.runtime.method import Method
from ensemble.runtime.status import Status
from ensemble.sharding import processes
from ensemble.sharding.transfer import place_split
from ensemble.storage.memory import check_memory
from ensemble.task import Learned, LogDensity, Modelled

logger = logging.getLogger("ensemble")

_OF_SAMPLER = ("step_size", "num_leapfrog_steps", "jitter", "num_warmup", "target_accept")
"""Settings of kernels that are keys of `config.sampler`."""
_REFERENCE_SD = 10.0
"""Standard deviation of the normal density that replicas come from where there is no prior."""
_NUM_SCALARS = 10
"""Scalars that are recorded of a draw, at least."""
_MAX_DENSE = 10_000
"""Parameters of a chain with a dense mass: a draw takes P^3 operations."""


def create(config: ml_collections.FrozenConfigDict, task: Learned | Modelled) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The task has no posterior, or does not fit the memory.
    """
    sampler = config.sampler
    number = pytrees.size(task.params_shapes())
    settings = Settings(
        method=config.method,
        mass="identity" if sampler.mass_matrix == "kronecker" else sampler.mass_matrix,
        **config.get("parallel_tempering", {}),
        **{name: sampler[name] for name in _OF_SAMPLER},
    )
    if settings.mass == "dense" and number > _MAX_DENSE:
        raise InputError(
            f"config.sampler.mass_matrix='dense' is for at most {_MAX_DENSE:,} parameters, and a "
            f"chain has {number:,}. Use 'low_rank' or 'diagonal'"
        )
    if "mclmc" in config.method and number < 2:
        # At a constant speed there is nothing to choose but the sign.
        raise InputError(f"config.method={config.method!r} needs at least 2 parameters. Use 'nuts'")
    report = ChainReport(config, task)
    steps = report.first + sampler.num_samples

    def place(number: int) -> Devices:
        devices = processes.devices(config.num_devices)
        return Devices(number, devices, groups=math.gcd(number, len(devices)))

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        report.density = density = _density(config, task, devices)
        devices.is_split = density.layout.is_split
        return _Chains(report, devices, settings).algorithm(steps)

    return Method(
        config=config,
        task=task,
        num_members=config.num_chains,
        place=place,
        algorithm=algorithm,
        report=report,
        steps_per_epoch=config.log_every_steps,
        num_steps=steps,
        tracked_split=report.split,
        may_end_early=any(config.stop_when.values()),
    )


def _density(config: Any, task: Learned | Modelled, devices: Devices) -> LogDensity:
    """Returns the log density with its data."""
    if isinstance(task, Modelled):
        # Another mass joins all parameters to one vector.
        may_split = config.sampler.mass_matrix in ("identity", "diagonal")
        may_split &= trait("method", config.method, "may_split")
        density = task.own_log_density(devices.mesh, may_split)
    else:
        train = in_memory(task.dataset, "train")
        density = make_log_density(task, train, devices.mesh, config.posterior_temperature)
    if (number := devices.mesh.devices.size) > 1:
        line = "%d chains on %d devices, in groups of %d"
        logger.info(line, config.num_chains, number, devices.num_slices, extra={"stays": True})
    return density


class _Record(NamedTuple):
    """What chains that do not wait for each other fill in.

    Attributes:
        scalars: [T, C] by name.
        kept: Parameters [K, C, 1, ...].
    """

    scalars: Any
    kept: Any


@contextlib.contextmanager
def _traced() -> Iterator[None]:
    """Traces what is mapped over chains.

    Products are of float32: TPUs and TF32 would round them to some 3 digits, which are nats.
    """
    with mapped_over_networks(), jax.default_matmul_precision("highest"):
        yield


def _key(member_key: jax.Array) -> jax.Array:
    """The key of a chain's draws; the other half is that of its start."""
    return jax.random.split(member_key)[1]


class _Chains:
    """The functions of one chain.

    Args:
        report: Report of the run.
        devices: Placement of the chains.
        settings: Settings of the sampler.
    """

    def __init__(self, report: ChainReport, devices: Devices, settings: Settings):
        self.report = report
        self.devices = devices
        self.settings = settings
        self.config = report.config
        self.task = report.task
        self.density = report.density
        self.layout = self.density.layout
        thinning = self.config.sampler.thinning
        self.shapes = jax.eval_shape(self.layout.pad, self.task.params_shapes())
        self.keep = every(thinning, report.first + thinning)
        self.window_ends = window_ends(settings.mass, settings.num_warmup)
        self.make_metric = None
        if self.layout.names:  # BlackJAX's own draws momenta for all parameters in one piece.
            mask = self.layout.mask(self.shapes)
            is_identity = settings.mass == "identity"
            self.make_metric = lambda mass: leafwise_metric(mask, None if is_identity else mass)

    def algorithm(self, steps: int) -> Algorithm:
        """Makes the algorithm of the chains."""
        self._check_memory(min(self.config.log_every_steps, steps))
        between = []
        if self.report.tuning:
            between.append(Between(lambda step: step == 0, self._tune, self._feed))
        if self.window_ends:
            between.append(
                Between(self.window_ends.__contains__, self._estimate_mass, on_host=True)
            )
        is_free = self.density.run_free and trait("method", self.config.method, "may_be_free")
        return Algorithm(
            init=self._init,
            step=self._step,
            parameters=self._parameters,
            num_steps=steps,
            feed=self._feed,
            keep=self.keep,
            between=tuple(between),
            start=self._start,
            steps_per_program=min(1024, self.config.log_every_steps) if is_free else 64,
            run=self._run if is_free else None,
        )

    @functools.cached_property
    def _feed(self) -> Fixed:
        tracked = None
        if self.report.split is not None:
            split = in_memory(self.task.dataset, self.report.split)
            # Where parameters lie on their shards, each of them predicts a part of every example.
            whole = bool(self.layout.names)
            tracked = place_split(
                split.inputs, split.targets, self.devices.mesh, whole_inputs=whole
            )
        return Fixed({"data": self.density.data, "tracked": tracked})

    def _start(self) -> Start:
        """Finds where chains start, and the coordinates in which they move."""
        numbers = jnp.arange(self.config.num_chains)
        key = jax.random.key(self.config.seed)
        keys = jax.vmap(jax.random.split)(pytrees.keys_of(key, numbers))[:, 0]
        with mapped_over_networks():
            found = starting_points(self.config, self.task, self.density, keys)
        coordinates, positions = processes.tree_from_main(found)
        return Start(coordinates, self.layout.pad(positions, axis=1))

    def _sampler(self, shared: Any, data: Any) -> Sampler:
        """The sampler, in the coordinates in which the chains move."""

        def in_z(of_params: Any) -> Any:
            return lambda position: of_params(to_params(shared, position))

        density = self.density
        reference = None
        if "parallel_tempering" in self.config and density.bind_reference is not None:
            reference = in_z(density.bind_reference(data, _REFERENCE_SD))
        return make_sampler(self.settings, in_z(density.bind(data)), self.make_metric, reference)

    @_traced()
    def _init(self, now: Now, batch: Any) -> Chain:
        position = now.given
        if position is None:  # Only the shapes are asked for.
            position = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.shapes)
        chain = self._sampler(now.shared, batch["data"]).init(_key(now.key), position)
        return chain._replace(rng_key=None)

    @_traced()
    def _step(self, now: Now, chain: Chain, batch: Any) -> tuple[Chain, Info]:
        sampler = self._sampler(now.shared, batch["data"])
        chain = chain._replace(rng_key=_key(now.key))
        chain, info = sampler.step(chain, now.step + self.report.tuning)
        params = to_params(now.shared, chain.state.position)
        return chain._replace(rng_key=None), Info(self._observed(info, params, batch["tracked"]))

    @_traced()
    def _run(
        self,
        numbers: jax.Array,
        keys: jax.Array,
        chains: Chain,
        shared: Any,
        fixed: Any,
        scalars: Any,
        kept: Any,
        first: jax.Array,
        end: jax.Array,
    ) -> tuple[Chain, Any, Any]:
        """Takes draws of chains that do not wait for each other: of a model, by its parameters."""
        assert self.density.run_free is not None
        chains, (scalars, kept) = self.density.run_free(
            self.devices.mesh,
            self._free_draws,
            (fixed["data"],),
            chains._replace(rng_key=jax.vmap(_key)(keys)),
            _Record(scalars, kept),
            first,
            end,
        )
        return chains._replace(rng_key=None), scalars, kept

    def _free_draws(self, data: Any) -> FreeDraws:
        def observe(info: Any, params: Any) -> tuple[Any, Any]:
            return self._observed(info, params, None), pytrees.at(params, None)

        density = self.density.bind(data)
        keep = self.keep
        return FreeDraws(self.settings, density, observe, keep.before)

    def _observed(self, info: Any, params: Any, tracked: Any) -> dict[str, jax.Array]:
        """Scalars of a draw: its diagnostics, and those of a model or of a split's predictions."""
        scalars = info._asdict()
        if isinstance(self.task, Modelled):
            values = self.task.track(self.layout.strip(params))
            scalars |= {VALUE + name: values[i] for i, name in enumerate(self.task.tracked)}
        elif tracked is not None:
            assert self.density.predict is not None
            assert self.report.tracked_rows is not None
            predicted = pytrees.at(self.density.predict(params, tracked.inputs), None)
            likelihood = self.task.likelihood
            rows = self.report.tracked_rows
            found = draw_scalars(likelihood, rows, predicted, tracked.targets, tracked.mask)
            scalars |= pytrees.at(found, 0)
        return scalars

    def _parameters(self, now: Now, chain: Chain) -> Any:
        params = to_params(now.shared, chain.state.position)
        params = params if isinstance(self.task, Modelled) else {"params": params}
        return pytrees.at(params, None)

    @_traced()
    def _tune(self, now: Now, chain: Chain, batch: Any) -> tuple[Chain, jax.Array]:
        sampler = self._sampler(now.shared, batch["data"])
        assert sampler.tune is not None
        chain = sampler.tune(chain._replace(rng_key=_key(now.key)))
        return chain._replace(rng_key=None), jnp.int8(Status.ACTIVE)

    def _estimate_mass(self, step: int, chains: Chain) -> Chain:
        """Computes the mass of every chain where a window ends, on the host."""
        mass = low_rank_mass.estimate(chains.adaptation.mass, self.window_ends[step])
        # Those that share a chain may round differently.
        inverse = processes.tree_from_main(mass.inverse_mass_matrix)
        mass = mass._replace(inverse_mass_matrix=inverse)
        return chains._replace(adaptation=chains.adaptation._replace(mass=mass))

    def _check_memory(self, steps: int) -> None:
        """Refuses chains, and the records of so many of their steps, that memory cannot hold."""
        config = self.config
        number = pytrees.size(self.shapes)
        copies = (
            2 * self.settings.num_replicas
            + (self.settings.mass == "dense") * number
            # Draws and gradients, where a window ends.
            + 2 * max(self.window_ends.values(), default=0)
            + steps // config.sampler.thinning
        )
        num_bytes = 4 * config.num_chains * (copies * number + _NUM_SCALARS * steps)
        # Devices that share a chain's examples hold it whole.
        shares = 1 if self.layout.names else self.devices.num_slices
        check_memory(
            num_bytes,
            f"config.num_chains={config.num_chains} chains of {number:,} parameters",
            "config.num_chains or config.log_every_steps",
            num_bytes * shares // processes.count(),
            list(self.devices.mesh.devices.flat),
        )
