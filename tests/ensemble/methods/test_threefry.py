"""Keys without loops give the numbers of JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.methods.threefry import unrolled


@pytest.mark.check
@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.uniform(key),
        lambda key: jax.random.normal(key, (3, 5)),
        lambda key: jax.random.bernoulli(jax.random.split(key, 3)[2], shape=(7,)),
        lambda key: jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i)))(jnp.arange(4)),
    ],
)
def test_numbers_are_those_of_the_key(draw):
    key = jax.random.key(7)
    np.testing.assert_array_equal(draw(unrolled(key)), draw(key))


def test_keys_of_another_kind_stay_as_they_are():
    key = jax.random.key(7, impl="rbg")
    assert unrolled(key) is key
