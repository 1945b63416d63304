"""SWAG: draws from a normal distribution that is fitted to a member's last iterates.

Maddox, Garipov, Izmailov, Vetrov and Wilson, "A simple baseline for Bayesian uncertainty in deep
learning" (2019), arXiv:1902.02476. A member descends at a constant rate at its end; the mean of
its iterates, their variances and their deviations from the running mean make a normal distribution
of low rank and a diagonal, of which sets of variables are drawn. Several members are MultiSWAG
(Wilson and Izmailov 2020, arXiv:2002.08791).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from ensemble import pytrees
from ensemble.errors import InputError
from ensemble.fitted import Fitted, OnDisk
from ensemble.methods import training
from ensemble.methods.optimizers import descent_by, in_one_program
from ensemble.runtime import loading
from ensemble.runtime.algorithm import Algorithm, Between, Now
from ensemble.runtime.devices import Devices
from ensemble.runtime.method import Method
from ensemble.runtime.status import Status
from ensemble.runtime.streams import Stream
from ensemble.task import Learned

_DEVIATIONS = jnp.bfloat16
"""The type of deviations: half the bytes, and predictions keep four digits."""
_SHARE = 0.25
"""The share of the steps, at the end, from which iterates are collected."""
_MIN_BATCHES = 100
"""In which batch statistics of a draw settle, at least: Flax's forget 1% of themselves in each."""


class Moments(NamedTuple):
    """Moments of the iterates of one array of parameters.

    Attributes:
        mean: Their mean.
        squares: Sum of squared deviations from the mean (Welford).
        deviations: [T, ...] of each iterate from the mean up to it, in half the bytes.
    """

    mean: jax.Array
    squares: jax.Array
    deviations: jax.Array


class SWAGState(NamedTuple):
    """A descent, and the moments of the parameters that it has passed.

    Attributes:
        moving: The descent.
        moments: `Moments` of each array of parameters.
        collections: [K, ...] of each draw beside parameters; empty where there are none.
    """

    moving: Any
    moments: Any
    collections: Any


class SWAGReport(training.DescentReport):
    """What members say that predict with draws."""

    set_noun = "draw"

    def has_predictions(self, run: Any) -> bool:
        """At the end."""
        return bool(run.loop.finished)


def fitted(saved: OnDisk) -> Fitted:
    """The draws of members that are on disk."""
    return loading.fitted(saved, nouns=("member", SWAGReport.set_noun))


