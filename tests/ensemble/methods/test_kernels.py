"""How draws are made: their keys, chunks and warm-up, and what a draw reports."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chains import advance

from ensemble.methods.kernels import Settings, make_sampler

COVARIANCE = np.array([[1.0, 0.9], [0.9, 2.0]])


def correlated_gaussian(x):
    return -0.5 * x @ jnp.linalg.inv(jnp.asarray(COVARIANCE, jnp.float32)) @ x


def log_gamma(x):
    """The logarithm of a Gamma(2) variable, twice: skewed to the left."""
    return jnp.sum(2 * x - jnp.exp(x))


def draw(settings, logdensity_fn, num_draws, start=(0.0, 0.0), seed=0):
    """The chain before and after, positions [T, P] and diagnostics [T] from draw 0 on."""
    sampler = make_sampler(settings, logdensity_fn)
    key = jax.random.key(seed)
    before = sampler.init(key, jnp.asarray(start, jnp.float32))
    run = jax.jit(functools.partial(advance, sampler), static_argnames="num_draws")
    after, (positions, info) = run(key, before, jnp.int32(0), num_draws=num_draws)
    return before, after, np.asarray(positions), jax.tree.map(np.asarray, info)


def counted_gaussian():
    """The correlated Gaussian, and a list that grows by one with every gradient of it."""
    count = []

    @jax.custom_vjp
    def counted(x):
        return correlated_gaussian(x)

    def forward(x):
        jax.debug.callback(lambda: count.append(1))
        return jax.value_and_grad(correlated_gaussian)(x)

    counted.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    return counted, count


@pytest.mark.check
def test_mclmc_is_tuned_once_the_same_each_time_and_within_its_budget():
    counted, count = counted_gaussian()
    sampler = make_sampler(Settings("mclmc", 0.1, num_warmup=100, mass="diagonal"), counted)
    key = jax.random.key(0)
    start = sampler.init(key, jnp.ones(2))
    jax.effects_barrier()
    count.clear()
    tune = jax.jit(sampler.tune)
    tuned = tune(key, start)
    jax.effects_barrier()
    assert 180 < len(count) <= 200  # Two gradients a step.
    jax.tree.map(np.testing.assert_array_equal, tuned, tune(key, start))
    assert float(tuned.adaptation.step_size) > 0.3
    after, _ = jax.jit(sampler.step)(key, tuned, jnp.int32(0))  # As any draw, warm-up or not.
    assert jax.tree.map(float, after.adaptation[:2]) == jax.tree.map(float, tuned.adaptation[:2])
    assert make_sampler(Settings("nuts"), counted).tune is None
    assert make_sampler(Settings("mclmc", num_warmup=0), counted).tune is None


@pytest.mark.check
def test_adjusted_mclmc_finds_a_narrow_density_from_far_and_turns_a_quarter_about_it():
    """There float32 rounds the log density by more than any step may err."""
    scale = 0.001 * np.array([1.0, 2.0, 5.0, 10.0])

    def logdensity_fn(x):
        return -0.5 * jnp.sum(jnp.square((x - 1) / scale))

    settings = Settings("adjusted_mclmc", 0.1, num_warmup=300, mass="diagonal", jitter=0)
    _, _, positions, info = draw(settings, logdensity_fn, 600, start=(30.0, -20, 10, 5))
    np.testing.assert_allclose(positions[300:].std(axis=0) / scale, 1, atol=0.25)
    assert 0.7 < info.acceptance_rate[300:].mean() < 0.98
    length = info.step_size[-1] * info.num_gradients[-1] / 2
    assert length == pytest.approx(np.pi, rel=0.2)  # pi / 2 * sqrt(4).


@pytest.mark.check
@pytest.mark.parametrize("method", ["nuts", "mclmc"])
def test_gradients_are_counted_as_they_are_taken(method):
    counted, count = counted_gaussian()
    settings = Settings(method, step_size=0.1, num_leapfrog_steps=5, num_warmup=0)
    _, _, _, info = draw(settings, counted, 20)
    jax.effects_barrier()
    assert len(count) == 1 + info.num_gradients.sum()  # One to start.


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_the_mass_is_the_covariance_of_the_last_window(mass):
    """Stan's schedule for 150 draws: 75 for the step size, one window of 25, 50 again."""
    scale = np.array([1.0, 30.0], np.float32)
    settings = Settings("hmc", 0.5, num_leapfrog_steps=8, num_warmup=150, mass=mass)
    _, chain, positions, info = draw(settings, lambda x: correlated_gaussian(x / scale), 200)
    expected = 25 / 30 * np.cov(positions[75:100].T) + 5 / 30 * 1e-3 * np.eye(2)
    found = chain.adaptation.mass.inverse_mass_matrix
    expected = np.diag(expected) if mass == "diagonal" else expected
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # The step size was sought anew after the window, and was settled after the warm-up.
    assert info.step_size[100] == pytest.approx(info.step_size[50:100].mean(), rel=0.9)
    assert len(np.unique(info.step_size[100:150])) > 40
    assert len(np.unique(info.step_size[150:])) == 1


@pytest.mark.check
def test_the_energy_error_is_what_the_proposal_is_judged_by():
    for method in ("hmc", "adjusted_mclmc"):
        _, _, _, info = draw(Settings(method, 0.9, 4, num_warmup=0), log_gamma, 100)
        expected = np.minimum(1, np.exp(-info.energy_error))
        np.testing.assert_allclose(info.acceptance_rate, expected, atol=1e-4)
        assert np.abs(info.energy_error).max() > 0.1
    positions, info = draw(Settings("nuts", 0.3, num_warmup=0), log_gamma, 100)[2:]
    assert 0 < np.abs(info.energy_error).max() < 5
    np.testing.assert_allclose(info.log_density, jax.vmap(log_gamma)(positions), atol=1e-4)


def half_line(x):
    return jnp.where(x[0] > 0, -jnp.sum(x**2), jnp.nan)


@pytest.mark.check
@pytest.mark.parametrize("method", ["hmc", "nuts", "mclmc"])
def test_a_nan_energy_is_a_rejection(method):
    settings = Settings(method, step_size=0.5, num_leapfrog_steps=4, num_warmup=0)
    _, _, positions, info = draw(settings, half_line, 300, start=(0.5, 0.5))
    refused = info.is_divergent
    assert 0 < refused.sum() < 300
    assert (positions[:, 0] > 0).all()
    assert np.isfinite(info.log_density).all()
    assert not np.isnan(info.energy_error).any()
    if method == "hmc":
        assert (info.acceptance_rate[refused] == 0).all()
        assert np.isinf(info.energy_error[refused]).all()
        repeated = (np.diff(positions, axis=0) == 0).all(axis=1)
        assert repeated[refused[1:]].all()
    if method == "mclmc":
        assert np.isin(info.acceptance_rate, [0, 0.25, 0.5, 0.75, 1]).all()
        np.testing.assert_array_equal(info.acceptance_rate < 1, refused)
