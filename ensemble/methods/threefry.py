"""JAX's random numbers in a form that XLA:CPU fuses: Threefry without loops.

On CPUs JAX compiles each call of Threefry to a loop of five rounds, with some 80 small operations
to start. Where a program draws few numbers often, these take more time than the numbers. Keys of
`unrolled` give the same bits to all functions of `jax.random`, by straight code.
"""

import operator

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.extend import random as extend_random


def threefry(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Threefry-2x32 of 20 rounds, written out so that XLA:CPU fuses and vectorises it.

    Args:
        key: [2, ...] uint32.
        first: first words of the counters, uint32.
        second: second words.

    Returns:
        Two words of random bits for each counter.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    first = first + keys[0]
    second = second + keys[1]
    for i in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            first = first + second
            second = (second << np.uint32(distance)) | (second >> np.uint32(32 - distance))
            second = first ^ second
        first = first + keys[(i + 1) % 3]
        second = second + (keys[(i + 2) % 3] + np.uint32(i + 1))
    return first, second


def unrolled(rng_key: Array) -> Array:
    """A key with the same random numbers; of another kind than Threefry's, the key itself."""
    if random.key_impl(rng_key) != "threefry2x32":
        return rng_key
    return random.wrap_key_data(random.key_data(rng_key), impl=_UNROLLED)


def _words(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Both words of the counters 0, 1, ... of an array, whose sizes are below 2^32."""
    counts = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32).reshape(shape)
    return threefry(key, jnp.uint32(0), counts)


_UNROLLED = extend_random.define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: random.key_data(random.key(seed, impl="threefry2x32")),
    split=lambda key, shape: jnp.stack(_words(key, shape), axis=-1),
    random_bits=lambda key, bit_width, shape: operator.xor(*_words(key, shape)),  # Of 32 bits.
    fold_in=lambda key, data: jnp.stack(
        threefry(key, jnp.uint32(0), jnp.asarray(data).astype(jnp.uint32))
    ),
    name="threefry2x32_unrolled",
    tag="fryu",
)
