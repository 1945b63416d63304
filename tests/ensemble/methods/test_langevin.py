"""Langevin steps on quadratics, where the answer is known, and beside BlackJAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.sgmcmc.diffusions import overdamped_langevin

from ensemble.methods.sgmcmc import langevin, masses, temperature

CURVATURES = jnp.array([0.0625, 1.0, 4.0])
NUM_CHAINS = 400
NUM_EXAMPLES = 7


def chain(learning_rate, decay, gradient_noise=0.0, num_steps=400, num_kept=200):
    """Positions [kept, chains, 3] of a normal density with these curvatures, and the energies."""
    optimizer = langevin(
        lambda _: learning_rate, lambda _: True, NUM_EXAMPLES, decay, num_adapting=0
    )
    key_start, key_noise, key_chains = jax.random.split(jax.random.key(0), 3)
    start = jax.random.normal(key_start, (NUM_CHAINS, 3)) / jnp.sqrt(CURVATURES)
    state = jax.vmap(optimizer.init)(start)
    keys = jax.random.key_data(jax.random.split(key_chains, NUM_CHAINS))
    state = state._replace(rng_key=keys)

    def step(carry, t):
        positions, state = carry
        noise = jax.random.normal(jax.random.fold_in(key_noise, t), positions.shape)
        grads = (CURVATURES * positions + gradient_noise * noise) / NUM_EXAMPLES
        updates, state = jax.vmap(optimizer.update)(grads, state)
        return (positions + updates, state), (positions + updates, state.kinetic)

    positions, kinetic = jax.jit(lambda c: jax.lax.scan(step, c, jnp.arange(num_steps))[1])(
        (start, state)
    )
    return np.asarray(positions[-num_kept:]), np.asarray(kinetic[-num_kept:])


def rate(step_size, decay):
    return step_size**2 * NUM_EXAMPLES * (1 + decay) / 2


@pytest.mark.check
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_positions_have_no_error_of_discretisation_on_a_normal_density(decay):
    # The stiffest direction is stable below a step of 1; Euler's scheme would be off by a third.
    positions, kinetic = chain(rate(0.8, decay), decay)
    np.testing.assert_allclose(positions.var(axis=(0, 1)) * CURVATURES, 1, atol=0.08)
    np.testing.assert_allclose(kinetic.mean(), 1, atol=0.03)


@pytest.mark.check
@pytest.mark.parametrize(
    "decay",
    [0.0, 0.5],
)
def test_the_momentum_tells_by_how_much_noise_of_gradients_widens_the_draws(decay):
    # 30% of variance in every direction, for the step is small against all of them.
    step_size = 0.1
    excess = 0.3
    noise = np.sqrt(4 * excess * (1 - decay) / (1 + decay)) / step_size
    positions, kinetic = chain(rate(step_size, decay), decay, noise, num_steps=800)
    found = temperature(kinetic.mean(), decay)
    assert abs(found - (1 + excess)) < 0.02
    stiff = positions.var(axis=(0, 1))[2] * CURVATURES[2]
    assert abs(stiff - found) < 0.1


def test_sgld_descends_and_spreads_as_blackjax_does():
    learning_rate = 0.3
    optimizer = langevin(lambda _: learning_rate, lambda _: False, NUM_EXAMPLES, 0.0, 0)
    theirs = overdamped_langevin()
    position = jnp.array([1.0, -2.0])
    grad = jnp.array([0.5, 3.0])
    updates, _ = optimizer.update(grad, optimizer.init(position))
    step_size = learning_rate / NUM_EXAMPLES
    logdensity_grad = -NUM_EXAMPLES * grad
    expected = theirs(jax.random.key(0), position, logdensity_grad, step_size, temperature=0.0)
    np.testing.assert_allclose(position + updates, expected, rtol=1e-6)
    # Without gradients both diffuse: 2 * step_size a step.
    optimizer = langevin(lambda _: learning_rate, lambda _: True, NUM_EXAMPLES, 0.0, 0)
    position = jnp.zeros(4000)
    num_steps = 50

    def both(t, carry):
        ours, state, other = carry
        updates, state = optimizer.update(jnp.zeros_like(ours), state)
        key = jax.random.fold_in(jax.random.key(1), t)
        return ours + updates, state, theirs(key, other, jnp.zeros_like(other), step_size)

    start = (position, optimizer.init(position), position)
    ours, _, other = jax.jit(lambda c: jax.lax.fori_loop(0, num_steps, both, c))(start)
    for found in (ours, other):
        np.testing.assert_allclose(found.var(), 2 * step_size * num_steps, rtol=0.08)


@pytest.mark.check
def test_a_mass_is_one_on_average_and_follows_the_gradients_until_it_is_frozen():
    optimizer = langevin(lambda _: 1e-3, lambda _: False, NUM_EXAMPLES, 0.9, num_adapting=200)
    params = {"loud": jnp.zeros(50), "quiet": jnp.zeros(50)}
    grads = {"loud": jnp.full(50, 3.0), "quiet": jnp.full(50, 0.3)}
    update = jax.jit(lambda state, grads: optimizer.update(grads, state)[1])
    state = optimizer.init(params)
    for _ in range(200):
        state = update(state, grads)
    mass = masses(state.squares, params)
    assert np.isclose(np.mean([mass["loud"], mass["quiet"]]), 1, rtol=1e-5)
    np.testing.assert_allclose(mass["loud"] / mass["quiet"], 1.918 / 0.282, rtol=0.02)
    frozen = update(state, {"loud": grads["quiet"], "quiet": grads["loud"]})
    jax.tree.map(np.testing.assert_array_equal, frozen.squares, state.squares)
