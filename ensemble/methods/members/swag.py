"""The method `swag`: draws from a normal distribution that is fitted to a member's last iterates.

Maddox, Garipov, Izmailov, Vetrov and Wilson, "A simple baseline for Bayesian uncertainty in deep
learning" (2019), arXiv:1902.02476. A member descends at a constant rate at its end; the mean of
its iterates, their variances and their deviations from the running mean make a normal distribution
of low rank and a diagonal, of which sets of variables are drawn. Several members are MultiSWAG
(Wilson and Izmailov 2020, arXiv:2002.08791).
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ensemble.errors import UserError
from ensemble.fitted import Fitted, OnDisk
from ensemble.methods.members.engine import Engine, EngineState
from ensemble.methods.members.engine_method import duration
from ensemble.methods.members.member import Stream
from ensemble.methods.members.optimizers import Descent, create_optimizer, in_one_program
from ensemble.methods.members.several_sets import SetsState, SeveralSets, fitted_sets
from ensemble.sharding import processes

_NOUN = "draw"
_DEVIATIONS = jnp.bfloat16
"""The type of deviations: half the bytes, and predictions keep four digits."""
_MIN_BATCHES = 100
"""In which batch statistics of a draw settle, at least: Flax's forget 1% of themselves in each."""


class SWAG(SeveralSets):
    """Descent, and draws from the normal distribution of its last iterates.

    The arguments are those of `EngineMethod`.

    Raises:
        UserError: the data do not suit it, or it takes too many steps, or too few to collect.
    """

    set_noun = _NOUN
    length = "the iterates"

    @property
    def num_kept(self) -> int:
        """The mean, the variances, deviations in half the bytes, and the draws."""
        return 2 + -(-self.config.swag.num_iterates // 2) + int(self.config.swag.num_draws)

    @functools.cached_property
    def stops(self) -> list[int]:
        """The steps whose iterates are collected."""
        num_steps, swag = self.engine.num_steps, self.config.swag
        start = first_collected(num_steps, swag.fraction)
        return [
            start + math.ceil((i + 1) * (num_steps - start) / swag.num_iterates)
            for i in range(swag.num_iterates)
        ]

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """The engine of members whose learning rate falls, and is constant at the end."""
        config, swag = self.config, self.config.swag
        num_steps = duration(config, self.task)
        start = first_collected(num_steps, swag.fraction)
        if num_steps - start < swag.num_iterates:
            raise UserError(
                f"config.swag.num_iterates={swag.num_iterates} iterates need as many steps, and "
                f"the last {swag.fraction:.0%} of this run are {num_steps - start}; lower it, or "
                "raise config.num_epochs"
            )
        schedule = falling_then_constant(config.learning_rate, swag.rate, start)
        descent = Descent(schedule, create_optimizer(config, schedule))
        return self._engine_of(descent, num_steps, others)

    def _engine_of(
        self, descent: Descent, num_steps: int, others: Mapping[str, int] | None
    ) -> Engine:
        config, task = self.config, self.task
        devices = processes.devices(config.num_devices)
        return Engine(config, task, devices, config.ensemble_size, num_steps, descent, others)

    def taken_at(self, state: SetsState) -> SetsState:
        """Collects an iterate; after the last one makes the draws, and leaves the moments."""
        number = self.stops.index(state.step)
        params = state.members.members.params
        if not state.moments:
            state = state._replace(moments=_no_moments(params, len(self.stops)))
        moments = _collect(state.moments, params, number)
        if number + 1 < len(self.stops):
            return state._replace(moments=moments)
        return state._replace(taken=self._draws(state.members, moments), moments={})

    def _draws(self, state: EngineState, moments: dict[str, Any]) -> dict[str, Any]:
        """Sets [num_places, ...] of variables by their names, each with statistics of its own."""
        found = {}
        for k in range(self.config.swag.num_draws):
            params = _draw(moments, state.members.rng_key, k)
            found[f"draw_{k:04d}"] = self._with_statistics(state, params)
        return found

    def _with_statistics(self, state: EngineState, params: Any) -> Any:
        """Variables with these parameters, whose batch statistics are of training batches."""
        if not self.task.traits.has_state:
            return {"params": params}
        engine = self._at_rest
        state_of = jax.tree.map(jnp.copy, state.members.model_state)
        opt_state = jax.jit(jax.vmap(engine.descent.optimizer.init))(params)
        members = state.members.replace(
            params=params,
            model_state=state_of,
            tx=engine.descent.optimizer,
            opt_state=opt_state,
            # Programs take the buffers of what they are given.
            **{name: jnp.copy(getattr(state.members, name)) for name in ("step", "status")},
            rng_key=jax.random.clone(state.members.rng_key),
        )
        moved = EngineState(members, 0)
        while not engine.finished(moved):
            moved, _ = engine.advance(moved)
        return dict(moved.members.variables)

    @functools.cached_property
    def _at_rest(self) -> Engine:
        """An engine that moves statistics and no parameters."""
        num_steps = max(self.steps_per_epoch, _MIN_BATCHES)
        others = None
        if self.indices[0]:
            others = {"num_members": self.indices[0], "step": num_steps}
        descent = Descent(optax.constant_schedule(0.0), optax.set_to_zero())
        return self._engine_of(descent, num_steps, others)


def first_collected(num_steps: int, fraction: float) -> int:
    """The step after which iterates are collected."""
    return num_steps - round(fraction * num_steps)


def falling_then_constant(peak: float, share: float, num_falling: int) -> optax.Schedule:
    """A learning rate by step: half a cosine from the peak to a share of it, which it keeps."""
    return in_one_program(optax.cosine_decay_schedule(peak, max(num_falling, 1), alpha=share))


def _no_moments(params: Any, num_iterates: int) -> dict[str, Any]:
    """Zeros for the moments of parameters [num_places, ...]."""

    def deviations(leaf: jax.Array) -> jax.Array:
        shape = (len(leaf), num_iterates, *leaf.shape[1:])
        return jnp.zeros(shape, _DEVIATIONS, device=leaf.sharding)

    zeros = jax.tree.map(jnp.zeros_like, params)
    return {
        "mean": zeros,
        "squares": jax.tree.map(jnp.copy, zeros),
        "deviations": jax.tree.map(deviations, params),
    }


@functools.partial(jax.jit, donate_argnums=(0,))
def _collect(moments: dict[str, Any], params: Any, number: Any) -> dict[str, Any]:
    """Moments with one iterate more.

    Args:
        moments: `mean` and `squares`, the sum of squared deviations from it, [num_places, ...]; and
            `deviations` [num_places, T, ...] of each iterate from the mean up to it, in half the
            bytes.
        params: the iterate.
        number: of the iterate, from 0.
    """
    off = jax.tree.map(jnp.subtract, params, moments["mean"])
    mean = jax.tree.map(lambda m, d: m + d / (number + 1), moments["mean"], off)
    deviations = jax.tree.map(jnp.subtract, params, mean)
    squares = jax.tree.map(lambda s, a, b: s + a * b, moments["squares"], off, deviations)
    return {
        "mean": mean,
        "squares": squares,
        "deviations": jax.tree.map(
            lambda all_of, one: all_of.at[:, number].set(one.astype(all_of.dtype)),
            moments["deviations"],
            deviations,
        ),
    }


@jax.jit
def _draw(moments: dict[str, Any], rng_keys: jax.Array, number: Any) -> Any:
    """Parameters [num_places, ...] of a draw, by the keys [num_places] of members."""

    def of_member(moments: dict[str, Any], rng_key: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.fold_in(rng_key, Stream.DRAWS), number)
        leaves = jax.tree.leaves(moments["mean"])
        squares = jax.tree.leaves(moments["squares"])
        deviations = jax.tree.leaves(moments["deviations"])
        num_iterates = len(deviations[0])
        weights = jax.random.normal(jax.random.fold_in(key, len(leaves)), (num_iterates,))
        drawn = []
        for i, (mean, square, deviation) in enumerate(
            zip(leaves, squares, deviations, strict=True)
        ):
            sd = jnp.sqrt(jnp.maximum(square, 0) / num_iterates)
            own = sd * jax.random.normal(jax.random.fold_in(key, i), mean.shape, mean.dtype)
            common = jnp.tensordot(weights, deviation.astype(mean.dtype), 1)
            spread = own + common / math.sqrt(num_iterates - 1)
            drawn.append(mean + spread / math.sqrt(2))
        return jax.tree.unflatten(jax.tree.structure(moments["mean"]), drawn)

    return jax.vmap(of_member)(moments, rng_keys)


def fitted(saved: OnDisk) -> Fitted:
    """The draws of members that are on disk: see `ensemble.entries.MethodEntry`."""
    return fitted_sets(saved, _NOUN)
