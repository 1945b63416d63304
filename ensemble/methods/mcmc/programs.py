"""The compiled programs of the samplers: how chains start, are tuned, and take a chunk of draws."""

import contextlib
import functools
import logging
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import registry
from ensemble.draws.predictions import draw_scores
from ensemble.draws.store import LOG_PROB, VALUE, tracked_examples
from ensemble.likelihood import Arrays, Likelihood
from ensemble.methods.mcmc import low_rank_mass
from ensemble.methods.mcmc.coordinates import Coordinates
from ensemble.methods.mcmc.kernels import (
    SECTIONS,
    Chain,
    DrawInfo,
    FreeDraws,
    Sampler,
    Settings,
    check_dense,
    make_sampler,
)
from ensemble.methods.mcmc.leafwise_metric import leafwise_metric
from ensemble.methods.mcmc.log_density import log_density_of_model, make_log_density
from ensemble.methods.mcmc.sampler_keys import SAMPLERS
from ensemble.methods.mcmc.state import Record, SamplingState, Trace
from ensemble.methods.mcmc.warmup import window_ends
from ensemble.networks.layers import mapped_over_networks
from ensemble.sharding import processes, transfer
from ensemble.sharding.mesh import ENSEMBLE, create_mesh, named_sharding
from ensemble.sharding.platforms import traced_for
from ensemble.sharding.transfer import PlacedSplit, place_split
from ensemble.source import in_memory
from ensemble.storage.memory import check_memory
from ensemble.task import Learned, Modelled

logger = logging.getLogger("ensemble")


