"""What every optimizer promises: steps down a slope, by the learning rate and decay it is given."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ensemble import registry
from ensemble.config_rules import validate
from ensemble.methods.members.optimizers import create_optimizer
from ensemble.testing.promises import Promise, demand, keep_all, promise

_NUM_STEPS = 400
_TARGET = {
    "kernel": np.array([[1.0, -2.0], [0.5, 1.5], [-1.0, 2.0]], np.float32),
    "bias": np.array([-0.5, 1.0], np.float32),
    "scale": np.array(0.7, np.float32),
}
"""The lowest point of the bowl that is descended; the descent starts at 0."""

Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class OptimizerCase:
    """An optimizer at a learning rate.

    Attributes:
        name: of the optimizer.
        learning_rate: of each step.
        settings: further keys of the configuration, by name.
    """

    name: str
    learning_rate: float = 0.02
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "optimizer"

    @functools.cached_property
    def config(self) -> Any:
        """The configuration of a run that has it."""
        own = {"optimizer": self.name, "learning_rate": self.learning_rate}
        return validate({"num_steps": _NUM_STEPS, **self.settings, **own})

    def create(self, share: float = 1.0, weight_decay: Any = 0.0) -> optax.GradientTransformation:
        """Makes it anew, with a share of the learning rate and a weight decay."""
        schedule = optax.constant_schedule(share * self.learning_rate)
        return create_optimizer(self.config, schedule, weight_decay)

    def descend(self, start: Params, num_steps: int = _NUM_STEPS) -> Params:
        """The parameters after some steps down the bowl."""
        optimizer = self.create()

        def step(carry: Any, _: None) -> tuple[Any, None]:
            params, state = carry
            updates, state = optimizer.update(jax.grad(_loss)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        found: Params
        (found, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=num_steps)
        return found


def check_optimizer(name: str, learning_rate: float = 0.02, **settings: Any) -> None:
    """Checks what every optimizer promises, on a bowl of nine dimensions.

    Args:
        name: of an optimizer that is built in, registered or installed.
        learning_rate: with which 400 steps lead from 0 to a target whose largest coordinate is 2.
        **settings: further keys of the configuration, such as `momentum`.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is no such optimizer, or the settings cannot stand.
    """
    registry.find("optimizer", name)
    case = OptimizerCase(name, learning_rate, settings)
    _ = case.config  # Refuses settings that cannot stand.
    keep_all(PROMISES, case)


def _loss(params: Params) -> jax.Array:
    squares = jax.tree.map(lambda one, target: jnp.sum(jnp.square(one - target)), params, _TARGET)
    return 0.5 * jax.tree.reduce(jnp.add, squares)


def _start() -> Params:
    return jax.tree.map(jnp.zeros_like, _TARGET)


def _forms(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)


def _one_update(optimizer: optax.GradientTransformation, gradients: Any) -> Params:
    """What the first step adds to parameters at the target."""
    params = jax.tree.map(jnp.asarray, _TARGET)
    return optimizer.update(gradients, optimizer.init(params), params)[0]


_FOUND: list[Promise] = []


@promise(_FOUND, "init and update: they keep types and shapes, and hold arrays alone")
def steps_have_the_form_of_parameters(case: OptimizerCase) -> None:
    """A step has the form of the parameters, and the state keeps its own."""
    optimizer = case.create()
    params = jax.tree.map(jnp.asarray, _TARGET)
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, params, state, params)
    for what, found, wanted in (("a step", updates, params), ("the state", after, state)):
        told = f"{what} has the form {_forms(found)}, not {_forms(wanted)}"
        demand(_forms(found) == _forms(wanted), told)


@promise(_FOUND, "the sign of the steps, and learning_rate of the check")
def it_descends(case: OptimizerCase) -> None:
    """400 steps lower the loss on a bowl to less than a hundredth of it."""
    first, last = float(_loss(_start())), float(_loss(case.descend(_start())))
    demand(last < 0.01 * first, f"the loss went from {first:.3g} to {last:.3g}")


@promise(_FOUND, "a division by the norm of the gradient, or noise")
def without_a_gradient_nothing_moves(case: OptimizerCase) -> None:
    """Nothing moves where the gradient is 0 and there is no weight decay."""
    updates = _one_update(case.create(), _start())
    jax.tree.map(lambda one: np.testing.assert_array_equal(one, 0), updates)


@promise(_FOUND, "learning_rate of the factory: the steps are multiplied by it")
def the_learning_rate_is_heeded(case: OptimizerCase) -> None:
    """Nothing moves where the schedule says 0; something does where it does not."""
    gradients = jax.tree.map(jnp.ones_like, _TARGET)
    still, moved = (_one_update(case.create(share), gradients) for share in (0.0, 1.0))
    jax.tree.map(lambda one: np.testing.assert_array_equal(one, 0), still)
    demand(all(np.all(one != 0) for one in jax.tree.leaves(moved)), "nothing moves at all")


@promise(_FOUND, "weight_decay of the factory: which is no setting, and no condition of an if")
def a_weight_decay_that_is_traced_shrinks_parameters(case: OptimizerCase) -> None:
    """A weight decay, which may be a traced number, moves parameters towards 0."""
    updates = jax.jit(lambda decay: _one_update(case.create(1.0, decay), _start()))(0.5)
    for name, target in _TARGET.items():
        told = f"at {target} the step is {updates[name]}"
        demand(np.all(np.sign(updates[name]) == -np.sign(target)), told)


@promise(_FOUND, "what the factory shares between members, or a state outside of the state")
def members_side_by_side_move_as_each_alone(case: OptimizerCase) -> None:
    """Members that are mapped side by side move as each does alone."""
    keys = jax.random.split(jax.random.key(0), len(_TARGET))
    starts = {
        name: jax.random.normal(key, (4, *one.shape))
        for key, (name, one) in zip(keys, _TARGET.items(), strict=True)
    }
    together = jax.vmap(lambda params: case.descend(params, 20))(starts)
    for k in range(4):
        alone = case.descend({name: one[k] for name, one in starts.items()}, 20)
        for name, one in together.items():
            np.testing.assert_allclose(one[k], alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


@promise(_FOUND, "numbers that come from elsewhere than the arguments: a clock, NumPy's generator")
def it_takes_the_same_steps_again(case: OptimizerCase) -> None:
    """Made twice, it takes the same steps to the bit."""
    first, again = (case.descend(_start(), 20) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of optimizers, in order."""
