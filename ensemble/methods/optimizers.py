"""The optax transform of a configuration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from ensemble.config import Config
from ensemble.config.builtin import OPTIMIZERS, SCHEDULES
from ensemble.errors import InputError, in_own_code


class Descent(NamedTuple):
    """Descent of members.

    Attributes:
        learning_rate: Learning rate by step, as it is reported.
        optimizer: Transform of gradients of the mean loss into steps.
        seed: Start of a descent that is not the same for all members: `(fresh state of the
            optimiser, a member's key) -> state`.
    """

    learning_rate: optax.Schedule
    optimizer: optax.GradientTransformation
    seed: Callable[[Any, jax.Array], Any] | None = None


def learning_rate_schedule(config: Config, num_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the step, over a horizon of `num_steps`.

    Raises:
        InputError: A user's schedule fails, or is none.
    """
    name = config.lr_schedule
    made: optax.Schedule = SCHEDULES.call(name, config, num_steps, has=("__call__",))
    return made


def check_descent(config: Config, descent: Descent, shapes: Callable[[], Any]) -> None:
    """Refuses a user's schedule or optimizer that a compiled step cannot have.

    Args:
        config: Configuration of the run; methods with a descent of their own have neither key.
        descent: Descent of its members.
        shapes: Returns the shapes of one network's parameters.

    Raises:
        InputError: One of them fails, or makes steps of another form than the parameters.
    """
    kinds = [kind for kind in (SCHEDULES, OPTIMIZERS) if kind.key in config]
    own = [f"config.{kind.key}={config[kind.key]}" for kind in kinds]
    if all(config[kind.key] in kind.names for kind in kinds):
        return

    def step(carry, _):
        params, state = carry
        return descent.optimizer.update(params, state, params), None

    def steps(params):
        return jax.lax.scan(step, (params, descent.optimizer.init(params)), length=1)

    params = shapes()
    try:
        jax.eval_shape(steps, params)
    except InputError:
        raise
    except Exception as error:  # It is a program, and may raise anything.
        raise InputError(
            f"{' or '.join(own)} failed {in_own_code(error)}; steps must have the form of the "
            "parameters, a state must keep its form, and `if` cannot ask for values in jax.jit"
        ) from error


def constant(config: Config, num_steps: int) -> optax.Schedule:
    """The peak at every step."""
    return optax.constant_schedule(config.learning_rate)


def cosine(config: Config, num_steps: int) -> optax.Schedule:
    """Half a wave from the peak to zero."""
    return optax.cosine_decay_schedule(config.learning_rate, num_steps)


def warmup_cosine(config: Config, num_steps: int) -> optax.Schedule:
    """The same after a rise from zero, which takes `lr_warmup_fraction` of the steps."""
    warmup_steps = min(round(config.lr_warmup_fraction * num_steps), num_steps - 1)
    return optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, warmup_steps, num_steps)


def create_optimizer(
    config: Config, schedule: optax.Schedule, weight_decay: float | jax.Array | None = None
) -> optax.GradientTransformation:
    """Returns `config.optimizer` with a weight decay, by default its own.

    Build it once a run: a `TrainState` carries it in its tree structure, and no two of them are
    equal.

    Raises:
        InputError: A user's optimizer fails, or is none.
    """
    decay = config.weight_decay if weight_decay is None else weight_decay
    made: optax.GradientTransformation = OPTIMIZERS.call(
        config.optimizer, config, schedule, decay, has=("init", "update")
    )
    if not config.get("clip_norm"):
        return made
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), made)


def sgd(
    config: Config, learning_rate: optax.Schedule, weight_decay
) -> optax.GradientTransformation:
    """SGD with momentum; the decay is L2, added to the gradient."""
    descent = optax.sgd(learning_rate, momentum=config.momentum)
    return optax.chain(optax.add_decayed_weights(weight_decay), descent)


def adam(
    config: Config, learning_rate: optax.Schedule, weight_decay
) -> optax.GradientTransformation:
    """Adam; the decay is L2, added to the gradient."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate))


def adamw(
    config: Config, learning_rate: optax.Schedule, weight_decay
) -> optax.GradientTransformation:
    """Adam with a decay that is decoupled from the gradient."""
    return optax.adamw(learning_rate, weight_decay=weight_decay)


def create_descent(config: Config, num_steps: int) -> Descent:
    """Returns the descent of a configuration, over a horizon of `num_steps`."""
    return descent_by(config, learning_rate_schedule(config, num_steps))


def descent_by(config: Config, schedule: optax.Schedule) -> Descent:
    """Returns a descent by the optimiser of a configuration, with a learning rate by step."""
    return Descent(schedule, create_optimizer(config, schedule))


def descent_of_each(config: Config, num_steps: int, *names: str) -> Descent:
    """Returns a descent in which settings are each member's own, in `hyperparams` of its state.

    Args:
        config: Configuration of the run, with the values that members start with.
        num_steps: Horizon of the schedule.
        *names: `learning_rate`, and perhaps `weight_decay`.
    """
    schedule = learning_rate_schedule(config, num_steps)

    def optimizer_of(learning_rate, weight_decay=None):
        share = learning_rate / config.learning_rate
        return create_optimizer(config, lambda count: share * schedule(count), weight_decay)

    values = {name: config[name] for name in names}
    return Descent(schedule, optax.inject_hyperparams(optimizer_of)(**values))
