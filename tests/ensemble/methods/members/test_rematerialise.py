"""Gradients that keep few activations: the same numbers, in less memory."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.methods.members.rematerialise import COMPILER_OPTIONS, rematerialised


class Residual(nn.Module):
    """Blocks that keep much more within them than between them, with dropout."""

    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            h = nn.gelu(nn.Dense(128)(nn.LayerNorm()(x)))
            x = x + nn.Dense(16)(nn.Dropout(0.1, deterministic=False)(h))
        return nn.Dense(1)(x)


@pytest.mark.check
def test_gradients_are_the_same_and_take_less_memory():
    module, key = Residual(), jax.random.key(1)
    x = np.random.default_rng(0).normal(size=(256, 16)).astype(np.float32)
    params = module.init({"params": key, "dropout": key}, x)

    def loss(params, x, key):
        outputs = module.apply(params, x, rngs={"dropout": key})
        return jnp.mean(outputs**2), {"outputs": outputs, "count": 3}

    compiled = [
        jax.jit(jax.grad(one, has_aux=True), compiler_options=COMPILER_OPTIONS["cpu"])
        .lower(params, x, key)
        .compile()
        for one in (loss, rematerialised(loss))
    ]
    plain, less = (one(params, x, key) for one in compiled)
    for expected, found in zip(jax.tree.leaves(plain), jax.tree.leaves(less), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    before, after = (one.memory_analysis().temp_size_in_bytes for one in compiled)
    assert after < 0.7 * before


def test_a_function_of_few_operations_is_left_as_it_is():
    gradient = jax.grad(rematerialised(lambda x: jnp.sum(x**3)))
    np.testing.assert_allclose(gradient(jnp.arange(3.0)), 3 * np.arange(3.0) ** 2)
