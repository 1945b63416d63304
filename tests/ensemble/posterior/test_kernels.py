"""Samplers against known answers, with error bars from their effective sample sizes."""

import functools
import itertools

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from blackjax.mcmc.integrators import IntegratorState, velocity_verlet
from blackjax.mcmc.metrics import default_metric

from ensemble import UserError
from ensemble.posterior.kernels import Chain, Settings, advance, make_sampler

NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 8, 400, 1500
COVARIANCE = np.array([[1.0, 0.9], [0.9, 2.0]])
SETTINGS = {
    "hmc": Settings("hmc", step_size=0.3, num_leapfrog_steps=8, num_warmup=NUM_WARMUP),
    "nuts": Settings("nuts", step_size=0.3, num_warmup=NUM_WARMUP),
}


def correlated_gaussian(x):
    return -0.5 * x @ jnp.linalg.inv(jnp.asarray(COVARIANCE, jnp.float32)) @ x


def log_gamma(x):
    """The logarithm of a Gamma(2) variable, twice: skewed to the left."""
    return jnp.sum(2 * x - jnp.exp(x))


def funnel(x):
    """Neal 2003: the width of x[1] is exp(x[0] / 2), x[0] is N(0, 3^2)."""
    return -0.5 * (x[0] / 3) ** 2 - 0.5 * x[1] ** 2 * jnp.exp(-x[0]) - 0.5 * x[0]


@functools.cache
def sample(method, logdensity_fn, num_draws=NUM_DRAWS):
    """Draws [chains, T, 2] after the warm-up, and all diagnostics."""
    sampler = make_sampler(SETTINGS[method], logdensity_fn, jnp.ones(2))

    def run(rng_key, position):
        chain = sampler.init(rng_key, position)
        return advance(sampler, chain, jnp.int32(0), NUM_WARMUP + num_draws)[1]

    keys = jax.vmap(jax.random.key)(jnp.arange(NUM_CHAINS))
    starts = jax.random.normal(jax.random.key(99), (NUM_CHAINS, 2))
    positions, info = jax.jit(jax.vmap(run))(keys, starts)
    return np.asarray(positions)[:, NUM_WARMUP:], jax.tree.map(np.asarray, info)


def assert_mean(values, expected, name):
    """Within 4 standard errors, of values [chains, T], by their effective sample size."""
    ess = float(blackjax.ess(jnp.asarray(values)))
    assert ess > 400, name
    error = 4 * values.std() / np.sqrt(ess)
    assert abs(values.mean() - expected) < error, (name, values.mean(), expected, error)


@pytest.mark.parametrize("method", SETTINGS)
def test_correlated_gaussian(method):
    draws, info = sample(method, correlated_gaussian)
    for i in range(2):
        assert_mean(draws[..., i], 0.0, "mean")
        for j in range(2):
            assert_mean(draws[..., i] * draws[..., j], COVARIANCE[i, j], "covariance")
    kept = info.acceptance_rate[:, NUM_WARMUP:]
    assert 0.7 < kept.mean() < 0.95
    assert not info.is_divergent[:, NUM_WARMUP:].any()


@pytest.mark.parametrize("method", SETTINGS)
def test_asymmetric_density(method):
    draws, _ = sample(method, log_gamma)
    exact = scipy.stats.loggamma(2)
    for i in range(2):
        assert_mean(draws[..., i], exact.mean(), "mean")
        assert_mean((draws[..., i] - exact.mean()) ** 2, exact.var(), "variance")
        below = draws[..., i] < exact.ppf(0.05)
        assert_mean(below.astype(float), 0.05, "lower tail")


def test_the_funnel_defeats_a_fixed_step_and_says_so():
    """The neck is too narrow for any step size that suits the mouth: this must fail, visibly."""
    draws, info = sample("hmc", funnel)
    mass_in_the_neck = (draws[..., 0] < -6).mean()
    assert mass_in_the_neck < 0.5 * scipy.stats.norm.cdf(-2)  # .023 would be right.
    acceptance = info.acceptance_rate[:, NUM_WARMUP:]
    assert (acceptance < 0.1).mean() > 0.01  # Stuck at its edge, where proposals are refused.


@pytest.mark.parametrize("method", SETTINGS)
def test_chunks_change_no_bit(method):
    sampler = make_sampler(SETTINGS[method], log_gamma, jnp.ones(2))
    take = jax.jit(functools.partial(advance, sampler), static_argnames="num_draws")
    start = sampler.init(jax.random.key(3), jnp.zeros(2))
    _, (whole, _) = take(start, jnp.int32(0), num_draws=12)
    chain, parts = start, []
    for first, number in [(0, 5), (5, 1), (6, 6)]:
        chain, (positions, _) = take(chain, jnp.int32(first), num_draws=number)
        parts.append(positions)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert isinstance(chain, Chain)


def test_a_chain_is_traced_once_and_survives_the_host():
    sampler = make_sampler(SETTINGS["hmc"], log_gamma, jnp.ones(2))
    traces = []

    @jax.jit
    def take(chain, first):
        traces.append(first)
        return advance(sampler, chain, first, 3)

    chain = sampler.init(jax.random.key(3), jnp.zeros(2))
    chain, _ = take(chain, jnp.int32(0))
    _, (expected, _) = take(chain, jnp.int32(3))
    on_host = jax.tree.map(np.asarray, chain._replace(rng_key=jax.random.key_data(chain.rng_key)))
    restored = on_host._replace(rng_key=jax.random.wrap_key_data(on_host.rng_key))
    _, (positions, _) = take(restored, jnp.int32(3))
    np.testing.assert_array_equal(positions, expected)
    assert len(traces) == 1


