"""The contract of optimisers, over all values of `config.optimizer`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_parts import validated

from ensemble.methods.members.optimizers import create_optimizer
from ensemble.registry import OPTIMIZERS

TARGET = jnp.array([1.0, -2.0, 0.5])


def loss_of(params):
    return 0.5 * jnp.sum(jnp.square(params["w"] - TARGET))


@pytest.fixture(params=[*OPTIMIZERS.built_in])
def optimizer(request):
    config = validated({"num_steps": 400, "learning_rate": 0.02, "optimizer": request.param})
    return create_optimizer(config, optax.constant_schedule(0.02))


def descend(optimizer, params, num_steps=400):
    """The parameters after some steps down `loss_of`."""

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss_of)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=num_steps)
    return params


def test_it_descends(optimizer):
    found = descend(optimizer, {"w": jnp.zeros(3)})
    np.testing.assert_allclose(found["w"], TARGET, atol=0.05)


def test_without_a_gradient_nothing_moves(optimizer):
    params = {"w": TARGET}
    updates, _ = optimizer.update({"w": jnp.zeros(3)}, optimizer.init(params), params)
    np.testing.assert_array_equal(updates["w"], 0)


def test_members_side_by_side_move_as_each_alone(optimizer):
    starts = {"w": jax.random.normal(jax.random.key(0), (4, 3))}
    together = jax.vmap(lambda params: descend(optimizer, params, 20))(starts)
    for k in range(4):
        alone = descend(optimizer, {"w": starts["w"][k]}, 20)
        np.testing.assert_allclose(together["w"][k], alone["w"], rtol=1e-6, atol=1e-7)
