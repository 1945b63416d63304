"""The optax transform of a configuration."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax

from ensemble import registry
from ensemble.errors import UserError, in_one_line, in_own_code
from ensemble.notes import note
from ensemble.tenants import Tenants


class Descent(NamedTuple):
    """How members descend.

    Attributes:
        learning_rate: by step, as it is reported.
        optimizer: that turns gradients of the mean loss into steps.
        seed: of a descent that is not the same for all members: `(fresh state of the optimiser, a
            member's key) -> state`.
        own: what else differs by member, as `make_objective` takes it, by a member's key; None:
            nothing, and members that share batches see them augmented alike.
    """

    learning_rate: optax.Schedule
    optimizer: optax.GradientTransformation
    seed: Callable[[Any, jax.Array], Any] | None = None
    own: Callable[[jax.Array], dict[str, jax.Array]] | None = None


def learning_rate_schedule(
    config: ml_collections.FrozenConfigDict, num_steps: int
) -> optax.Schedule:
    """Returns the learning rate as a function of the step, over a horizon of `num_steps`.

    Raises:
        UserError: somebody's schedule fails, or is none.
    """
    tenants, name = registry.SCHEDULES, config.schedule
    found: optax.Schedule = registry.called(tenants, name, tenants[name].factory, config, num_steps)
    if not callable(found):
        raise registry.made_none(tenants, name, "a function of the step")
    return found


def check_descent(
    config: ml_collections.FrozenConfigDict, descent: Descent, shapes: Callable[[], Any]
) -> None:
    """Refuses somebody's schedule or optimizer that a compiled step cannot have.

    Args:
        config: of the run; methods with a descent of their own have neither key.
        descent: how its members move.
        shapes: makes those of one network's parameters.

    Raises:
        UserError: one of them fails, or what it makes has another form.
    """
    tenants, name = registry.SCHEDULES, config.get("schedule")
    if name is not None and name not in tenants.built_in:
        step = jax.ShapeDtypeStruct((), jnp.int32)
        rate = _traced(tenants, name, descent.learning_rate, step)
        if not isinstance(rate, jax.ShapeDtypeStruct) or rate.shape:
            raise UserError(
                f"{registry.described(tenants, name)} makes {in_one_line(repr(rate), 80)} of a "
                "step, and must make a number, as optax.constant_schedule does"
            )
    name = config.get("optimizer")
    if name is not None and name not in registry.OPTIMIZERS.built_in:
        _check_steps(name, descent.optimizer, shapes())


def _check_steps(name: str, optimizer: optax.GradientTransformation, params: Any) -> None:
    """Refuses steps that are not of the form of the parameters."""
    tenants = registry.OPTIMIZERS

    def step(params: Any) -> Any:
        return optimizer.update(params, optimizer.init(params), params)[0]

    forms = [
        jax.tree.map(jnp.shape, tree) for tree in (_traced(tenants, name, step, params), params)
    ]
    if forms[0] != forms[1]:
        raise UserError(
            f"{registry.described(tenants, name)} makes steps of the form "
            f"{in_one_line(str(forms[0]), 120)}, and must make them of that of the parameters, "
            f"{in_one_line(str(forms[1]), 120)}"
        )


def _traced(tenants: Tenants[Any], name: str, function: Callable[..., Any], argument: Any) -> Any:
    """The shapes of what somebody's function makes, as a compiled program sees it.

    Raises:
        UserError: it fails.
    """
    try:
        return jax.eval_shape(function, argument)
    except UserError:
        raise
    except Exception as error:  # It is a program, and may raise anything.
        raise UserError(
            f"{registry.described(tenants, name)} failed {in_own_code(error)}; it is compiled by "
            "jax.jit, where `if` cannot ask for values: use jnp.where"
        ) from error


def constant(config: ml_collections.FrozenConfigDict, num_steps: int) -> optax.Schedule:
    """The peak at every step."""
    return optax.constant_schedule(config.learning_rate)


def cosine(config: ml_collections.FrozenConfigDict, num_steps: int) -> optax.Schedule:
    """Half a wave from the peak to zero."""
    return in_one_program(optax.cosine_decay_schedule(config.learning_rate, num_steps))


def warmup_cosine(config: ml_collections.FrozenConfigDict, num_steps: int) -> optax.Schedule:
    """The same after a rise from zero, which takes `warmup_fraction` of the steps."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=min(round(config.warmup_fraction * num_steps), num_steps - 1),
        decay_steps=num_steps,
    )
    return in_one_program(schedule)


def in_one_program(schedule: optax.Schedule) -> optax.Schedule:
    """A schedule that is one program where a rate is reported, not one for each operation.

    Within the program of a step its operations are those that they were.
    """
    return jax.jit(schedule, inline=True)


def create_optimizer(
    config: ml_collections.FrozenConfigDict,
    schedule: optax.Schedule,
    weight_decay: float | jax.Array | None = None,
) -> optax.GradientTransformation:
    """Returns `config.optimizer` with a weight decay, by default its own.

    Build it once a run: a `TrainState` carries it in its tree structure, and no two of them are
    equal.

    Raises:
        UserError: somebody's optimizer fails, or is none.
    """
    decay = config.weight_decay if weight_decay is None else weight_decay
    tenants, name = registry.OPTIMIZERS, config.optimizer
    found: optax.GradientTransformation = registry.called(
        tenants, name, tenants[name].factory, config, schedule, decay
    )
    if not (callable(getattr(found, "init", None)) and callable(getattr(found, "update", None))):
        raise registry.made_none(tenants, name, "an optax.GradientTransformation")
    if not config.get("gradient_clip"):
        return found
    return optax.chain(optax.clip_by_global_norm(config.gradient_clip), found)


def sgd(
    config: ml_collections.FrozenConfigDict, learning_rate: optax.Schedule, weight_decay: Any
) -> optax.GradientTransformation:
    """SGD with momentum; the decay is L2, added to the gradient."""
    descent = optax.sgd(learning_rate, momentum=config.momentum)
    return optax.chain(optax.add_decayed_weights(weight_decay), descent)


def adam(
    config: ml_collections.FrozenConfigDict, learning_rate: optax.Schedule, weight_decay: Any
) -> optax.GradientTransformation:
    """Adam; the decay is L2, added to the gradient."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate))


def adamw(
    config: ml_collections.FrozenConfigDict, learning_rate: optax.Schedule, weight_decay: Any
) -> optax.GradientTransformation:
    """Adam with a decay that is decoupled from the gradient."""
    return optax.adamw(learning_rate, weight_decay=weight_decay)


def create_descent(config: ml_collections.FrozenConfigDict, num_steps: int) -> Descent:
    """Returns what a configuration says, over a horizon of `num_steps`."""
    schedule = learning_rate_schedule(config, num_steps)
    return Descent(schedule, create_optimizer(config, schedule))


def say_what_stretching_does(
    config: ml_collections.FrozenConfigDict,
    counters: Mapping[str, int],
    learning_rate: optax.Schedule,
    last_step: int,
) -> None:
    """Says that the learning rate rises where a schedule is stretched to more steps.

    Args:
        config: of the run.
        counters: of its checkpoint.
        learning_rate: by step, from now on.
        last_step: of the schedule from now on.
    """
    step, was = counters["step"], counters["last_step"]
    before = float(learning_rate_schedule(config, was)(max(step - 1, 0)))
    after = float(learning_rate(step))
    if after > before:
        note(
            f"The schedule {config.schedule!r} is stretched from {was} to {last_step} steps, so at "
            f"step {step} the learning rate goes from {before:.3g} up to {after:.3g}; the result "
            f"is not that of one run of {last_step} steps."
        )
