"""SGLD and SGHMC: chains that move by the gradients of batches, and leave draws.

A chain is a member that descends with noise: the optimiser is a step of Langevin dynamics. It has a
position x, a momentum p and a diagonal mass M; U is the negative log posterior of N examples, of
which the gradient of a batch's mean loss is a noisy N-th. A step of size h is

    p  <- p - h dU(x)                              by the batch
    p' <- c p + sqrt(1 - c^2) sqrt(M) xi           xi ~ N(0, I)
    x  <- x + h/2 (p + p') / M

the order of BAOAB (Leimkuhler and Matthews 2013, "Rational construction of stochastic numerical
methods for molecular sampling"), whose positions have no error of discretisation on a normal
posterior, at any stable h. SGHMC (Chen et al. 2014, arXiv:1402.4102) keeps the share c of its
momentum, as SGD with momentum does; SGLD (Welling and Teh 2011) keeps none, c = 0. With the
learning rate eta = h^2 N (1 + c) / 2 the drift is that of SGD with momentum c.

The noise of the gradient heats the chain. Of a gradient with noise V to dU it leaves p at the
temperature 1 + h^2 V / (M (1 - c^2)), and slow directions of x at `temperature` below.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random

from ensemble import pytrees
from ensemble.config import Config
from ensemble.config.builtin import PRIOR
from ensemble.draws.store import LOG_DENSITY
from ensemble.likelihoods.predictive import Predictive
from ensemble.methods import training
from ensemble.methods.chain_report import PosteriorReport, mean
from ensemble.methods.log_density import check_posterior
from ensemble.methods.optimizers import Descent
from ensemble.methods.start import given_starts
from ensemble.notes import note
from ensemble.runtime.algorithm import Keep, Start, Stream
from ensemble.runtime.loop import Period
from ensemble.runtime.method import Method, Report
from ensemble.runtime.predict import draw_scalars
from ensemble.tasks.supervised import Supervised

_MEMORY = 0.99  # Of the squared gradients, at each step; RMSprop's.
_LEAST_ROOT = 0.1  # In means over the parameters: what is hardly ever moved is not moved far.
_KINETIC = "kinetic"
_RATE = "step_size"
_HOT = 1.1
"""Temperature of the draws above which a note says so."""


class Timetable(NamedTuple):
    """Equal cycles of steps: first those that leave no draws, then one draw in so many steps.

    Attributes:
        num_burn_in: Steps of a cycle before those that lead to draws.
        num_samples: Draws of a cycle.
        steps_per_draw: Steps from one draw to the next.
        num_cycles: Cycles of the run.
        schedule: `config.sgmcmc.schedule`.
        peak: Largest learning rate.
    """

    num_burn_in: int
    num_samples: int
    steps_per_draw: int
    num_cycles: int
    schedule: str = "constant"
    peak: float = 0.0

    @property
    def cycle_steps(self) -> int:
        """Steps of a cycle."""
        return self.num_burn_in + self.num_samples * self.steps_per_draw

    @property
    def num_steps(self) -> int:
        """Steps of a run."""
        return self.num_cycles * self.cycle_steps

    def draws_before(self, step):
        """Returns the draws that a chain has taken after so many steps, traced or not."""
        cycle = step // self.cycle_steps
        within = step % self.cycle_steps
        passed = (within - self.num_burn_in) * (within > self.num_burn_in)
        return cycle * self.num_samples + passed // self.steps_per_draw

    def learning_rate(self, step) -> Array:
        """Returns what the gradient of the mean loss is multiplied by in a step, counted from 0.

        A cyclical schedule falls by a cosine in every cycle and begins the next at the top.
        """
        if self.schedule == "cyclical":
            share = (step % self.cycle_steps) / self.cycle_steps
            return self.peak / 2 * (1 + jnp.cos(math.pi * share))
        return jnp.full(jnp.shape(step), self.peak, jnp.float32)

    def is_noisy(self, step) -> Array:
        """Returns whether a step adds noise; without it a step descends.

        The steps of a cycle that leave no draws have none (Zhang et al. 2020, arXiv:1902.03932).
        """
        within = jnp.asarray(step) % self.cycle_steps
        return (within >= self.num_burn_in) | (self.schedule != "cyclical")


def timetable(config: Config) -> Timetable:
    """Returns the timetable of a configuration."""
    return Timetable(**pytrees.without(config.sgmcmc, "preconditioner"), peak=config.learning_rate)


class LangevinState(NamedTuple):
    """State of the optimiser.

    Attributes:
        num_steps: taken.
        rng_key: data of the chain's key, [2] uint32; step t draws from `fold_in(rng_key, t)`.
        momentum: as the parameters.
        squares: running mean of squared gradients, as the parameters; None without preconditioner.
        kinetic: [] mean of p^2 / M over the parameters, before noise was added; 1 is expected.
    """

    num_steps: Array
    rng_key: Array
    momentum: Any
    squares: Any
    kinetic: Array


def langevin(
    learning_rate: optax.Schedule,
    is_noisy: Callable,
    num_examples: int,
    decay: float,
    num_adapting: int,
) -> optax.GradientTransformation:
    """Makes the transformation; `create` seeds its noise.

    Args:
        learning_rate: eta by step.
        is_noisy: whether a step adds noise.
        num_examples: N; gradients are those of U / N.
        decay: c, the share of the momentum that a step keeps.
        num_adapting: steps that adapt the mass, of the root of the mean squared gradient (Li et
            al. 2016, arXiv:1512.07666, without the term of its changes, for then it is frozen); 0
            for a mass of 1.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return LangevinState(
            num_steps=jnp.zeros((), jnp.int32),
            rng_key=random.key_data(random.key(0)),
            momentum=zeros,
            squares=zeros if num_adapting else None,
            kinetic=jnp.zeros(()),
        )

    def update(grads, state, params=None):
        count = state.num_steps
        squares = state.squares
        if num_adapting:
            share = jnp.where(count < num_adapting, 1 - _MEMORY, 0.0)
            squares = jax.tree.map(lambda v, g: v + share * (g**2 - v), squares, grads)
        mass = masses(squares, grads)
        size = jnp.sqrt(2 * learning_rate(count) / (num_examples * (1 + decay)))
        moved = jax.tree.map(lambda p, g: p - size * num_examples * g, state.momentum, grads)
        rng_key = random.fold_in(random.wrap_key_data(state.rng_key), count)
        noise = pytrees.standard_normal(rng_key, grads)
        scale = jnp.sqrt(1 - decay**2) * is_noisy(count)
        momentum = jax.tree.map(
            lambda p, m, xi: decay * p + scale * jnp.sqrt(m) * xi, moved, mass, noise
        )
        updates = jax.tree.map(
            lambda before, after, m: size / 2 * (before + after) / m, moved, momentum, mass
        )
        energies = jax.tree.map(lambda p, m: jnp.sum(p**2 / m), moved, mass)
        kinetic = jax.tree.reduce(jnp.add, energies) / pytrees.size(grads)
        return updates, LangevinState(count + 1, state.rng_key, momentum, squares, kinetic)

    return optax.GradientTransformation(init, update)


