"""SWAG: draws from a normal distribution that is fitted to a member's last iterates.

Maddox, Garipov, Izmailov, Vetrov and Wilson, "A simple baseline for Bayesian uncertainty in deep
learning" (2019), arXiv:1902.02476. A member descends at a constant rate at its end; the mean of
its iterates, their variances and their deviations from the running mean make a normal distribution
of low rank and a diagonal, of which sets of variables are drawn. Several members are MultiSWAG
(Wilson and Izmailov 2020, arXiv:2002.08791).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree

from ensemble import pytrees
from ensemble.config import Config
from ensemble.methods import training
from ensemble.methods.optimizers import descent_by
from ensemble.runtime.algorithm import Algorithm, Between, Now, Status, Stream
from ensemble.runtime.devices import Devices
from ensemble.runtime.method import Method
from ensemble.tasks.supervised import Supervised

_DEVIATIONS = jnp.bfloat16
"""The type of deviations: half the bytes, and predictions keep four digits."""
_SHARE = 0.25
"""The share of the steps, at the end, from which iterates are collected."""
_MIN_BATCHES = 100
"""In which batch statistics of a draw settle, at least: Flax's forget 1% of themselves in each."""


class SWAGState(NamedTuple):
    """A descent, and the moments of the parameters that it has passed, [P] side by side.

    Attributes:
        moving: The descent.
        collections: [K, ...] of each draw beside parameters; empty where there are none.
        mean: Mean of the iterates, [P].
        squares: Sum of squared deviations from the mean, [P] (Welford).
        deviations: [T, P] of each iterate from the mean up to it, in half the bytes.
    """

    moving: Any
    collections: Any
    mean: Array
    squares: Array
    deviations: Array


class SWAGReport(training.DescentReport):
    """Report of members that predict with draws."""

    predicts_at_end = True


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: There are too few steps to collect iterates.
    """
    swag, steps = config.swag, training.num_steps(config, task.num_train_examples)
    start = steps - round(_SHARE * steps)
    parts = training.divided(steps - start, "swag.num_iterates", swag.num_iterates)
    # Half a cosine from the peak to a share of it, which it keeps.
    schedule = optax.cosine_decay_schedule(config.learning_rate, max(start, 1), swag.lr_factor)
    return training.create(
        config,
        task,
        lambda own, _: descent_by(own, schedule),
        wrap=partial(draws_of_iterates, config, task, np.array(parts) + start),
        report=SWAGReport,
        facts={"the number of steps": (steps, "config.num_epochs or config.num_steps")},
    )


class _Batches:
    """Batches in which statistics settle; they are put on the devices when they are asked for."""

    def __init__(self, batches: Any, count: int):
        self._batches = batches
        self._count = count

    @property
    def fixed(self):
        """Arrays of all steps, and what is sent of each, [steps, ...]."""
        batches, count = self._batches, self._count
        return batches.fixed, batches.send(0, count, count)


def draws_of_iterates(
    config: Config,
    task: Supervised,
    ends: np.ndarray,
    descent: Algorithm,
    devices: Devices,
    numbers: Sequence[int],
) -> Algorithm:
    """The same members, which predict with draws around the iterates that they pass.

    Args:
        config: Configuration of the run.
        task: Task of the members.
        ends: Steps after which an iterate is collected.
        descent: Algorithm of members whose state has `variables`.
        devices: Their placement.
        numbers: Their numbers.
    """
    number, draws = len(ends), jnp.arange(config.num_draws)

    def init(now, batch):
        moving = descent.init(now, batch)
        zeros = jnp.zeros_like(ravel_pytree(moving.variables["params"])[0])
        kept = jax.tree.map(
            lambda leaf: jnp.repeat(leaf[None], len(draws), 0),
            pytrees.without(moving.variables, "params"),
        )
        return SWAGState(moving, kept, zeros, zeros, jnp.zeros((number, zeros.size), _DEVIATIONS))

    def step(now, state, batch):
        moving, info = descent.step(now, state.moving, batch)
        place = jnp.sum(now.step + 1 > ends)

        def collect(moments):
            mean, squares, deviations = moments
            flat = ravel_pytree(moving.variables["params"])[0]
            off = flat - mean
            mean = mean + off / (place + 1)
            deviation = flat - mean
            rows = deviations.at[place].set(deviation.astype(_DEVIATIONS))
            return mean, squares + off * deviation, rows

        due = jnp.any(now.step + 1 == ends)
        moments = lax.cond(due, collect, lambda moments: moments, state[2:])
        return SWAGState(moving, state.collections, *moments), info

    def parameters(now, state):
        params = jax.vmap(partial(_drawn, now, state))(draws)
        return {"params": params, **state.collections}

    def settle(now, state, data):
        """Statistics of each draw, of training batches."""
        fixed, sent = data

        def of_draw(k):
            params = _drawn(now, state, k)

            def one(i, kept):
                batch = batches.read(fixed, pytrees.at(sent, i), i)
                key = random.fold_in(random.fold_in(now.key, Stream.DROPOUT), i)
                variables = {"params": params, **kept}
                _, aux = task.log_likelihood(variables, batch.inputs, batch.targets, True, key)
                return aux.state

            first = pytrees.without(state.moving.variables, "params")
            return lax.fori_loop(0, count, one, first)

        kept = lax.map(of_draw, draws)
        return state._replace(collections=kept), jnp.int8(Status.ACTIVE)

    between = descent.between
    if task.traits.has_state:
        # Statistics settle by batches that members share.
        own = Config({**training.with_own_keys(config), "shuffle": "shared"})
        count = max(training.Epochs.of(own, task.num_train_examples).steps, _MIN_BATCHES)
        batches = training.batches(own, task, devices, numbers, count)
        rest = _Batches(batches, count)
        between += (Between(lambda step: step == ends[-1], settle, rest),)
    return descent._replace(init=init, step=step, parameters=parameters, between=between)


def _drawn(now: Now, state: SWAGState, k: Array):
    """Parameters of a draw."""
    key = random.fold_in(random.fold_in(now.key, Stream.DRAWS), k)
    params, number = state.moving.variables["params"], len(state.deviations)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    *own, common = [
        random.normal(random.fold_in(key, place), (size,))
        for place, size in enumerate((*sizes, number))
    ]
    sd = jnp.sqrt(jnp.maximum(state.squares, 0) / number)
    shared = common @ state.deviations.astype(sd.dtype) / math.sqrt(number - 1)
    restore = ravel_pytree(params)[1]
    return restore(state.mean + (sd * jnp.concatenate(own) + shared) / math.sqrt(2))
