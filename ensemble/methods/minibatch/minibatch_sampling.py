"""The methods `sgld` and `sghmc`: chains that an engine moves by batches, and that leave draws.

The optimiser of the engine is a step of Langevin dynamics here. A step is one of every chain. At
every draw the chains predict the tracked split; the draw goes to the disk, and the chains predict
with what is there.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from ensemble.draws.predictions import DrawPredictions
from ensemble.draws.store import LOG_DENSITY, Draws, fitted_draws, tracked_scalars
from ensemble.errors import UserError
from ensemble.fitted import Fitted
from ensemble.likelihood import Arrays
from ensemble.method import Method, Status, check_not_longer
from ensemble.methods.common_keys import PRIOR
from ensemble.methods.mcmc import chain_monitor
from ensemble.methods.mcmc.log_density import check_posterior
from ensemble.methods.mcmc.start import members_of
from ensemble.methods.members.engine import ChunkInfo as StepsInfo
from ensemble.methods.members.engine import Engine
from ensemble.methods.minibatch import draw_record, minibatch_report
from ensemble.methods.minibatch.chains_state import ChainsState, ChunkInfo
from ensemble.methods.minibatch.draw_record import Draw, TrackedSplit
from ensemble.methods.minibatch.langevin import descent_of_chains, temperature
from ensemble.methods.minibatch.timetable import timetable
from ensemble.notes import note
from ensemble.report.posterior import convergence_scalars, write_posterior
from ensemble.report.results import REPORTED_SPLITS
from ensemble.sharding import processes, transfer
from ensemble.source import SplitInputs
from ensemble.storage.checkpoint import check_shapes
from ensemble.storage.memory import check_memory
from ensemble.storage.predictions import MemberPredictions
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned
from ensemble.tasks.tempered import tempered

DRAWN = "drawn"
"""What a checkpoint calls that of a state which the engine has not."""


class MinibatchSampling(Method[ChainsState, ChunkInfo]):
    """Stochastic gradient Langevin dynamics of every chain.

    Args:
        config: validated, of `ensemble.config`.
        task: the network, its data and its prior.

    Raises:
        UserError: the task has no posterior, or does not fit the memory.
    """

    noun = "chain"
    charts: Mapping[str, str] = {
        name.replace("_", " "): f"posterior/chain_[0-9]+/{name}"
        for name in ("log_density", "temperature")
    }

    def __init__(self, config: ml_collections.FrozenConfigDict, task: Learned):
        check_posterior(task)
        self.config = config
        self.task = task
        self._times = timetable(config)
        self.num_steps = self._times.num_steps
        self.remedy = f"lower config.learning_rate={config.learning_rate}"
        self.tracked_split = next((k for k in ("validation", "test") if k in task.sizes), None)
        self._check_memory()
        self._decay = float(config.get("momentum", 0.0))
        self._engine = Engine(
            config,
            tempered(task, config.temperature),
            processes.devices(config.num_devices),
            config.num_chains,
            self.num_steps,
            descent_of_chains(config, self._times, task.num_train_examples, self._decay),
        )
        self.indices = self._engine.indices
        self.steps_per_epoch = self._engine.steps_per_epoch
        self._tracked = None
        if self.tracked_split is not None:
            targets = task.dataset.targets(self.tracked_split)
            self._tracked = TrackedSplit(task.likelihood, targets)
        self._predictions = DrawPredictions(
            task.likelihood, task.dataset, config.num_predictive_draws, self._predict_draw
        )
        self._has_drawn = False
        self._diagnose = chain_monitor.Diagnosing()

    def _check_memory(self) -> None:
        num_params = sum(leaf.size for leaf in jax.tree.leaves(self.task.params_shapes()))
        num_chains, every = self.config.num_chains, self._times.steps_per_draw
        own_bytes = 4 * num_params * num_chains // processes.count()
        num_predicted = sum(size for name, size in self.task.sizes.items() if name != "train")
        num_outputs = self.task.likelihood.num_outputs
        predicted = 4 * num_predicted * num_outputs * num_chains // processes.count()
        what = f"config.num_chains={num_chains} chains of {num_params:,} parameters"
        remedy = "config.num_chains or config.log_every_steps, or choose a smaller network"
        check_memory(
            # As a checkpoint fetches them; draws; predictions.
            (2 + self.config.log_every_steps // every) * own_bytes + predicted,
            what,
            remedy,
            4 * own_bytes,  # Parameters, momentum, squared gradients, noise.
            processes.devices(self.config.num_devices),
        )

    # The protocol of a method.

    def init(self, rng_key: jax.Array) -> ChainsState:
        """Starts chains 0..C-1, chain k from `fold_in(rng_key, k)`."""
        if self.config.init_from == PRIOR:
            keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(rng_key, np.array(self.indices))
            params = jax.vmap(self.task.sample_prior)(keys)
        else:
            params = members_of(self.config, self.task, self.task.params_shapes())
        members = self._engine.init(rng_key, {"params": transfer.fetch(params)})
        nothing = np.zeros((2, len(self.indices)))
        return ChainsState(members, nothing, nothing)

    def advance(
        self, state: ChainsState, limit: int | None = None
    ) -> tuple[ChainsState, ChunkInfo]:
        """Takes the steps up to the next due logging, due end of an epoch, or goal.

        Returns:
            The state, and the chunk's diagnostics. Draws are waited for, steps are not.
        """
        first, has_drawn = state.step, self._has_drawn
        end = self.num_steps if limit is None else first + limit
        is_cut = True
        while is_cut and state.step < end:
            state, info = self._advance_to_moment(state, end)
            is_cut = info.is_cut
        reported = () if is_cut else state.pending
        compiles = self._has_drawn and not has_drawn
        state = state._replace(pending=state.pending[len(reported) :])
        return state, ChunkInfo(info, first, compiles, reported)

    def _advance_to_moment(self, state: ChainsState, end: int) -> tuple[ChainsState, StepsInfo]:
        """Takes steps up to a draw, the end of a burn-in, a report of the engine, or `end`."""
        step, draw = state.step, self._times.next_draw(state.step)
        begin = draw - self._times.steps_per_draw  # Of the steps that the draw is about.
        moment = begin if step < begin else draw
        members, info = self._engine.advance(state.members, min(moment, end) - step)
        state = state._replace(members=members)
        if info.is_cut and info.step != moment:
            return state, info
        totals, energy = np.zeros_like(state.energy), state.energy
        if info.step >= begin:
            loss = transfer.fetch(info.member_metrics["loss"])
            totals = np.array([loss.total, loss.count], np.float64)[:, : len(self.indices)]
            with np.errstate(invalid="ignore"):  # Of a chain that has failed.
                energy = energy + totals - state.counted
        if info.step == draw:
            state = self._drawn(state, energy)
        if info.step in (begin, draw):
            energy = np.zeros_like(energy)
        counted = totals if info.is_cut else np.zeros_like(totals)
        return state._replace(energy=energy, counted=counted), info

    def _drawn(self, state: ChainsState, energy: np.ndarray) -> ChainsState:
        """Takes a draw: predicts the tracked split with the chains where they are."""
        self._has_drawn = True
        members, num_chains = state.members, len(self.indices)
        optimizer_state = members.members.opt_state
        with np.errstate(divide="ignore", invalid="ignore"):  # Of a chain that has failed.
            log_density = -self.task.num_train_examples * energy[0] / energy[1]
        rate = float(self._engine.descent.learning_rate(state.step - 1))
        scalars = {
            LOG_DENSITY: log_density.astype(np.float32),
            "step_size": np.full(num_chains, rate, np.float32),
            "kinetic": transfer.fetch(optimizer_state.kinetic)[:num_chains],
        }
        if self._tracked is not None and self.tracked_split is not None:
            predicted = self._engine.predict_split(members, self.tracked_split).arrays
            scalars |= self._tracked.scalars(predicted)
        params = self._engine.fitted(members, self.indices).sets["params"]
        return state._replace(pending=(*state.pending, Draw(scalars, params)))

    def finished(self, state: ChainsState) -> bool:
        """Whether all steps have been taken."""
        return state.step >= self.num_steps

    # What the loop asks for.

    def member_examples(self, info: ChunkInfo) -> int:
        """Examples that the chains have seen since the last report, summed over chains."""
        return self._engine.member_examples(info.steps)

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown: steps of single chains, per second."""
        return {"posterior/steps_per_second": self._steps(member_examples_per_second)}

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """Fetches a chunk's diagnostics as named scalars; waits for the chunk."""
        heats = [temperature(draw.scalars["kinetic"], self._decay) for draw in info.draws[-1:]]
        found = self._engine.scalars(info.steps)
        return minibatch_report.of_chains(found, self.task.num_train_examples, heats)

    def status(self, info_or_state: ChunkInfo | ChainsState) -> dict[int, Status]:
        """The status of the chains, by number."""
        if isinstance(info_or_state, ChunkInfo):
            return self._engine.status(info_or_state.steps)
        return self._engine.status(info_or_state.members)

    def fault(self, state: ChainsState) -> str:
        """What the task finds with the last finite parameters of the first that failed."""
        return self._engine.fault(state.members)

    def parameters(self, state: ChainsState) -> Any:
        """Returns the shapes of the parameters of one chain."""
        return self._engine.parameters(state.members)

    def record(self, info: ChunkInfo, draws: Draws) -> None:
        """Appends a chunk's draws to those on disk."""
        if info.draws and processes.is_main():
            first = self._times.draws_before(info.step) - len(info.draws)
            draw_record.append(draws, first, info.draws)

    def num_recorded(self, state: ChainsState) -> int:
        """Draws that `record` has appended when a state is reached."""
        return self._num_drawn(state) - len(state.pending)

    def has_predictions(self, state: ChainsState) -> bool:
        """Always: before the first draw by the parameters as they are."""
        return True

    def predict_split(self, state: ChainsState, name: str, draws: Draws) -> MemberPredictions:
        """What the draws of every chain so far say of a split."""
        if not self.num_recorded(state):
            return self._engine.predict_split(state.members, name)
        return self._predictions.of_split(name, draws)

    def _predict_draw(self, params: Any, split: str) -> Arrays:
        """What one draw of every chain, parameters [C, ...], says of a split."""
        programs = self._engine.programs
        variables = programs.placement.place_members({"params": params})
        return programs.predict(variables, SplitInputs(self.task.dataset, split))

    def fitted(self, state: ChainsState, live: Sequence[int], draws: Draws) -> Fitted | None:
        """The draws of the live chains; only the main process's."""
        if not processes.is_main():
            return None
        return fitted_draws(draws, live, self.config.num_predictive_draws)

    def monitor_scalars(
        self, state: ChainsState, draws: Draws, member_examples_per_second: float | None
    ) -> dict[str, float]:
        """Convergence, and the mean scores of single draws, as named scalars."""
        live = self._live(state)
        if not self.num_recorded(state) or not live:
            return {}
        scalars = {}
        if self.tracked_split is not None:
            scores = self._predictions.average_draw(self.tracked_split, draws)
            for name, value in chain_monitor.mean_scores(scores, live).items():
                scalars[f"{self.tracked_split}/average_draw/{name}"] = value
        if not processes.is_main() or not draws.end:  # It alone has the draws.
            return scalars
        found = self._diagnose(live, draws)
        kept = draws.predicting(self.config.num_predictive_draws)
        return scalars | convergence_scalars(tracked_scalars(draws, 0, live), found, kept)

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """What tells whether the chains are well, and what they are worth."""
        found = {}
        for name in ("log_density", "temperature"):
            tags = [f"posterior/chain_{k:02d}/{name}" for k in self.indices]
            values = [scalars[tag] for tag in tags if tag in scalars]
            if values:
                found[name.replace("_", " ")] = float(np.mean(values))
        titles = {
            "posterior/rhat_max": "R-hat",
            "posterior/ess_bulk_min": "bulk ESS",
            "posterior/steps_per_second": "steps/s",
            **{
                f"{self.tracked_split}/average_draw/{name}": f"average draw's {name}"
                for name in self._traced
            },
        }
        return found | {title: scalars[tag] for tag, title in titles.items() if tag in scalars}

    def has_converged(self, scalars: Mapping[str, float]) -> bool:
        """Never: the schedule says how long."""
        return False

    def report_sections(
        self, state: ChainsState, draws: Draws, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """What report.json says beside the scores."""
        live, rate = self._live(state), timing["member_examples_per_second"]
        average_draw = {
            name: chain_monitor.mean_scores(self._predictions.average_draw(name, draws), live)
            for name in REPORTED_SPLITS
            if name in self.task.sizes
        }
        if not processes.is_main():
            return {}
        self._predictions.note_fewer(draws)
        posterior = minibatch_report.section(
            {name: values[live] for name, values in draws.scalars().items()},
            self._diagnose(live, draws),
            self.config,
            self._times,
            self._decay,
            None if rate is None else self._steps(rate),
            self.tracked_split,
            self._traced,
            draws.predicting(self.config.num_predictive_draws),
        )
        num_examples = self.task.num_train_examples
        for line in minibatch_report.notes(posterior, self.config, num_examples):
            note(line)
        return {"average_draw": average_draw, "posterior": posterior}

    def write_results(self, state: ChainsState, work: Workdir, draws: Draws) -> None:
        """Writes pictures of the draws, and `posterior.nc` for ArviZ."""
        live = self._live(state)
        if not processes.is_main():
            return
        write_posterior(
            work,
            draws,
            0,
            live,
            self._diagnose(live, draws),
            self.config.temperature,
            self.tracked_split,
            self._traced,
            self.config.num_predictive_draws,
        )

    # To and from the host: what a checkpoint holds.

    def to_host(self, state: ChainsState) -> tuple[dict[str, Any], dict[str, int]]:
        """Fetches a state as `(arrays, counters)`: a nested dict, and plain numbers."""
        return self._saved(state, self._engine.programs.placement.gather_members)

    def to_parts(self, state: ChainsState) -> tuple[dict[str, Any], dict[str, int]]:
        """Does what `to_host` does, with what this process writes of the chains' variables."""
        return self._saved(state, self._engine.programs.placement.own_members)

    def _saved(
        self, state: ChainsState, gather: Callable[[Any], Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        arrays, counters = self._engine.saved(state.members, gather)
        own = draw_record.to_host(state.pending)
        own |= {"energy": state.energy, "counted": state.counted}
        counters |= {
            "num_recorded": self.num_recorded(state),
            "cycle_steps": self._times.cycle_steps,
        }
        return {**arrays, DRAWN: own}, counters

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> ChainsState:
        """The inverse of `to_host`, on any devices."""
        own = jax.tree.map(np.asarray, arrays[DRAWN])
        arrays = {name: leaf for name, leaf in arrays.items() if name != DRAWN}
        members = self._engine.restored(arrays, counters)
        num_pending = self._times.draws_before(counters["step"]) - counters["num_recorded"]
        pending = draw_record.from_host(own, num_pending)
        energy, counted = own["energy"], own["counted"]
        check_shapes((energy, counted), (np.zeros((2, len(self.indices))),) * 2)
        return ChainsState(members, energy, counted, pending)

    def check_resumable(self, counters: Mapping[str, int], where: str) -> None:
        """Refuses counters of a run that this configuration cannot go on with.

        Raises:
            UserError: it has taken more steps, or its cycles are of another length.
        """
        check_not_longer(counters["step"], self.num_steps, "steps", "sgmcmc.num_samples", where)
        saved = counters["cycle_steps"]
        is_one = self._times.num_cycles == 1 and self.config.sgmcmc.schedule != "cyclical"
        if saved != self._times.cycle_steps and not is_one:
            raise UserError(
                f"config.sgmcmc.num_samples={self.config.sgmcmc.num_samples} makes cycles of "
                f"{self._times.cycle_steps} steps, but those in {where} have {saved}; keep it, and "
                "raise config.sgmcmc.num_cycles instead"
            )

    # Counts.

    def _num_drawn(self, state: ChainsState) -> int:
        return self._times.draws_before(state.step)

    def _steps(self, member_examples: float) -> float:
        """Steps of single chains that see so many examples."""
        return member_examples * self.steps_per_epoch / self.task.num_train_examples

    @functools.cached_property
    def _traced(self) -> tuple[str, ...]:
        """Scores of single draws that are recorded."""
        return tuple(self.task.likelihood.traced)

    def _live(self, state: ChainsState) -> list[int]:
        return [k for k, status in self.status(state).items() if status == Status.ACTIVE]