def _share_kept(config: Config):
    """Returns the share of the momentum that a step keeps."""
    return float(config.get("momentum", 0.0))


def masses(squares, params):
    """Returns the mass of every parameter, 1 on average, from mean squares; None: 1 each."""
    if squares is None:
        return jax.tree.map(jnp.ones_like, params)
    roots = jax.tree.map(jnp.sqrt, squares)
    size = sum(map(jnp.sum, jax.tree.leaves(roots))) / pytrees.size(roots)
    size = jnp.maximum(size, jnp.finfo(jnp.float32).tiny)
    return jax.tree.map(lambda root: (root / size + _LEAST_ROOT) / (1 + _LEAST_ROOT), roots)


def temperature(kinetic, decay: float):
    """Returns the temperature at which slow directions are drawn, by that of the momentum.

    Noise that a step adds to p before the noise xi moves x by (1 + c)/2 of what xi does in size.

    Args:
        kinetic: the mean of `LangevinState.kinetic`.
        decay: c.
    """
    return 1 + (kinetic - 1) * ((1 + decay) / 2) ** 2


class LangevinChain(NamedTuple):
    """A chain.

    Attributes:
        moving: The descent with noise.
        energy: Sum of the losses of the steps since the last draw, [] nats.
    """

    moving: Any
    energy: Array


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The task has no posterior, or does not fit the memory.
    """
    check_posterior(task)
    own = training.with_own_keys(config)
    times = timetable(config)
    number = task.num_train_examples
    num_adapting = times.num_burn_in * (config.sgmcmc.preconditioner != "none")
    schedule = times.learning_rate
    optimizer = langevin(schedule, times.is_noisy, number, _share_kept(config), num_adapting)

    def seed(state, rng_key):
        noise_key = random.fold_in(rng_key, Stream.DESCENT)
        return state._replace(rng_key=random.key_data(noise_key))

    epochs = training.Epochs.of(config, number)
    report = LangevinReport(config, task)

    def algorithm(devices, numbers):
        how = Descent(schedule, optimizer, seed)
        found = training.descending(own, task, devices, numbers, times.num_steps, how)

        def started(now, batch):
            return LangevinChain(found.init(now, batch), jnp.float32(0))

        def moved(now, chain, batch):
            moving, info = found.step(now, chain.moving, batch)
            # The steps that a draw is about are those since the one before, or since the burn-in.
            within = now.step % times.cycle_steps - times.num_burn_in
            place = jnp.where(within < 0, 0, within % times.steps_per_draw)
            energy = jnp.where(place == 0, 0.0, chain.energy) + info.scalars["loss"]
            scalars = {
                **info.scalars,
                LOG_DENSITY: -number * energy / (place + 1),
                _KINETIC: moving.optimizer.kinetic,
                _RATE: jnp.float32(schedule(now.step)),
            }
            return LangevinChain(moving, energy), info._replace(scalars=scalars, rows=None)

        def parameters(now, chain):
            return {"params": pytrees.at(chain.moving.variables["params"], None)}

        return found._replace(
            init=started,
            step=moved,
            parameters=parameters,
            keep=Keep(times.draws_before, times.steps_per_draw, only_rows=True),
            together=None,
            start=partial(_start, config, task),
        )

    cycle = {"the length of a cycle": (times.cycle_steps, "config.sgmcmc.num_samples")}
    return Method(
        config=config,
        task=task,
        num_members=config.num_chains,
        place=partial(training.spread, config, task),
        algorithm=algorithm,
        report=report,
        steps_per_epoch=epochs.steps,
        examples_before=epochs.examples_before,
        tracked_split=report.split,
        facts=cycle if times.schedule == "cyclical" else {},
    )


def _start(config, task: Supervised) -> Start:
    """Draws from the prior, or reads members of another run."""
    if config.init_from == PRIOR:
        key = random.key(config.seed)
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

    charts: ClassVar = {
        "log density": "posterior/chain_[0-9]+/log_density",
        "temperature": "posterior/chain_[0-9]+/temperature",
    }

    def __init__(self, config, task: Supervised):
        super().__init__(config, task, f"lower config.learning_rate={config.learning_rate}", 0)
        progress = task.likelihood.progress
        number = task.num_train_examples
        decay = _share_kept(config)
        self.series = {
            "log_density": ("loss", lambda losses: -number * mean(losses)),
            progress: (progress, mean),
            "temperature": (_KINETIC, lambda kinetic: temperature(mean(kinetic), decay)),
        }

    def scalars(self, run, period: Period) -> dict:
        """Returns means over steps, the temperature of the last draw, and the learning rate."""
        scalars = dict(period.scalars)
        kinetic = scalars.pop(_KINETIC)
        rate = float(scalars[_RATE][-1, 0])
        for step in run.algorithm.keep.steps(period.first, period.end)[-1:]:
            scalars[_KINETIC] = kinetic[step - period.first][None]
        found = super().scalars(run, period._replace(scalars=scalars))
        return {**found, "train/learning_rate": rate}

    def recorded(self, run, period: Period) -> dict[str, np.ndarray]:
        """Returns what is recorded of each draw, with the scores of its predictions."""
        rows = np.array(run.algorithm.keep.steps(period.first, period.end), int) - period.first
        found = {name: period.scalars[name][rows] for name in (LOG_DENSITY, _KINETIC, _RATE)}
        if self.split is None or not len(rows):
            return found
        targets = self.task.dataset.targets(self.split)
        how = targets, np.ones(len(targets), bool)
        scores = []
        for i in range(len(rows)):
            predicted = self.predict_set(pytrees.at(period.kept, np.s_[i, :, 0]), self.split)
            scores.append(draw_scalars(self.task.likelihood, self.tracked_rows, predicted, *how))
        return found | jax.tree.map(lambda *each: np.stack(each), *scores)

    def has_predictions(self, run) -> bool:
        """Returns True: before the first draw the parameters predict as they are."""
        return True

    def predictions(self, run, split: str) -> Predictive:
        """Returns predictions of a split by the draws so far."""
        if super().has_predictions(run):
            return super().predictions(run, split)
        return Report.predictions(self, run, split)

    def posterior(self, run) -> dict:
        """Returns temperatures and steps; notes draws of another temperature.

        `kinetic_temperature` is the mean temperature of momenta at the draws, and
        `draw_temperature` what the noise of the gradients makes of it for the draws.
        """
        config = self.config
        counted, _ = self.drawn(run)
        kinetic = float(counted[_KINETIC].mean())
        heat = temperature(kinetic, _share_kept(config))
        if heat > _HOT:
            note(
                f"The draws have a temperature of {heat:.2f}, which should be 1: lower "
                f"config.learning_rate={config.learning_rate:g} in a new workdir, with more steps."
            )
        return {
            "kinetic_temperature": kinetic,
            "draw_temperature": heat,
            "learning_rate": float(counted[_RATE][0, -1]),
            "num_steps": run.goal * config.num_chains,
            "remedy": "Raise config.sgmcmc.num_samples (cyclical: num_cycles), or in a new workdir "
            "config.sgmcmc.steps_per_draw or num_burn_in.",
        }
