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
from ensemble.methods import low_rank_mass
from ensemble.methods.chain_report import ChainReport
from ensemble.methods.coordinates import Coordinates
from ensemble.methods.kernels import Chain, FreeDraws, Sampler, Settings, check_dense, make_sampler
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
"""The normal density's that replicas of a log density without a prior come from."""


def create(config: ml_collections.FrozenConfigDict, task: Learned | Modelled) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The task has no posterior, or does not fit the memory.
    """
    sampler = config.sampler
    settings = Settings(
        method=config.method,
        mass="identity" if sampler.mass_matrix == "kronecker" else sampler.mass_matrix,
        **config.get("parallel_tempering", {}),
        **{name: sampler[name] for name in _OF_SAMPLER},
    )
    check_dense(settings, task.params_shapes())
    # The tuning of mclmc is one piece, and leaves no draws.
    tunes_at_once = trait("method", config.method, "tunes_at_once")
    num_left_out = sampler.num_burn_in + (0 if tunes_at_once else sampler.num_warmup)
    steps = num_left_out + sampler.num_samples
    remedy = f"lower config.sampler.step_size={sampler.step_size}"
    report = ChainReport(config, task, remedy, num_left_out)

    def place(number: int) -> Devices:
        devices = processes.devices(config.num_devices)
        return Devices(number, devices, groups=math.gcd(number, len(devices)))

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        report.density = density = _density(config, task, devices)
        devices.is_split = density.layout.is_split
        return _Sampling(report, devices, density, settings).algorithm(steps)

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
    """The log density with its data, and a line on how chains and data share the devices."""
    if isinstance(task, Modelled):
        # Another mass joins all parameters to one vector.
        may_split = config.sampler.mass_matrix in ("identity", "diagonal")
        may_split &= trait("method", config.method, "may_split")
        density = task.own_log_density(devices.mesh, may_split)
        shared = "all compute the same" if density.run_free else "split the rows"
    else:
        train = in_memory(task.dataset, "train")
        density = make_log_density(task, train, devices.mesh, config.posterior_temperature)
        shared = "split the examples"
    number, groups = config.num_chains, devices.mesh.devices.size // devices.num_slices
    if devices.mesh.devices.size > 1:
        line = f"{number} chains on {groups} devices."
        if devices.num_slices > 1:
            line = (
                f"{number} chain{'s'[: number > 1]} in {groups} group{'s'[: groups > 1]} of "
                f"{devices.num_slices} devices, which {shared}."
            )
        logger.info("%s", line, extra={"stays": True})
    return density


class _Record(NamedTuple):
    """What chains that do not wait for each other fill in.

    Attributes:
        scalars: [T, C] by name.
        kept: Parameters [K, C, 1, ...].
    """

    scalars: Any
    kept: Any


class _Sampling:
    """The functions of one chain.

    Args:
        report: Report of the run.
        devices: Placement of the chains.
        density: Log density with its data.
        settings: Settings of the sampler.
    """

    def __init__(
        self, report: ChainReport, devices: Devices, density: LogDensity, settings: Settings
    ):
        self.config, self.task, self.tracked = report.config, report.task, report.split
        self.devices, self.density, self.settings = devices, density, settings
        self.layout, config = density.layout, report.config
        self.shapes = self.layout.padded_shapes(self.task.params_shapes())
        tunes_at_once = trait("method", config.method, "tunes_at_once")
        self.tuning = config.sampler.num_warmup if tunes_at_once else 0
        self.keep = every(config.sampler.thinning, report.first + config.sampler.thinning)
        self.num_left_out = report.first
        self.window_ends = window_ends(settings.mass, settings.num_warmup)
        self.make_metric = None
        if self.layout.names:  # BlackJAX's own draws momenta for all parameters in one piece.
            mask = self.layout.mask(self.shapes)
            is_identity = config.sampler.mass_matrix == "identity"
            self.make_metric = lambda mass: leafwise_metric(mask, None if is_identity else mass)
        self.examples = report.tracked_rows
        self._check_memory()

    def algorithm(self, steps: int) -> Algorithm:
        """The method of the chains."""
        between = []
        if self.tuning:
            between.append(Between(lambda step: step == 0, self._tune, self._feed))
        if self.window_ends:
            between.append(
                Between(self.window_ends.__contains__, self._estimate_mass, on_host=True)
            )
        return Algorithm(
            init=self._init,
            step=self._step,
            parameters=self._parameters,
            num_steps=steps,
            feed=self._feed,
            keep=self.keep,
            between=tuple(between),
            start=self._start,
            steps_per_program=min(1024, self.config.log_every_steps) if self._is_free else 64,
            run=self._run if self._is_free else None,
        )

    @property
    def _is_free(self) -> bool:
        return bool(self.density.run_free and trait("method", self.config.method, "may_be_free"))

    @functools.cached_property
    def _feed(self) -> Fixed:
        return Fixed({"data": self.density.data, "tracked": self._tracked_split()})

    def _tracked_split(self) -> Any:
        if self.tracked is None:
            return None
        split = in_memory(self.task.dataset, self.tracked)
        # Where parameters lie on their shards, each shard has its part to say of every example.
        whole = bool(self.layout.names)
        return place_split(split.inputs, split.targets, self.devices.mesh, whole_inputs=whole)

    def _start(self) -> Start:
        """Finds where chains start, and the coordinates in which they move."""
        numbers, key = jnp.arange(self.config.num_chains), jax.random.key(self.config.seed)
        keys = jax.vmap(jax.random.split)(pytrees.keys_of(key, numbers))[:, 0]
        with mapped_over_networks():
            found = starting_points(self.config, self.task, self.density, keys)
            coordinates, positions = processes.tree_from_main(found)
        shared = {k: v for k, v in coordinates._asdict().items() if v is not None} or None
        return Start(shared, self.layout.pad(positions, axis=1))

    @staticmethod
    def _key(member_key: jax.Array) -> jax.Array:
        """The key of a chain's draws; the other half is that of its start."""
        return jax.random.split(member_key)[1]

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        """What is traced within is mapped over chains.

        Products are of float32: TPUs and TF32 would round them to some 3 digits, which are nats.
        """
        with mapped_over_networks(), jax.default_matmul_precision("highest"):
            yield

    def _sampler(self, now: Now, data: Any) -> tuple[Sampler, Coordinates]:
        """The sampler, in the coordinates in which the chains move."""
        coordinates = Coordinates(**(now.shared or {}))
        density, reference = self.density.bind(data), None
        if "parallel_tempering" in self.config and self.density.bind_reference is not None:
            of_params = self.density.bind_reference(data, _REFERENCE_SD)

            def reference(position: Any) -> jax.Array:
                return of_params(coordinates.to_params(position))

        def logdensity_fn(position: Any) -> jax.Array:
            return density(coordinates.to_params(position))

        sampler = make_sampler(self.settings, logdensity_fn, self.make_metric, reference)
        return sampler, coordinates

    def _init(self, now: Now, batch: Any) -> Chain:
        position = now.given
        if position is None:  # Only the shapes are asked for.
            position = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.shapes)
        with self._traced():
            chain = self._sampler(now, batch["data"])[0].init(self._key(now.key), position)
        return chain._replace(rng_key=None)

    def _step(self, now: Now, chain: Chain, batch: Any) -> tuple[Chain, Info]:
        with self._traced():
            sampler, coordinates = self._sampler(now, batch["data"])
            chain = chain._replace(rng_key=self._key(now.key))
            chain, info = sampler.step(chain, now.step + self.tuning)
            params = coordinates.to_params(chain.state.position)
            scalars = {**info._asdict(), **self._told(params, batch["tracked"])}
        return chain._replace(rng_key=None), Info(scalars)

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
        """Draws of chains that do not wait for each other; of a model, which has no splits."""
        with self._traced():
            chains = chains._replace(rng_key=jax.vmap(self._key)(keys))
            assert self.density.run_free is not None
            chains, (scalars, kept) = self.density.run_free(
                self.devices.mesh,
                self._free_draws,
                (shared, fixed["data"]),
                chains,
                _Record(scalars, kept),
                first,
                end,
            )
        return chains._replace(rng_key=None), scalars, kept

    def _free_draws(self, shared: Any, data: Any) -> FreeDraws:
        coordinates, of_params = Coordinates(**(shared or {})), self.density.bind(data)

        def observe(info: Any, position: Any) -> tuple[Any, Any]:
            params = coordinates.to_params(position)
            scalars = {**info._asdict(), **self._told(params, None)}
            return scalars, pytrees.at(params, None)

        return FreeDraws(
            self.settings,
            lambda position: of_params(coordinates.to_params(position)),
            observe,
            self.keep.before,
        )

    def _told(self, params: Any, tracked: Any) -> dict[str, jax.Array]:
        """What is recorded of a draw beside diagnostics: of a model, or of a split's predictions.

        A name with a place for a number is that of several scalars.
        """
        if isinstance(self.task, Modelled):
            values = self.task.track(self.layout.strip(params))
            return {VALUE + name: values[i] for i, name in enumerate(self.task.tracked)}
        if tracked is None:
            return {}
        assert self.density.predict is not None
        assert self.examples is not None
        predicted = self.density.predict(params, tracked.inputs)
        predicted = pytrees.at(predicted, None)
        targets, likelihood = tracked.targets, self.task.likelihood
        found = draw_scalars(likelihood, self.examples, predicted, targets, tracked.mask)
        return pytrees.at(found, 0)

    def _parameters(self, now: Now, chain: Chain) -> Any:
        coordinates = Coordinates(**(now.shared or {}))
        params = coordinates.to_params(chain.state.position)
        params = params if isinstance(self.task, Modelled) else {"params": params}
        return pytrees.at(params, None)

    def _tune(self, now: Now, chain: Chain, batch: Any) -> tuple[Chain, jax.Array]:
        with self._traced():
            sampler = self._sampler(now, batch["data"])[0]
            assert sampler.tune is not None
            chain = sampler.tune(chain._replace(rng_key=self._key(now.key)))
        return chain._replace(rng_key=None), jnp.int8(Status.ACTIVE)

    def _estimate_mass(self, step: int, chains: Chain) -> Chain:
        """Computes the mass of every chain where a window ends, on the host."""
        mass = low_rank_mass.estimate(chains.adaptation.mass, self.window_ends[step])
        # Those that share a chain may round differently.
        inverse = processes.tree_from_main(mass.inverse_mass_matrix)
        mass = mass._replace(inverse_mass_matrix=inverse)
        return chains._replace(adaptation=chains.adaptation._replace(mass=mass))

    def _check_memory(self) -> None:
        config, task = self.config, self.task
        number = pytrees.size(task.params_shapes())
        predicted = max((size for name, size in task.sizes.items() if name != "train"), default=0)
        state = (
            2 * number * self.settings.num_replicas
            + (config.sampler.mass_matrix == "dense") * number**2
            # Draws and gradients, where a window ends.
            + 2 * max(self.window_ends.values(), default=0) * number
            + (predicted and predicted * task.likelihood.num_outputs)
        )
        tracked = task.tracked if isinstance(task, Modelled) else self.examples
        num_tracked = 0 if tracked is None else len(tracked)

        def recorded(steps: int) -> int:
            return (steps // config.sampler.thinning + 1) * number + steps * num_tracked

        steps = min(config.log_every_steps, self.num_left_out + config.sampler.num_samples)
        # Of the program that runs, and of the one before, which is fetched.
        on_devices = 4 * config.num_chains * (state + 2 * recorded(min(64, steps)))
        if not self.layout.names:  # Devices that share a chain's examples hold it whole.
            on_devices *= self.devices.num_slices
        check_memory(
            4 * config.num_chains * (state + recorded(steps)),
            f"config.num_chains={config.num_chains} chains of {number:,} parameters",
            "config.num_chains or config.log_every_steps",
            on_devices // processes.count(),
            list(self.devices.mesh.devices.flat),
        )
