"""SGLD and SGHMC: chains that move by the gradients of batches, and leave draws.

A chain is a member that descends with noise: the optimiser is a step of Langevin dynamics, see
`ensemble.methods.langevin`. After the steps of the timetable a draw goes to the disk.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.config.builtin import PRIOR
from ensemble.draws.predictions import draw_scalars
from ensemble.draws.store import LOG_DENSITY
from ensemble.likelihoods.predictive import Arrays, Predictive
from ensemble.methods import training
from ensemble.methods.chain_report import PosteriorReport
from ensemble.methods.descent import descent, make_objective
from ensemble.methods.langevin import descent_of_chains, share_kept, temperature
from ensemble.methods.log_density import check_posterior
from ensemble.methods.start import members_of
from ensemble.methods.timetable import timetable
from ensemble.notes import note
from ensemble.report.posterior import convergence_section
from ensemble.runtime.algorithm import Algorithm, Info, Keep, Now, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.method import Method, Report
from ensemble.runtime.rows import Period
from ensemble.task import Learned

_KINETIC = "kinetic"
HOT, COLD = 1.1, 0.9
"""Temperatures of the draws beyond which a note says so."""
_WARM = 1.05
"""What a note then aims at: the excess over 1 goes with the learning rate."""
_FEW_BATCHES = 10


class LangevinChain(NamedTuple):
    """A chain.

    Attributes:
        moving: The descent with noise.
        energy: Sum of the losses of the steps since the last draw, [] nats.
        number: Steps since then.
    """

    moving: Any
    energy: jax.Array
    number: jax.Array


def create(config: ml_collections.FrozenConfigDict, task: Learned) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The task has no posterior, or does not fit the memory.
    """
    check_posterior(task)
    own, times = training.with_own_keys(config), timetable(config)
    how = descent_of_chains(config, task.num_train_examples)
    epochs = training.Epochs.of(config, task.num_train_examples)
    report = LangevinReport(config, task, how)
    # Squared gradients, noise, and the draws of a checkpoint.
    num_kept = 2 + config.log_every_steps // times.steps_per_draw
    training.check_members(config, task, num_kept, "num_chains", "chains")

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        feed = training.batches(own, task, devices, numbers, times.num_steps)
        init, step = descent(task, devices, make_objective(own, task), how)
        return Algorithm(
            *_functions(init, step, times, task.num_train_examples),
            num_steps=times.num_steps,
            feed=feed,
            steps_per_program=training.in_loop(task, devices, feed.steps_per_program),
            keep=Keep(times.draws_before, times.steps_per_draw, only_rows=True),
            start=functools.partial(_start, config, task),
        )

    is_one = times.num_cycles == 1 and config.sgmcmc.schedule != "cyclical"
    cycle = {"the length of a cycle": (times.cycle_steps, "config.sgmcmc.num_samples")}
    return Method(
        config=config,
        task=task,
        num_members=config.num_chains,
        place=functools.partial(training.spread, config, task),
        algorithm=algorithm,
        report=report,
        steps_per_epoch=epochs.steps,
        examples_before=epochs.examples_before,
        num_steps=times.num_steps,
        tracked_split=report.split,
        duration="sgmcmc.num_samples",
        facts={} if is_one else cycle,
    )


def _functions(init: Any, step: Any, times: Any, number: int) -> tuple[Any, Any, Any]:
    def started(now: Now, batch: Any) -> LangevinChain:
        return LangevinChain(init(now, batch), jnp.float32(0), jnp.int32(0))

    def moved(now: Now, chain: LangevinChain, batch: Any) -> tuple[LangevinChain, Info]:
        moving, info = step(now, chain.moving, batch)
        # The steps that a draw is about are those since the one before, or since the burn-in.
        within = now.step % times.cycle_steps - times.num_burn_in
        is_first = (within < 0) | (within % times.steps_per_draw == 0)
        energy = jnp.where(is_first, 0.0, chain.energy) + info.scalars["loss"]
        count = jnp.where(is_first, 0, chain.number) + 1
        scalars = {
            **info.scalars,
            LOG_DENSITY: -number * energy / count,
            _KINETIC: moving.optimizer.kinetic,
        }
        return LangevinChain(moving, energy, count), info._replace(scalars=scalars, rows=None)

    def parameters(now: Now, chain: LangevinChain) -> Any:
        return pytrees.at({"params": chain.moving.variables["params"]}, None)

    return started, moved, parameters


def _start(config: Any, task: Learned) -> Start:
    """Draws of the prior, or members of another run."""
    if config.init_from == PRIOR:
        key = jax.random.key(config.seed)
        keys = pytrees.keys_of(key, jnp.arange(config.num_chains))
        params = jax.vmap(task.sample_prior)(keys)
    else:
        params = members_of(config, task)
    return Start(given={"params": jax.tree.map(np.asarray, params)})


