"""What is stated of the bias of MCLMC, against Gaussians whose widths are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ensemble.draws.unadjusted_bias import expected_bias
from ensemble.methods.mcmc.kernels import Settings, make_sampler

GAUSSIANS = {
    "alike": (np.ones(10), 4.0),
    "spread": (np.logspace(-1, 0, 10), 0.65),
    "one narrow": (np.r_[0.1, np.ones(9)], 0.6),
    "a hundred alike": (np.ones(100), 13.0),
}
NUM_CHAINS, NUM_DRAWS, STEPS = 128, 400, 8


def simulate(widths, step_size):
    """Relative errors of standard deviations [P] with standard errors, and the energy's variance.

    Chains start at exact draws; L is the width of the density, as a tuning would find it.
    """
    settings = Settings("mclmc", step_size, STEPS, num_warmup=0)
    sampler = make_sampler(settings, lambda x: -0.5 * jnp.sum(jnp.square(x / widths)))

    def run(rng_key):
        key_start, key_chain = jax.random.split(rng_key)
        start = jnp.float32(widths) * jax.random.normal(key_start, widths.shape)
        chain = sampler.init(key_chain, start)
        length = jnp.float32(np.sqrt(np.sum(widths**2)))
        chain = chain._replace(adaptation=chain.adaptation._replace(L=length))

        def draw(chain, t):
            chain, info = sampler.step(chain, t)
            return chain, ((chain.state.position / widths) ** 2, info.energy_error**2)

        squares, errors = jax.lax.scan(draw, chain, jnp.arange(NUM_DRAWS))[1]
        return squares[NUM_DRAWS // 4 :].mean(axis=0), errors[NUM_DRAWS // 4 :].mean()

    keys = jax.random.split(jax.random.key(0), NUM_CHAINS)
    squares, errors = jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(keys))
    found = np.sqrt(squares.mean(axis=0)) - 1
    return found, squares.std(axis=0) / 2 / np.sqrt(NUM_CHAINS), errors.mean() / len(widths)


@pytest.mark.soak
@pytest.mark.parametrize("name", GAUSSIANS)
def test_widths_err_by_no_more_than_is_stated_and_not_by_much_less(name):
    found, errors, variance = simulate(*GAUSSIANS[name])
    stated = expected_bias(variance, len(found))
    of_mean = 4 * np.sqrt(np.mean(errors**2))  # Directions may vary together.
    assert stated.worst is not None
    assert abs(found.mean()) < stated.mean + of_mean
    assert np.all(np.abs(found) < stated.worst + 4 * errors)
    assert stated.mean < 3 * (abs(found.mean()) + of_mean)
    assert stated.worst < 5 * np.max(np.abs(found) + 4 * errors)


def test_a_step_near_the_limit_of_stability_has_no_worst_direction_told():
    assert expected_bias(5e-4, 10).mean == pytest.approx(0.0103, rel=0.01)
    assert expected_bias(5e-4, 10).worst == pytest.approx(0.06, rel=0.01)
    assert expected_bias(5e-4, 10_000).worst is None


def test_of_a_step_that_is_far_too_long_nothing_is_told():
    assert expected_bias(5e-4, 10_000).mean is not None
    assert expected_bias(82.0, 994) == (None, None)
    assert expected_bias(float("inf"), 2) == (None, None)
