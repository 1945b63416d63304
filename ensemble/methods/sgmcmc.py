"""SGLD and SGHMC: chains that move by the gradients of batches, and leave draws.

A chain is a member that descends with noise: the optimiser is a step of Langevin dynamics, see
`ensemble.methods.langevin`. After the steps of the timetable a draw goes to the disk.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.config.builtin import PRIOR
from ensemble.draws.store import LOG_DENSITY
from ensemble.likelihoods.predictive import Predictive
from ensemble.methods import training
from ensemble.methods.chain_report import PosteriorReport, mean
from ensemble.methods.langevin import descent_of_chains, share_kept, temperature
from ensemble.methods.log_density import check_posterior
from ensemble.methods.start import given_starts
from ensemble.methods.timetable import timetable
from ensemble.methods.training import descent, make_objective
from ensemble.notes import note
from ensemble.runtime.algorithm import Algorithm, Info, Keep, Now, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.loop import Period
from ensemble.runtime.method import Method, Report
from ensemble.runtime.predict import draw_scalars
from ensemble.tasks.supervised import Supervised

_KINETIC = "kinetic"
_RATE = "step_size"
_HOT = 1.1
"""Temperature of the draws above which a note says so."""


class LangevinChain(NamedTuple):
    """A chain.

    Attributes:
        moving: The descent with noise.
        energy: Sum of the losses of the steps since the last draw, [] nats.
    """

    moving: Any
    energy: jax.Array


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The task has no posterior, or does not fit the memory.
    """
    check_posterior(task)
    own = training.with_own_keys(config)
    times = timetable(config)
    number = task.num_train_examples
    how = descent_of_chains(config, number)
    epochs = training.Epochs.of(config, number)
    report = LangevinReport(config, task)

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        feed = training.batches(own, task, devices, numbers, times.num_steps)
        init, step = descent(task, devices, make_objective(own, task), how)

        def started(now: Now, batch: Any) -> LangevinChain:
            return LangevinChain(init(now, batch), jnp.float32(0))

        def moved(now: Now, chain: LangevinChain, batch: Any) -> tuple[LangevinChain, Info]:
            moving, info = step(now, chain.moving, batch)
            # The steps that a draw is about are those since the one before, or since the burn-in.
            within = now.step % times.cycle_steps - times.num_burn_in
            place = jnp.where(within < 0, 0, within % times.steps_per_draw)
            energy = jnp.where(place == 0, 0.0, chain.energy) + info.scalars["loss"]
            scalars = {
                **info.scalars,
                LOG_DENSITY: -number * energy / (place + 1),
                _KINETIC: moving.optimizer.kinetic,
                _RATE: jnp.float32(how.learning_rate(now.step)),
            }
            return LangevinChain(moving, energy), info._replace(scalars=scalars, rows=None)

        return Algorithm(
            started,
            moved,
            parameters=lambda now, chain: {
                "params": pytrees.at(chain.moving.variables["params"], None)
            },
            num_steps=times.num_steps,
            feed=feed,
            steps_per_program=training.in_loop(task, devices, feed.steps_per_program),
            keep=Keep(times.draws_before, times.steps_per_draw, only_rows=True),
            start=functools.partial(_start, config, task),
        )

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
        tracked_split=report.split,
        facts=cycle if times.schedule == "cyclical" else {},
    )


def _start(config: Any, task: Supervised) -> Start:
    """Draws from the prior, or reads members of another run."""
    if config.init_from == PRIOR:
        key = jax.random.key(config.seed)
        keys = pytrees.keys_of(key, jnp.arange(config.num_chains))
        params = jax.vmap(task.sample_prior)(keys)
    else:
        params = given_starts(config, task)
    return Start(given={"params": jax.tree.map(np.asarray, params)})


class LangevinReport(PosteriorReport):
    """Report of a run of chains that move by batches.

    Args:
        config: Configuration of the run.
        task: What is sampled.
    """

    charts: ClassVar[Mapping[str, str]] = {
        "log density": "posterior/chain_[0-9]+/log_density",
        "temperature": "posterior/chain_[0-9]+/temperature",
    }

    def __init__(self, config: Any, task: Supervised):
        super().__init__(config, task, f"lower config.learning_rate={config.learning_rate}", 0)
        progress = task.likelihood.progress
        number = task.num_train_examples
        decay = share_kept(config)
        self.series = {
            "log_density": ("loss", lambda losses: -number * mean(losses)),
            progress: (progress, mean),
            "temperature": (_KINETIC, lambda kinetic: temperature(mean(kinetic), decay)),
        }

    def scalars(self, run: Any, period: Period) -> dict[str, float]:
        """Returns means over steps, the temperature of the last draw, and the learning rate."""
        scalars = dict(period.scalars)
        kinetic = scalars.pop(_KINETIC)
        rate = float(scalars[_RATE][-1, 0])
        for step in run.algorithm.keep.steps(period.first, period.end)[-1:]:
            scalars[_KINETIC] = kinetic[step - period.first][None]
        found = super().scalars(run, period._replace(scalars=scalars))
        return {**found, "train/learning_rate": rate}

    def recorded(self, run: Any, period: Period) -> dict[str, np.ndarray]:
        """Returns what is recorded of each draw, with the scores of its predictions."""
        steps = run.algorithm.keep.steps(period.first, period.end)
        rows = np.array(steps, int) - period.first
        found = {name: period.scalars[name][rows] for name in (LOG_DENSITY, _KINETIC, _RATE)}
        if self.split is None or not steps:
            return found
        targets = self.task.dataset.targets(self.split)
        likelihood = self.task.likelihood
        mask = np.ones(len(targets), bool)
        sets = (pytrees.at(period.kept, np.s_[i, :, 0]) for i in range(len(steps)))
        predicted = (self.predict_set(one, self.split) for one in sets)
        scores = [draw_scalars(likelihood, self.tracked_rows, p, targets, mask) for p in predicted]
        return found | jax.tree.map(lambda *each: np.stack(each), *scores)

    def has_predictions(self, run: Any) -> bool:
        """Returns True: before the first draw the parameters predict as they are."""
        return True

    def predictions(self, run: Any, split: str) -> Predictive:
        """Returns predictions of a split by the draws so far."""
        if super().has_predictions(run):
            return super().predictions(run, split)
        return Report.predictions(self, run, split)

    def posterior(self, run: Any, rate: float | None) -> dict[str, Any]:
        """Returns temperatures, steps and their rate; notes draws of another temperature.

        `kinetic_temperature` is the mean temperature of momenta at the draws, and
        `draw_temperature` what the noise of the gradients makes of it for the draws.
        """
        config = self.config
        counted, found = self.drawn(run)
        num_steps = run.goal * config.num_chains
        per_second = rate and rate * run.method.steps_per_epoch
        kinetic = float(counted[_KINETIC].mean())
        heat = temperature(kinetic, share_kept(config))
        if heat > _HOT:
            note(
                f"The draws have a temperature of {heat:.2f}, which should be 1: lower "
                f"config.learning_rate={config.learning_rate:g} in a new workdir, with more steps."
            )
        return {
            "kinetic_temperature": kinetic,
            "draw_temperature": heat,
            "learning_rate": float(counted[_RATE][0, -1]),
            "num_steps": num_steps,
            "steps_per_second": per_second,
            "ess_per_second": per_second and found.ess_bulk_min * per_second / num_steps,
            "remedy": "Raise config.sgmcmc.num_samples (cyclical: num_cycles), or in a new workdir "
            "config.sgmcmc.steps_per_draw or num_burn_in.",
        }
