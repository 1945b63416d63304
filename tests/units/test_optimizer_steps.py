"""Optimizers and schedules: against the written formulas, and on a bowl of three dimensions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ensemble.config import builtin, checked
from ensemble.methods.optimizers import create_optimizer, learning_rate_schedule

LOWEST = np.array([1.0, -2.0, 0.5], np.float32)


def optimizer_of(name, rate=0.02, weight_decay=0.0):
    config = checked({"num_steps": 400, "optimizer": name, "learning_rate": 0.02})
    return create_optimizer(config, optax.constant_schedule(rate), weight_decay)


def descend(name, start, num_steps):
    """Parameters after some steps down half the squared distance to the lowest point."""
    optimizer = optimizer_of(name)

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(params - LOWEST, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (start, optimizer.init(start)), length=num_steps)[0][0]


def update(name, gradient, rate=0.02, weight_decay=0.0):
    """The first step, at the lowest point."""
    optimizer = optimizer_of(name, rate, weight_decay)
    params = jnp.asarray(LOWEST)
    return optimizer.update(gradient, optimizer.init(params), params)[0]


@pytest.mark.parametrize("name", builtin.OPTIMIZERS.names)
def test_steps_go_down_by_the_rate_and_members_move_as_each_alone(name):
    np.testing.assert_allclose(descend(name, jnp.zeros(3), 400), LOWEST, atol=0.05)
    gradient = jnp.asarray([1.0, -3.0, 0.5])
    np.testing.assert_array_equal(update(name, 0 * gradient), 0)
    np.testing.assert_array_equal(update(name, gradient, rate=0.0), 0)
    expected = -0.02 * (gradient if name == "sgd" else np.sign(gradient))
    np.testing.assert_allclose(update(name, gradient), expected, rtol=1e-4)
    decayed = jax.jit(lambda decay: update(name, 0 * gradient, weight_decay=decay))(0.5)
    assert (np.sign(decayed) == -np.sign(LOWEST)).all()
    starts = jax.random.normal(jax.random.key(0), (4, 3))
    together = jax.vmap(lambda start: descend(name, start, 20))(starts)
    for k in range(4):
        alone = descend(name, starts[k], 20)
        np.testing.assert_allclose(together[k], alone, rtol=1e-5, atol=1e-6)


def expected_rate(name, step, num_steps):
    """The rate of a peak of 0.3, with a twentieth of the steps to warm up where there are any."""
    config = checked({"num_steps": num_steps, "lr_schedule": name, "learning_rate": 0.3})
    warmup = round(config.lr_warmup_fraction * num_steps) if name == "warmup_cosine" else 0
    if name == "constant":
        return 0.3
    if step < warmup:
        return 0.3 * step / warmup
    return 0.15 * (1 + math.cos(math.pi * min(1, (step - warmup) / max(1, num_steps - warmup))))


@pytest.mark.parametrize("name", builtin.SCHEDULES.names)
@pytest.mark.parametrize("num_steps", [1, 2, 10, 200])
def test_rates_follow_their_formula_over_any_horizon(name, num_steps):
    config = checked({"num_steps": num_steps, "lr_schedule": name, "learning_rate": 0.3})
    schedule = learning_rate_schedule(config, num_steps)
    steps = np.arange(num_steps + 3)
    found = np.array([schedule(step) for step in steps])
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert found.max() == pytest.approx(0.3, rel=0.05) or num_steps < 10
    expected = [expected_rate(name, step, num_steps) for step in steps]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(steps), expected, rtol=1e-5, atol=1e-7)