@pytest.mark.parametrize("mass", [np.diag(COVARIANCE), COVARIANCE])
def test_the_mass_matrix_is_used(mass):
    """With the covariance itself as inverse mass all directions are alike: any step suits both."""
    settings = Settings("hmc", step_size=0.5, num_leapfrog_steps=3, num_warmup=0, jitter=0)

    def acceptance(inverse_mass_matrix):
        scaled = lambda x: correlated_gaussian(x / jnp.array([1.0, 30.0]))  # noqa: E731
        sampler = make_sampler(settings, scaled, jnp.asarray(inverse_mass_matrix, jnp.float32))
        chain = sampler.init(jax.random.key(0), jnp.zeros(2))
        positions = advance(sampler, chain, jnp.int32(0), 300)[1][0]
        return np.asarray(positions)[:, 1].std()

    scale = np.array([1.0, 30.0])
    suited = mass * (np.outer(scale, scale) if mass.ndim == 2 else scale**2)
    exact = 30 * np.sqrt(2)
    assert acceptance(suited) == pytest.approx(exact, rel=0.25)
    assert acceptance(np.ones(2)) < 0.7 * exact  # Too slow along the wide direction.


def test_all_chains_of_a_draw_go_equally_far_and_nuts_farther_on_small_steps():
    _, info = sample("hmc", log_gamma)
    assert (info.num_gradients == info.num_gradients[:1]).all()
    assert len(np.unique(info.num_gradients)) > 1
    settings = Settings("nuts", step_size=0.02, num_warmup=0)
    sampler = make_sampler(settings, correlated_gaussian, jnp.ones(2))
    chain = sampler.init(jax.random.key(0), jnp.zeros(2))
    _, (_, info) = advance(sampler, chain, jnp.int32(0), 5)
    assert np.asarray(info.num_gradients).max() > 60


def test_the_step_size_is_settled_after_the_warmup():
    _, info = sample("hmc", log_gamma)
    assert len(np.unique(info.step_size[0, :NUM_WARMUP])) > NUM_WARMUP / 2
    assert len(np.unique(info.step_size[0, NUM_WARMUP:])) == 1
    assert 0.7 < info.acceptance_rate[:, NUM_WARMUP:].mean() < 0.95


def test_without_warmup_the_step_size_is_as_given():
    settings = Settings("hmc", step_size=0.25, num_leapfrog_steps=10, num_warmup=0, jitter=0.5)
    sampler = make_sampler(settings, log_gamma, jnp.ones(2))
    chain = sampler.init(jax.random.key(0), jnp.zeros(2))
    _, (_, info) = advance(sampler, chain, jnp.int32(0), 200)
    assert set(np.asarray(info.step_size).tolist()) == {0.25}
    lengths = np.asarray(info.num_gradients)
    assert lengths.min() == 5
    assert lengths.max() == 15
    assert lengths.mean() == pytest.approx(10, abs=1)


def test_a_nan_energy_is_a_rejection():
    def half_line(x):
        return jnp.where(x[0] > 0, -jnp.sum(x**2), jnp.nan)

    settings = Settings("hmc", step_size=0.5, num_leapfrog_steps=4, num_warmup=0)
    sampler = make_sampler(settings, half_line, jnp.ones(2))
    chain = sampler.init(jax.random.key(0), jnp.full(2, 0.5))
    _, (positions, info) = advance(sampler, chain, jnp.int32(0), 300)
    refused = np.asarray(info.is_divergent)
    assert 0 < refused.sum() < 300
    assert (np.asarray(info.acceptance_rate)[refused] == 0).all()
    assert (np.asarray(positions)[:, 0] > 0).all()
    repeated = (np.diff(np.asarray(positions), axis=0) == 0).all(axis=1)
    assert repeated[refused[1:]].all()


def leapfrog(position, momentum, step_size, num_steps):
    metric = default_metric(jnp.ones(2))
    one_step = velocity_verlet(correlated_gaussian, metric.kinetic_energy)
    state = IntegratorState(position, momentum, *jax.value_and_grad(correlated_gaussian)(position))
    for _ in range(num_steps):
        state = one_step(state, step_size)
    return state, -state.logdensity + metric.kinetic_energy(state.momentum)


def test_leapfrog_is_reversible_and_of_second_order():
    position, momentum = jnp.array([0.3, -1.2]), jnp.array([1.0, 0.4])
    there, _ = leapfrog(position, momentum, 0.1, 10)
    back, _ = leapfrog(there.position, -there.momentum, 0.1, 10)
    np.testing.assert_allclose(back.position, position, atol=1e-5)
    np.testing.assert_allclose(-back.momentum, momentum, atol=1e-5)
    start = -correlated_gaussian(position) + 0.5 * jnp.sum(momentum**2)
    errors = [
        abs(float(leapfrog(position, momentum, 0.4 / 2**k, 2 * 2**k)[1] - start)) for k in range(3)
    ]
    for coarse, fine in itertools.pairwise(errors):
        assert coarse / fine == pytest.approx(4, rel=0.35)


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ({"method": "gibbs"}, "method='gibbs' must be one of hmc, nuts"),
        ({"step_size": 0.0}, "step_size=0.0 must be positive"),
        ({"num_leapfrog_steps": 0}, "num_leapfrog_steps=0 must be positive"),
        ({"jitter": 1.0}, "jitter=1.0 must be at least 0 and below 1"),
        ({"num_warmup": -1}, "num_warmup=-1 must not be negative"),
        ({"target_acceptance": 1.0}, "target_acceptance=1.0 must be between 0 and 1"),
    ],
)
def test_bad_settings_are_one_line(bad, line):
    with pytest.raises(UserError, match=line):
        Settings(**bad)