def create(config: ml_collections.FrozenConfigDict, task: Learned) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: There are too few steps to collect iterates.
    """
    swag = config.swag
    steps = training.num_steps(config, task)
    start = steps - round(_SHARE * steps)
    if steps - start < swag.num_iterates:
        raise InputError(
            f"config.swag.num_iterates={swag.num_iterates} iterates need as many steps, and the "
            f"last {_SHARE:.0%} of this run are {steps - start}; lower it, or raise "
            "config.num_epochs"
        )

    # Half a cosine from the peak to a share of it, which it keeps.
    falling = optax.cosine_decay_schedule(config.learning_rate, max(start, 1), swag.lr_factor)
    schedule = in_one_program(falling)
    number = swag.num_iterates
    ends = [start + math.ceil((i + 1) * (steps - start) / number) for i in range(number)]

    return training.create(
        config,
        task,
        lambda own, _: descent_by(own, schedule),
        wrap=functools.partial(draws_of_iterates, config, task, ends),
        report=SWAGReport,
        # The mean, the variances, deviations in half the bytes, and the draws.
        num_kept=2 + -(-number // 2) + config.num_draws,
        facts={"the number of steps": (steps, "config.num_epochs or config.num_steps")},
    )


class _Batches:
    """Batches in which statistics settle; they are put on the devices when they are asked for."""

    per_member = False

    def __init__(self, batches: Any, count: int):
        self._batches = batches
        self._count = count

    @property
    def fixed(self) -> Any:
        """What all steps have, and what is sent of each, [steps, ...]."""
        return self._batches.fixed, self._batches.send(0, self._count, self._count)


def draws_of_iterates(
    config: ml_collections.FrozenConfigDict,
    task: Learned,
    ends: Sequence[int],
    descent: Algorithm,
    devices: Devices,
    numbers: Sequence[int],
) -> Algorithm:
    """The same members, which predict with draws of what they pass.

    Args:
        config: Configuration of the run.
        task: What they learn.
        ends: Steps after which an iterate is collected.
        descent: Of members whose state has `variables`.
        devices: Their placement.
        numbers: Their numbers.
    """
    stops = np.array(ends)
    number = len(ends)
    num_draws = config.num_draws

    def init(now: Now, batch: Any) -> SWAGState:
        moving = descent.init(now, batch)

        def nothing(leaf: jax.Array) -> Moments:
            zeros = jnp.zeros_like(leaf)
            return Moments(zeros, zeros, jnp.zeros((number, *leaf.shape), _DEVIATIONS))

        kept = pytrees.without(moving.variables, "params")
        kept = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], num_draws, 0), kept)
        return SWAGState(moving, jax.tree.map(nothing, moving.variables["params"]), kept)

    def step(now: Now, state: SWAGState, batch: Any) -> Any:
        moving, info = descent.step(now, state.moving, batch)
        due = jnp.any(now.step + 1 == stops)
        place = jnp.sum(now.step + 1 > stops)

        def collected(leaf: jax.Array, old: Moments) -> Moments:
            off = leaf - old.mean
            mean = old.mean + off / (place + 1)
            deviation = leaf - mean
            rows = old.deviations.at[place].set(deviation.astype(_DEVIATIONS))
            return Moments(mean, old.squares + off * deviation, rows)

        params = moving.variables["params"]
        moments = state.moments
        collect = functools.partial(jax.tree.map, collected, params)
        moments = jax.lax.cond(due, collect, lambda old: old, moments)
        return SWAGState(moving, moments, state.collections), info

    def parameters(now: Now, state: SWAGState) -> Any:
        params = jax.vmap(lambda k: _drawn(now, state, k))(jnp.arange(num_draws))
        return {"params": params, **state.collections}

    def settle(now: Now, state: SWAGState, data: Any) -> tuple[SWAGState, jax.Array]:
        """Statistics of each draw, of training batches."""
        fixed, sent = data

        def of_draw(k: jax.Array) -> Any:
            params = _drawn(now, state, k)

            def one(i: jax.Array, kept: Any) -> Any:
                batch = batches.read(fixed, pytrees.at(sent, i), i)
                key = jax.random.fold_in(jax.random.fold_in(now.key, Stream.DROPOUT), i)
                variables = {"params": params, **kept}
                _, aux = task.log_likelihood(variables, batch.inputs, batch.targets, True, key)
                return aux.state

            first = pytrees.without(state.moving.variables, "params")
            return jax.lax.fori_loop(0, count, one, first)

        kept = jax.lax.map(of_draw, jnp.arange(num_draws))
        return state._replace(collections=kept), jnp.int8(Status.ACTIVE)

    between = descent.between
    if task.traits.has_state:
        # Statistics settle by batches that members share.
        own = ml_collections.FrozenConfigDict(
            {**training.with_own_keys(config), "shuffle": "shared"}
        )
        count = max(training.Epochs.of(own, task.num_train_examples).steps, _MIN_BATCHES)
        batches = training.batches(own, task, devices, numbers, count)
        rest = _Batches(batches, count)
        between += (Between(lambda step: step == ends[-1], settle, rest),)
    return descent._replace(init=init, step=step, parameters=parameters, between=between)


def _drawn(now: Now, state: SWAGState, k: jax.Array) -> Any:
    """Parameters of a draw."""
    key = jax.random.fold_in(jax.random.fold_in(now.key, Stream.DRAWS), k)
    params = state.moving.variables["params"]
    places = range(len(jax.tree.leaves(params)))
    number = jax.tree.leaves(state.moments)[-1].shape[0]  # Of deviations.
    weights = jax.random.normal(jax.random.fold_in(key, len(places)), (number,))

    def one(leaf: jax.Array, place: int, moments: Moments) -> jax.Array:
        sd = jnp.sqrt(jnp.maximum(moments.squares, 0) / number)
        own = sd * jax.random.normal(jax.random.fold_in(key, place), leaf.shape, leaf.dtype)
        common = jnp.tensordot(weights, moments.deviations.astype(leaf.dtype), 1)
        return moments.mean + (own + common / math.sqrt(number - 1)) / math.sqrt(2)

    numbers = jax.tree.unflatten(jax.tree.structure(params), places)
    return jax.tree.map(one, params, numbers, state.moments)
