"""Schedules over the whole horizon, and the two kinds of weight decay."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_parts import validated

from ensemble.methods.members.optimizers import create_optimizer, learning_rate_schedule


def schedule(num_steps=100, **overrides):
    config = validated({"num_steps": num_steps, "learning_rate": 0.4, **overrides})
    return learning_rate_schedule(config, num_steps)


def test_schedules():
    assert schedule()(77) == 0.4
    cosine = schedule(schedule="cosine")
    np.testing.assert_allclose([cosine(s) for s in (0, 50, 100)], [0.4, 0.2, 0], atol=1e-7)
    warmup = schedule(schedule="warmup_cosine", warmup_fraction=0.1)
    np.testing.assert_allclose(
        [warmup(s) for s in (0, 5, 10, 55, 100)], [0, 0.2, 0.4, 0.2, 0], atol=1e-7
    )


def one_step(gradient=0.0, **overrides):
    config = validated({"num_steps": 1, "learning_rate": 0.1, **overrides})
    optimizer = create_optimizer(config, optax.constant_schedule(0.1))
    params = {"w": jnp.array(2.0)}
    updates, _ = optimizer.update({"w": jnp.array(gradient)}, optimizer.init(params), params)
    return float(updates["w"])


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [
        ("sgd", -0.1 * (1.0 + 0.5 * 2.0)),  # In the gradient.
        ("adam", -0.1),  # In the gradient, which adam normalises.
        ("adamw", -0.1 * (1.0 + 0.5 * 2.0)),  # Beside the normalised gradient.
    ],
)
def test_weight_decay(optimizer, step):
    assert one_step(1.0, optimizer=optimizer, weight_decay=0.5) == pytest.approx(step, rel=1e-4)
    assert one_step(0.0, optimizer=optimizer) == pytest.approx(0.0, abs=1e-9)