class LangevinReport(PosteriorReport):
    """What runs of chains by batches say.

    Args:
        config: Configuration of the run.
        task: What is sampled.
        how: How the chains move.
    """

    charts: ClassVar[Mapping[str, str]] = {
        name.replace("_", " "): f"posterior/chain_[0-9]+/{name}"
        for name in ("log_density", "temperature")
    }
    means = ("log_density", "temperature")

    def __init__(self, config: Any, task: Learned, how: Any):
        super().__init__(config, task, f"lower config.learning_rate={config.learning_rate}", 0)
        self._how, self._decay = how, share_kept(config)

    @functools.cached_property
    def _told(self) -> Callable[..., Arrays]:
        assert self.tracked_rows is not None
        return jax.jit(functools.partial(draw_scalars, self.task.likelihood, self.tracked_rows))

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """Means over steps, and the temperature of the last draw."""
        progress, loss = self.task.likelihood.progress, period.scalars["loss"].mean(axis=0)
        values = {
            "log_density": -self.task.num_train_examples * loss,
            progress: period.scalars[progress].mean(axis=0),
        }
        for one in run.algorithm.keep.steps(period.first, period.end)[-1:]:
            kinetic = period.scalars[_KINETIC][one - period.first]
            values["temperature"] = temperature(kinetic, self._decay)
        rate = float(self._how.learning_rate(period.end - 1))
        return {**self.of_chains(run, values), "train/learning_rate": rate}

    def recorded(self, run: Any, period: Period) -> dict[str, np.ndarray]:
        """What is recorded of each draw, with the scores of its predictions."""
        steps = run.algorithm.keep.steps(period.first, period.end)
        if not steps:
            return {}
        rows = np.array(steps) - period.first
        rates = np.array([float(self._how.learning_rate(one)) for one in steps], np.float32)
        found = {name: period.scalars[name][rows] for name in (LOG_DENSITY, _KINETIC)}
        found["step_size"] = np.repeat(rates[:, None], len(run.numbers), 1)
        if self.split is None:
            return found
        targets, told = self.task.dataset.targets(self.split), []
        for i in range(len(steps)):
            sets = pytrees.at(period.kept, i)
            said, mask = self.said(sets, self.split), np.ones(len(targets), bool)
            told.append(self._told(dict(said), targets, mask))
        return found | {name: np.stack([one[name] for one in told]) for name in told[0]}

    def rate(self, examples_per_second: float) -> dict[str, float]:
        """Steps of single chains, per second."""
        return {"posterior/steps_per_second": self._steps(examples_per_second)}

    def _steps(self, examples: float) -> float:
        """Steps of single chains that see so many examples."""
        return examples * self.run.method.steps_per_epoch / self.task.num_train_examples

    def has_predictions(self, run: Any) -> bool:
        """Always."""
        return True

    def predictions(self, run: Any, split: str) -> Predictive:
        """What the draws say of a split; before the first the parameters as they are."""
        if super().has_predictions(run):
            return super().predictions(run, split)
        return Report.predictions(self, run, split)

    def posterior(self, run: Any, rate: float | None) -> dict[str, Any]:
        """Convergence, temperatures, steps and their rate; a note says what the draws are not.

        `kinetic_temperature` is the mean of what momenta have at the draws, and `draw_temperature`
        what the noise of the gradients makes of it for the draws.
        """
        config, times, split = self.config, timetable(self.config), self.split
        counted, found = self.counted(run), self.diagnose(run)
        num_steps = times.num_steps * config.num_chains
        per_second = None if rate is None else self._steps(rate)
        kinetic = float(counted[_KINETIC].mean())
        heat, more = temperature(kinetic, self._decay), "num_samples"
        if config.sgmcmc.schedule == "cyclical":  # It goes on with whole cycles alone.
            more = "num_cycles"
        _note_heat(heat, config, self.task.num_train_examples)
        predicting = self.predicting(run.draws)
        return {
            **convergence_section(counted, found, self.traced, config.num_chains, predicting),
            "kinetic_temperature": kinetic,
            "draw_temperature": heat,
            "learning_rate": float(counted["step_size"][0, -1]),
            "num_steps": num_steps,
            "steps_per_second": per_second,
            "ess_per_second": per_second and found.ess_bulk_min * per_second / num_steps,
            "num_burn_in": times.num_burn_in,
            "steps_per_draw": times.steps_per_draw,
            "num_cycles": times.num_cycles,
            "num_chains": config.num_chains,
            "temperature": config.posterior_temperature,
            "tracked_split": split,
            "remedy": f"Raise config.sgmcmc.{more}={getattr(times, more)}, or in a new workdir "
            f"config.sgmcmc.steps_per_draw={times.steps_per_draw} or "
            f"config.sgmcmc.num_burn_in={times.num_burn_in}",
        }


def _note_heat(heat: float, config: Any, num_examples: int) -> None:
    """Notes what the draws are not: Bayes at the right temperature, or the best to be had."""
    if heat > HOT:
        lower = config.learning_rate * (_WARM - 1) / (heat - 1)
        note(
            f"The draws have a temperature of {heat:.2f}, which should be 1, for the noise of the "
            "gradients heats the chains, unless they have not forgotten their start: variances of "
            f"the posterior are too large by some {heat - 1:.0%}. In a new workdir lower "
            f"config.learning_rate={config.learning_rate:g} to {lower:.2g} with as many times the "
            f"steps, for a temperature of {_WARM:g}, or raise config.batch_size="
            f"{config.batch_size}."
        )
    elif heat < COLD:
        note(
            f"The draws have a temperature of {heat:.2f}, which should be 1: the noise has not had "
            f"the steps to spread them. In a new workdir raise config.sgmcmc.steps_per_draw="
            f"{config.sgmcmc.steps_per_draw}."
        )
    num_batches = -(-num_examples // config.batch_size)
    if num_batches <= _FEW_BATCHES:
        note(
            f"All {num_examples:,} examples are {num_batches} batches: samplers that see them all "
            "at every step, such as config.method='hmc', are affordable here, and without the bias "
            "of gradients of batches."
        )