class Programs:
    """Functions of all chains, jitted once, and the data that they are called with.

    Args:
        config: of the run.
        task: the network, its data and its prior; or a model that is sampled as it is.
        devices: D, all of which are used.

    Raises:
        UserError: the task has no posterior, or does not fit the devices or the memory.
    """

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        task: Learned | Modelled,
        devices: Sequence[jax.Device],
    ):
        self.config = config
        self.task = task
        scored = task.scored()
        self._scored = scored
        self.traced = () if scored is None else tuple(scored.likelihood.traced)
        num_groups = math.gcd(config.num_chains, len(devices))
        self.mesh = create_mesh(num_groups, len(devices) // num_groups, devices)
        self.sizes = dict(task.sizes)
        if isinstance(task, Modelled):
            # Another mass joins all parameters to one vector.
            may_split = config.sampler.mass in ("identity", "diagonal")
            may_split &= SAMPLERS[config.method].may_split
            self.density = log_density_of_model(task, self.mesh, may_split)
        else:
            train = in_memory(task.dataset, "train")
            self.density = make_log_density(task, train, self.mesh, config.temperature)
        self._log_groups()
        self._predicted = () if scored is None else tuple(k for k in self.sizes if k != "train")
        self.tracked_split = next((k for k in ("validation", "test") if k in self._predicted), None)
        self.layout = self.density.layout
        self.padded_shapes = self.layout.padded_shapes(task.params_shapes())
        self._predict = jax.jit(self._predict_draw)
        self._make_metric = None
        if self.layout.names:  # BlackJAX's own draws momenta for all parameters in one piece.
            mask, is_identity = (
                self.layout.mask(self.padded_shapes),
                config.sampler.mass == "identity",
            )
            self._make_metric = lambda mass: leafwise_metric(mask, None if is_identity else mass)
        self.num_left_out = config.sampler.num_warmup + config.sampler.num_burn_in
        self.num_draws = self.num_left_out + config.sampler.num_samples
        self._settings = Settings(
            method=config.method,
            step_size=config.sampler.step_size,
            num_leapfrog_steps=config.sampler.num_leapfrog_steps,
            jitter=config.sampler.jitter,
            num_warmup=config.sampler.num_warmup,
            target_acceptance=config.sampler.target_acceptance,
            mass="identity" if config.sampler.mass == "kronecker" else config.sampler.mass,
            num_replicas=config.ladder.num_replicas if "ladder" in config else 1,
        )
        check_dense(self._settings, task.params_shapes())
        self.window_ends = window_ends(self._settings.mass, self._settings.num_warmup)
        self.num_params = sum(leaf.size for leaf in jax.tree.leaves(task.params_shapes()))
        self._check_memory()
        self.first_state = jax.jit(self._first_state)
        self._run_free = self.density.run_free if SAMPLERS[config.method].may_be_free else None
        # Records are small, and are not donated: an empty one serves for every start.
        self.run_chunk = jax.jit(self._run_chunk, donate_argnums=0)
        self.new_record = functools.cache(jax.jit(self._new_record, static_argnames="num_draws"))
        self._gather = jax.jit(lambda trace: trace, out_shardings=named_sharding(self.mesh))
        self.tune_chains = jax.jit(self._tune_chains)

    @functools.cached_property
    def splits(self) -> dict[str, PlacedSplit]:
        """The splits that are predicted, on the devices, from when they are first asked for."""
        if isinstance(self.task, Modelled):
            return {}
        in_memories = {name: in_memory(self.task.dataset, name) for name in self._predicted}
        # Where parameters lie on their shards, each shard has its part to say of every example.
        whole = bool(self.layout.names)
        return {
            name: place_split(split.inputs, split.targets, self.mesh, whole_inputs=whole)
            for name, split in in_memories.items()
        }

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the targets of splits, where there are some."""
        assert self._scored is not None
        return self._scored.likelihood

    def _log_groups(self) -> None:
        """Says how chains and what they learn from share several devices."""
        num_chains, num_groups = self.config.num_chains, self.mesh.shape[ENSEMBLE]
        num_devices = self.mesh.devices.size // num_groups
        if self.mesh.devices.size == 1:
            return
        if num_devices == 1:
            line = f"{num_chains} chains on {num_groups} devices."
        else:
            if not isinstance(self.task, Modelled):
                what = "split the examples"
            else:
                what = "all compute the same" if self.density.run_free else "split the rows"
            line = (
                f"{num_chains} chain{'s'[: num_chains > 1]} in {num_groups} "
                f"group{'s'[: num_groups > 1]} of {num_devices} devices, which {what}."
            )
        logger.info("%s", line, extra={"stays": True})

    def _check_memory(self) -> None:
        config, num_params = self.config, self.num_params
        # Positions and gradients, mass, predictions of a split; a checkpoint fetches less.
        predicted = max((self.sizes[name] for name in self._predicted), default=0)
        state = (
            2 * num_params * self._settings.num_replicas
            + (config.sampler.mass == "dense") * num_params**2
            # Draws and gradients, where a window ends.
            + 2 * max(self.window_ends.values(), default=0) * num_params
            + (predicted * self.likelihood.num_outputs if predicted else 0)
        )
        num_draws = min(config.log_every_steps, self.num_draws)  # Of a record.
        num_tracked = len(self.tracked_names)
        recorded = (num_draws // config.sampler.thin + 1) * num_params + num_draws * num_tracked
        # The empty record, the one that is being filled, and the one before, which is fetched.
        on_devices = 4 * config.num_chains * (state + 3 * recorded)
        if not self.layout.names:  # Devices that share a chain's examples hold it whole.
            on_devices *= self.mesh.devices.size // self.mesh.shape[ENSEMBLE]
        check_memory(
            4 * config.num_chains * (state + recorded),
            f"config.num_chains={config.num_chains} chains of {num_params:,} parameters",
            "config.num_chains or config.log_every_steps",
            on_devices // processes.count(),
            list(self.mesh.devices.flat),
        )

    def next_due(self, step: int) -> int:
        """The first of: next logging step, window's end, end of the warm-up, burn-in, the goal."""
        every = self.config.log_every_steps
        goals = (
            *self.window_ends,
            self.config.sampler.num_warmup,
            self.num_left_out,
            self.num_draws,
        )
        return min((step // every + 1) * every, *(goal for goal in goals if goal > step))

    def record_length(self, begun: int, step: int) -> int:
        """Places of a record from draw `begun` that is at `step`: mostly the same, so one program.

        More are needed where the run was interrupted, and is now logged less often.
        """
        return max(min(self.config.log_every_steps, self.num_draws), self.next_due(step) - begun)

    def num_kept(self, step: Any) -> Any:
        """Draws of a chain that are kept among the first `step`, traced or not."""
        num_counted = (step - self.num_left_out) * (step > self.num_left_out)
        return num_counted // self.config.sampler.thin

    def params(self, chains: Chain, coordinates: Coordinates) -> Any:
        """Parameters [C, ...] of the chains' positions."""
        return jax.vmap(coordinates.to_params)(chains.state.position)

    def shardings(self, state: SamplingState) -> SamplingState:
        """Says where every array of a state lies: chains over their axis."""
        return state.replace(
            chains=jax.tree_util.tree_map_with_path(
                lambda path, _: self.layout.sharding(self.mesh, path, "chain"),
                state.chains,
            ),
            coordinates=jax.tree.map(lambda _: named_sharding(self.mesh), state.coordinates),
            num_moves=named_sharding(self.mesh, "chain"),
        )

    def record_shardings(self, record: Record) -> Record:
        """Says where every array of a record lies."""
        return jax.tree_util.tree_map_with_path(
            lambda path, _: self.layout.sharding(self.mesh, path, None, "chain"), record
        )

    @functools.cached_property
    def tracked_names(self) -> list[str]:
        """The names of the scalars that are recorded of every draw, beside diagnostics and
        scores."""
        if isinstance(self.task, Modelled):
            return [VALUE + name for name in self.task.tracked]
        num_examples = len(self._tracked_examples) if self.tracked_split else 0
        return [f"{LOG_PROB}{i:02d}" for i in range(num_examples)]

    @functools.cached_property
    def _tracked_examples(self) -> np.ndarray:
        """Numbers of the examples whose log-probability is recorded, evenly spread."""
        assert self.tracked_split is not None
        return tracked_examples(self.sizes[self.tracked_split])

    def _make_sampler(self, coordinates: Coordinates, data: Any) -> Sampler:
        """The sampler, in the coordinates in which the chains move."""
        reference = None
        if "ladder" in self.config and self.density.bind_reference is not None:
            of_params = self.density.bind_reference(data, self.config.ladder.reference_sd)

            def reference(position: Any) -> jax.Array:
                return of_params(coordinates.to_params(position))

        return make_sampler(
            self._settings, self._logdensity_fn(coordinates, data), self._make_metric, reference
        )

    def _logdensity_fn(self, coordinates: Coordinates, data: Any) -> Callable[[Any], jax.Array]:
        """The log density of a position, a function of the coordinates in which chains move."""
        of_params = self.density.bind(data)
        return lambda position: of_params(coordinates.to_params(position))

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        """What is traced within is mapped over chains, on the devices of the mesh.

        Products are of float32: TPUs and TF32 would round them to some 3 digits, which are nats.
        """
        precise = jax.default_matmul_precision("highest")
        with traced_for(self.mesh), mapped_over_networks(), precise:
            yield

    def _first_state(
        self, rng_keys: jax.Array, coordinates: Coordinates, positions: Any, data: Any
    ) -> SamplingState:
        with self._traced():
            sampler = self._make_sampler(coordinates, data)
            chains = jax.vmap(sampler.init, spmd_axis_name=ENSEMBLE)(rng_keys, positions)
        return SamplingState(
            chains=chains,
            coordinates=coordinates,
            num_moves=jnp.zeros(self.config.num_chains, jnp.int32),
            step=0,
        )

    def _tune_chains(self, chains: Chain, coordinates: Coordinates, data: Any) -> Chain:
        with self._traced():
            sampler = self._make_sampler(coordinates, data)
            assert sampler.tune is not None
            return jax.vmap(sampler.tune, spmd_axis_name=ENSEMBLE)(chains)

    def estimate_mass(self, state: SamplingState) -> SamplingState:
        """Computes the mass of every chain where a window ends; every process must ask."""
        adaptation, where = state.chains.adaptation, self.shardings(state).chains.adaptation
        masses = transfer.fetch(adaptation.mass)
        mass = low_rank_mass.estimate(masses, self.window_ends[state.step])
        # Those that share a chain may round differently.
        inverse = processes.arrays_from_main(mass.inverse_mass_matrix._asdict())
        mass = mass._replace(inverse_mass_matrix=type(mass.inverse_mass_matrix)(**inverse))
        adaptation = adaptation._replace(mass=transfer.put(mass, where.mass))
        return state.replace(chains=state.chains._replace(adaptation=adaptation))

    def sections(self, chains: Chain) -> dict[str, Any]:
        """Entries of report.json that only some samplers have; every process must ask."""
        place = SECTIONS.get(self.config.method)
        return {} if place is None else registry.load(place)(chains.adaptation)

    def gather(self, trace: Trace) -> Trace:
        """A trace whole on all devices, so that every process has it."""
        return trace if processes.count() == 1 else self._gather(trace)

    def _new_record(self, num_draws: int) -> Record:
        """A record with places for so many draws."""
        num_chains = self.config.num_chains
        numbers = jnp.zeros((num_draws, num_chains))
        info = DrawInfo(*[numbers] * len(DrawInfo._fields))._replace(
            is_divergent=numbers.astype(bool), num_gradients=numbers.astype(jnp.int32)
        )
        scores = dict.fromkeys(self.traced, numbers)
        tracked = jnp.zeros((num_draws, num_chains, len(self.tracked_names)))
        num_kept = num_draws // self.config.sampler.thin + 1
        positions = jax.tree.map(
            lambda leaf: jnp.zeros((num_kept, num_chains, *leaf.shape), leaf.dtype),
            self.padded_shapes,
        )
        return self._placed(Record(Trace(info, scores, tracked), positions))

    def _placed(self, record: Record) -> Record:
        """A record as it lies on the devices, with its chains."""
        return jax.lax.with_sharding_constraint(record, self.record_shardings(record))

    def _run_chunk(
        self,
        state: SamplingState,
        record: Record,
        data: Any,
        tracked: PlacedSplit | None,
        begun: jax.Array,
        first: jax.Array,
        end: jax.Array,
    ) -> tuple[SamplingState, Record]:
        """Takes draws first..end-1 of every chain, in one loop: a program for all their numbers.

        Args:
            state: without its record; it is used up.
            record: of draws begun..first-1, with places for the new ones.
            data: of the log density.
            tracked: the tracked split, which every draw predicts.
            begun: the number of the record's first draw.
            first: of the new draws.
            end: number after the last one.
        """
        with self._traced():
            if self._run_free is not None:
                whole = (state.coordinates, data)
                chains, num_moves, record = self._run_free(
                    self.mesh, self._free_draws, whole, state.chains, state.num_moves,
                    record, begun, first, end,
                )  # fmt: skip
                state = state.replace(chains=chains, num_moves=num_moves)
            else:
                sampler = self._make_sampler(state.coordinates, data)

                def draw(
                    t: jax.Array, carry: tuple[SamplingState, Record]
                ) -> tuple[SamplingState, Record]:
                    return self._draw(sampler, tracked, begun, *carry, t)

                state, record = jax.lax.fori_loop(first, end, draw, (state, record))
            state = jax.lax.with_sharding_constraint(state, self.shardings(state))
            return state, self._placed(record)

    def _free_draws(self, coordinates: Coordinates, data: Any) -> FreeDraws:
        """Draws of chains that do not wait for each other; of a model, which has no splits."""
        task = self.task
        assert isinstance(task, Modelled)

        def observe(info: DrawInfo, position: Any) -> Record:
            params = coordinates.to_params(position)
            return Record(Trace(info, {}, task.track(params)), params)

        logdensity_fn = self._logdensity_fn(coordinates, data)
        return FreeDraws(self._settings, logdensity_fn, observe, self.num_kept, self.num_left_out)

    def _draw(
        self,
        sampler: Sampler,
        tracked: PlacedSplit | None,
        begun: jax.Array,
        state: SamplingState,
        record: Record,
        t: jax.Array,
    ) -> tuple[SamplingState, Record]:
        """Draw t of every chain: moved, predicted with, recorded, and at times kept."""
        step = jax.vmap(sampler.step, in_axes=(0, None), spmd_axis_name=ENSEMBLE)
        chains, info = step(state.chains, t)
        params = self.params(chains, state.coordinates)
        counts = t >= self.num_left_out
        scores = dict.fromkeys(self.traced, jnp.full(self.config.num_chains, jnp.nan))
        log_probs = jnp.zeros((self.config.num_chains, 0))
        if isinstance(self.task, Modelled):
            log_probs = jax.vmap(self.task.track)(self.layout.strip(params, axis=1))
        if tracked is not None:
            likelihood, examples = self.likelihood, self._tracked_examples
            predicted = self._predict_draw(params, tracked.inputs)
            of_draw = draw_scores(likelihood, predicted, tracked.targets, tracked.mask)
            scores = {name: of_draw[name] for name in self.traced}
            predicted = {name: one[:, examples] for name, one in predicted.items()}
            targets = jax.tree.map(operator.itemgetter(examples), tracked.targets)
            log_probs = -likelihood.example_scores(predicted, targets)["nll"]
        index = self.num_kept(t) - self.num_kept(begun)
        positions = jax.lax.cond(
            self.num_kept(t + 1) > self.num_kept(t),
            lambda kept: jax.tree.map(lambda all_, one: all_.at[index].set(one), kept, params),
            lambda kept: kept,
            record.positions,
        )
        # A rejection repeats the state, to the last bit of its log density.
        log_density = chains.state.logdensity
        moved = (log_density != state.chains.state.logdensity) & jnp.isfinite(log_density)
        state = state.replace(chains=chains, num_moves=state.num_moves + (moved & counts))
        trace = jax.tree.map(
            lambda all_, one: jax.lax.dynamic_update_index_in_dim(all_, one, t - begun, 0),
            record.trace,
            Trace(info, scores, log_probs),
        )
        return state, Record(trace, positions)

    def _predict_draw(self, params: Any, inputs: jax.Array) -> dict[str, jax.Array]:
        """What one draw of every chain says of inputs: [C, N, ...] by name."""
        of_chain = self.density.predict
        assert of_chain is not None
        predict = jax.vmap(of_chain, in_axes=(0, None), spmd_axis_name=ENSEMBLE)
        return predict(params, inputs)

    def predict(self, params: Any, name: str) -> Arrays:
        """The same of a split, from parameters [C, ...] on the host to arrays there."""
        padded = self.layout.pad(params, axis=1)
        shardings = jax.tree_util.tree_map_with_path(
            lambda path, _: self.layout.sharding(self.mesh, path, "chain"), padded
        )
        with self._traced():
            predicted = self._predict(transfer.put(padded, shardings), self.splits[name].inputs)
        num_examples = self.sizes[name]
        found = transfer.fetch(predicted)
        return {key: transfer.strip(one, num_examples, axis=1) for key, one in found.items()}
