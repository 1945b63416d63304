"""The methods of `SAMPLERS`: chains that sample the posterior, draw by draw.

A step is one draw of every chain, those of the warm-up first. Of the draws after it every
`config.sampler.thin`-th leaves for the disk; the chains predict with these."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from ensemble.draws.predictions import DrawPredictions
from ensemble.draws.store import Draws, fitted_draws, tracked_scalars
from ensemble.errors import UserError
from ensemble.fitted import Fitted
from ensemble.method import Method, Status, check_not_longer
from ensemble.methods.mcmc import chain_monitor
from ensemble.methods.mcmc.programs import Programs
from ensemble.methods.mcmc.sampler_keys import SAMPLERS
from ensemble.methods.mcmc.start import chain_keys, find_map, starting_points
from ensemble.methods.mcmc.state import SamplingState, Trace, append_draws, from_host, to_host
from ensemble.networks.layers import mapped_over_networks
from ensemble.report.posterior import convergence_scalars, posterior_section, write_posterior
from ensemble.report.results import REPORTED_SPLITS
from ensemble.sharding import processes, transfer
from ensemble.storage.predictions import MemberPredictions
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned, Modelled, ModelResults

_MIN_DRAWS_TO_MOVE = 20


class ChunkInfo(NamedTuple):
    """The diagnostics of one chunk; the arrays are still on the devices.

    Attributes:
        step: after the chunk.
        begun: number of the first draw that has not been reported before.
        first: number of the chunk's first draw.
        compiles: whether its time is not that of draws alone.
        trace: of the draws from `begun`, with empty places behind them; None where the chunk tuned
            the sampler.
        positions: parameters [K, C, ...] of the draws from `begun` that are kept.
        is_cut: whether the limit ended it, so that its draws are reported by a later one.
    """

    step: int
    begun: int
    first: int
    compiles: bool
    trace: Trace | None
    positions: Any
    is_cut: bool = False

    def draws(self) -> Trace:
        """Fetches the trace [T, C] of the draws that it reports."""
        num_draws = self.step - self.begun
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:num_draws], self.trace)


class Sampling(Method[SamplingState, ChunkInfo]):
    """Markov chains on the posterior, `(init, advance)` and what the loop needs.

    Args:
        config: validated, of `ensemble.config`, with a sampler as its method.
        task: the network, its data and its prior; or a model that is sampled as it is.

    Raises:
        UserError: the task has no posterior, or does not fit the devices or the memory.
    """

    noun = "chain"
    charts: Mapping[str, str] = {
        name.replace("_", " "): f"posterior/chain_[0-9]+/{name}"
        for name in ("log_density", "acceptance")
    }

    def __init__(self, config: ml_collections.FrozenConfigDict, task: Learned | Modelled):
        self.config = config
        self.task = task
        self.steps_per_epoch = config.log_every_steps
        self.remedy = f"lower config.sampler.step_size={config.sampler.step_size}"
        self._programs = Programs(config, task, processes.devices(config.num_devices))
        self._num_left_out = self._programs.num_left_out
        tunes_at_once = SAMPLERS[config.method].tunes_at_once
        self._num_tuning = config.sampler.num_warmup if tunes_at_once else 0  # They are no draws.
        self._first_counted = self._num_left_out - self._num_tuning
        self.num_steps = self._programs.num_draws
        self.may_end_early = any(config.stop_at.values())
        self.indices = tuple(range(config.num_chains))
        self.tracked_split = self._programs.tracked_split
        if config.stop_at.predictive_error and self.tracked_split is None:
            raise UserError(
                f"config.stop_at.predictive_error={config.stop_at.predictive_error:g} needs a "
                "validation or test split; use config.stop_at.rhat or config.stop_at.ess"
            )
        self._diagnose = chain_monitor.Diagnosing(self._first_counted)
        self._results: ModelResults | None = None
        self._compiled: set[int] = set()  # Lengths of records.
        if not isinstance(task, Modelled):
            self._predictions = DrawPredictions(
                self._programs.likelihood,
                task.dataset,
                config.num_predictive_draws,
                self._programs.predict,
            )

    # The protocol of a method.

    def init(self, rng_key: jax.Array) -> SamplingState:
        """Starts chains 0..C-1, chain k from `fold_in(rng_key, k)`."""
        keys_start, keys_draws = chain_keys(rng_key, self.config.num_chains)
        programs = self._programs
        with mapped_over_networks():
            coordinates, positions = processes.tree_from_main(
                starting_points(self.config, self.task, programs.density, keys_start)
            )
        positions = programs.layout.pad(positions, axis=1)
        state = programs.first_state(keys_draws, coordinates, positions, programs.density.data)
        return transfer.put(state, programs.shardings(state))

    def fault(self, state: SamplingState) -> str:
        """What the task finds with fresh variables."""
        return "" if isinstance(self.task, Modelled) else self.task.fault(None)

    def advance(
        self, state: SamplingState, limit: int | None = None
    ) -> tuple[SamplingState, ChunkInfo]:
        """Takes the draws up to the limit, or what `Programs.next_due` says.

        The tuning of mclmc is one chunk, whatever the limit.

        Returns:
            The state, and the chunk's diagnostics; only tuning and masses are waited for.
        """
        programs, first, data = self._programs, state.step, self._programs.density.data
        if first < self._num_tuning:
            chains = jax.block_until_ready(
                programs.tune_chains(state.chains, state.coordinates, data)
            )
            chain_monitor.note_untuned(transfer.fetch(chains.adaptation), self.config)
            end = self._num_tuning
            info = ChunkInfo(end, first, first, True, None, None)
            return state.replace(chains=chains, step=end, begun=end), info
        begun, due = state.begun, programs.next_due(first)
        end = due if limit is None else min(first + limit, due)
        record = state.record
        if record is None:
            record = programs.new_record(num_draws=programs.record_length(begun, first))
        length = len(record.trace.info.log_density)
        compiles = length not in self._compiled
        self._compiled.add(length)
        # The programs are the same for every step.
        state = state.replace(step=0, begun=0, record=None)
        numbers = map(np.int32, (begun, first, end))
        tracked = programs.splits.get(self.tracked_split or "")
        state, record = programs.run_chunk(state, record, data, tracked, *numbers)
        if end in programs.window_ends:
            state = programs.estimate_mass(state.replace(step=end))
        if end < due:
            info = ChunkInfo(end, begun, first, compiles, record.trace, None, True)
            return state.replace(step=end, begun=begun, record=record), info
        num_kept = programs.num_kept(end) - programs.num_kept(begun)
        positions = jax.tree.map(lambda leaf: leaf[:num_kept], record.positions)
        trace = programs.gather(record.trace)
        info = ChunkInfo(end, begun, first, compiles, trace, positions)
        return state.replace(step=end, begun=end), info

    def finished(self, state: SamplingState) -> bool:
        """Whether all draws have been taken."""
        return state.step >= self.num_steps

    # What the loop asks for.

    def member_examples(self, info: ChunkInfo) -> int:
        """Examples whose likelihood all chains have differentiated; waits for the chunk."""
        gradients = (
            2 * self._num_tuning * len(self.indices)
            if info.trace is None
            else int(np.sum(info.draws().info.num_gradients))
        )
        return gradients * self.task.num_train_examples

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown: gradients of one chain on all data, per second."""
        return {"posterior/gradients_per_second": self._gradients(member_examples_per_second)}

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars: means, medians, counts over its draws."""
        if info.trace is None:
            return {}
        return chain_monitor.trace_scalars(info.draws(), self.indices)

    def record(self, info: ChunkInfo, draws: Draws) -> None:
        """Appends a chunk's draws to those on disk."""
        if info.trace is None:
            return
        positions = self._programs.layout.strip(transfer.fetch(info.positions), axis=2)
        trace = info.draws()
        if not processes.is_main():
            return
        thin = self.config.sampler.thin
        kept = range(*(self._programs.num_kept(step) for step in (info.begun, info.step)))
        numbers = np.array([self._first_counted + (i + 1) * thin - 1 for i in kept], np.int64)
        first = info.begun - self._num_tuning
        append_draws(draws, first, trace, positions, numbers, self._programs.tracked_names)

    def num_recorded(self, state: SamplingState) -> int:
        """Draws that `record` has appended when a state is reached."""
        return max(state.begun - self._num_tuning, 0)

    def status(self, info_or_state: ChunkInfo | SamplingState) -> dict[int, Status]:
        """The status of every chain: in the end, one that has never moved is stuck."""
        if isinstance(info_or_state, ChunkInfo):
            jax.block_until_ready(info_or_state.trace)
            return dict.fromkeys(self.indices, Status.ACTIVE)
        # Judged earlier, the verdict would depend on when chunks end.
        may_judge = (
            self.finished(info_or_state) and self._num_sampled(info_or_state) >= _MIN_DRAWS_TO_MOVE
        )
        return {
            k: Status.STUCK if may_judge and not moves else Status.ACTIVE
            for k, moves in zip(self.indices, transfer.fetch(info_or_state.num_moves), strict=True)
        }

    def parameters(self, state: SamplingState) -> Any:
        """Returns the shapes of the parameters of one chain."""
        params = jax.eval_shape(self._programs.params, state.chains, state.coordinates)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), params)

    def predict_split(self, state: SamplingState, name: str, draws: Draws) -> MemberPredictions:
        """What the draws of every chain that are kept so far say of a split."""
        return self._predictions.of_split(name, draws)

    def has_predictions(self, state: SamplingState) -> bool:
        """Whether a draw is kept."""
        return self._programs.num_kept(state.begun) > 0

    def monitor_scalars(
        self, state: SamplingState, draws: Draws, member_examples_per_second: float | None
    ) -> dict[str, float]:
        """Convergence, and the mean scores of single draws, as named scalars."""
        live = self._live(state)
        if not self._num_sampled(state) or not live:
            return {}
        scalars = {}
        if self.tracked_split is not None and self.has_predictions(state):
            scores = self._predictions.average_draw(self.tracked_split, draws)
            for name, value in chain_monitor.mean_scores(scores, live).items():
                scalars[f"{self.tracked_split}/average_draw/{name}"] = value
        if not processes.is_main():  # Which alone has the draws.
            return scalars
        found = self._diagnose(live, draws)
        scalars |= convergence_scalars(
            tracked_scalars(draws, self._first_counted, live), found, self._predicting(draws)
        )
        if member_examples_per_second and "posterior/ess_bulk_min" in scalars:
            seconds = self._num_gradients(draws) / self._gradients(member_examples_per_second)
            scalars["posterior/ess_per_second"] = found.ess_bulk_min / seconds
        return scalars

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Means over chains of what tells whether they are well, and what they are worth."""
        num_chains, traced = self.config.num_chains, self._programs.traced
        return chain_monitor.headline(scalars, num_chains, traced, self.tracked_split)

    def has_converged(self, scalars: Mapping[str, float]) -> bool:
        """Whether `monitor_scalars` are as `config.stop_at` asks; never if it asks nothing."""
        return chain_monitor.has_converged(scalars, self.config.stop_at)

    def report_sections(
        self, state: SamplingState, draws: Draws, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """What report.json says beside the scores."""
        rate, live, task = timing["member_examples_per_second"], self._live(state), self.task
        rate = None if rate is None else self._gradients(rate)
        sections = self._programs.sections(state.chains)
        if isinstance(task, Modelled):
            if not processes.is_main():
                return {}
            self._results = task.results(draws, self._first_counted, live)
            return sections | self._results.sections(self.config, self._num_gradients(draws), rate)
        average_draw = {
            name: chain_monitor.mean_scores(self._predictions.average_draw(name, draws), live)
            for name in REPORTED_SPLITS
            if name in self._programs.splits
        }
        own, maximum = task.draw_report(), None
        if own and own.needs_maximum:
            maximum = find_map(task, self._programs.density, task.params_shapes())
        if not processes.is_main():
            return {}
        self._predictions.note_fewer(draws)
        if own:
            fitted = fitted_draws(draws, live, self.config.num_predictive_draws)
            sections |= own.sections(fitted.sets["params"], maximum)
        return {
            **sections,
            "average_draw": average_draw,
            "posterior": posterior_section(
                {name: values[live] for name, values in draws.scalars(self._first_counted).items()},
                self._diagnose(live, draws),
                self.config,
                self._num_gradients(draws),
                rate,
                self.tracked_split,
                self._programs.traced,
                self._programs.num_params,
                self._predicting(draws),
            ),
        }

    def write_results(self, state: SamplingState, work: Workdir, draws: Draws) -> None:
        """Writes pictures of the draws, and `posterior.nc` for ArviZ."""
        live = self._live(state)
        if not processes.is_main():
            return
        if self._results is not None:
            self._results.write(work)
            return
        write_posterior(
            work,
            draws,
            self._first_counted,
            live,
            self._diagnose(live, draws),
            self.config.temperature,
            self.tracked_split,
            self._programs.traced,
            self.config.num_predictive_draws,
        )

    def inference_data(self) -> Any:
        """The draws of a model; of a network it is None."""
        return None if self._results is None else self._results.inference_data

    def fitted(self, state: SamplingState, live: Sequence[int], draws: Draws) -> Fitted | None:
        """The draws that are kept, of the live chains; only the main process's."""
        if isinstance(self.task, Modelled) or not processes.is_main():
            return None
        return fitted_draws(draws, live, self.config.num_predictive_draws)

    # To and from the host: what a checkpoint holds.

    def to_host(self, state: SamplingState) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state as `(arrays, counters)`: a nested dict, and plain numbers."""
        status = self.status(state)
        arrays = to_host(self._programs, state)
        arrays["status"] = np.array([status[k] for k in self.indices], np.int8)
        return arrays, {
            "step": state.step,
            "begun": state.begun,
            "num_members": len(self.indices),
            "num_recorded": self.num_recorded(state),
        }

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> SamplingState:
        """The inverse of `to_host`, on any devices; the arguments are as there and for `init`."""
        arrays = {name: value for name, value in arrays.items() if name != "status"}
        keys = jax.random.split(rng_key, self.config.num_chains)
        step = counters["step"]
        return from_host(self._programs, keys, arrays, step, counters["begun"])

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: it has taken more draws.
        """
        check_not_longer(counters["step"], self.num_steps, "draws", "sampler.num_samples", where)

    # Counts.

    def _num_sampled(self, state: SamplingState) -> int:
        """Draws of a chain that count."""
        return max(state.step - self._num_left_out, 0)

    def _gradients(self, member_examples: float) -> float:
        """Gradients of one chain that so many examples are."""
        return member_examples / self.task.num_train_examples

    def _num_gradients(self, draws: Draws) -> int:
        """Gradients of all chains so far: of the draws, and of the tuning of mclmc."""
        tuning = 2 * self._num_tuning * self.config.num_chains
        return int(draws.scalars()["num_gradients"].sum()) + tuning

    def _live(self, state: SamplingState) -> list[int]:
        return [k for k, status in self.status(state).items() if status == Status.ACTIVE]

    def _predicting(self, draws: Draws) -> np.ndarray:
        """Places of the draws that predict among those that count."""
        return draws.predicting(self.config.num_predictive_draws) - self._first_counted
